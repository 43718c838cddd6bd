"""The whole pipeline in a quarter of an hour: two students of the packaged teacher are trained, exported,
measured and used for search."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import recipe, resolve
from edgedistill.data import corpus
from edgedistill.evaluation import bench, speed
from edgedistill.export import bundle_writer
from edgedistill.planning import training_time
from edgedistill.precisions import DEFAULT
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.training import stages, train
from edgedistill.training.open_recipe import open_recipe

RECIPES = (
    "demo-teacher",
    "demo-bilstm",
    "demo-bert2",
)  # the teacher first: the students are compared with it
PLAN = speed.MeasurementPlan(rounds=2, seconds=0.5)
MAX_SEARCHED_TEXTS = 20_000
QUESTIONS = (
    "How do I get the same random numbers every time?",
    "wait until another thread has finished its work",
    "undo the changes made to a database",
)


def demo(
    minutes: float,
    out: Path,
    session: Session,
    recipes: Sequence[str | Path] = RECIPES,
    plan: speed.MeasurementPlan = PLAN,
) -> dict[str, Any]:
    """Train the students of the recipes, export them, measure them together with the teacher, and search with
    the smallest.

    minutes: training time of all students together. out: folder for runs, bundles, report.html and
        reports.json; earlier runs and
    bundles of the same names are replaced, nothing else is changed. Returns {seconds{}, runs{}, reports,
    searches{}, html, json}.
    """
    clock = _Clock()
    names = [recipe.read(each).name for each in recipes]
    students = [name for name, each in zip(names, recipes, strict=True) if recipe.read(each).stages]
    _clear(out, names)
    runs = {}
    for name, source in zip(names, recipes, strict=True):
        changes = (
            _fit_to_time(source, 60 * minutes / max(1, len(students)), session) if name in students else []
        )
        clock.lap("read, probe")
        runs[name] = _train(recipe.read(source, changes), out / "runs" / name, session)
        clock.lap("embed, train")
    for name in names:
        session.log(f"\n{name}: exporting {', '.join(DEFAULT)}")
        bundle_writer.export(out / "runs" / name, DEFAULT, out / "bundles" / name, session.log)
    clock.lap("export")
    session.log(f"\nmeasuring {len(names) * len(DEFAULT)} graphs, each in its own process")
    outputs = bench.Outputs(out / "reports.json", out / "report.html")
    targets = [f"{out / 'bundles' / name}:*" for name in names]
    found = bench.bench(targets, ["mini"], replace(session, device="cpu"), None, outputs, plan)
    clock.lap("bench")
    searches = search(out / "bundles", found["reports"], students or names, recipe.read(recipes[0]), session)
    clock.lap("search")
    session.log(f"\n{outputs.html} has the table and the plots, {outputs.json} the raw samples. {clock}")
    return {
        "seconds": clock.laps,
        "runs": runs,
        **found,
        "searches": searches,
        "html": str(outputs.html),
        "json": str(outputs.json),
    }


def search(
    bundles: Path, reports: list[dict[str, Any]], names: list[str], spec: recipe.Recipe, session: Session
) -> dict[str, Any]:
    """Search the texts of a recipe's corpus for three questions with the smallest of the named bundles; log
    the results and the time."""
    own = [each for each in reports if each["bundle"]["name"] in names]
    smallest = min(own, key=lambda each: each["size_bytes"]["bundle"])
    name, precision = smallest["bundle"]["name"], smallest["bundle"]["precision"]
    texts = _texts_to_search(spec, session)
    opened = bundle.load(bundles / name, precision=precision)
    started = time.perf_counter()
    index = opened.encode(texts)
    seconds = time.perf_counter() - started
    size = smallest["size_bytes"]["graph"] / 1e6
    session.log(
        f"\nThe smallest, {name}:{precision} ({size:.1f} MB), searches {len(texts):,} sentences of "
        "documentation."
    )
    session.log(f"It embedded them in {seconds:.1f} s, {len(texts) / seconds:,.0f} texts/s.")
    searches = [_search(question, opened, index, texts) for question in QUESTIONS]
    for each in searches:
        session.log(f"\n  {each['question']}  [{each['ms']:.1f} ms]")
        for hit in each["found"]:
            session.log(f"    {hit['cosine']:.2f}  {_line(hit['text'])}")
    return {
        "bundle": name,
        "precision": precision,
        "texts": len(texts),
        "index_seconds": seconds,
        "asked": searches,
    }


def _search(
    question: str, opened: bundle.Bundle, index: np.ndarray, texts: list[str], best: int = 3
) -> dict[str, Any]:
    """The most similar texts, and the milliseconds that embedding the question and searching took."""
    started = time.perf_counter()
    cosines = index @ opened.encode([question])[0]
    nearest = np.argsort(-cosines, kind="stable")[:best]
    ms = 1000 * (time.perf_counter() - started)
    return {
        "question": question,
        "ms": ms,
        "found": [{"cosine": float(cosines[at]), "text": texts[at]} for at in nearest],
    }


def _texts_to_search(spec: recipe.Recipe, session: Session) -> list[str]:
    """At most MAX_SEARCHED_TEXTS texts of the corpus, evenly spaced."""
    assert spec.corpus is not None and not isinstance(spec.corpus, recipe.Parallel), (
        "the corpus is that of the teacher's recipe"
    )
    built = corpus.build(spec.corpus, replace(session, data=None), spec.seed)
    return built.texts(np.linspace(0, len(built) - 1, min(MAX_SEARCHED_TEXTS, len(built))).astype(int))


def _fit_to_time(source: str | Path, seconds: float, session: Session) -> list[str]:
    """Measure a recipe's training steps; return the change to it that limits its stage to so many seconds on
    this machine."""
    spec = recipe.read(source)
    session.log(f"\n{spec.name}: measuring the speed of this machine")
    session = replace(session, data=None, device="auto", progress=False)
    opened = open_recipe(spec, session)
    stage, rows = spec.distilling[0], opened.stages[0].rows
    most = stages.steps(stage, rows)
    steps = max(
        1, min(most, int(seconds / training_time.estimate_seconds(opened, [], session)["student"] * most))
    )
    session.log(
        f"{spec.name}: {steps:,} steps of {stage.batch} texts, {steps * stage.batch / rows:.1f} epochs"
    )
    return [f"stages.0.steps={steps}"]


def _train(spec: recipe.Recipe, folder: Path, session: Session) -> dict[str, Any]:
    return train.train(
        spec, folder, replace(session, data=None, device="auto", progress=sys.stderr.isatty()), resume=False
    )


def _clear(out: Path, names: list[str]) -> None:
    """Delete the runs, bundles and reports of an earlier demo, finished or not."""
    for name in names:
        for folder in (out / "runs" / name, out / "bundles" / name):
            for each in (folder, resolve.unfinished_run(folder)):
                shutil.rmtree(each, ignore_errors=True)
    for file in (out / "report.html", out / "reports.json"):
        file.unlink(missing_ok=True)


def _line(text: str, width: int = 100) -> str:
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


class _Clock:
    """The seconds spent on each part."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, what: str) -> None:
        now = time.perf_counter()
        self.laps[what] = round(self.laps.get(what, 0.0) + now - self.last, 1)
        self.last = now

    def __str__(self) -> str:
        total = sum(self.laps.values())
        parts = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in self.laps.items())
        return f"{int(total // 60)} min {int(total % 60)} s in total: {parts}."
