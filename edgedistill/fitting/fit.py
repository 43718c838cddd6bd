"""The line of a fit: check the request, plan, race, choose the winner, write it as a recipe, a bundle and
pages.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from edgedistill import files, recipe, resolve
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.export import model_source
from edgedistill.fitting import latency, page, plan, race, record, texts, winner
from edgedistill.fitting.pace import PACE, Pace
from edgedistill.fitting.plan import Fit
from edgedistill.fitting.request import FitRequest
from edgedistill.session import Session
from edgedistill.teacher.encoder import flush_denormals


def fit(
    request: FitRequest, out: Path, session: Session, resume: bool = False, pace: Pace = PACE
) -> dict[str, Any]:
    """Find the best student that keeps to the budget. Returns the content of fit.json.

    out: the fit's folder. resume: go on with a fit that was interrupted, or one that is finished with more
    minutes. Raises UserError for what the request lacks, a budget that nothing meets, minutes too few, a
    folder of another fit, a full disk; CheckFailed where no finalist passes its checks, or where the winner
    keeps less than `min_kept`, after all is written.
    """
    started = time.time()
    _check_request(request)
    _check_folder(out, resume)
    with files.full_disk_as_user_error(out), record.held(out), _nothing_left_of(out, not record.is_fit(out)):
        done = _find(request, out, session, pace, started)
    winner.check_kept(done["winner"], request.min_kept, done)
    return done


def _check_request(request: FitRequest) -> None:
    """Raise UserError for what can be seen before anything is read or opened."""
    texts.section(request)
    latency.check_target(request.budget.target)
    if request.suite is not None:
        scoring.suite(request.suite, request.data)
    if not resolve.is_run(request.teacher.model):
        try:
            folder = resolve.teacher_files(request.teacher, "--teacher")
        except UserError as error:
            named = (each.replace("--teacher.model", "--teacher") for each in error.problems)
            raise UserError(*(each.replace("set --teacher.", "give --") for each in named)) from None
        model_source.check_encoder(folder, str(request.teacher.model), request.teacher.pooling, "teach")


def _check_folder(out: Path, resume: bool) -> None:
    """Raise UserError for a folder that is not a fit's, and for an unfinished one, unless it is to be
    resumed.
    """
    if record.is_fit(out):
        if record.result(out) is None and not resume:
            raise UserError(f"{out}: an unfinished fit; continue it with --resume, or delete it")
        return
    if resume:
        raise UserError(f"{out}: nothing to resume; leave --resume out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists already and is not a fit; give another --out")


@contextmanager
def _nothing_left_of(out: Path, new: bool) -> Iterator[None]:
    """Remove a new fit's folder where an error ends it before anything is trained, so that other settings can
    be given.
    """
    try:
        yield
    except UserError:
        if new and not (out / race.TRIALS).exists():
            shutil.rmtree(out)
        raise


def _find(request: FitRequest, out: Path, session: Session, pace: Pace, started: float) -> dict[str, Any]:
    """Plan, race and choose, from where an earlier process came."""
    device = _device(session.device)
    study, settings = record.open_study(out), request.settings()
    before = study.user_attrs.get("settings", settings)
    record.agree(study, settings, out)
    done = record.result(out)
    if done is not None and before == settings:
        session.log(f"{out}: finished already")
        return done
    flush_denormals()
    session = replace(session, device=device)
    at_work = Fit(request, out, study, session, pace, plan.open_teacher(request, study, session))
    plan.make(at_work, started)
    race.run_race(at_work)
    return _finish(at_work)


def _device(asked: str) -> str:
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu")
    return "cuda" if asked in ("auto", "cuda") and torch.cuda.is_available() else "cpu"


def _finish(fit: Fit) -> dict[str, Any]:
    """Choose the winner, write fit.json and the page."""
    started = time.time()
    won = winner.choose(fit)
    names = {
        "recipe": record.RECIPE,
        "bundle": winner.BUNDLE,
        "run": winner.RUN,
        "page": page.PAGE,
        "report": winner.REPORT,
    }
    done = {
        "winner": won,
        **{name: str(fit.folder / path) for name, path in names.items()},
        "budget": asdict(fit.request.budget),
        "schedule": fit.known("schedule"),
        "texts": fit.known("texts"),
        "candidates": page.standings(fit.study),
        "not_raced": page.not_raced(fit.study),
        "seconds": round(race.spent_seconds(fit) + time.time() - started, 1),
    }
    page.write(fit, won)
    files.write_json(fit.folder / record.RESULT, done)
    return done


def summary(done: dict[str, Any]) -> str:
    """The result in a few lines."""
    won, score = done["winner"], done["winner"]["score"]
    parts = f"nearest neighbours in common {score['neighbours']:.3f}, cosines {score['cosines']:.3f}"
    kept = (
        f", keeps {won['kept']:.1%} of its teacher's score on {won['suite']}"
        if won["kept"] is not None
        else ""
    )
    size = f"{won['size_mb']:.2f} MB with tokenizer.json (graph {won['graph_mb']:.2f})"
    lines = [
        f"{won['candidate']} in {won['precision']}: {size}, p50 {won['p50_ms']:.3f} ms",
        f"agreement {score['agreement']:.3f} ({parts}){kept}",
        f"{done['bundle']}  the bundle",
        f"{done['recipe']}  its recipe: edgedistill train {done['recipe']}",
        f"{done['page']}  all {len(done['candidates'])} candidates, and why the others lost",
    ]
    return "\n".join(lines)


def teacher(model: str, revision: str | None, pooling: str | None) -> recipe.Teacher:
    """The teacher of a command's options. Raises UserError where they do not fit together."""
    options = {"model": model, "revision": revision, "pooling": pooling}
    given = {name: value for name, value in options.items() if value is not None}
    return recipe.parse(
        {"name": "fit", "teacher": given, "student": {"kind": "teacher"}}, "--teacher"
    ).teacher
