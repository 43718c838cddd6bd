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
from edgedistill.errors import UserError
from edgedistill.evaluation import bench, speed
from edgedistill.export import bundle_writer
from edgedistill.planning import cost, training_time
from edgedistill.precisions import DEFAULT
from edgedistill.session import Session
from edgedistill.training import cache_passes, train
from edgedistill.training.open_recipe import open_recipe

# The teacher comes first: the students are compared with it.
RECIPES = ("demo-teacher", "demo-bilstm", "demo-bert2")
PLAN = speed.MeasurementPlan(rounds=2, seconds=0.5)
LONGEST_S = 900.0  # of training a student: five times what two cores with nothing else to do take
NEXT = """
With texts of yours:
  edgedistill search "a question" FOLDER {1}/bundles/{0}
  edgedistill adapt nano --texts FOLDER --out bundles/mine
  edgedistill recipes starter > mine.yaml"""


def demo(
    out: Path,
    session: Session,
    recipes: Sequence[str | Path] = RECIPES,
    plan: speed.MeasurementPlan = PLAN,
) -> dict[str, Any]:
    """Train the students of the recipes, export them, and measure them together with the teacher.

    It takes about six minutes on two cores.

    `out` is the folder for runs, bundles, report.html and reports.json. Earlier runs and bundles of the same
    names are replaced, nothing else is changed. Returns {seconds, runs{}, reports, html, json}. Raises
    UserError, before it changes anything, where training the last student would take more than LONGEST_S.
    """
    started = time.perf_counter()
    training = replace(session, data=None, device="auto", progress=sys.stderr.isatty())
    specs = [recipe.read(name) for name in recipes]
    _check_time(specs[-1], training)
    for spec in specs:  # runs, finished or not, and bundles of an earlier demo
        run = out / "runs" / spec.name
        for folder in (run, resolve.unfinished_run(run), out / "bundles" / spec.name):
            shutil.rmtree(folder, ignore_errors=True)
    runs = {spec.name: train.train(spec, out / "runs" / spec.name, training) for spec in specs}
    for name in runs:
        session.log(f"\n{name}: exporting {', '.join(DEFAULT)}")
        bundle_writer.export(out / "runs" / name, DEFAULT, out / "bundles" / name, session.log)
    session.log(f"\nmeasuring {len(runs) * len(DEFAULT)} graphs, each in its own process")
    outputs = bench.Outputs(out / "reports.json", out / "report.html")
    targets = [f"{out / 'bundles' / name}:*" for name in runs]
    measured = bench.bench(targets, [bench.DEFAULT_SUITE], replace(session, device="cpu"), outputs, plan)
    seconds = round(time.perf_counter() - started, 1)
    session.log(
        f"\n{outputs.html} has the table and the plots, {outputs.json} the raw samples. "
        f"{cost.duration(seconds)} in total.\n{NEXT.format(specs[-1].name, out)}"
    )
    files = {"html": str(outputs.html), "json": str(outputs.json)}
    return {"seconds": seconds, "runs": runs, **measured, **files}


def _check_time(spec: recipe.Recipe, session: Session) -> None:
    opened = open_recipe(spec, session)
    passes = cache_passes.passes(opened, session)
    total = sum(training_time.estimate_seconds(opened, passes, session).values())
    if total > LONGEST_S:
        raise UserError(
            f"edgedistill demo: one student would take about {cost.duration(total)} on this machine (3 min "
            f"on two idle cores); wait until other work is done, or run edgedistill train {spec.name}"
        )
