"""Match how the teacher's vectors stand to each other."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import normalize

from edgedistill.errors import UserError


def gram(student: Tensor, teacher: Tensor) -> Tensor:
    """Match the teacher's pairwise cosines: mean over i≠j of (s_i·s_j − t_i·t_j)².

    student (B, d), teacher (B, e): scaled to unit rows here; d and e may differ. Returns (). Raises UserError for one row.
    Park et al. 2019, Relational Knowledge Distillation, on cosines.
    Relation: blind to a common rotation, which `cosine` is not; use both when d == e.
    """
    rows = len(student)
    if rows < 2:
        raise UserError("objective gram: a batch of 1 has no pairs; set batch to 2 or more")
    student, teacher = normalize(student, dim=-1), normalize(teacher, dim=-1)
    difference = student @ student.T - teacher @ teacher.T
    return (difference.square().sum() - difference.diagonal().square().sum()) / (rows * (rows - 1))
