"""Initial token embeddings for a tokenizer: from another model's embedding table, or from a GloVe file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgedistill.errors import UserError

MARKERS = ("##", "▁", "Ġ")  # how WordPiece, SentencePiece and byte-level BPE mark a token's place in a word


def tokens_by_id(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The tokens of a vocabulary in the order of their ids."""
    return [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]


def without_marker(token: str) -> str:
    """A token without the marker of its place in a word."""
    for marker in MARKERS:
        token = token.removeprefix(marker)
    return token


def from_model(tokenizer: PreTrainedTokenizerBase, source: PreTrainedTokenizerBase, table: Tensor) -> Tensor:
    """Initial embeddings (V, w) for the tokenizer's tokens from the embedding table (T, w) behind the
    tokenizer `source`.

    A token that both have keeps its row; any other gets the mean row of the tokens that `source` splits it
    into.
    """
    if tokenizer.get_vocab() == source.get_vocab():
        return table[: len(tokenizer)]
    return torch.stack(
        [table[ids].mean(0) if ids else table.mean(0) for ids in source_ids(tokenizer, source)]
    )


def source_ids(tokenizer: PreTrainedTokenizerBase, source: PreTrainedTokenizerBase) -> list[list[int]]:
    """Each token of the tokenizer as ids of `source`: the same token where it has it, else those it splits
    the token's text into."""
    known = source.get_vocab()
    return [
        [known[token]]
        if token in known
        else source(without_marker(token), add_special_tokens=False)["input_ids"]
        for token in tokens_by_id(tokenizer)
    ]


def tokens_as_texts(tokenizer: PreTrainedTokenizerBase, source: PreTrainedTokenizerBase) -> list[np.ndarray]:
    """Each token of the tokenizer as a text of its own in ids of `source`, between its special tokens; (n_i,)
    int32 each."""
    first, *last = source("")["input_ids"]
    return [np.array([first, *ids, *last], np.int32) for ids in source_ids(tokenizer, source)]


def from_glove(tokenizer: PreTrainedTokenizerBase, path: Path, width: int, seed: int) -> Tensor:
    """Initial embeddings (V, width) from a GloVe text file.

    Tokens it lacks are drawn from a normal distribution with the mean and standard deviation of those it has.
    Raises UserError: no such file, a line of another width, no token found.
    """
    wanted = {without_marker(token): number for number, token in enumerate(tokens_by_id(tokenizer))}
    found: dict[int, np.ndarray] = {}
    for number, word, values in _glove_lines(path):
        if word in wanted:
            if len(values) != width:
                raise UserError(
                    f"{path}: line {number} has {len(values)} dimensions, student.width is {width}; they "
                    "must agree"
                )
            found[wanted[word]] = np.array(values, np.float32)
    if not found:
        raise UserError(
            f"{path}: none of the tokenizer's {len(wanted):,} tokens is in it; give a tokenizer of whole "
            "words"
        )
    known = np.stack(list(found.values()))
    table = (
        np.random.default_rng(seed)
        .normal(known.mean(), known.std(), (len(tokenizer), width))
        .astype(np.float32)
    )
    table[list(found)] = known
    return torch.from_numpy(table)


def _glove_lines(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """(line number, word, values) of every line."""
    if not path.is_file():
        raise UserError(f"student.embeddings.file: no file {path}; relative paths start from --data")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            word, *values = line.rstrip("\n").split(" ")
            yield number, word, values
