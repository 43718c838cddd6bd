"""A trimmed tokenizer of any model tokenizes kept texts as the old one did."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.vocabulary import trim_tokenizer
from tests.conftest import make_tokenizer, sentences
from tests.students.test_graph import spread

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def fast(raw: Tokenizer, **names: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, **(names or {"unk_token": "<unk>", "pad_token": "<pad>"})
    )


def wordpiece() -> Any:
    return make_tokenizer()


def unigram(byte_fallback: bool = False) -> Any:
    raw = Tokenizer(models.Unigram())
    raw.normalizer = normalizers.NFKC()
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=160, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    raw.train_from_iterator(sentences(300, seed=1), trainer)
    if byte_fallback:
        data = json.loads(raw.to_str())
        data["model"]["byte_fallback"] = True
        data["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
        raw = Tokenizer.from_str(json.dumps(data))
    ends = [("<s>", raw.token_to_id("<s>")), ("</s>", raw.token_to_id("</s>"))]
    raw.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    raw.add_special_tokens(["<mask>"])  # XLM-R's way: an added token behind the model's own pieces
    return fast(raw)


def plain_model(folder: Path, kind: str, words: Any, **sizes: Any) -> Path:
    """A plain AutoModel folder, its tensors named as a checkpoint with a head names them."""
    from transformers import AutoConfig, AutoModel

    own = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 40,
    }
    config = AutoConfig.for_model(
        kind, vocab_size=len(words), pad_token_id=words.pad_token_id, **{**own, **sizes}
    )
    model = spread(AutoModel.from_config(config, add_pooling_layer=False))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    tensors = {f"roberta.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    tensors |= {
        "lm_head.decoder.weight": torch.randn(len(words), 16),
        "lm_head.bias": torch.arange(len(words)).float(),
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def byte_bpe() -> Any:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(sentences(300, seed=1), trainer)
    raw.post_processor = processors.RobertaProcessing(
        ("</s>", raw.token_to_id("</s>")), ("<s>", raw.token_to_id("<s>"))
    )
    raw.decoder = decoders.ByteLevel()
    return fast(raw)


MAKE = {
    "wordpiece": wordpiece,
    "unigram": unigram,
    "unigram with bytes": lambda: unigram(byte_fallback=True),
}


class Texts(list[str]):
    """Training texts, then held-out ones, as a corpus has them."""

    training_count = 0


def trimmed(
    tokenizer: Any,
    texts: list[str],
    held_out: list[str] | None = None,
    min_count: int = 1,
    tokens: int | None = None,
) -> Any:
    corpus: Any = Texts([*texts, *(held_out or [])])
    corpus.training_count = len(texts)
    return trim_tokenizer.trimmed(tokenizer, [corpus], recipe.Trim(min_count=min_count, tokens=tokens))


def scrambled(count: int, seed: int) -> list[str]:
    """Texts of odd words: letters of the sentences in any order, and some that no vocabulary has."""
    draw = random.Random(seed)
    return [
        " ".join("".join(draw.choices("abcdefghilnoprstwy.ßж🙂", k=draw.randint(1, 9))) for _ in range(5))
        for _ in range(count)
    ]


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("min_count", [1, 3])
def test_kept_texts_are_tokenized_as_before(name: str, min_count: int):
    tokenizer = MAKE[name]()
    texts = [*sentences(12, seed=2), *scrambled(6, seed=3)]
    others = [*sentences(60, seed=4), *scrambled(60, seed=5)]
    smaller = trimmed(tokenizer, texts, others, min_count)
    old, new = ({at: token for token, at in each.get_vocab().items()} for each in (tokenizer, smaller))
    assert len(new) < len(old)
    order = [tokenizer.get_vocab()[new[at]] for at in range(len(new))]
    assert order == sorted(order)
    for text in texts + others:
        before, after = (each(text)["input_ids"] for each in (tokenizer, smaller))
        same = [old[at] for at in before] == [new[at] for at in after]
        if tokenizer.unk_token_id not in before:  # an unknown word may become known
            assert same or not {old[at] for at in before} <= set(new.values())
            assert same or min_count > 1 or text in others


def test_scores_are_rounded_so_that_the_file_is_smaller():
    assert not re.search(r"\.\d{5}", trimmed(unigram(), ["the cat"]).backend_tokenizer.to_str())


@pytest.mark.parametrize("name", MAKE)
def test_a_saved_one_opens_as_it_was(name: str, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = trimmed(MAKE[name](), sentences(12, seed=2))
    tokenizer.save_pretrained(tmp_path)
    opened = AutoTokenizer.from_pretrained(tmp_path)
    raw = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert opened.pad_token_id == tokenizer.pad_token_id
    assert opened.unk_token_id == tokenizer.unk_token_id
    for text in [*sentences(6, seed=2), "жaß 🙂 zzz"]:
        assert opened(text)["input_ids"] == tokenizer(text)["input_ids"] == raw.encode(text).ids


@pytest.mark.parametrize("name", MAKE)
def test_special_tokens_keep_their_ids(name: str):
    tokenizer = MAKE[name]()
    made = trimmed(tokenizer, ["the cat"])
    first = [
        token
        for token in tokenizer.all_special_tokens
        if tokenizer.convert_tokens_to_ids(token) < len(SPECIAL)
    ]
    assert len(first) >= 2
    assert [made.convert_tokens_to_ids(token) for token in first] == [
        tokenizer.convert_tokens_to_ids(token) for token in first
    ]
    assert set(tokenizer.all_special_tokens) <= made.get_vocab().keys()


def test_bytes_stay_so_that_nothing_becomes_unknown():
    made = trimmed(unigram(byte_fallback=True), ["the cat"])
    ids = made("жир 🙂 ß")["input_ids"]
    assert len(ids) > 10 and made.unk_token_id not in ids


def plain(model: Any) -> Any:
    raw = Tokenizer(model)
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.add_special_tokens([AddedToken("[UNK]", special=True), AddedToken("[PAD]", special=True)])
    return fast(raw, unk_token="[UNK]", pad_token="[PAD]")


def of_tokens(tokens: str) -> Any:
    """A WordPiece tokenizer of these tokens."""
    vocabulary = {token: at for at, token in enumerate(["[PAD]", "[UNK]", *tokens.split()])}
    return plain(models.WordPiece(vocabulary, unk_token="[UNK]"))


def cut(tokenizer: Any, text: str) -> list[str]:
    return tokenizer.backend_tokenizer.encode(text).tokens


def test_a_dead_end_may_open_and_characters_of_kept_tokens_stay():
    """`ab` leads nowhere, so `abc` was unknown; `ab` goes, and `a ##bc` is found."""
    tokenizer = of_tokens("ab a ##bc x ##b q")
    assert cut(tokenizer, "abc xbc") == ["[UNK]", "x", "##bc"]
    made = trimmed(tokenizer, ["abc xbc a"])
    assert cut(made, "abc xbc") == ["a", "##bc", "x", "##bc"]
    # the character of a kept token stays, though no text uses it alone
    assert made.get_vocab().keys() & {"##b", "ab", "q"} == {"##b"}


def test_what_an_unknown_character_costs_stays():
    """`bc de` at −30 beats an unknown b and `cde` at −31; with the least likely piece gone, unknown would
    cost 25 and win."""
    vocab = [
        ("[PAD]", 0.0),
        ("[UNK]", 0.0),
        ("cde", -1.0),
        ("bc", -15.0),
        ("de", -15.0),
        ("zz", -20.0),
        ("yy", -3.0),
    ]
    tokenizer = plain(models.Unigram(vocab, unk_id=1))
    assert cut(tokenizer, "bcde") == ["bc", "de"]
    made = trimmed(tokenizer, ["bcde", "cde"])
    assert cut(made, "bcde") == ["bc", "de"]
    assert set(made.get_vocab()) == {"[PAD]", "[UNK]", "cde", "bc", "de", "zz"}


def test_held_out_texts_keep_nothing():
    made = trimmed(of_tokens("a ##b ab b q"), ["a b", "a", "a b"], ["ab a", "q", "a z", ""], min_count=2)
    assert set(made.get_vocab()) == {"[PAD]", "[UNK]", "a", "b", "##b"}  # ##b stays, as b does


def test_characters_of_used_tokens_come_first_in_up_to_a_third():
    tokenizer = of_tokens("c ##d a ##a b ##b q ab ba aba bab cd")

    def kept(**options: int) -> Any:
        return trimmed(tokenizer, ["ab ba aba bab cd", "ab ba aba bab"], ["cd q"], **options)

    assert cut(kept(min_count=2), "cd q") == cut(kept(tokens=6), "cd q") == ["c", "##d", "[UNK]"]
    assert cut(kept(tokens=3), "ab cd") == ["ab", "[UNK]"]  # one character: the first of equals is `c`


def test_a_number_of_tokens_is_filled_with_the_first_that_no_text_uses():
    tokenizer = of_tokens("[unused1] a ##a b ##b ab ba aba")

    def kept(tokens: int, least: int) -> set[str]:
        return set(trimmed(tokenizer, ["aba ba", "aba"], tokens=tokens, min_count=least).get_vocab())

    letters = {"[PAD]", "[UNK]", "a", "##a", "b", "##b"}
    assert kept(1, 0) == kept(1, 1) == letters | {"aba"}
    assert kept(2, 0) == kept(9, 1) == letters | {"aba", "ba"}
    assert kept(9, 0) == letters | {"aba", "ba", "ab"}  # and no place that no text reaches


def test_what_cannot_be_trimmed():
    def refused(tokenizer: Any, texts: list[str], message: str, **options: Any):
        with pytest.raises(UserError, match=message):
            trimmed(tokenizer, texts, **options)

    table = plain(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2}, unk_token="[UNK]"))
    refused(table, ["a"], r"tokenizer: no model to trim 'WordLevel'; .*\(Unigram, WordPiece\)")
    refused(byte_bpe(), ["a"], r"no model to trim 'BPE'; .*keep all of its tokens, or learn others")
    assert not trim_tokenizer.is_trimmable(byte_bpe()) and trim_tokenizer.is_trimmable(wordpiece())
    refused(wordpiece(), [], "corpus: no texts, so the tokens to keep cannot be determined; give some")
    refused(wordpiece(), ["the"], "min_count: no token occurs 9 times in the corpus; lower it", min_count=9)
