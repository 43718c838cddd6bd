"""The layout that Text Embeddings Inference reads. The server itself is not run here."""

from __future__ import annotations

import shutil
from pathlib import Path

import ecosystems
import pytest

pytestmark = pytest.mark.slow


def test_it_finds_its_files_and_outputs(shelf: Path, tmp_path):
    assert ecosystems.inference_server_layout(shelf / "linear")["layout"]
    assert ecosystems.inference_server_layout(shelf / "bilstm")["reason"] == "needs a transformer"
    shutil.copytree(shelf / "linear", tmp_path / "broken")
    (tmp_path / "broken" / "onnx" / "model.onnx").unlink()
    assert ecosystems.inference_server_layout(tmp_path / "broken")["error"] == "missing: onnx/model.onnx"
