"""Write a page per paper from its reports: the variants' scores over seeds, and for every ranking claim whether it was reproduced.

All figures come from the reports that run.py wrote; nothing is trained or measured. python bench/reproduction/table.py --help
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import paper_settings
import typer
from arm_recipe import composition_of
from paper_settings import PaperSettings
from ranking_claims import (
    FOLDER,
    INTERVAL,
    RESAMPLES,
    SEEDS,
    Items,
    Paper,
    RankingClaim,
    at_chance,
    check_same_items,
    common_seeds,
    contrasted,
    papers,
    resampled,
    slug,
    standard_error,
    verdict,
)

from edgedistill import files
from edgedistill.errors import UserError, unknown_name
from edgedistill.evaluation.suites import MEASURES

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Reports = dict[str, list[dict[str, Any]]]  # a variant's, by seed
VERDICTS = ("reproduced", "contradicted", "inconclusive", "at chance", "not yet", "not run")


class Judgement(NamedTuple):
    """A ranking claim with its result. Differences are in points of 100; without reports only `missing` is set, and `seeds` is 0."""

    ranking: RankingClaim
    suite: str
    missing: list[str]  # variants without reports
    verdict: str = "not run"
    seeds: int = 0  # that all variants have
    mean: float = float("nan")
    error: float = float("nan")  # standard error of the mean over seeds; NaN with one seed
    interval: tuple[float, float] | None = None  # 95%; None for scores that are not known per test item


def load(paper: Paper, folder: Path) -> tuple[Reports, list[dict[str, Any]]]:
    """(every variant's reports of its present settings, ordered by seed; all other reports of the paper, by variant and seed).

    Each has the values of its test items under `items`, {suite: Items}.
    """
    found: Reports = {variant: [] for variant in paper.variants}
    slugs = {slug(variant, 0)[: -len("-s0")]: variant for variant in paper.variants}
    older = []
    for path in sorted((folder / paper.paper).glob("*.json")):
        match = re.fullmatch(r"(.+)-s(\d+)(\.older)?", path.stem)
        if match is None:
            continue
        variant, report = slugs.get(match[1]), files.read_json(path)
        if variant is not None and match[3] is None and report.get("settings") == _settings(paper, variant, int(match[2])):
            found[variant].append({**report, "items": _items(path.with_suffix(".npz"))})
        else:
            older.append(report)
    return {variant: sorted(each, key=lambda one: int(one["seed"])) for variant, each in found.items()}, older


def _settings(paper: Paper, variant: str, seed: int) -> dict[str, Any] | None:
    """The composition of a variant; None where its recipe cannot be read."""
    try:
        return composition_of(paper, variant, seed)
    except UserError:
        return None


def part_of(report: dict[str, Any], suite: str) -> dict[str, Any] | None:
    """A report's result on a suite; also where it measured more of the suite's tasks: sts17:es-en of sts17:es-en,es-es."""
    if suite in report["suites"]:
        found: dict[str, Any] = report["suites"][suite]
        return found
    name, _, tasks = suite.partition(":")
    for known, result in report["suites"].items():
        wanted = tasks.split(",") if tasks else []
        if wanted and known.partition(":")[0] == name and set(wanted) <= result["tasks"].keys():
            measure, _ = MEASURES[result["kind"]]
            chosen = {task: result["tasks"][task] for task in wanted}
            return {**result, "tasks": chosen, "average": float(np.mean([each[measure] for each in chosen.values()]))}
    return None


def items_of(report: dict[str, Any], suite: str) -> Items | None:
    """The values of a suite's test items; of a part of a suite as `part_of`."""
    name, _, tasks = suite.partition(":")
    for known, items in report["items"].items():
        wanted = tasks.split(",") if tasks else list(items.found)
        if known == suite or (tasks and known.partition(":")[0] == name and set(wanted) <= items.found.keys()):
            return Items({task: items.found[task] for task in wanted}, {task: items.gold[task] for task in wanted if task in items.gold})
    return None


def _items(path: Path) -> dict[str, Items]:
    out: dict[str, Items] = {}
    if path.exists():
        with np.load(path) as stored:
            for key in stored.files:
                suite, task, kind = key.rsplit("/", 2)
                items = out.setdefault(suite, Items({}, {}))
                getattr(items, kind)[task] = stored[key]
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


def judged(paper: Paper, reports: Reports, resamples: int) -> list[tuple[Judgement, Judgement | None]]:
    """Judge every ranking claim of a paper, and once more under its other circumstances where the claim's variants are trained again."""
    again = paper.judged_again()
    found = _judged(paper, [*paper.ranking_claims, *again.values()], reports, resamples)
    seconds = dict(zip(again, found[len(paper.ranking_claims) :], strict=True))
    return [(each, seconds.get(number)) for number, each in enumerate(found[: len(paper.ranking_claims)])]


def _judged(paper: Paper, claims: list[RankingClaim], reports: Reports, resamples: int) -> list[Judgement]:
    out = []
    bootstrap = _Bootstrap(reports, resamples)
    for ranking in claims:
        suite = ranking.suite or paper.suites[0]
        found = scores(reports, ranking, suite)
        missing = [variant for variant, values in found.items() if not values]
        if missing:
            out.append(Judgement(ranking, suite, missing))
            continue
        differences = contrasted(found, ranking.contrast)
        seeds = common_seeds(found, ranking.contrast)
        interval = bootstrap.interval(ranking, suite, seeds) if ranking.at_step is None else None
        mean = float(differences.mean()) if len(differences) else float("nan")
        chance = [f"`{variant}`" for variant, values in found.items() if at_chance(np.array(list(values.values())))]
        result = f"at chance: {', '.join(chance)}" if chance else verdict(differences, interval)
        out.append(Judgement(ranking, suite, missing, result, len(differences), mean, standard_error(differences), interval))
    return out


class _Bootstrap:
    """The runs' bootstrap scores on each suite, all on the same samples; computed once for all claims about a variant."""

    def __init__(self, reports: Reports, resamples: int) -> None:
        self.reports, self.resamples = reports, resamples
        self.known: dict[tuple[str, str], dict[int, np.ndarray]] = {}

    def interval(self, ranking: RankingClaim, suite: str, seeds: list[int]) -> tuple[float, float] | None:
        """The 95% interval of a claim's difference over these seeds, in points of 100; None where a run has no values per test item."""
        runs = {variant: self._runs(variant, suite) for variant in ranking.contrast}
        if not seeds or not all(runs[variant].keys() >= set(seeds) for variant in runs):
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
        return {each["seed"]: items for each in self.reports[variant] if (items := items_of(each, suite)) is not None}

    def _scores(self, variant: str, suite: str, runs: dict[int, Items]) -> dict[int, np.ndarray]:
        """A variant's scores by seed on every sample, (resamples,)."""
        if (variant, suite) not in self.known:
            self.known[variant, suite] = dict(zip(runs, resampled(list(runs.values()), self.resamples), strict=True))
        return self.known[variant, suite]


def markdown(paper: Paper, loaded: tuple[Reports, list[dict[str, Any]]], stated: PaperSettings, resamples: int = RESAMPLES) -> str:
    """The paper's page: what was compared, the claims with their verdicts, deviations from the paper, and every variant's scores."""
    reports, older = loaded
    pairs, other = judged(paper, reports, resamples), paper.circumstances
    judgements = [first for first, _ in pairs]
    teachers = sorted({_teacher(each) for each in [*(each for found in reports.values() for each in found), *older]})
    lines = [f"# {paper.paper}: which ranking claims were reproduced", "", paper.about, *(["", other.about] if other else []), ""]
    lines += [f"The teacher is {', '.join(teachers)}." if teachers else "There are no reports yet.", "", f"Source: {paper.source}.", ""]
    lines += ["## Ranking claims", "", _counted("with this teacher, corpus and student", judgements), ""]
    if other is not None:
        lines += [_counted(f"of `{other.name}`", [second for _, second in pairs if second]), ""]
    columns = ["difference ± standard error", "95% interval", "seeds", "verdict"]
    columns += [f"{other.name}: {each}" for each in columns] if other else []
    lines += [
        f"| claim | the paper reports | suite | {' | '.join(columns)} |",
        f"|---|---|---|{'---:|---:|---:|---|' * (2 if other else 1)}",
    ]
    for first, second in pairs:
        lines.append(_claim(first) + _result(first) + (_result(second) if second else " | | | |" if other else ""))
    lines += ["", *_method(judgements), "", *_differing(paper, pairs), *paper_settings.markdown(paper, stated), "## Variants", ""]
    described = [f"* `{name}`: {variant.about}." for name, variant in paper.variants.items() if variant.about]
    lines += [*described, ""] if described else []
    lines += [
        "Scores are the mean ± standard deviation over seeds. The shipped recipe of a variant is in parentheses; the paper's YAML file",
        "lists its changes. `texts embedded` counts every view, side and column that the student embeds in training. Parameters are of",
        "the finished student, then those without its head. Temperatures are learned ones, dtype is that of training. —: not recorded.",
    ]
    for suite in dict.fromkeys(name for variant in paper.variants.values() for name in (variant.suites or paper.suites)):
        lines += ["", *_variants(paper, reports, suite)]
    without = [name for name, found in reports.items() if not found]
    if without:
        lines += ["", f"Not yet run: {', '.join(f'`{name}`' for name in without)}."]
    return "\n".join([*lines, *_older(paper, older)]) + "\n"


def _teacher(report: dict[str, Any]) -> str:
    """A report's teacher, with the hash of its weights where they came from elsewhere than the package."""
    sha256 = report.get("teacher_weights")
    name = str(report["teacher"])
    return name if sha256 is None or name.startswith("packaged:") else f"{name} (sha256 of model.safetensors: {sha256})"


def _counted(of: str, judgements: list[Judgement]) -> str:
    counts = Counter(each.verdict.partition(":")[0] for each in judgements)
    parts = [f"{counts[name]} {name}" for name in VERDICTS if counts[name]]
    return f"Verdicts {of}: {', '.join(parts)}."


def _claim(judgement: Judgement) -> str:
    """The first cells of a claim's row."""
    ranking = judgement.ranking
    where = judgement.suite if ranking.at_step is None else f"selection, step {ranking.at_step:,}"
    return f"| {ranking.claim} | {ranking.reported} | {where} |"


def _result(judgement: Judgement) -> str:
    """The cells of a result: difference, interval, seeds, verdict."""
    if judgement.missing:
        return f" | | 0 | **not run**: no reports for {', '.join(f'`{name}`' for name in judgement.missing)} |"
    interval = "" if judgement.interval is None else "{:+.2f} … {:+.2f}".format(*judgement.interval)
    error = "" if np.isnan(judgement.error) else f" ± {judgement.error:.2f}"
    return f" {judgement.mean:+.2f}{error} | {interval} | {judgement.seeds} | **{judgement.verdict}** |"


def _differing(paper: Paper, pairs: list[tuple[Judgement, Judgement | None]]) -> list[str]:
    """The section on claims with another verdict under the other circumstances, and the likeliest cause of each."""
    lines = []
    for first, second in pairs:
        if second is None or paper.circumstances is None:
            continue
        decided = {first.verdict, second.verdict} <= {"reproduced", "contradicted", "inconclusive"}
        if decided and first.verdict != second.verdict:
            cause = first.ranking.cause or "Cause not yet known."
            lines.append(f"* {first.ranking.claim}: {first.verdict}, {paper.circumstances.name} {second.verdict}. {cause}")
    return ["## Where the verdicts differ", "", *lines, ""] if lines else []


def _method(judgements: list[Judgement]) -> list[str]:
    """How the verdicts are reached, as a list."""
    lines = [
        "* **difference**: the score of the variant that should rank higher minus that of the other, × 100, for each seed that both have:",
        "  the mean over seeds, and the standard error of that mean.",
        "* **95% interval**: a paired bootstrap over the suite's test items, with the same samples for all runs.",
        "* **reproduced**: the 95% confidence interval of the mean over seeds (Student's t) and the bootstrap interval both lie above 0.",
        "  **contradicted**: both lie below 0. **inconclusive**: neither. **at chance**: a variant's own mean score is not above 0 by",
        "  the same interval over seeds. It learned nothing in this budget, which says nothing about the paper's claim.",
        f"  **not yet**: below {SEEDS} seeds. **not run**: a variant has no reports.",
        "* Only rankings are compared with the paper: scores depend on the teacher, the corpus and the student.",
    ]
    if any(len(each.ranking.contrast) > 2 for each in judgements):
        lines.append("* A claim about a gap compares two such differences.")
    if any(each.ranking.at_step is not None for each in judgements):
        lines.append("* **selection, step N**: the score on the selection suite at that step of training, judged by the seeds alone.")
    return lines


def _variants(paper: Paper, reports: Reports, suite: str) -> list[str]:
    """A table of the variants on one suite: mean ± deviation over seeds, and how they were trained."""
    measured = {variant: [(each, part) for each in found if (part := part_of(each, suite))] for variant, found in reports.items()}
    measured = {variant: found for variant, found in measured.items() if found}
    if not measured:
        return [f"There are no reports on {suite} yet."]
    first = next(iter(measured.values()))[0][1]
    measure, title = MEASURES[first["kind"]]
    tasks = list(first["tasks"])
    columns = ["average", "seeds", "texts embedded", "minutes", "parameters", "dtype", "temperature"]
    lines = [f"| {suite}, {title} | {' | '.join([*tasks, *columns])} |", "|---|" + "---:|" * (len(tasks) + len(columns))]
    for variant, found in measured.items():
        cells = [_spread([part["tasks"].get(task, {}).get(measure, np.nan) for _, part in found]) for task in tasks]
        average = _spread([part["average"] for _, part in found])
        whole = [each for each, _ in found]
        minutes = np.mean([each["seconds"] for each in whole]) / 60
        lines.append(
            f"| {variant} (`{paper.variants[variant].recipe}`) | {' | '.join(cells)} | **{average}** | {len(found)} | "
            f"{_embedded(whole)} | {minutes:.1f} | {_parameters(whole[0])} | {_dtypes(whole)} | {_temperatures(whole)} |"
        )
    return lines


def _embedded(found: list[dict[str, Any]]) -> str:
    """Mean texts that the student embedded; — where the reports only count training samples."""
    counts = [each["student_samples"] for each in found if "student_samples" in each]
    return f"{int(np.mean(counts)):,}" if counts else "—"


def _parameters(report: dict[str, Any]) -> str:
    counts = report["parameters"]
    return f"{counts['total']:,}" + (f", {counts['total'] - counts['head']:,}" if counts["head"] else "")


def _dtypes(found: list[dict[str, Any]]) -> str:
    return ", ".join(sorted({each.get("dtype", "—") for each in found}))


def _temperatures(found: list[dict[str, Any]]) -> str:
    """The temperatures that the first learning stage ended with, mean over seeds."""
    learned = [value for each in found for value in list(each.get("temperature", {}).values())[:1]]
    return f"{np.mean(learned):.3f}" if learned else "—"


def _older(paper: Paper, older: list[dict[str, Any]]) -> list[str]:
    """Reports of arms as they were composed before: they stand for no arm of the paper, and enter no verdict."""
    if not older:
        return []
    composed: dict[tuple[str, tuple[str, ...]], list[dict[str, Any]]] = {}  # an arm's reports of one composition
    for report in older:
        composed.setdefault((report["arm"], tuple(_changes(paper, report["arm"], report))), []).append(report)
    known = [changes for _, changes in composed if changes]
    common = [change for change in known[0] if all(change in each for each in known)] if len(known) > 1 else []
    lines = ["", "## Older compositions", ""]
    lines.append(
        "These runs were trained with other settings than the variants above. They stand for no arm of the paper and enter no verdict."
    )
    if any(report.get("settings_reconstructed") for report in older):
        lines.append(
            "Their settings were reconstructed from the file of that time; where they give steps, they agree with the samples counted."
        )
    if common:
        lines += ["", f"In all of them: {'; '.join(common)}."]
    lines += ["", "| arm as it was | suite | average | seeds | changed since |", "|---|---|---:|---:|---|"]
    for (arm, changes), found in composed.items():
        rest = [change for change in changes if change not in common]
        changed = "; ".join(rest) if changes else "the variant no longer exists"
        for number, suite in enumerate(found[0]["suites"]):
            average = _spread([each["suites"][suite]["average"] for each in found if suite in each["suites"]])
            lines.append(f"| {arm} | {suite} | {average} | {len(found)} | {changed if number == 0 else ''} |")
    return lines


def _changes(paper: Paper, arm: str, report: dict[str, Any]) -> list[str]:
    """How an older report's settings differ from the arm's of that name: `stages.0.bucket` 100 → 1; none for an arm that is gone."""
    now = _settings(paper, arm, report["seed"]) if arm in paper.variants else None
    if now is None:
        return []
    was = report.get("settings", {})
    keys = [key for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key)]
    return [f"`{key}` {_shown(was, key)} → {_shown(now, key)}" for key in keys]


def _shown(settings: dict[str, Any], key: str) -> str:
    return str(settings[key]) if key in settings else "default"


def _spread(values: list[float]) -> str:
    points = 100 * np.array(values, float)
    return f"{points.mean():.2f}" + (f" ± {points.std(ddof=1):.2f}" if len(points) > 1 else "")


@app.command(epilog="Example: python bench/reproduction/table.py --only distilcse")
def main(
    only: Annotated[list[str] | None, typer.Option("--only", metavar="PAPER", help="Repeatable. Default: all papers.")] = None,
    reports: Annotated[Path, typer.Option("--reports", help="Folder of the reports that run.py wrote.")] = FOLDER / "reports",
    out: Annotated[Path, typer.Option("--out", help="Folder of the pages.")] = FOLDER,
    resamples: Annotated[int, typer.Option("--resamples", min=10, help="Bootstrap samples.")] = RESAMPLES,
    folder: Annotated[Path, typer.Option("--papers", help="Folder of the papers' YAML files.")] = FOLDER,
) -> None:
    """Write PAPER.md for every paper from its reports."""
    try:
        known = papers(folder)
        for name in only or []:
            if name not in known:
                raise UserError(f"--only: {unknown_name('paper', name, known)}")
        for name, paper in known.items():
            if not only or name in only:
                stated = paper_settings.read(name, folder)
                files.write_text(out / f"{name}.md", markdown(paper, load(paper, reports), stated, resamples))
                typer.echo(str(out / f"{name}.md"))
    except UserError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    app()
