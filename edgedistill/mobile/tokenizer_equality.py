"""Whether a tokenizer's graph gives the token ids of tokenizer.json, text by text."""

from __future__ import annotations

from collections.abc import Iterator

from edgedistill.errors import quote
from edgedistill.mobile.adversarial_corpus import LINES, adversarial_corpus
from edgedistill.mobile.graph_session import open_session, strings
from edgedistill.mobile.string_graph import StringGraph
from edgedistill.mobile.tokenizer_graph import INPUT, TextTokenizer, tokenizer_model

BATCH = 64  # texts of all lengths, so that padding is checked too
SHOWN = 12  # token ids of a list
TOKENS = 2_000  # of the vocabulary, to make texts of


def first_difference(graph: StringGraph, text: TextTokenizer, lines: int = LINES) -> tuple[int, str | None]:
    """(number of texts, None) where the graph gives tokenizer.json's ids for every text of the adversarial
    corpus; otherwise (index of the first text that differs, a sentence with both lists of ids).
    """
    special = [token.content for token in text.tokenizer.get_added_tokens_decoder().values()]
    vocabulary = sorted(text.tokenizer.get_vocab())
    corpus = adversarial_corpus(
        special, vocabulary[:: max(1, len(vocabulary) // TOKENS)], text.max_tokens, lines
    )
    session = open_session(tokenizer_model(graph).SerializeToString())
    for start in range(0, len(corpus), BATCH):
        texts = corpus[start : start + BATCH]
        ids, mask = session.run(["input_ids", "attention_mask"], {INPUT: strings(texts)})
        for at, (row, length, expected) in enumerate(
            zip(ids, mask.sum(1), _expected(text, texts), strict=True)
        ):
            found = row[:length].tolist()
            if found != expected or (row[length:] != text.pad_id).any():
                place = f"text {start + at + 1:,} of {len(corpus):,} ({quote(texts[at])})"
                return (
                    start + at,
                    f"{place} has the token ids {_short(found, expected)} in the graph, "
                    f"{_short(expected, found)} by tokenizer.json",
                )
    return len(corpus), None


def _expected(text: TextTokenizer, texts: list[str]) -> Iterator[list[int]]:
    for encoding in text.tokenizer.encode_batch([text.prompt + each for each in texts]):
        yield encoding.ids


def _short(ids: list[int], other: list[int]) -> str:
    """A list of ids from shortly before the first that the other list does not have."""
    same = next(
        (at for at, (one, two) in enumerate(zip(ids, other, strict=False)) if one != two),
        min(len(ids), len(other)),
    )
    start = max(0, same - 3)
    shown = " ".join(map(str, ids[start : start + SHOWN]))
    return ("… " if start else "") + shown + (" …" if len(ids) > start + SHOWN else "")
