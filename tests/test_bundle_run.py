"""A bundle as the run it came from: the weights of its most exact precision, and nothing of it before the
checks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgedistill import bundle_run, files, resolve, run
from edgedistill.errors import CheckFailed, UserError
from edgedistill.export import bundle_writer
from edgedistill.runtime import bundle
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.students import graph, kinds
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from tests.conftest import sentences
from tests.export.test_export import make_run, quiet
from tests.runtime.conftest import rewrite

PLACE = "student.weights"
TEXTS = [*sentences(30, seed=4), "", " ".join(sentences(9, seed=5))]


def _small_bias(student: Any):
    """A large bias of the head would make all texts alike."""
    if student.head.bias is not None:
        student.head.bias.data *= 0.01


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    for kind in ("bert", "bilstm", "static"):
        bundle_writer.export(
            make_run(root / f"run-{kind}", kind, change=_small_bias),
            ["fp32", "w8", "int8"],
            root / kind,
            quiet,
        )
    return root


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "bert", tmp_path / "x"))


def embedded(opened: run.Run) -> np.ndarray:
    return PreparedStudent.of(opened).embed(TEXTS)


@pytest.mark.parametrize("kind", ["bert", "bilstm", "static"])
def test_it_embeds_as_the_bundle_and_as_its_run(made: Path, kind: str):
    opened = bundle_run.open_finished(str(made / kind), PLACE)
    assert isinstance(opened, bundle_run.BundleRun) and opened.precision == "fp32"
    original = run.open_run(made / f"run-{kind}")
    assert (opened.kind, opened.dims, opened.max_tokens, opened.prompt) == (kind, 24, 32, "")
    assert (
        opened.recipe == original.recipe
        and opened.shape.items() >= {k: v for k, v in original.shape.items() if k != "config"}.items()
    )
    assert (
        opened.tokenizer()(TEXTS)["input_ids"] == original.tokenizer()(TEXTS)["input_ids"]
    )  # not truncated: recipes choose where
    rows = embedded(opened)
    assert (rows * bundle.load(made / kind, "fp32").encode(TEXTS)).sum(1).min() > 0.99999
    assert (rows * embedded(original)).sum(1).min() > 0.99999
    assert (rows @ rows.T)[~np.eye(len(rows), dtype=bool)].min() < 0.99


def test_a_precision_can_be_named(made: Path):
    opened = bundle_run.open_finished(f"{made / 'bert'}:int8", PLACE)
    sha256 = files.sha256_file(made / "bert" / "onnx" / "model_quantized.onnx")
    assert opened.origin == {"bundle": "bert", "precision": "int8", "sha256": sha256}
    cosines = (embedded(opened) * bundle.load(made / "bert", "int8").encode(TEXTS)).sum(1)
    assert 0.999 < cosines.mean() < 0.999999


def test_the_shipped_one_comes_back_from_8_bits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = json.loads((files.shipped("bundle")["nano"].parent / "parity.json").read_text(encoding="utf-8"))[
        "texts"
    ]
    opened = bundle_run.open_finished("nano", PLACE)
    rows = PreparedStudent.of(opened).embed(texts)
    cosines = (rows * bundle.load("nano").encode(texts)).sum(1)
    assert cosines.min() >= 0.995 and cosines.mean() > 0.997
    assert opened.parameters == kinds.parameters(opened.student())


def problem(name: str) -> str:
    with pytest.raises((UserError, CheckFailed)) as caught:
        bundle_run.open_finished(name, PLACE).student()
    return str(caught.value)


def test_a_name_that_is_nothing():
    way_out = "or give the folder of a bundle or a run"
    assert (
        problem("nanno")
        == "student.weights: no finished student 'nanno'; did you mean 'nano'? (micro, multi, nano, small); "
        f"{way_out}"
    )


def test_a_folder_that_is_neither_a_bundle_nor_a_run(tmp_path):
    way_out = "a student with a `kind`, such as bert, can start from a model's layers"
    assert (
        problem(str(tmp_path))
        == f"student.weights: the folder {tmp_path} is neither a bundle nor a run; {way_out}"
    )


def test_what_is_no_finished_student(made: Path, tmp_path):
    folder = made / "run-bert"
    unfinished = tmp_path / "y"
    resolve.unfinished_run(unfinished).mkdir()
    assert problem(str(unfinished)).endswith(
        "its training has not finished; run edgedistill train again with --resume"
    )
    classifier = Path(shutil.copytree(folder, tmp_path / "c"))
    files.write_json(classifier / "task.json", {"labels": ["a", "b"], "pair": False, "hidden": 4})
    assert (
        problem(str(classifier))
        == f"student.weights: {classifier} is a classifier (a, b); give a student that embeds"
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"labels": ["a", "b"], "precisions": {"fp32": {"file": "onnx/model.onnx"}}},
            "is a classifier (a, b); give a student that embeds",
        ),
        ({"kind": "teacher"}, "is a teacher, not a student; give a student's run or bundle"),
        ({"student": None}, "student: None: "),
        ({"student": {"kind": "bert"}}, "student.head: missing; " + GET_AGAIN),
    ],
)
def test_bundles_that_are_refused(copy: Path, change: dict[str, Any], says: str):
    rewrite(copy, **change)
    assert says in problem(str(copy))


def test_a_bundle_without_its_shape(copy: Path):
    manifest = files.read_json(copy / "manifest.json")
    del manifest["student"], manifest["digest"]
    files.write_json(copy / "manifest.json", manifest)
    assert f"{copy}/manifest.json: student.head: missing; {GET_AGAIN}" in problem(str(copy))
    assert bundle.load(copy).encode(["still opens"]).shape == (1, 24)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda shape: shape["config"].update(hidden_size=10**9), "student.config.hidden_size: "),
        (lambda shape: shape["config"].update(num_attention_heads=5), "5 heads do not divide a width of 32"),
        (lambda shape: shape.update(max_tokens=10_000), "10000 tokens for 40 positions"),
        (lambda shape: shape.update(pq_bytes=7), "7 blocks do not divide a width of 32"),
        (lambda shape: shape.update(auto_map="x"), "student.auto_map: 'x': Extra inputs are not permitted"),
        (
            lambda shape: shape["config"].update(model_type="gpt2"),
            "student.config.model_type: 'gpt2': Input should be 'bert'",
        ),
        (lambda shape: shape["config"].update(vocab_size=10**6), "word_embeddings.weight has the shape"),
        (
            lambda shape: shape.update(pooling="max"),
            "its graph computes other embeddings than the student read back from it",
        ),
    ],
)
def test_a_strangers_shape(copy: Path, change: Callable[[dict[str, Any]], None], says: str):
    shape = files.read_json(copy / "manifest.json")["student"]
    change(shape)
    rewrite(copy, student=shape)
    assert says in problem(str(copy))


def test_keys_that_could_load_code_are_left_out(copy: Path):
    shape = files.read_json(copy / "manifest.json")["student"]
    shape["config"] |= {"attn_implementation": "someone/kernels", "is_decoder": True}
    rewrite(copy, student=shape)
    opened = bundle_run.open_finished(str(copy), PLACE)
    assert not {"attn_implementation", "is_decoder"} & opened.shape["config"].keys()


def test_a_graph_that_was_changed_or_traced(copy: Path):
    path = copy / "onnx" / "model.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert "changed since export" in problem(str(copy))
    onnx.save(graph.traced(bundle_run.open_finished(f"{copy}:w8", PLACE).student()), path)
    entry = {
        **files.read_json(copy / "manifest.json")["precisions"]["fp32"],
        "sha256": files.sha256_file(path),
    }
    entry.pop("operators")
    rewrite(copy, precisions={"fp32": entry})
    rewrite(
        copy, files={**files.read_json(copy / "manifest.json")["files"], "onnx/model.onnx": entry["sha256"]}
    )
    assert "so its weights cannot be read back; give the run it was exported from" in problem(str(copy))


def test_a_tokenizer_config_is_checked_and_read_for_its_tokens_alone(copy: Path):
    config = files.read_json(copy / "tokenizer_config.json")
    rewrite(copy, "tokenizer_config.json", auto_map={"AutoTokenizer": ["x.Y", None]}, tokenizer_class="Z")
    assert bundle_run.open_finished(str(copy), PLACE).tokenizer().pad_token == config["pad_token"] == "[PAD]"
    rewrite(copy, "tokenizer_config.json", mask_token="[NEW]")
    with pytest.raises(UserError, match="its tokenizer has 201 tokens, its embedding table 200 rows"):
        bundle_run.open_finished(str(copy), PLACE).tokenizer()
    (copy / "tokenizer_config.json").write_text("{", encoding="utf-8")
    assert "changed since export" in problem(str(copy))
