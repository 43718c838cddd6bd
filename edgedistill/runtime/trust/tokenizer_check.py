"""What is checked in a tokenizer.json before the tokenizers library opens it: how long its parts make a text,
and its patterns, so that a text's tokens take a time that its length bounds. What that library still refuses
is a CheckFailed."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgedistill.errors import CheckFailed, UserError, first_line
from edgedistill.files import Json
from edgedistill.runtime.trust import GET_AGAIN

LIMITS = {
    "pattern": 500,  # characters; those of published tokenizers have up to 300
    "token": 1_000,  # characters; those of published vocabularies have up to 256
    "unigram": 256,  # characters of a token that Unigram looks for at every place, at the square of the cost
    "affix": 100,  # characters of what marks the inside or the end of a word
    "string": 1_000,  # characters of any other
    "table": 4_000_000,  # characters, base64; that of XLM-R has 316,720
    "word": 256,  # characters that WordPiece looks at together, at a cost that grows with their square
    "steps": 64,  # of a normalizer, pre-tokenizer, …, with all steps of sequences
    "growth": 1_000,  # of a text by the replacements of the normalizer, one after the other
    "lengthening": 2,  # steps before the model that can each double a text
    "special": 64,  # tokens that a post-processor adds to a text
}
STEPS = {  # of each part of tokenizer.json: where a Sequence holds its steps, and the kinds of steps
    "normalizer": (
        "normalizers",
        "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace Strip "
        "StripAccents",
    ),
    "pre_tokenizer": (
        "pretokenizers",
        "BertPreTokenizer ByteLevel CharDelimiterSplit Digits FixedLength Metaspace Punctuation Split "
        "UnicodeScripts Whitespace WhitespaceSplit",
    ),
    "post_processor": ("processors", "BertProcessing ByteLevel RobertaProcessing TemplateProcessing"),
    "decoder": ("decoders", "BPEDecoder ByteFallback ByteLevel CTC Fuse Metaspace Replace Strip WordPiece"),
}
GROWS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18}  # characters that one character becomes, at most
TABLE = "precompiled_charsmap"  # of sentencepiece: the size of a trie, the trie, strings that end in zero
# A simple pattern is alternatives of characters and classes where nothing that can fail follows what repeats
# without end: so matching takes the time of the text's length in any engine. No nested groups, references,
# conditions or operations on classes. The forms of published tokenizers that are not of this kind stand here
# as they are: they end in \s+ or in the alternative that takes what they leave.
CHARACTER = r"(?:[^\\\[\](){}*+?.^$|]|\\[sSdDwWrnt]|\\[!-/:-@\[-^`{-~]|\\[pP]\{[A-Za-z_]+\})"
ATOM = rf"(?:{CHARACTER}|\[\^?(?:{CHARACTER}|[(){{}}*+?.$|])+\])"
GROUP = rf"\(\?i?:{ATOM}{{1,8}}(?:\|{ATOM}{{1,8}}){{0,20}}\)"
REPEATED = rf"{ATOM}(?:\+|\{{[1-9],\}}|\{{1,[1-9]\}})?(?:{ATOM}\*)?(?:{GROUP}\?)?"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
OTHER = r"[^\r\n\p{L}\p{N}]?"
KNOWN = [  # GPT-4o's, capitals before small letters or else capitals, and BLOOM's
    *(
        f"{OTHER}{UPPER}*{LOWER}+{end}|{OTHER}{UPPER}+{LOWER}*{end}"
        for end in ("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "")
    ),
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
]
ALTERNATIVE = (
    rf"(?:{'|'.join(map(re.escape, KNOWN))}|(?:{ATOM}(?:\?|\{{[1-9]\}})?){{0,8}}(?:{REPEATED}|{GROUP}))"
)
SPACES = r"(?:\|\\s\*\[\\r\\n\]\+)?(?:\|\\s\+\(\?!\\S\))?\|\\s\+"
PATTERN = re.compile(rf"(?![\s\S]*(?:&&|--|~~)){ALTERNATIVE}(?:\|{ALTERNATIVE}){{0,20}}(?:{SPACES})?")
NO_TOKENIZER = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)


def check(path: Path) -> None:
    """Raise UserError with what is wrong with a tokenizer.json."""
    try:
        check_tokenizer(path.read_bytes())
    except NO_TOKENIZER as error:
        raise UserError(f"{path}: refused: {error!s:.300}; {GET_AGAIN}") from None


def check_tokenizer(data: bytes) -> None:
    """Raises an error for a tokenizer.json whose tokens may take a time that a text's length does not bound:
    ValueError with what is wrong, or another where its parts are no parts of a tokenizer."""
    tokenizer = json.loads(data, object_pairs_hook=distinct)
    _check_model(tokenizer["model"])
    steps = {part: list(_flat(tokenizer.get(part), part)) for part in STEPS}
    for part in STEPS:
        _most(len(steps[part]), "steps")
        for step in steps[part]:
            _check_step(step)
    before = [step["type"] for step in (*steps["normalizer"], *steps["pre_tokenizer"])]
    _most(_growth(steps["normalizer"]), "growth")
    _most(before.count("ByteLevel") + before.count("Metaspace"), "lengthening")
    _most(sum(map(_added_tokens, steps["post_processor"])), "special")
    for token in tokenizer.get("added_tokens") or []:
        if (token.get("lstrip") or token.get("rstrip")) and token["content"] != token["content"].strip():
            raise ValueError("added_tokens: one that takes the white space that it is found in")


def distinct(pairs: list[tuple[str, Any]]) -> Json:
    """A JSON object. Of a key that occurs twice, parsers read the first, the last, or none."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key twice, of which parsers read one or the other")
    return value


def _most(number: int, what: str) -> None:
    if number > LIMITS[what]:
        raise ValueError(f"{what}: {number}, above {LIMITS[what]}")


def _check_model(model: Json) -> None:
    vocab = model["vocab"]
    for token in vocab if isinstance(vocab, dict) else [pair[0] for pair in vocab]:
        _most(len(token), "unigram" if model["type"] == "Unigram" else "token")
    _check_strings(model, "affix")
    word = model.get("max_input_chars_per_word", 100)
    if type(word) is not int or word < 1 or model.get("dropout"):
        raise ValueError("model: dropout, or words of no length")
    _most(word, "word")


def _flat(step: Any, part: str) -> Iterator[Json]:
    """The steps of a part of tokenizer.json, those of sequences in their place."""
    key, kinds = STEPS[part]
    if step is None:
        return
    if step["type"] == "Sequence":
        for inner in step[key]:
            yield from _flat(inner, part)
    elif step["type"] in kinds.split():
        yield step
    else:
        raise ValueError(f"{part}: type {step['type']!r}, which is none of Sequence {kinds}")


def _check_step(step: Json) -> None:
    _check_strings(step, "string")
    pattern = step.get("pattern") or {}
    expression = pattern.get("Regex", pattern.get("String") or "a")
    if pattern.get("String") == "" or not isinstance(expression, str):
        raise ValueError(f"{step['type']}: an empty pattern")
    if "Regex" in pattern and not (len(expression) <= LIMITS["pattern"] and PATTERN.fullmatch(expression)):
        raise ValueError(
            f"{step['type']}: {expression[:100]!a} is no pattern of a published tokenizer, and not as simple"
        )


def _check_strings(values: Json, what: str) -> None:
    for key, value in values.items():
        if isinstance(value, str):
            _most(len(value), "table" if key == TABLE else what)


def _growth(normalizer: list[Json]) -> int:
    """By how much a normalizer can multiply a text's length: what one step puts in, the next ones may
    lengthen."""
    growth = 1
    for step in normalizer:
        if step["type"] in ("Precompiled", "Replace"):
            growth *= max(1, _longest_replacement(step))
        elif growth > 1:
            growth *= GROWS.get(step["type"], 1)
    return growth


def _longest_replacement(step: Json) -> int:
    """What a step of a normalizer puts in at most. tokenizers takes the memory for a table of characters
    before it reads any."""
    if step["type"] == "Replace":
        return len(step["content"])
    table = base64.b64decode(step[TABLE])
    end = 4 + int.from_bytes(table[:4], "little")
    if end > len(table):
        raise ValueError(f"{TABLE}: not as long as it says")
    return max(map(len, table[end:].split(b"\0")))


def _added_tokens(step: Json) -> int:
    """How many special tokens a step of a post-processor adds to a text, at most."""
    template = step.get("single")
    special = step.get("special_tokens") or {}
    if template is None:
        return 4
    if sum("Sequence" in item for item in template) > 1:
        raise ValueError("post_processor: a template that repeats the text")
    return len(template) * max([1, *(len(entry["ids"]) for entry in special.values())])


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise CheckFailed where tokenizers fails on a bundle's tokenizer.json in the block."""
    try:
        yield
    except BaseException as error:
        # tokenizers raises Exception itself, and a panic of Rust is a BaseException that no module exports
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise CheckFailed(
            f"{folder / 'tokenizer.json'}: tokenizers fails on it ({first_line(error)}); copy the bundle "
            "again"
        ) from error
