"""Texts that activations and results are measured on, and what a graph computes for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from onnx import ModelProto, helper

from edgedistill import files, machine
from edgedistill.runtime.golden_file import golden_texts
from edgedistill.runtime.onnx_session import open_in_memory

SENTENCES = Path(__file__).with_name("sample_sentences.txt")  # written for this purpose, in no data set
SUITE = "mini"
RANDOM_LENGTHS = (1, 2, 5, 10, 20, 40, 80)  # in tokens
RANDOM_TEXTS = 24  # of each length
BATCH_TOKENS = 1_024

TokenIds = Sequence[Sequence[int]]  # of texts, unpadded, with their special tokens


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

    def golden_texts(self) -> list[str]:
        """The golden texts of this length and tokenizer."""
        return golden_texts(self.tokenizer, self.prompt, self.max_tokens)


def samples(reader: Reader, golden: list[list[int]]) -> list[list[int]]:
    """Token ids to measure on: ordinary sentences of twenty languages, the golden texts, whose ids are
    `golden`, and random tokens, which reach the whole table."""
    random = np.random.default_rng(0)
    special = reader.tokenizer("")["input_ids"]
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


def values_of(
    model: ModelProto, names: Sequence[str], ids: TokenIds, threads: int = 1
) -> Iterator[tuple[list[int], dict[str, ndarray]]]:
    """For each batch, the indices of its texts and the values of those names.

    A batch has one length: padding would count as input. Texts without tokens are left out. A graph of pairs
    gets each text twice.
    """
    by_length: dict[int, list[int]] = {}
    for at, row in enumerate(ids):
        by_length.setdefault(len(row), []).append(at)
    watched = ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    watched.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = open_in_memory(watched.SerializeToString(), threads)
    for length, texts in sorted(by_length.items()):
        size = max(1, BATCH_TOKENS // max(length, 1))
        for start in range(0, len(texts) if length else 0, size):
            indices = texts[start : start + size]
            batch = np.array([ids[at] for at in indices], np.int64)
            inputs = {
                value.name: batch if value.name.startswith("input_ids") else np.ones_like(batch)
                for value in session.get_inputs()
            }
            yield indices, dict(zip(names, session.run(list(names), inputs), strict=True))


def activations(model: ModelProto, names: Sequence[str], ids: TokenIds) -> Iterator[dict[str, ndarray]]:
    """For each batch, the values of those names as rows of their last dimension."""
    for _, values in values_of(model, names, ids):
        yield {name: value.reshape(-1, value.shape[-1]) for name, value in values.items()}


def embeddings(model: ModelProto, ids: TokenIds) -> ndarray:
    """(n, d) float64: the graph's first output; zeros for a text without tokens."""
    name = model.graph.output[0].name
    rows = np.empty(0)
    for texts, values in values_of(model, [name], ids, machine.processors()):
        if not len(rows):
            rows = np.zeros((len(ids), values[name].shape[1]))
        rows[texts] = values[name]
    return rows


def agreement(quantized: ModelProto, expected: ndarray, ids: TokenIds) -> tuple[float, float]:
    """(mean, minimum) of the cosines between a graph's embeddings and those expected (n, d)."""
    return cosines(embeddings(quantized, ids), expected)


def cosines(rows: ndarray, expected: ndarray) -> tuple[float, float]:
    """Mean and minimum of the rows' cosines."""
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(expected, axis=1)
    products = (rows * expected).sum(1)
    # an empty text without special tokens: zero in both
    values = np.where(lengths == 0, 1.0, products / np.maximum(lengths, 1e-30))
    return float(values.mean()), float(values.min())
