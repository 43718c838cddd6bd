"""The end of a fit: the best candidate that passes every check becomes a recipe, a run, a bundle and a
report.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from edgedistill import files, recipe
from edgedistill.errors import CheckFailed, UserError
from edgedistill.evaluation import bench, report
from edgedistill.export import bundle_writer, model_source
from edgedistill.fitting import latency, record
from edgedistill.fitting.agreement_score import Judge
from edgedistill.fitting.plan import SUITE, Fit
from edgedistill.fitting.race import TRIALS
from edgedistill.fitting.record import RECIPE
from edgedistill.fitting.student_cost import Cost
from edgedistill.runtime import bundle, verify
from edgedistill.session import Session

NAME = "mine"
ATTEMPTS = 3  # to measure a p50 within the budget
BUNDLE, RUN, TEACHER, REPORT, PAGE = "bundle", "run", "teacher", "bench.json", "bench.html"


def choose(fit: Fit) -> dict[str, Any]:
    """Export the finalists, the best first, until one passes: parity, size, `verify`, p50. Returns the entry
    `winner` of fit.json.

    Raises UserError where no candidate was trained to the end, CheckFailed where none passes.
    """
    finalists = record.finalists(fit.study)
    if not finalists:
        known = (trial.user_attrs for trial in record.candidates(fit.study))
        fell = "; ".join(dict.fromkeys(f"{each['name']} {each['fell']}" for each in known))
        raise UserError(f"{fit.folder}: no candidate was trained to the end: {fell}")
    judge, problems = fit.judge(), list[str]()
    for finalist in finalists:
        _write_recipe(fit, finalist.user_attrs)
        _copy_run(fit, finalist.user_attrs)
        for precision in _precisions(fit, finalist.user_attrs):
            try:
                return _certified(fit, finalist.user_attrs, precision, judge)
            except CheckFailed as error:
                problems.append(f"{finalist.user_attrs['name']} in {precision}: {error}")
                fit.session.log(problems[-1])
    raise CheckFailed(
        f"{fit.folder}: no finalist passed its checks\n" + "\n".join(problems), {"problems": problems}
    )


def _precisions(fit: Fit, finalist: dict[str, Any]) -> list[str]:
    """The precisions that keep to the budget: the one that raced, then the others in their order."""
    others = [
        each for each in Cost(**finalist["cost"]).fitting(fit.request.budget) if each != finalist["precision"]
    ]
    return [finalist["precision"], *others]


def _write_recipe(fit: Fit, finalist: dict[str, Any]) -> None:
    """Write mine.yaml: the candidate's own recipe, and how it came about."""
    score, count = finalist["scores"][-1], len(record.candidates(fit.study))
    data = f" --data {fit.request.data}" if fit.request.data is not None else ""
    parts = (
        f"nearest neighbours in common {score['neighbours']:.4f}, rank correlation of cosines "
        f"{score['cosines']:.4f}"
    )
    head = [
        f"# Found by edgedistill fit: the best of {count} candidates of at most {fit.request.budget} "
        f"({finalist['name']}).",
        f"# Agreement with the teacher on held-out texts in {finalist['precision']}: "
        f"{score['agreement']:.4f} ({parts}).",
        f"# The same bytes again, on this machine: OMP_NUM_THREADS={torch.get_num_threads()} edgedistill "
        f"train {RECIPE}{data}",
    ]
    body = yaml.safe_dump(_named(finalist), sort_keys=False, default_flow_style=None)
    files.write_text(fit.folder / RECIPE, "\n".join(head) + "\n" + body)


def _named(finalist: dict[str, Any]) -> dict[str, Any]:
    return {**finalist["recipe"], "name": NAME}


def _copy_run(fit: Fit, finalist: dict[str, Any]) -> None:
    """Copy the candidate's run to the winner's name."""
    with files.new_folder(fit.folder / RUN) as folder:
        shutil.copytree(fit.folder / TRIALS / finalist["name"], folder, dirs_exist_ok=True)
        spec = recipe.parse(_named(finalist), RECIPE)
        (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")


def _certified(fit: Fit, finalist: dict[str, Any], precision: str, judge: Judge) -> dict[str, Any]:
    """Export, check and measure a finalist in a precision. Raises CheckFailed with the numbers where it does
    not pass.
    """
    budget, folder = fit.request.budget, fit.folder / BUNDLE
    bundle_writer.export(fit.folder / RUN, [precision], folder, fit.session.log)
    verify.verify(str(folder))
    opened = bundle.load(folder, precision=precision, threads=1)
    graph = folder / opened.manifest["precisions"][precision]["file"]
    graph_bytes = graph.stat().st_size
    size = graph_bytes + (folder / "tokenizer.json").stat().st_size
    if budget.excess(size, 0) > 0:
        raise CheckFailed(f"{size / 1e6:.3f} MB with tokenizer.json, the budget is {budget.max_mb:g}")
    score, suite = judge.score(opened.encode), fit.request.suite or SUITE
    measured = _bench(fit, precision, suite)
    p50 = _p50(fit, graph, precision, measured)
    if budget.excess(0, p50) > 0:
        raise CheckFailed(f"p50 {p50:.3f} ms, the budget is {budget.max_p50_ms:g}")
    return {
        "candidate": finalist["name"],
        "precision": precision,
        "size_mb": size / 1e6,
        "graph_mb": graph_bytes / 1e6,
        "p50_ms": p50,
        "score": score.as_data(),
        "suite": suite,
        "kept": measured["kept"].get(suite),
        "steps": finalist["recipe"]["stages"][0]["steps"],
    }


def _bench(fit: Fit, precision: str, suite: str) -> report.Report:
    """The report of the bundle, measured beside its teacher; both are in bench.json and bench.html."""
    session = Session(data=fit.request.data, log=fit.session.log)
    targets = [
        *([f"{fit.folder / TEACHER}:fp32"] if _teacher_bundle(fit) else []),
        f"{fit.folder / BUNDLE}:{precision}",
    ]
    outputs = bench.Outputs(fit.folder / REPORT, fit.folder / PAGE)
    bench.bench(targets, [suite], replace(session, device="cpu"), 1, outputs, fit.pace.measurement)
    return report.read(outputs.json or Path())[-1]


def _teacher_bundle(fit: Fit) -> bool:
    """Whether the teacher's bundle is there; it is exported first. A teacher that has no graph is not
    measured.
    """
    folder, teacher = fit.folder / TEACHER, fit.request.teacher
    if (folder / "manifest.json").exists():
        return True
    assert teacher.model is not None
    try:
        source = model_source.Source(
            teacher.model, teacher.pooling, teacher.revision, fit.session.remote_code
        )
        bundle_writer.export(source, ["fp32"], folder, fit.session.log)
    except CheckFailed as error:
        fit.session.log(f"the teacher is not measured: {error}")
        return False
    return True


def _p50(fit: Fit, graph: Path, precision: str, measured: report.Report) -> float:
    """Milliseconds of a text in the runner of the target: what `bench` measured here; measured again where
    that is over the budget, as other work on the machine may be why.
    """
    budget = fit.request.budget
    found = least_p50(measured) if budget.target == "native" else math.inf
    for _ in range(ATTEMPTS):
        if budget.excess(0, found) > 0:
            found = min(found, _measured_p50(fit, graph, precision))
    return found


def least_p50(measured: report.Report) -> float:
    """Milliseconds: the least of the rounds' medians, as when the candidates were measured."""
    return min(float(np.median(samples)) for samples in measured["single"]["samples_ms"])


def _measured_p50(fit: Fit, graph: Path, precision: str) -> float:
    """Milliseconds of a text in the runner of the target, tokenization included, as of the candidates."""
    opened, timed = bundle.load(fit.folder / BUNDLE, precision=precision, threads=1), fit.timed_texts()
    tokenizing = latency.least_median(lambda text: opened.tokenize([text]), timed)
    ids = [row.tolist() for row in opened.tokenize(timed)]
    return latency.RUNNERS[fit.request.budget.target]([graph.read_bytes()], ids)[0] + tokenizing


def check_kept(winner: dict[str, Any], min_kept: float | None, result: dict[str, Any]) -> None:
    """Raise CheckFailed where the winner keeps less of its teacher's score than was asked for."""
    if min_kept is None:
        return
    kept = winner["kept"]
    if kept is None or kept < min_kept:
        found = "was not measured" if kept is None else f"is {kept:.4f}"
        fact = (
            f"{winner['candidate']} in {winner['precision']}: the share of the teacher's score kept on "
            f"{winner['suite']} {found}"
        )
        raise CheckFailed(
            f"{fact}, at least {min_kept:g} was asked for; give it more minutes, a larger budget or more "
            "texts",
            result,
        )
