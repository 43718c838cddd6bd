"""Train and measure every variant that the papers' ranking claims compare, with several seeds each. The queue
can be stopped.

Finished runs and existing reports of the same settings are kept, and an interrupted run is resumed. Where
only the report of a run is left, it is trained again if another variant has yet to read it. All variants of a
seed come before the next seed, so that the reports of a stopped queue are comparable; a variant comes after
those whose runs it reads. With --jobs, several run at a time, each in a process of its own with one thread.
python bench/reproduction/table.py writes the pages from the reports.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import numpy as np
import report_table
import typer
from arm_recipe import composition, runs_before, student_samples, texts_embedded, variant_recipe, with_teacher
from ranking_claims import FOLDER, SEEDS, Paper, papers, slug

from edgedistill import files, recipe, resolve
from edgedistill import run as runs_
from edgedistill.errors import UserError, unknown_name
from edgedistill.evaluation import scoring
from edgedistill.evaluation.suites.cosines import Remembered
from edgedistill.session import Session
from edgedistill.teacher.encoder import resolve_dtype
from edgedistill.training import train as training
from edgedistill.training.initial_student.prepared_student import PreparedStudent

SHIPPED = FOLDER / "reports"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Workspace:
    """Where runs and reports are kept, the recipe changes of the command line, and the session to train and
    measure with.

    teacher: the folder of the teacher that recipes name by its hub id.
    """

    runs: Path
    reports: Path
    session: Session
    changes: tuple[str, ...] = ()
    teacher: Path | None = None


class Job(NamedTuple):
    """One run of a variant."""

    paper: str
    variant: str
    seed: int

    @property
    def title(self) -> str:
        return f"{self.paper}/{slug(self.variant, self.seed)}"


def chosen(names: list[str] | None, folder: Path, under: str | None = None) -> dict[str, Paper]:
    """The papers named on the command line; by default all of them. Raises UserError for an unknown name.

    under: those with circumstances of this name, with the counterparts alone and the variants whose runs they
        read.
    """
    known = papers(folder)
    for name in names or []:
        if name not in known:
            raise UserError(f"--only: {unknown_name('paper', name, known)}")
    found = {name: paper for name, paper in known.items() if not names or name in names}
    if under is None:
        return found
    found = {
        name: _counterparts(paper)
        for name, paper in found.items()
        if paper.circumstances and paper.circumstances.name == under
    }
    if not found:
        raise UserError(
            f"--under: no paper that was chosen has circumstances {under!r}; see `circumstances` of "
            f"{folder}/*.yaml"
        )
    return found


def _counterparts(paper: Paper) -> Paper:
    """The paper with the variants of its other circumstances alone, and those whose runs they read."""
    kept = set(paper.counterparts)
    for variant in reversed(paper.variants):
        if variant in kept:
            kept.update(runs_before(paper, variant))
    return paper.model_copy(
        update={"variants": {name: spec for name, spec in paper.variants.items() if name in kept}}
    )


def queue(found: dict[str, Paper], seeds: int) -> Iterator[Job]:
    """Yields every job, seed by seed; a shared variant with seed 0 alone."""
    for seed in range(seeds):
        for name, paper in found.items():
            for variant, spec in paper.variants.items():
                if seed == 0 or not spec.shared:
                    yield Job(name, variant, seed)


def measured(
    run: runs_.Run, suites: list[str], data: Path | None, folder: Path
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Score a run on suites. Returns (the result of each suite, the values of each test item).

    Values are keyed `suite/task/found` for the model's and `suite/task/gold` for the gold ones. folder: for a
    temporary bundle.
    """
    results: dict[str, Any] = {}
    items: dict[str, np.ndarray] = {}
    encode = _encoder(run) if suites != ["task"] else None
    for name in suites:
        suite, model = (
            _classifier(run, data, folder) if name == "task" else (scoring.suite(name, data), encode)
        )
        assert model is not None
        results[name] = scoring.evaluate(suite, model)
        values = ITEM_VALUES.get(suite.kind)
        for task, (found, gold) in (values(suite, model) if values else {}).items():
            items[f"{name}/{task}/found"] = found.astype(np.float32)
            if gold is not None:
                items[f"{name}/{task}/gold"] = gold.astype(np.float32)
    return results, items


def _encoder(run: runs_.Run) -> scoring.Encode:
    """A function texts -> (n, d) that embeds each list of texts once."""
    student = PreparedStudent.of(run)

    @cache
    def embedded(*texts: str) -> np.ndarray:
        prompted = [run.prompt + text for text in texts]
        return student.embed(prompted)

    return lambda texts: embedded(*texts)


def _sts(suite: scoring.Suite, encode: scoring.Encode) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    encode = Remembered(encode)
    return {name: (task.cosines(encode), task.gold) for name, task in suite.tasks.items()}


def _retrieval(
    suite: scoring.Suite, encode: scoring.Encode
) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    tasks = scoring.evaluate(suite, encode, samples=True)["tasks"]
    return {name: (np.array(task["samples"]["scores"]), None) for name, task in tasks.items()}


def _task(suite: Any, classify: Any) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    correct = {
        name: np.array(classify(task.items).labels) == np.array(task.labels)
        for name, task in suite.tasks.items()
    }
    return {name: (each, None) for name, each in correct.items()}


ITEM_VALUES: dict[str, Callable[[Any, Any], dict[str, tuple[np.ndarray, np.ndarray | None]]]] = {
    "sts": _sts,
    "retrieval": _retrieval,
    "task": _task,
}


def _classifier(run: runs_.Run, data: Path | None, folder: Path) -> tuple[Any, Any]:
    """The suite of a fine-tuned run's own task, and the classify method of the run's exported bundle."""
    from edgedistill.export import bundle_writer
    from edgedistill.runtime import bundle

    out = folder / "bundle"
    bundle_writer.export(run.folder, ["fp32"], out, lambda line: None)
    opened: Any = bundle.load(out, "fp32")
    return scoring.task_suite(opened.manifest, "", data), opened.classify


def report(
    paper: Paper,
    variant: str,
    run: runs_.Run,
    spec: recipe.Recipe,
    teacher: recipe.Teacher,
    suites: list[str],
    session: Session,
    out: Path,
) -> None:
    """Measure a run and write its report: scores as JSON to `out`, and the values of each test item as .npz
    with the same name.

    spec: the run's recipe as anybody can read it, with a hub id for a teacher that the run read from a
        folder.
    """
    with TemporaryDirectory() as folder:
        results, items = measured(run, suites, session.data, Path(folder))
    metrics = run.folder / "metrics.jsonl"
    curve = (
        [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        if metrics.exists()
        else []
    )
    first = run.recipe.stages[0].name if run.recipe.stages else None
    content = {
        "schema": 1,
        "bench": "reproduction",
        "paper": paper.paper,
        "arm": variant,
        "recipe": paper.variants[variant].recipe,
        "seed": run.recipe.seed,
        "teacher": spec.teacher.name,
        "teacher_weights": _weights_sha256(teacher),
        "settings": composition(spec),
        "passes": sum(stage["texts"] for stage in run.info["stages"]),
        "student_samples": _student_samples(run),
        "dtype": str(
            resolve_dtype(run.recipe.stages[0].dtype if run.recipe.stages else "fp32", session.device)
        ).removeprefix("torch."),
        "temperature": {
            each["name"]: each["temperature"] for each in run.info["stages"] if "temperature" in each
        },
        "selected": run.info["selected"],
        "curve": {
            str(each["step"]): each["dev"] for each in curve if each.get("stage") == first and "dev" in each
        },
        "suites": results,
        **{
            key: run.info[key]
            for key in ("seconds", "parameters", "dims", "corpus", "made_at", "versions", "platform")
        },
    }
    report_table.write(out, content, items)


def _weights_sha256(teacher: recipe.Teacher) -> str | None:
    """The hash of a teacher's model.safetensors, which the hub lists as well; None where it has no such
    file."""
    path = resolve.teacher_files(teacher) / "model.safetensors" if teacher.model is not None else None
    return files.sha256_file(path) if path is not None and path.exists() else None


def _student_samples(run: runs_.Run) -> int:
    """How many texts the student embedded in training."""
    of_stage = {stage.name: texts_embedded(run.recipe, stage) for stage in run.recipe.stages}
    return sum(stage["texts"] * of_stage[stage["name"]] for stage in run.info["stages"])


def has_report(out: Path, spec: recipe.Recipe, suites: list[str]) -> bool:
    """Whether a report has all suites of a run with these settings."""
    known = report_table.read_one(out.parent.parent, out.parent.name, out.stem)
    return (
        known is not None
        and known.get("settings") == composition(spec)
        and set(suites) <= known["suites"].keys()
    )


def set_older_aside(out: Path, spec: recipe.Recipe) -> None:
    """Rename a report of other settings to `NAME.older.json`."""
    if out.exists() and report_table.content(out.read_bytes()).get("settings") != composition(spec):
        for path in (out, out.with_suffix(".npz")):
            if path.exists():
                path.rename(path.with_name(f"{path.stem}.older{path.suffix}"))


def train_and_measure(paper: Paper, variant: str, seed: int, workspace: Workspace) -> None:
    """Train a run of a variant unless it is there, and measure it unless its report is. Raises UserError
    where it cannot be run."""
    job = Job(paper.paper, variant, seed)
    out, folder = _report_of(job, workspace), _folder_of(job, workspace)
    suites = paper.variants[variant].suites or paper.suites
    spec = variant_recipe(paper, variant, seed, workspace.runs, workspace.changes)
    placed = with_teacher(spec, workspace.teacher)
    if folder.exists() and composition(runs_.open_run(folder).recipe) != composition(placed):
        raise UserError(
            f"{folder}: was trained with other settings; delete it, or give another folder with --runs"
        )
    if not folder.exists():
        training.train(placed, folder, workspace.session, resolve.unfinished_run(folder).exists())
    if not has_report(out, spec, suites):
        out.parent.mkdir(parents=True, exist_ok=True)
        set_older_aside(out, spec)
        report(paper, variant, runs_.open_run(folder), spec, placed.teacher, suites, workspace.session, out)


def unfinished(found: dict[str, Paper], seeds: int, workspace: Workspace) -> list[Job]:
    """The jobs without a report, and those whose runs they read and which are no longer there, in the order
    of the queue."""
    jobs = list(queue(found, seeds))
    needed = {job for job in jobs if not _is_kept(found, job, workspace)}
    for job in reversed(jobs):  # a job comes after those whose runs it reads
        if job in needed and not _folder_of(job, workspace).exists():
            needed.update(
                other for other in _jobs_before(found, job) if not _folder_of(other, workspace).exists()
            )
    return [job for job in jobs if job in needed]


def hours(found: dict[str, Paper], seeds: int, workspace: Workspace) -> tuple[float, int]:
    """(about how many hours of one core the queue needs, jobs without an estimate), from the seconds that
    earlier reports record.

    A variant takes as long as in the workspace's reports, or in those that ship. One without reports takes
    its paper's median seconds for a text that the student embeds; what is trained again under other
    circumstances, the median of its like.
    """
    total, unknown = 0.0, 0
    for name, paper in found.items():
        shipped, own = (_seconds(paper, folder) for folder in (SHIPPED, workspace.reports))
        known = shipped.of_variants | own.of_variants
        for job in unfinished({name: paper}, seeds, workspace):
            try:
                spec = variant_recipe(paper, job.variant, job.seed, workspace.runs, workspace.changes)
            except UserError:  # the queue reports it
                unknown += 1
                continue
            samples, again = student_samples(spec), job.variant in paper.counterparts
            like = own.per_text[again] or shipped.per_text[again]
            if job.variant in known:
                total += float(np.mean(known[job.variant]))
            elif like and samples is not None:
                total += samples * float(np.median(like))
            else:
                unknown += 1
    return total / 3600, unknown


class Seconds(NamedTuple):
    """What reports record: the seconds of each variant's runs, and those for a text embedded, {True: of
    counterparts, False: of others}."""

    of_variants: dict[str, list[float]]
    per_text: dict[bool, list[float]]


def _seconds(paper: Paper, folder: Path) -> Seconds:
    found = Seconds({}, {True: [], False: []})
    for name, content, _ in report_table.read(folder, paper.paper):
        if re.search(r"-s\d+", name) is None:
            continue
        found.of_variants.setdefault(content["arm"], []).append(content["seconds"])
        if samples := content.get("student_samples", content["passes"]):
            found.per_text[content["arm"] in paper.counterparts].append(content["seconds"] / samples)
    return found


def work(
    found: dict[str, Paper], seeds: int, minutes: float | None, workspace: Workspace
) -> dict[str, list[str]]:
    """Go through the queue. Returns {kept, done, failed, left}, each a list of paper/run.

    minutes: no run is started later than this. A run that fails with a UserError is logged, and the queue
        continues.
    """
    log, started = workspace.session.log, time.perf_counter()
    waiting = unfinished(found, seeds, workspace)
    result = _result(found, seeds, waiting)
    for job in waiting:
        if minutes is not None and time.perf_counter() - started > 60 * minutes:
            result["left"].append(job.title)
            continue
        try:
            train_and_measure(found[job.paper], job.variant, job.seed, workspace)
        except UserError as error:
            result["failed"].append(job.title)
            log(f"{job.title}: {error}")
        else:
            result["done"].append(job.title)
            log(f"{job.title}: done")
    return result


def _result(found: dict[str, Paper], seeds: int, waiting: list[Job]) -> dict[str, list[str]]:
    """{kept, done, failed, left} before any job has run: all that is not waiting is kept."""
    return {
        "kept": [job.title for job in queue(found, seeds) if job not in waiting],
        "done": [],
        "failed": [],
        "left": [],
    }


def work_side_by_side(
    found: dict[str, Paper],
    seeds: int,
    minutes: float | None,
    workspace: Workspace,
    start: Callable[[Job], subprocess.Popen[bytes]],
    jobs: int,
) -> dict[str, list[str]]:
    """`work` with up to `jobs` processes; start: begins one, whose exit status is 0 where the job has its
    report afterwards.

    A job waits for the jobs whose runs it reads, and while another is the first to embed the same texts with
    the same teacher: the second then finds them in the cache.
    """
    waiting, running, embedded = (
        unfinished(found, seeds, workspace),
        dict[Job, subprocess.Popen[bytes]](),
        set[str](),
    )
    result = _result(found, seeds, waiting)
    log, started = workspace.session.log, time.perf_counter()
    texts = {job: _texts_and_teacher(found, job, workspace) for job in waiting}
    while waiting or running:
        for job, process in list(running.items()):
            if process.poll() is not None:
                del running[job]
                embedded.add(texts[job])
                result["done" if process.returncode == 0 else "failed"].append(job.title)
                log(
                    f"{job.title}: "
                    f"{'done' if process.returncode == 0 else f'failed, see {_log_of(job, workspace)}'}"
                )
        if minutes is not None and time.perf_counter() - started > 60 * minutes:
            result["left"] += [job.title for job in waiting]
            waiting = []
        for job in list(waiting):
            before = _jobs_before(found, job)
            first = texts[job] not in embedded and any(texts[other] == texts[job] for other in running)
            if len(running) < jobs and not before & {*waiting, *running} and not first:
                waiting.remove(job)
                running[job] = start(job)
        time.sleep(0.05)
    return result


def _is_kept(found: dict[str, Paper], job: Job, workspace: Workspace) -> bool:
    paper = found[job.paper]
    try:
        spec = variant_recipe(paper, job.variant, job.seed, workspace.runs, workspace.changes)
    except UserError:  # the queue reports it
        return False
    return has_report(_report_of(job, workspace), spec, paper.variants[job.variant].suites or paper.suites)


def _jobs_before(found: dict[str, Paper], job: Job) -> set[Job]:
    """The jobs whose runs a job reads."""
    paper = found[job.paper]
    return {
        Job(job.paper, other, 0 if paper.variants[other].shared else job.seed)
        for other in runs_before(paper, job.variant)
    }


def _texts_and_teacher(found: dict[str, Paper], job: Job, workspace: Workspace) -> str:
    """What identifies the embeddings that a job computes first; its own title where it embeds no corpus, or
    cannot be read."""
    try:
        spec = variant_recipe(found[job.paper], job.variant, job.seed, workspace.runs, workspace.changes)
    except UserError:
        return job.title
    return job.title if spec.rows is None else spec.model_dump_json(include={"rows", "teacher", "assistant"})


def _report_of(job: Job, workspace: Workspace) -> Path:
    return workspace.reports / job.paper / f"{slug(job.variant, job.seed)}.json"


def _folder_of(job: Job, workspace: Workspace) -> Path:
    return workspace.runs / job.paper / slug(job.variant, job.seed)


def _log_of(job: Job, workspace: Workspace) -> Path:
    return _folder_of(job, workspace).with_name(f"{slug(job.variant, job.seed)}.log")


def own_process(job: Job, workspace: Workspace, options: list[str]) -> subprocess.Popen[bytes]:
    """Start a process for one job, with one thread; it writes its log next to the run."""
    log = _log_of(job, workspace)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        __file__,
        "--only",
        job.paper,
        "--variant",
        job.variant,
        "--seed",
        str(job.seed),
        *options,
    ]
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _one(found: dict[str, Paper], variant: str, seed: int, workspace: Workspace) -> None:
    """Train and measure a single run. Raises UserError where it cannot be run, or the paper has no such
    variant."""
    if len(found) != 1:
        raise UserError(f"--variant: {len(found)} papers are chosen; name its paper with --only")
    paper = next(iter(found.values()))
    if variant not in paper.variants:
        raise UserError(f"--variant: {unknown_name('variant', variant, paper.variants)}")
    train_and_measure(paper, variant, seed, workspace)


@app.command(
    epilog="Example: python bench/reproduction/run.py --only distilcse --jobs 2 --minutes 120 --data ~/texts"
)
def main(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PAPER", help="Repeatable. Default: all papers.")
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Runs per variant, with seeds 0, 1, …")
    ] = SEEDS,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", help="Start no run after this time; the current run is finished."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", envvar="EDGEDISTILL_DATA", help="Folder that relative data paths start from."),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Folder of the runs.")] = Path("runs/reproduction"),
    reports: Annotated[Path, typer.Option("--reports", help="Folder of the reports.")] = SHIPPED,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V", help="Change every recipe. Repeatable.")
    ] = None,
    folder: Annotated[Path, typer.Option("--papers", help="Folder of the papers' YAML files.")] = FOLDER,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time, one thread each.")] = 1,
    variant: Annotated[
        str | None, typer.Option("--variant", help="Only this variant of the one paper in --only.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Only this seed of --variant.")] = None,
    teacher: Annotated[
        Path | None,
        typer.Option(
            "--teacher",
            envvar="EDGEDISTILL_TEACHER",
            help="Folder of the teacher that variants name by its hub id.",
        ),
    ] = None,
    under: Annotated[
        str | None,
        typer.Option(
            "--under",
            metavar="NAME",
            help="Only what is trained again under these circumstances, e.g. pretrained.",
        ),
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Print the hours that are needed, and stop.")
    ] = False,
) -> None:
    """Train and measure the variants that the papers' ranking claims compare. Finished runs are kept,
    interrupted runs are resumed."""
    workspace = Workspace(
        runs, reports, Session(data=data, device=device, log=typer.echo), tuple(changes or []), teacher
    )
    try:
        if changes and reports.resolve() == SHIPPED.resolve():
            raise UserError(
                "--set: the reports that ship stand for runs without it; give another folder with --reports"
            )
        found = chosen(only, folder, under)
        if variant is not None:
            _one(found, variant, seed or 0, workspace)
            return
        needed, unknown = hours(found, seeds, workspace)
        more = f", and {unknown} runs without an estimate" if unknown else ""
        typer.echo(
            f"about {needed:.1f} hours of one core as measured in the reports{more}; about "
            f"{needed / jobs:.1f} with {jobs} jobs"
        )
        if estimate:
            return
        if jobs == 1:
            result = work(found, seeds, minutes, workspace)
        else:
            options = [f"--runs={runs}", f"--reports={reports}", f"--device={device}", f"--papers={folder}"]
            options += [*([f"--data={data}"] if data else []), *([f"--teacher={teacher}"] if teacher else [])]
            options += [*(f"--set={change}" for change in changes or [])]
            result = work_side_by_side(
                found, seeds, minutes, workspace, lambda job: own_process(job, workspace, options), jobs
            )
    except UserError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(", ".join(f"{len(titles)} {status}" for status, titles in result.items()))
    if result["failed"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
