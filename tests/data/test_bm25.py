"""BM25 by hand, beside its library, in several scripts; joined with cosines."""

from __future__ import annotations

import sys
from math import log

import numpy as np
import pytest

from edgedistill.data import bm25
from edgedistill.errors import UserError

THREE = ["red apple red", "green apple", "blue stone wall house"]


def test_three_texts_by_hand():
    """Lengths 3, 2, 4, mean 3; red is in one text of three, apple in two."""
    found = bm25.BM25(THREE, "three")
    rare, frequent = log(1 + 2.5 / 1.5), log(1 + 1.5 / 2.5)
    even, short = 0.9, 0.9 * (0.6 + 0.4 * 2 / 3)  # k1 (1 − b + b × length / mean)
    expected = [
        [rare * 2 / (2 + even) + frequent / (1 + even), frequent / (1 + short), 0],
        [0, 0, 0],
        [2 * rare * 2 / (2 + even), 0, 0],  # a word of a query counts as often as it is there
    ]
    assert found.scores(["Red APPLE!", "nothing known", "red red"]) == pytest.approx(
        np.array(expected), rel=1e-6
    )
    assert found.scores(["red"]).dtype == np.float32
    assert found.scores([]).shape == (0, 3)
    assert len(found) == 3 and found.language is None


def test_scores_are_those_of_the_library():
    import bm25s
    import Stemmer

    texts = [
        "The cats are sitting on the mats and they were not moving",
        "A dog that runs with the other running dogs",
        "Nobody knows where the houses of the city have been",
    ]
    queries = ["do cats sit on a mat?", "the runner's dog", "house in cities"]
    options = {"stopwords": "en_plus", "show_progress": False, "token_pattern": r"(?u)\b\w+\b"}
    stemmer = Stemmer.Stemmer("english")
    library = bm25s.BM25(k1=0.9, b=0.4, method="lucene")
    library.index(bm25s.tokenize(texts, stemmer=stemmer, **options), show_progress=False)
    asked = bm25s.tokenize(queries, stemmer=stemmer, return_ids=False, **options)
    found = bm25.BM25(texts, "texts")
    assert found.language == "english"
    scores = found.scores(queries)
    assert scores == pytest.approx(np.stack([library.get_scores(words) for words in asked]), rel=1e-6)
    assert scores.argmax(axis=1).tolist() == [0, 1, 2]
    assert scores.tobytes() == bm25.BM25(iter(texts), "texts").scores(queries).tobytes()


def test_shares_of_a_query_by_hand():
    """BM25 by the idf of all words of the query; a text with one word of three has a tenth of that."""
    found = bm25.BM25(THREE, "three")
    rare, frequent, unknown = log(1 + 2.5 / 1.5), log(1 + 1.5 / 2.5), log(1 + 3.5 / 0.5)
    even, short = 0.9, 0.9 * (0.6 + 0.4 * 2 / 3)
    both = (rare * 2 / (2 + even) + frequent / (1 + even)) / (rare + frequent)
    expected = [
        [both, frequent / (1 + short) / (rare + frequent) / 10, 0],
        [2 / (2 + even), 0, 0],
        [0, 0, 0],
        [0, 0, 0],
        [rare * 2 / (2 + even) / (rare + 2 * unknown) / 10, 0, 0],
    ]
    queries = ["red apple", "red Red", "nothing", "", "red zebra moon"]
    assert found.shares(queries) == pytest.approx(np.array(expected), rel=1e-5)
    assert found.shares([]).shape == (0, 3)


def test_joined_by_hand():
    cosines, shares = np.array([[0.1, 0.2, 0.3]], np.float32), np.array([[0.5, 0, 0.25]], np.float32)
    assert bm25.joined(cosines, shares) == pytest.approx(np.array([[0.875, 0, 0.625]]), abs=1e-6)
    assert bm25.joined(cosines, shares, 0) == pytest.approx(np.array([[-0.125, 0, 0.125]]), abs=1e-6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't STOP: 3.5 naïve caﬁs_x", ["don", "t", "stop", "3", "5", "naive", "cafis", "x"]),
        ("हिन्दी में", ["हिन्दी", "में"]),  # vowel signs are marks
        ("東京都に行く", ["東京", "京都", "都に", "に行", "行く"]),
        ("GPU版データ、本", ["gpu", "版デ", "デー", "ータ", "本"]),
        ("ｶﾅ １２", ["カナ", "12"]),
        ("서울에서 봄", ["서울", "울에", "에서", "봄"]),
        ("ภาษา", ["ภา", "าษ", "ษา"]),
        ("Ёлка, שָׁלוֹם", ["елка", "שלום"]),
        (
            "data\u200bbase In\u00addex\u00adfonds \ufeffBOM می\u200cخواهم",
            ["database", "indexfonds", "bom", "میخواهم"],
        ),
        ("🙂 … --", []),
    ],
)
def test_words_of_any_script(text: str, expected: list[str]):
    assert bm25.words(text) == expected


def test_finds_in_chinese_and_german():
    chinese = bm25.BM25(["我住在北京市。", "上海是一个城市", "今天天气很好"], "texts")
    assert chinese.language is None
    assert chinese.scores(["北京天气", "上海"]).argsort(axis=1)[:, -1].tolist() == [2, 1]
    german = bm25.BM25(
        ["Der Hund ist in den Häusern", "Das ist eine Katze", "Wir sind hier mit dem Rad"], "t"
    )
    assert german.language == "german"
    scores = german.scores(["das Haus", "katzen", "mit der"])
    assert (scores > 0).tolist() == [[True, False, False], [False, True, False], [False] * 3]


@pytest.mark.parametrize("texts", [[], ["", "?!"], ["the and of", "is it"]])
def test_texts_without_words_are_refused(texts: list[str]):
    with pytest.raises(UserError) as refused:
        bm25.BM25(texts, "rows.files")
    assert str(refused.value) == (
        f"rows.files: no words in {len(texts)} texts, so BM25 finds none; give other texts"
    )


def test_a_text_without_words_is_found_by_no_query():
    found = bm25.BM25(["", "red", "…"], "texts")
    assert (found.scores(["red", "…"]) > 0).tolist() == [[False, True, False], [False] * 3]


def test_names_the_extra_of_a_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(
        UserError,
        match=r'needs bm25s, which is not installed; in your clone .* pip install "\.\[search\]"',
    ):
        bm25.BM25(THREE, "three")
