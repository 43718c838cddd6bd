"""The line of a fit: check the request, plan, race, choose the winner, write it as a recipe, a bundle and
pages. The best candidate that passes every check wins.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from edgedistill import files, recipe, resolve, run
from edgedistill.errors import CheckFailed, UserError
from edgedistill.evaluation import scoring
from edgedistill.export import bundle_writer, model_source
from edgedistill.fitting import plan, race, record, search, texts
from edgedistill.fitting.pace import PACE, Pace
from edgedistill.fitting.plan import Fit
from edgedistill.fitting.record import Candidate, FitRequest, State
from edgedistill.fitting.score import by_roles, encoder
from edgedistill.planning.cost import graph_medians_ms, medians_ms
from edgedistill.runtime import bundle, verify
from edgedistill.session import Session
from edgedistill.teacher.encoder import flush_denormals
from edgedistill.training.initial_student.prepared_student import PreparedStudent

NAME = "mine"
ATTEMPTS = 4  # to measure a p50 within the budget


def fit(
    request: FitRequest, out: Path, session: Session, resume: bool = False, pace: Pace = PACE
) -> dict[str, Any]:
    """Find the best student that keeps to the budget. Returns the content of fit.json.

    `out` is the fit's folder. With `resume`, a fit that was interrupted goes on, or one that is finished with
    more minutes. Raises UserError for what the request lacks, a budget that nothing meets, minutes too few, a
    folder of another fit, a full disk; CheckFailed where no finalist passes its checks.
    """
    started = time.monotonic()
    request = replace(request, data=request.data or Path())
    session = replace(session, data=request.data)
    _check_request(request)
    _check_folder(out, resume)
    new = record.read(out) is None
    with files.full_disk_as_user_error(out), files.held(out, "works on this fit"):
        try:
            return _find(request, out, session, pace, started)
        except UserError:
            if new and not (out / record.TRIALS).exists():  # other settings can be given
                shutil.rmtree(out)
            raise


def _check_request(request: FitRequest) -> None:
    """Raise UserError for what can be seen before anything is read or opened."""
    texts.section(request.texts, request.column, request.data)
    scoring.suite(request.suite, request.data)
    if not resolve.is_run(request.teacher.model):
        try:
            folder = resolve.teacher_files(request.teacher, "--teacher")
        except UserError as error:
            named = "\n".join(error.problems).replace("--teacher.model", "--teacher")
            raise UserError(named.replace("set --teacher.", "give --")) from None
        model_source.check_encoder(folder, str(request.teacher.model), request.teacher.pooling, "teach")


def _check_folder(out: Path, resume: bool) -> None:
    """Raise UserError for a folder that is not a fit's, and for an unfinished one, unless it is to be
    resumed.
    """
    if (out / record.STATE).exists():
        if record.result(out) is None and not resume:
            raise UserError(f"{out}: an unfinished fit; continue it with --resume, or delete it")
        return
    if resume:
        raise UserError(f"{out}: nothing to resume; leave --resume out")
    if out.exists() and not (out.is_dir() and {each.name for each in out.iterdir()} <= {files.LOCK}):
        files.check_free(out, mark=record.STATE, what="a fit")


def _find(request: FitRequest, out: Path, session: Session, pace: Pace, started: float) -> dict[str, Any]:
    """Plan, race and choose, from where an earlier process came. Writes fit.json and the page."""
    if session.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu")
    gpu = session.device in ("auto", "cuda") and torch.cuda.is_available()
    settings = request.settings()
    state = record.read(out) or State(settings)
    minutes = max(state.settings["minutes"], request.minutes)  # only these may grow
    if fact := files.difference({**state.settings, "minutes": minutes}, settings):
        raise UserError(f"{out}: a fit with other settings ({fact}); give another --out, or delete it")
    done, more = record.result(out), state.settings != settings
    if done is not None and not more:
        session.log(f"{out}: finished already")
        return done
    if more and state.schedule is not None and state.schedule.enough:
        session.log(f"{out}: its minutes were too few to learn in; planning and racing again")
        record.empty(out)
        state = State(settings)
    flush_denormals()
    at_work = Fit(request, out, state, replace(session, device="cuda" if gpu else "cpu"), pace)
    at_work.record(settings=settings)
    plan.make(at_work, started)
    race.run_race(at_work)
    chosen = time.monotonic()
    won = choose(at_work)
    searched = search.compared(at_work.queries, _encoders(at_work, won), "after", session)
    done = {
        "winner": won,
        "search": searched,
        **record.PLACES,
        "budget": asdict(request.budget),
        "schedule": asdict(at_work.schedule),
        "texts": state.texts,
        "candidates": record.standings(state.candidates),
        "not_raced": record.not_raced(state, request.budget),
        "seconds": round(race.spent_seconds(at_work) + time.monotonic() - chosen, 1),
    }
    at_work.write_page(won)
    files.write_json(out / record.RESULT, done)
    return record.result(out) or done


# ---- the winner


def choose(at_work: Fit) -> dict[str, Any]:
    """Export the finalists, the best first, until one passes: parity, size, `verify`, p50. Returns the entry
    `winner` of fit.json.

    Raises UserError where no candidate was trained to the end, CheckFailed where none passes.
    """
    finalists = at_work.state.finalists
    if not finalists:
        fell = "; ".join(f"{each.name} {each.fell}" for each in at_work.state.candidates)
        raise UserError(f"{at_work.folder}: no candidate was trained to the end: {fell}")
    problems = list[str]()
    for finalist in finalists:
        named = {**finalist.recipe, "name": NAME}
        _write_recipe(at_work, finalist, named)
        with files.new_folder(at_work.folder / record.RUN) as folder:
            shutil.copytree(at_work.folder / record.TRIALS / finalist.name, folder, dirs_exist_ok=True)
            files.write_text(folder / "recipe.yaml", recipe.dump(recipe.parse(named, record.RECIPE)))
        fits = finalist.cost.fitting(at_work.request.budget)
        for precision in dict.fromkeys([finalist.precision, *fits]):  # first the one that raced
            try:
                return _certified(at_work, finalist, precision)
            except CheckFailed as error:
                problems.append(f"{finalist.name} in {precision}: {error}")
                at_work.session.log(problems[-1])
    failed = "\n".join([f"{at_work.folder}: no finalist passed its checks", *problems])
    raise CheckFailed(failed, {"problems": problems})


def _write_recipe(at_work: Fit, finalist: Candidate, named: dict[str, Any]) -> None:
    """Write mine.yaml: the candidate's own recipe, and how it came about."""
    head = (
        f"# Found by edgedistill fit: {finalist.name} in {finalist.precision}, the best of "
        f"{len(at_work.state.candidates)} candidates of at most {at_work.request.budget}.\n"
        f"# The same bytes again, on this machine: OMP_NUM_THREADS={torch.get_num_threads()} edgedistill "
        f"train {record.RECIPE} --data {at_work.request.data}\n"
    )
    body = yaml.safe_dump(named, sort_keys=False, default_flow_style=None)
    files.write_text(at_work.folder / record.RECIPE, head + body)


def _certified(at_work: Fit, finalist: Candidate, precision: str) -> dict[str, Any]:
    """Export, check and measure a finalist in a precision. Raises CheckFailed with the numbers where it does
    not pass.
    """
    budget, folder = at_work.request.budget, at_work.folder / record.BUNDLE
    bundle_writer.export(at_work.folder / record.RUN, [precision], folder, at_work.session.log)
    verify.verify(str(folder))
    opened = bundle.load(folder, precision=precision, threads=1)
    graph_bytes = opened.graph_file.stat().st_size
    size = graph_bytes + (folder / "tokenizer.json").stat().st_size
    if budget.excess(size, 0) > 0:
        raise CheckFailed(f"{size / 1e6:.3f} MB with tokenizer.json, the budget is {budget.max_mb:g}")
    ids = [row.tolist() for row in opened.tokenize(at_work.timed_texts)]
    p50 = math.inf
    for _ in range(ATTEMPTS):  # where it is over the budget, other work on the machine may be why
        if budget.excess(0, p50) > 0:
            tokenizing = min(medians_ms(lambda text: opened.tokenize([text]), at_work.timed_texts))
            p50 = min(p50, min(graph_medians_ms(opened.graph_file.read_bytes(), ids, threads=1)) + tokenizing)
    if budget.excess(0, p50) > 0:
        raise CheckFailed(f"p50 {p50:.3f} ms, the budget is {budget.max_p50_ms:g}")
    suite, teacher = scoring.suite(at_work.request.suite, at_work.request.data), at_work.teacher
    whole, kept = (
        scoring.evaluate(suite, each)["average"] for each in (by_roles(teacher, at_work.session), opened)
    )
    return {
        "candidate": finalist.name,
        "precision": precision,
        "size_mb": size / 1e6,
        "graph_mb": graph_bytes / 1e6,
        "p50_ms": p50,
        "score": at_work.judge.score(opened),
        "suite": suite.name,
        "kept": round(kept / whole, 5) if whole else None,
        "steps": finalist.steps,
    }


def _encoders(at_work: Fit, won: dict[str, Any]) -> dict[str, scoring.Encoder]:
    """What search is measured of: the teacher, the best shipped student as it is, if one was scored, and the
    winner."""
    found = {"teacher": by_roles(at_work.teacher, at_work.session)}
    for best in [each for each in at_work.state.finalists if not each.is_trained][:1]:
        student = PreparedStudent.of(run.open_run(at_work.folder / record.TRIALS / best.name))
        found["before"] = encoder(student, best.precision)
    opened = bundle.load(at_work.folder / record.BUNDLE, precision=won["precision"])
    return {**found, "after": scoring.Encoder.of(opened)}


def summary(done: dict[str, Any]) -> str:
    """The result in a few lines."""
    won, enough = done["winner"], done["schedule"]["enough"]
    lines = [
        f"{won['candidate']} in {won['precision']}: {won['size_mb']:.2f} MB with tokenizer.json (graph "
        f"{won['graph_mb']:.2f}), p50 {won['p50_ms']:.3f} ms",
        f"agreement with the teacher {won['score']['agreement']:.3f}",
        f"{done['bundle']}  the bundle",
        f"{done['recipe']}  its recipe: edgedistill train {done['recipe']}",
        f"{done['page']}  all {len(done['candidates'])} candidates, and why the others lost",
    ]
    for title, values in search.lines(done["search"]):
        lines.append(f"{title}: " + ", ".join(f"{name} {100 * each:.1f}" for name, each in values.items()))
    if won["kept"] is not None:
        lines[1] += f", keeps {won['kept']:.1%} of its teacher's score on {won['suite']}"
    if enough is not None:
        fact = "weak: its minutes were too few to learn in"
        lines.append(f"{fact}; it is planned and raced again with --resume --minutes {enough}")
    return "\n".join(lines)


def teacher(model: str, revision: str | None, pooling: str | None) -> recipe.Teacher:
    """The teacher of a command's options. Raises UserError where they do not fit together."""
    given = {"model": model, "revision": revision, "pooling": pooling}
    whole = {"name": "fit", "teacher": given, "student": {"kind": "teacher"}}
    return recipe.parse(whole, "--teacher").teacher
