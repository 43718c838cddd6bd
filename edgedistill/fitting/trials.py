"""Training one candidate to a rung, from its own checkpoint, and scoring it there."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgedistill import recipe, resolve
from edgedistill.fitting.agreement_score import Judge, open_student
from edgedistill.fitting.pace import rung_steps
from edgedistill.fitting.storage import Entry
from edgedistill.session import Session
from edgedistill.training import train
from edgedistill.training.stage_in_progress import Paused


def run_folder(folder: Path, name: str) -> Path:
    """Where a candidate of a fit is trained."""
    return folder / "trials" / name


def train_to_rung(entry: Entry, share: float, folder: Path, judge: Judge, session: Session) -> dict[str, Any]:
    """Train a candidate to its rung and score it there.

    share: of its whole training at the rung. Returns the score's details with step, steps, seconds (in all) and step_seconds. Raises
    UserError as `train`.
    """
    spec, out = recipe.parse(entry.recipe, entry.name), run_folder(folder, entry.name)
    whole = spec.distilling[0].steps
    assert whole is not None, "every candidate's recipe has steps"
    step, started = rung_steps(whole, share), time.perf_counter()
    student = _trained(spec, out, step if step < whole else None, session)
    trained = time.perf_counter() - started
    score = judge.score_student(student, entry.precision)
    before = entry.scores[entry.goal - 1]["step"] if entry.goal - 1 in entry.scores else 0
    times = {"seconds": round(time.perf_counter() - started, 2), "step_seconds": trained / max(1, step - before)}
    return {**score.as_data(), "step": step, "steps": whole, **times}


def _trained(spec: recipe.Recipe, out: Path, pause_at: int | None, session: Session) -> Any:
    """The student trained to a step, or to the end."""
    session, partial = replace(session, progress=False), resolve.unfinished_run(out)
    if out.exists():  # killed after the run was written and before its unfinished folder was gone
        shutil.rmtree(partial, ignore_errors=True)
    if partial.exists() and not (partial / "recipe.yaml").exists():  # killed before the first file
        shutil.rmtree(partial)
    try:
        train.train(spec, out, session, resume=out.exists() or partial.exists(), pause_at=pause_at)
    except Paused as paused:
        return paused.student
    return open_student(out)
