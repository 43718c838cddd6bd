"""What a recipe recorded in a bundle or a run may decide: nothing outside the folder it came in.

Such a recipe may be a stranger's. It says how a student was trained; which models are opened, which files are
read and what is downloaded is decided by the user's own command and by the recipes that it names.
"""

from __future__ import annotations

from pathlib import Path

from edgedistill import files
from edgedistill.errors import UserError
from edgedistill.object_store import PROTOCOLS
from edgedistill.recipe.experiment import Recipe
from edgedistill.recipe.rows import Rows
from edgedistill.recipe.teacher import Teacher


def teacher(recorded: Recipe, asked: Teacher | None, student: str) -> Teacher:
    """The teacher that a finished student goes on learning from: the one asked for, else its own where that
    is packaged.

    asked: the user's `--teacher`; where it names the recorded model, the recorded pooling, prompt and other
        settings are kept.
    student: its name, for errors. Raises UserError for a recorded teacher that is a folder, a hub id or a
        file of embeddings.
    """
    known = recorded.teacher
    if asked is not None:
        names = [files.portable(str(spec.model)) for spec in (known, asked)]
        if None in (known.model, asked.model) or names[0] != names[1]:
            return asked
        return known.model_copy(update={"model": asked.model, "revision": asked.revision or known.revision})
    if known.model is None:
        raise UserError(
            f"adapt: {student} learned from precomputed embeddings, and new texts need a model; add --teacher"
        )
    if not known.model.startswith("packaged:"):
        revision = f" --revision {known.revision}" if known.revision else ""
        raise UserError(
            f"adapt: {student} names its teacher as {known.model!r}, and what comes with a "
            "student opens no other folder and downloads nothing; if you trust that model, add "
            f"--teacher {known.model}{revision}"
        )
    return known


def check_confined(task: Rows, data: Path | None, place: str) -> None:
    """Raises UserError where the test rows of a recorded task are a file outside the data folder, or a
    download. An absolute path may lie in `data`, the folder that the user named."""
    if task.dataset is not None:
        raise UserError(
            f"{place}: names a data set of the hub, and nothing is downloaded unasked; give a file to the "
            "command itself"
        )
    path = str(task.test)
    inside = data is not None and ".." not in Path(path).parts and Path(path).is_relative_to(data.resolve())
    if _leaves(path) and not inside:
        raise UserError(f"{place}: {path!r} is outside the data folder; give the file to the command itself")


def _leaves(text: str) -> bool:
    """Whether a relative path of this text would leave its folder, on any system or for an object store."""
    outside = ("~", *(f"{protocol}://" for protocol in PROTOCOLS))
    return files.leaves_folder(text) or text.startswith(outside)
