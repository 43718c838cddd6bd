"""The students by kind: the one table that names them all, and what every one of them can be asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from edgedistill.students import bert, bilstm, recurrent, sentence_transformer, static
from edgedistill.students.output import Output

BUILD: dict[str, Callable[[dict[str, Any]], nn.Module]] = {
    "bert": bert.build,
    "bilstm": bilstm.build,
    "recurrent": recurrent.build,
    "static": static.build,
}


def count(module: nn.Module) -> dict[str, int]:
    """Parameters {embedding, encoder, head, total} of any student."""
    if isinstance(module, recurrent.RecurrentStudent):
        return recurrent.parameters(module)
    if isinstance(module, Output):
        more = 0 if module.linear is None else sum(p.numel() for p in module.linear.parameters())
        found = count(module.inner)
        return {**found, "head": found["head"] + more, "total": found["total"] + more}
    if isinstance(module, bert.BertStudent):
        return bert.parameters(module)
    if isinstance(module, bilstm.BiLSTMStudent):
        return bilstm.parameters(module)
    if isinstance(module, static.StaticStudent):
        return static.parameters(module)
    assert isinstance(module, sentence_transformer.TeacherStudent)
    model: Any = module.model
    embeddings = getattr(model, "embeddings", None) or model.get_input_embeddings()
    embedding = sum(p.numel() for p in embeddings.parameters())
    head = sum(p.numel() for p in module.dense.parameters())
    total = sum(p.numel() for p in module.parameters())
    return {"embedding": embedding, "encoder": total - embedding - head, "head": head, "total": total}


def width(student: nn.Module) -> int:
    """How many numbers a student's vectors have."""
    sized: Any = student
    return int(sized.dims)
