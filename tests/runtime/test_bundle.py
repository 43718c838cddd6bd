"""The runner: order, padding, limits, and what it refuses."""

from __future__ import annotations

import copy as copying
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import edgedistill
from edgedistill.errors import CheckFailed, UserError
from edgedistill.runtime import bundle
from tests.conftest import sentences
from tests.runners import hostile
from tests.runtime.conftest import rewrite

TEXTS = [*sentences(30, seed=3), "", "a", "the cat " * 40]


def test_embeddings_are_in_the_order_of_the_texts_whatever_the_batches(folder: Path, monkeypatch):
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


def test_a_batch_never_holds_more_tokens_than_its_budget(folder: Path):
    opened = bundle.load(folder, precision="fp32")
    seen: list[tuple[int, int]] = []
    real = opened._session

    class Watched:
        def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
            seen.append(inputs["input_ids"].shape)
            assert (inputs["input_ids"][inputs["attention_mask"] == 0] == 0).all()
            return real.run(inputs)

    opened._session = Watched()  # type: ignore[assignment]
    opened.encode(TEXTS, batch_tokens=96)
    assert sum(rows for rows, _ in seen) == len(TEXTS)
    assert max(rows * tokens for rows, tokens in seen) <= 96
    assert len(seen) < len(TEXTS) / 2
    assert [tokens for _, tokens in seen] == sorted((tokens for _, tokens in seen), reverse=True)


def test_several_threads_may_call_one_bundle(folder: Path):
    opened = bundle.load(folder)
    alone = opened.encode(TEXTS)
    with ThreadPoolExecutor(8) as threads:
        assert all((rows == alone).all() for rows in threads.map(opened.encode, [TEXTS] * 24))


def test_nothing_in_nothing_out(folder: Path):
    opened = bundle.load(folder)
    assert opened.encode([]).shape == opened.encode_ids([]).shape == (0, 24)
    assert opened.tokenize([]) == []


def test_texts_are_truncated_at_the_limit(folder: Path):
    opened = bundle.load(folder)
    ids = opened.tokenize(TEXTS)
    assert max(len(row) for row in ids) == opened.max_tokens == 32
    assert all(row.dtype == np.int64 and row[0] == 2 and row[-1] == 3 for row in ids)  # [CLS], [SEP]
    assert np.allclose(opened.encode_ids(ids), opened.encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", "b", 3], "texts[2]: int, not a string; give strings"),
        (["a", None], "texts[1]: NoneType, not a string; give strings"),
        ([("a", "b")], "texts[0]: tuple, not a string; give strings"),
        (["a", "b\ud83d"], "texts[1]: contains half a surrogate pair, which is not text; decode it again"),
    ],
)
def test_an_item_that_is_not_a_string_is_named_by_its_index(folder: Path, texts: Any, message: str):
    with pytest.raises(UserError) as caught:
        bundle.load(folder).encode(texts)
    assert str(caught.value) == message


ORDERED: dict[str, Callable[[list[str]], Any]] = {
    "tuple": tuple,
    "generator": lambda texts: (text for text in texts),
    "map": lambda texts: map(str, texts),
    "array of str": np.array,
    "array of objects": lambda texts: np.array(texts, object),
    "column of pandas": lambda texts: pd.Series(texts, index=range(50, 50 + len(texts))),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "a table": (
        pd.DataFrame({"a": ["x", "y", "z"], "b": ["x", "y", "z"]}),
        "DataFrame, not one column; give one, such as table['text']",
    ),
    "an array of two dimensions": (
        np.array([["a", "b"], ["c", "d"]]),
        "ndarray, not one column; give one, such as table['text']",
    ),
    "an array of none": (np.array("a"), "ndarray, not one column; give one, such as table['text']"),
    "a set": ({"a", "b"}, "set, which has no order; give a list"),
    "a mapping": ({"a": 1}, "dict, not a list of strings; give a list"),
    "bytes": (b"ab", "bytes, not a list of strings; give a list"),
    "None": (None, "NoneType, not a list of strings; give a list"),
}


@pytest.fixture(scope="module")
def classifier(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bundle.Bundle:
    """A graph of 24 outputs, read as logits."""
    place = Path(shutil.copytree(folder, tmp_path_factory.mktemp("classifier") / "x"))
    hostile.control(place)
    rewrite(place, labels=[f"label {at}" for at in range(24)])
    return bundle.load(place)


@pytest.mark.parametrize("kind", ORDERED)
def test_any_iterable_that_has_an_order(folder: Path, classifier: bundle.Bundle, kind: str, monkeypatch):
    """Its length and its items come from one reading of it: every row of the result is written."""
    monkeypatch.setattr(bundle, "WINDOW", 7)
    opened, texts, make = bundle.load(folder, precision="fp32"), sentences(20, seed=4), ORDERED[kind]
    assert np.array_equal(opened.encode(make(texts)), opened.encode(texts))
    assert [row.tolist() for row in opened.tokenize(make(texts))] == [
        row.tolist() for row in opened.tokenize(texts)
    ]
    assert np.array_equal(
        classifier.logits(make(texts)),
        np.concatenate([classifier.logits(texts[at : at + 7]) for at in (0, 7, 14)]),
    )
    assert classifier.classify(make(texts)).labels == classifier.classify(texts).labels


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_order_or_several_columns(folder: Path, classifier: bundle.Bundle, kind: str):
    items, fact = REFUSED[kind]
    opened = bundle.load(folder)
    calls: dict[str, list[Callable[[Any], Any]]] = {
        "texts": [opened.encode, opened.tokenize],
        "items": [classifier.logits, classifier.classify, classifier.tokenize_items],
    }
    for name, functions in calls.items():
        for function in functions:
            with pytest.raises(UserError) as caught:
                function(items)
            assert str(caught.value) == f"{name}: {fact}"


def test_an_index_is_that_of_all_texts(folder: Path, monkeypatch):
    monkeypatch.setattr(bundle, "WINDOW", 7)
    with pytest.raises(UserError, match=r"texts\[16\]: contains half a surrogate pair"):
        bundle.load(folder).encode("b\ud83d" if at == 16 else "a" for at in range(20))
    with pytest.raises(UserError, match=r"texts\[1\]: float, not a string; give strings"):
        bundle.load(folder).encode(pd.Series(["a", np.nan]))


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2", 2**31])
def test_counts_are_whole_numbers_above_zero(folder: Path, value: Any):
    opened = bundle.load(folder)
    for name, call in {
        "threads": lambda: bundle.load(folder, threads=value),
        "batch_tokens": lambda: opened.encode(["a"], batch_tokens=value),
    }.items():
        with pytest.raises(UserError) as caught:
            call()
        assert str(caught.value).startswith(f"{name}={value!r}: not a whole number from 1 to ")


@pytest.mark.parametrize("name", ["", " ", None, 3])
def test_a_name_that_is_none(name: Any):
    with pytest.raises(UserError, match="no name; give a bundle's folder, or the name of a bundle"):
        bundle.load(name)


def test_a_bundle_is_copied_and_pickled_by_its_folder(copy: Path, tmp_path, monkeypatch):
    monkeypatch.chdir(copy.parent)
    opened = bundle.load(copy.name, precision="w8", threads=1)
    pickled, copied = pickle.dumps(opened), copying.deepcopy(opened)
    monkeypatch.chdir("/")
    for other in (pickle.loads(pickled), copied):
        assert (other.precision, other.threads) == ("w8", 1)
        assert np.array_equal(other.encode(TEXTS[:3]), opened.encode(TEXTS[:3]))
    rewrite(copy, prompt="the dog ")
    with pytest.raises(CheckFailed, match=rf"^{copy}: changed since it was opened; open it with edgedistill"):
        pickle.loads(pickled)


def test_a_file_is_not_a_bundle():
    with pytest.raises(UserError, match=f"^{__file__}: a file; give a bundle's folder"):
        bundle.load(__file__)


def test_a_closed_bundle_says_so(folder: Path, classifier: bundle.Bundle):
    with bundle.load(folder) as opened:
        assert opened.encode("a").shape == (24,)
    again = pickle.loads(pickle.dumps(classifier))
    again.close()
    for call in (opened.encode, opened.encode_query, again.classify):
        with pytest.raises(UserError, match=r": closed; open it again with edgedistill\.load"):
            call(["a"])


# Search


def test_a_query_that_is_no_text(folder: Path):
    opened = bundle.load(folder)
    assert opened.search(TEXTS[1], TEXTS, k=1)[0].tolist() == [1]
    wrong: Any = None
    with pytest.raises(UserError, match="^query: NoneType, not a string or a list of strings; give a "):
        opened.search(wrong, TEXTS)


def test_a_bundle_searches_texts_and_embeddings(copy: Path):
    rewrite(copy, query_prompt="the dog ", dims=[24, 8])
    opened, queries = bundle.load(copy), sentences(3, seed=8)
    documents = sentences(40, seed=9)
    cosines = opened.encode_query(queries) @ opened.encode_document(documents).T
    expected = np.argsort(-cosines, axis=1, kind="stable")[:, :5]
    numbers, found = opened.search(iter(queries), (text for text in documents), 5)
    assert np.array_equal(numbers, expected)
    assert np.allclose(found, np.take_along_axis(cosines, expected, axis=1), atol=1e-6)
    one, of_one = opened.search(queries[0], documents, k=5)
    assert np.array_equal(one, expected[0]) and np.allclose(of_one, found[0])
    for dim in (24, 8):
        rows = opened.encode_document(documents, dim)
        given, _ = opened.search(queries, rows, 5)
        assert np.array_equal(given, np.argsort(-opened.encode_query(queries, dim) @ rows.T)[:, :5])
    bits = opened.search(documents[7], opened.encode_document(documents, precision="binary"), 40)[0]
    assert sorted(bits) == list(range(40))
    assert [each.shape for each in opened.search("a", [])] == [(0,), (0,)]
    assert opened.search("a", documents, 99)[0].shape == (40,)


def test_a_bundle_refuses_embeddings_of_others(folder: Path):
    opened = bundle.load(folder)
    for shape in ((3, 9), (24,), ()):
        with pytest.raises(UserError) as caught:
            opened.search("a", np.ones(shape, np.float32))
        fact = f"documents: embeddings of shape {shape}, those of run have (n, 24)"
        assert str(caught.value) == f"{fact}; give what encode_document returns"
    with pytest.raises(UserError, match=r"k=0: not a whole number from 1 to "):
        opened.search("a", TEXTS, 0)
    with pytest.raises(UserError, match="texts: DataFrame, not one column"):
        opened.search("a", pd.DataFrame({"a": ["x"]}))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("status", [0, 7])
def test_a_forked_child_ends(folder: Path, status: int):
    """With its own status and what it has printed, though onnxruntime's threads are its parent's."""
    script = """
import os, signal, sys, edgedistill
opened = edgedistill.load(sys.argv[1], threads=2)
expected = opened.encode(["a text"] * 40)
child = os.fork()
if child == 0:
    signal.alarm(120)
    assert (opened.encode(["a text"] * 40) == expected).all()
    print("same")
    sys.exit(int(sys.argv[2]))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-c", script, str(folder), str(status)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true" if status else "false"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["same", str(status)]


@pytest.mark.parametrize("length", [0, 33])
def test_ids_must_fit(folder: Path, length: int):
    with pytest.raises(UserError, match=rf"ids\[1\]: {length} tokens; this bundle takes 1 to 32"):
        bundle.load(folder).encode_ids([np.array([2, 3]), np.full(length, 5)])


def test_matryoshka_embeddings_are_cut_and_normalized(copy: Path):
    whole = bundle.load(copy).encode(TEXTS)
    with pytest.raises(UserError, match="dim=8: run has 24 dimensions and cannot be cut; leave it out"):
        bundle.load(copy).encode(TEXTS, dim=8)
    rewrite(copy, dims=[24, 8])
    opened = bundle.load(copy)
    cut = opened.encode(TEXTS, dim=8)
    assert np.allclose(cut, whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True), atol=1e-6)
    assert np.allclose(opened.encode(TEXTS), whole, atol=1e-6)
    with pytest.raises(UserError, match="dim=9: run was trained for 24, 8 dimensions; choose one of these"):
        opened.encode(TEXTS, dim=9)


def test_the_prompt_is_put_before_every_text(copy: Path):
    plain = bundle.load(copy)
    rewrite(copy, prompt="the dog ")
    prompted = bundle.load(copy)
    assert np.allclose(prompted.encode(TEXTS), plain.encode(["the dog " + text for text in TEXTS]), atol=1e-6)
    assert not np.allclose(prompted.encode(TEXTS), plain.encode(TEXTS), atol=0.01)


def test_one_string_gives_one_embedding(copy: Path):
    opened = bundle.load(copy)
    one = opened.encode("the cat eats a red apple")
    assert one.shape == (24,)
    assert np.array_equal(one, opened.encode(["the cat eats a red apple"])[0])
    rewrite(copy, dims=[24, 8])
    assert bundle.load(copy).encode("", dim=8).shape == (8,)
    assert repr(opened) == "<Bundle run:int8>"


# Similarity


def test_similarity_is_the_cosine_of_every_pair(folder: Path):
    a, b = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [-6.0, -8.0]])
    expected = [[0.6, -1.0], [0.0, 0.0], [1.0, -0.6]]
    assert np.allclose(edgedistill.similarity(a, b), expected)
    assert np.allclose(edgedistill.similarity(a[0], b), expected[:1])
    assert np.allclose(edgedistill.similarity(a.tolist(), b.tolist()), expected)
    assert edgedistill.similarity(a, b[:0]).shape == (3, 0)
    opened = bundle.load(folder)
    rows = opened.encode(TEXTS)
    assert opened.similarity(rows, rows[:2]).dtype == np.float32
    assert np.allclose(opened.similarity(rows, rows[:2]), rows @ rows[:2].T, atol=1e-6)


@pytest.mark.parametrize("texts", [["a text", "another"], [[1, 2], [3]], [10**400]])
def test_similarity_refuses_what_is_no_array_of_numbers(texts: Any):
    with pytest.raises(UserError) as caught:
        edgedistill.similarity(texts, [1.0])
    assert (
        str(caught.value)
        == "a: not an array of numbers; give embeddings, as encode returns them (texts: Bundle.search)"
    )


def test_similarity_refuses_other_shapes():
    with pytest.raises(
        UserError, match="similarity: a has 3 dimensions, b has 2; encode both with the same bundle and dim"
    ):
        edgedistill.similarity(np.ones((2, 3)), np.ones((2, 2)))
    with pytest.raises(
        UserError,
        match=r"b: an array of shape \(1, 2, 3\), not \(n, d\) or \(d,\)",
    ):
        edgedistill.similarity(np.ones(3), np.ones((1, 2, 3)))


def test_two_spaces_are_refused_where_both_are_known(copy: Path):
    opened = bundle.load(copy)
    rows, other = opened.encode(TEXTS[:3]), "0" * 16
    assert opened.search(TEXTS[0], rows, 1, space=opened.space)[0] == [0]
    assert edgedistill.similarity(rows, rows, (opened.space, None)).shape == (3, 3)
    for ask in (
        lambda: opened.search(TEXTS[0], rows, space=other),
        lambda: edgedistill.search(rows, rows, spaces=(opened.space, other)),
        lambda: edgedistill.similarity(rows, rows, (other, opened.space)),
    ):
        with pytest.raises(UserError, match=rf"spaces .*{other}.*: embeddings of two spaces"):
            ask()


# The package


def test_the_package_offers_its_classes_and_errors():
    assert edgedistill.Bundle is bundle.Bundle
    assert edgedistill.CheckFailed is CheckFailed
    offered = "Bundle CheckFailed UserError __version__ load search shipped similarity"
    assert dir(edgedistill) == offered.split()
    with pytest.raises(AttributeError, match="has no attribute 'embed'"):
        _ = edgedistill.embed
