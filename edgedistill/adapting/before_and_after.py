"""How well a student agrees with its teacher before and after an adaptation, on texts that it was not trained
on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from rich.table import Table

from edgedistill.evaluation import scoring, teacher_agreement
from edgedistill.evaluation.tables import plain

Encode = Callable[[Sequence[str]], np.ndarray]


class HeldOutTexts(NamedTuple):
    """Texts that were held out, n of them, and the teacher's embeddings of these (n, d)."""

    texts: list[str]
    teacher: np.ndarray


def measure(encode: Encode, held_out: HeldOutTexts) -> dict[str, float | None]:
    """{cosine, spearman, top10_overlap} of a student and its teacher on the held-out texts, and {mini} on the
    suite that ships.

    cosine: mean over the texts, None where the two have different dimensions; spearman: of the cosines of
        pairs of texts;
    top10_overlap: share of the teacher's ten nearest neighbours that are the student's.
    """
    found = teacher_agreement.agreement(
        encode(held_out.texts), held_out.teacher, np.ones(len(held_out.texts), int)
    )
    mini = scoring.evaluate(scoring.suite("mini"), encode)["average"]
    return {
        "cosine": found["cosine_mean"],
        "spearman": found["spearman"],
        "top10_overlap": found["top10_overlap"],
        "mini": mini,
    }


NAMES = {
    "top10_overlap": "ten nearest neighbours in common with the teacher",
    "spearman": "rank correlation of pairwise cosines with the teacher's",
    "cosine": "mean cosine to the teacher's embeddings",
    "mini": "mini (STS of general texts)",
}


def table(before: dict[str, float | None], after: dict[str, float | None], texts: int) -> str:
    """Both measurements side by side."""
    sheet = Table(title=f"{texts:,} held-out texts", title_justify="left")
    for title in ("", "before", "after"):
        sheet.add_column(title, justify="left" if not title else "right")
    for key, name in NAMES.items():
        old, new = before[key], after[key]
        if new is not None:
            sheet.add_row(name, "" if old is None else f"{100 * old:.1f}", f"{100 * new:.1f}")
    return plain(sheet)
