"""run -> bundle: what is in it, that it says what torch says, and that a bundle that does not is never
written."""

from __future__ import annotations

import copy
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from edgedistill import files, recipe, run
from edgedistill.errors import CheckFailed, UserError
from edgedistill.export import bundle_writer, model_card
from edgedistill.precisions import PRECISIONS
from edgedistill.runtime import bundle, verify
from edgedistill.runtime.golden_file import golden_texts
from edgedistill.session import Session
from edgedistill.students import kinds
from tests.conftest import World, make_tokenizer, sentences
from tests.students.test_graph import spread

ALL = ["fp32", "w8", "int8"]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}


def quiet(line: str):
    pass


def make_run(
    folder: Path, kind: str = "bert", change: Callable[[Any], None] | None = None, **shape: Any
) -> Path:
    """A run with random weights: what train writes, without the training. `change` edits the student."""
    words = make_tokenizer()
    common = {"kind": kind, "head": {"dims": 24, "bias": True}, "max_tokens": 32, **shape}
    if kind in ("bert", "recurrent"):
        config = {**SIZES, "vocab_size": len(words), "pad_token_id": 0}
        common = {"config": config, "bottleneck": None, "pooling": "mean", "tanh": False, **common}
        student = {"kind": "bert", "layers": 2, "width": 32, "heads": 4, "head": "linear", "dims": 24}
    elif kind == "static":
        common = {"vocabulary_size": len(words), "pad": 0, "width": 64, "tanh": False, **common}
        student = {"kind": "static", "width": 64, "head": "linear", "dims": 24}
    else:
        common = {
            "vocabulary_size": len(words),
            "pad": 0,
            "width": 32,
            "hidden": 40,
            "layers": 1,
            "readout": "max",
            "tanh": True,
            "dropout": 0.0,
            **common,
        }
        student = {"kind": "bilstm", "width": 32, "hidden": 40}
    module = spread(kinds.KINDS[kind].build(common))
    if kind == "static":
        module.embedding.weight.data[0] = 0  # the padding token's
    if change is not None:
        change(module)
    spec = recipe.parse(
        {
            "name": folder.name,
            "about": "A tiny student.",
            "teacher": {"model": "packaged:t"},
            "student": student,
        },
        "test",
    )
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
    run.write_student(folder, common, module.state_dict())
    words.save_pretrained(folder / "tokenizer")
    stages = [{"name": "distil", "steps": 7}]
    corpus = {"texts": 4321, "held_out": 21}
    info = {
        **run.provenance(),
        "dims": module.dims,
        "parameters": kinds.parameters(module),
        "corpus": corpus,
        "stages": stages,
    }
    files.write_json(folder / "run.json", info)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/tiny and, in all precisions, bundles/tiny."""
    folder = tmp_path_factory.mktemp("made")
    bundle_writer.export(make_run(folder / "runs" / "tiny"), ALL, folder / "bundles" / "tiny", quiet)
    return folder


def unit(rows: torch.Tensor) -> np.ndarray:
    return torch.nn.functional.normalize(rows, dim=-1).numpy()


def by_torch(folder: Path, texts: list[str]) -> np.ndarray:
    """Unit vectors of texts, each alone, by the run itself."""
    opened = run.open_run(folder)
    words, student = opened.tokenizer(), opened.student()
    with torch.inference_mode():
        rows = []
        for text in texts:
            given = words(
                opened.prompt + text, truncation=True, max_length=opened.max_tokens, return_tensors="pt"
            )
            rows.append(student(given["input_ids"], given["attention_mask"]))
    return unit(torch.cat(rows))


def test_the_files_of_a_bundle(made: Path):
    folder = made / "bundles" / "tiny"
    manifest = files.read_json(folder / "manifest.json")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    graphs = {"onnx/model.onnx", "onnx/model_w8.onnx", "onnx/model_quantized.onnx"}
    tokens = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    chain = {
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "1_Pooling/config.json",
    }
    chain |= {"2_Normalize/config.json"}  # the head is in the graph's token embeddings
    assert found == graphs | tokens | chain | {"config.json", "manifest.json", "parity.json", "README.md"}
    assert manifest["files"] == {
        name: files.sha256_file(folder / name) for name in sorted(found - {"manifest.json"})
    }
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]  # nothing temporary is left


def test_the_manifest(made: Path):
    folder = made / "bundles" / "tiny"
    manifest = files.read_json(folder / "manifest.json")
    stated = {
        "schema": 1,
        "name": "tiny",
        "kind": "bert",
        "teacher": "packaged:t",
        "dims": [24],
        "max_tokens": 32,
        "inputs": ["input_ids", "attention_mask"],
        "output": "sentence_embedding",
        "parameters": run.open_run(made / "runs" / "tiny").parameters,
    }
    assert stated.items() <= manifest.items()
    assert manifest["recipe"]["student"]["kind"] == "bert" and manifest["run"]["corpus"]["texts"] == 4321
    assert list(manifest["precisions"]) == ALL
    for precision, entry in manifest["precisions"].items():
        path, row = folder / entry["file"], PRECISIONS[precision]
        assert (entry["sha256"], entry["size_bytes"]) == (files.sha256_file(path), path.stat().st_size)
        assert 1 >= entry["parity"]["cosine_min"] >= entry["parity"]["threshold"] == row.single_cosine
        assert 1 >= entry["drift"]["min"] >= row.batch_cosine


@pytest.mark.parametrize("precision", ALL)
def test_the_bundle_says_what_the_run_says(made: Path, precision: str):
    texts = [*sentences(20, seed=4), "", "İstanbul 🙂"]
    expected = by_torch(made / "runs" / "tiny", texts)
    opened = bundle.load(made / "bundles" / "tiny", precision=precision)
    assert opened.space == bundle.load(made / "bundles" / "tiny", precision="fp32").space is not None
    found = opened.encode(texts)
    assert found.shape == expected.shape
    assert (found * expected).sum(1).min() > {"fp32": 0.999999, "w8": 0.999, "int8": 0.99}[precision]
    assert (expected @ expected.T)[~np.eye(22, dtype=bool)].min() < 0.9  # another text's vector would be seen


@pytest.mark.parametrize("change", ["pooling", "prompt", "tokenizer", "weights"])
def test_what_gives_other_embeddings_is_another_space(made: Path, change: str):
    shape = {"pooling": {"pooling": "max"}, "prompt": {"document_prompt": "the "}}.get(change, {})
    opened = run.open_run(made / "runs" / "tiny")
    student, tokenizer = opened.student(), opened.tokenizer().backend_tokenizer
    before = bundle_writer.space(opened.shape, student, tokenizer)
    assert before == bundle.load(made / "bundles" / "tiny").space
    assert before == bundle_writer.space(opened.shape | {"max_tokens": 8}, student, tokenizer)
    if change == "weights":
        student.head.bias.data.add_(1)
    if change == "tokenizer":
        tokenizer.normalizer.lowercase = not tokenizer.normalizer.lowercase
    assert before != bundle_writer.space(opened.shape | shape, student, tokenizer)


def test_golden_vectors_are_the_runs(made: Path):
    golden = files.read_json(made / "bundles" / "tiny" / "parity.json")
    assert len(golden["texts"]) == len(golden["ids"]) == 32
    assert np.allclose(golden["vectors"], by_torch(made / "runs" / "tiny", golden["texts"]), atol=1e-6)
    words = run.open_run(made / "runs" / "tiny").tokenizer()
    assert golden["ids"] == [
        words(text, truncation=True, max_length=32)["input_ids"] for text in golden["texts"]
    ]
    lengths = [len(ids) for ids in golden["ids"]]
    assert min(lengths) == 2
    assert lengths.count(32) >= 4
    assert golden["texts"][16] == "ﬁnance 🙂"
    assert golden["cosine_at_least"] == {precision: PRECISIONS[precision].single_cosine for precision in ALL}


def test_the_golden_texts_reach_the_limit_exactly():
    words = make_tokenizer()

    def tokens(text: str) -> int:
        return len(words(text)["input_ids"])

    for longest in (8, 32, 61):
        texts = golden_texts(words, "", longest)
        assert len(set(texts)) == 32
        assert {longest, longest + 1} <= {tokens(text) for text in texts}
    joined = "".join(texts)
    assert max(map(len, texts)) == 10_000
    assert {"", " "} < set(texts)
    assert all(sign in joined for sign in ("🙂", "北", "ש", "ن", "\u0308", "ﬁ", "\x00", "\u200d"))


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip", "normalized"])
def test_the_golden_texts_notice_every_flag_of_an_added_token(flag: str):
    """A runner that takes a flag for its opposite has other token ids, and so fails its own check."""
    letters = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = Tokenizer(models.BPE(letters, []))  # every space is a token
    inner.normalizer, inner.pre_tokenizer = (
        normalizers.Lowercase(),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
    words = PreTrainedTokenizerFast(tokenizer_object=inner)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    made = []
    for value in (flags[flag], not flags[flag]):
        other = copy.deepcopy(words)
        other.add_tokens([AddedToken("Qx7", **{**flags, flag: value})])
        made.append(other)
    texts = golden_texts(made[0], "", 128)
    assert len(texts) == 33 and "Qx7" in texts[-1]
    assert made[0](texts)["input_ids"] != made[1](texts)["input_ids"]


def test_the_card_has_the_measured_numbers(made: Path):
    folder = made / "bundles" / "tiny"
    manifest = files.read_json(folder / "manifest.json")
    text = (folder / "README.md").read_text(encoding="utf-8")
    for entry in manifest["precisions"].values():
        parity = entry["parity"]
        measured = (entry["size_bytes"] / 1e6, parity["cosine_mean"], parity["cosine_min"])
        assert "{:.2f} | {:.5f} | {:.5f}".format(*measured) in text
    for fact in (
        f"{manifest['parameters']['total']:,} parameters",
        "# tiny\n\nA tiny student.\n\nA student of kind `bert`, distilled from `t`.",
        "Texts are truncated to 32 tokens.",
        "on samples of 4,300 texts (21 more were held out) by the recipe `tiny`: distil (7 steps)",
        'backend="onnx"',
        'await embed(["a text"], { pooling: "mean", normalize: true })',
    ):
        assert fact in text


def test_the_card_names_the_licences_of_its_texts(made: Path):
    manifest = files.read_json(made / "bundles" / "tiny" / "manifest.json")
    assert "licence" not in model_card.filled("encoder", manifest, libraries=[])
    manifest["recipe"]["rows"] = {"licences": {"a.txt": "CC BY 4.0"}}
    sources = [{"name": "a.txt", "texts": 4000}, {"name": "b.txt", "texts": 321}]
    manifest["run"]["corpus"] = {"texts": 4321, "held_out": 0, "sources": sources}
    manifest["recipe"]["stages"] = [
        {"name": "tune", "rows": {"files": ["nli/triples.tsv"], "licences": {"triples.tsv": "MIT"}}},
        {"name": "again", "rows": {"dataset": "owner/nli"}},
    ]
    text = model_card.filled("encoder", manifest, libraries=[])
    assert "| a.txt | 4,000 | CC BY 4.0 |\n| b.txt | 321 | not named |" in text
    assert (
        "| triples.tsv (stage tune) | not recorded | MIT |\n"
        "| owner/nli (stage again) | not recorded | not named |" in text
    )


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("bilstm", {}),
        ("bilstm", {"layers": 2, "readout": "last", "head": None, "tanh": False}),
        ("static", {}),
        ("static", {"head": None, "max_tokens": 61}),
        ("static", {"head": {"dims": 24, "bias": False}, "tanh": True, "prompt": "query: "}),
        ("bert", {"bottleneck": 12, "pooling": "cls", "head": None}),
        ("bert", {"pooling": "cls_pooler", "tanh": True, "prompt": "query: "}),
    ],
)
def test_every_sort_of_student(tmp_path, kind: str, shape: dict[str, Any]):
    source = make_run(tmp_path / "runs" / kind, kind, **shape)
    said: list[str] = []
    result = bundle_writer.export(source, ALL, tmp_path / "b", said.append)
    assert [line.partition(":")[0] for line in said] == ALL
    assert result["precisions"]["w8"]["drift"]["min"] >= 0.99999
    assert result["precisions"]["int8"]["drift"]["min"] >= 0.99999
    assert "`edgedistill.load` opens the fastest: int8 on" in (tmp_path / "b" / "README.md").read_text(
        encoding="utf-8"
    )
    texts = sentences(12, seed=6)
    expected = by_torch(source, texts)
    assert np.allclose(bundle.load(tmp_path / "b", precision="fp32").encode(texts), expected, atol=1e-5)
    assert (bundle.load(tmp_path / "b", precision="int8").encode(texts) * expected).sum(1).min() > 0.97
    assert (tmp_path / "b" / "modules.json").exists() == (kind == "bert")
    assert verify.verify(tmp_path / "b")["texts"] == 32
    operators = result["precisions"]["int8"]["operators"]
    assert ("LSTM" in operators) == (kind == "bilstm") and not any("Dynamic" in each for each in operators)


def test_the_teacher_goes_down_the_same_line(world: World, tmp_path):
    from edgedistill.teacher import encoder
    from edgedistill.training import train

    spec = world.spec(student={"kind": "teacher"}, stages=[], rows=None)
    train.train(spec, tmp_path / "run", Session(data=world.data, log=quiet), resume=False)
    bundle_writer.export(tmp_path / "run", ["w8", "fp32"], tmp_path / "b", quiet)
    manifest = files.read_json(tmp_path / "b" / "manifest.json")
    assert list(manifest["precisions"]) == ["fp32", "w8"]
    assert manifest["kind"] == "teacher"
    assert "these are the teacher's own weights" in (tmp_path / "b" / "README.md").read_text(encoding="utf-8")
    texts = sentences(10, seed=2)
    vectors = encoder.TeacherEncoder(recipe.Teacher(model=str(world.teacher), dtype="fp32")).embed(
        texts
    )  # not as fast as the machine can
    assert np.allclose(bundle.load(tmp_path / "b", precision="fp32").encode(texts), vectors, atol=1e-5)


def refused(tmp_path: Path, source: Path, precisions: list[str], error: type[Exception]) -> str:
    """The message of an export that must fail and leave nothing on disk, not even the folder of a bundle."""
    out = tmp_path / "bundles" / "x"
    out.parent.mkdir(exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error) as caught:
        bundle_writer.export(source, precisions, out, quiet)
    assert sorted(tmp_path.rglob("*")) == before
    return str(caught.value)


def loud_neuron(student: Any):
    """A neuron that nobody listens to, at 10,000: no change in float32; in int8 one scale for all leaves
    nothing of the others."""
    for layer in student.model.encoder.layer:
        layer.intermediate.dense.bias.data[0] = 1e4
        layer.output.dense.weight.data[:, 0] = 0
        layer.output.dense.weight.data *= 4


def test_a_loss_in_the_arithmetic_is_not_written(tmp_path):
    source = make_run(tmp_path / "runs" / "loud", change=loud_neuron)
    message = refused(tmp_path, source, ["int8"], CheckFailed)
    shape = (
        r'^\S+/bundles/x was not written: text \d+ of 32 \(".*"\) came back at cosine -?0\.\d{4}, int8 must '
        r"reach 0\.9\d00; "
        r"token ids agree, so the loss is in the arithmetic: try --precision w8$"
    )
    assert re.match(shape, message), message
    bundle_writer.export(
        source, ["fp32"], tmp_path / "bundles" / "x", quiet
    )  # the same run, where it can be had


def test_a_precision_that_fails_does_not_take_the_others_with_it(tmp_path):
    out, said = tmp_path / "bundles" / "x", list[str]()
    with pytest.raises(CheckFailed) as caught:
        bundle_writer.export(
            make_run(tmp_path / "runs" / "loud", change=loud_neuron), ["fp32", "int8"], out, said.append
        )
    shape = (
        r'^\S+/bundles/x was written with fp32, without int8: text \d+ of 32 \(".*"\) came back at '
        r"cosine -?0\.\d{4}, int8 must reach"
    )
    assert re.match(shape, str(caught.value)), str(caught.value)
    assert caught.value.details["failed"]["int8"]["cosine"] < 0.95
    assert [line.partition(":")[0] for line in said] == ["fp32"]
    manifest = files.read_json(out / "manifest.json")
    assert (
        list(manifest["precisions"])
        == list(files.read_json(out / "parity.json")["cosine_at_least"])
        == ["fp32"]
    )
    assert not (out / PRECISIONS["int8"].file).exists()
    assert "model_quantized" not in (out / "README.md").read_text(encoding="utf-8")
    assert verify.verify(out)["texts"] == 32


def test_a_failed_export_leaves_the_bundle_that_was_there(tmp_path):
    out = tmp_path / "bundles" / "x"
    bundle_writer.export(make_run(tmp_path / "runs" / "good"), ["fp32"], out, quiet)
    before = files.sha256_folder(out)
    refused(tmp_path, make_run(tmp_path / "runs" / "loud", change=loud_neuron), ["int8"], CheckFailed)
    assert files.sha256_folder(out) == before


def test_only_a_bundle_is_replaced(tmp_path):
    source, out = make_run(tmp_path / "runs" / "a"), tmp_path / "bundles" / "x"
    out.mkdir(parents=True)
    (out / "thesis.txt").write_text("years of work")
    assert (
        refused(tmp_path, source, ["fp32"], UserError)
        == f"{out}: exists already and is not a bundle; choose another name"
    )


def test_other_token_ids_are_told_apart_from_other_vectors(tmp_path):
    source = make_run(tmp_path / "runs" / "mixed")
    config = source / "tokenizer" / "tokenizer_config.json"
    # transformers takes a special token from here; tokenizer.json does not know
    files.write_json(config, {**files.read_json(config), "additional_special_tokens": ["the"]})
    message = refused(tmp_path, source, ["fp32"], CheckFailed)
    assert re.search(
        r'x was not written: text \d+ of 33 \(".*"\) has other token ids in the bundle \(2 .*\) than in the '
        r"run",
        message,
    )
    assert "nothing else was compared: tokenizer.json lacks a part of the run's tokenizer" in message


def test_the_tokenizer_of_another_student(tmp_path):
    source = make_run(tmp_path / "runs" / "small", config={**SIZES, "vocab_size": 150, "pad_token_id": 0})
    message = refused(tmp_path, source, ["fp32"], UserError)
    largest = len(make_tokenizer()) - 1
    assert message.endswith(
        f"tokenizer: token ids up to {largest}, but an embedding table of 150 rows; restore this student's "
        "tokenizer"
    )


@pytest.mark.parametrize("where", ["vocabulary", "added token", "put around every text"])
def test_an_id_above_the_table_while_the_count_is_below(tmp_path, where: str):
    """The check is on the largest id: tokens need not be numbered without gaps."""
    source = make_run(tmp_path / "runs" / "gap")
    file = source / "tokenizer" / "tokenizer.json"
    found = files.read_json(file)
    if where == "vocabulary":
        found["model"]["vocab"]["penguin"] = 400
    elif where == "added token":
        found["added_tokens"].append({**found["added_tokens"][-1], "id": 400, "content": "[NEW]"})
    else:
        found["post_processor"]["cls"][1] = 400
    files.write_json(file, found)
    message = refused(tmp_path, source, ["fp32"], UserError)
    assert re.search("tokenizer: token ids up to (400|200), but an embedding table of 200 rows", message)


@pytest.mark.parametrize(
    ("precisions", "says"),
    [(["fp32", "int4"], "'int4'.*'int8'"), (["w3", "bf16"], "'w3'.*\n.*'bf16'"), ([], "none given")],
)
def test_precisions_that_are_not(tmp_path, precisions: list[str], says: str):
    message = refused(tmp_path, make_run(tmp_path / "runs" / "a"), precisions, UserError)
    assert re.match(f"--precision: .*{says}", message)


def test_a_folder_that_is_no_run(tmp_path):
    assert "neither a run (no run.json) nor a model (no config.json); give a run" in refused(
        tmp_path, tmp_path, ["fp32"], UserError
    )


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    source = make_run(tmp_path / "runs" / "a")

    def full(handle: int):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "no space left on the device; free some space, or choose another place" in refused(
        tmp_path, source, ["fp32"], UserError
    )


@pytest.mark.parametrize("precision", ["w8", "int8"])
def test_a_precision_that_converts_nothing(tmp_path, precision: str):
    """A table of 800 numbers and no product: the graph would be float32 under another name."""
    source, out = (
        make_run(tmp_path / "runs" / "small", "static", width=4, head=None),
        tmp_path / "bundles" / "x",
    )
    with pytest.raises(
        CheckFailed,
        match=f"without {precision}: the graph would be {precision} in name only, since 1 matrices with 100%",
    ):
        bundle_writer.export(source, ["fp32", precision], out, quiet)
    assert list(files.read_json(out / "manifest.json")["precisions"]) == ["fp32"]
