"""Several recipes, one after the other: failures are reported at the end, finished runs stay."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from edgedistill import recipe, resolve
from edgedistill.errors import CheckFailed, UserError
from edgedistill.session import Session
from edgedistill.training import resume as resuming
from edgedistill.training import train


def train_series(specs: list[recipe.Recipe], folder: Path, session: Session, resume: bool) -> dict[str, Any]:
    """Train each recipe into `folder`/NAME; recipes over the same texts share the cached corpus, tokens and
    teacher embeddings.

    resume: unfinished runs are continued, finished ones left as they are, the others started. Returns
        {"runs": an object per recipe, with
    `recipe`, `run`, `status` (trained or kept) and the content of run.json}.
    Raises UserError before training, where two recipes share a name, or where a run exists and `resume` is
    not given. After training, where some failed, it raises UserError with all runs in its details (`status`
    failed, `error`), or CheckFailed where one of the failures is no UserError (then that run has `bug` too).
    """
    names = [spec.name for spec in specs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"train: two recipes are named {twice[0]}, and would write the same {folder / twice[0]}; rename "
            "one"
        )
    there = [
        path
        for name in names
        for path in (folder / name, resolve.unfinished_run(folder / name))
        if path.exists()
    ]
    if there and not resume:
        raise UserError(
            *(
                f"{each}: exists already; continue with --resume, which keeps finished runs, or delete it"
                for each in there
            )
        )
    runs = []
    for number, spec in enumerate(specs, 1):
        session.log(f"{number} of {len(specs)}: {spec.name}")
        runs.append(_train_one(spec, folder / spec.name, session, resume))
    failed = [each for each in runs if each["status"] == "failed"]
    if failed:
        others = ", the others are done" if len(failed) < len(runs) else ""
        head = (
            f"{len(failed)} of {len(runs)} recipes failed{others}; after fixing them, train them all "
            "again with --resume"
        )
        lines = [
            head,
            *(f"{each['recipe']}: {problem}" for each in failed for problem in each["error"].splitlines()),
        ]
        if any(each.get("bug") for each in failed):
            raise CheckFailed("\n".join(lines), {"runs": runs})
        raise UserError(*lines, details={"runs": runs})
    return {"runs": runs}


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
