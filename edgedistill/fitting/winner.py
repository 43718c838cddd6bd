"""The end of a fit: the best candidate that passes every check becomes a recipe, a run, a bundle and a
report.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import yaml

from edgedistill import files, recipe
from edgedistill.errors import CheckFailed, UserError
from edgedistill.evaluation import bench, report
from edgedistill.export import bundle_writer
from edgedistill.fitting import record
from edgedistill.fitting.cost import Cost
from edgedistill.fitting.plan import SUITE, Fit
from edgedistill.fitting.race import TRIALS
from edgedistill.fitting.record import RECIPE
from edgedistill.planning.cost import graph_p50_ms, least_median_ms
from edgedistill.runtime import bundle, verify

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
    problems = list[str]()
    for finalist in (trial.user_attrs for trial in finalists):
        named = {**finalist["recipe"], "name": NAME}
        _write_recipe(fit, finalist, named)
        with files.new_folder(fit.folder / RUN) as folder:
            shutil.copytree(fit.folder / TRIALS / finalist["name"], folder, dirs_exist_ok=True)
            files.write_text(folder / "recipe.yaml", recipe.dump(recipe.parse(named, RECIPE)))
        fits = Cost(**finalist["cost"]).fitting(fit.request.budget)
        for precision in dict.fromkeys([finalist["precision"], *fits]):  # first the one that raced
            try:
                return _certified(fit, finalist, precision)
            except CheckFailed as error:
                problems.append(f"{finalist['name']} in {precision}: {error}")
                fit.session.log(problems[-1])
    failed = "\n".join([f"{fit.folder}: no finalist passed its checks", *problems])
    raise CheckFailed(failed, {"problems": problems})


def _write_recipe(fit: Fit, finalist: dict[str, Any], named: dict[str, Any]) -> None:
    """Write mine.yaml: the candidate's own recipe, and how it came about."""
    score, count = finalist["scores"][-1], len(record.candidates(fit.study))
    data = f" --data {fit.request.data}" if fit.request.data is not None else ""
    head = (
        f"# Found by edgedistill fit: the best of {count} candidates of at most {fit.request.budget} "
        f"({finalist['name']}).\n"
        f"# Agreement with the teacher on held-out texts in {finalist['precision']}: "
        f"{score['agreement']:.4f} (nearest neighbours in common {score['neighbours']:.4f}, rank correlation "
        f"of cosines {score['cosines']:.4f}).\n"
        f"# The same bytes again, on this machine: OMP_NUM_THREADS={torch.get_num_threads()} edgedistill "
        f"train {RECIPE}{data}\n"
    )
    body = yaml.safe_dump(named, sort_keys=False, default_flow_style=None)
    files.write_text(fit.folder / RECIPE, head + body)


def _certified(fit: Fit, finalist: dict[str, Any], precision: str) -> dict[str, Any]:
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
    score, suite = fit.judge.score(opened.encode), fit.request.suite or SUITE
    measured = _bench(fit, precision, suite)
    p50 = least_p50(measured)
    for _ in range(ATTEMPTS):  # where it is over the budget, other work on the machine may be why
        if budget.excess(0, p50) > 0:
            ids = [row.tolist() for row in opened.tokenize(fit.timed_texts)]
            tokenizing = least_median_ms(lambda text: opened.tokenize([text]), fit.timed_texts)
            p50 = min(p50, graph_p50_ms(graph.read_bytes(), ids, threads=1) + tokenizing)
    if budget.excess(0, p50) > 0:
        raise CheckFailed(f"p50 {p50:.3f} ms, the budget is {budget.max_p50_ms:g}")
    return {
        "candidate": finalist["name"],
        "precision": precision,
        "size_mb": size / 1e6,
        "graph_mb": graph_bytes / 1e6,
        "p50_ms": p50,
        "score": score,
        "suite": suite,
        "kept": measured["kept"].get(suite),
        "steps": finalist["recipe"]["stages"][0]["steps"],
    }


def _bench(fit: Fit, precision: str, suite: str) -> report.Report:
    """The report of the bundle, measured beside its teacher; both are in bench.json and bench.html.

    The teacher's bundle is exported first, if it is not there yet. A teacher that has no graph is not
    measured.
    """
    targets, folder, teacher = (
        [f"{fit.folder / BUNDLE}:{precision}"],
        fit.folder / TEACHER,
        fit.request.teacher,
    )
    try:
        if not (folder / "manifest.json").exists():
            options = (teacher.pooling, teacher.revision, fit.session.remote_code)
            bundle_writer.export(str(teacher.model), ["fp32"], folder, fit.session.log, *options)
        targets = [f"{folder}:fp32", *targets]
    except CheckFailed as error:
        fit.session.log(f"the teacher is not measured: {error}")
    written = fit.folder / REPORT
    session = replace(fit.session, data=fit.request.data, device="cpu")
    outputs = bench.Outputs(written, fit.folder / PAGE)
    bench.bench(targets, [suite], session, 1, outputs, fit.pace.measurement)
    return report.read(written)[-1]


def least_p50(measured: report.Report) -> float:
    """Milliseconds: the least of the rounds' medians, as when the candidates were measured."""
    return min(float(np.median(samples)) for samples in measured["single"]["samples_ms"])


def check_kept(winner: dict[str, Any], min_kept: float | None, result: dict[str, Any]) -> None:
    """Raise CheckFailed where the winner keeps less of its teacher's score than was asked for."""
    kept = winner["kept"]
    if min_kept is None or (kept is not None and kept >= min_kept):
        return
    found = "was not measured" if kept is None else f"is {kept:.4f}"
    share = f"the share of the teacher's score kept on {winner['suite']} {found}"
    way_out = "give it more minutes, a larger budget or more texts"
    fact = f"{winner['candidate']} in {winner['precision']}: {share}, at least {min_kept:g} was asked for"
    raise CheckFailed(f"{fact}; {way_out}", result)
