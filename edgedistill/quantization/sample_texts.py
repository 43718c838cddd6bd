"""Texts that activations are measured on for a quantized graph, and others to measure the result on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import files
from edgedistill.runtime.golden_file import golden_texts

SENTENCES = Path(__file__).with_name("sample_sentences.txt")  # written for this purpose, in no data set
SUITE = "mini"
RANDOM_LENGTHS = (1, 2, 5, 10, 20, 40, 80)  # in tokens
RANDOM_TEXTS = 24  # of each length


class Reader(NamedTuple):
    """How an encoder reads texts: its tokenizer (of transformers), the prompt before every text, and how many
    tokens it takes."""

    tokenizer: Any
    prompt: str
    max_tokens: int

    def token_ids(self, texts: list[str]) -> list[list[int]]:
        """The token ids of each text: with prompt and special tokens, truncated."""
        return [
            self.tokenizer(self.prompt + text, truncation=True, max_length=self.max_tokens)["input_ids"]
            for text in texts
        ]

    def is_truncated(self, text: str) -> bool:
        """Whether a text has more tokens than the encoder takes."""
        return len(self.tokenizer(self.prompt + text, verbose=False)["input_ids"]) > self.max_tokens

    def golden_texts(self) -> list[str]:
        """The golden texts of this length and tokenizer."""
        return golden_texts(self.tokenizer, self.prompt, self.max_tokens)


def samples(reader: Reader, golden: list[list[int]]) -> list[list[int]]:
    """Token ids to measure on: ordinary sentences of twenty languages, the golden texts, and random tokens,
    which reach the whole table.

    golden: the token ids of the golden texts.
    """
    random, special = np.random.default_rng(0), reader.tokenizer("")["input_ids"]
    lengths = [length for length in RANDOM_LENGTHS if length <= reader.max_tokens - len(special)]
    drawn = [
        random.integers(0, len(reader.tokenizer), length).tolist()
        for length in lengths
        for _ in range(RANDOM_TEXTS)
    ]
    middle = len(special) // 2
    return [
        *reader.token_ids(sentences()),
        *golden,
        *([*special[:middle], *row, *special[middle:]] for row in drawn),
    ]


def sentences() -> list[str]:
    """The sample sentences."""
    return SENTENCES.read_text(encoding="utf-8").splitlines()


def suite_sentences() -> list[str]:
    """The distinct sentences of the shipped suite, to measure a result on: about 600 in English."""
    table = (files.find("suite", SUITE).parent / "pairs.tsv").read_text(encoding="utf-8")
    return list(dict.fromkeys(text for line in table.splitlines()[1:] for text in line.split("\t")[:2]))
