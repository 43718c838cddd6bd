"""The teacher in sentence-transformers: torch in float32, and its ONNX and OpenVINO backends.

As its documentation says, https://sbert.net/docs/sentence_transformer/usage/efficiency.html: sections ONNX,
"Quantizing ONNX Models", OpenVINO, "Quantizing OpenVINO Models".
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from harness import Opened, Task, lines
from sentence_transformers import SentenceTransformer

CALIBRATION_TEXTS = 300  # as many as optimum-intel draws by default


def processor() -> str:
    """The quantization configuration that the documentation names for this processor."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else "asimddp"
    if "asimd" in flags:
        return "arm64"
    known = (("avx512_vnni", "avx512_vnni"), ("avx512f", "avx512"))
    return next((name for flag, name in known if flag in flags), "avx2")


def opened(model: Any, files: list[Path], parameters: int | None = None) -> Opened:
    """A model of sentence-transformers, with the defaults of its `encode`."""
    return Opened(
        "sentence-transformers", lambda texts: model.encode(texts, show_progress_bar=False), files, parameters
    )


def of_torch(folder: Path) -> Opened:
    """A folder of sentence-transformers in torch."""
    model = SentenceTransformer(str(folder), device="cpu")
    count = sum(each.numel() for each in model.parameters())
    return opened(model, [*folder.rglob("model.safetensors")], count)


def open_torch(task: Task) -> Opened:
    return of_torch(task.teacher)


def make_onnx_int8(task: Task) -> dict[str, Any]:
    from sentence_transformers import export_dynamic_quantized_onnx_model

    model = SentenceTransformer(
        str(task.teacher), device="cpu", backend="onnx", model_kwargs={"export": True}
    )
    model.save_pretrained(str(task.folder / "model"))
    export_dynamic_quantized_onnx_model(model, processor(), str(task.folder / "model"))
    return {"quantization": processor()}


def open_onnx_int8(task: Task) -> Opened:
    import onnxruntime

    folder = task.folder / "model"
    (file,) = (folder / "onnx").glob("model_q*int8*.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = task.threads
    given = {"file_name": f"onnx/{file.name}", "session_options": options, "provider": "CPUExecutionProvider"}
    return opened(SentenceTransformer(str(folder), device="cpu", backend="onnx", model_kwargs=given), [file])


def _openvino(folder: Path, threads: int, **given: Any) -> Any:
    given["ov_config"] = {"INFERENCE_NUM_THREADS": threads}
    return SentenceTransformer(str(folder), device="cpu", backend="openvino", model_kwargs=given)


def make_openvino(task: Task) -> None:
    model = _openvino(task.teacher, task.threads, export=True)
    model.save_pretrained(str(task.folder / "model"))


def open_openvino(task: Task) -> Opened:
    folder = task.folder / "model"
    return opened(_openvino(folder, task.threads), [*folder.rglob("openvino_model.*")])


def make_openvino_int8(task: Task) -> None:
    # Static, so it needs texts: by default GLUE's, which are on the hub; here those that students learn from.
    from optimum.intel import OVQuantizationConfig
    from sentence_transformers import export_static_quantized_openvino_model

    folder, texts = task.folder / "model", task.folder / "calibration"
    texts.mkdir(parents=True)
    rows = "".join(json.dumps({"sentence": text}) + "\n" for text in lines(task.texts)[:CALIBRATION_TEXTS])
    (texts / "train.jsonl").write_text(rows, encoding="utf-8")
    model = _openvino(task.teacher, task.threads, export=True)
    model.save_pretrained(str(folder))
    export_static_quantized_openvino_model(
        model,
        OVQuantizationConfig(),
        str(folder),
        dataset_name=str(texts),
        dataset_config_name="default",
        dataset_split="train",
        column_name="sentence",
    )
    shutil.rmtree(texts)


def open_openvino_int8(task: Task) -> Opened:
    folder = task.folder / "model"
    (file,) = folder.rglob("*qint8*.xml")
    model = _openvino(folder, task.threads, file_name=f"openvino/{file.name}")
    return opened(model, [file, file.with_suffix(".bin")])
