"""The linear head of a finished student, fitted to the targets of another teacher before the first optimizer step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from edgedistill.data.corpus import Corpus
from edgedistill.runtime.similarity import unit_rows
from edgedistill.session import Session
from edgedistill.students.affine import Affine
from edgedistill.students.output import own
from edgedistill.teacher.dimension_reduction import ridge
from edgedistill.teacher.targets import EmbeddingRows
from edgedistill.training import student_embeddings
from edgedistill.training.initial_student.prepared_student import PreparedStudent

SAMPLE = 10_000  # texts, some forty for each dimension of a student that is 256 wide
SET_ASIDE = 0.1  # of them: the regularization is chosen, and the cosine measured, on texts that the head was not fitted on
REGULARIZATION = (1e-4, 1e-2, 1.0)  # in units of the sample's sum of squares of a dimension


def fit(student: PreparedStudent, targets: EmbeddingRows, texts: Corpus, seed: int, session: Session) -> None:
    """Set the head in place by ridge regression of the targets on the student's pooled output, on a sample of the training texts."""
    head: Any = own(student.module).head
    rows = np.random.default_rng([seed, 1]).permutation(texts.training_count)[:SAMPLE]
    pooled, wanted = _pooled(student, texts.texts(rows)), targets[rows].astype(np.float64)
    count = max(1, round(SET_ASIDE * len(rows)))
    measured = slice(0, count)
    fitted = slice(count, None) if len(rows) > count else measured
    before = Affine(head.weight.detach().double().numpy().T, head.bias.detach().double().numpy())
    squares = float(((pooled[fitted] - pooled[fitted].mean(0)) ** 2).sum(0).mean())
    tried = [ridge(pooled[fitted], wanted[fitted], max(share * squares, 1e-9)) for share in REGULARIZATION]
    cosines = [_cosine(each(pooled[measured]), wanted[measured]) for each in tried]
    best = tried[int(np.argmax(cosines))]
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(best.weight.T))
        head.bias.copy_(torch.from_numpy(best.bias))
    first = _cosine(before(pooled[measured]), wanted[measured])
    session.log(
        f"head: fitted to the targets' {head.out_features} dimensions on {len(rows):,} texts; "
        f"mean cosine to them {first:.4f} before, {max(cosines):.4f} after"
    )


def _pooled(student: PreparedStudent, texts: list[str]) -> np.ndarray:
    """(n, H) float64: the student's output in front of its head."""
    bare: Any = own(student.module)
    head, bare.head = bare.head, None
    try:
        return student_embeddings.embed(bare.eval(), student.tokenizer, texts, student.max_tokens, unit=False).astype(np.float64)
    finally:
        bare.head = head


def _cosine(rows: np.ndarray, wanted: np.ndarray) -> float:
    return float((unit_rows(rows) * unit_rows(wanted)).sum(1).mean())
