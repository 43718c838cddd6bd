"""The runner: order, padding, limits; a bundle that is not whole is not opened; files stream through."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedistill
from edgedistill import files, machine
from edgedistill.errors import AnswerIsNo, UserError
from edgedistill.export import bundle_writer
from edgedistill.runtime import bundle, embed_file, verify
from tests.conftest import sentences
from tests.export.test_export import make_run

TEXTS = [*sentences(30, seed=3), "", "a", "the cat " * 40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bundles")
    bundle_writer.export(make_run(root / "run"), ["fp32", "w8", "int8"], root / "x", lambda line: None)
    return root / "x"


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A bundle to break."""
    return Path(shutil.copytree(folder, tmp_path / "x"))


def rewrite(folder: Path, name: str = "manifest.json", **changes: Any) -> None:
    """Change keys of a JSON file of a bundle; the manifest is told its new hash, as by someone who knows how."""
    changed = {**files.read_json(folder / name), **changes}
    files.write_json(folder / name, {**changed, "digest": bundle.digest(changed)} if name == "manifest.json" else changed)
    if name != "manifest.json":
        rewrite(folder, files={**files.read_json(folder / "manifest.json")["files"], name: files.sha256_file(folder / name)})


def test_vectors_come_back_in_order_whatever_the_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = bundle.load(folder)
    alone = np.concatenate([opened.encode([text]) for text in TEXTS])
    assert alone.shape == (33, 24)
    assert alone.dtype == np.float32
    assert np.allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-5)
    assert (alone @ alone.T)[~np.eye(33, dtype=bool)].min() < 0.9
    for batch_tokens in (1, 64, 100_000):
        assert np.allclose(opened.encode(TEXTS, batch_tokens=batch_tokens), alone, atol=1e-5)
    monkeypatch.setattr(bundle, "WINDOW", 7)
    assert np.allclose(opened.encode(tuple(TEXTS)), alone, atol=1e-5)


def test_a_batch_never_holds_more_tokens_than_its_budget(folder: Path) -> None:
    opened = bundle.load(folder, precision="fp32")
    seen: list[tuple[int, int]] = []
    real = opened._session

    class Watched:
        def run(self, outputs: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            seen.append(inputs["input_ids"].shape)
            assert (inputs["input_ids"][inputs["attention_mask"] == 0] == 0).all()
            return real.run(outputs, inputs)

    opened._session = Watched()
    opened.encode(TEXTS, batch_tokens=96)
    assert sum(rows for rows, _ in seen) == len(TEXTS)
    assert max(rows * tokens for rows, tokens in seen) <= 96
    assert len(seen) < len(TEXTS) / 2
    assert [tokens for _, tokens in seen] == sorted((tokens for _, tokens in seen), reverse=True)


def test_nothing_in_nothing_out(folder: Path) -> None:
    opened = bundle.load(folder)
    assert opened.encode([]).shape == opened.encode_ids([]).shape == (0, 24)
    assert opened.tokenize([]) == []


def test_tokens_are_cut_at_the_limit(folder: Path) -> None:
    opened = bundle.load(folder)
    ids = opened.tokenize(TEXTS)
    assert max(len(row) for row in ids) == opened.max_tokens == 32
    assert all(row.dtype == np.int64 and row[0] == 2 and row[-1] == 3 for row in ids)  # [CLS], [SEP]
    assert np.allclose(opened.encode_ids(ids), opened.encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a text", "texts: one string; put it in a list"),
        (["a", "b", 3], "texts[2]: int, not text; give strings"),
        (["a", None], "texts[1]: NoneType, not text; give strings"),
        ([("a", "b")], "texts[0]: tuple, not text; give strings"),
        (["a", "b\ud83d"], "texts[1]: holds half a surrogate pair, which is no text; decode it again"),
    ],
)
def test_what_is_not_text_is_named_by_its_place(folder: Path, texts: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        bundle.load(folder).encode(texts)
    assert str(caught.value) == message


@pytest.mark.parametrize("length", [0, 33])
def test_ids_must_fit(folder: Path, length: int) -> None:
    with pytest.raises(UserError, match=rf"ids\[1\]: {length} tokens; this bundle takes 1 to 32"):
        bundle.load(folder).encode_ids([np.array([2, 3]), np.full(length, 5)])


def test_matryoshka_vectors_are_cut_and_made_unit_again(copy: Path) -> None:
    whole = bundle.load(copy).encode(TEXTS)
    with pytest.raises(UserError, match="dim=8: run gives 24; only Matryoshka students can be cut, leave dim out"):
        bundle.load(copy).encode(TEXTS, dim=8)
    rewrite(copy, dims=[24, 8])
    opened = bundle.load(copy)
    cut = opened.encode(TEXTS, dim=8)
    assert np.allclose(cut, whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True), atol=1e-6)
    assert np.allclose(opened.encode(TEXTS), whole, atol=1e-6)
    with pytest.raises(UserError, match="dim=9: run was trained to be cut at 24, 8; choose one"):
        opened.encode(TEXTS, dim=9)


def test_the_prompt_is_put_before_every_text(copy: Path) -> None:
    plain = bundle.load(copy)
    rewrite(copy, prompt="the dog ")
    prompted = bundle.load(copy)
    assert np.allclose(prompted.encode(TEXTS), plain.encode(["the dog " + text for text in TEXTS]), atol=1e-6)
    assert not np.allclose(prompted.encode(TEXTS), plain.encode(TEXTS), atol=0.01)


def test_progress_goes_to_stderr(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle.load(folder).encode(TEXTS, progress=True)
    assert capsys.readouterr().out == ""


# Opening


def test_which_precision_is_opened(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert edgedistill.load(folder).precision == "w8"
    assert edgedistill.load(f"{folder}:int8").precision == "int8"
    assert edgedistill.load(f"{folder}:int8", precision="fp32").precision == "fp32"
    monkeypatch.chdir(folder.parent)
    (folder.parent / "bundles").mkdir()
    (folder.parent / "bundles" / "short").symlink_to(folder)
    assert edgedistill.load("short:fp32").folder == Path("bundles/short")


def test_threads_are_as_asked(folder: Path) -> None:
    assert bundle.load(folder, threads=3).threads == 3
    assert bundle.load(folder).threads == machine.processors()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "manifest.json: schema 2, this edgedistill reads up to 1; pip install --upgrade edgedistill"),
        ({"schema": "1"}, "manifest.json: no schema number, so no bundle's manifest; copy the bundle again"),
    ],
)
def test_a_manifest_from_elsewhere(copy: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(copy, **changes)
    for opening in (bundle.load, verify.verify):
        with pytest.raises(UserError) as caught:
            opening(copy)
        assert str(caught.value).endswith(message)


@pytest.mark.parametrize("size", [0, 1, 300, -10])
def test_a_manifest_cut_short(copy: Path, size: int) -> None:
    path = copy / "manifest.json"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match="not whole JSON; it was cut short or edited: copy the bundle again"):
        bundle.load(copy)


def test_an_edited_manifest(copy: Path) -> None:
    """Its dims, thresholds and promises are what everything else is judged by."""
    manifest = files.read_json(copy / "manifest.json")
    files.write_json(copy / "manifest.json", {**manifest, "dims": [12]})
    for opening in (bundle.load, verify.verify):
        with pytest.raises(AnswerIsNo, match=r"manifest\.json: not what it was made as \(its digest differs\); copy the bundle again"):
            opening(copy)
    del manifest["digest"]
    files.write_json(copy / "manifest.json", manifest)
    assert bundle.load(copy).encode(["a"]).shape == (1, 24)
    with pytest.raises(AnswerIsNo, match=r"manifest\.json: has no digest"):
        verify.verify(copy)


def test_a_manifest_without_a_key(copy: Path) -> None:
    manifest = files.read_json(copy / "manifest.json")
    del manifest["dims"], manifest["prompt"]
    files.write_json(copy / "manifest.json", manifest)
    with pytest.raises(UserError, match=r"manifest\.json: dims, prompt missing; it was cut short or edited: copy the bundle again"):
        bundle.load(copy)


def test_no_bundle_no_precision_no_device(folder: Path, tmp_path: Path, copy: Path) -> None:
    with pytest.raises(UserError, match=r"not a bundle \(no manifest.json\); make one with edgedistill export"):
        bundle.load(tmp_path / "nothing")
    for opening in (lambda: bundle.load(folder, precision="int4"), lambda: bundle.load(f"{folder}:int4")):
        with pytest.raises(UserError, match=r"x: no precision 'int4'; did you mean 'int8'\? \(fp32, int8, w8\)"):
            opening()
    rewrite(copy, precisions={"fp32": files.read_json(copy / "manifest.json")["precisions"]["fp32"]})
    assert bundle.load(copy).precision == "fp32"
    with pytest.raises(UserError, match="no w8 here, only fp32; choose one, or export again with --precision w8"):
        bundle.load(f"{copy}:w8")
    with pytest.raises(UserError, match=r"device: no device 'cdua'; did you mean 'cuda'\? \(cpu, cuda\)"):
        bundle.load(folder, device="cdua")


@pytest.mark.parametrize("name", ["onnx/model_w8.onnx", "tokenizer.json"])
def test_one_byte_changed_is_not_opened(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    for opening in (bundle.load, verify.verify):
        with pytest.raises(
            AnswerIsNo, match=rf"{name}: not the bytes it was made with \(sha256 differs from manifest.json\); copy the bundle again"
        ):
            opening(copy)


@pytest.mark.parametrize("name", ["onnx/model_w8.onnx", "tokenizer.json"])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    for opening in (bundle.load, verify.verify):
        with pytest.raises(AnswerIsNo, match=f"{name}: missing; copy the bundle again"):
            opening(copy)


# Verifying


def test_verify_measures_every_precision(folder: Path) -> None:
    found = verify.verify(folder)
    assert found["texts"] == 32
    assert found["files"] == len(files.read_json(folder / "manifest.json")["files"])
    assert list(found["precisions"]) == ["fp32", "w8", "int8"]
    assert all(entry["threshold"] <= entry["cosine_min"] <= 1.000001 for entry in found["precisions"].values())


def test_verify_names_all_files_that_changed(copy: Path) -> None:
    (copy / "README.md").write_text("a better card")
    (copy / "config.json").unlink()
    with pytest.raises(AnswerIsNo) as caught:
        verify.verify(copy)
    assert [line.split(": ")[0].rsplit("/")[-1] for line in str(caught.value).splitlines()] == ["README.md", "config.json"]
    assert bundle.load(copy).encode(["a"]).shape == (1, 24)  # which needs neither


def test_verify_compares_vectors(copy: Path) -> None:
    vectors = np.array(files.read_json(copy / "parity.json")["vectors"])
    vectors[4] = -vectors[4]
    rewrite(copy, "parity.json", vectors=vectors.tolist())
    with pytest.raises(AnswerIsNo) as caught:
        verify.verify(copy)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert 'text 5 of 32 (".") came back at cosine -' in lines[0]
    assert [line.split(", ")[-1] for line in lines] == ["fp32 must reach 0.999990", "w8 must reach 0.9900", "int8 must reach 0.9500"]


def test_verify_compares_ids(copy: Path) -> None:
    ids = files.read_json(copy / "parity.json")["ids"]
    ids[6][1] += 1
    rewrite(copy, "parity.json", ids=ids)
    with pytest.raises(AnswerIsNo, match=r'text 7 of 32 \("How do I reset my password\?"\): token ids differ; the tokenizers package'):
        verify.verify(copy)


# Processors


def tree(folder: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("own", "contents", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("0::/a/b\n", {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "50000 100000\n"}, 0.5),
        (
            "5:memory:/x\n4:cpu,cpuacct:/d/x\n",
            {"cpu,cpuacct/d/x/cpu.cfs_quota_us": "75000", "cpu,cpuacct/d/x/cpu.cfs_period_us": "50000"},
            1.5,
        ),
        ("4:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, None),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ("4:cpu:/gone\n0::/\n", {}, None),
    ],
)
def test_the_quota_of_control_groups(tmp_path: Path, own: str, contents: dict[str, str], expected: float | None) -> None:
    groups = tree(tmp_path / "groups", contents)
    (tmp_path / "own").write_text(own)
    assert min(machine.quotas(groups, tmp_path / "own"), default=None) == expected
    all_of_them = machine.processors(tmp_path / "none", tmp_path / "none")
    found = machine.processors(groups, tmp_path / "own")
    assert found == (all_of_them if expected is None else max(1, min(all_of_them, int(expected))))


# Streaming


def test_a_file_becomes_an_array(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed_file, "CHUNK_TEXTS", 7)
    source = tmp_path / "texts.txt"
    source.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(TEXTS).encode())  # a mark of byte order, and lines as Windows ends them
    result = embed_file.embed(folder, source, tmp_path / "out" / "v.npy")
    assert result == {"texts": 33, "dims": 24, "out": str(tmp_path / "out" / "v.npy")}
    assert np.allclose(np.load(tmp_path / "out" / "v.npy"), bundle.load(folder).encode(TEXTS), atol=1e-5)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["v.npy"]


def test_a_packed_file_becomes_json_lines(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "texts.txt.gz"
    source.write_bytes(gzip.compress("\n".join([*TEXTS[:9], "line\u2028separator"]).encode() + b"\n"))
    embed_file.embed(f"{folder}:fp32", source, tmp_path / "v.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert [row["text"] for row in rows] == [*TEXTS[:9], "line\u2028separator"]
    expected = bundle.load(folder, precision="fp32").encode([row["text"] for row in rows])
    assert np.allclose([row["embedding"] for row in rows], expected, atol=1e-6)


def test_stdin_to_stdout(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a text\n\nanother")))
    assert embed_file.embed(folder) == {"texts": 3, "dims": 24, "out": None}
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["a text", "", "another"]
    assert np.allclose([row["embedding"] for row in rows], bundle.load(folder).encode(["a text", "", "another"]), atol=1e-5)


def test_an_empty_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "none.txt").touch()
    embed_file.embed(folder, tmp_path / "none.txt", tmp_path / "v.npy")
    assert np.load(tmp_path / "v.npy").shape == (0, 24)


def test_the_header_has_room_for_any_number_of_rows() -> None:
    """Its length must not change with the count, or the rows behind it would be overwritten."""
    lengths = set()
    for count in (0, 10**6, 10**15):
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (count, 384)})
        lengths.add(file.tell())
    assert len(lengths) == 1


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.txt", b"good\nfine\nbad \xff here\n", r"t\.txt: line 3: not UTF-8 \(byte 5: invalid start byte\); convert the file first"),
        ("t.txt", b"good\n" + b"x" * 300, r"t\.txt: line 2: longer than 0 MB; is this a file of texts, one a line\?"),
        ("t.txt.gz", gzip.compress(b"good\n" * 999, mtime=0)[:-12], r"t\.txt\.gz: not whole gzip \(.*\); fetch the file again"),
        ("t.txt.gz", b"plain text", r"t\.txt\.gz: not whole gzip \(.*\); fetch the file again"),
    ],
)
@pytest.mark.parametrize("out", ["v.npy", "v.jsonl"])
def test_a_bad_line_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, message: str, out: str
) -> None:
    monkeypatch.setattr(embed_file, "LONGEST_LINE", 256)
    monkeypatch.setattr(embed_file, "CHUNK_TEXTS", 1)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message):
        embed_file.embed(folder, tmp_path / name, tmp_path / out)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_where_from_and_where_to(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--out v\.csv: no format '\.csv'; choose one: \(\.jsonl, \.npy\)"):
        embed_file.embed(folder, "-", "v.csv")
    with pytest.raises(UserError, match="no such file; give a file of texts, one a line, or - for stdin"):
        embed_file.embed(folder, tmp_path / "nothing.txt", tmp_path / "v.npy")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "expected"), [("a", '"a"'), ("a\x00\n", '"a\\x00\\n"'), ("ﬁnance 🙂", '"ﬁnance 🙂"'), ("x" * 99, '"' + "x" * 40 + '…"')]
)
def test_texts_are_quoted_in_one_line(text: str, expected: str) -> None:
    assert verify.quoted(text) == expected
