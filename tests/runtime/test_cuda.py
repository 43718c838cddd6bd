"""CUDA in onnxruntime: what is said where it is missing, or does not start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from edgedistill.errors import UserError
from edgedistill.runtime import bundle, onnx_session

OFFERED = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
TEXTS = ["the cat eats", "who paints the garden wall in the morning?", ""]


def test_a_device_that_is_not_there() -> None:
    onnx_session.check_device("cpu")
    with pytest.raises(UserError, match=r"device: no device 'cdua'; did you mean 'cuda'\? \(cpu, cuda\)"):
        onnx_session.check_device("cdua")


@pytest.mark.skipif(OFFERED, reason="this onnxruntime is built for CUDA")
def test_an_onnxruntime_without_cuda() -> None:
    with pytest.raises(UserError, match=r"device cuda: onnxruntime here offers .*CPU.*; .*onnxruntime-gpu"):
        onnx_session.check_device("cuda")


def test_cuda_that_does_not_start_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr("warnings.warn", lambda *_: None)  # what onnxruntime says of a provider that it lacks
    monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda session: ["CPUExecutionProvider"])
    with pytest.raises(UserError, match=r"device cuda: onnxruntime did not start CUDA .*; pip install 'onnxruntime-gpu\[cuda,cudnn\]'"):
        bundle.load(folder, device="cuda")
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not OFFERED, reason="needs onnxruntime-gpu")
def test_cuda_gives_the_same_embeddings(folder: Path) -> None:
    for precision in ("fp32", "w8"):
        on_cpu, on_cuda = (bundle.load(folder, precision, device=device).encode(TEXTS) for device in ("cpu", "cuda"))
        assert np.allclose(on_cpu, on_cuda, atol=1e-2), precision
