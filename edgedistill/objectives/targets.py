"""What the embeddings of a batch are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Targets(NamedTuple):
    """What a batch is compared with; what its stage's objective does not read is empty or None.

    `embeddings` are the teacher's of each column, (B, e), of all documents of a ranking (M, e). `positives`
    (B,) holds for each query the document that answers it, `answers` (B, M) bool which other ones are known
    to, where any are; `scores` (B, M) are the teacher's or the user's, NaN where there are none. `labels`
    (B,) are numbers of labels, `logits` (B, C) a teacher's. All are arrays until they are on the student's
    device.
    """

    embeddings: tuple[Any, ...] = ()
    positives: Any = None
    scores: Any = None
    answers: Any = None
    labels: Any = None
    logits: Any = None

    def map(self, change: Callable[[Any], Any]) -> Targets:
        """The same of every array."""
        rest = (None if array is None else change(array) for array in self[1:])
        return Targets(tuple(map(change, self.embeddings)), *rest)
