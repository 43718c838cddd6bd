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
from ranking_claims import FOLDER, RESAMPLES, SEEDS, Paper, papers

from edgedistill import files
from edgedistill.errors import UserError, unknown_name
from edgedistill.evaluation.suites import FAMILIES

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
VERDICTS = ("reproduced", "contradicted", "inconclusive", "at chance", "not yet", "not run")


def markdown(
    paper: Paper,
    loaded: tuple[Reports, list[dict[str, Any]]],
    stated: PaperSettings,
    resamples: int = RESAMPLES,
) -> str:
    """The paper's page: what was compared, the claims with their verdicts, deviations from the paper, and
    every variant's scores."""
    reports, older = loaded
    pairs, other = judged(paper, reports, resamples), paper.circumstances
    teachers = sorted(
        {_teacher(each) for each in [*(each for found in reports.values() for each in found), *older]}
    )
    lines = [
        f"# {paper.paper}: which ranking claims were reproduced",
        "",
        paper.about,
        *(["", other.about] if other else []),
        "",
    ]
    lines += [
        f"Teacher: {' and '.join(teachers)}." if teachers else "There are no reports yet.",
        "",
        f"Source: {paper.source}. [Variants](#variants) says what each name stands for, "
        "[README.md](README.md) how to read and repeat all this.",
        "",
    ]
    lines += [
        "## Ranking claims",
        "",
        *_judgements(paper, pairs),
        *_notes(paper, pairs),
        *paper_settings.markdown(paper, stated),
    ]
    lines += [*_data(paper, reports), "## Variants", ""]
    described = [f"* `{name}`: {variant.about}." for name, variant in paper.variants.items() if variant.about]
    lines += [*described, ""] if described else []
    lines += [
        "Scores are the mean ± standard deviation over seeds, minutes the median. The shipped recipe of a "
        "variant is in parentheses; the",
        "paper's YAML file lists its changes. `texts embedded` counts every view, side and column that the "
        "student embeds in training.",
        "Parameters are of the finished student, then those without its head. Temperatures are learned ones, "
        "dtype is that of training.",
        "—: not recorded.",
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


def _judgements(paper: Paper, pairs: list[tuple[Judgement, Judgement | None]]) -> list[str]:
    """The paper's claims, again by the variants of other circumstances, the comparisons of our own, and how
    verdicts are reached."""
    claims = [pair for pair in pairs if not pair[0].ranking.control]
    controls = [pair for pair in pairs if pair[0].ranking.control]
    lines = [_counted("with this teacher, corpus and student", [first for first, _ in claims]), ""]
    if (other := paper.circumstances) is not None:
        lines += [_counted(f"of `{other.name}`", [second for _, second in claims if second]), ""]
    lines += _tables(claims, other.name if other else None)
    if controls:
        lines += [
            "Comparisons of our own, which the paper does not make. They are judged alike and not counted "
            "above:",
            "",
        ]
        lines += _tables(controls, other.name if other else None)
    return [*lines, *_method([each for pair in pairs for each in pair if each is not None]), ""]


def _counted(of: str, judgements: list[Judgement]) -> str:
    counts = Counter(each.verdict.partition(":")[0] for each in judgements)
    parts = [f"{counts[name]} {name}" for name in VERDICTS if counts[name]]
    return f"Verdicts {of}: {', '.join(parts)}."


def _tables(pairs: list[tuple[Judgement, Judgement | None]], other: str | None) -> list[str]:
    """A table of claims and, where some are judged again, one by the variants of the other circumstances."""
    again: list[tuple[Judgement, Judgement | None]] = [(second, None) for _, second in pairs if second]
    lines = [*_table(pairs, other if again else None), ""]
    return [*lines, f"The same by the `{other}` variants:", "", *_table(again), ""] if again else lines


def _table(pairs: list[tuple[Judgement, Judgement | None]], other: str | None = None) -> list[str]:
    """A table of claims. other: the name of the circumstances whose verdicts stand in a last column."""
    columns = (
        "| claim | the paper reports | suite | difference ± standard error | over seeds | over test "
        "items | seeds | verdict |"
    )
    lines = [
        columns + (f" `{other}` |" if other else ""),
        "|---|---|---|---:|---:|---:|---:|---|" + ("---|" if other else ""),
    ]
    for first, second in pairs:
        ranking = first.ranking
        suite = first.suite if ranking.at_step is None else f"selection, step {ranking.at_step:,}"
        verdict = second.verdict if second else ""
        last = f" {verdict} |" if other else ""
        lines.append(f"| {ranking.claim} | {ranking.reported} | {suite} |{_result(first)}{last}")
    return lines


def _result(judgement: Judgement) -> str:
    """The cells of a result: difference, intervals, seeds, verdict."""
    if judgement.missing:
        return f" | | | 0 | **not run**: no reports for {_names(judgement.missing)} |"
    error = "" if np.isnan(judgement.error) else f" ± {judgement.error:.2f}"
    intervals = [
        "" if each is None else "{:+.2f} … {:+.2f}".format(*each)
        for each in (judgement.over_seeds, judgement.over_items)
    ]
    return (
        f" {judgement.mean:+.2f}{error} | {' | '.join(intervals)} | {judgement.seeds} | "
        f"**{judgement.verdict}** |"
    )


def _notes(paper: Paper, pairs: list[tuple[Judgement, Judgement | None]]) -> list[str]:
    """The section on verdicts that need a word: those with a note, contradicted ones, and those that differ
    between circumstances."""
    lines = []
    for first, second in pairs:
        both = [first, *([second] if second is not None else [])]
        decided = {each.verdict for each in both} <= {"reproduced", "contradicted", "inconclusive"}
        unlike = decided and len({each.verdict for each in both}) > 1
        if not (first.ranking.note or unlike or any(each.verdict == "contradicted" for each in both)):
            continue
        verdicts = first.verdict + (
            f", `{paper.circumstances.name}` {second.verdict}" if second and paper.circumstances else ""
        )
        too_few = (
            unlike
            and any(each.verdict == "inconclusive" for each in both)
            and len({each.mean > 0 for each in both}) == 1
        )
        note = first.ranking.note or (
            "One of them does not decide it; both differences have the same sign."
            if too_few
            else "Cause not yet known."
        )
        lines.append(f"* {first.ranking.claim} ({verdicts}): {note}")
    return ["## Notes on the verdicts", "", *lines, ""] if lines else []


def _method(judgements: list[Judgement]) -> list[str]:
    """How the verdicts are reached, as a list."""
    lines = [
        "* **difference**: the score of the variant that should rank higher minus that of the other, × 100, "
        "for each seed that both have:",
        "  the mean over seeds, and the standard error of that mean.",
        "* **over seeds**: the 95% confidence interval of that mean (Student's t: ± 4.30 standard errors for "
        "three seeds).",
        "  **over test items**: 95% of a paired bootstrap over the suite's test items, with the same samples "
        "for all runs.",
        "* **reproduced**: both intervals lie above 0. **contradicted**: both lie below 0. **inconclusive**: "
        "neither.",
        f"  **not yet**: below {SEEDS} seeds. **not run**: a variant has no reports.",
    ]
    if any(each.verdict.startswith("at chance") for each in judgements):
        lines += [
            "* **at chance**: a variant's own mean correlation is not above 0, by its interval over seeds. "
            "Nothing shows that it learned",
            "  in this budget, which says nothing about the paper's claim.",
        ]
    lines.append(
        "* Only rankings are compared with the paper: scores depend on the teacher, the corpus and the "
        "student."
    )
    if any(len(each.ranking.contrast) > 2 for each in judgements):
        lines.append("* A claim about a gap compares two such differences.")
    if any(each.ranking.at_step is not None for each in judgements):
        lines.append(
            "* **selection, step N**: the score on the selection suite at that step of training, judged by "
            "the seeds alone."
        )
    return lines


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
    return [title, "", *lines, ""] if lines else []


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
    columns = ["average", "seeds", "texts embedded", "minutes", "parameters", "dtype", "temperature"]
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
            f"{_embedded(paper, variant, whole)} | {minutes:.1f} | {_parameters(whole[0])} | "
            f"{_dtypes(whole)} | {_temperatures(whole)} |"
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
    """Reports of arms as they were composed before: they stand for no arm of the paper, and enter no
    verdict."""
    if not older:
        return []
    composed: dict[
        tuple[str, tuple[str, ...]], list[dict[str, Any]]
    ] = {}  # an arm's reports of one composition
    for report in older:
        composed.setdefault((report["arm"], tuple(changes_since(paper, report["arm"], report))), []).append(
            report
        )
    known = [changes for _, changes in composed if changes]
    common = (
        [change for change in known[0] if all(change in each for each in known)] if len(known) > 1 else []
    )
    lines = ["", "## Older compositions", ""]
    lines.append(
        "These runs were trained with other settings than the variants above. They stand for no arm of the "
        "paper and enter no verdict."
    )
    if any(report.get("settings_reconstructed") for report in older):
        lines.append(
            "Their settings were reconstructed from the file of that time; where they give steps, they agree "
            "with the samples counted."
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
