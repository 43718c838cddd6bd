"""A table a paper from its reports: mean and deviation over seeds, and for every ordering the paper claims, whether it holds here.

Every number comes from the reports that run.py wrote; nothing is trained or measured. python bench/reproduction/table.py --help
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from orderings import FOLDER, INTERVAL, RESAMPLES, Items, Ordering, Paper, contrasted, papers, resampled, slug, verdict

from edgedistill import files
from edgedistill.errors import UserError, unknown
from edgedistill.evaluation.suites import MEASURES

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Reports = dict[str, list[dict[str, Any]]]  # an arm's, by seed


def load(paper: Paper, folder: Path) -> Reports:
    """The reports there are, an arm's in the order of their seeds; each with its test pairs under `items`, {suite: Items}."""
    found: Reports = {}
    for arm in paper.arms:
        own = re.compile(re.escape(slug(arm, 0)[:-1]) + r"(\d+)")
        seeds = {int(match[1]): path for path in (folder / paper.paper).glob("*.json") if (match := own.fullmatch(path.stem))}
        paths = [seeds[seed] for seed in sorted(seeds)]
        found[arm] = [{**files.read_json(path), "items": _items(path.with_suffix(".npz"))} for path in paths]
    return found


def _items(path: Path) -> dict[str, Items]:
    out: dict[str, Items] = {}
    if path.exists():
        with np.load(path) as stored:
            for key in stored.files:
                suite, task, what = key.rsplit("/", 2)
                held = out.setdefault(suite, Items({}, {}))
                getattr(held, what)[task] = stored[key]
    return out


def scores(reports: Reports, ordering: Ordering, suite: str) -> dict[str, np.ndarray]:
    """Each arm's score by seed, in points of 100; an arm without a report for it has none."""
    out = {}
    for arm in ordering.contrast:
        if ordering.at_step is not None:
            values = [each["curve"].get(str(ordering.at_step)) for each in reports[arm]]
        else:
            values = [(each["suites"].get(suite) or {}).get("average") for each in reports[arm]]
        out[arm] = 100 * np.array([value for value in values if value is not None])
    return out


def judged(paper: Paper, reports: Reports, resamples: int) -> list[dict[str, Any]]:
    """Every ordering with its numbers: {ordering, suite, seeds, mean, deviation, interval, verdict}; `missing`: arms without reports."""
    drawn: dict[str, dict[str, np.ndarray]] = {}
    out = []
    for ordering in paper.orderings:
        suite = ordering.suite or paper.suites[0]
        found = scores(reports, ordering, suite)
        missing = [arm for arm, values in found.items() if len(values) == 0]
        if missing:
            out.append({"ordering": ordering, "suite": suite, "missing": missing})
            continue
        mean, deviation = contrasted(found, ordering.contrast)
        interval = None
        if ordering.at_step is None:
            if suite not in drawn:
                drawn[suite] = _drawn(reports, suite, resamples)
            if ordering.contrast.keys() <= drawn[suite].keys():
                total = sum(weight * drawn[suite][arm] for arm, weight in ordering.contrast.items())
                low, high = np.percentile(100 * np.asarray(total), INTERVAL)
                interval = (float(low), float(high))
        number = min(len(values) for values in found.values())
        held = verdict(mean, deviation, interval) if number > 1 else "one seed says nothing"
        out.append({"ordering": ordering, "suite": suite, "seeds": number, "mean": mean, "deviation": deviation})
        out[-1] |= {"interval": interval, "verdict": held, "missing": []}
    return out


def _drawn(reports: Reports, suite: str, resamples: int) -> dict[str, np.ndarray]:
    """Bootstrap scores (resamples,) of every arm measured on the suite, the mean over its seeds, all on the same samples."""
    runs = [(arm, each["items"][suite]) for arm, held in reports.items() for each in held if suite in each["items"]]
    if not runs:
        return {}
    values = resampled([items for _, items in runs], resamples)
    return {arm: values[[at for at, (name, _) in enumerate(runs) if name == arm]].mean(0) for arm in dict(runs)}


def markdown(paper: Paper, reports: Reports, resamples: int = RESAMPLES) -> str:
    """The paper's page: its orderings, then every arm."""
    lines = [f"# {paper.paper}", "", paper.about, "", f"The paper's: {paper.source}.", ""]
    lines += ["| claim | the paper | suite | difference ± sd | 95% of test pairs | seeds | verdict |", "|---|---|---|---:|---:|---:|---|"]
    for found in judged(paper, reports, resamples):
        ordering = found["ordering"]
        head = f"| {ordering.claim} | {ordering.paper} | {_where(ordering, found['suite'])} "
        if found["missing"]:
            lines.append(f"{head}| | | 0 | not run: {', '.join(found['missing'])} |")
            continue
        span = "" if found["interval"] is None else "{:+.2f} … {:+.2f}".format(*found["interval"])
        spread = "" if np.isnan(found["deviation"]) else f" ± {found['deviation']:.2f}"
        lines.append(f"{head}| {found['mean']:+.2f}{spread} | {span} | {found['seeds']} | **{found['verdict']}** |")
    for suite in dict.fromkeys(name for arm in paper.arms.values() for name in (arm.suites or paper.suites)):
        lines += ["", *_arms(paper, reports, suite)]
    lines += ["", *_explained(reports)]
    return "\n".join(lines) + "\n"


def _where(ordering: Ordering, suite: str) -> str:
    return suite if ordering.at_step is None else f"selection, step {ordering.at_step:,}"


def _arms(paper: Paper, reports: Reports, suite: str) -> list[str]:
    """A table of the arms on one suite: mean ± deviation over seeds."""
    held = {arm: [each for each in found if suite in each["suites"]] for arm, found in reports.items()}
    held = {arm: found for arm, found in held.items() if found}
    if not held:
        return [f"No reports on {suite} yet."]
    first = next(iter(held.values()))[0]["suites"][suite]
    measure, title = MEASURES[first["kind"]]
    tasks = list(first["tasks"])
    lines = [f"| {suite}, {title} | " + " | ".join(tasks) + " | average | seeds | student passes | minutes |"]
    lines.append("|---|" + "---:|" * (len(tasks) + 4))
    for arm, found in held.items():
        cells = [_spread([each["suites"][suite]["tasks"].get(task, {}).get(measure, np.nan) for each in found]) for task in tasks]
        average = _spread([each["suites"][suite]["average"] for each in found])
        minutes = np.mean([each["seconds"] for each in found]) / 60
        lines.append(
            f"| {arm} (`{paper.arms[arm].recipe}`) | {' | '.join(cells)} | **{average}** | {len(found)} | "
            f"{int(np.mean([each['passes'] for each in found])):,} | {minutes:.1f} |"
        )
    return lines


def _spread(values: list[float]) -> str:
    values_ = 100 * np.array(values, float)
    return f"{values_.mean():.2f}" + (f" ± {values_.std(ddof=1):.2f}" if len(values_) > 1 else "")


def _explained(reports: Reports) -> list[str]:
    teachers = sorted({each["teacher"] for found in reports.values() for each in found})
    return [
        f"Teacher: {', '.join(teachers) or 'none yet'}.",
        "Difference: the weighted sum of the arms' means over seeds; sd: pooled over the arms. Interval: paired bootstrap over the suite's "
        "test pairs, the same samples for all runs. Reproduced: above 0 by more than the sd, and the interval above 0; contradicted: the "
        "same below 0; else inconclusive; one seed is never enough. Numbers are of this teacher, corpus and student: only orders are "
        "compared with the paper.",
    ]


@app.command(epilog="Example: python bench/reproduction/table.py --only distilcse")
def main(
    only: Annotated[list[str] | None, typer.Option("--only", metavar="PAPER", help="Repeatable. Default: all of them.")] = None,
    reports: Annotated[Path, typer.Option("--reports", help="Where run.py wrote them.")] = FOLDER / "reports",
    out: Annotated[Path, typer.Option("--out", help="Folder of the tables.")] = FOLDER,
    resamples: Annotated[int, typer.Option("--resamples", min=10, help="Of the bootstrap.")] = RESAMPLES,
    folder: Annotated[Path, typer.Option("--papers", help="Folder of the papers' files.")] = FOLDER,
) -> None:
    """Write PAPER.md for every paper, from the reports there are."""
    try:
        known = papers(folder)
        for name in only or []:
            if name not in known:
                raise UserError(f"--only: {unknown('paper', name, known)}")
        for name, paper in known.items():
            if not only or name in only:
                files.write_text(out / f"{name}.md", markdown(paper, load(paper, reports), resamples))
                typer.echo(str(out / f"{name}.md"))
    except UserError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    app()
