"""Verifying a bundle: every file, every precision, every golden text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgedistill import files
from edgedistill.errors import CheckFailed, quote
from edgedistill.evaluation import teacher_agreement
from edgedistill.runtime import bundle, verify
from tests.runtime.conftest import rewrite


def test_verify_measures_every_precision(folder: Path):
    found = verify.verify(folder)
    assert found["texts"] == 32
    assert found["files"] == len(files.read_json(folder / "manifest.json")["files"])
    assert list(found["precisions"]) == ["fp32", "w8", "int8"]
    assert list(verify.verify(f"{folder}:w8")["precisions"]) == ["w8"]
    assert all(
        entry["threshold"] <= entry["cosine_min"] <= 1.000001 for entry in found["precisions"].values()
    )


def test_the_summary_of_a_verification(folder: Path):
    found = verify.verify(folder)
    precision, entry = min(found["precisions"].items(), key=lambda each: each[1]["cosine_min"])
    worst = f"(worst cosine {entry['cosine_min']:.5f}, of text {entry['text']} in {precision})"
    assert precision != "fp32" and f"{entry['cosine_min']:.5f}" != "1.00000"
    expected = f"OK, {found['files']} files match their hashes, 32 golden texts match {worst}"
    assert verify.summary(str(folder), found) == f"{folder}: {expected}"
    assert (
        verify.summary("x", found) == f"x ({folder}): {expected}"
    )  # where other runners, which take no names, find it


def test_verify_names_all_files_that_changed(copy: Path):
    (copy / "README.md").write_text("a better card")
    (copy / "config.json").unlink()
    with pytest.raises(CheckFailed) as caught:
        verify.verify(copy)
    assert [line.split(": ")[0].rsplit("/")[-1] for line in str(caught.value).splitlines()] == [
        "README.md",
        "config.json",
    ]
    assert bundle.load(copy).encode(["a"]).shape == (1, 24)  # which needs neither


def test_verify_compares_embeddings(copy: Path):
    vectors = np.array(files.read_json(copy / "parity.json")["vectors"])
    vectors[4] = -vectors[4]
    rewrite(copy, "parity.json", vectors=vectors.tolist())
    with pytest.raises(CheckFailed) as caught:
        verify.verify(copy)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert 'text 5 of 32 (".") came back at cosine -' in lines[0]
    assert [line.split(", ")[-1] for line in lines] == [
        "fp32 must reach 0.999990",
        "w8 must reach 0.9900",
        "int8 must reach 0.9700",
    ]


def test_verify_compares_ids(copy: Path):
    ids = files.read_json(copy / "parity.json")["ids"]
    ids[6][1] += 1
    rewrite(copy, "parity.json", ids=ids)
    with pytest.raises(
        CheckFailed,
        match=r'text 7 of 32 \("How do I reset my password\?"\): token ids differ; this version',
    ):
        verify.verify(copy)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", '"a"'),
        ("a\x00\n", '"a\\x00\\n"'),
        ("ﬁnance 🙂", '"ﬁnance 🙂"'),
        ("x" * 99, '"' + "x" * 40 + '…"'),
    ],
)
def test_texts_are_quoted_in_one_line(text: str, expected: str):
    assert quote(text) == expected


def test_two_bundles_are_compared_on_the_same_sentences():
    same = teacher_agreement.beside("nano", "nano")
    assert same["mixable"] and (same["neighbours_kept"], same["cosine_mean"], same["same_space"]) == (
        1,
        1,
        True,
    )
    other = teacher_agreement.beside("nano", "multi")
    assert not other["mixable"] and other["neighbours_kept"] < 0.5 and not other["same_space"]
