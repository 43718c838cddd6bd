"""A finished student and somebody's own texts go in; a recipe, a run, a bundle, and what the student knew of
the texts before and after come out."""

from edgedistill.adapting.adapt import adapt
from edgedistill.adapting.plan import Request

__all__ = ["Request", "adapt"]
