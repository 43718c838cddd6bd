"""Write a page per paper from its reports: the variants' scores over seeds, and for every ranking claim
whether it was reproduced.

All figures come from the reports that run.py wrote; nothing is trained or measured. python
bench/reproduction/table.py --help
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import paper_settings
import typer
from arm_recipe import files_read, texts_embedded, variant_recipe
from judging import Judgement, Reports, changes_since, judged, load, part_of
from paper_settings import NAMED, PaperSettings
from ranking_claims import FOLDER, RESAMPLES, Paper, papers

from edgedistill import files
from edgedistill.errors import UserError, unknown_name
from edgedistill.evaluation.suites import FAMILIES

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
VERDICTS = ("reproduced", "contradicted", "equal", "inconclusive", "not judged")
Judged = tuple[Judgement, Judgement | None, Judgement | None]  # now, under other circumstances, before


def markdown(
    paper: Paper,
    loaded: tuple[Reports, list[dict[str, Any]]],
    stated: PaperSettings,
    resamples: int = RESAMPLES,
) -> str:
    """The paper's page: what was compared, the claims with their verdicts, deviations from the paper, and
    every variant's scores."""
    (reports, older), other = loaded, paper.circumstances
    found = judged(paper, loaded, resamples)
    results = {each[0].ranking.key: [one and _difference(one) for one in each] for each in found}
    teachers = sorted(
        {_teacher(each) for each in [*(each for found in reports.values() for each in found), *older]}
    )
    lines = [
        f"# {paper.paper}: which ranking claims hold",
        "",
        paper.abstract.format_map(results),
        "",
        "[README.md](README.md#verdicts) says how verdicts are reached, and how to repeat all this.",
        "",
        "## Set-up",
        "",
        paper.about,
        "",
        *([other.about, ""] if other else []),
        f"Teacher: {' and '.join(teachers)}." if teachers else "There are no reports yet.",
        "",
        f"Source: {paper.source}.",
        "",
        "## Variants",
        "",
        *(f"* `{name}`: {variant.about}." for name, variant in paper.variants.items() if variant.about),
        "",
        "## Ranking claims",
        "",
        *_judgements(paper, found),
        *_notes(paper, found),
        *paper_settings.markdown(paper, stated),
        *_data(paper, reports),
        "## Scores",
        "",
        "Scores are the mean ± standard deviation over seeds, minutes the median. The shipped recipe of a "
        "variant is in parentheses; the",
        "paper's YAML file lists its changes. `texts embedded` counts every view, side and column that the "
        "student embeds in training.",
        "Parameters are of the finished student with its head. —: not recorded.",
    ]
    for suite in dict.fromkeys(
        name for variant in paper.variants.values() for name in (variant.suites or paper.suites)
    ):
        lines += ["", *_variants(paper, reports, suite)]
    without = [name for name, found in reports.items() if not found]
    if without:
        lines += ["", f"Not yet run: {_names(without)}."]
    return "\n".join([*lines, *_older(paper, older)]) + "\n"


def _teacher(report: dict[str, Any]) -> str:
    """A report's teacher, with the hash of its weights where they came from elsewhere than the package."""
    sha256 = report.get("teacher_weights")
    name = str(report["teacher"])
    return (
        name
        if sha256 is None or name.startswith("packaged:")
        else f"{name} (sha256 of model.safetensors: {sha256})"
    )


def _names(variants: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in variants)


def _judgements(paper: Paper, found: list[Judged]) -> list[str]:
    """The paper's claims, again by the variants of other circumstances, by reports of earlier settings,
    and the comparisons of our own."""
    claims = [each for each in found if not each[0].ranking.control]
    controls = [each for each in found if each[0].ranking.control]
    titles, lines = _titles(paper), list[str]()
    for title, judgements in zip(titles, zip(*claims, strict=True), strict=True):
        counts = Counter(each.verdict.partition(":")[0] for each in judgements if each)
        parts = [f"{counts[name]} {name}" for name in VERDICTS if counts[name]]
        of = f"of `{title}`" if title else "with this teacher, corpus and student"
        lines += [f"Verdicts {of}: {', '.join(parts)}.", ""] if parts else []
    lines += _tables(claims, titles)
    if controls:
        lines += ["Comparisons of our own, which the paper does not make, are not counted above:", ""]
        lines += _tables(controls, titles)
    return lines


def _titles(paper: Paper) -> list[str]:
    """What the three judgements of a claim are called."""
    return ["", paper.circumstances.name if paper.circumstances else "", "earlier settings"]


def _tables(found: list[Judged], titles: list[str]) -> list[str]:
    """A table of claims, and one for each title of those that are judged again. The verdicts of these also
    stand in last columns."""
    lines, kinds = list[str](), list(zip(titles, zip(*found, strict=True), strict=True))
    again = [(title, each) for title, each in kinds[1:] if any(each)]
    for title, judgements in [kinds[0], *again]:
        last = [] if title else again
        reports = any(each.ranking.reported for each in judgements if each)
        heads = ["claim", *["the paper reports"] * reports, "suite", "difference ± standard error"]
        heads += ["over seeds", "over test items", "seeds", "verdict", *(f"`{name}`" for name, _ in last)]
        lines += [f"By `{title}`:", ""] if title else []
        lines += [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        for number, each in enumerate(judgements):
            if each:
                more = [one[number].verdict if one[number] else "" for _, one in last]
                claim = [each.ranking.claim, *[each.ranking.reported] * reports]
                lines.append(f"| {' | '.join([*claim, *_result(each), *more])} |")
        lines.append("")
    return lines


def _result(judgement: Judgement) -> list[str]:
    """The cells of a result: suite, difference, intervals, seeds, verdict."""
    step = judgement.ranking.at_step
    intervals = [
        "" if each is None else "{:+.2f} … {:+.2f}".format(*each)
        for each in (judgement.over_seeds, judgement.over_items)
    ]
    seeds = f"{judgement.seeds}" + (f" (first 3: {judgement.by_first})" if judgement.by_first else "")
    suite = judgement.suite if step is None else f"selection, step {step:,}"
    difference = _difference(judgement).partition(",")[0] if judgement.seeds else ""
    return [suite, difference, *intervals, seeds, f"**{judgement.verdict}**"]


def _difference(judgement: Judgement) -> str:
    """A claim's difference and its verdict: +1.04 ± 0.09, reproduced."""
    error = "" if np.isnan(judgement.error) else f" ± {judgement.error:.2f}"
    return f"{judgement.mean:+.2f}{error}, {judgement.verdict}"


def _notes(paper: Paper, found: list[Judged]) -> list[str]:
    """The section on claims with a note, and on those that are contradicted."""
    lines = []
    for each in found:
        named = zip(_titles(paper), each, strict=True)
        verdicts = [f"`{title}` {one.verdict}" if title else one.verdict for title, one in named if one]
        note = each[0].ranking.note
        if note or any("contradicted" in verdict for verdict in verdicts):
            lines.append(f"* {each[0].ranking.claim} ({', '.join(verdicts)}): {note or 'Cause not known.'}")
    return ["## Notes on the verdicts", "", *lines, ""] if lines else []


def _data(paper: Paper, reports: Reports) -> list[str]:
    """The section on the texts that the variants were trained on, by the fingerprint of the corpus, and the
    files that stages read."""
    corpora: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for variant, found in reports.items():
        for corpus in (each["corpus"] for each in found if each["corpus"]):
            names = corpora.setdefault(corpus["fingerprint"], (corpus, []))[1]
            names += [variant] if variant not in names else []
    lines = []
    for fingerprint, (corpus, names) in corpora.items():
        who = _names(names) if len(names) <= NAMED else f"{len(names)} variants, among them `{names[0]}`"
        sources = ", ".join(
            f"{each['name']} ({each.get('trained', each.get('texts')):,})" for each in corpus["sources"]
        )
        kind = "pairs" if "pairs" in corpus["sources"][0] else "texts"
        counts = f"{corpus['texts'] - corpus['held_out']:,} {kind}, and {corpus['held_out']:,} held out"
        lines.append(f"* {who}: {counts}. {sources}; fingerprint {fingerprint[:16]}.")
    named = {
        name
        for variant, found in reports.items()
        if found
        for name in files_read(variant_recipe(paper, variant, 0, Path("runs")))
    }
    if named:
        lines.append(f"* Files that stages read: {', '.join(f'`{name}`' for name in sorted(named))}.")
    title = (
        "## Data\n\n[The data](../../recipes/README.md#the-data-that-recipes-read) says where these files "
        "come from."
    )
    opened = "<details><summary>Files and their number of texts</summary>"
    return [title, "", opened, "", *lines, "", "</details>", ""] if lines else []


def _variants(paper: Paper, reports: Reports, suite: str) -> list[str]:
    """A table of the variants on one suite: mean ± deviation over seeds, and how they were trained."""
    measured = {}
    for variant, found in reports.items():
        parts = [(each, part_of(each, suite)) for each in found]
        if with_part := [(each, part) for each, part in parts if part]:
            measured[variant] = with_part
    if not measured:
        return [f"There are no reports on {suite} yet."]
    first = next(iter(measured.values()))[0][1]
    family = FAMILIES[first["kind"]]
    measure, title = family.averaged, family.title
    tasks = list(first["tasks"])
    columns = ["average", "seeds", "texts embedded", "minutes", "parameters"]
    lines = [
        f"| {suite}, {title} | {' | '.join([*tasks, *columns])} |",
        "|---|" + "---:|" * (len(tasks) + len(columns)),
    ]
    for variant, found in measured.items():
        cells = [
            _spread([part["tasks"].get(task, {}).get(measure, np.nan) for _, part in found]) for task in tasks
        ]
        average = _spread([part["average"] for _, part in found])
        whole = [each for each, _ in found]
        minutes = np.median([each["seconds"] for each in whole]) / 60
        recipe = "" if variant in paper.counterparts else f" (`{paper.variants[variant].recipe}`)"
        lines.append(
            f"| {variant}{recipe} | {' | '.join(cells)} | **{average}** | {len(found)} | "
            f"{_embedded(paper, variant, whole)} | {minutes:.1f} | {whole[0]['parameters']['total']:,} |"
        )
    return lines


def _embedded(paper: Paper, variant: str, found: list[dict[str, Any]]) -> str:
    """Mean texts that the student embedded; — where a report only counts samples, and the stages embed unlike
    numbers of texts for one."""
    spec = variant_recipe(paper, variant, 0, Path("runs"))
    each_embeds = {texts_embedded(spec, stage) for stage in spec.stages}
    texts = each_embeds.pop() if len(each_embeds) == 1 else None
    counts = [each.get("student_samples", each["passes"] * texts if texts else None) for each in found]
    known = [count for count in counts if count is not None]
    return f"{int(np.mean(known)):,}" if known else "—"


def _older(paper: Paper, older: list[dict[str, Any]]) -> list[str]:
    """The scores of reports of earlier settings, and what was changed since."""
    if not older:
        return []
    composed: dict[tuple[str, tuple[str, ...]], list[dict[str, Any]]] = {}
    for report in older:
        composed.setdefault((report["arm"], tuple(changes_since(paper, report["arm"], report))), []).append(
            report
        )
    common = sorted(set.intersection(*(set(changes) for _, changes in composed)))
    lines = [
        "",
        "## Earlier settings",
        "",
        "These runs were trained before, with other settings than the variants above. Their results were "
        "known when the settings were",
        "changed. They count in no verdict but those of `earlier settings`. Some settings were reconstructed "
        "from the file of that time;",
        "where they give steps, they agree with the samples counted.",
    ]
    if common:
        lines += ["", f"Changed since in all of them: {'; '.join(common)}."]
    lines += ["", "| variant | suite | average | seeds | changed since |", "|---|---|---:|---:|---|"]
    for (arm, changes), found in composed.items():
        changed = "; ".join(change for change in changes if change not in common)
        for number, suite in enumerate(found[0]["suites"]):
            average = _spread([each["suites"][suite]["average"] for each in found if suite in each["suites"]])
            lines.append(f"| {arm} | {suite} | {average} | {len(found)} | {changed if number == 0 else ''} |")
    return lines


def _spread(values: list[float]) -> str:
    points = 100 * np.array(values, float)
    return f"{points.mean():.2f}" + (f" ± {points.std(ddof=1):.2f}" if len(points) > 1 else "")


@app.command(epilog="Example: python bench/reproduction/table.py --only distilcse")
def main(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PAPER", help="Repeatable. Default: all papers.")
    ] = None,
    reports: Annotated[
        Path, typer.Option("--reports", help="Folder of the reports that run.py wrote.")
    ] = FOLDER / "reports",
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
