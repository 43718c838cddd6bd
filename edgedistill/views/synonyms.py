"""Views made by replacing words with WordNet synonyms. Computed for each batch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from edgedistill import recipe
from edgedistill.data import readers
from edgedistill.errors import UserError, require
from edgedistill.training.inputs.random_keys import draws, rounded_fraction, row_keys


class Synonyms:
    """Texts -> the same texts with some words replaced by a synonym of their most frequent sense; unchanged
    where no word has one.

    Words of three letters and fewer stay: WordNet reads most of them as symbols (in: indium, he: helium, a:
        ampere).
    """

    def __init__(self, spec: recipe.Synonym, seed: int, place: str) -> None:
        """Raises UserError where nltk or its WordNet data is missing; `place`: the recipe key."""
        self.fraction, self.seed = spec.fraction, seed
        wordnet = require("nltk.corpus", "train", "views").wordnet
        try:
            wordnet.synsets("word")  # loads the data, which is not thread-safe
        except (LookupError, OSError):  # missing or incomplete
            way_out = "python -m nltk.downloader wordnet, or point NLTK_DATA at it"
            raise UserError(
                f"{place}: synonym reads WordNet through nltk, which does not find it; {way_out}"
            ) from None
        self.of = lru_cache(1 << 16)(lambda word: _synonyms(wordnet, word))

    def __call__(self, rows: np.ndarray, passes: np.ndarray, texts: list[str]) -> list[str]:
        """rows, passes (n,): the texts' rows in the corpus and the pass over it."""
        keys = row_keys(self.seed, rows, passes)
        words = [text.split() for text in texts]
        counts = rounded_fraction(self.fraction, np.array([len(row) for row in words]), keys)
        return [
            self._replaced(row, int(count), key) for row, count, key in zip(words, counts, keys, strict=True)
        ]

    def _replaced(self, words: list[str], count: int, key: np.uint64) -> str:
        replaceable = [
            at for at, word in enumerate(words) if self.of(word.strip(readers.PUNCTUATION).lower())
        ]
        drawn = draws(key, 2 * len(replaceable))
        for rank in np.argsort(drawn[: len(replaceable)], kind="stable")[: max(1, count)]:
            word = words[replaceable[rank]]
            core = word.strip(readers.PUNCTUATION)
            choices = self.of(core.lower())
            choice = choices[int(drawn[len(replaceable) + rank] % np.uint64(len(choices)))]
            words[replaceable[rank]] = word.replace(
                core, choice.capitalize() if core[0].isupper() else choice, 1
            )
        return " ".join(words)


def _synonyms(wordnet: Any, word: str) -> list[str]:
    senses = wordnet.synsets(word)[:1] if len(word) > 3 else []  # in order of frequency
    names = {name.replace("_", " ") for sense in senses for name in sense.lemma_names()}
    return sorted(name for name in names if name.lower() != word)
