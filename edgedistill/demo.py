"""The whole line in a quarter of an hour: two students of the packaged teacher, bundled, measured, and put to work."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import recipe, run
from edgedistill.data import corpus
from edgedistill.evaluation import bench, speed
from edgedistill.export import bundle_writer
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.training import loop, train

RECIPES = ("demo-teacher", "demo-bilstm", "demo-bert2")  # the teacher first: the others are measured by it
PRECISIONS = ["fp32", "w8", "int8"]
PLAN = speed.Plan(rounds=2, seconds=0.5)
PROBE_STEPS, PROBE_EVERY = 30, 15  # the first half warms up, the second is timed
SEARCHED = 20_000  # texts at most
QUESTIONS = (
    "How do I get the same random numbers every time?",
    "wait until another thread has finished its work",
    "solve a system of linear equations",
)


def demo(minutes: float, out: Path, session: Session, recipes: Sequence[str | Path] = RECIPES, plan: speed.Plan = PLAN) -> dict[str, Any]:
    """Train the recipes' students for `minutes` in all, export and measure them beside the teacher, search with the smallest.

    Owns the runs and bundles of its recipes' names below `out`, and report.html and reports.json there; nothing else is touched.
    Returns {seconds{}, runs{}, reports, searches{}, html, json}.
    """
    clock = _Clock()
    names = [recipe.read(each).name for each in recipes]
    students = [name for name, each in zip(names, recipes, strict=True) if recipe.read(each).stages]
    _clear(out, names)
    runs = {}
    for name, source in zip(names, recipes, strict=True):
        changes = _fitted(source, 60 * minutes / max(1, len(students)), out, session) if name in students else []
        clock.lap("read, embed, probe")
        runs[name] = _train(recipe.read(source, changes), out / "runs" / name, session)
        clock.lap("train")
    for name in names:
        session.log(f"\n{name}: exporting {', '.join(PRECISIONS)}")
        bundle_writer.export(out / "runs" / name, PRECISIONS, out / "bundles" / name, session.log)
    clock.lap("export")
    session.log(f"\nmeasuring {len(names) * len(PRECISIONS)} graphs, each in a process of its own")
    paths = {"out": out / "reports.json", "html": out / "report.html"}
    found = bench.bench(
        [f"{out / 'bundles' / name}:*" for name in names], ["mini"], replace(session, data=None, device="cpu"), None, plan=plan, **paths
    )
    clock.lap("bench")
    searches = search(out / "bundles", found["reports"], students or names, recipe.read(recipes[0]), session)
    clock.lap("search")
    session.log(f"\n{paths['html']} has the table and the plots, {paths['out']} the raw samples. {clock}")
    return {"seconds": clock.laps, "runs": runs, **found, "searches": searches, "html": str(paths["html"]), "json": str(paths["out"])}


def search(bundles: Path, reports: list[dict[str, Any]], names: list[str], spec: recipe.Recipe, session: Session) -> dict[str, Any]:
    """Ask the texts of a recipe's corpus three questions, by the smallest of the named bundles; say what came back and how fast."""
    mine = [made for made in reports if made["bundle"]["name"] in names]
    smallest = min(mine, key=lambda made: made["size_bytes"]["bundle"])
    name, precision = smallest["bundle"]["name"], smallest["bundle"]["precision"]
    texts = _searched(spec, session)
    opened = bundle.load(bundles / name, precision=precision)
    started = time.perf_counter()
    index = opened.encode(texts)
    seconds = time.perf_counter() - started
    size = smallest["size_bytes"]["graph"] / 1e6
    session.log(f"\nThe smallest, {name}:{precision} ({size:.1f} MB), searches {len(texts):,} sentences of documentation,")
    session.log(f"which it read in {seconds:.1f} s, {len(texts) / seconds:,.0f} a second:")
    asked = [_ask(question, opened, index, texts) for question in QUESTIONS]
    for each in asked:
        session.log(f"\n  {each['question']}  [{each['ms']:.1f} ms]")
        for hit in each["found"]:
            session.log(f"    {hit['cosine']:.2f}  {_line(hit['text'])}")
    return {"bundle": name, "precision": precision, "texts": len(texts), "index_seconds": seconds, "asked": asked}


def _ask(question: str, opened: bundle.Bundle, index: np.ndarray, texts: list[str], best: int = 3) -> dict[str, Any]:
    """The nearest texts, and the milliseconds from the question as text to their numbers."""
    started = time.perf_counter()
    cosines = index @ opened.encode([question])[0]
    nearest = np.argsort(-cosines, kind="stable")[:best]
    ms = 1000 * (time.perf_counter() - started)
    return {"question": question, "ms": ms, "found": [{"cosine": float(cosines[at]), "text": texts[at]} for at in nearest]}


def _searched(spec: recipe.Recipe, session: Session) -> list[str]:
    """At most SEARCHED texts of the corpus, drawn evenly."""
    assert spec.corpus is not None and not isinstance(spec.corpus, recipe.Parallel), "the recipe of the teacher names the corpus"
    built = corpus.build(spec.corpus, replace(session, data=None), spec.seed)
    return built.texts(np.linspace(0, len(built) - 1, min(SEARCHED, len(built))).astype(int))


def _fitted(source: str | Path, seconds: float, out: Path, session: Session) -> list[str]:
    """The change to a recipe that makes its one stage last so many seconds here, found by a short trial; its epochs are the most."""
    stage = recipe.read(source).distilling[0]
    trial = recipe.read(source, [f"stages.0.steps={PROBE_STEPS}", f"select={{suite: mini, every: {PROBE_EVERY}}}"])
    folder = out / "runs" / f"{trial.name}.probe"
    session.log(f"\n{trial.name}: {PROBE_STEPS} steps to see how fast this machine is")
    info = _train(trial, folder, replace(session, log=lambda line: None if line.startswith(str(folder)) else session.log(line)))
    measured = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    shutil.rmtree(folder)
    rate = measured[-1]["texts_s"]
    most = loop.steps(stage, info["corpus"]["texts"] - info["corpus"]["held_out"])
    steps = max(1, min(most, int(seconds * rate / stage.batch)))
    passes = steps * stage.batch / (info["corpus"]["texts"] - info["corpus"]["held_out"])
    session.log(f"{trial.name}: {rate:,.0f} texts a second; {steps:,} steps of {stage.batch} texts, {passes:.1f} times through the corpus")
    return [f"stages.0.steps={steps}"]


def _train(spec: recipe.Recipe, folder: Path, session: Session) -> dict[str, Any]:
    return train.train(spec, folder, replace(session, data=None, device="auto", progress=sys.stderr.isatty()), resume=False)


def _clear(out: Path, names: list[str]) -> None:
    """Take away what an earlier demo made, finished or not."""
    for name in names:
        trial = out / "runs" / f"{name}.probe"
        for folder in (out / "runs" / name, out / "bundles" / name, trial):
            for each in (folder, run.partial(folder)):
                shutil.rmtree(each, ignore_errors=True)
    for file in (out / "report.html", out / "reports.json"):
        file.unlink(missing_ok=True)


def _line(text: str, width: int = 100) -> str:
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


class _Clock:
    """Seconds by what they were spent on."""

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
        return f"{int(total // 60)} min {int(total % 60)} s in all: {parts}."
