"""A paper's arms and orderings as data, and the statistics that judge them: seeds, and a paired bootstrap over test pairs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from scipy.stats import rankdata

from edgedistill.errors import UserError

FOLDER = Path(__file__).resolve().parent
RESAMPLES = 1_000
INTERVAL = (2.5, 97.5)  # percentiles


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Arm(Part):
    """A recipe with changes: {seed} stands for the seed, {run:ARM} for the folder of another arm's run of the same seed."""

    recipe: str
    set: list[str] = []
    suites: list[str] | None = Field(None, description="default: the paper's")


class Ordering(Part):
    """A weighted sum of arms' scores that the paper says is above 0."""

    claim: str
    paper: str = Field(description="its own numbers")
    contrast: dict[str, float] = Field(min_length=2)
    suite: str | None = Field(None, description="default: the paper's first")
    at_step: int | None = Field(None, description="judge the score that selected weights at this step of the first stage instead")


class Paper(Part):
    """What is trained, measured and asked."""

    paper: str
    about: str
    source: str
    suites: list[str] = Field(min_length=1)
    set: list[str] = Field(description="changes of every arm")
    arms: dict[str, Arm]
    orderings: list[Ordering]

    @model_validator(mode="after")
    def _arms_are_there(self) -> Paper:
        for ordering in self.orderings:
            for name in ordering.contrast:
                if name not in self.arms:
                    raise ValueError(f"ordering {ordering.claim!r}: no arm {name!r} ({', '.join(self.arms)})")
        return self


def papers(folder: Path = FOLDER) -> dict[str, Paper]:
    """Every paper's file by name. Raises UserError with a file's problems."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            found[path.stem] = Paper.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            raise UserError(*(f"{path}: {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())) from None
    return found


def slug(arm: str, seed: int) -> str:
    """The name of an arm's run and report: letters, digits and dashes, then the seed."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in arm.replace("%", "pct").lower())
    return "-".join(part for part in kept.split("-") if part) + f"-s{seed}"


@dataclass(frozen=True)
class Items:
    """What each test pair got, and should have: {task: (n,)}. Without gold the score is the mean (nDCG of queries, right answers)."""

    found: dict[str, np.ndarray]
    gold: dict[str, np.ndarray]

    def score(self) -> float:
        return float(np.mean([_scores(rows[None], self.gold.get(task), None)[0] for task, rows in self.found.items()]))


def resampled(runs: list[Items], count: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """(runs, count): every run's average over tasks on `count` bootstrap samples of the test pairs, the same for all (paired).

    Pairs are drawn with replacement within each task. Raises UserError for runs that were not measured on the same pairs.
    """
    random = np.random.default_rng(seed)
    total = np.zeros((len(runs), count))
    for task in runs[0].found:
        if any(task not in each.found or len(each.found[task]) != len(runs[0].found[task]) for each in runs):
            raise UserError(f"{task}: reports of different test pairs; delete the older ones and run again")
        rows, gold = np.stack([each.found[task] for each in runs]), runs[0].gold.get(task)
        for at in range(count):
            total[:, at] += _scores(rows, gold, random.integers(0, rows.shape[1], rows.shape[1]))
    return total / len(runs[0].found)


def _scores(rows: np.ndarray, gold: np.ndarray | None, drawn: np.ndarray | None) -> np.ndarray:
    """rows (runs, n) -> (runs,): Spearman's ρ with gold (n,), or the mean where there is none; over the pairs drawn."""
    if drawn is not None:
        rows, gold = rows[:, drawn], None if gold is None else gold[drawn]
    if gold is None:
        return np.asarray(rows.mean(1))
    ranks = rankdata(np.vstack([gold, rows]), axis=1)
    ranks -= ranks.mean(1, keepdims=True)
    lengths = np.sqrt((ranks**2).sum(1))
    return np.asarray(ranks[1:] @ ranks[0] / np.maximum(lengths[1:] * lengths[0], 1e-12))


def contrasted(scores: dict[str, np.ndarray], contrast: dict[str, float]) -> tuple[float, float]:
    """(the weighted sum of the arms' means over seeds, their pooled standard deviation: √ of the mean variance over arms).

    scores: an arm's score by seed, (seeds,) each. The deviation is NaN with fewer than two seeds.
    """
    mean = sum(weight * float(np.mean(scores[arm])) for arm, weight in contrast.items())
    spreads = [(len(scores[arm]) - 1, float(np.var(scores[arm], ddof=1)) if len(scores[arm]) > 1 else np.nan) for arm in contrast]
    freedom = sum(degrees for degrees, _ in spreads)
    if freedom == 0:
        return mean, float("nan")
    return mean, float(np.sqrt(sum(degrees * variance for degrees, variance in spreads if degrees) / freedom))


def verdict(mean: float, deviation: float, interval: tuple[float, float] | None) -> str:
    """reproduced: above 0 by more than the pooled deviation over seeds, and the bootstrap's interval lies above 0; contradicted: the
    same below 0; else inconclusive. One seed is never enough; without an interval (no test pairs) seeds alone decide.
    """
    low, high = interval if interval is not None else (mean, mean)
    if mean > 0 and mean > deviation and low > 0:
        return "reproduced"
    if mean < 0 and -mean > deviation and high < 0:
        return "contradicted"
    return "inconclusive"
