"""A paper's variants and ranking claims, read from YAML, and the statistics that judge a claim: seeds and a
paired bootstrap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from scipy.stats import rankdata
from scipy.stats import t as students_t

from edgedistill.errors import UserError

FOLDER = Path(__file__).resolve().parent
RESAMPLES = 1_000
INTERVAL = (2.5, 97.5)  # percentiles
SEEDS = 3  # before a claim is judged
MARGIN = 0.2  # points: a smaller difference is of no interest (README.md, "Verdicts")
TWO_LOOKS = 98.75  # percentile, where seeds were added since the first ones did not decide: Bonferroni


class Part(BaseModel):
    """A frozen section of a paper's file; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def spliced(entries: Any) -> Any:
    """A list within a list stands for its entries, so that entries can be added to those of a YAML anchor."""
    if not isinstance(entries, list):
        return entries
    return [entry for each in entries for entry in (spliced(each) if isinstance(each, list) else [each])]


class Variant(Part):
    """One training setup that is compared: a recipe with changes.

    In a change, {seed} is replaced by the seed, and {run:VARIANT} by the run folder of another variant with
    the same seed.
    """

    about: str = Field("", description="what the recipe changes, printed on the page")
    recipe: str
    set: list[str] = []
    suites: list[str] | None = Field(None, description="default: the paper's")
    shared: bool = Field(
        False, description="trained once, with seed 0; the variants of all seeds use this run"
    )
    only_own_changes: bool = Field(False, description="the paper's `set` does not apply to it")

    _spliced = field_validator("set", mode="before")(spliced)


class Circumstances(Part):
    """Other circumstances under which some variants are trained again, so that their claims are judged a
    second time.

    The counterpart of `kd` under `pretrained` is the variant `pretrained kd`: the paper's changes, the
    variant's, these, then its own. A run of another variant that it reads, {run:VARIANT}, is the
    counterpart's where there is one.
    """

    name: str = Field(description="one word, which starts the names of the counterparts")
    about: str = Field(description="what differs, printed on the page")
    set: list[str] = Field(
        [], description="recipe changes of all counterparts but those of variants with `only_own_changes`"
    )
    variants: dict[str, list[str]] = Field(
        min_length=1, description="the variants that are trained again, and each one's further changes"
    )


class RankingClaim(Part):
    """A claim of the paper that one variant scores higher than another: a weighted sum of scores that should
    be above 0."""

    claim: str
    key: str = Field("", description="the name of the claim's results in the abstract: {key[0]}")
    reported: str = Field("", description="the paper's own scores")
    contrast: dict[str, float] = Field(min_length=2, description="weight of each variant's score")
    suite: str | None = Field(None, description="default: the paper's first")
    at_step: int | None = Field(
        None,
        description="compare the selection scores at this step of the first stage instead of suite scores",
    )
    note: str = Field(
        "",
        description="what a reader must know of the verdict: the likeliest cause, if not the paper's",
    )
    control: bool = Field(False, description="a comparison of our own, which the paper does not make")


class Paper(Part):
    """The variants to train, the suites to measure them on, and the claims to judge."""

    paper: str
    abstract: str = Field(
        "",
        description="what was found: {key[0]} is a claim's result, {key[1]} that under the "
        "other circumstances, {key[2]} that of earlier settings",
    )
    about: str
    source: str
    suites: list[str] = Field(min_length=1)
    set: list[str] = Field(description="recipe changes that all variants share")
    variants: dict[str, Variant]
    ranking_claims: list[RankingClaim]
    circumstances: Circumstances | None = None

    @model_validator(mode="after")
    def _variants_exist(self) -> Paper:
        for ranking in self.ranking_claims:
            for name in ranking.contrast:
                if name not in self.variants:
                    raise ValueError(
                        f"claim {ranking.claim!r}: no variant {name!r} ({', '.join(self.variants)})"
                    )
        other = self.circumstances
        for name in other.variants if other else ():
            if name not in self.variants:
                raise ValueError(f"circumstances: no variant {name!r} ({', '.join(self.variants)})")
        return self

    def counterpart(self, variant: str) -> str:
        """The name of the variant under the other circumstances; its own where it is not trained again."""
        other = self.circumstances
        return f"{other.name} {variant}" if other is not None and variant in other.variants else variant

    @property
    def counterparts(self) -> list[str]:
        """The names of the variants that are trained again under the other circumstances, as they are called
        there."""
        return (
            [self.counterpart(variant) for variant in self.circumstances.variants]
            if self.circumstances
            else []
        )

    def judged_again(self) -> dict[int, RankingClaim]:
        """The claims whose variants are all trained again, by their place in `ranking_claims`, about the
        counterparts."""
        found = {}
        for number, ranking in enumerate(self.ranking_claims):
            if all(self.counterpart(variant) != variant for variant in ranking.contrast):
                contrast = {self.counterpart(variant): weight for variant, weight in ranking.contrast.items()}
                found[number] = ranking.model_copy(update={"contrast": contrast})
        return found


def papers(folder: Path = FOLDER) -> dict[str, Paper]:
    """Read every paper's YAML file, by file name. Raises UserError with all the problems of a file."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            found[path.stem] = with_counterparts(
                Paper.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
            )
        except ValidationError as error:
            raise UserError(
                *(f"{path}: {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            ) from None
    return found


def with_counterparts(paper: Paper) -> Paper:
    """The paper with the variants that are trained again under its other circumstances, each with all its
    changes."""
    other, more = paper.circumstances, dict[str, Variant]()
    for name, own in other.variants.items() if other else ():
        assert other is not None
        variant = paper.variants[name]
        changes = variant.set if variant.only_own_changes else [*paper.set, *variant.set, *other.set]
        changes = [_of_counterparts(paper, change) for change in [*changes, *own]]
        more[paper.counterpart(name)] = variant.model_copy(
            update={"about": "", "set": changes, "only_own_changes": True}
        )
    return paper.model_copy(update={"variants": paper.variants | more})


def _of_counterparts(paper: Paper, change: str) -> str:
    """A change that reads the runs of counterparts where there are any."""
    for name in paper.variants:
        change = change.replace(f"{{run:{name}}}", f"{{run:{paper.counterpart(name)}}}")
    return change


def slug(variant: str, seed: int) -> str:
    """The name of a variant's run folder and report: letters, digits and dashes, then the seed."""
    letters = "".join(
        letter if letter.isascii() and letter.isalnum() else "-"
        for letter in variant.replace("%", "pct").lower()
    )
    return "-".join(part for part in letters.split("-") if part) + f"-s{seed}"


@dataclass(frozen=True)
class Items:
    """The model's value and the gold value of every test item, by task: {task: (n,)}.

    A task without gold holds scores already (nDCG of a query, 1 for a correct label), and its score is their
    mean.
    """

    found: dict[str, np.ndarray]
    gold: dict[str, np.ndarray]

    def score(self) -> float:
        """The mean over tasks."""
        return float(
            np.mean([_scores(rows[None], self.gold.get(task), None)[0] for task, rows in self.found.items()])
        )


def resampled(runs: list[Items], count: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Paired bootstrap: every run's mean over tasks on the same `count` samples of the test items. Returns
    (runs, count).

    Items are drawn with replacement within each task. The samples depend on the seed and on the items alone,
    so that runs on the same items may be resampled in separate calls. Raises UserError for runs that were
    measured on different items.
    """
    check_same_items(runs)
    random = np.random.default_rng(seed)
    total = np.zeros((len(runs), count))
    for task in runs[0].found:
        rows, gold = np.stack([each.found[task] for each in runs]), runs[0].gold.get(task)
        if gold is not None:
            rows, gold = np.stack([_places(each) for each in rows]), _places(gold)
        for at in range(count):
            total[:, at] += _scores(rows, gold, random.integers(0, rows.shape[1], rows.shape[1]))
    return total / len(runs[0].found)


def check_same_items(runs: list[Items]) -> None:
    """Raise UserError unless all runs were measured on the same tasks, in the same order, with as many items
    each."""
    covered = [[(task, len(values)) for task, values in each.found.items()] for each in runs]
    for each in covered[1:]:
        if each != covered[0]:
            names = ", ".join(task for task, _ in each)
            raise UserError(
                f"{names}: the reports cover different test items; delete the older reports and run run.py "
                "again"
            )


def _scores(rows: np.ndarray, gold: np.ndarray | None, drawn: np.ndarray | None) -> np.ndarray:
    """rows (runs, n) -> (runs,): Spearman's ρ with gold (n,), or the mean where there is no gold; over the
    items drawn."""
    if drawn is not None:
        rows, gold = rows[:, drawn], None if gold is None else gold[drawn]
    if gold is None:
        return np.asarray(rows.mean(1))
    ranks = np.stack([_ranks(each) for each in (gold, *rows)])
    ranks -= ranks.mean(1, keepdims=True)
    lengths = np.sqrt((ranks**2).sum(1))
    return np.asarray(ranks[1:] @ ranks[0] / np.maximum(lengths[1:] * lengths[0], 1e-12))


def _places(values: np.ndarray) -> np.ndarray:
    """The place of each value among the distinct ones."""
    return np.unique(values, return_inverse=True)[1]


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, equal values with their mean; of places without sorting."""
    if values.dtype.kind == "f":
        return np.asarray(rankdata(values))
    counts = np.bincount(values)
    return np.asarray((counts.cumsum() - (counts - 1) / 2)[values])


def common_seeds(scores: dict[str, dict[int, float]], contrast: dict[str, float]) -> list[int]:
    """The seeds that all variants of a contrast have, in order. scores: each variant's by seed."""
    return sorted(set.intersection(*(set(scores[variant]) for variant in contrast)))


def contrasted(scores: dict[str, dict[int, float]], contrast: dict[str, float]) -> np.ndarray:
    """The weighted sum of the variants' scores for every seed that all of them have, (seeds,): paired, since
    a seed fixes much of a run."""
    seeds = common_seeds(scores, contrast)
    return np.array(
        [sum(weight * scores[variant][seed] for variant, weight in contrast.items()) for seed in seeds]
    )


def standard_error(differences: np.ndarray) -> float:
    """Of the mean of differences (seeds,): their standard deviation / √seeds. NaN for fewer than two."""
    return float(differences.std(ddof=1) / len(differences) ** 0.5) if len(differences) > 1 else float("nan")


def verdict(differences: np.ndarray, over_items: tuple[float, float] | None) -> str:
    """Judge a claim by its differences (seeds,): `reproduced`, `contradicted`, `equal`, `inconclusive`, or
    `not judged: n of 3 seeds`.

    There are two 95% intervals of the mean: over seeds (Student's t), and over test items (bootstrap). equal:
    both lie within ± MARGIN. reproduced: both lie above 0. contradicted: both below 0. Without an interval
    over items (no scores per item) the seeds alone decide.
    """
    over_seeds = seed_interval(differences)
    if over_seeds is None:
        return f"not judged: {len(differences)} of {SEEDS} seeds"
    low, high = np.array([over_seeds, over_items or over_seeds]).T
    if low.min() > -MARGIN and high.max() < MARGIN:
        return "equal"
    if low.min() > 0:
        return "reproduced"
    return "contradicted" if high.max() < 0 else "inconclusive"


def at_chance(scores: np.ndarray) -> bool:
    """Whether a variant's scores (seeds,) on a suite may be 0 on average: a correlation at chance, as of a
    student that learned nothing."""
    over_seeds = seed_interval(scores)
    return over_seeds is not None and over_seeds[0] <= 0


def seed_interval(values: np.ndarray) -> tuple[float, float] | None:
    """The 95% confidence interval of the mean over seeds (Student's t); None below three seeds. Above
    three it is wider, since what the first three showed decided that there are more."""
    if len(values) < SEEDS:
        return None
    percentile = INTERVAL[1] if len(values) == SEEDS else TWO_LOOKS
    margin = float(students_t.ppf(percentile / 100, len(values) - 1)) * standard_error(values)
    return float(values.mean()) - margin, float(values.mean()) + margin
