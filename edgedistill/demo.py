"""The whole pipeline in six minutes: two students of the packaged teacher are trained, exported,
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
from edgedistill.planning import cost
from edgedistill.precisions import DEFAULT
from edgedistill.runtime import bundle, similarity
from edgedistill.session import Session, silent
from edgedistill.training import train

# The teacher comes first: the students are compared with it.
RECIPES = ("demo-teacher", "demo-bilstm", "demo-bert2")
PLAN = speed.MeasurementPlan(rounds=2, seconds=0.5)
MINUTES = 5.8  # for all of it but the start of Python
# Seconds for each of the teacher's pass and training on all texts, measured on one machine: of everything
# else, and of each round of its latencies. Another machine is slower or faster at all of them.
REST, ROUND = 0.75, 0.2
LEAST_TEXTS = 200  # that are trained on, however slow the machine is
MAX_SEARCHED_TEXTS = 20_000
SHOWN_LETTERS = 100  # of a text that was found
QUESTIONS = (
    "How do I get the same random numbers every time?",
    "wait until another thread has finished its work",
    "undo the changes made to a database",
)


NEXT = """
With your own texts:
  edgedistill adapt nano --texts FOLDER --out bundles/mine   a student that ships learns them, without labels
  edgedistill recipes starter > mine.yaml                    a recipe to begin a student of your own with
  edgedistill serve nano                                     or embed; README.md has browsers and phones"""


def demo(
    out: Path,
    session: Session,
    recipes: Sequence[str | Path] = RECIPES,
    plan: speed.MeasurementPlan = PLAN,
) -> dict[str, Any]:
    """Train the students of the recipes, export them, measure them together with the teacher, and search with
    the smallest.

    All of it may take about MINUTES: a slow machine trains on fewer texts, and measures latencies
    in one round.

    `out` is the folder for runs, bundles, report.html and reports.json. Earlier runs and bundles of the same
    names are replaced, nothing else is changed. Returns {seconds, runs{}, reports, searches{}, html, json}.
    """
    started = time.perf_counter()
    training = replace(session, data=None, device="auto", progress=sys.stderr.isatty())
    specs, is_whole = shortened(recipes, started + 60 * MINUTES, training)
    plan = plan if is_whole else replace(plan, rounds=1)
    students = [spec.name for spec in specs if spec.stages]
    _clear(out, [spec.name for spec in specs])
    runs = {spec.name: train.train(spec, out / "runs" / spec.name, training) for spec in specs}
    for name in runs:
        session.log(f"\n{name}: exporting {', '.join(DEFAULT)}")
        bundle_writer.export(out / "runs" / name, DEFAULT, out / "bundles" / name, session.log)
    session.log(f"\nmeasuring {len(runs) * len(DEFAULT)} graphs, each in its own process")
    outputs = bench.Outputs(out / "reports.json", out / "report.html")
    targets = [f"{out / 'bundles' / name}:*" for name in runs]
    found = bench.bench(targets, ["mini"], replace(session, device="cpu"), outputs, plan)
    own = [each for each in found["reports"] if each["bundle"]["name"] in students]
    smallest = min(own, key=lambda each: each["size_bytes"]["bundle"])
    searches = search(out / "bundles", smallest, specs[0], session)
    seconds = round(time.perf_counter() - started, 1)
    session.log(
        f"\n{outputs.html} has the table and the plots, {outputs.json} the raw samples. "
        f"{cost.duration(seconds)} in total.\n{NEXT}"
    )
    files = {"html": str(outputs.html), "json": str(outputs.json)}
    return {"seconds": seconds, "runs": runs, **found, "searches": searches, **files}


def shortened(
    recipes: Sequence[str | Path], end: float, session: Session
) -> tuple[list[recipe.Recipe], bool]:
    """The recipes, with so few of their texts that the demo ends at about `end`, of the clock perf_counter;
    and whether these are all."""
    specs = [recipe.read(each) for each in recipes]
    session.log("measuring how fast teacher and students are here")
    found = cost.costs([spec for spec in specs if spec.stages], replace(session, log=silent))
    seconds, texts = [each["estimated_seconds"] for each in found], found[0]["texts"]
    total = max(each["teacher"] for each in seconds) + sum(each["student"] for each in seconds)
    left = end - time.perf_counter()
    if total * (1 + REST) <= left:
        return specs, True
    share = min(1.0, left / total - REST + ROUND)
    count = max(LEAST_TEXTS, int(share * texts["train"]))
    fact = f"training on all {texts['train']:,} texts would take {cost.duration(total)} here"
    session.log(f"{fact}; {count:,} are trained on, and latencies measured in one round")
    return [recipe.read(each, [f"corpus.limit={texts['held_out'] + count}"]) for each in recipes], False


def search(bundles: Path, report: dict[str, Any], spec: recipe.Recipe, session: Session) -> dict[str, Any]:
    """Search the texts of a recipe's corpus for three questions with the bundle of a report, and log what is
    found."""
    name, precision = report["bundle"]["name"], report["bundle"]["precision"]
    assert spec.corpus is not None and not isinstance(spec.corpus, recipe.Parallel)
    built = corpus.build(spec.corpus, replace(session, data=None), spec.seed)
    rows = np.linspace(0, len(built) - 1, min(MAX_SEARCHED_TEXTS, len(built))).astype(int)
    texts, opened = built.texts(rows), bundle.load(bundles / name, precision=precision)
    session.log(f"\nThe smallest, {name}:{precision}, searches {len(texts):,} sentences of documentation.")
    asked = []
    found = similarity.search(opened.encode(QUESTIONS), opened.encode(texts), k=3)
    for question, nearest, cosines in zip(QUESTIONS, *found, strict=True):
        pairs = zip(cosines.tolist(), nearest.tolist(), strict=True)
        hits = [{"cosine": cosine, "text": texts[at]} for cosine, at in pairs]
        asked.append({"question": question, "found": hits})
        shown = (f"    {hit['cosine']:.2f}  {hit['text'][:SHOWN_LETTERS]}" for hit in hits)
        session.log("\n".join([f"\n  {question}", *shown]))
    return {"bundle": name, "precision": precision, "texts": len(texts), "asked": asked}


def _clear(out: Path, names: list[str]) -> None:
    """Delete the runs, bundles and reports of an earlier demo, finished or not."""
    for name in names:
        for folder in (out / "runs" / name, out / "bundles" / name):
            for each in (folder, resolve.unfinished_run(folder)):
                shutil.rmtree(each, ignore_errors=True)
    for file in (out / "report.html", out / "reports.json"):
        file.unlink(missing_ok=True)
