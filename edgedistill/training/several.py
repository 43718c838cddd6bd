"""Several recipes, one after the other: what fails is told at the end, what is done stays done."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from edgedistill import recipe, run
from edgedistill.errors import AnswerIsNo, UserError
from edgedistill.session import Session
from edgedistill.training import train


def series(specs: list[recipe.Recipe], folder: Path, session: Session, resume: bool) -> dict[str, Any]:
    """Train each recipe into `folder`/NAME; recipes over the same texts share the cached corpus, tokens and teacher vectors.

    resume: what was killed goes on, what is finished is left alone, the others begin. Returns {"runs": one object a recipe: recipe,
    run, status (trained or kept), and what run.json holds; `bug` with a status of failed where it is not the user's to mend}.
    Raises UserError before anything is trained, where two recipes share a name or a run is there already and is not to be taken up; after
    all of them, where some failed, with the same runs (status failed, error) as its numbers; AnswerIsNo where a bug of ours is among them.
    """
    names = [spec.name for spec in specs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"train: two recipes are named {twice[0]}, and would write the same {folder / twice[0]}; rename one")
    there = [path for name in names for path in (folder / name, run.partial(folder / name)) if path.exists()]
    if there and not resume:
        raise UserError(*(f"{each}: exists already; go on with --resume, which keeps what is done, or delete it" for each in there))
    runs = []
    for number, spec in enumerate(specs, 1):
        session.log(f"{number} of {len(specs)}: {spec.name}")
        runs.append(_one(spec, folder / spec.name, session, resume))
    failed = [each for each in runs if each["status"] == "failed"]
    if failed:
        others = ", the others are done" if len(failed) < len(runs) else ""
        head = f"{len(failed)} of {len(runs)} recipes failed{others}; when that is mended, train them all again with --resume"
        lines = [head, *(f"{each['recipe']}: {problem}" for each in failed for problem in each["error"].splitlines())]
        if any(each.get("bug") for each in failed):
            raise AnswerIsNo("\n".join(lines), {"runs": runs})
        raise UserError(*lines, numbers={"runs": runs})
    return {"runs": runs}


def _one(spec: recipe.Recipe, out: Path, session: Session, resume: bool) -> dict[str, Any]:
    """Train one; what goes wrong becomes its result."""
    told: dict[str, Any] = {"recipe": spec.name, "run": str(out)}
    try:
        if resume and out.exists():
            return {**told, "status": "kept", **train.finished(spec, out, session)}
        info = train.train(spec, out, session, resume and run.partial(out).exists())
    except UserError as error:
        session.log(str(error))
        return {**told, "status": "failed", "error": str(error)}
    except Exception as error:  # noqa: BLE001 - our bug: its traceback is shown here, and the others still have their turn
        traceback.print_exc()
        return {**told, "status": "failed", "error": f"{type(error).__name__}: {error}", "bug": True}
    return {**told, "status": "trained", **info}
