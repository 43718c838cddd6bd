"""Where a killed run resumes: which folder it goes on in.

Finished (`finished`): the run folder is there, and nothing is trained. Unfinished (`unfinished`):
NAME.partial is there, of the same recipe, and reads the same (`check_inputs`). Then its newest checkpoint,
see checkpoint.py, says how many stages are done (`stage_in_progress.stages_done`), and where the next one
goes on (`StageInProgress`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from edgedistill import files, recipe, resolve, run
from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.session import Session
from edgedistill.teacher.assistant import run_hashes
from edgedistill.training.open_recipe import Opened
from edgedistill.training.processes import ALONE, Processes

INPUTS = "inputs.json"  # in the folder of the unfinished run


def finished(spec: recipe.Recipe, out: Path, session: Session) -> Json:
    """The content of run.json of a run that is finished. Raises UserError where it is a run of another
    recipe."""
    finished_run = run.open_run(out)
    _check_recipe(f"{out}: a finished run", recipe.dump(finished_run.recipe), spec)
    shutil.rmtree(resolve.unfinished_run(out), ignore_errors=True)  # what a kill left of it
    session.log(f"{out}: finished already")
    return finished_run.info


@contextmanager
def unfinished(spec: recipe.Recipe, out: Path, resume: bool, processes: Processes = ALONE) -> Iterator[Path]:
    """The folder of the unfinished run, NAME.partial: a new one, or with `resume` the one that is there; in
    another process than the first, an empty one that is deleted in the end.

    It is removed on a UserError before its first checkpoint: a corrected recipe could not resume it.

    Raises UserError where `out` exists, where there is an unfinished run and `resume` is not given, where
    there is none and it is given, and where the unfinished run is of another recipe.
    """
    if processes.number:
        with tempfile.TemporaryDirectory(prefix="edgedistill-") as folder:
            yield Path(folder)
        return
    files.check_free(out)
    check_unfinished(out, resume)
    partial = resolve.unfinished_run(out)
    written = partial / "recipe.yaml"
    if resume:
        _check_recipe(f"{partial}: an unfinished run", written.read_text(encoding="utf-8"), spec)
    with files.held(partial, "trains it"):
        files.write_text(written, recipe.dump(spec))
        try:
            yield partial
        except UserError:
            if not (partial / "checkpoints").exists():
                shutil.rmtree(partial, ignore_errors=True)
            raise


def check_inputs(opened: Opened, taught: Json, partial: Path) -> None:
    """Write the hashes of rows and teachers into the unfinished run. Raises UserError where a resumed run
    finds others than it was started with."""
    path = partial / INPUTS
    now = [[teacher["name"], teacher["sha256"]] for teacher in taught.get("teachers", [])]
    rows = [opened.texts, *(stage.rows for stage in opened.stages)]
    if opened.labelled is not None:
        rows += [opened.labelled.task.train, opened.labelled.task.dev]
        if (teacher := opened.labelled.teacher) is not None:
            now.append([str(teacher.folder), files.cache_key(**run_hashes(teacher))])
    now.append(
        ["what its rows hold", files.cache_key(rows=[part.fingerprint for part in rows if part is not None])]
    )
    before = files.read_json(path) if path.exists() else now  # of the same recipe, so in the same order
    for was, (name, sha256) in zip(before, now, strict=True):
        if was[1] != sha256:
            raise UserError(
                f"{partial}: {name} has changed since this run was started, and a part of it has learned "
                "from the former; restore the files, or delete the unfinished run"
            )
    files.write_json(path, now)


def check_unfinished(out: Path, resume: bool, instead: str = "delete it") -> None:
    """Raise UserError where there is an unfinished run and `resume` is not given, and where there is none and
    it is given. The error names `instead` as what else can be done with the unfinished one."""
    partial = resolve.unfinished_run(out)
    begun = (partial / "recipe.yaml").exists()  # an empty folder is what a kill leaves before it is written
    if begun and not resume:
        raise UserError(f"{partial}: an unfinished run; continue it with --resume, or {instead}")
    if resume and not begun:
        raise UserError(f"{partial}: nothing to resume; leave --resume out")


def _check_recipe(what: str, before: str, spec: recipe.Recipe) -> None:
    """Raise UserError, with the first key that differs, where a run's recipe is not this one."""
    if (now := recipe.dump(spec)) != before:
        fact = (
            files.difference(yaml.safe_load(before), yaml.safe_load(now)) or "its keys were in another order"
        )
        raise UserError(f"{what} of another recipe ({fact}); give another --out, or delete it")
