"""Zero-shot pair classification: do the two texts of a pair match? A threshold on their cosine decides (SRA,
§5.5, Table 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field

from edgedistill.data import labelled_tasks
from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Encoder, Floats, Measures
from edgedistill.evaluation.suites.sts import ScoredPairs
from edgedistill.evaluation.suites.suite_files import Find, Task, TaskData


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
        """Raises UserError where the task has not exactly two labels."""
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

    @property
    def examples(self) -> list[tuple[str, ...]]:
        return self.test.examples

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
