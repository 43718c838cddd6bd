"""Zero-shot pair classification: do the two texts of a pair match? A threshold on their cosine decides (SRA,
§5.5, Table 5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from edgedistill.data import labelled_tasks
from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Floats, pair_cosines
from edgedistill.evaluation.suites.sts import ScoredPairs
from edgedistill.evaluation.suites.suite_files import Family, Find, Rows, Task, add_texts, pair_texts


class PairTables(Task):
    """Two tables of pairs with two labels, of which matching pairs have the last (as of 0 and 1); the
    threshold is chosen on `dev`, `test` is scored."""

    dev: str = Field(description="a table: next to suite.yaml, else under --data")
    test: str
    texts: list[str] = Field(
        ["sentence1", "sentence2"], min_length=2, max_length=2, description="the two columns of a pair"
    )
    label: str = "label"


def read(part: PairTables, find: Find, rows: Rows) -> tuple[ScoredPairs, ScoredPairs]:
    """Read dev and test. Raises UserError where the task has not exactly two labels."""
    dev, test = (
        labelled_tasks.read_table(find(name), part.texts, part.label, part.name)
        for name in (part.dev, part.test)
    )
    names = labelled_tasks.ordered_labels(dev.labels, part.dev)
    if len(names) != 2 or set(test.labels) - set(names):
        raise UserError(
            f"{part.name}: labels {', '.join(sorted({*names, *test.labels}))}; exactly two are needed"
        )
    return _labelled_pairs(dev, names[1], rows), _labelled_pairs(test, names[1], rows)


def _labelled_pairs(table: labelled_tasks.LabelledRows, positive: str, rows: Rows) -> ScoredPairs:
    """Return the pairs of a split, whose score is whether they match: 1 or 0."""
    sides = [add_texts((item[side] for item in table.items), rows) for side in (0, 1)]
    return ScoredPairs(np.stack(sides, axis=1), (np.array(table.labels) == positive).astype(float))


def score(splits: tuple[ScoredPairs, ScoredPairs], embeddings: Floats) -> dict[str, Any]:
    """Return `accuracy` on test at the `threshold` that was best on dev, and the number of `pairs`."""
    dev, test = splits
    least = threshold(pair_cosines(embeddings, dev.pairs), dev.gold == 1)
    right = (pair_cosines(embeddings, test.pairs) >= least) == (test.gold == 1)
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


FAMILY = Family(
    PairTables,
    read,
    score,
    shares_embeddings=True,
    items=lambda splits, texts: pair_texts(splits[1].pairs, texts),
)
