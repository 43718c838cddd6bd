"""Pairs of texts: graded similarity (STS-B, STS2017, …), the Spearman correlation of cosine and score; and
zero-shot classification by a threshold on their cosine (SRA, §5.5, Table 5)."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from edgedistill.data import labelled_tasks
from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Encode, Encoder, Floats, Measures, dot, spearman, unit
from edgedistill.evaluation.suites.suite_files import Find, Task, TaskData, columns


class StsFile(Task):
    """A table of pairs with a graded score."""

    averaged: ClassVar[str] = "all"
    title: ClassVar[str] = "Spearman × 100"

    file: str = Field(description="next to suite.yaml, else under --data")
    translation: str | None = Field(
        None, description="the same pairs in another language, row by row; sentence2 is read from there"
    )
    sentence1: str = "sentence1"
    sentence2: str = "sentence2"
    score: str = "score"
    subset: str | None = Field(None, description="only pairs with this value in the column `subset`")

    def read(self, find: Find) -> ScoredPairs:
        """The pairs; those without a score, and of other subsets than the chosen one, are left out."""
        path = find(self.file)
        names = [self.sentence1, self.sentence2, self.score]
        if self.subset is not None:
            names.append("subset")
        table = list(columns(path, names))
        seconds = [row[1] for row in table]
        if self.translation is not None:
            seconds = _translations(path, [row[2] for row in table], find(self.translation), self)
        pairs = []
        gold = []
        for number, ((first, _, score, *subset), second) in enumerate(zip(table, seconds, strict=True), 1):
            if score and self.subset in (None, *subset):
                pairs.append((first, second))
                gold.append(_number(score, path, number))
        if len(set(gold)) < 2:
            where = "" if self.subset is None else f" of subset {self.subset}"
            raise UserError(
                f"{path}: pairs with a score{where}: {len(gold):,}, and a rank correlation needs two "
                "scores; check the suite, or give another --data"
            )
        return ScoredPairs(pairs, np.array(gold))


@dataclass(frozen=True)
class ScoredPairs(TaskData):
    """One task: pairs of texts, with the gold score of each (n,)."""

    pairs: list[tuple[str, str]]
    gold: npt.NDArray[np.float64]

    @property
    def texts(self) -> list[str]:
        return [text for pair in self.pairs for text in pair]

    def cosines(self, encode: Encode) -> Floats:
        """Of the embeddings of each pair."""
        embeddings = unit(encode(self.texts))
        return dot(embeddings[::2], embeddings[1::2])

    def score(self, encoder: Encoder) -> Measures:
        """`all`, one Spearman correlation over all `pairs`."""
        cosines = self.cosines(encoder.text)
        return {
            "all": spearman(cosines, self.gold) or 0.0,
            "pairs": len(self.gold),
            "samples": {"cosines": np.round(cosines, 4).tolist(), "gold": self.gold.tolist()},
        }


def _translations(path: Path, scores: list[str], other: Path, part: StsFile) -> list[str]:
    """Return sentence2 of `other`, row by row. Raises UserError where the two tables are not aligned, because
    rows and scores must match."""
    theirs = list(columns(other, [part.sentence2, part.score]))
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
    with suppress(ValueError):
        if math.isfinite(score := float(cell)):
            return score
    raise UserError(f"{path}: row {row}: score {cell!r} is not a finite number; correct it")


class PairTables(Task):
    """Two tables of pairs with two labels, of which matching pairs have the last (as of 0 and 1); the
    threshold is chosen on `dev`, `test` is scored."""

    dev: str = Field(description="a table: next to suite.yaml, else under --data")
    test: str
    texts: list[str] = Field(
        ["sentence1", "sentence2"], min_length=2, max_length=2, description="the two columns of a pair"
    )
    label: str = "label"

    def read(self, find: Find) -> PairSplits:
        """Raises UserError where the task has not exactly two labels, and one file for both splits."""
        if find(self.dev).resolve() == find(self.test).resolve():
            raise UserError(
                f"{find(self.test)}: is dev and test of {self.name}; give one of them other pairs"
            )
        tables = [
            labelled_tasks.read_table(find(name), self.texts, self.label, self.name)
            for name in (self.dev, self.test)
        ]
        dev, test = tables
        names = labelled_tasks.ordered_labels(dev.labels, self.dev)
        if len(names) != 2 or set(test.labels) - set(names):
            labels = ", ".join(sorted({*names, *test.labels}))
            raise UserError(f"{self.name}: labels {labels}; exactly two are needed")
        splits = []
        for table in tables:
            pairs = [(first, second) for first, second in table.items]
            splits.append(ScoredPairs(pairs, (np.array(table.labels) == names[1]).astype(float)))
        return PairSplits(*splits)


@dataclass(frozen=True)
class PairSplits(TaskData):
    """One task: pairs whose score is whether they match, 1 or 0."""

    dev: ScoredPairs
    test: ScoredPairs

    @property
    def texts(self) -> list[str]:
        return self.dev.texts + self.test.texts

    def score(self, encoder: Encoder) -> Measures:
        """`accuracy` on test at the `threshold` that was best on dev, and the number of `pairs`."""
        least = threshold(self.dev.cosines(encoder.text), self.dev.gold == 1)
        right = (self.test.cosines(encoder.text) >= least) == (self.test.gold == 1)
        samples = {"scores": right.astype(int).tolist()}
        return {"accuracy": float(right.mean()), "threshold": least, "pairs": len(right), "samples": samples}


def threshold(cosine: Floats, matches: npt.NDArray[np.bool_]) -> float:
    """Find the threshold of the best accuracy: pairs with at least this cosine match. It lies midway between
    two cosines that occur.

    cosine (n,) and matches (n,) bool are those of the dev split. The paper states no rule for choosing the
    threshold.
    """
    order = np.argsort(-cosine, kind="stable")
    hits = np.concatenate([[0], np.cumsum(matches[order])])
    right = 2 * hits - np.arange(len(matches) + 1)  # among those taken, less the wrong ones
    ranked = cosine[order]
    edges = np.concatenate([[ranked[0] + 1e-6], (ranked[:-1] + ranked[1:]) / 2, [ranked[-1] - 1e-6]])
    possible = np.concatenate([[True], ranked[:-1] > ranked[1:], [True]])  # equal cosines are taken together
    return float(edges[np.argmax(np.where(possible, right, -np.inf))])
