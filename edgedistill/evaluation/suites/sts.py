"""Graded similarity (STS-B, STS2017, …): Spearman correlation of cosine and score."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Floats, Ints, pair_cosines, spearman
from edgedistill.evaluation.suites.suite_files import (
    Family,
    Find,
    Rows,
    Task,
    add_texts,
    columns,
    pair_texts,
)


class StsFile(Task):
    """A table of pairs with a graded score."""

    file: str = Field(description="next to suite.yaml, else under --data")
    translation: str | None = Field(
        None, description="the same pairs in another language, row by row; sentence2 is read from there"
    )
    sentence1: str = "sentence1"
    sentence2: str = "sentence2"
    score: str = "score"
    subset: str | None = Field(None, description="only pairs with this value in the column `subset`")


@dataclass(frozen=True)
class ScoredPairs:
    """One STS task: pairs as rows of the suite's texts, with the gold score of each pair."""

    pairs: Ints  # (n, 2) into Suite.texts
    gold: npt.NDArray[np.float64]  # (n,)


def read(part: StsFile, find: Find, rows: Rows) -> ScoredPairs:
    """Read a table of pairs; those without a score, and of other subsets than the chosen ones, are left
    out."""
    path = find(part.file)
    names = [part.sentence1, part.sentence2, part.score, *(["subset"] if part.subset is not None else [])]
    table = list(columns(path, names, (part.score,)))
    seconds = [row[1] for row in table]
    if part.translation is not None:
        seconds = _translations(path, [row[2] for row in table], find(part.translation), part)
    texts, gold = list[str](), list[float]()
    for number, ((first, _, score, *subset), second) in enumerate(zip(table, seconds, strict=True), 1):
        if score and part.subset in (None, *subset):
            gold.append(_number(score, path, number))
            texts += [first, second]
    if len(set(gold)) < 2:
        fact = "no pair has a score" if part.subset is None else f"no pairs of subset {part.subset}"
        if gold:
            fact = f"pairs: {len(gold):,}, scores: {gold[0]:g} alone, and a rank correlation needs two"
        raise UserError(f"{path}: {fact}; check the suite, or give another --data")
    pairs = add_texts(texts, rows).reshape(-1, 2)
    return ScoredPairs(pairs, np.array(gold))


def _translations(path: Path, scores: list[str], other: Path, part: StsFile) -> list[str]:
    """Return sentence2 of `other`, row by row. Raises UserError where the two tables are not aligned, because
    rows and scores must match."""
    theirs = list(columns(other, [part.sentence2, part.score], (part.score,)))
    way_out = "take both from the same release"
    if len(theirs) != len(scores):
        longer, shorter = (path, other) if len(scores) > len(theirs) else (other, path)
        raise UserError(
            f"{shorter}: has fewer rows than {longer}, but must be its translation row by row; {way_out}"
        )
    for number, (here, (_, there)) in enumerate(zip(scores, theirs, strict=True), 1):
        if here != there and _number(here, path, number) != _number(there, other, number):
            raise UserError(
                f"{other}: row {number}: score {there}, but {path} has {here} there: not its translation; "
                f"{way_out}"
            )
    return [text for text, _ in theirs]


def _number(cell: str, path: Path, row: int) -> float:
    try:
        return float(cell)
    except ValueError:
        raise UserError(f"{path}: row {row}: score {cell!r} is not a number; correct it") from None


def score(task: ScoredPairs, embeddings: Floats) -> dict[str, Any]:
    """Return `all`, one Spearman correlation over all `pairs`."""
    cosine = pair_cosines(embeddings, task.pairs)
    return {
        "all": spearman(cosine, task.gold) or 0.0,
        "pairs": len(task.gold),
        "samples": {"cosines": np.round(cosine, 4).tolist(), "gold": task.gold.tolist()},
    }


FAMILY = Family(
    StsFile,
    read,
    score,
    "all",
    "Spearman × 100",
    shares_embeddings=True,
    items=lambda task, texts: pair_texts(task.pairs, texts),
)
