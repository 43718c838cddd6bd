"""Static models by model2vec, distilled from the teacher.

As its README says: model2vec.distill.distill(model_name=…), 256 dimensions by default; the documentation's
quantize_to for int8. Embeds as StaticModel.encode does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Opened, Task
from model2vec import StaticModel


def _distilled(task: Task, **given: Any) -> None:
    from model2vec.distill import distill

    distill(model_name=str(task.teacher), **given).save_pretrained(str(task.folder / "model"))


def make_distilled(task: Task) -> None:
    _distilled(task)


def make_int8(task: Task) -> None:
    _distilled(task, quantize_to="int8")


def of_folder(folder: Path, library: str = "model2vec") -> Opened:
    """A folder of model2vec."""
    model = StaticModel.from_pretrained(str(folder))
    count = sum(
        getattr(model, name).size
        for name in ("embedding", "weights")
        if getattr(model, name, None) is not None
    )
    return Opened(library, model.encode, [folder / "model.safetensors"], int(count))


def open_distilled(task: Task) -> Opened:
    return of_folder(task.folder / "model")


open_int8 = open_distilled
