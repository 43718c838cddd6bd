"""The line of a fit: check the request, plan, train the few best shapes for equal minutes, train the best of
them for the rest, choose the best state that was ever measured, and write it as a recipe and a bundle.

A start, a shipped student untrained, is one of these states: what did not beat it is not exported.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from edgedistill import files, recipe, resolve
from edgedistill.errors import CheckFailed, UserError, as_options
from edgedistill.export import bundle_writer
from edgedistill.fitting import judge, plan, record, texts
from edgedistill.fitting.plan import Fit
from edgedistill.fitting.record import Candidate, Costed, FitRequest, State
from edgedistill.planning.cost import graph_medians_ms, medians_ms
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.students import model_folder
from edgedistill.teacher.encoder import device_of, flush_denormals

ATTEMPTS = 4  # to measure a p50 within the budget
FIRST_SHARE = 0.45  # of the time for training: for the first training of each candidate
LONGER = "-longer"  # the name of the best candidate's second, longer training


def fit(request: FitRequest, out: Path, session: Session, resume: bool = False) -> dict[str, Any]:
    """Find the best student that keeps to the budget. Returns the content of fit.json.

    `out` is the fit's folder. With `resume`, a fit that was interrupted goes on. Raises UserError for what
    the request lacks, a budget that nothing meets, minutes too few, a folder of another fit, a full disk;
    CheckFailed where no candidate passes its checks.
    """
    started = time.monotonic()
    request = replace(request, data=request.data or Path())
    session = replace(session, data=request.data, device=device_of(session.device))
    _check_teacher(request.teacher)
    texts.section(request.texts, request.column, request.data)  # raises
    state = _state(request, out, resume)
    if (finished := record.result(out)) is not None:
        session.log(f"{out}: finished already")
        return finished
    flush_denormals()
    with files.full_disk_as_user_error(out), files.held(out, "works on this fit"):
        try:
            return _find(Fit(request, out, state, session, started - state.spent_s))
        except UserError:
            if not (out / record.TRIALS).exists():  # other settings can be given
                shutil.rmtree(out)
            raise


def _check_teacher(teacher: recipe.Teacher) -> None:
    """Raise UserError for what cannot teach, before anything is opened."""
    if not resolve.is_run(teacher.model):
        with as_options({"--teacher.model": "--teacher", "set --teacher.": "give --"}):
            folder = resolve.teacher_files(teacher, "--teacher")
        model_folder.check_pooling(
            model_folder.read(folder), teacher.pooling, str(teacher.model), "--pooling"
        )


def _state(request: FitRequest, out: Path, resume: bool) -> State:
    """The state of the fit that lies in a folder, or a new one. Raises UserError for a folder that is not a
    fit's, for one of another fit, and for an unfinished one, unless it is to be resumed."""
    settings = request.settings()
    state = record.read(out)
    if state is None and resume:
        raise UserError(f"{out}: nothing to resume; leave --resume out")
    if state is None:
        if not out.is_dir() or {path.name for path in out.iterdir()} - {files.LOCK}:
            files.check_free(out, mark=record.STATE, what="a fit")
        return State(settings)
    if not resume and record.result(out) is None:
        raise UserError(f"{out}: an unfinished fit; continue it with --resume, or delete it")
    if fact := files.difference(state.settings, settings):
        raise UserError(f"{out}: a fit with other settings ({fact}); give another --out, or delete it")
    return state


def _find(fit: Fit) -> dict[str, Any]:
    """Plan, train and choose, from where an earlier process came. Writes fit.json."""
    state = fit.state
    fit.record()
    plan.make(fit)
    train_candidates(fit)
    chosen, winner = choose(fit)
    failed = [candidate for candidate in state.candidates if candidate.problem]
    result = {
        "winner": winner,
        "verdict": verdict(state, chosen),
        "teacher": state.teacher_measures,
        "start": state.start.measures if state.start is not None else None,
        "budget": asdict(fit.request.budget),
        "held_out": len(fit.judge.texts),
        "candidates": [candidate.report for candidate in [*state.measured, *failed]],
        "seconds": round(fit.spent_s, 1),
    }
    files.write_json(fit.folder / record.RESULT, result)
    return record.result(fit.folder) or result


# ---- training


def train_candidates(fit: Fit) -> None:
    """Train the best starts and the first of the other shapes for equal minutes each, then the best of these
    for all that is left. So many are trained that each learns for as long as it takes to build and measure
    it; fewer where the machine has become so slow that too little is left."""
    if fit.state.planned_s is None:
        fit.record(planned_s=fit.spent_s)
    began, finish = _training_time(fit)
    most = FIRST_SHARE * (finish - began) / max(1.0, 2 * _setup_s(fit))
    chosen = _to_train(fit)[: max(1, int(most))]
    first = FIRST_SHARE if len(chosen) > 1 else 1.0
    for number, costed in enumerate(chosen, 1):
        _train(fit, costed.shape.name, costed, first * number / len(chosen))
    trained = [candidate for candidate in ranked(fit.state) if candidate.steps]
    if len(chosen) > 1 and trained and not any(candidate.name.endswith(LONGER) for candidate in trained):
        _train(fit, trained[0].name + LONGER, trained[0], 1.0)


def _to_train(fit: Fit) -> list[Costed]:
    """The best starts, and then the shapes that fit, in their order."""
    starts = [candidate for candidate in fit.state.measured if not candidate.steps]
    others = [costed for costed in fit.state.fits or [] if not fit.is_start(costed)]
    return [*starts[: plan.STARTS], *others][: plan.TRIALS]


def _train(fit: Fit, name: str, costed: Costed, end: float) -> None:
    """Train a candidate until that share of the time for training is over, unless too little of it is
    left."""
    began, finish = _training_time(fit)
    seconds = began + end * (finish - began) - fit.spent_s - _setup_s(fit, costed)
    if seconds < plan.LEAST_TRIAL_S and any(candidate.steps for candidate in fit.state.candidates):
        fit.session.log(f"{name}: left out, too little time to train it")
        return
    fit.measure(name, costed, max(seconds, plan.LEAST_TRIAL_S) / 60)


def _training_time(fit: Fit) -> tuple[float, float]:
    """When training began and when it is to end, in seconds of the fit."""
    finish = 60 * fit.request.minutes * (1 - plan.FINISH_SHARE) - plan.FINISH_S
    return fit.state.planned_s or 0.0, finish


def _setup_s(fit: Fit, costed: Costed | None = None) -> float:
    """The seconds that a candidate takes beside its training: as long as those of its shape took, or all, or
    what planning took for one."""
    known = [candidate for candidate in fit.state.candidates if candidate.done]
    if costed is not None:
        known = [candidate for candidate in known if candidate.shape == costed.shape] or known
    return max((candidate.setup_s for candidate in known), default=fit.state.setup_s)


# ---- the winner


def ranked(state: State) -> list[Candidate]:
    """The measured candidates, the best first; those that are no better than the start come behind it."""
    start, teacher = state.start, state.teacher_measures or {}
    if start is None:
        return state.measured

    def is_behind(candidate: Candidate) -> bool:
        return candidate is not start and not judge.is_better(candidate.measures, start.measures, teacher)

    return sorted(state.measured, key=is_behind)


def choose(fit: Fit) -> tuple[Candidate, dict[str, Any]]:
    """Export the best candidates, the best first, until one passes: parity, size, p50. Returns it, and the
    entry `winner` of fit.json. Raises CheckFailed where none passes."""
    problems = [f"{failed.name}: {failed.problem}" for failed in fit.state.candidates if failed.problem]
    for candidate in ranked(fit.state):
        try:
            winner = _exported(fit, candidate)
        except CheckFailed as error:
            problems.append(f"{candidate.name}: {error}")
            fit.session.log(problems[-1])
            continue
        _write_recipe(fit, candidate)
        return candidate, winner
    fact = "\n".join([f"{fit.folder}: no candidate could be trained and passed its checks", *problems])
    raise CheckFailed(fact, {"problems": problems})


def _write_recipe(fit: Fit, candidate: Candidate) -> None:
    """Write mine.yaml: the candidate's recipe with the steps that it took in place of its minutes."""
    stages = [
        {**{key: stage[key] for key in stage if key != "minutes"}, "steps": steps}
        for stage, steps in zip(candidate.recipe["stages"], candidate.taken, strict=True)
    ]
    head = (
        f"# Found by edgedistill fit: {candidate.name} in {candidate.precision}, the best of "
        f"{len(fit.state.candidates)} candidates of at most {fit.request.budget}.\n"
        f"# About the same student again: edgedistill train {record.RECIPE} --data {fit.request.data}\n"
    )
    body = yaml.safe_dump({**candidate.recipe, "stages": stages}, sort_keys=False, default_flow_style=None)
    files.write_text(fit.folder / record.RECIPE, head + body)


def _exported(fit: Fit, candidate: Candidate) -> dict[str, Any]:
    """Export and measure a candidate: the entry `winner` of fit.json. Raises CheckFailed with the numbers
    where it does not pass."""
    budget, folder = fit.request.budget, fit.folder / record.BUNDLE
    run = fit.folder / record.TRIALS / candidate.name
    bundle_writer.export(run, [candidate.precision], folder, fit.session.log)
    opened = bundle.load(folder, precision=candidate.precision, threads=1)
    size = opened.graph_file.stat().st_size + (folder / "tokenizer.json").stat().st_size
    for _ in range(ATTEMPTS):  # where it is over the budget, other work on the machine may be why
        costed = Costed(candidate.shape, size / 1e6, _p50_ms(opened, fit.timed_texts))
        if costed.excess(budget) <= 0:
            break
    else:
        raise CheckFailed(f"{costed} with its tokenizer; the budget is {budget}")
    measures, teacher = candidate.measures, fit.state.teacher_measures or {}
    labelled = [name for name in judge.TITLES if name in measures and name != "agreement"]
    return {
        "candidate": candidate.name,
        "precision": candidate.precision,
        "size_mb": costed.size_mb,
        "p50_ms": costed.p50_ms,
        "measures": measures,
        "kept": {name: round(measures[name] / teacher[name], 4) for name in labelled if teacher.get(name)},
        "steps": candidate.steps,
    }


def _p50_ms(opened: bundle.Bundle, timed: list[str]) -> float:
    """The median time of one of these texts, tokenization included."""
    ids = [row.tolist() for row in opened.tokenize(timed)]
    tokenizing = min(medians_ms(lambda text: opened.tokenize([text]), timed))
    return min(graph_medians_ms(opened.graph_file.read_bytes(), ids, threads=1)) + tokenizing


# ---- the result for reading


def verdict(state: State, chosen: Candidate) -> str:
    """One line: the winner, or what was trained best, beside the best start."""
    if state.start is None:
        return (
            "trained from the teacher's own weights: no shipped student knows the texts and fits the budget"
        )
    after = next((candidate for candidate in [chosen, *ranked(state)] if candidate.steps), chosen)
    compared = judge.verdict(state.start.measures, after.measures, state.teacher_measures or {}, after.steps)
    return f"{after.name} beside {state.start.name}: {compared}"


def summary(result: dict[str, Any]) -> str:
    """The result in a table and a few lines."""
    winner = result["winner"]
    columns = {"start": result["start"] or {}, "student": winner["measures"], "teacher": result["teacher"]}
    table = judge.table(columns, {}, result["held_out"])
    kept = ", ".join(f"{name} {share:.1%}" for name, share in winner["kept"].items())
    size, p50 = f"{winner['size_mb']:.2f} MB with tokenizer.json", f"p50 {winner['p50_ms']:.3f} ms"
    return f"""{table}
{result["verdict"]}
{winner["candidate"]} in {winner["precision"]}: {size}, {p50}
retained of the teacher: {kept}
{result["bundle"]}  the bundle
{result["recipe"]}  its recipe: edgedistill train {result["recipe"]}"""


def teacher(model: str, revision: str | None, pooling: str | None) -> recipe.Teacher:
    """The teacher of a command's options. Raises UserError where they do not fit together."""
    named = {"model": model, "revision": revision, "pooling": pooling, "max_tokens": texts.MAX_TOKENS}
    whole = {"name": "fit", "teacher": named, "student": {"kind": "teacher"}}
    return recipe.parse(whole, "--teacher").teacher
