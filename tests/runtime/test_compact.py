"""Embeddings in int8 and in bits: their bytes, their cosines, and search among them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedistill import search, similarity
from edgedistill.errors import UserError
from edgedistill.runtime import bundle
from edgedistill.runtime.compact import Calibration, compact, measured
from edgedistill.runtime.similarity import unit_rows
from edgedistill.serving import openai_schema
from tests.conftest import sentences
from tests.runtime.conftest import rewrite

ROWS = unit_rows(np.random.default_rng(1).standard_t(3, size=(600, 64))).astype(np.float32)  # with outliers


def test_int8_by_hand():
    """At four dimensions 1.0 is 127 · 2 / 8 = 31.75; what is beyond the range clips, and never wraps."""
    rows = np.array([[1, 0, -0.1, 0.5], [-0.6, 0.8, 0, 0]], np.float32)
    assert compact(rows, "int8").tolist() == [[32, 0, -3, 16], [-19, 25, 0, 0]]
    wide = np.zeros((2, 256), np.float32)
    wide[:, 0], wide[:, 1] = [0.51, -1.0], [0.5, 0.0]  # the range is 8 / 16
    assert compact(wide, "int8")[:, :2].tolist() == [[127, 127], [-127, 0]]


def test_int8_refuses_what_it_would_clip_and_an_export_measures_the_range():
    rows = np.random.default_rng(0).normal(size=(50, 256)).astype(np.float32)
    rows[:, :2] *= 30
    rows = unit_rows(rows)
    with pytest.raises(UserError, match="int8 clips the embedding of text 1,"):
        compact(rows, "int8")
    found = measured(rows)
    assert "int8_range" in found and found["int8_range"] <= 16
    int8 = compact(rows, "int8", Calibration(**found))
    assert np.abs(similarity(int8, int8) - similarity(rows, rows)).max() < 0.02
    assert measured(ROWS[:, :24]) == {}, "the default serves"


def test_int8_that_would_clip_is_refused_in_the_server_too(copy: Path):
    rewrite(copy, calibration={"int8_range": 0.5})
    opened, texts = bundle.load(copy), sentences(3, seed=2)
    with pytest.raises(UserError, match="int8 clips the embedding of text 0,"):
        opened.encode(texts, precision="int8")
    reader = openai_schema.RequestReader(opened, 9, 999)
    asked = reader.read(json.dumps({"input": texts, "output_dtype": "int8"}).encode())
    with pytest.raises(openai_schema.Refusal, match="output_dtype: int8 clips") as refusal:
        openai_schema.response(opened, asked, opened.encode(texts), Counter())
    assert refusal.value.status == 400


def test_bits_less_the_mean():
    """Where all embeddings point one way, plain bits are those of every text."""
    rows = unit_rows(ROWS * 0.2 + np.repeat([[0.3, -0.2]], 32, axis=0).ravel())
    mean = Calibration(mean=np.array(measured(rows)["mean"], np.float32))
    bits, plain = compact(rows, "binary", mean), compact(rows, "binary")
    exact = np.argsort(-similarity(rows[:50], rows), axis=1)[:, 1]
    found, without = (
        (search(rows[:50], stored, 20, calibration=each)[0] == exact[:, None]).any(1).mean()
        for stored, each in ((bits, mean), (plain, Calibration()))
    )
    assert found > without + 0.2
    cut = mean.centred(unit_rows(rows[:, :16]))
    assert np.abs(cut.mean(0)).max() < 0.1 and np.array_equal(Calibration().centred(rows), rows)


@pytest.mark.parametrize(
    "wrong",
    [[], {"mean": [2.0]}, {"mean": ["a"]}, {"mean": [0.1]}, {"int8_range": 0}],
)
def test_a_calibration_that_is_none_is_refused(copy: Path, wrong: Any):
    rewrite(copy, calibration=wrong)
    with pytest.raises(UserError, match="calibration"):
        bundle.load(copy)


def test_bits_by_hand():
    rows = np.array([[1, -1, 0, 1, 1, -1, -1, 1], [-1, -1, 1, 1, 1, -1, 1, 1]], np.float32)
    bits = compact(unit_rows(rows), "binary")
    assert bits.tolist() == [[0b10011001], [0b00111011]]  # 0 is not above 0
    differ = 1 - 2 * 3 / 8  # three bits do
    assert np.allclose(similarity(bits, bits), [[1, differ], [differ, 1]])
    query = np.array([0.5, 0, 0, 0, 0, 0, -0.5, 0], np.float32)
    assert np.allclose(similarity(query, bits), [[1 / 2, -1 / 2]])  # (1 + 1) and (−1 − 1), by √2 and √8


def test_a_bundle_encodes_in_every_precision(folder: Path, copy: Path):
    opened, texts = bundle.load(folder), sentences(20, seed=2)
    rows = opened.encode(texts)
    for precision, dtype, width in (
        ("float32", np.float32, 24),
        ("int8", np.int8, 24),
        ("binary", np.uint8, 3),
    ):
        found = opened.encode(texts, precision=precision)
        assert found.dtype == dtype and found.shape == (20, width)
        assert np.array_equal(found, compact(rows, precision, opened.calibration))
        assert np.array_equal(
            opened.encode(texts[3:4], precision=precision)[0], opened.encode(texts[3], precision=precision)
        )
        assert opened.encode([], precision=precision).shape == (0, width)
    rewrite(copy, dims=[24, 16])
    assert bundle.load(copy).encode(texts, dim=16, precision="binary").shape == (20, 2)


@pytest.mark.parametrize(
    ("precision", "dim", "message"),
    [
        ("w8", 24, "no precision of embeddings 'w8'; choose one: (binary, float32, int8)"),
        (
            "ubinary",
            24,
            "no precision of embeddings 'ubinary'; did you mean 'binary'? (binary, float32, int8)",
        ),
        (["int8"], 24, "no precision of embeddings ['int8']; did you mean 'int8'? (binary, float32, int8)"),
        ("binary", 12, "binary needs dimensions in whole bytes, not 12; choose int8"),
    ],
)
def test_a_precision_that_there_is_not(copy: Path, precision: Any, dim: int, message: str):
    rewrite(copy, dims=[24, 12])
    with pytest.raises(UserError) as caught:
        bundle.load(copy).encode(["a text"], dim=dim, precision=precision)
    assert str(caught.value) == f"precision: {message}"


def test_search_in_float32_and_int8_ranks_all():
    for documents in (ROWS, compact(ROWS, "int8"), np.tile(ROWS, (10, 1))):  # more than one block
        indices, cosines = search(ROWS[:7], documents, k=5)
        expected = similarity(ROWS[:7], documents)
        order = np.argsort(-expected, axis=1, kind="stable")[:, :5]
        assert np.array_equal(indices[:, 0], np.arange(7))
        assert np.allclose(cosines, np.take_along_axis(expected, order, axis=1), atol=1e-6)
        assert np.allclose(cosines, np.take_along_axis(expected, indices, axis=1), atol=1e-6)


def test_search_in_bits_scores_the_nearest_by_hamming_distance_once_more():
    bits, queries = compact(ROWS, "binary"), ROWS[:7] + 0.05
    hamming = similarity(compact(queries, "binary"), bits)
    nearest = np.argsort(-hamming, axis=1, kind="stable")[:, :20]
    for rescore in (None, compact(ROWS, "int8"), ROWS):
        again = np.take_along_axis(similarity(queries, bits if rescore is None else rescore), nearest, axis=1)
        order = np.argsort(-again, axis=1, kind="stable")[:, :5]
        indices, cosines = search(queries, bits, k=5, candidates=20, rescore=rescore)
        assert np.array_equal(indices, np.take_along_axis(nearest, order, axis=1))
        assert np.allclose(cosines, np.take_along_axis(again, order, axis=1), atol=1e-6)


def test_search_with_few_or_none():
    assert search(ROWS[0], ROWS[:3])[0].tolist() == [[0, *search(ROWS[0], ROWS[1:3])[0][0] + 1]]
    for documents in (ROWS[:0], compact(ROWS[:0], "binary")):
        assert search(ROWS[:2], documents)[0].shape == (2, 0)
    assert search(ROWS[:0], compact(ROWS, "binary"))[1].shape == (0, 10)
    equal = search(ROWS[:1], np.repeat(ROWS[:1], 9000, axis=0), k=3)[0]
    assert equal.tolist() == [[0, 1, 2]], "of equal documents the first comes first"


def test_search_refuses_what_does_not_fit():
    with pytest.raises(UserError, match="a has 64 dimensions, b has 24"):
        search(ROWS[:1], ROWS[:, :24])
    message = "search: rescore has 5 embeddings, documents has 600; give the same"
    with pytest.raises(UserError, match=message):
        search(ROWS[:1], compact(ROWS, "binary"), rescore=ROWS[:5])
