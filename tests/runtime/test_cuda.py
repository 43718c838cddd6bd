"""CUDA in onnxruntime: the errors where it is missing or does not start, and the precision and embeddings
where it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from edgedistill import cli
from edgedistill.errors import CheckFailed, UserError
from edgedistill.runtime import bundle, onnx_session, verify

OFFERED = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
TEXTS = ["the cat eats", "who paints the garden wall in the morning?", ""]


def test_a_device_that_does_not_exist(folder: Path):
    onnx_session.check_device("cpu")
    openings: list[Callable[[], Any]] = [
        lambda: onnx_session.check_device("cdua"),
        lambda: bundle.load(folder, device="cdua"),
        lambda: verify.verify(folder, "cdua"),
    ]
    for fails in openings:
        with pytest.raises(
            UserError, match=r"device=cdua: no device 'cdua'; did you mean 'cuda'\? \(cpu, cuda\)"
        ):
            fails()


@pytest.mark.usefixtures("offered")
def test_other_providers_are_devices_where_they_are_installed(monkeypatch):
    with pytest.raises(UserError, match=r"device=openvino: no device 'openvino'; choose one: \(cpu, cuda\)"):
        onnx_session.check_device("openvino")
    names = ["OpenVINOExecutionProvider", "AzureExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    onnx_session.check_device("openvino")
    assert onnx_session.offered() == {"openvino": names[0], "cpu": names[2]}


LEFT = "com.microsoft.MatMulIntegerToFloat has no CUDA kernel and runs on the processor"


@pytest.fixture
def anywhere(monkeypatch):
    """Sessions of every device compute on the processor, so that there is no need for a GPU."""
    monkeypatch.setattr(
        onnx_session,
        "open_session",
        lambda graph, threads, device: onnx_session.open_in_memory(graph, threads),
    )


@pytest.mark.usefixtures("anywhere")
def test_int8_products_that_the_processor_computes_all_the_same(folder: Path):
    """MatMulIntegerToFloat has no CUDA kernel; without it, and on other devices, there is nothing to tell."""
    opened = {name: bundle.load(folder, name, device="cuda").fallback for name in ("int8", "fp32")}
    assert opened == {"int8": LEFT, "fp32": ""}
    assert bundle.load(folder, "int8").fallback == ""
    assert LEFT not in verify.summary("x", verify.verify(folder))
    assert verify.summary("x", verify.verify(folder, "cuda")).endswith(f"in int8); {LEFT}")


@pytest.mark.usefixtures("anywhere")
def test_whatever_runs_a_bundle_on_cuda_tells_what_the_processor_computes(
    folder: Path, tmp_path, monkeypatch, capsys
):
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    for device, count in (("cuda", 1), ("cpu", 0)):
        command = ["edgedistill", "embed", f"{folder}:int8", str(tmp_path / "texts.txt"), "--device", device]
        monkeypatch.setattr(sys, "argv", command)
        cli.main()
        assert capsys.readouterr().err.count(LEFT) == count


@pytest.mark.skipif(OFFERED, reason="this onnxruntime is built for CUDA")
def test_an_onnxruntime_without_cuda():
    with pytest.raises(UserError, match=r"device=cuda: onnxruntime here offers .*CPU.*; .*onnxruntime-gpu"):
        onnx_session.check_device("cuda")


@pytest.fixture
def offered(monkeypatch):
    """An onnxruntime that lists CUDA, as onnxruntime-gpu does on any machine."""
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    monkeypatch.setattr(
        onnxruntime,
        "preload_dlls",
        lambda: sys.stdout.write("Failed to load libcublas.so.13: no such file\n"),
    )


@pytest.mark.usefixtures("offered")
@pytest.mark.filterwarnings(
    "ignore:Specified provider"
)  # its warning about a provider that it was not built with
def test_cuda_that_does_not_start_is_an_error(folder: Path, monkeypatch, capsys):
    monkeypatch.setattr(
        onnxruntime.InferenceSession, "get_providers", lambda session: ["CPUExecutionProvider"]
    )
    expected = (
        r"device=cuda: onnxruntime did not start \(Failed to load libcublas.so.13: .*\); .*; pip "
        r'install "onnxruntime-gpu\[cuda,cudnn\]"'
    )
    with pytest.raises(UserError, match=expected):
        bundle.load(folder, device="cuda")
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("offered")
def test_cuda_that_fails_is_an_error(folder: Path, monkeypatch, capsys):
    create = onnxruntime.InferenceSession._create_inference_session

    def fail(session: onnxruntime.InferenceSession, providers: list[str], *rest: object):
        if "CUDAExecutionProvider" in providers:
            raise RuntimeError("CUDA failure 100: no CUDA-capable device is detected\nmore")
        create(session, providers, *rest)

    monkeypatch.setattr(onnxruntime.InferenceSession, "_create_inference_session", fail)
    with pytest.raises(
        UserError, match=r"device=cuda: onnxruntime did not start \(CUDA failure 100: .* detected\); "
    ):
        bundle.load(folder, device="cuda")
    assert capsys.readouterr().out == ""
    bundle.load(folder)


def test_cuda_gives_the_same_embeddings(folder: Path):
    for precision in ("fp32", "w8", "int8"):
        try:
            on_cuda = bundle.load(folder, precision, device="cuda")
        except UserError as error:
            pytest.skip(str(error))
        cosines = (on_cuda.encode(TEXTS) * bundle.load(folder, precision).encode(TEXTS)).sum(1)
        assert cosines.min() > 0.999, precision


def test_a_graph_that_fails_on_another_device(folder: Path):
    """The bundle is not to blame, as OpenVINO has shown with int8."""
    session = bundle.load(folder, "int8")._session
    session._device = "openvino"
    wrong = {"input_ids": np.zeros((1, 2), np.float32), "attention_mask": np.ones((1, 2), np.int64)}
    with pytest.raises(CheckFailed, match="; take another precision, or device cpu in place of openvino"):
        session.run(wrong)
