"""Every kind of student in one table, and what is asked of a student whatever its kind."""

from __future__ import annotations

from typing import Any

from torch import nn

from edgedistill.files import Json
from edgedistill.runtime.manifest import validated
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.students import bert, bilstm, recurrent, static
from edgedistill.students.kind import Kind

# A new kind of student: its file in this folder, and one line in this table.
KINDS: dict[str, Kind] = {
    "bert": bert.KIND,
    "bilstm": bilstm.KIND,
    "recurrent": recurrent.KIND,
    "static": static.KIND,
}


def checked(shape: Json, place: str) -> Json:
    """A shape of one of KINDS without the keys that are left out. Raises UserError for a field that no
    training writes; `place` is the file."""
    read = validated(KINDS[shape["kind"]].fields, shape, f"{place}: student.", GET_AGAIN)
    shape = read.model_dump(mode="json", exclude_unset=True)
    return {**shape, "config": read.config.model_dump()} if hasattr(read, "config") else shape


def parameters(module: nn.Module) -> dict[str, int]:
    """Parameters {embedding, encoder, head, total} of any student, or of a teacher."""
    counted: Any = module
    return dict(counted.counts())


def dims(student: nn.Module) -> int:
    """The dimensions of a student's embeddings."""
    sized: Any = student
    return int(sized.dims)
