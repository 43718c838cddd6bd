"""A recipe's objective goes in, a module comes out that turns student and teacher embeddings into a loss."""

from edgedistill.objectives.composition import build, fill, halve, learned, remember
from edgedistill.objectives.requirements import cuts, fits, memory, of_unit_length, reads_teacher

__all__ = ["build", "cuts", "fill", "fits", "halve", "learned", "memory", "of_unit_length", "reads_teacher", "remember"]
