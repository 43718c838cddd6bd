"""A bundle's tokenizer as an ONNX graph, and the graph that takes texts and returns embeddings.

BertTokenizer of onnxruntime-extensions knows the accents, capitals and punctuation of Latin-1 only. Here
every character is treated as the bundle's own tokenizer treats it: `changed_characters` asks it, and regular
expressions and a map do the same in the graph.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import onnx
from onnx import TensorProto, compose, helper

from edgedistill.device.tokenizer_equality import TextTokenizer, changed_characters, regex_class
from edgedistill.mobile.string_graph import EXTENSIONS, NoSuchGraph, StringGraph, open_session, strings

INPUT = "texts"
# the characters of the longest word that BertTokenizer looks up; tokenizers' own default too
WORD_LIMIT = 100


def tokenizer_graph(text: TextTokenizer) -> StringGraph:
    """From `texts`, (batch) strings, to `input_ids` and `attention_mask`, both int64 (batch, sequence).

    Raises NoSuchGraph for what the operators of onnxruntime-extensions cannot express: another kind of
    tokenizer than WordPiece, control characters that are part of words, another limit of a word's length,
    tokens added to a tokenizer that are matched after normalization or only as whole words, and special
    tokens in each other.
    """
    settings = json.loads(text.tokenizer.to_str())
    kind = settings["model"]["type"]
    if kind != "WordPiece":
        raise NoSuchGraph(
            f"a {kind} tokenizer; only WordPiece can be built into a graph that gives the same token ids"
        )
    if (text.tokenizer.truncation or {}).get("direction") == "left":
        raise NoSuchGraph(
            "a tokenizer that keeps the end of a long text (truncation: Left); the graph keeps its start"
        )
    added = _added_tokens(settings)
    changed = changed_characters(text.tokenizer)
    lines = _VocabularyLines(settings, _marks(changed, len(added) + 3), added)
    graph = StringGraph()
    # where text would end: U+0000
    value = graph.split_and_join(INPUT, lines.substitute, separators=[regex_class(["\0", *lines.marks])])
    if text.prompt:
        value = graph.replace(value, "^", text.prompt.replace("\\", "\\\\"))
    for token, mark in lines.mark_of.items():
        value = graph.replace(value, "".join(f"\\x{{{ord(each):x}}}" for each in token), f" {mark} ")
    value = graph.replace(value, "$", f" {lines.end_of_text}")
    value = graph.strings("StringJoin", value, graph.text(" "), graph.integers([0]))
    kept = {each: result for each, result in changed.items() if each not in lines.marks}
    value = _split_into_words(graph, value, kept, lines.alphabet)
    value = graph.replace(value, " *([^ ]+) *", f"\\1 {lines.end_of_word} ")
    ids = _look_up(graph, value, lines, settings["model"])
    _padded_batch(graph, ids, lines.end_of_text_id, text)
    return graph


class _VocabularyLines:
    """The tokens by id, where characters of their own stand for the added tokens, the end of a word and the
    end of a text.

    No text holds these marks when it comes in: `substitute` takes their place, which the tokenizer treats
    alike.
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


def _marks(changed: dict[str, str], count: int) -> list[str]:
    """Control characters that the tokenizer removes from texts, as it does U+0000."""
    zero, *free = [chr(code) for code in range(32) if changed.get(chr(code)) == ""] or [""]
    if zero != "\0" or len(free) < count:
        fact = f"{count - 3} added tokens, too many"
        if zero != "\0":
            fact = "U+0000 to U+001F are parts of words"
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
    ids = graph.strings("BertTokenizer", text, outputs=["found_ids", "found_types", "found_mask"], **settings)
    # without its own first and last token
    ids = graph("Slice", ids, graph.integers([1]), graph.integers([-1]))
    ends = graph("Equal", ids, graph.integers(lines.end_of_word_id))
    unknown = graph("Equal", ids, graph.integers(lines.unknown_id))
    word = graph.count(ends)  # of each token, but one too many for an end
    seen = graph("Gather", graph.count(unknown), graph.where(ends))  # at the end of each word
    before = graph("Concat", graph.integers([0]), seen, axis=0)
    known = graph(
        "Equal", graph("Sub", graph("Concat", seen, graph.integers([0]), axis=0), before), graph.integers(0)
    )
    kept = graph("And", graph("Not", ends), graph("Or", graph("Gather", known, word), unknown))
    return graph("Gather", ids, graph.where(kept))


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


def _split_into_words(graph: StringGraph, text: str, changed: dict[str, str], alphabet: str) -> str:
    """One string (1) of normalized words with spaces between them.

    A word with a character that is not in the `alphabet` of all tokens becomes the unknown token as a whole,
    whichever character that is: what replaces it makes no difference.
    """
    removed = {each for each, result in changed.items() if not result}
    spaces = {each for each, result in changed.items() if result.isspace()}
    isolated = {each for each, result in changed.items() if result == f" {each} "}
    known, others = set(alphabet), changed.keys() - removed - spaces - isolated
    replaced = {
        each: result
        for each, result in changed.items()
        if each in others and (each in known or " " in result or set(result) <= known)
    }
    if removed:
        text = graph.split_and_join(text, "", separators=[regex_class(removed)])
    inside = f"[^{regex_class(isolated | spaces)[1:-1]}]+"
    text = graph.split_and_join(
        text, " ", tokenexp=f"{regex_class(isolated)}|{inside}" if isolated else inside
    )
    if not replaced:
        return text
    kept = regex_class(chr(code) for code in range(1, 128) if chr(code) not in replaced)[1:-1]
    parts = graph.split(text, tokenexp=f"[{kept}]+|[^{kept}]")
    mapping = "\n".join(f"{each}\t{new}" for each, new in replaced.items())
    mapped = graph.strings("StringMapping", parts, map=mapping)
    return graph.strings("StringJoin", mapped, graph.text(""), graph.integers([1]))


def _padded_batch(graph: StringGraph, flat: str, end_of_text: int, text: TextTokenizer) -> None:
    """Add the nodes that make `input_ids` and `attention_mask`, int64 (batch, sequence).

    `flat` (n) int64 holds the ids of all texts of the batch, `end_of_text` after each text.
    """
    before, after = text.template
    added = len(before) + len(after)
    zero, one, axis = graph.integers(0), graph.integers(1), graph.integers([1])
    ends = graph.where(graph("Equal", flat, graph.integers(end_of_text)))  # (batch)
    starts = graph("Concat", graph.integers([0]), graph("Add", ends, one), axis=0)
    starts = graph("Slice", starts, graph.integers([0]), graph.integers([-1]))
    counts = graph("Min", graph("Sub", ends, starts), graph.integers(text.max_tokens - added))
    counts, starts = graph("Unsqueeze", counts, axis), graph("Unsqueeze", starts, axis)  # (batch, 1)
    lengths = graph("Add", counts, graph.integers(added))
    width = graph("ReduceMax", lengths, keepdims=0)
    columns = graph("Unsqueeze", graph("Range", zero, width, one), graph.integers([0]))  # (1, sequence)
    places = graph("Add", starts, graph("Sub", columns, graph.integers(len(before))))
    places = graph("Min", graph("Max", places, zero), graph("Sub", graph("Shape", flat), one))
    batch = graph("Gather", flat, places)
    for column, token in enumerate(before):
        batch = graph("Where", graph("Equal", columns, graph.integers(column)), graph.integers(token), batch)
    for offset, token in enumerate(after):
        last = graph("Add", counts, graph.integers(len(before) + offset))
        batch = graph("Where", graph("Equal", columns, last), graph.integers(token), batch)
    inside = graph("Less", columns, lengths)
    graph("Where", inside, batch, graph.integers(text.pad_id), outputs=["input_ids"])
    graph("Cast", inside, to=TensorProto.INT64, outputs=["attention_mask"])


def tokenizer_model(graph: StringGraph) -> onnx.ModelProto:
    """A graph of its own: texts to token ids."""
    texts = helper.make_tensor_value_info(INPUT, TensorProto.STRING, ["batch"])
    batch = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    opsets = [helper.make_opsetid(*each) for each in (("", 17), (EXTENSIONS, 1), ("com.microsoft", 1))]
    made = helper.make_graph(graph.nodes, "tokenizer", [texts], batch, graph.constants)
    return helper.make_model(made, opset_imports=opsets, ir_version=8)


def ids_by(graph: StringGraph, pad_id: int) -> Callable[[list[str]], list[list[int]]]:
    """What gives the token ids of texts by the graph. Padding with another id than `pad_id` counts as ids."""
    session = open_session(tokenizer_model(graph).SerializeToString())

    def ids_of(texts: list[str]) -> list[list[int]]:
        ids, mask = session.run(["input_ids", "attention_mask"], {INPUT: strings(texts)})
        return [row[kept].tolist() for row, kept in zip(ids, (mask == 1) | (ids != pad_id), strict=True)]

    return ids_of


def joined(graph: StringGraph, encoder: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """The encoder behind its tokenizer: from texts, (batch) strings, to `output`."""
    names = [(name, name) for name in ("input_ids", "attention_mask")]
    return compose.merge_models(tokenizer_model(graph), encoder, io_map=names, outputs=[output])
