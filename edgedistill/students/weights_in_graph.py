"""The constants of a graph -> the state dict of its student, whose own names of parameters they carry.

An ending of a name says how the parameter is kept: `.T` transposed, `[0]`, `[1]` … in parts; a kind's own
endings are undone by its
`restore`. A graph may hold less than its student did, where parameters are folded into others: then the
    weights compute the same
embeddings, though they are others than went in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgedistill.errors import CheckFailed, UserError
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.students import kinds
from edgedistill.students.bert_layers import FOLDED


def read(constants: Mapping[str, np.ndarray], shape: dict[str, Any], place: str) -> dict[str, Tensor]:
    """The state dict of the student that `shape` (student.json) describes. constants: float32, by their names
    in the graph.

    place: the bundle, which opens the errors. Nothing larger than the constants is allocated before their
        sizes are found to be the
    student's. Raises UserError for a graph that does not name them all, CheckFailed for constants of other
    sizes.
    """
    kind = kinds.KINDS[shape["kind"]]
    with torch.device("meta"):
        wanted = kind.build(shape).state_dict()
    try:
        found = _joined(constants)
        kind.restore(found)
    except (ValueError, IndexError, KeyError):
        raise CheckFailed(f"{place}: its constants do not fit together; {GET_AGAIN}") from None
    state = {}
    for name, parameter in wanted.items():
        sizes, array = tuple(parameter.shape), found.get(name)
        if array is FOLDED:
            array = np.zeros(sizes, np.float32)
        if array is None:
            fact = f"its graph has no {name}, so its weights cannot be read back"
            raise UserError(f"{place}: {fact}; give the run it was exported from")
        if array.size != prod(sizes):
            raise CheckFailed(
                f"{place}: {name} has the shape {array.shape}, its student's has {sizes}; {GET_AGAIN}"
            )
        state[name] = torch.from_numpy(np.array(array, order="C")).reshape(sizes).to(parameter.dtype)
    return state


def _joined(constants: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The constants without `.T` and the numbers of parts."""
    found: dict[str, np.ndarray] = {}
    for name in sorted(constants):
        array = constants[name].T if name.endswith(".T") else constants[name]
        plain = name.removesuffix(".T")
        whole = re.sub(r"\[\d\]$", "", plain)
        found[whole] = np.concatenate([found[whole], array]) if whole != plain and whole in found else array
    return found
