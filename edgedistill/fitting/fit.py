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
from edgedistill.fitting import plan, race, record, texts, winner
from edgedistill.fitting.pace import PACE, Pace
from edgedistill.fitting.plan import Fit
from edgedistill.fitting.record import FitRequest
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
    texts.section(request.texts, request.column, request.data)
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
    """Plan, race and choose, from where an earlier process came. Writes fit.json and the page."""
    if session.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu")
    gpu = session.device in ("auto", "cuda") and torch.cuda.is_available()
    study, settings = record.open_study(out), request.settings()
    before = study.user_attrs.get("settings", settings)
    record.agree(study, settings, out)
    done = record.result(out)
    if done is not None and before == settings:
        session.log(f"{out}: finished already")
        return done
    flush_denormals()
    at_work = Fit(request, out, study, replace(session, device="cuda" if gpu else "cpu"), pace)
    plan.make(at_work, started)
    race.run_race(at_work)
    chosen = time.time()
    won = winner.choose(at_work)
    done = {
        "winner": won,
        "recipe": str(out / record.RECIPE),
        "bundle": str(out / winner.BUNDLE),
        "run": str(out / winner.RUN),
        "page": str(out / record.PAGE),
        "report": str(out / winner.REPORT),
        "budget": asdict(request.budget),
        "schedule": at_work.known("schedule"),
        "texts": at_work.known("texts"),
        "candidates": record.standings(study),
        "not_raced": record.not_raced(study),
        "seconds": round(race.spent_seconds(at_work) + time.time() - chosen, 1),
    }
    record.write_page(study, out, won)
    files.write_json(out / record.RESULT, done)
    return done


def summary(done: dict[str, Any]) -> str:
    """The result in a few lines."""
    won, score = done["winner"], done["winner"]["score"]
    parts = f"nearest neighbours in common {score['neighbours']:.3f}, cosines {score['cosines']:.3f}"
    kept = ""
    if won["kept"] is not None:
        kept = f", keeps {won['kept']:.1%} of its teacher's score on {won['suite']}"
    size = f"{won['size_mb']:.2f} MB with tokenizer.json (graph {won['graph_mb']:.2f})"
    return (
        f"{won['candidate']} in {won['precision']}: {size}, p50 {won['p50_ms']:.3f} ms\n"
        f"agreement {score['agreement']:.3f} ({parts}){kept}\n"
        f"{done['bundle']}  the bundle\n"
        f"{done['recipe']}  its recipe: edgedistill train {done['recipe']}\n"
        f"{done['page']}  all {len(done['candidates'])} candidates, and why the others lost"
    )


def teacher(model: str, revision: str | None, pooling: str | None) -> recipe.Teacher:
    """The teacher of a command's options. Raises UserError where they do not fit together."""
    options = {"model": model, "revision": revision, "pooling": pooling}
    given = {name: value for name, value in options.items() if value is not None}
    return recipe.parse(
        {"name": "fit", "teacher": given, "student": {"kind": "teacher"}}, "--teacher"
    ).teacher
