"""What other libraries find in a bundle: truncation, the card's own lines of Python, the layouts of static
students, and the operators."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tokenizers import Tokenizer

from edgedistill import files
from edgedistill.export import bundle_writer
from edgedistill.runtime import bundle
from tests.export.test_export import make_run, quiet

PRECISIONS = ["fp32", "w8", "int8"]


def exported(folder: Path, kind: str = "bert", precisions: list[str] = PRECISIONS, **shape: Any) -> Path:
    bundle_writer.export(make_run(folder / "run", kind, **shape), precisions, folder / "bundle", quiet)
    return folder / "bundle"


STUDENTS: dict[str, dict[str, Any]] = {
    "linear": {"prompt": 'q: "\\n'},
    "tanh": {"tanh": True},
    "bilstm": {"kind": "bilstm"},
    "static": {"kind": "static"},
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bundles")
    return {name: exported(root / name, **shape) for name, shape in STUDENTS.items()}


@pytest.mark.parametrize("name", STUDENTS)
def test_the_python_on_the_card_runs(name: str, bundles: dict[str, Path]):
    folder = bundles[name]
    card = (folder / "README.md").read_text(encoding="utf-8")
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        if "import onnxruntime" in block
    ]
    assert len([line for line in code.splitlines() if line]) <= 12
    names: dict[str, Any] = {}
    exec(code.replace("path/to/this/folder", str(folder)), names)
    precision = next(
        name
        for name, each in files.read_json(folder / "manifest.json")["precisions"].items()
        if each["file"] in code
    )
    expected = bundle.load(folder, precision=precision).encode(["a text", "another"])
    assert np.allclose(names["embeddings"], expected, atol=1e-4)
    assert names["embeddings"].shape == (2, 24)


def test_the_manifest_names_operators_and_weights(bundles: dict[str, Path]):
    folder = bundles["linear"]
    for entry in files.read_json(folder / "manifest.json")["precisions"].values():
        nodes = onnx.load(folder / entry["file"]).graph.node
        assert entry["operators"] == sorted({f"{node.domain}.{node.op_type}".lstrip(".") for node in nodes})
        assert len(entry["weights"]) > 5
        assert ", ".join(entry["operators"]) in (folder / "README.md").read_text(encoding="utf-8")


def test_the_card_names_each_library_that_opens_the_bundle(bundles: dict[str, Path]):
    cards = {name: (folder / "README.md").read_text(encoding="utf-8") for name, folder in bundles.items()}
    assert all("TextEmbedding.add_custom_model(" in card for card in cards.values())
    assert [name for name, card in cards.items() if 'backend="onnx"' in card] == ["linear", "tanh"]
    assert [name for name, card in cards.items() if 'pooling: "mean"' in card] == ["linear"]
    assert [name for name, card in cards.items() if "Text Embeddings Inference" in card] == ["linear"]
    assert [name for name, card in cards.items() if "cannot open this bundle" in card] == ["bilstm", "static"]


def test_the_tokenizer_truncates_by_itself(bundles: dict[str, Path]):
    folder = bundles["tanh"]
    golden = files.read_json(folder / "parity.json")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [tokenizer.encode(text).ids for text in golden["texts"]] == golden["ids"]
    assert tokenizer.padding is None
    tokenizer.no_truncation()
    whole = [tokenizer.encode(text).ids for text in golden["texts"]]
    assert 2 <= sum(ids != all_ids for ids, all_ids in zip(golden["ids"], whole, strict=True)) <= 10
