"""Bundles of tests/runners/hostile.py in this runner: refused in words, with no numbers, and nothing else is
read."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from edgedistill.errors import CheckFailed, UserError
from edgedistill.runtime import bundle, verify
from edgedistill.runtime.trust import tokenizer_check
from tests.runners import hostile

OPENING = hostile.OPENING
ENCODING = {
    name: edit for name, edit in hostile.ENCODING.items() if not name.startswith("Replace: ")
}  # the patterns are Split's


@pytest.fixture(scope="module")
def good(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundle without its graphs, which are replaced."""
    return Path(
        shutil.copytree(
            folder, tmp_path_factory.mktemp("good") / "x", ignore=shutil.ignore_patterns("*.onnx")
        )
    )


@pytest.fixture
def place(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "x"))


def refusal(folder: Path) -> str:
    """Why a bundle is not opened or, if it is, why it embeds no text."""
    with pytest.raises((UserError, CheckFailed)) as caught:
        bundle.load(folder, threads=1).encode([hostile.TEXT, "a"])
    return str(caught.value)


def test_the_graph_that_the_others_change(place: Path):
    hostile.control(place)
    rows = bundle.load(place, threads=1).encode([hostile.TEXT, "a", "the cat"])
    assert rows.shape == (3, 24) and np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert (rows @ rows.T)[~np.eye(3, dtype=bool)].max() < 0.99


@pytest.mark.parametrize("name", OPENING)
def test_refused_when_it_is_opened(place: Path, name: str):
    OPENING[name](place)
    with pytest.raises((UserError, CheckFailed)) as caught:
        bundle.load(place, threads=1)
    assert all(line.startswith(f"{place}") for line in str(caught.value).splitlines())


@pytest.mark.parametrize("name", ENCODING)
def test_refused_before_it_gives_numbers(place: Path, name: str):
    ENCODING[name](place)
    assert all(line.startswith(f"{place}") for line in refusal(place).splitlines())


@pytest.mark.parametrize("name", hostile.READING)
def test_a_size_is_checked_before_the_hash(place: Path, name: str):
    hostile.READING[name](place)
    with pytest.raises(
        (UserError, CheckFailed),
        match=rf"{name.split()[0]}: 200000000000 bytes, such a file has at most 64000000",
    ):
        verify.verify(place)


@pytest.mark.parametrize(
    ("edit", "fact"),
    [
        (hostile.RUNS["NaN that is computed"], "its graph returns a number that is not finite"),
        (hostile.RUNS["not of unit length"], "its graph returns an embedding that is not of unit length"),
        (
            hostile.RUNS["output too narrow"],
            "its graph returns float32 (1, 3) where float32 (1, 24) is right",
        ),
        (hostile.RUNS["fails for long texts only"], "onnxruntime fails on its graph ("),
        (hostile.TOKENIZERS["token id above the table"], "onnxruntime fails on its graph ("),
        (hostile.manifest(made_at="soon"), "made_at: 'soon': "),
        (
            hostile.manifest(made_at="2026-02-31T00:00:00Z"),
            "made_at: '2026-02-31T00:00:00Z': ",
        ),
        (hostile.manifest(made_at=float("nan")), "not JSON (NaN or Infinity)"),
    ],
)
def test_what_a_refusal_names(place: Path, edit: hostile.Edit, fact: str):
    edit(place)
    assert fact in refusal(place)


def test_a_text_that_a_bundle_embeds_before_the_one_it_fails_on(place: Path):
    """The check is of each run, not of the first."""
    hostile.RUNS["fails for long texts only"](place)
    opened = bundle.load(place, threads=1)
    assert opened.encode(["the cat"]).shape == (1, 24)
    with pytest.raises(CheckFailed):
        opened.encode(["the cat", hostile.TEXT])


def test_only_patterns_of_published_tokenizers_and_simpler_ones():
    others = [*hostile.REGEXES.values(), *hostile.OTHERS, "[a\n&&b]"]
    for pattern in [*hostile.PUBLISHED, *others]:
        split = {"type": "Split", "pattern": {"Regex": pattern}}
        data = json.dumps({"model": {"type": "WordPiece", "vocab": {}}, "pre_tokenizer": split}).encode()
        with pytest.raises(ValueError) if pattern in others else nullcontext():
            tokenizer_check.check_tokenizer(data)
