"""A static student in one file: from a run or a bundle, and what is refused, with nothing left on disk."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedistill import files
from edgedistill.errors import CheckFailed, UserError
from edgedistill.export import parity
from edgedistill.mobile import static_file
from edgedistill.run import open_run
from tests.export.test_export import make_run
from tests.test_cli import call, last

LINES = 100


def quiet(line: str) -> None:
    pass


def opened(folder: Path) -> Any:
    return runpy.run_path(str(folder / "student.py"))["Student"]((folder / "student.bin").read_bytes())


@pytest.mark.parametrize(
    ("precision", "shape", "least"),
    [
        ("w4", {}, 0.999),
        ("w8", {"head": None, "width": 33}, 0.9999),
        (None, {"pq_bytes": 16, "tanh": True}, 0.9999),
        (None, {"pq_bytes": 16, "head": None}, 0.9999),
        ("w8", {"pq_bytes": 16, "pq_centroids": 300}, 0.9999),
    ],
    ids=["head", "rows of an odd width", "PQ codes, tanh", "PQ codes alone", "codes of two bytes"],
)
def test_a_run(tmp_path: Path, precision: str | None, shape: dict[str, Any], least: float) -> None:
    """It embeds as torch does, with a prompt for queries."""
    run = open_run(make_run(tmp_path / "run", "static", query_prompt="who ", **shape))
    found = static_file.write(str(run.folder), precision, tmp_path / "out", quiet, LINES)
    student, golden = opened(tmp_path / "out"), parity.by_torch(run, run.student())
    pairs = list(zip(golden.texts, golden.roles, strict=True))
    assert [student.tokenize(*pair) for pair in pairs] == golden.ids
    rows = np.array([student.encode(*pair) for pair in pairs])
    cosines = (rows * golden.rows).sum(1)
    assert rows.shape[1] == run.dims and least <= cosines.min() < 1.00001
    assert found["precision"] == (precision or "pq")
    assert found["cosine"] == pytest.approx(cosines.min(), abs=2e-6)
    assert "query" in golden.roles and student.tokenize("a", "query") != student.tokenize("a")


def test_a_projection_of_words_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "static", lexical=0.5)
    with pytest.raises(
        UserError, match="a student static, with a projection of words, and student.bin holds"
    ):
        static_file.write(str(run), None, tmp_path / "out", quiet, LINES)


def test_the_command(tmp_path: Path) -> None:
    """A folder of it is replaced with --overwrite alone, any other never; options of a bundle are refused."""
    run = make_run(tmp_path / "run", "static")
    done = call("export", run, "--static", "out", "--json", folder=tmp_path)
    assert done.returncode == 0 and last(done)["precision"] == "w4" and last(done)["texts"] == 10_000
    names = sorted(path.name for path in (files.shipped_folder("runner") / "static").iterdir())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*names, "student.bin"])
    again = call("export", run, "--static", "out", folder=tmp_path)
    assert (again.returncode, again.stderr.strip()) == (
        2,
        "out: exists already; add --overwrite to replace it, or choose another --static",
    )
    (tmp_path / "mine").mkdir()
    for options, expected in (
        (
            ["--static", "mine"],
            "mine: exists already and is not a folder with student.bin",
        ),
        (["--static", "x", "--out", "y"], "--static x: writes no bundle; leave --out out"),
        (["--static", "x", "--precision", "int8"], "--precision int8: student.bin has rows in 4 or 8 bits"),
    ):
        refused = call("export", run, *options, "--overwrite", folder=tmp_path)
        assert refused.returncode == 2 and refused.stderr.startswith(expected)
    refused = call("export", "nano", "--static", "x", folder=tmp_path)
    assert refused.returncode == 2
    assert " ".join(refused.stderr.split()) == (
        "nano: a student of kind bert, with a projection of words, and student.bin holds one static table; "
        "run its bundle with "
        "onnxruntime, see export/README.md"
    )
    assert not (tmp_path / "x").exists() and not list((tmp_path / "mine").iterdir())


def test_codes_have_no_precision(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "static", pq_bytes=16)
    refused = call("export", run, "--static", "x", "--precision", "w8", folder=tmp_path)
    fact = f"--precision w8: {run} has PQ codes, kept as they are; leave it out"
    assert refused.returncode == 2 and refused.stderr.strip() == fact
    assert not (tmp_path / "x").exists()


def token(**flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": 8, "content": "cat", **plain, **flags}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda found: {"normalizer": {"type": "NFC"}}, "normalizer NFC in place of BertNormalizer"),
        (
            lambda found: {"normalizer": {"type": "Sequence", "normalizers": [found["normalizer"]]}},
            "normalizer Sequence in place of BertNormalizer",
        ),
        (
            lambda found: {"pre_tokenizer": {"type": "WhitespaceSplit"}},
            "pre_tokenizer WhitespaceSplit in place of BertPreTokenizer",
        ),
        (
            lambda found: {"model": {**found["model"], "type": "WordLevel"}},
            "model WordLevel in place of WordPiece",
        ),
        (
            lambda found: {"added_tokens": [*found["added_tokens"], token(normalized=True, rstrip=True)]},
            'normalized, rstrip of the added token "cat"',
        ),
    ],
)
def test_tokenizers_that_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], expected: str
) -> None:
    run = make_run(tmp_path / "run", "static")
    path = run / "tokenizer" / "tokenizer.json"
    found = files.read_json(path)
    files.write_json(path, {**found, **change(found)})
    with pytest.raises(UserError) as refused:
        static_file.write(str(run), "w4", tmp_path / "out", quiet, LINES)
    assert f"tokenizer: {expected}, which student.bin cannot hold; run its bundle" in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_truncation_on_the_left_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "static")
    path = run / "tokenizer" / "tokenizer_config.json"
    files.write_json(path, {**files.read_json(path), "truncation_side": "left"})
    with pytest.raises(UserError, match="tokenizer: truncation on the left, which student.bin cannot hold"):
        static_file.write(str(run), "w4", tmp_path / "out", quiet, LINES)


def test_what_four_bits_lose_is_not_written(tmp_path: Path) -> None:
    """Beside large numbers that the head leaves out, four bits keep nothing of the others."""

    def change(module: Any) -> None:
        module.embedding.weight.data[1:, ::32] = 1_000
        module.head.weight.data[:, ::32] = 0

    run = make_run(tmp_path / "run", "static", change, head={"dims": 24, "bias": False})
    expected = r"out was not written: text \d+ of \d+ .* cosine .* by student.bin"
    with pytest.raises(CheckFailed, match=expected):
        static_file.write(str(run), "w4", tmp_path / "out", quiet, LINES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_words_longer_than_a_reader_looks_up(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "static")
    path = run / "tokenizer" / "tokenizer.json"
    found = files.read_json(path)
    files.write_json(path, {**found, "model": {**found["model"], "max_input_chars_per_word": 2_000}})
    with pytest.raises(UserError, match="student.bin cannot hold it .*; run its bundle with onnxruntime"):
        static_file.write(str(run), "w4", tmp_path / "out", quiet, LINES)
