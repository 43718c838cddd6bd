"""The measured peer, in an environment of its own: our bundle opens in optimum and sentence-transformers and
says the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgedistill.export.bundle_writer import export
from edgedistill.runtime import bundle
from tests.export.test_export import make_run

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["The cat eats a red apple.", "", "my neighbour paints the garden wall before the rain", "ﬁnance 🙂"]
THEIRS = """
import json, sys, torch
from optimum.onnxruntime import ORTModelForFeatureExtraction
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer
folder, texts = sys.argv[1], json.loads(sys.argv[2])
inputs = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="pt")
model = ORTModelForFeatureExtraction.from_pretrained(folder, file_name="model.onnx", subfolder="onnx")
tokens = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).last_hidden_state
weights = inputs["attention_mask"].unsqueeze(-1).float()
dense = load_file(folder + "/2_Dense/model.safetensors")
pooled = (tokens * weights).sum(1) / weights.sum(1) @ dense["linear.weight"].T + dense["linear.bias"]
vectors = torch.nn.functional.normalize(pooled, dim=-1)
chain = SentenceTransformer(folder, backend="onnx").encode(texts)
print(json.dumps({"optimum": vectors.tolist(), "sentence-transformers": chain.tolist()}))
"""


@pytest.mark.slow
def test_the_bundle_opens_in_optimum_and_gives_our_vectors(tmp_path: Path) -> None:
    """`pip install .[optimum]` resolves in a fresh environment, and what it opens is what we wrote."""
    export(make_run(tmp_path / "run"), ["fp32"], tmp_path / "bundle", lambda line: None)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    torch = next(
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line.startswith("torch==")
    )
    subprocess.run([python, "-m", "pip", "install", "-q", torch], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", f"{ROOT}[optimum]"], check=True)
    command = [python, "-c", THEIRS, tmp_path / "bundle", json.dumps(TEXTS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    ours = bundle.load(tmp_path / "bundle", precision="fp32").encode(TEXTS)
    for who, vectors in json.loads(done.stdout.splitlines()[-1]).items():
        assert np.abs(np.array(vectors) - ours).max() < 1e-4, who
