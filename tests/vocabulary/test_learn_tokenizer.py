"""Vocabularies learned from a corpus."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from edgedistill import recipe
from edgedistill.data import corpus
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.vocabulary import learn_tokenizer
from tests.conftest import World, make_tokenizer


def test_the_same_corpus_gives_the_same_bytes(world: World):
    """The trainer's hash has a new seed in each training, in one process as in two."""
    spec = recipe.parse(world.recipe(), "test").rows
    assert spec is not None
    built, like = corpus.build(spec, Session(data=world.data), 0), make_tokenizer()
    first, *others = [learn_tokenizer.learn_wordpiece(like, [built], 120) for _ in range(4)]
    assert [other.backend_tokenizer.to_str() for other in others] == [first.backend_tokenizer.to_str()] * 3
    number = first.get_vocab()
    assert sorted(number.values()) == list(range(120))
    assert first.tokenize("The zzz!") == ["the", "[UNK]", "!"]
    assert (
        [number[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
        == sorted(first.all_special_ids)
        == [0, 1, 2, 3, 4]
    )
    assert first.tokenize("##a") == ["[UNK]", "[UNK]", "a"], "a letter inside a word is no special token"
    assert len(first("the")["input_ids"]) == 3


def test_only_wordpiece_is_learned(world: World):
    like = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), unk_token="?")
    with pytest.raises(UserError, match="student.vocabulary_size: learns WordPiece, the tokenizer is BPE"):
        learn_tokenizer.learn_wordpiece(like, None, 300)  # type: ignore[arg-type]
