"""The line of a fit: check the request, plan, train the few best shapes for equal minutes, train the best of
them for the rest, choose the best state that was ever measured, and write it as a recipe and a bundle.

A start, a shipped student untrained, is one of these states: what did not beat it is not exported.
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

from edgedistill import files, recipe, resolve
from edgedistill.errors import CheckFailed, UserError
from edgedistill.export import bundle_writer, model_source
from edgedistill.fitting import judge, plan, record, texts
from edgedistill.fitting.plan import Fit
from edgedistill.fitting.record import Candidate, FitRequest, State
from edgedistill.fitting.shapes import Shape
from edgedistill.planning.cost import graph_medians_ms, medians_ms
from edgedistill.runtime import bundle, verify
from edgedistill.session import Session
from edgedistill.teacher.encoder import flush_denormals

NAME = "mine"
ATTEMPTS = 4  # to measure a p50 within the budget
FIRST_SHARE = 0.45  # of the time for training: for the first measurement of each candidate
STEPS_SHARE = 4  # of `steps`, one such part for each of them
LONGER = "-longer"  # the name of the best candidate's second, longer training


def fit(request: FitRequest, out: Path, session: Session, resume: bool = False) -> dict[str, Any]:
    """Find the best student that keeps to the budget. Returns the content of fit.json.

    `out` is the fit's folder. With `resume`, a fit that was interrupted goes on. Raises UserError for what
    the request lacks, a budget that nothing meets, minutes too few, a folder of another fit, a full disk;
    CheckFailed where no candidate passes its checks.
    """
    started = time.monotonic()
    request = replace(request, data=request.data or Path())
    session = replace(session, data=request.data)
    _check_request(request)
    _check_folder(out, resume)
    new = record.read(out) is None
    with files.full_disk_as_user_error(out), files.held(out, "works on this fit"):
        try:
            return _find(request, out, session, started)
        except UserError:
            if new and not (out / record.TRIALS).exists():  # other settings can be given
                shutil.rmtree(out)
            raise


def _check_request(request: FitRequest) -> None:
    """Raise UserError for what can be seen before anything is read or opened."""
    texts.section(request.texts, request.column, request.data)
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


def _find(request: FitRequest, out: Path, session: Session, started: float) -> dict[str, Any]:
    """Plan, train and choose, from where an earlier process came. Writes fit.json."""
    if session.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu")
    gpu = session.device in ("auto", "cuda") and torch.cuda.is_available()
    settings = request.settings()
    state = record.read(out) or State(settings)
    if fact := files.difference(state.settings, settings):
        raise UserError(f"{out}: a fit with other settings ({fact}); give another --out, or delete it")
    if (done := record.result(out)) is not None:
        session.log(f"{out}: finished already")
        return done
    flush_denormals()
    at_work = Fit(
        request, out, state, replace(session, device="cuda" if gpu else "cpu"), started - state.spent_s
    )
    at_work.record(settings=settings)
    plan.make(at_work)
    train_candidates(at_work)
    won = choose(at_work)
    chosen = next(each for each in state.candidates if each.name == won["candidate"])
    done = {
        "winner": won,
        "verdict": verdict(state, chosen),
        "teacher": state.teacher_measures,
        "start": state.start.measures if state.start is not None else None,
        **record.PLACES,
        "budget": asdict(request.budget),
        "held_out": len(at_work.judge.texts),
        "texts": state.texts,
        "candidates": record.standings(state),
        "seconds": round(at_work.spent_s, 1),
    }
    files.write_json(out / record.RESULT, done)
    return record.result(out) or done


# ---- training


def train_candidates(fit: Fit) -> None:
    """Train the best starts and the first of the other shapes for equal minutes each, then the best of these
    for all that is left. Where the machine has become so slow that too little is left, fewer are trained."""
    shapes = _to_train(fit)
    known = {each.name for each in fit.state.candidates}
    new = [shape for shape in shapes if shape.name not in known]
    share = FIRST_SHARE / len(shapes) if len(shapes) > 1 else 1.0
    for number, shape in enumerate(new):
        seconds = _training_seconds(fit, shape, share, len(new) - number)
        if seconds < plan.LEAST_TRIAL_S and any(each.steps for each in fit.state.candidates):
            fit.session.log(f"{shape.name}: left out, too little time to train it and others")
            continue
        fit.measure(_candidate(fit, shape, shape.name, seconds, share == 1.0))
    trained = [each for each in _ranked(fit.state) if each.steps]
    if len(shapes) == 1 or not trained or any(each.name.endswith(LONGER) for each in trained):
        return
    best = trained[0]
    seconds = _training_seconds(fit, best.shape, 1.0, 1)
    if seconds >= 2 * plan.LEAST_TRIAL_S:
        fit.measure(_candidate(fit, best.shape, best.name + LONGER, seconds, True))


def _to_train(fit: Fit) -> list[Shape]:
    """The best two starts, and then the shapes that fit, in their order: kinds and depths take turns."""
    starts = [each.shape for each in fit.state.measured if not each.steps]
    others = [shape for shape in fit.state.fits or [] if not fit.source.is_start(shape)]
    return [*starts[: plan.TRIALS - 1], *others][: plan.TRIALS]


def _training_seconds(fit: Fit, shape: Shape, share: float, left: int) -> float:
    """The seconds for the training steps of a candidate that has so large a share of the time for training,
    of which `left` are still to come in this round; infinite where steps are asked for."""
    if fit.request.steps is not None:
        return math.inf
    known = [each for each in fit.state.candidates if each.shape == shape] or fit.state.candidates
    setup = max((each.setup_s for each in known), default=0.0)
    total = fit.left_s + sum(each.seconds for each in fit.state.candidates if each.steps)
    return min(share * total, fit.left_s / left) - setup


def _candidate(fit: Fit, shape: Shape, name: str, seconds: float, whole: bool) -> Candidate:
    """A candidate to train for so many seconds, or for all the steps that were asked for or a part of
    them."""
    if fit.request.steps is not None:
        steps = fit.request.steps if whole else max(1, fit.request.steps // STEPS_SHARE)
        described = fit.recipe(shape, steps=steps)
    else:
        described = fit.recipe(shape, minutes=max(seconds, plan.LEAST_TRIAL_S) / 60)
    return Candidate(name, shape, described, fit.state.cost(shape).best(fit.request.budget))


# ---- the winner


def choose(fit: Fit) -> dict[str, Any]:
    """Export the best candidates, the best first, until one passes: parity, size, `verify`, p50. Returns the
    entry `winner` of fit.json.

    Raises UserError where no candidate was measured, CheckFailed where none passes.
    """
    if not fit.state.measured:
        why = "; ".join(f"{each.name}: {each.problem}" for each in fit.state.candidates)
        raise UserError(f"{fit.folder}: no candidate could be trained: {why}")
    problems = list[str]()
    for candidate in _ranked(fit.state):
        named = _named(candidate)
        _write_recipe(fit, candidate, named)
        with files.new_folder(fit.folder / record.RUN) as folder:
            shutil.copytree(fit.folder / record.TRIALS / candidate.name, folder, dirs_exist_ok=True)
            files.write_text(folder / "recipe.yaml", recipe.dump(recipe.parse(named, record.RECIPE)))
        try:
            return _certified(fit, candidate)
        except CheckFailed as error:
            problems.append(f"{candidate.name}: {error}")
            fit.session.log(problems[-1])
    failed = "\n".join([f"{fit.folder}: no candidate passed its checks", *problems])
    raise CheckFailed(failed, {"problems": problems})


def _ranked(state: State) -> list[Candidate]:
    """The measured candidates, the best first; those that are no better than the start come behind it."""
    start, teacher = state.start, state.teacher_measures or {}
    if start is None:
        return state.measured

    def is_behind(candidate: Candidate) -> bool:
        return candidate is not start and not judge.is_better(candidate.measures, start.measures, teacher)

    return sorted(state.measured, key=lambda each: (is_behind(each), -each.measures["score"]))


def _named(candidate: Candidate) -> dict[str, Any]:
    """The recipe of a candidate that was trained, with the steps that it took in place of its minutes."""
    stages = [
        {**{key: stage[key] for key in stage if key != "minutes"}, "steps": steps}
        for stage, steps in zip(candidate.recipe["stages"], candidate.taken, strict=True)
    ]
    return {**candidate.recipe, "name": NAME, "stages": stages}


def _write_recipe(fit: Fit, candidate: Candidate, named: dict[str, Any]) -> None:
    """Write mine.yaml: the candidate's own recipe, and how it came about."""
    head = (
        f"# Found by edgedistill fit: {candidate.name} in {candidate.precision}, the best of "
        f"{len(fit.state.candidates)} candidates of at most {fit.request.budget}.\n"
        f"# About the same student again: edgedistill train {record.RECIPE} --data {fit.request.data}\n"
    )
    body = yaml.safe_dump(named, sort_keys=False, default_flow_style=None)
    files.write_text(fit.folder / record.RECIPE, head + body)


def _certified(fit: Fit, candidate: Candidate) -> dict[str, Any]:
    """Export, check and measure a candidate. Raises CheckFailed with the numbers where it does not pass."""
    budget, folder, precision = fit.request.budget, fit.folder / record.BUNDLE, candidate.precision
    bundle_writer.export(fit.folder / record.RUN, [precision], folder, fit.session.log)
    verify.verify(str(folder))
    opened = bundle.load(folder, precision=precision, threads=1)
    graph_bytes = opened.graph_file.stat().st_size
    size = graph_bytes + (folder / "tokenizer.json").stat().st_size
    if budget.excess(size, 0) > 0:
        raise CheckFailed(f"{size / 1e6:.3f} MB with tokenizer.json, the budget is {budget.max_mb:g}")
    ids = [row.tolist() for row in opened.tokenize(fit.timed_texts)]
    p50 = math.inf
    for _ in range(ATTEMPTS):  # where it is over the budget, other work on the machine may be why
        if budget.excess(0, p50) > 0:
            tokenizing = min(medians_ms(lambda text: opened.tokenize([text]), fit.timed_texts))
            p50 = min(p50, min(graph_medians_ms(opened.graph_file.read_bytes(), ids, threads=1)) + tokenizing)
    if budget.excess(0, p50) > 0:
        raise CheckFailed(f"p50 {p50:.3f} ms, the budget is {budget.max_p50_ms:g}")
    measures, teacher = candidate.measures, fit.state.teacher_measures or {}
    return {
        "candidate": candidate.name,
        "precision": precision,
        "size_mb": size / 1e6,
        "graph_mb": graph_bytes / 1e6,
        "p50_ms": p50,
        "measures": measures,
        "kept": {
            name: round(measures[name] / teacher[name], 4)
            for name in judge.TITLES
            if name in measures and name != "agreement" and teacher.get(name)
        },
        "steps": candidate.steps,
    }


# ---- the result for reading


def verdict(state: State, chosen: Candidate) -> str:
    """One line: the winner beside the best start."""
    if state.start is None:
        return (
            "trained from the teacher's own weights: no shipped student knows the texts and fits the budget"
        )
    trained = [each for each in _ranked(state) if each.steps]
    if not trained:
        return f"{chosen.name} as it ships: nothing could be trained"
    after = chosen if chosen.steps else trained[0]
    said = judge.verdict(state.start.measures, after.measures, state.teacher_measures or {})
    return f"{after.name} beside {state.start.name}: {said}"


def summary(done: dict[str, Any]) -> str:
    """The result in a table and a few lines."""
    won = done["winner"]
    columns = {"start": done["start"] or {}, "student": won["measures"], "teacher": done["teacher"]}
    lines = [
        judge.table(columns, {}, done["held_out"]),
        done["verdict"],
        f"{won['candidate']} in {won['precision']}: {won['size_mb']:.2f} MB with tokenizer.json (graph "
        f"{won['graph_mb']:.2f}), p50 {won['p50_ms']:.3f} ms",
        "retained of the teacher: " + ", ".join(f"{name} {kept:.1%}" for name, kept in won["kept"].items()),
        f"{done['bundle']}  the bundle",
        f"{done['recipe']}  its recipe: edgedistill train {done['recipe']}",
    ]
    return "\n".join(lines)


def teacher(model: str, revision: str | None, pooling: str | None) -> recipe.Teacher:
    """The teacher of a command's options. Raises UserError where they do not fit together."""
    named = {"model": model, "revision": revision, "pooling": pooling, "max_tokens": texts.MAX_TOKENS}
    whole = {"name": "fit", "teacher": named, "student": {"kind": "teacher"}}
    return recipe.parse(whole, "--teacher").teacher
