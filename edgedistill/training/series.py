"""Several recipes, one after the other: failures are reported at the end, finished runs stay."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from edgedistill import recipe, resolve
from edgedistill.errors import CheckFailed, UserError
from edgedistill.session import Session, check_one_process
from edgedistill.training import resume as resuming
from edgedistill.training import train


def train_series(specs: list[recipe.Recipe], folder: Path, session: Session, resume: bool) -> dict[str, Any]:
    """Train each recipe into `folder`/NAME; recipes over the same texts share the cached corpus, tokens and
    teacher embeddings.

    With `resume` unfinished runs are continued, finished ones left as they are, the others started. Returns
    {"runs": an object per recipe, with `recipe`, `run`, `status` (trained or kept) and the content of
    run.json}. Raises UserError before training, where two recipes share a name, or where a run exists and
    `resume` is not given. After training, where some failed, it raises UserError with all runs in its details
    (`status` failed, `error`), or CheckFailed where one of the failures is no UserError (then that run has
    `bug` too).
    """
    check_one_process("train of several recipes")
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            fact = f"two recipes are named {name}, and would write the same {folder / name}"
            raise UserError(f"train: {fact}; rename one")
    folders = [path for name in names for path in (folder / name, resolve.unfinished_run(folder / name))]
    way_out = "continue with --resume, which keeps finished runs, or delete it"
    there = [f"{path}: exists already; {way_out}" for path in folders if path.exists()]
    if there and not resume:
        raise UserError(*there)
    runs, problems = [], list[str]()
    for number, spec in enumerate(specs, 1):
        session.log(f"{number} of {len(specs)}: {spec.name}")
        done = _train_one(spec, folder / spec.name, session, resume)
        runs.append(done)
        problems += [f"{spec.name}: {problem}" for problem in done.get("error", "").splitlines()]
    failed = sum("error" in each for each in runs)
    if not failed:
        return {"runs": runs}
    others = ", the others are done" if failed < len(runs) else ""
    fact = f"{failed} of {len(runs)} recipes failed{others}"
    problems.insert(0, f"{fact}; after fixing them, train them all again with --resume")
    if any("bug" in each for each in runs):
        raise CheckFailed("\n".join(problems), {"runs": runs})
    raise UserError(*problems, details={"runs": runs})


def _train_one(spec: recipe.Recipe, out: Path, session: Session, resume: bool) -> dict[str, Any]:
    """Train one recipe; a failure becomes its result."""
    result: dict[str, Any] = {"recipe": spec.name, "run": str(out)}
    try:
        if resume and out.exists():
            return {**result, "status": "kept", **resuming.finished(spec, out, session)}
        info = train.train(spec, out, session, resume and resolve.unfinished_run(out).exists())
    except UserError as error:
        session.log(str(error))
        return {**result, "status": "failed", "error": str(error)}
    except Exception as error:  # noqa: BLE001 - our bug: its traceback is printed here, and the other recipes are still trained
        traceback.print_exc()
        return {**result, "status": "failed", "error": f"{type(error).__name__}: {error}", "bug": True}
    return {**result, "status": "trained", **info}
