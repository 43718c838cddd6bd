"""A bundle from a stranger, who may have written any file of it and recomputed every hash and the digest."""

from __future__ import annotations

import base64
import json
import os
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgedistill import files
from edgedistill.errors import CheckFailed, UserError
from edgedistill.runtime import bundle, manifest, verify
from edgedistill.runtime.trust import tokenizer_check

SMALLEST_RUNNER = Path(__file__).parents[2] / "export" / "python" / "embed.py"
GET_AGAIN = "get the bundle again, or export it again from its run"
OPENINGS: list[Callable[[Path], Any]] = [lambda folder: bundle.load(folder, "w8"), verify.verify]
NAMES = [
    "../outside.onnx",
    "onnx/../../outside.onnx",
    "/etc/outside.onnx",
    "C:\\outside.onnx",
    "C:outside.onnx",
    "onnx\\model.onnx",
    "\\\\host\\share\\x.onnx",
    "",
    "x" * 196 + ".onnx",
    "onnx//model.onnx",
    "./model.onnx",
    "onnx/model.onnx\x00.onnx",
    "onnx./model.onnx",
    "onnx/model.onnx ",
    "NUL.onnx",
    "onnx/com1.onnx",
]


def refused(opening: Callable[[Path], Any], folder: Path) -> list[str]:
    with pytest.raises((UserError, CheckFailed)) as caught:
        opening(folder)
    return str(caught.value).splitlines()


def write(folder: Path, name: str, value: Any):
    """Write a JSON file of a bundle, and update its hash and the digest in its manifest. Half surrogate pairs
    are escaped."""
    (folder / name).write_text(json.dumps(value))
    described = files.read_json(folder / "manifest.json")
    write_manifest(folder, files={**described["files"], name: files.sha256_file(folder / name)})


def write_manifest(folder: Path, **changes: Any):
    """Change fields of a bundle's manifest, and update its digest."""
    edited = {**files.read_json(folder / "manifest.json"), **changes}
    (folder / "manifest.json").write_text(json.dumps({**edited, "digest": manifest.digest(edited)}))


def edit_tokenizer(folder: Path, edit: Callable[[dict[str, Any]], Any]):
    tokenizer = files.read_json(folder / "tokenizer.json")
    edit(tokenizer)
    write(folder, "tokenizer.json", tokenizer)


def replace_graph(folder: Path, edit: Callable[[onnx.ModelProto], Any], precision: str = "fp32") -> Path:
    """Edit a graph, and update its hashes and the digest."""
    described = files.read_json(folder / "manifest.json")
    name = described["precisions"][precision]["file"]
    model = onnx.load(folder / name)
    edit(model)
    (folder / name).write_bytes(model.SerializeToString())
    write_manifest(folder, files={**described["files"], name: files.sha256_file(folder / name)})
    return folder / name


@pytest.mark.parametrize("name", NAMES)
def test_a_name_outside_the_folder(copy: Path, name: str):
    """The file is there, and its hash is right: it is not opened all the same."""
    described = files.read_json(copy / "manifest.json")
    entry = described["precisions"]["w8"]
    shutil.copy(copy / entry["file"], copy.parent / "outside.onnx")
    write_manifest(
        copy,
        precisions={"w8": {**entry, "file": name}},
        files={**described["files"], name: files.sha256_file(copy / entry["file"])},
    )
    place = f"{copy / 'manifest.json'}: "
    for opening in OPENINGS:
        lines = refused(opening, copy)
        assert any(line.startswith(f"{place}precisions.w8.file: ") for line in lines)
        assert all("not a plain name of a file inside the bundle's folder" in line for line in lines)
        assert all(line.endswith(GET_AGAIN) for line in lines)


@pytest.mark.parametrize(
    "name", ["onnx/model.onnx", "tokenizer.json", "a.b-c_d/é 1.txt", "con-fig.json", "1_Pooling/config.json"]
)
def test_a_plain_name(name: str):
    assert manifest.is_file_name(name)


@pytest.mark.parametrize(
    "linked", ["onnx/model_w8.onnx", "onnx", "tokenizer.json", "manifest.json", "parity.json"]
)
def test_a_link_out_of_the_folder(copy: Path, linked: str):
    """What it leads to has the right hash now, and may have another tomorrow."""
    outside = copy.parent / "outside"
    shutil.move(copy / linked, outside)
    (copy / linked).symlink_to(os.path.relpath(outside, (copy / linked).parent))
    for opening in OPENINGS[1:] if linked == "parity.json" else OPENINGS:
        assert (
            f"{copy / linked}" in refused(opening, copy)[0] and "link out of the" in refused(opening, copy)[0]
        )


def test_the_smallest_runner_opens_what_was_exported(copy: Path):
    open_bundle = runpy.run_path(str(SMALLEST_RUNNER))["Bundle"]
    assert open_bundle(copy, "w8")("a").shape == (24,)
    graph = copy / "onnx" / "model_w8.onnx"
    for change in (lambda: graph.write_bytes(graph.read_bytes() + b"\0"), graph.unlink):
        change()
        with pytest.raises(SystemExit, match="model_w8.onnx: missing, or changed since export"):
            open_bundle(copy, "w8")


def test_a_link_within_the_folder_and_one_to_it(copy: Path):
    shutil.move(copy / "tokenizer.json", copy / "tokenizer-1.json")
    (copy / "tokenizer.json").symlink_to("tokenizer-1.json")
    (copy.parent / "latest").symlink_to(copy)
    assert verify.verify(copy.parent / "latest")["texts"] == 32


def test_a_circle_of_links(copy: Path):
    (copy / "tokenizer.json").unlink()
    (copy / "tokenizer.json").symlink_to("tokenizer.json")
    assert "tokenizer.json: " in refused(bundle.load, copy)[0]


def test_a_name_that_a_terminal_would_obey_is_escaped(copy: Path):
    write_manifest(copy, files={"a\x9b2J": 1})
    with pytest.raises(UserError) as caught:
        manifest.read(copy)
    assert all(line.isprintable() for line in caught.value.problems)


def test_all_fields_that_are_wrong_at_once(copy: Path):
    changes: dict[str, Any] = {
        "name": "two\nlines",
        "kind": 7,
        "dims": [0],
        "max_tokens": "many",
        "prompt": "x" * 10_001,
        "pad_id": -1,
        "labels": "abc",
        "inputs": ["input_ids"],
        "precisions": {"w 8": {}, "w8": 1, "int8": {"file": "x.ort", "parity": {"threshold": -1}}},
        "files": {"x": "y"},
    }
    write_manifest(copy, **changes)
    places = """name kind files.x dims.0 max_tokens prompt precisions.w-8 precisions.w-8.file precisions.w8
    precisions.int8.file precisions.int8.parity.threshold pad_id labels inputs""".split()
    for opening in OPENINGS:
        lines = refused(opening, copy)
        named = [line.removeprefix(f"{copy / 'manifest.json'}: ").split(": ")[0] for line in lines]
        assert [name.replace(" ", "-") for name in named] == places
        assert all(line.endswith(GET_AGAIN) for line in lines)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"dims": [12, 24]}, "dims"),
        ({"dims": [24, True]}, "dims.1"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"recipe": "x"}, "recipe"),
        ({"teacher": 1}, "teacher"),
        ({"precisions": {}}, "precisions"),
        ({"precisions": {"w8": {"file": "x.onnx", "rank": {"cpu": "first"}}}}, "precisions.w8.rank.cpu"),
        (
            {"precisions": {"w8": {"file": "x.onnx", "parity": {"threshold": 0.2}}}},
            "precisions.w8.parity.threshold",
        ),
        ({"extra": json.loads("[" * 60 + "]" * 60)}, "lists and mappings nested more than 50 deep"),
    ],
)
def test_a_field_that_is_wrong(copy: Path, changes: dict[str, Any], key: str):
    write_manifest(copy, **changes)
    (line,) = refused(bundle.load, copy)
    assert line.startswith(f"{copy / 'manifest.json'}: {key}") and line.endswith(GET_AGAIN)


def test_a_manifest_that_is_not_text(copy: Path):
    digits = b'{"schema": 1' + b"1" * 5000 + b"}"
    for data, fact in (
        (b"\xff\xfe{}", "UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (digits, "a number of more than 4,300 digits"),
    ):
        (copy / "manifest.json").write_bytes(data)
        assert [line.endswith(f"{fact}); copy the bundle again") for line in refused(bundle.load, copy)] == [
            True
        ]
    (copy / "manifest.json").write_bytes(b" " * 4_000_001)
    assert refused(bundle.load, copy)[0].startswith(f"{copy / 'manifest.json'}: above 4000000 bytes")


def test_files_without_a_hash_or_a_threshold(copy: Path):
    described = files.read_json(copy / "manifest.json")
    entries = described["precisions"]
    write_manifest(
        copy,
        files={name: value for name, value in described["files"].items() if name != "parity.json"},
        precisions={**entries, "w8": {key: value for key, value in entries["w8"].items() if key != "parity"}},
    )
    place = f"{copy / 'manifest.json'}: "
    assert refused(verify.verify, copy) == [
        f"{copy / 'parity.json'}: has no sha256 in manifest.json; {GET_AGAIN}",
        f"{place}precisions.w8 has no parity.threshold; {GET_AGAIN}",
    ]


def test_a_graph_with_other_weights(copy: Path):
    """All hashes are right; the golden texts are what notices."""

    def double_negative(model: onnx.ModelProto):
        table = next(
            each
            for each in model.graph.initializer
            if each.name.startswith("model.embeddings.word_embeddings.weight")
        )
        table.raw_data = (np.frombuffer(table.raw_data, np.float32)[::-1]).tobytes()

    replace_graph(copy, double_negative)
    lines = refused(verify.verify, copy)
    assert len(lines) == 1 and "on this machine, fp32 must reach 0.99999" in lines[0]


def test_a_graph_that_onnxruntime_refuses(copy: Path):
    """It has known operators and whole tensors, and yet makes no sense."""
    replace_graph(copy, lambda model: model.graph.node[-1].input.__setitem__(0, "nowhere"))
    (line,) = refused(lambda folder: bundle.load(folder, "fp32"), copy)
    assert line.startswith(f"{copy}: onnxruntime fails on its graph (") and line.endswith(
        "; copy the bundle again"
    )


def test_token_ids_above_the_table(copy: Path):
    """Every file is what it should be by itself; running the golden texts fails in onnxruntime."""
    golden = files.read_json(copy / "parity.json")
    golden["ids"][3][1] = 1_000_000
    write(copy, "parity.json", golden)
    (line,) = refused(verify.verify, copy)
    assert "onnxruntime fails on its graph (" in line


def table(replacement: str) -> str:
    """A table of characters with an empty trie, as sentencepiece writes it."""
    return base64.b64encode(bytes(4) + replacement.encode() + b"\0").decode()


def repeated(step: dict[str, Any], part: str, times: int) -> Callable[[dict[str, Any]], Any]:
    key = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}[part]
    return lambda tokenizer: tokenizer.update({part: {"type": "Sequence", key: [step] * times}})


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
BLANK = {
    "id": 5,
    "content": " ",
    "single_word": False,
    "lstrip": False,
    "rstrip": True,
    "normalized": False,
    "special": False,
}
METASPACE = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}
MARKS = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 65


def replaces(content: str, *after: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": content}
    return lambda t: t.update(normalizer={"type": "Sequence", "normalizers": [replace, replace, *after]})


def precompiled(charsmap: str) -> Callable[[dict[str, Any]], Any]:
    return lambda t: t.update(normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap})


# Beside tests/runners/hostile.py: an edit, and what its refusal names.
TOKENIZERS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda t: t["model"].pop("vocab"), "vocab"),
    (lambda t: t.update(normalizer=[1]), "tokenizer.json"),
    (replaces("a" * 99), "growth"),
    (replaces("\ufdfa" * 10, {"type": "NFKC"}), "growth"),
    (precompiled(table("x" * 2000)), "growth"),
    (precompiled(base64.b64encode(b"\xfc\xff\xff\xff").decode()), "precompiled_charsmap"),
    (
        lambda t: t.update(normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "a"}),
        "pattern",
    ),
    (repeated({"type": "ByteLevel"}, "normalizer", 3), "lengthening"),
    (repeated(BYTES, "pre_tokenizer", 3), "lengthening"),
    (repeated(METASPACE, "pre_tokenizer", 3), "lengthening"),
    (repeated({"type": "Whitespace"}, "pre_tokenizer", 65), "steps"),
    (lambda t: t["added_tokens"].append(BLANK), "added_tokens"),
    (lambda t: t["model"]["vocab"].update({"a" * 1001: 5}), "token: 1001"),
    (lambda t: t["model"].update(end_of_word_suffix="a" * 101), "affix"),
    (lambda t: t.update(decoder={"type": "Fuse", "x": "y" * 1001}), "string"),
    (lambda t: t["post_processor"].update(type="TemplateProcessing", single=MARKS), "special"),
]


@pytest.mark.parametrize(("edit", "key"), TOKENIZERS)
def test_a_tokenizer_that_is_refused(copy: Path, edit: Callable[[dict[str, Any]], Any], key: str):
    edit_tokenizer(copy, edit)
    for opening in OPENINGS:
        (line,) = refused(opening, copy)
        assert line.startswith(f"{copy / 'tokenizer.json'}: ") and key in line and line.endswith(GET_AGAIN)


@pytest.mark.parametrize("text", ['{"model": {}, "model": {"type": "BPE"}}', "[" * 100_000, "[]"])
def test_a_tokenizer_that_is_no_tokenizer(tmp_path, text: str):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(UserError, match=f"^{path}: refused: "):
        tokenizer_check.check(path)


NO_SUCH_MARK = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}


@pytest.mark.parametrize(
    "edit",
    [
        lambda tokenizer: tokenizer["model"].update(vocab={"[UNK]": "b"}),
        lambda tokenizer: tokenizer.update(post_processor=NO_SUCH_MARK),  # it panics when it tokenizes
    ],
)
def test_a_tokenizer_that_tokenizers_refuses(copy: Path, edit: Callable[[dict[str, Any]], Any]):
    edit_tokenizer(copy, edit)
    (line,) = refused(bundle.load, copy)
    assert line.startswith(f"{copy / 'tokenizer.json'}: ")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"texts": []}, "texts"),
        ({"texts": [1] * 32}, "texts.0"),
        ({"texts": ["\ud800"] * 32}, "texts.0"),
        ({"ids": [[1]]}, "ids"),
        ({"ids": [[1.0]] * 32}, "ids.0.0"),
        ({"ids": [[]] * 32}, "ids.0"),
        ({"ids": [[1] * 33] * 32}, "ids"),
        ({"roles": ["text"]}, "roles: 1 for 32 texts"),
        ({"texts": [["a", "b"]] * 32}, "texts"),
        ({"vectors": None}, "vectors"),
        ({"vectors": [[1.0]] * 32}, "vectors: not 32 rows of 24 numbers"),
        ({"vectors": [["a"] * 24] * 32}, "vectors"),
        ({"vectors": [[float("nan")] * 24] * 32}, "vectors"),
        ({"vectors": [[10**400] * 24] * 32}, "vectors"),
        ({"vectors": [[100.0] * 24] * 32}, "vectors"),
    ],
)
def test_golden_texts_that_are_wrong(copy: Path, changes: dict[str, Any], key: str):
    """Vectors of a hundred times the length would reach any cosine."""
    write(copy, "parity.json", {**files.read_json(copy / "parity.json"), **changes})
    lines = refused(verify.verify, copy)
    assert lines[0].startswith(f"{copy / 'parity.json'}: {key}")


def test_the_smallest_runner_checks_its_golden_texts(copy: Path, monkeypatch):
    main = runpy.run_path(str(SMALLEST_RUNNER))["main"]
    monkeypatch.setattr("sys.argv", ["embed.py", str(copy), "w8", "--check"])
    assert main() == 0
    golden = files.read_json(copy / "parity.json")
    for change in ("ids", "vectors"):
        write(copy, "parity.json", {**golden, change: golden[change][::-1]})
        assert main() == 1
    write(copy, "parity.json", golden)
    write_manifest(copy, files={})
    with pytest.raises(SystemExit, match="changed since export"):
        main()
