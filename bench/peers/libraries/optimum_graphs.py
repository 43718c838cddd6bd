"""The teacher in optimum-onnx: ORTOptimizer's level O2, and ORTQuantizer's dynamic int8.

As its documentation says, https://huggingface.co/docs/optimum-onnx/onnxruntime/usage_guides/optimization and
…/quantization. Pooling and length are this file's, as sentence-transformers does both: the graph ends in
last_hidden_state.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from harness import Opened, Task
from optimum.onnxruntime import ORTModelForFeatureExtraction, ORTOptimizer, ORTQuantizer
from optimum.onnxruntime.configuration import AutoOptimizationConfig, AutoQuantizationConfig
from sentence_transformers_backends import processor
from transformers import AutoTokenizer

BATCH = 32  # sentence-transformers' default


def _exported(task: Task) -> Any:
    AutoTokenizer.from_pretrained(task.teacher).save_pretrained(task.folder)
    return ORTModelForFeatureExtraction.from_pretrained(task.teacher, export=True)


def make_o2(task: Task) -> None:
    model = _exported(task)  # whose folder is removed with it
    optimizer = ORTOptimizer.from_pretrained(model)
    optimizer.optimize(save_dir=task.folder, optimization_config=AutoOptimizationConfig.O2())


def make_int8(task: Task) -> dict[str, Any]:
    chosen = getattr(AutoQuantizationConfig, processor())(is_static=False, per_channel=True)
    model = _exported(task)
    quantizer = ORTQuantizer.from_pretrained(model)
    quantizer.quantize(save_dir=task.folder, quantization_config=chosen)
    return {"quantization": f"{processor()}, per channel"}


def _opened(task: Task, name: str) -> Opened:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = task.threads
    given = {"file_name": name, "session_options": options, "provider": "CPUExecutionProvider"}
    model: Any = ORTModelForFeatureExtraction.from_pretrained(task.folder, **given)
    tokenizer = AutoTokenizer.from_pretrained(task.folder)
    config = json.loads((task.teacher / "sentence_bert_config.json").read_text(encoding="utf-8"))

    def encode(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        rows: list[Any] = [None] * len(texts)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            inputs = tokenizer(
                [texts[at] for at in batch],
                padding=True,
                truncation=True,
                max_length=config["max_seq_length"],
                return_tensors="np",
            )
            mask = inputs["attention_mask"][:, :, None]
            hidden = np.asarray(model(**inputs).last_hidden_state)
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            for at, row in zip(batch, pooled, strict=True):
                rows[at] = row / np.linalg.norm(row)
        return np.stack(rows)

    return Opened("optimum-onnx", encode, [Path(task.folder) / name])


def open_o2(task: Task) -> Opened:
    return _opened(task, "model_optimized.onnx")


def open_int8(task: Task) -> Opened:
    return _opened(task, "model_quantized.onnx")
