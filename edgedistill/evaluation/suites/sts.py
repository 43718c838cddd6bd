"""Graded similarity (STS-B, STS2017, …): Spearman correlation of cosine and score; alignment and uniformity
of the embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Encode, Floats, Ints, dot, encoded, spearman, unit
from edgedistill.evaluation.suites.suite_files import Find, Part, clean, tsv

POSITIVE = 4.0  # pairs with a higher score, of 5, count as paraphrases for alignment (SimCSE's choice)
BLOCK = 1024  # texts whose distances to all others are in memory at a time


class StsFile(Part):
    """A table of pairs with a graded score; .tsv or .tsv.gz, split at tabs, no quoting."""

    name: str = Field(description="of the task")
    file: str = Field(description="next to suite.yaml, else under --data")
    translation: str | None = Field(
        None, description="the same pairs in another language, row by row; sentence2 is read from there"
    )
    sentence1: str = "sentence1"
    sentence2: str = "sentence2"
    score: str = "score"
    subset_column: str | None = Field(
        None, description="the column with a pair's subset; default: `subset`, where there is one"
    )
    subset: list[str] | str | None = Field(None, description="only pairs of these subsets")


class StsSuite(Part):
    """Spearman correlation of cosine and graded similarity."""

    kind: Literal["sts"]
    name: str | None = None
    about: str = ""
    tasks: list[StsFile] = Field(min_length=1)


@dataclass(frozen=True)
class ScoredPairs:
    """One STS task: pairs as rows of the suite's texts, gold scores, subset of each pair."""

    first: Ints  # (n,) into Suite.texts
    second: Ints
    gold: npt.NDArray[np.float64]  # (n,)
    subset: npt.NDArray[np.str_]  # (n,)


def read(spec: StsSuite, find: Find) -> tuple[list[str], dict[str, ScoredPairs]]:
    """Returns (every distinct text of the suite once, each task's pairs by name)."""
    rows: dict[str, int] = {}
    tasks = {part.name: _read_pairs(part, find, rows) for part in spec.tasks}
    return list(rows), tasks


def score(texts: list[str], tasks: dict[str, ScoredPairs], encode: Encode) -> dict[str, dict[str, Any]]:
    """Per task `all` (one Spearman over all pairs), `mean` and `wmean` (over its subsets; weighted by pairs),
    `alignment`, `uniformity`."""
    embeddings = unit(encoded(encode, texts))
    return {name: _score_pairs(pairs, embeddings) for name, pairs in tasks.items()}


def alignment(x: Floats, y: Floats) -> float | None:
    """Mean ‖x − y‖² over paraphrases. x, y (n, d) unit rows; None without rows. Lower is better (Wang and
    Isola 2020, eq. 1)."""
    return float(((x.astype(np.float64) - y) ** 2).sum(1).mean()) if len(x) else None


def uniformity(x: Floats) -> float | None:
    """log mean exp(−2‖x − y‖²) over all pairs of unit rows (n, d); None below two rows. Lower is better (Wang
    and Isola 2020, eq. 2)."""
    if len(x) < 2:
        return None
    squares, total = (x**2).sum(1), 0.0
    for start in range(0, len(x), BLOCK):
        part = x[start : start + BLOCK]
        kernel = np.exp(4 * (part @ x.T) - 2 * squares[start : start + BLOCK, None] - 2 * squares)
        kernel[np.arange(len(part)), np.arange(start, start + len(part))] = 0  # a text with itself
        total += float(kernel.sum(dtype=np.float64))
    return float(np.log(max(total / (len(x) * (len(x) - 1)), 1e-12)))


def _score_pairs(pairs: ScoredPairs, embeddings: Floats) -> dict[str, Any]:
    cosine = dot(embeddings[pairs.first], embeddings[pairs.second])
    subsets, weights = {}, {}
    for name in dict.fromkeys(pairs.subset.tolist()):
        rows = pairs.subset == name
        if len(set(pairs.gold[rows])) > 1:  # a subset with a single gold value has no ranking
            subsets[name] = spearman(cosine[rows], pairs.gold[rows]) or 0.0
            weights[name] = int(rows.sum())
    values, paraphrases = list(subsets.values()), pairs.gold > POSITIVE
    return {
        "all": spearman(cosine, pairs.gold) or 0.0,
        "mean": float(np.mean(values)) if values else 0.0,
        "wmean": float(np.average(values, weights=list(weights.values()))) if values else 0.0,
        "pairs": len(pairs.gold),
        "subsets": subsets,
        "alignment": alignment(embeddings[pairs.first[paraphrases]], embeddings[pairs.second[paraphrases]]),
        "uniformity": uniformity(embeddings[np.unique(np.concatenate([pairs.first, pairs.second]))]),
    }


def _read_pairs(part: StsFile, find: Find, rows: dict[str, int]) -> ScoredPairs:
    """Read a table of pairs; new texts are added to `rows` (text -> index). Pairs without a score are
    dropped."""
    path = find(part.file)
    wanted = {part.subset} if isinstance(part.subset, str) else set(part.subset or ())
    column = part.subset_column or "subset"
    needed = [part.sentence1, part.sentence2, part.score] + ([column] if part.subset_column or wanted else [])
    table = tsv(path, needed, [column])
    if part.translation is not None:
        table = _translated(path, table, find(part.translation), part)
    first, second, gold, subset = [], [], [], []
    for number, cells in table:
        if not cells[part.score].strip() or (wanted and cells[column] not in wanted):
            continue
        gold.append(_number(cells[part.score], path, number))
        first.append(rows.setdefault(clean(cells[part.sentence1]), len(rows)))
        second.append(rows.setdefault(clean(cells[part.sentence2]), len(rows)))
        subset.append(cells.get(column, ""))
    missing = sorted(wanted - set(subset))
    if missing or not gold:
        fact = f"no pairs of subset {', '.join(missing)}" if missing else "no pair has a score"
        raise UserError(f"{path}: {fact}; check the suite, or give another --data")
    return ScoredPairs(
        np.array(first, np.int64), np.array(second, np.int64), np.array(gold), np.array(subset, dtype=np.str_)
    )


def _translated(
    path: Path, table: Iterator[tuple[int, Any]], other: Path, part: StsFile
) -> Iterator[tuple[int, dict[str, str]]]:
    """The table's rows with sentence2 from `other`. Raises UserError where the two are not aligned: rows and
    scores must match."""
    way_out = "take both from the same release"
    for here, there in zip_longest(table, tsv(other, [part.sentence2, part.score], [])):
        if here is None or there is None:
            longer, shorter = (path, other) if there is None else (other, path)
            raise UserError(
                f"{shorter}: has fewer rows than {longer}, but must be its translation row by row; {way_out}"
            )
        (number, cells), (line, theirs) = here, there
        scores = [cells[part.score].strip(), theirs[part.score].strip()]
        if scores[0] != scores[1] and _number(scores[0], path, number) != _number(scores[1], other, line):
            raise UserError(
                f"{other}: line {line}: score {scores[1]}, but {path} has {scores[0]} there: not its "
                f"translation; {way_out}"
            )
        yield number, {**cells, part.sentence2: theirs[part.sentence2]}


def _number(cell: str, path: Path, line: int) -> float:
    try:
        return float(cell)
    except ValueError:
        raise UserError(f"{path}: line {line}: score {cell!r} is not a number; fix the line") from None
