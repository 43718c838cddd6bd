"""Views with some words replaced by WordNet's synonyms, new ones in every pass over the corpus."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from edgedistill import recipe
from edgedistill.data.readers import PUNCTUATION
from edgedistill.errors import UserError, require
from edgedistill.training.inputs.random_keys import draws, rounded_fraction, row_keys


class Synonyms:
    """Texts with some words replaced by a synonym of their most frequent sense, unchanged where no word has
    one.

    Words of three letters and fewer stay: WordNet reads most of them as symbols (in: indium, he: helium).
    """

    def __init__(self, spec: recipe.Synonym, seed: int, place: str) -> None:
        """Raises UserError, which names the recipe key `place`, where nltk or its WordNet is missing."""
        self.fraction, self.seed = spec.fraction, seed
        wordnet = require("nltk.corpus", "train", "views").wordnet
        try:
            wordnet.synsets("word")  # loads the data, which is not thread-safe
        except (LookupError, OSError):  # missing or incomplete
            fact = "synonym reads WordNet through nltk, which does not find it"
            way_out = "python -m nltk.downloader wordnet, or point NLTK_DATA at it"
            raise UserError(f"{place}: {fact}; {way_out}") from None
        self.synonyms_of = lru_cache(1 << 16)(lambda word: _synonyms(wordnet, word))

    def __call__(self, texts: list[str], rows: np.ndarray, passes: np.ndarray) -> list[str]:
        """The view of each text; its row in the corpus and the pass over it, (n,) each, decide what is
        replaced."""
        keys = row_keys(self.seed, rows, passes)
        words = [text.split() for text in texts]
        counts = rounded_fraction(self.fraction, np.array([len(row) for row in words]), keys)
        return [self._replaced(*each) for each in zip(words, counts, keys, strict=True)]

    def _replaced(self, words: list[str], count: int, key: np.uint64) -> str:
        """The words with `count` of them replaced, at least one where one has a synonym."""
        bare = [word.strip(PUNCTUATION) for word in words]
        replaceable = [at for at, word in enumerate(bare) if self.synonyms_of(word.lower())]
        order, choice = draws(key, np.arange(2 * len(replaceable))).reshape(2, -1)
        for rank in np.argsort(order, kind="stable")[: max(1, count)]:
            at = replaceable[rank]
            synonyms = self.synonyms_of(bare[at].lower())
            chosen = synonyms[int(choice[rank]) % len(synonyms)]
            if bare[at][0].isupper():
                chosen = chosen.capitalize()
            words[at] = words[at].replace(bare[at], chosen, 1)
        return " ".join(words)


def _synonyms(wordnet: Any, word: str) -> list[str]:
    senses = wordnet.synsets(word)[:1] if len(word) > 3 else []  # in order of frequency
    names = {name.replace("_", " ") for sense in senses for name in sense.lemma_names()}
    return sorted(name for name in names if name.lower() != word)
