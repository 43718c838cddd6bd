"""BM25 over a collection of texts: the words of a text in any script, scores of queries beside cosines."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedistill.errors import UserError, require

Floats = npt.NDArray[np.floating[Any]]

# Anserini's defaults, used for BEIR: Thakur et al. 2021
K1 = 0.9
B = 0.4
# Of the shares, beside the cosines above their mean. On ten collections of 50 to 3,204 texts, for three
# students, 2.5 and 3 were as good and 1.5 was worse (bench/LOG.md, 2026-11-28).
WEIGHT = 2.0
# A text with one word of several says little: with less than this share of the query's idf it counts a tenth.
LONE_SHARE = 0.35
LONE = 0.1
# In source code cosines find far more than words, so words count an eighth there: on development data, both
# together are then better than either, for three students and their teacher (bench/LOG.md, 2026-11-30).
CODE = 0.125
# A text is source code if more of its characters are among these: 73 to 100 of 100 parts of files in seven
# programming languages, at most 31 of 100 texts of 60 other collections.
SYMBOLS = "()=;"
LEAST_SYMBOLS = 0.02
# Score below which no text answers a query, with shares and by cosine alone: 2 to 3 % of the best scores are
# lower where one does, and 63 to 68 % where none does, for each of three students. Not judged of few texts.
CLOSE = 0.35
CLOSE_BY_COSINE = 0.25
FEW = 20
MOST_WEIGHT = 1_000_000.0  # beside which no cosine counts
CELLS = 1 << 23  # scores in memory at a time, 32 MiB
# languages whose stop words are in NLTK's lists, which bm25s carries, with a Snowball stemmer
LANGUAGES = (
    *("english", "german", "dutch", "french", "spanish", "italian", "portuguese"),
    *("danish", "norwegian", "swedish", "russian"),
)
# Share of a collection's words above which it is in the language whose stop words they are. In sentences of
# these languages 0.29 to 0.53 (NTREX, Tatoeba, Multi30k), in Polish, Czech and Turkish at most 0.11.
MIN_STOP_WORDS = 0.15
# Scripts without spaces between words, and Hangul, whose particles are written with the word.
UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+)"
)


# Accents of Latin, Greek and Cyrillic, vowel signs of Hebrew and Arabic: few type them in a query.
ACCENTS = re.compile("[\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670]")


class _Letters(dict[int, str]):
    """For str.translate: letters, marks and digits stay, invisible characters (Unicode Cf, such as the soft
    hyphen) go, everything else becomes a space. Marks are vowels in Hindi or Thai, which Python's \\w leaves
    out."""

    def __missing__(self, code: int) -> str:
        category = unicodedata.category(chr(code))
        kept = chr(code) if category[0] in "LMN" else " "
        self[code] = "" if category == "Cf" else kept
        return self[code]


_LETTERS = _Letters()


def words(text: str) -> list[str]:
    """Return the words of a text as `folded`; of scripts without spaces each two letters in a row, as
    Lucene's CJKAnalyzer does."""
    plain = folded(text).translate(_LETTERS).split()
    if text.isascii():
        return plain
    return [word for word_run in plain for run in UNSPACED.split(word_run) for word in _bigrams(run)]


def folded(text: str) -> str:
    """Return a text in lower case, NFKC, without accents, as the tokenizers of most students read it."""
    if text.isascii():
        return text.lower()
    plain = ACCENTS.sub("", unicodedata.normalize("NFKD", text).lower())
    return unicodedata.normalize("NFC", plain)


def _bigrams(run: str) -> Iterable[str]:
    if len(run) > 2 and UNSPACED.match(run):
        return ("".join(pair) for pair in pairwise(run))
    return [run] if run else []


class BM25:
    """BM25 in Lucene's variant over n texts, computed by bm25s (Lù 2024), with the stop words and the
    Snowball stemmer of their language.

    `language` is one of LANGUAGES; None where the texts are in none of them, and then words are compared as
    they are. `weight` is what the weight of words is to be multiplied by: CODE where most texts are source
    code, else 1. The index takes 8 bytes per distinct word of a text. Raises UserError, which begins with
    `place`, for texts without words other than stop words.
    """

    def __init__(self, texts: Iterable[str], place: str) -> None:
        bm25s = require("bm25s", "BM25", "search")
        numbers: dict[str, int] = {}
        rows, code = list[npt.NDArray[np.int32]](), 0
        for text in texts:
            rows.append(np.array([numbers.setdefault(word, len(numbers)) for word in words(text)], np.int32))
            code += sum(map(text.count, SYMBOLS)) > LEAST_SYMBOLS * len(text)
        self.weight = CODE if 2 * code > len(rows) else 1.0
        counts = np.zeros(len(numbers), np.int64)
        for row in rows:
            np.add.at(counts, row, 1)
        self.language = language_of(dict(zip(numbers, counts.tolist(), strict=True)))
        self.stop_words = _stop_words(self.language) if self.language else frozenset[str]()
        self.stem_words = stemmer(self.language)
        vocabulary: dict[str, int] = {}
        stems = self.stems(list(numbers))
        terms = np.array([vocabulary.setdefault(s, len(vocabulary)) if s else -1 for s in stems], np.int32)
        if not vocabulary:
            raise UserError(f"{place}: no words in {len(rows):,} texts, so BM25 finds none; give other texts")
        self.index = bm25s.BM25(K1, B, method="lucene", backend="numpy")
        # memoryviews, which iterate as int: bm25s takes each as a list of term numbers
        tokens = ([row[row >= 0].data for row in map(terms.__getitem__, rows)], vocabulary)
        self.index.index(tokens, create_empty_token=False, show_progress=False)

    def __len__(self) -> int:
        return int(self.index.scores["num_docs"])

    def stems(self, words: list[str]) -> list[str]:
        """Return what each word is indexed as; nothing of a stop word."""
        stems = self.stem_words(words)
        return ["" if word in self.stop_words else stem for word, stem in zip(words, stems, strict=True)]

    def scores(self, queries: Sequence[str]) -> Floats:
        """Return BM25 of each query and text, (q, n) float32; a query without known words has zeros."""
        terms = (self.index.get_tokens_ids(self.stems(words(query))) for query in queries)
        rows = [self.index.get_scores_from_ids(ids) for ids in terms]
        return np.array(rows, np.float32).reshape(-1, len(self))

    def shares(self, queries: Sequence[str]) -> Floats:
        """Return how much of each query each text has, (q, n) float32 from 0 to 1: its BM25 divided by the
        idf of all words of the query, of unknown ones too."""
        rows = [self._shares(query) for query in queries]
        return np.array(rows, np.float32).reshape(-1, len(self))

    def _shares(self, query: str) -> Floats:
        sparse = self.index.scores
        count = len(self)
        whole = 1e-9
        scores, known, words_of = (np.zeros(count, np.float32) for _ in range(3))
        for stem in dict.fromkeys(filter(None, self.stems(words(query)))):
            term = self.index.vocab_dict.get(stem)
            at = slice(0) if term is None else slice(*sparse["indptr"][term : term + 2])
            texts = sparse["indices"][at]
            idf = math.log(1 + (count - len(texts) + 0.5) / (len(texts) + 0.5))
            whole += idf
            scores[texts] += sparse["data"][at]
            known[texts] += idf
            words_of[texts] += 1
        lone = (words_of == 1) & (known < LONE_SHARE * whole)
        return np.asarray(np.where(lone, LONE * scores, scores) / whole)


def stemmer(language: str | None) -> Callable[[list[str]], list[str]]:
    """Return what maps words of a language to their stems, by Snowball; without a language words stay."""
    return require("Stemmer", "BM25", "search").Stemmer(language).stemWords if language else list


def checked_weight(weight: float) -> float:
    """The weight of words beside the cosines. Raises UserError where it is none."""
    if not 0 <= weight <= MOST_WEIGHT:
        raise UserError(
            f"--hybrid-weight: {weight} is not from 0 to {MOST_WEIGHT:,.0f}; give a number, such as {WEIGHT}"
        )
    return weight


def blocks(queries: int, texts: int) -> Iterator[slice]:
    """Yield which queries to score for at a time against all texts: at most CELLS scores, or one query."""
    size = max(1, CELLS // texts)
    return (slice(start, start + size) for start in range(0, queries, size))


def joined(cosines: Floats, shares: Floats, weight: float = WEIGHT) -> Floats:
    """Return the scores (q, n) that rank n texts: how far each cosine is on the way from their mean to 1,
    plus `weight` times the share of the query's words; both over the whole collection."""
    mean = cosines.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    return (cosines - mean) / np.maximum(1 - mean, 1e-6) + weight * shares


def _stop_words(language: str) -> frozenset[str]:
    lists = require("bm25s.stopwords", "BM25", "search")
    listed = getattr(lists, f"STOPWORDS_{'EN_PLUS' if language == 'english' else language.upper()}")
    return frozenset(map(folded, listed))


def language_of(counts: dict[str, int]) -> str | None:
    """Return the language whose stop words are the largest share of a collection's words, given how often
    each word occurs; None where that is less than MIN_STOP_WORDS."""
    shares = {language: sum(counts.get(word, 0) for word in _stop_words(language)) for language in LANGUAGES}
    best = max(LANGUAGES, key=lambda language: shares[language])
    return best if shares[best] >= MIN_STOP_WORDS * max(1, sum(counts.values())) else None
