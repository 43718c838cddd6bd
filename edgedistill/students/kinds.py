"""Every kind of student in one table, and what is asked of a student whatever its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import onnx
from pydantic import ValidationError
from torch import nn

from edgedistill.errors import UserError
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.students import bert, bilstm, output, recurrent, sentence_transformer, static
from edgedistill.students.shape_fields import StudentShape
from edgedistill.students.start import Start


class Kind(NamedTuple):
    """What a file of this folder says of its kind of student.

    `fields` gives what a shape (student.json) may hold. `initial` makes the student of a recipe's section, with its shape; `build` makes
    it again from the shape alone. `parameters` counts {embedding, encoder, head, total}. `write` writes its graph node by node; without it
    an encoder of known layers is written from those, and anything else is traced.
    """

    module: type[nn.Module]
    fields: Callable[[dict[str, Any]], type[StudentShape]]
    initial: Callable[[Any, Start], tuple[nn.Module, dict[str, Any]]]
    build: Callable[[dict[str, Any]], nn.Module]
    parameters: Callable[[Any], dict[str, int]]
    write: Callable[[Any], onnx.ModelProto] | None = None


# A new kind of student: its file in this folder, and one line in this table.
KINDS: dict[str, Kind] = {
    "bert": Kind(bert.BertStudent, bert.fields, bert.initial, bert.build, bert.parameters),
    "bilstm": Kind(bilstm.BiLSTMStudent, lambda shape: bilstm.BiLSTMShape, bilstm.initial, bilstm.build, bilstm.parameters, bilstm.write),
    "recurrent": Kind(
        recurrent.RecurrentStudent, lambda shape: recurrent.RecurrentShape, recurrent.initial, recurrent.build, recurrent.parameters
    ),
    "static": Kind(static.StaticStudent, lambda shape: static.StaticShape, static.initial, static.build, static.parameters, static.write),
}


def of(student: nn.Module) -> Kind | None:
    """The kind of a student; None for a pretrained encoder."""
    return next((kind for kind in KINDS.values() if type(student) is kind.module), None)


def checked(shape: dict[str, Any], place: str) -> dict[str, Any]:
    """A shape of one of KINDS without the keys that are left out. Raises UserError for a field that no training writes; place: the file."""
    try:
        read: Any = KINDS[shape["kind"]].fields(shape).model_validate(shape)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise UserError(*(f"{place}: student.{ascii(line)[1:-1]}; {GET_AGAIN}" for line in lines[:20])) from None
    found: dict[str, Any] = read.model_dump(mode="json", exclude_unset=True)
    return {**found, "config": read.config.model_dump()} if hasattr(read, "config") else found


def parameters(module: nn.Module) -> dict[str, int]:
    """Parameters {embedding, encoder, head, total} of any student, or of a teacher."""
    if isinstance(module, output.Output):
        return output.parameters(module, parameters(module.inner))
    kind = of(module)
    if kind is not None:
        return kind.parameters(module)
    assert isinstance(module, sentence_transformer.PretrainedEncoder)
    return sentence_transformer.parameters(module)


def dims(student: nn.Module) -> int:
    """The dimensions of a student's embeddings."""
    sized: Any = student
    return int(sized.dims)
