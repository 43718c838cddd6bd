"""Views with some words replaced by WordNet's synonyms, new ones in every pass over the corpus."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from edgedistill import recipe
from edgedistill.data.readers import PUNCTUATION
from edgedistill.errors import UserError, require
from edgedistill.training.inputs.text_batches import draws_of


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
        draws = zip(texts, draws_of(self.seed, rows, passes), strict=True)
        return [self._replaced(text.split(), draw) for text, draw in draws]

    def _replaced(self, words: list[str], draw: np.random.Generator) -> str:
        """The words with a fraction of them replaced, at least one where one has a synonym."""
        count = int(self.fraction * len(words) + draw.random())  # rounded so that it holds on average
        bare = [word.strip(PUNCTUATION) for word in words]
        replaceable = [at for at, word in enumerate(bare) if self.synonyms_of(word.lower())]
        for at in draw.permutation(np.array(replaceable, int))[: max(1, count)]:
            synonyms = self.synonyms_of(bare[at].lower())
            chosen = synonyms[int(draw.integers(len(synonyms)))]
            if bare[at][0].isupper():
                chosen = chosen.capitalize()
            words[at] = words[at].replace(bare[at], chosen, 1)
        return " ".join(words)


def _synonyms(wordnet: Any, word: str) -> list[str]:
    senses = wordnet.synsets(word)[:1] if len(word) > 3 else []  # in order of frequency
    names = {name.replace("_", " ") for sense in senses for name in sense.lemma_names()}
    return sorted(name for name in names if name.lower() != word)
