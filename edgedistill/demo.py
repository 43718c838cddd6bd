"""The whole pipeline in six minutes: two students of the packaged teacher are trained, exported
and measured."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgedistill import recipe, resolve
from edgedistill.evaluation import bench, speed
from edgedistill.export import bundle_writer
from edgedistill.planning import cost
from edgedistill.precisions import DEFAULT
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
NEXT = """
With your own texts:
  edgedistill search {1}/bundles/{0} FOLDER "a question"
  edgedistill adapt nano --texts FOLDER --out bundles/mine   a student that ships learns them, without labels
  edgedistill recipes starter > mine.yaml                    a recipe to begin a student of your own with
  edgedistill serve nano                                     or embed; README.md has browsers and phones"""


def demo(
    out: Path,
    session: Session,
    recipes: Sequence[str | Path] = RECIPES,
    plan: speed.MeasurementPlan = PLAN,
) -> dict[str, Any]:
    """Train the students of the recipes, export them, and measure them together with the teacher.

    All of it may take about MINUTES: a slow machine trains on fewer texts, and measures latencies
    in one round.

    `out` is the folder for runs, bundles, report.html and reports.json. Earlier runs and bundles of the same
    names are replaced, nothing else is changed. Returns {seconds, runs{}, reports, html, json}.
    """
    started = time.perf_counter()
    training = replace(session, data=None, device="auto", progress=sys.stderr.isatty())
    specs, is_whole = shortened(recipes, started + 60 * MINUTES, training)
    plan = plan if is_whole else replace(plan, rounds=1)
    _clear(out, [spec.name for spec in specs])
    runs = {spec.name: train.train(spec, out / "runs" / spec.name, training) for spec in specs}
    for name in runs:
        session.log(f"\n{name}: exporting {', '.join(DEFAULT)}")
        bundle_writer.export(out / "runs" / name, DEFAULT, out / "bundles" / name, session.log)
    session.log(f"\nmeasuring {len(runs) * len(DEFAULT)} graphs, each in its own process")
    outputs = bench.Outputs(out / "reports.json", out / "report.html")
    targets = [f"{out / 'bundles' / name}:*" for name in runs]
    found = bench.bench(targets, [bench.DEFAULT_SUITE], replace(session, device="cpu"), outputs, plan)
    seconds = round(time.perf_counter() - started, 1)
    session.log(
        f"\n{outputs.html} has the table and the plots, {outputs.json} the raw samples. "
        f"{cost.duration(seconds)} in total.\n{NEXT.format(specs[-1].name, out)}"
    )
    files = {"html": str(outputs.html), "json": str(outputs.json)}
    return {"seconds": seconds, "runs": runs, **found, **files}


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


def _clear(out: Path, names: list[str]) -> None:
    """Delete the runs, bundles and reports of an earlier demo, finished or not."""
    for name in names:
        for folder in (out / "runs" / name, out / "bundles" / name):
            for each in (folder, resolve.unfinished_run(folder)):
                shutil.rmtree(each, ignore_errors=True)
    for file in (out / "report.html", out / "reports.json"):
        file.unlink(missing_ok=True)
