"""Write a page per paper from its reports: the variants' scores over seeds, and for every ranking claim whether it was reproduced.

All figures come from the reports that run.py wrote; nothing is trained or measured. python bench/reproduction/table.py --help
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from ranking_claims import FOLDER, INTERVAL, RESAMPLES, Items, Paper, RankingClaim, contrasted, papers, resampled, slug, verdict

from edgedistill import files
from edgedistill.errors import UserError, unknown_name
from edgedistill.evaluation.suites import MEASURES

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Reports = dict[str, list[dict[str, Any]]]  # a variant's, by seed
VERDICTS = ("reproduced", "contradicted", "inconclusive", "not run")


class Judgement(NamedTuple):
    """A ranking claim with its result. Differences are in points of 100; without reports only `missing` is set, and `seeds` is 0."""

    ranking: RankingClaim
    suite: str
    missing: list[str]  # variants without reports
    verdict: str = "not run"
    seeds: int = 0  # the fewest of any variant
    mean: float = float("nan")
    deviation: float = float("nan")  # NaN with one seed
    interval: tuple[float, float] | None = None  # 95%; None for scores that are not known per test item


def load(paper: Paper, folder: Path) -> Reports:
    """Read every variant's reports, ordered by seed; each with the values of its test items under `items`, {suite: Items}."""
    found: Reports = {}
    for variant in paper.variants:
        pattern = re.compile(re.escape(slug(variant, 0)[:-1]) + r"(\d+)")
        seeds = {int(match[1]): path for path in (folder / paper.paper).glob("*.json") if (match := pattern.fullmatch(path.stem))}
        paths = [seeds[seed] for seed in sorted(seeds)]
        found[variant] = [{**files.read_json(path), "items": _items(path.with_suffix(".npz"))} for path in paths]
    return found


def _items(path: Path) -> dict[str, Items]:
    out: dict[str, Items] = {}
    if path.exists():
        with np.load(path) as stored:
            for key in stored.files:
                suite, task, kind = key.rsplit("/", 2)
                items = out.setdefault(suite, Items({}, {}))
                getattr(items, kind)[task] = stored[key]
    return out


def scores(reports: Reports, ranking: RankingClaim, suite: str) -> dict[str, np.ndarray]:
    """Each variant's scores by seed, in points of 100; empty for a variant without reports."""
    out = {}
    for variant in ranking.contrast:
        if ranking.at_step is not None:
            values = [each["curve"].get(str(ranking.at_step)) for each in reports[variant]]
        else:
            values = [(each["suites"].get(suite) or {}).get("average") for each in reports[variant]]
        out[variant] = 100 * np.array([value for value in values if value is not None])
    return out


def judged(paper: Paper, reports: Reports, resamples: int) -> list[Judgement]:
    """Judge every ranking claim of a paper. One seed is always inconclusive."""
    bootstrapped: dict[str, dict[str, np.ndarray]] = {}
    out = []
    for ranking in paper.ranking_claims:
        suite = ranking.suite or paper.suites[0]
        found = scores(reports, ranking, suite)
        missing = [variant for variant, values in found.items() if len(values) == 0]
        if missing:
            out.append(Judgement(ranking, suite, missing))
            continue
        mean, deviation = contrasted(found, ranking.contrast)
        interval = None
        if ranking.at_step is None:
            if suite not in bootstrapped:
                bootstrapped[suite] = _bootstrapped(reports, suite, resamples)
            interval = _interval(bootstrapped[suite], ranking)
        seeds = min(len(values) for values in found.values())
        result = verdict(mean, deviation, interval) if seeds > 1 else "inconclusive"
        out.append(Judgement(ranking, suite, missing, result, seeds, mean, deviation, interval))
    return out


def _bootstrapped(reports: Reports, suite: str, resamples: int) -> dict[str, np.ndarray]:
    """Bootstrap scores (resamples,) of every variant measured on the suite: the mean over its seeds, all on the same samples."""
    runs = [(variant, each["items"][suite]) for variant, found in reports.items() for each in found if suite in each["items"]]
    if not runs:
        return {}
    values = resampled([items for _, items in runs], resamples)
    return {variant: values[[at for at, (name, _) in enumerate(runs) if name == variant]].mean(0) for variant in dict(runs)}


def _interval(bootstrapped: dict[str, np.ndarray], ranking: RankingClaim) -> tuple[float, float] | None:
    """The 95% interval of a claim's difference, in points of 100; None where a variant has no values per test item."""
    if not ranking.contrast.keys() <= bootstrapped.keys():
        return None
    total = sum(weight * bootstrapped[variant] for variant, weight in ranking.contrast.items())
    low, high = np.percentile(100 * np.asarray(total), INTERVAL)
    return float(low), float(high)


def markdown(paper: Paper, reports: Reports, resamples: int = RESAMPLES) -> str:
    """The paper's page: what was compared, the ranking claims with their verdicts, and every variant's scores."""
    judgements = judged(paper, reports, resamples)
    teachers = sorted({each["teacher"] for found in reports.values() for each in found})
    lines = [f"# {paper.paper}: which ranking claims were reproduced", "", paper.about, ""]
    lines += [f"The teacher is {', '.join(teachers)}." if teachers else "There are no reports yet.", "", f"Source: {paper.source}.", ""]
    lines += ["## Ranking claims", "", _counted(judgements), ""]
    lines += [
        "| claim | the paper reports | suite | difference ± sd | 95% interval | seeds | verdict |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    lines += [_row(each) for each in judgements]
    lines += ["", *_method(judgements), "", "## Variants", ""]
    described = [f"* `{name}`: {variant.about}." for name, variant in paper.variants.items() if variant.about]
    lines += [*described, ""] if described else []
    lines.append(
        "Scores are the mean ± standard deviation over seeds. The shipped recipe of a variant is given in parentheses; the paper's"
    )
    lines.append("YAML file lists its changes. Training samples and training minutes are means per run.")
    for suite in dict.fromkeys(name for variant in paper.variants.values() for name in (variant.suites or paper.suites)):
        lines += ["", *_variants(paper, reports, suite)]
    return "\n".join(lines) + "\n"


def _counted(judgements: list[Judgement]) -> str:
    counts = Counter(each.verdict for each in judgements)
    parts = [f"{counts[name]} {name}" for name in VERDICTS if counts[name]]
    return f"Verdicts with this teacher, corpus and student: {', '.join(parts)}."


def _row(judgement: Judgement) -> str:
    ranking = judgement.ranking
    where = judgement.suite if ranking.at_step is None else f"selection, step {ranking.at_step:,}"
    head = f"| {ranking.claim} | {ranking.reported} | {where} "
    if judgement.missing:
        return f"{head}| | | 0 | **not run**: no reports for {', '.join(f'`{name}`' for name in judgement.missing)} |"
    interval = "" if judgement.interval is None else "{:+.2f} … {:+.2f}".format(*judgement.interval)
    deviation = "" if np.isnan(judgement.deviation) else f" ± {judgement.deviation:.2f}"
    return f"{head}| {judgement.mean:+.2f}{deviation} | {interval} | {judgement.seeds} | **{judgement.verdict}** |"


def _method(judgements: list[Judgement]) -> list[str]:
    """How the verdicts are reached, as a list."""
    lines = [
        "* **difference**: the score of the variant that should rank higher minus that of the other, as means over seeds, × 100.",
        "  **sd** is the standard deviation over seeds, pooled over the variants.",
        "* **95% interval**: a paired bootstrap over the suite's test items, with the same samples for all runs.",
        "* **reproduced**: the difference is above 0 by more than the sd, and the interval lies above 0. **contradicted**: it is below 0",
        "  by more than the sd, and the interval lies below 0. **inconclusive**: neither, or only one seed. **not run**: a variant has no",
        "  reports.",
        "* Only rankings are compared with the paper: scores depend on the teacher, the corpus and the student.",
    ]
    if any(len(each.ranking.contrast) > 2 for each in judgements):
        lines.append("* A claim about a gap compares two such differences.")
    if any(each.ranking.at_step is not None for each in judgements):
        lines.append("* **selection, step N**: the score on the selection suite at that step of training, judged by the seeds alone.")
    return lines


def _variants(paper: Paper, reports: Reports, suite: str) -> list[str]:
    """A table of the variants on one suite: mean ± deviation over seeds."""
    measured = {variant: [each for each in found if suite in each["suites"]] for variant, found in reports.items()}
    measured = {variant: found for variant, found in measured.items() if found}
    if not measured:
        return [f"There are no reports on {suite} yet."]
    first = next(iter(measured.values()))[0]["suites"][suite]
    measure, title = MEASURES[first["kind"]]
    tasks = list(first["tasks"])
    lines = [f"| {suite}, {title} | " + " | ".join(tasks) + " | average | seeds | training samples | training minutes |"]
    lines.append("|---|" + "---:|" * (len(tasks) + 4))
    for variant, found in measured.items():
        cells = [_spread([each["suites"][suite]["tasks"].get(task, {}).get(measure, np.nan) for each in found]) for task in tasks]
        average = _spread([each["suites"][suite]["average"] for each in found])
        minutes = np.mean([each["seconds"] for each in found]) / 60
        lines.append(
            f"| {variant} (`{paper.variants[variant].recipe}`) | {' | '.join(cells)} | **{average}** | {len(found)} | "
            f"{int(np.mean([each['passes'] for each in found])):,} | {minutes:.1f} |"
        )
    return lines


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
                files.write_text(out / f"{name}.md", markdown(paper, load(paper, reports), resamples))
                typer.echo(str(out / f"{name}.md"))
    except UserError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    app()
