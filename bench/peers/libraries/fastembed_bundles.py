"""Our bundles in fastembed's runner, as custom models.

As its documentation says, https://qdrant.github.io/fastembed: TextEmbedding.add_custom_model; the graph's
first output is the embedding itself, so it is neither pooled nor normalized again.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from harness import Opened, Task

SHIPPED = Path(__file__).resolve().parents[3] / "edgedistill" / "shipped" / "bundles"


def _opened(folder: Path, threads: int) -> Opened:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    file = manifest["precisions"]["int8"]["file"]
    TextEmbedding.add_custom_model(
        "bundle",
        pooling=PoolingType.DISABLED,
        normalization=False,
        sources=ModelSource(url="file://"),
        dim=manifest["dims"][0],
        model_file=file,
    )
    model = TextEmbedding("bundle", specific_model_path=str(folder), threads=threads)
    count = manifest["parameters"]["total"]
    return Opened("fastembed", lambda texts: np.stack(list(model.embed(texts))), [folder / file], count)


def open_teacher(task: Task) -> Opened:
    return _opened(task.bundle, task.threads)


def open_nano(task: Task) -> Opened:
    return _opened(SHIPPED / "nano", task.threads)
