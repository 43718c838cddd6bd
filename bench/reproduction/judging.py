"""Load the reports of a paper's variants, and judge its ranking claims by them. Nothing is trained or
measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import report_table
from arm_recipe import composition_of
from ranking_claims import (
    INTERVAL,
    SEEDS,
    Items,
    Paper,
    RankingClaim,
    at_chance,
    check_same_items,
    common_seeds,
    contrasted,
    resampled,
    seed_interval,
    slug,
    standard_error,
    verdict,
)

from edgedistill.errors import UserError
from edgedistill.evaluation.suites import FAMILIES

Reports = dict[str, list[dict[str, Any]]]  # a variant's, by seed


class Judgement(NamedTuple):
    """A ranking claim with its result. Differences are in points of 100; without reports only the verdict is
    set, and `seeds` is 0."""

    ranking: RankingClaim
    suite: str
    verdict: str
    seeds: int = 0  # that all variants have
    by_first: str = ""  # the verdict of the first three, where there are more
    mean: float = float("nan")
    error: float = float("nan")  # standard error of the mean over seeds; NaN with one seed
    over_seeds: tuple[float, float] | None = (
        None  # 95% confidence interval of the mean; None below three seeds
    )
    over_items: tuple[float, float] | None = (
        None  # 95% of the bootstrap; None for scores that are not known per test item
    )


def load(paper: Paper, folder: Path) -> tuple[Reports, list[dict[str, Any]]]:
    """(every variant's reports of its present settings, ordered by seed; all other reports of the paper, by
    variant and seed).

    Each has the values of its test items under `items`, {suite: Items}.
    """
    found: Reports = {variant: [] for variant in paper.variants}
    slugs = {slug(variant, 0)[: -len("-s0")]: variant for variant in paper.variants}
    older = []
    for name, report, items in report_table.read(folder, paper.paper):
        match = re.fullmatch(r"(.+)-s(\d+)(\.older)?", name)
        if match is None:
            continue
        variant = slugs.get(match[1])
        if (
            variant is not None
            and match[3] is None
            and report.get("settings") == _settings(paper, variant, int(match[2]))
        ):
            found[variant].append({**report, "items": _by_suite(items)})
        else:
            older.append({**report, "items": _by_suite(items)})
    return {variant: sorted(each, key=lambda one: int(one["seed"])) for variant, each in found.items()}, older


def _settings(paper: Paper, variant: str, seed: int) -> dict[str, Any] | None:
    """The composition of a variant; None where its recipe cannot be read."""
    try:
        return composition_of(paper, variant, seed)
    except UserError:
        return None


def part_of(report: dict[str, Any], suite: str) -> dict[str, Any] | None:
    """A report's result on a suite; also where it measured more of the suite's tasks: sts17:es-en of
    sts17:es-en,es-es."""
    if suite in report["suites"]:
        found: dict[str, Any] = report["suites"][suite]
        return found
    name, _, tasks = suite.partition(":")
    for known, result in report["suites"].items():
        wanted = tasks.split(",") if tasks else []
        if wanted and known.partition(":")[0] == name and set(wanted) <= result["tasks"].keys():
            measure = FAMILIES[result["kind"]].averaged
            chosen = {task: result["tasks"][task] for task in wanted}
            return {
                **result,
                "tasks": chosen,
                "average": float(np.mean([each[measure] for each in chosen.values()])),
            }
    return None


def items_of(report: dict[str, Any], suite: str) -> Items | None:
    """The values of a suite's test items; of a part of a suite as `part_of`."""
    name, _, tasks = suite.partition(":")
    for known, items in report["items"].items():
        wanted = tasks.split(",") if tasks else list(items.found)
        if known == suite or (
            tasks and known.partition(":")[0] == name and set(wanted) <= items.found.keys()
        ):
            return Items(
                {task: items.found[task] for task in wanted},
                {task: items.gold[task] for task in wanted if task in items.gold},
            )
    return None


def _by_suite(values: dict[str, np.ndarray]) -> dict[str, Items]:
    out: dict[str, Items] = {}
    for key, each in values.items():
        suite, task, kind = key.rsplit("/", 2)
        getattr(out.setdefault(suite, Items({}, {})), kind)[task] = each
    return out


def scores(reports: Reports, ranking: RankingClaim, suite: str) -> dict[str, dict[int, float]]:
    """Each variant's scores by seed, in points of 100; empty for a variant without reports."""
    out: dict[str, dict[int, float]] = {}
    for variant in ranking.contrast:
        if ranking.at_step is not None:
            values = {each["seed"]: each["curve"].get(str(ranking.at_step)) for each in reports[variant]}
        else:
            values = {each["seed"]: (part_of(each, suite) or {}).get("average") for each in reports[variant]}
        out[variant] = {seed: 100 * value for seed, value in values.items() if value is not None}
    return out


def judged(
    paper: Paper, loaded: tuple[Reports, list[dict[str, Any]]], resamples: int
) -> list[tuple[Judgement, Judgement | None, Judgement | None]]:
    """Judge every ranking claim of a paper; once more under its other circumstances, where the claim's
    variants are trained again; and by the reports of earlier settings, where all its variants have some."""
    (reports, older), again, claims = loaded, paper.judged_again(), paper.ranking_claims
    before = {variant: [each for each in older if each["arm"] == variant] for variant in paper.variants}
    found = _judged([*claims, *again.values()], paper, reports, resamples)
    seconds = dict(zip(again, found[len(claims) :], strict=True))
    thirds = _judged(claims, paper, before, resamples)
    return [
        (each, seconds.get(number), third if third.seeds else None)
        for number, (each, third) in enumerate(zip(found, thirds, strict=False))
    ]


def _judged(claims: list[RankingClaim], paper: Paper, reports: Reports, resamples: int) -> list[Judgement]:
    out = []
    bootstrap = _Bootstrap(reports, resamples)
    for ranking in claims:
        suite = ranking.suite or paper.suites[0]
        found = scores(reports, ranking, suite)
        missing = [f"`{variant}`" for variant, values in found.items() if not values]
        if missing:
            out.append(Judgement(ranking, suite, f"not judged: no reports for {', '.join(missing)}"))
            continue
        differences, seeds = contrasted(found, ranking.contrast), common_seeds(found, ranking.contrast)
        over_items = bootstrap.interval(ranking, suite, seeds)
        by_first = ""
        if len(seeds) > SEEDS:
            by_first = verdict(differences[:SEEDS], bootstrap.interval(ranking, suite, seeds[:SEEDS]))
        chance = [
            f"`{variant}`" for variant, values in found.items() if at_chance(np.array(list(values.values())))
        ]
        result = verdict(differences, over_items)
        if chance:
            result = f"not judged: {', '.join(chance)} at chance"
        elif ranking.control:
            result = result.replace("reproduced", "confirmed")
        mean = float(differences.mean()) if seeds else float("nan")
        error, over_seeds = standard_error(differences), seed_interval(differences)
        out.append(
            Judgement(ranking, suite, result, len(seeds), by_first, mean, error, over_seeds, over_items)
        )
    return out


class _Bootstrap:
    """The runs' bootstrap scores on each suite, all on the same samples; computed once for all claims about a
    variant."""

    def __init__(self, reports: Reports, resamples: int) -> None:
        self.reports, self.resamples = reports, resamples
        self.known: dict[tuple[str, str], dict[int, np.ndarray]] = {}

    def interval(self, ranking: RankingClaim, suite: str, seeds: list[int]) -> tuple[float, float] | None:
        """The 95% interval of a claim's difference over these seeds, in points of 100; None where a run has
        no values per test item, and for scores at a step."""
        runs = {variant: self._runs(variant, suite) for variant in ranking.contrast}
        known = all(runs[variant].keys() >= set(seeds) for variant in runs)
        if ranking.at_step is not None or not seeds or not known:
            return None
        check_same_items([each for found in runs.values() for each in found.values()])
        total = np.zeros(self.resamples)
        for variant, weight in ranking.contrast.items():
            scores = self._scores(variant, suite, runs[variant])
            total += weight * np.mean([scores[seed] for seed in seeds], axis=0)
        low, high = np.percentile(100 * total, INTERVAL)
        return float(low), float(high)

    def _runs(self, variant: str, suite: str) -> dict[int, Items]:
        """A variant's test items by seed."""
        found = {each["seed"]: items_of(each, suite) for each in self.reports[variant]}
        return {seed: items for seed, items in found.items() if items is not None}

    def _scores(self, variant: str, suite: str, runs: dict[int, Items]) -> dict[int, np.ndarray]:
        """A variant's scores by seed on every sample, (resamples,)."""
        if (variant, suite) not in self.known:
            self.known[variant, suite] = dict(
                zip(runs, resampled(list(runs.values()), self.resamples), strict=True)
            )
        return self.known[variant, suite]


def changes_since(paper: Paper, arm: str, report: dict[str, Any]) -> list[str]:
    """How an older report's settings differ from the arm's of that name: `stages.0.bucket` 100 → 1; none for
    an arm that is gone."""
    now = _settings(paper, arm, report["seed"]) if arm in paper.variants else None
    if now is None:
        return []
    was = report.get("settings", {})
    keys = [key for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key)]
    return [f"`{key}` {_shown(was, key)} → {_shown(now, key)}" for key in keys]


def _shown(settings: dict[str, Any], key: str) -> str:
    return str(settings[key]) if key in settings else "default"
