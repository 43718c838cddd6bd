"""The words that tokens stand for: stems in the language of the corpus, and what continues a word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from edgedistill.students.head import Lexical
from edgedistill.vocabulary.initial_embeddings import stems


def tokenizer(*tokens: str) -> Any:
    vocab = {token: at for at, token in enumerate(["[UNK]", *tokens])}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordPiece(vocab, unk_token="[UNK]")))


@pytest.mark.parametrize(
    ("tokens", "found", "inside"),
    [
        (
            ["the", "of", "proteins", "protein", "##s", "##ing", ",", "2"],
            ["the", "of", "protein", "protein", "##s", "##ing", ",", "2"],
            ["##s", "##ing"],
        ),
        (
            ["\u2581the", "\u2581of", "\u2581Proteins", "\u2581protein", "s", "ing", ",", "\u2581"],
            ["the", "of", "protein", "protein", "s", "ing", ",", ""],
            ["s", "ing"],
        ),
    ],
    ids=["WordPiece", "SentencePiece"],
)
def test_stems(tokens: list[str], found: list[str], inside: list[str]):
    counts = np.array([0, 50, 40, 3, 4, *[1] * 4])
    made, continues = stems(tokenizer(*tokens), counts)
    assert made[1:] == found
    assert [token for token, of in zip(tokens, continues[1:].tolist(), strict=True) if of] == inside


def test_words_of_no_known_language_stay():
    counts = np.array([0, 1, 1])  # no stop words
    assert stems(tokenizer("proteins", "protein"), counts)[0][1:] == ["proteins", "protein"]


def test_tokens_of_one_stem_are_one_word():
    torch.manual_seed(0)
    channel = Lexical(4, 16)
    channel.initialize(None, 0.5)
    continues = torch.tensor([False, False, False, True])
    channel.set_words(["a", "protein", "protein", "##s"], continues, torch.tensor([9, 2, 1, 4]), 9)
    assert torch.equal(channel.rows.weight[1], channel.rows.weight[2])
    assert set(channel.rows.weight.unique().tolist()) == {-1.0, 1.0}
    expected = np.log(10 / np.array([9.5, 3.5, 3.5, 4.5]))
    assert np.allclose(channel.token_weights, expected, atol=1e-6)

    # a word of two tokens: the product of their signs, the sum of their weights
    one = torch.ones(1, 2, dtype=torch.int64)
    rows, weights = channel.rows.weight, channel.token_weights
    mean = weights[1] * rows[1] + (weights[1] + weights[3]) * rows[1] * rows[3]
    wanted = (2 / 16) ** 0.25 * channel.projection(torch.nn.functional.normalize(mean, dim=0))
    assert torch.allclose(channel(torch.tensor([[1, 3]]), one)[0], wanted, atol=1e-6)
