"""Every kind of student in one table: its class, how it is built from its shape, how its parameters are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from edgedistill.students import bert, bilstm, output, recurrent, sentence_transformer, static


class Kind(NamedTuple):
    """A student's class; `build` makes it from a shape (student.json); `parameters` counts {embedding, encoder, head, total}."""

    module: type[nn.Module]
    build: Callable[[dict[str, Any]], nn.Module]
    parameters: Callable[[Any], dict[str, int]]


# A new kind of student: its file in this folder, and one line in this table.
KINDS: dict[str, Kind] = {
    "bert": Kind(bert.BertStudent, bert.build, bert.parameters),
    "bilstm": Kind(bilstm.BiLSTMStudent, bilstm.build, bilstm.parameters),
    "recurrent": Kind(recurrent.RecurrentStudent, recurrent.build, recurrent.parameters),
    "static": Kind(static.StaticStudent, static.build, static.parameters),
}


def parameters(module: nn.Module) -> dict[str, int]:
    """Parameters {embedding, encoder, head, total} of any student, or of a teacher."""
    if isinstance(module, output.Output):
        return output.parameters(module, parameters(module.inner))
    for kind in KINDS.values():
        if type(module) is kind.module:
            return kind.parameters(module)
    assert isinstance(module, sentence_transformer.PretrainedEncoder)
    return sentence_transformer.parameters(module)


def dims(student: nn.Module) -> int:
    """The dimensions of a student's embeddings."""
    sized: Any = student
    return int(sized.dims)
