"""A WordPiece tokenizer as a graph: texts to token ids, batches padded, in the operators of
onnxruntime-extensions.

BertTokenizer of onnxruntime-extensions knows the accents, capitals and punctuation of Latin-1 only. Here
every character is treated as the bundle's own tokenizer treats it: `character_classes` asks it, and regular
expressions and a map do the same in the graph.
"""

from __future__ import annotations

import json
from typing import Any

from onnx import TensorProto
from tokenizers import Tokenizer

from edgedistill.mobile.character_classes import (
    CharacterClasses,
    character_classes,
    regex_class,
    without_unknown,
)
from edgedistill.mobile.string_graph import NoSuchGraph, StringGraph

WORD_LIMIT = (
    100  # the characters of the longest word that BertTokenizer looks up; tokenizers' own default too
)


def wordpiece_graph(tokenizer: Tokenizer, prompt: str, max_tokens: int, pad_id: int) -> StringGraph:
    """From `texts`, (batch) strings, to `input_ids` and `attention_mask`, both int64 (batch, sequence).

    Raises NoSuchGraph for what has no counterpart in a graph: control characters that are part of words,
    another limit of a word's length, tokens added to a tokenizer that are matched after normalization or only
    as whole words, and special tokens in each other.
    """
    settings = json.loads(tokenizer.to_str())
    added = _added_tokens(settings)
    classes = character_classes(tokenizer)
    lines = _VocabularyLines(settings, _marks(classes, len(added) + 3), added)
    graph = StringGraph()
    text = graph.split_and_join(
        "texts", lines.substitute, separators=[regex_class(["\0", *lines.marks])]
    )  # where text would end: U+0000
    if prompt:
        text = graph.replace(text, "^", prompt.replace("\\", "\\\\"))
    for token, mark in lines.mark_of.items():
        text = graph.replace(text, _quoted(token), f" {mark} ")
    text = graph.replace(text, "$", f" {lines.end_of_text}")
    text = graph.strings("StringJoin", text, graph.text(" "), graph.integers([0]))
    text = _split_into_words(graph, text, without_unknown(classes.without(lines.marks), lines.alphabet))
    text = graph.replace(text, " *([^ ]+) *", f"\\1 {lines.end_of_word} ")
    ids = _look_up(graph, text, lines, settings["model"])
    _padded_batch(graph, ids, lines.end_of_text_id, _template(tokenizer), max_tokens, pad_id)
    return graph


class _VocabularyLines:
    """The tokens by id, where characters of their own stand for the added tokens, the end of a word and the
    end of a text.

    marks: these characters, which are in no text when they come in: `substitute` takes their place, which the
        tokenizer treats alike.
    """

    def __init__(self, settings: dict[str, Any], marks: list[str], added: dict[str, int]) -> None:
        self.substitute, self.end_of_word, self.end_of_text, *free = marks
        self.marks = marks[1:]
        self.mark_of = dict(zip(added, free, strict=True))
        tokens = {number: token for token, number in settings["model"]["vocab"].items()}
        self.alphabet = "".join(tokens.values())
        tokens |= {number: self.mark_of[token] for token, number in added.items()}
        self.end_of_word_id, self.end_of_text_id = (max(tokens) + more for more in (1, 2))
        tokens |= {self.end_of_word_id: self.end_of_word, self.end_of_text_id: self.end_of_text}
        self.unknown_id = settings["model"]["vocab"][settings["model"]["unk_token"]]
        self.unknown = tokens[self.unknown_id]
        lines = (tokens.get(number, "") for number in range(max(tokens) + 1))
        # a line for every id; with a space, which no word has, for those that no text leads to
        self.lines = [
            line if line and not set(line) & {"\n", "\r"} else f" {number}"
            for number, line in enumerate(lines)
        ]


def _marks(classes: CharacterClasses, count: int) -> list[str]:
    """Control characters that the tokenizer removes from texts, as it does U+0000."""
    free = [chr(code) for code in range(1, 32) if chr(code) in classes.removed]
    if "\0" not in classes.removed or len(free) < count:
        fact = (
            "U+0000 to U+001F are parts of words"
            if "\0" not in classes.removed
            else f"{count - 3} added tokens, too many"
        )
        raise NoSuchGraph(
            f"{fact}: a graph uses control characters that are removed from texts to mark what the tokenizer "
            "finds"
        )
    return free[:count]


def _look_up(graph: StringGraph, text: str, lines: _VocabularyLines, model: dict[str, Any]) -> str:
    """The ids of all texts, (n), where one of the unknown token takes the place of a word's ids if a part of
    it is unknown.

    BertTokenizer keeps the parts that it has found before; here they are removed, which needs the ends of
    words.
    """
    if model["max_input_chars_per_word"] != WORD_LIMIT:
        raise NoSuchGraph(
            f"words of up to {model['max_input_chars_per_word']} characters are looked up, in a graph up to "
            f"{WORD_LIMIT}"
        )
    names = dict.fromkeys(("unk_token", "sep_token", "pad_token", "cls_token", "mask_token"), lines.unknown)
    settings = {
        "vocab_file": "\n".join(lines.lines),
        "suffix_indicator": model["continuing_subword_prefix"],
        "do_basic_tokenize": 0,
        **names,
    }
    ids = graph.strings("BertTokenizer", text, outputs=3, **settings)
    ids = graph(
        "Slice", ids, graph.integers([1]), graph.integers([-1])
    )  # without its own first and last token
    ends = graph("Equal", ids, graph.integers(lines.end_of_word_id))
    unknown = graph("Equal", ids, graph.integers(lines.unknown_id))
    word = graph(
        "CumSum", graph("Cast", ends, to=TensorProto.INT64), graph.integers(0)
    )  # of each token, but one too many for an end
    seen = graph("CumSum", graph("Cast", unknown, to=TensorProto.INT64), graph.integers(0))
    seen = graph(
        "Gather", seen, graph("Reshape", graph("NonZero", ends), graph.integers([-1]))
    )  # at the end of each word
    before = graph("Concat", graph.integers([0]), seen, axis=0)
    known = graph(
        "Equal", graph("Sub", graph("Concat", seen, graph.integers([0]), axis=0), before), graph.integers(0)
    )
    kept = graph("And", graph("Not", ends), graph("Or", graph("Gather", known, word), unknown))
    return graph("Gather", ids, graph("Reshape", graph("NonZero", kept), graph.integers([-1])))


def _added_tokens(settings: dict[str, Any]) -> dict[str, int]:
    """The ids of the tokens that are found in the raw text, before anything else is done to it."""
    added = settings["added_tokens"]
    for token in added:
        if token["normalized"] or token["single_word"]:
            how = "after normalization" if token["normalized"] else "only as a whole word"
            raise NoSuchGraph(
                f"the added token {token['content']!r} is matched {how}, which no operator does"
            )
    texts = [token["content"] for token in added]
    nested = [(one, other) for one in texts for other in texts if one != other and _overlap(one, other)]
    if nested:
        raise NoSuchGraph(
            f"the added tokens {nested[0][0]!r} and {nested[0][1]!r} overlap; which of them is found depends "
            "on the order"
        )
    return {token["content"]: token["id"] for token in added}


def _overlap(one: str, other: str) -> bool:
    return other in one or any(one.endswith(other[:length]) for length in range(1, len(other)))


def _split_into_words(graph: StringGraph, text: str, classes: CharacterClasses) -> str:
    """One string (1) of normalized words with spaces between them."""
    if classes.removed:
        text = graph.split_and_join(text, "", separators=[regex_class(classes.removed)])
    alone = regex_class(classes.isolated)
    inside = f"[^{regex_class(classes.isolated | classes.spaces)[1:-1]}]+"
    text = graph.split_and_join(text, " ", tokenexp=f"{alone}|{inside}" if classes.isolated else inside)
    if not classes.replaced:
        return text
    kept = regex_class(chr(code) for code in range(1, 128) if chr(code) not in classes.replaced)[1:-1]
    parts = graph.split(text, tokenexp=f"[{kept}]+|[^{kept}]")
    mapped = graph.strings(
        "StringMapping", parts, map="\n".join(f"{each}\t{new}" for each, new in classes.replaced.items())
    )
    return graph.strings("StringJoin", mapped, graph.text(""), graph.integers([1]))


def _template(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and after those of a text."""
    with_, without = tokenizer.encode("a").ids, tokenizer.encode("a", add_special_tokens=False).ids
    start = next(at for at in range(len(with_)) if with_[at : at + len(without)] == without)
    return with_[:start], with_[start + len(without) :]


def _quoted(text: str) -> str:
    """A text as an RE2 pattern that matches nothing else."""
    return "".join(f"\\x{{{ord(each):x}}}" for each in text)


def _padded_batch(
    graph: StringGraph,
    flat: str,
    end_of_text: int,
    template: tuple[list[int], list[int]],
    max_tokens: int,
    pad_id: int,
) -> None:
    """Add the nodes that make `input_ids` and `attention_mask`, int64 (batch, sequence).

    flat: (n) int64, the ids of all texts of the batch, `end_of_text` after each text. template: the ids
        before and after
    those of a text. The number of texts is that of the graph's input `texts`.
    """
    before, after = template
    room = max_tokens - len(before) - len(after)
    zero, one, end = graph.integers(0), graph.integers(1), graph.integers([-1])
    is_end = graph("Equal", flat, graph.integers(end_of_text))
    row_of_each = graph("CumSum", graph("Cast", is_end, to=TensorProto.INT64), zero, exclusive=1)
    tokens = graph("Reshape", graph("NonZero", graph("Not", is_end)), end)
    ids, rows = graph("Gather", flat, tokens), graph("Gather", row_of_each, tokens)
    texts = graph("Reshape", graph("Shape", "texts"), graph.integers([]))
    numbers = graph("Unsqueeze", graph("Range", zero, texts, one), graph.integers([1]))  # (batch, 1)
    belongs = graph(
        "Cast", graph("Equal", graph("Unsqueeze", rows, graph.integers([0])), numbers), to=TensorProto.INT64
    )  # (batch, n)
    counts = graph("ReduceSum", belongs, graph.integers([1]), keepdims=0)
    starts = graph("CumSum", counts, zero, exclusive=1)
    total = graph("Reshape", graph("Shape", ids), graph.integers([]))
    places = graph("Sub", graph("Range", zero, total, one), graph("Gather", starts, rows))
    kept = graph("Reshape", graph("NonZero", graph("Less", places, graph.integers(room))), end)
    ids, rows, places = (graph("Gather", each, kept) for each in (ids, rows, places))
    lengths = graph(
        "Unsqueeze", graph("Min", counts, graph.integers(room)), graph.integers([1])
    )  # (batch, 1), without the template
    longest = graph("ReduceMax", lengths, keepdims=0)
    width = graph("Add", longest, graph.integers(len(before) + len(after)))
    columns = graph("Range", zero, graph("Reshape", width, graph.integers([])), one)
    columns = graph("Unsqueeze", columns, graph.integers([0]))  # (1, sequence)
    where = graph(
        "Concat",
        *(
            graph("Unsqueeze", each, end)
            for each in (rows, graph("Add", places, graph.integers(len(before))))
        ),
        axis=1,
    )
    shape = graph("Concat", graph("Shape", "texts"), graph("Reshape", width, end), axis=0)
    batch = graph("ScatterND", graph("Expand", graph.integers(pad_id), shape), where, ids)
    for column, token in enumerate(before):
        batch = graph("Where", graph("Equal", columns, graph.integers(column)), graph.integers(token), batch)
    for offset, token in enumerate(after):
        last = graph("Add", lengths, graph.integers(len(before) + offset))
        batch = graph("Where", graph("Equal", columns, last), graph.integers(token), batch)
    inside = graph("Less", columns, graph("Add", lengths, graph.integers(len(before) + len(after))))
    graph.output("input_ids", batch)
    graph.output("attention_mask", graph("Cast", inside, to=TensorProto.INT64))
