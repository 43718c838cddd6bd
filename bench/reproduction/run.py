"""Train and measure every arm of the papers' orderings, several seeds each, one after the other; killed or stopped, it goes on.

A run that is finished is not trained again, a report that is there is not measured again, a killed run is resumed. All arms of a
seed come before the next seed, so that a stopped queue has left whole tables. python bench/reproduction/table.py makes the tables.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
from orderings import FOLDER, Arm, Paper, papers, slug

from edgedistill import files, recipe
from edgedistill import run as runs_
from edgedistill.errors import UserError, unknown
from edgedistill.evaluation import scoring
from edgedistill.evaluation.suites import retrieval
from edgedistill.evaluation.suites.cosines import dot, encoded, unit
from edgedistill.session import Session
from edgedistill.students.output import Output
from edgedistill.training import prepare
from edgedistill.training import train as training

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Say = Callable[[str], None]


def chosen(names: list[str] | None, folder: Path) -> dict[str, Paper]:
    """The papers asked for; all of them by default."""
    known = papers(folder)
    for name in names or []:
        if name not in known:
            raise UserError(f"--only: {unknown('paper', name, known)}")
    return {name: paper for name, paper in known.items() if not names or name in names}


def queue(found: dict[str, Paper], seeds: int) -> Iterator[tuple[str, str, int]]:
    """(paper, arm, seed), seed by seed."""
    for seed in range(seeds):
        for name, paper in found.items():
            for arm in paper.arms:
                yield name, arm, seed


def spec(paper: Paper, name: str, seed: int, runs: Path, more: list[str]) -> recipe.Recipe:
    """An arm's recipe. Raises UserError for a recipe that is not there, or cannot be changed so."""
    arm: Arm = paper.arms[name]
    changes = []
    for change in [*paper.set, *arm.set, *more]:
        for other in paper.arms:
            change = change.replace(f"{{run:{other}}}", str(runs / paper.paper / slug(other, seed)))
        changes.append(change.replace("{seed}", str(seed)))
    return recipe.read(arm.recipe, [*changes, f"seed={seed}", f"name={slug(name, seed)}"])


def measured(run: runs_.Run, suites: list[str], data: Path | None, folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(what every suite says, what every test pair got and should have got: `suite/task/found`, `suite/task/gold`)."""
    numbers: dict[str, Any] = {}
    items: dict[str, np.ndarray] = {}
    encode = _encoder(run) if suites != ["task"] else None
    for name in suites:
        suite, answer = _classifier(run, data, folder) if name == "task" else (scoring.suite(name, data), encode)
        assert answer is not None
        numbers[name] = scoring.evaluate(suite, answer)
        each = EACH.get(suite.kind)
        for task, (found, gold) in (each(suite, answer) if each else {}).items():
            items[f"{name}/{task}/found"] = found.astype(np.float32)
            if gold is not None:
                items[f"{name}/{task}/gold"] = gold.astype(np.float32)
    return numbers, items


WHOLE: dict[tuple[str, ...], np.ndarray] = {}  # a teacher's own vectors of a suite's texts, which all its reductions begin with


def _encoder(run: runs_.Run) -> scoring.Encode:
    """Texts -> (n, d), each list of texts once; a reduced teacher's own vectors once for all arms of the queue."""
    student, words = run.student(), run.tokenizer()
    reduced = student if isinstance(student, Output) and run.recipe.student.kind == "teacher" else None
    known: dict[tuple[str, ...], np.ndarray] = {} if reduced is None else WHOLE
    of = () if reduced is None else (run.recipe.teacher.model_dump_json(),)

    def encode(texts: list[str]) -> np.ndarray:
        key = (*of, *texts)
        if key not in known:
            module = student if reduced is None else reduced.inner
            known[key] = prepare.encode(module, words, [run.prompt + text for text in texts], run.max_tokens)
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
    right = {name: np.array(classify(task.items).labels) == np.array(task.rows.labels) for name, task in suite.tasks.items()}
    return {name: (each, None) for name, each in right.items()}


EACH: dict[str, Callable[[Any, Any], dict[str, tuple[np.ndarray, np.ndarray | None]]]] = {
    "sts": _sts,
    "retrieval": _retrieval,
    "task": _task,
}


def _classifier(run: runs_.Run, data: Path | None, folder: Path) -> tuple[Any, Any]:
    """A fine-tuned run as a bundle of labels, and the suite of its own task."""
    from edgedistill.export import bundle_writer
    from edgedistill.runtime import bundle

    asked = getattr(scoring, "task_suite", None)
    if asked is None:
        raise UserError("suite task: this version of edgedistill does not fine-tune; leave the paper out with --only")
    out = folder / "bundle"
    bundle_writer.export(run.folder, ["fp32"], out, lambda line: None)
    opened: Any = bundle.load(out, "fp32")
    return asked(opened.manifest, "", data), opened.classify


def report(paper: Paper, name: str, seed: int, run: runs_.Run, suites: list[str], data: Path | None, out: Path) -> None:
    """Measure a run; write its report, numbers in JSON and test pairs in npz."""
    with TemporaryDirectory() as folder:
        numbers, items = measured(run, suites, data, Path(folder))
    lines = run.folder / "metrics.jsonl"
    curve = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()] if lines.exists() else []
    first = run.recipe.stages[0].name if run.recipe.stages else None
    told = {
        "schema": 1,
        "bench": "reproduction",
        "paper": paper.paper,
        "arm": name,
        "recipe": paper.arms[name].recipe,
        "seed": seed,
        "teacher": run.recipe.teacher.name,
        "passes": sum(stage["texts"] for stage in run.info["stages"]),
        "selected": run.info["selected"],
        "curve": {str(each["step"]): each["dev"] for each in curve if each.get("stage") == first and "dev" in each},
        "suites": numbers,
        **{key: run.info[key] for key in ("seconds", "parameters", "dims", "corpus", "made_at", "versions", "platform")},
    }
    with files.new_file(out.with_suffix(".npz")) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **items)  # type: ignore[arg-type]
    files.write_json(out, told)


def one(paper: Paper, name: str, seed: int, runs: Path, reports: Path, data: Path | None, device: str, more: list[str], say: Say) -> str:
    """Train and measure an arm's run where that has not been done: `kept` or `done`. Raises UserError where it cannot be."""
    title = slug(name, seed)
    out, folder = reports / paper.paper / f"{title}.json", runs / paper.paper / title
    suites = paper.arms[name].suites or paper.suites
    if out.exists() and set(suites) <= files.read_json(out)["suites"].keys():
        return "kept"
    made = spec(paper, name, seed, runs, more)
    if not folder.exists():
        training.train(made, folder, Session(data=data, device=device, log=say), runs_.partial(folder).exists())
    out.parent.mkdir(parents=True, exist_ok=True)
    report(paper, name, seed, runs_.open_run(folder), suites, data, out)
    return "done"


def work(
    found: dict[str, Paper],
    seeds: int,
    minutes: float | None,
    runs: Path,
    reports: Path,
    data: Path | None,
    device: str,
    more: list[str],
    say: Say,
) -> dict[str, list[str]]:
    """Go through the queue: {kept, done, failed, left}, each a list of paper/run. What fails is told, and the others still run."""
    result: dict[str, list[str]] = {"kept": [], "done": [], "failed": [], "left": []}
    started = time.perf_counter()
    for name, arm, seed in queue(found, seeds):
        title = f"{name}/{slug(arm, seed)}"
        if minutes is not None and time.perf_counter() - started > 60 * minutes:
            result["left"].append(title)
            continue
        try:
            how = one(found[name], arm, seed, runs, reports, data, device, more, say)
        except UserError as error:
            how = "failed"
            say(f"{title}: {error}")
        result[how].append(title)
        if how == "done":
            say(f"{title}: done")
    return result


@app.command(epilog="Example: python bench/reproduction/run.py --only distilcse --seeds 3 --minutes 120 --data ~/texts")
def main(
    only: Annotated[list[str] | None, typer.Option("--only", metavar="PAPER", help="Repeatable. Default: all of them.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of every arm, seeds 0, 1, …")] = 3,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Start no run after this long; one that has begun is finished.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", envvar="EDGEDISTILL_DATA", help="Folder that data paths start from.")] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where runs are kept.")] = Path("runs/reproduction"),
    reports: Annotated[Path, typer.Option("--reports", help="Where reports are written.")] = FOLDER / "reports",
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="K=V", help="Change every recipe. Repeatable.")] = None,
    folder: Annotated[Path, typer.Option("--papers", help="Folder of the papers' files.")] = FOLDER,
) -> None:
    """Train and measure what the papers' orderings ask for; finished runs are kept, killed ones resumed."""
    try:
        result = work(chosen(only, folder), seeds, minutes, runs, reports, data, device, changes or [], typer.echo)
    except UserError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(", ".join(f"{len(titles)} {how}" for how, titles in result.items()))
    if result["failed"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
