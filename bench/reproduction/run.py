"""Train and measure every variant that the papers' ranking claims compare, with several seeds each. The queue can be stopped.

Finished runs and existing reports are kept, and an interrupted run is resumed. All variants of a seed come before the next seed, so
that the reports of a stopped queue are comparable. python bench/reproduction/table.py writes the pages from the reports.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
from ranking_claims import FOLDER, Paper, papers, slug

from edgedistill import files, recipe
from edgedistill import run as runs_
from edgedistill.errors import UserError, unknown_name
from edgedistill.evaluation import scoring
from edgedistill.evaluation.suites import retrieval
from edgedistill.evaluation.suites.cosines import dot, encoded, unit
from edgedistill.session import Session
from edgedistill.students.output import Output
from edgedistill.training import student_embeddings
from edgedistill.training import train as training

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Workspace:
    """Where runs and reports are kept, the recipe changes of the command line, and the session to train and measure with."""

    runs: Path
    reports: Path
    session: Session
    changes: tuple[str, ...] = ()


def chosen(names: list[str] | None, folder: Path) -> dict[str, Paper]:
    """The papers named on the command line; by default all of them. Raises UserError for an unknown name."""
    known = papers(folder)
    for name in names or []:
        if name not in known:
            raise UserError(f"--only: {unknown_name('paper', name, known)}")
    return {name: paper for name, paper in known.items() if not names or name in names}


def queue(found: dict[str, Paper], seeds: int) -> Iterator[tuple[str, str, int]]:
    """Yields (paper, variant, seed), seed by seed."""
    for seed in range(seeds):
        for name, paper in found.items():
            for variant in paper.variants:
                yield name, variant, seed


def variant_recipe(paper: Paper, variant: str, seed: int, runs: Path, changes: tuple[str, ...] = ()) -> recipe.Recipe:
    """The recipe of a variant. Raises UserError for a recipe that does not exist, or a change that does not fit it."""
    replaced = []
    for change in [*paper.set, *paper.variants[variant].set, *changes]:
        for other in paper.variants:
            change = change.replace(f"{{run:{other}}}", str(runs / paper.paper / slug(other, seed)))
        replaced.append(change.replace("{seed}", str(seed)))
    return recipe.read(paper.variants[variant].recipe, [*replaced, f"seed={seed}", f"name={slug(variant, seed)}"])


def measured(run: runs_.Run, suites: list[str], data: Path | None, folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Score a run on suites. Returns (the result of each suite, the values of each test item).

    Values are keyed `suite/task/found` for the model's and `suite/task/gold` for the gold ones. folder: for a temporary bundle.
    """
    results: dict[str, Any] = {}
    items: dict[str, np.ndarray] = {}
    encode = _encoder(run) if suites != ["task"] else None
    for name in suites:
        suite, model = _classifier(run, data, folder) if name == "task" else (scoring.suite(name, data), encode)
        assert model is not None
        results[name] = scoring.evaluate(suite, model)
        values = ITEM_VALUES.get(suite.kind)
        for task, (found, gold) in (values(suite, model) if values else {}).items():
            items[f"{name}/{task}/found"] = found.astype(np.float32)
            if gold is not None:
                items[f"{name}/{task}/gold"] = gold.astype(np.float32)
    return results, items


TEACHER_EMBEDDINGS: dict[tuple[str, ...], np.ndarray] = {}  # unreduced, of a suite's texts: shared by all reductions of a teacher


def _encoder(run: runs_.Run) -> scoring.Encode:
    """A function texts -> (n, d) that embeds each list of texts once, and the texts of a reduced teacher once for all variants."""
    student, tokenizer = run.student(), run.tokenizer()
    reduced = student if isinstance(student, Output) and run.recipe.student.kind == "teacher" else None
    known: dict[tuple[str, ...], np.ndarray] = {} if reduced is None else TEACHER_EMBEDDINGS
    of = () if reduced is None else (run.recipe.teacher.model_dump_json(),)

    def encode(texts: list[str]) -> np.ndarray:
        key = (*of, *texts)
        if key not in known:
            module = student if reduced is None else reduced.inner
            known[key] = student_embeddings.embed(module, tokenizer, [run.prompt + text for text in texts], run.max_tokens)
        if reduced is None:
            return known[key]
        with torch.inference_mode():
            return reduced.after(torch.from_numpy(known[key])).numpy()

    return encode


def _sts(suite: scoring.Suite, encode: scoring.Encode) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    vectors = unit(encoded(encode, suite.texts))
    return {name: (dot(vectors[pairs.first], vectors[pairs.second]), pairs.gold) for name, pairs in suite.tasks.items()}


def _retrieval(suite: scoring.Suite, encode: scoring.Encode) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    return {name: (np.array(retrieval.each_query(task, encode)[0]), None) for name, task in suite.tasks.items()}


def _task(suite: Any, classify: Any) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    correct = {name: np.array(classify(task.items).labels) == np.array(task.rows.labels) for name, task in suite.tasks.items()}
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


def report(paper: Paper, variant: str, run: runs_.Run, suites: list[str], data: Path | None, out: Path) -> None:
    """Measure a run and write its report: scores as JSON to `out`, and the values of each test item as .npz with the same name."""
    with TemporaryDirectory() as folder:
        results, items = measured(run, suites, data, Path(folder))
    metrics = run.folder / "metrics.jsonl"
    curve = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] if metrics.exists() else []
    first = run.recipe.stages[0].name if run.recipe.stages else None
    content = {
        "schema": 1,
        "bench": "reproduction",
        "paper": paper.paper,
        "arm": variant,
        "recipe": paper.variants[variant].recipe,
        "seed": run.recipe.seed,
        "teacher": run.recipe.teacher.name,
        "passes": sum(stage["texts"] for stage in run.info["stages"]),
        "selected": run.info["selected"],
        "curve": {str(each["step"]): each["dev"] for each in curve if each.get("stage") == first and "dev" in each},
        "suites": results,
        **{key: run.info[key] for key in ("seconds", "parameters", "dims", "corpus", "made_at", "versions", "platform")},
    }
    with files.new_file(out.with_suffix(".npz")) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **items)  # type: ignore[arg-type]
    files.write_json(out, content)


def train_and_measure(paper: Paper, variant: str, seed: int, workspace: Workspace) -> str:
    """Train and measure one run of a variant. Returns `done`, or `kept` when its report exists. Raises UserError when it cannot be run."""
    name = slug(variant, seed)
    out, folder = workspace.reports / paper.paper / f"{name}.json", workspace.runs / paper.paper / name
    suites = paper.variants[variant].suites or paper.suites
    if out.exists() and set(suites) <= files.read_json(out)["suites"].keys():
        return "kept"
    spec = variant_recipe(paper, variant, seed, workspace.runs, workspace.changes)
    if not folder.exists():
        training.train(spec, folder, workspace.session, runs_.partial(folder).exists())
    out.parent.mkdir(parents=True, exist_ok=True)
    report(paper, variant, runs_.open_run(folder), suites, workspace.session.data, out)
    return "done"


def work(found: dict[str, Paper], seeds: int, minutes: float | None, workspace: Workspace) -> dict[str, list[str]]:
    """Go through the queue. Returns {kept, done, failed, left}, each a list of paper/run.

    minutes: no run is started later than this. A run that fails with a UserError is logged, and the queue continues.
    """
    result: dict[str, list[str]] = {"kept": [], "done": [], "failed": [], "left": []}
    log, started = workspace.session.log, time.perf_counter()
    for name, variant, seed in queue(found, seeds):
        title = f"{name}/{slug(variant, seed)}"
        if minutes is not None and time.perf_counter() - started > 60 * minutes:
            result["left"].append(title)
            continue
        try:
            status = train_and_measure(found[name], variant, seed, workspace)
        except UserError as error:
            status = "failed"
            log(f"{title}: {error}")
        result[status].append(title)
        if status == "done":
            log(f"{title}: done")
    return result


@app.command(epilog="Example: python bench/reproduction/run.py --only distilcse --seeds 3 --minutes 120 --data ~/texts")
def main(
    only: Annotated[list[str] | None, typer.Option("--only", metavar="PAPER", help="Repeatable. Default: all papers.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs per variant, with seeds 0, 1, …")] = 3,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Start no run after this time; the current run is finished.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", envvar="EDGEDISTILL_DATA", help="Folder that relative data paths start from.")
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Folder of the runs.")] = Path("runs/reproduction"),
    reports: Annotated[Path, typer.Option("--reports", help="Folder of the reports.")] = FOLDER / "reports",
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="K=V", help="Change every recipe. Repeatable.")] = None,
    folder: Annotated[Path, typer.Option("--papers", help="Folder of the papers' YAML files.")] = FOLDER,
) -> None:
    """Train and measure the variants that the papers' ranking claims compare. Finished runs are kept, interrupted runs are resumed."""
    session = Session(data=data, device=device, log=typer.echo)
    try:
        result = work(chosen(only, folder), seeds, minutes, Workspace(runs, reports, session, tuple(changes or [])))
    except UserError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(", ".join(f"{len(titles)} {status}" for status, titles in result.items()))
    if result["failed"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
