"""10,000 texts on which tokenizers differ."""

from __future__ import annotations

import json
import lzma
import re
import unicodedata
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

TEXTS = Path(__file__).with_name("adversarial_texts.json.xz")  # drawn with Unicode 14's categories
LINES = 10_000
WORD, SPECIAL = "\ufdd0", "\ufdd1"  # in these texts: a token of the vocabulary, a special token


def adversarial_texts(special: Sequence[str], words: Sequence[str], max_tokens: int) -> list[str]:
    """10,000 distinct texts on which tokenizers differ, always the same for the same arguments.

    Special tokens, also in lower case, cut and doubled, and rows of about `max_tokens` words come first. Then
    come the texts of the file, in which tokens of this vocabulary are hit and just missed. Words also come
    with a capital, and with their accents as characters of their own.
    """
    variants = [each for word in words for each in (word, word.title(), unicodedata.normalize("NFD", word))]
    drawn = {WORD: cycle(variants), SPECIAL: cycle(special or ["[CLS]"])}
    changed = [each for token in special for each in (token, token.lower(), token[:-1], token * 2)]
    lengths = range(max(1, max_tokens - 8), max_tokens + 8)
    near_the_limit = [" ".join(islice(drawn[WORD], length)) for _ in range(16) for length in lengths]
    texts = json.loads(lzma.decompress(TEXTS.read_bytes()))
    texts = [re.sub(f"[{WORD}{SPECIAL}]", lambda found: next(drawn[found[0]]), text) for text in texts]
    return list(dict.fromkeys([*changed, *near_the_limit, *texts]))[:LINES]
