"""Tokenizers as graphs: the same token ids where one is offered, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

pytest.importorskip("onnxruntime_extensions", reason="needs edgedistill[mobile]")

from edgedistill.device.tokenizer_equality import TextTokenizer, changed_characters, first_difference
from edgedistill.mobile.string_graph import NoSuchGraph, StringGraph, open_session, strings
from edgedistill.mobile.tokenizer_graph import ids_by, tokenizer_graph, tokenizer_model

WordPiece = Callable[..., Tokenizer]
LINES = 1_000

TEXTS = [
    "",
    "The CATS, watched! unknown cats' [MASK] [CLS] the [mask]",
    "na\u00efve Stra\u00dfe cafe\u0301 \u00c0 \u2260 a\u0338= \u00bd\u00b2\ufb01",
    "thex unknownx x",  # a part of a word is known, the word is not
    "a\0b a\u200bb \ufffd [CL\u0001S] \x1f",
    "\u6771\u4eac\uf900 \uac01 \u1100\u1161\u11a8",
    "a" * 100 + " " + "a" * 101,
    "the cat " * 40,
    " \t\n\u00a0\u3000",
    "$ \u00ab\u201d\U0001f642\U0001f642",
]


def graph_ids(graph: StringGraph, texts: list[str], pad_id: int = 0) -> list[list[int]]:
    session = open_session(tokenizer_model(graph).SerializeToString())
    ids, mask = session.run(["input_ids", "attention_mask"], {"texts": strings(texts)})
    assert ids.dtype == mask.dtype == np.int64
    assert (ids[mask == 0] == pad_id).all()
    assert all((np.diff(row) <= 0).all() for row in mask)  # padding on the right only
    return [row[:length].tolist() for row, length in zip(ids, mask.sum(1), strict=True)]


def difference_of(graph: StringGraph, text: TextTokenizer) -> tuple[int, str | None]:
    return first_difference(ids_by(graph, text.pad_id), text, "in the graph", LINES)


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.BertNormalizer(),
        normalizers.BertNormalizer(lowercase=False),
        normalizers.BertNormalizer(lowercase=False, strip_accents=True, handle_chinese_chars=False),
        normalizers.Sequence([normalizers.BertNormalizer(lowercase=False), normalizers.Lowercase()]),
    ],
    ids=["uncased", "cased", "cased without accents", "lower case with accents"],
)
def test_the_same_ids_as_the_tokenizer(wordpiece: WordPiece, normalizer: normalizers.Normalizer) -> None:
    tokenizer = wordpiece(normalizer)
    text = TextTokenizer(tokenizer, "", 16, 0)
    expected = [tokenizer.encode(each).ids for each in TEXTS]
    assert (
        len({tuple(ids) for ids in expected}) == len(TEXTS) - 1
    )  # of the texts without a word there are two
    graph = tokenizer_graph(text)
    assert graph_ids(graph, TEXTS) == expected
    assert [graph_ids(graph, [each])[0] for each in TEXTS] == expected  # alone as in a batch
    assert difference_of(graph, text) == (LINES, None)


def test_prompt_padding_and_special_tokens_of_other_names(wordpiece: WordPiece) -> None:
    tokenizer = wordpiece(
        added=(AddedToken("<a\\b>", normalized=False), AddedToken("[X]", normalized=False, special=True))
    )
    prompt = "The cat: \\1 [X]"
    text = TextTokenizer(tokenizer, prompt, 16, 7)
    texts = ["[X]<a\\b>the", "", "the"]
    graph = tokenizer_graph(text)
    found = graph_ids(graph, texts, 7)
    assert found == [tokenizer.encode(prompt + each).ids for each in texts]
    assert tokenizer.token_to_id("[X]") in found[1]
    assert difference_of(graph, text) == (LINES, None)


def test_what_depends_on_neighbours_is_found_and_quoted(wordpiece: WordPiece) -> None:
    """NFC joins a letter and its accent, which no operator does: the first such text is named, with both
    lists of ids."""
    text = TextTokenizer(
        wordpiece(normalizers.Sequence([normalizers.BertNormalizer(lowercase=False), normalizers.NFC()])),
        "",
        16,
        0,
    )
    at, difference = difference_of(tokenizer_graph(text), text)
    assert difference is not None
    assert difference.startswith(f'text {at + 1:,} of {LINES:,} ("')
    assert "in the graph" in difference and difference.endswith("by tokenizer.json")
    assert len(difference) < 300


def test_a_graph_of_another_tokenizer_is_found(wordpiece: WordPiece) -> None:
    """Texts before the first difference agree, that one does not, and its ids are those that are quoted."""
    uncased = TextTokenizer(wordpiece(), "", 16, 0)
    cased = TextTokenizer(wordpiece(normalizers.BertNormalizer(lowercase=False)), "", 16, 0)
    graph = tokenizer_graph(uncased)
    at, difference = difference_of(graph, cased)
    assert difference is not None and 0 < at < LINES
    assert difference_of(graph, TextTokenizer(uncased.tokenizer, "the ", 16, 0))[0] == 0
    padded = TextTokenizer(uncased.tokenizer, "", 16, 1)
    assert first_difference(ids_by(graph, 1), padded, "in the graph", LINES)[0] == 0


def test_what_has_no_graph(wordpiece: WordPiece) -> None:
    def refused(tokenizer: Tokenizer) -> str:
        with pytest.raises(NoSuchGraph) as caught:
            tokenizer_graph(TextTokenizer(tokenizer, "", 16, 0))
        return str(caught.value)

    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0))
    assert (
        refused(unigram)
        == "a Unigram tokenizer; only WordPiece can be built into a graph that gives the same token ids"
    )
    assert refused(Tokenizer(models.BPE())).startswith("a BPE tokenizer")
    assert "up to 50 characters" in refused(wordpiece(max_word=50))
    assert "'cat' is matched after normalization" in refused(
        wordpiece(added=(AddedToken("cat", normalized=True),))
    )
    assert "'cat' is matched only as a whole word" in refused(
        wordpiece(added=(AddedToken("cat", normalized=False, single_word=True),))
    )
    assert "overlap" in refused(wordpiece(added=(AddedToken("[CLS][SEP]", normalized=False),)))
    assert "parts of words" in refused(wordpiece(normalizers.Lowercase()))


def test_changed_characters(wordpiece: WordPiece) -> None:
    changed = changed_characters(wordpiece())
    assert {changed[each] for each in ("\0", "\x01", "\u0301", "\u200b", "\ufffd")} == {""}
    assert {changed[each] for each in " \n\u3000"} == {" "}
    assert all(changed[each] == f" {each} " for each in ("!", "\u6771", "\u00ab"))
    assert {changed[each] for each in "A\u00c0\u2260\u212b\uf900"} == {"a", " = ", " \u8c48 "}
    assert not {"a", "0", "\U0001f642"} & changed.keys()
    assert changed_characters(Tokenizer(models.WordPiece({"[UNK]": 0}))) == {}


def test_a_pre_tokenizer_that_joins_is_found(wordpiece: WordPiece) -> None:
    """`Whitespace` keeps `!?` together; in a graph each of them is a word."""
    tokenizer = wordpiece()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    text = TextTokenizer(tokenizer, "", 16, 0)
    assert difference_of(tokenizer_graph(text), text)[1] is not None
