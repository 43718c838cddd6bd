"""Mobile packages: what is in them, that they embed as the bundle does, and what is left where one is
refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers

pytest.importorskip("onnxruntime_extensions", reason="needs edgedistill[mobile]")

from edgedistill import files, load
from edgedistill.errors import CheckFailed, UserError
from edgedistill.mobile import package
from edgedistill.mobile.string_graph import open_session, strings
from tests.runtime.conftest import rewrite

TEXTS = [
    "The cat eats a red apple.",
    "the newspaper \U0001f642 Caf\u00e9 [SEP]",
    "",
    "my neighbour finds the blue car " * 20,
]


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    lines: list[str] = []
    out = tmp_path_factory.mktemp("packages") / "phone"
    return out, package.write(folder, out, "fp32", lines.append), lines


def test_prompts_of_queries_and_documents_are_named(folder: Path, tmp_path: Path) -> None:
    """The app puts them before the text; a graph that has a prompt in it would put that before them."""
    copied = Path(shutil.copytree(folder, tmp_path / "x"))
    rewrite(copied, query_prompt="query: ")
    found = package.write(copied, tmp_path / "phone", "fp32", quiet, ids=True)
    assert found["query_prompt"] == "query: " and "document_prompt" not in found
    assert "a query after `query: `" in (tmp_path / "phone" / "README.md").read_text(encoding="utf-8")
    rewrite(copied, prompt="text: ")
    with pytest.raises(
        CheckFailed, match='its graph puts the prompt "text: " before queries and documents too; '
    ):
        package.write(copied, tmp_path / "other", "fp32", quiet)
    assert package.write(copied, tmp_path / "other", "fp32", quiet, ids=True)["prompt"] == "text: "


def test_what_is_in_a_package(made: tuple[Path, dict[str, Any], list[str]], folder: Path) -> None:
    out, found, lines = made
    names = {path.name for path in out.iterdir()}
    graphs = {"model.ort", "model_with_tokenizer.onnx", "model_with_tokenizer.ort"}
    assert names == graphs | {
        "required_operators.config",
        "tokenizer.json",
        "parity.json",
        "Encoder.kt",
        "Encoder.swift",
        "README.md",
        "mobile.json",
    }
    assert files.read_json(out / "mobile.json") == found
    assert {name: entry["sha256"] for name, entry in found["files"].items()} == {
        name: files.sha256_file(out / name) for name in names - {"mobile.json"}
    }
    assert (found["takes"], found["precision"], found["dims"], found["max_tokens"]) == (
        "texts",
        "fp32",
        [24],
        32,
    )
    assert found["tokenizer"]["texts"] == 10_000
    assert found["parity"].keys() == graphs and min(found["parity"].values()) >= 0.9999
    assert [path.name for path in out.parent.iterdir()] == ["phone"]
    assert "10,000" in lines[0]
    readme = (out / "README.md").read_text(encoding="utf-8")
    assert "10,000 generated texts" in readme and "BertTokenizer" in readme
    assert all(f"`{name}`" in readme for name in names - {"README.md"})
    assert str(out.parent) not in "".join(
        path.read_text(encoding="utf-8") for path in out.glob("*.[cmt][odx]*") if path.suffix != ".ort"
    )


@pytest.mark.parametrize("name", ["model_with_tokenizer.onnx", "model_with_tokenizer.ort"])
def test_texts_in_the_bundles_embeddings_out(
    made: tuple[Path, dict[str, Any], list[str]], folder: Path, name: str
) -> None:
    session = open_session(made[0] / name)
    assert [each.name for each in session.get_inputs()] == ["texts"]
    assert [each.name for each in session.get_outputs()] == ["sentence_embedding"]
    found = session.run(None, {"texts": strings(TEXTS)})[0]
    expected = load(folder, "fp32").encode(TEXTS)
    assert found.shape == expected.shape == (4, 24)
    assert (found * expected).sum(1).min() >= 0.9999
    assert (found[0] * found[1]).sum() < 0.999  # texts differ


def test_ids_in_the_golden_embeddings_out(made: tuple[Path, dict[str, Any], list[str]]) -> None:
    session = onnxruntime.InferenceSession(str(made[0] / "model.ort"))
    golden = files.read_json(made[0] / "parity.json")
    for ids, vector in zip(golden["ids"], golden["vectors"], strict=True):
        inputs = {"input_ids": np.array([ids], np.int64), "attention_mask": np.ones((1, len(ids)), np.int64)}
        assert (session.run(["sentence_embedding"], inputs)[0][0] * np.array(vector)).sum() >= 0.9999


def test_the_operators_of_a_reduced_build(made: tuple[Path, dict[str, Any], list[str]]) -> None:
    lines = (made[0] / "required_operators.config").read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if not line.startswith("#")]
    assert all(len(line.split(";", 2)) == 3 for line in listed)
    text = "\n".join(listed)
    for operator in ("MatMul", "LayerNormalization", "Gather", "CumSum", "Range", "Tokenizer"):
        assert operator in text
    assert '"float"' in text  # types too
    assert "ai.onnx.contrib" not in text


def test_only_ids(folder: Path, tmp_path: Path) -> None:
    found = package.write(folder, tmp_path / "p", "w8", quiet, ids=True)
    assert (found["takes"], found["precision"], found["tokenizer"]) == ("ids", "w8", None)
    assert not list((tmp_path / "p").glob("*with_tokenizer*"))
    assert "MatMulNBits" in (tmp_path / "p" / "required_operators.config").read_text(encoding="utf-8")
    readme = (tmp_path / "p" / "README.md").read_text(encoding="utf-8")
    assert "with_tokenizer" not in readme and "input_ids" in readme
    assert (
        package.write(folder, tmp_path / "p", "fp32", quiet, ids=True)["precision"] == "fp32"
    )  # replaces its own kind


def test_another_tokenizer_is_refused_with_the_first_text(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "x"))
    raw = files.read_json(copy / "tokenizer.json")
    vocab = raw["model"]["vocab"]
    vocab["é"] = vocab.pop(max(vocab, key=vocab.get))  # a token more would have no embedding
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.BertNormalizer(strip_accents=False), normalizers.NFC()]
    )
    tokenizer.add_tokens(["é"])
    replace_tokenizer(copy, tokenizer)
    out = tmp_path / "out" / "phone"
    with pytest.raises(CheckFailed) as caught:
        package.write(copy, out, "fp32", quiet)
    assert (
        "was not written: its tokenizer cannot be built into the graph: the added token 'é' is matched after "
        "normalization" in str(caught.value)
    )
    assert str(caught.value).endswith("tokenize on the phone with the tokenizers library and tokenizer.json")
    assert not out.parent.exists()


def test_another_id_is_refused_and_nothing_is_left(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "x"))
    tokenizer = Tokenizer.from_file(str(copy / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    replace_tokenizer(copy, tokenizer)
    out = tmp_path / "out" / "phone"
    with pytest.raises(CheckFailed) as caught:
        package.write(copy, out, "fp32", quiet)
    message = str(caught.value)
    assert f"{out} was not written: the tokenizer in the graph is not the bundle's: text " in message
    assert (
        "of 10,000 (" in message and "in the graph" in message and "by tokenizer.json; add --ids" in message
    )
    assert caught.value.details["text"] >= 0
    assert not out.parent.exists()


def replace_tokenizer(bundle: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(str(bundle / "tokenizer.json"))
    manifest = files.read_json(bundle / "manifest.json")
    rewrite(
        bundle, files={**manifest["files"], "tokenizer.json": files.sha256_file(bundle / "tokenizer.json")}
    )


def test_four_bit_tensors_are_refused(folder: Path, tmp_path: Path) -> None:
    """The ORT format writes them, and cannot read them again."""
    copy = Path(shutil.copytree(folder, tmp_path / "x"))
    graph = onnx.load(copy / "onnx/model_w8.onnx")
    graph.graph.initializer.append(onnx.helper.make_tensor("four", onnx.TensorProto.UINT4, [2], [1, 2]))
    onnx.save(graph, copy / "onnx/model_w8.onnx")
    manifest = files.read_json(copy / "manifest.json")
    digest = files.sha256_file(copy / "onnx/model_w8.onnx")
    manifest["precisions"]["w8"]["sha256"] = digest
    rewrite(
        copy, files={**manifest["files"], "onnx/model_w8.onnx": digest}, precisions=manifest["precisions"]
    )
    with pytest.raises(
        UserError, match="precision w8 has UINT4 tensors, for which the ORT format has no type; choose fp32"
    ):
        package.write(copy, tmp_path / "out" / "p", "w8", quiet)
    assert not (tmp_path / "out").exists()


def test_what_is_no_package_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(UserError, match="exists already and is not a mobile package"):
        package.write(folder, tmp_path / "notes", "fp32", quiet)
    with pytest.raises(UserError, match="no precision"):
        package.write(folder, tmp_path / "p", "int3", quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
