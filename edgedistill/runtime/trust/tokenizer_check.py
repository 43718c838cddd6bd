"""What is checked in a tokenizer.json before the tokenizers library opens it: its size, the kinds of its parts, and its patterns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from edgedistill.errors import UserError
from edgedistill.runtime.trust import GET_AGAIN

LARGEST_BYTES = 64_000_000  # a vocabulary of 250,000 tokens takes 9 to 17 MB
LONGEST_PATTERN = 1_000  # characters of a regular expression; those of published tokenizers have up to 300
LONGEST_STRING = 1_000  # of any other, but for a table of characters
LONGEST_TABLE = 4_000_000  # characters, base64; that of XLM-R has 316,720
LONGEST_WORD = 1_000  # characters that WordPiece looks at together, at a cost that grows with their square
MOST_STEPS = 64  # of a normalizer, pre-tokenizer, …, with all steps of sequences
MOST_NESTED = 8  # sequences within sequences
LARGEST_GROWTH = 1_000  # of a text by the replacements of the normalizer, one after the other
MOST_ADDED = 64  # special tokens that a post-processor adds to a text
MODELS = {"BPE", "Unigram", "WordLevel", "WordPiece"}
STEPS = {  # {part of tokenizer.json: (the key under which a Sequence holds its steps, the kinds of steps)}
    "normalizer": (
        "normalizers",
        "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace Strip StripAccents",
    ),
    "pre_tokenizer": (
        "pretokenizers",
        "BertPreTokenizer ByteLevel CharDelimiterSplit Digits FixedLength Metaspace Punctuation Split UnicodeScripts Whitespace "
        "WhitespaceSplit",
    ),
    "post_processor": ("processors", "BertProcessing ByteLevel RobertaProcessing TemplateProcessing"),
    "decoder": ("decoders", "BPEDecoder ByteFallback ByteLevel CTC Fuse Metaspace Replace Strip WordPiece"),
}
KEYS = {"version", "truncation", "padding", "added_tokens", "model", *STEPS}


def check(path: Path) -> None:
    """Raises UserError with all that is wrong."""
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        raise UserError(f"{path}: {size} bytes, a tokenizer has at most {LARGEST_BYTES}; copy the bundle again")
    try:
        tokenizer = json.loads(path.read_bytes(), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        fact = "nested too deeply" if isinstance(error, RecursionError) else "not valid JSON, or with a key twice"
        raise UserError(f"{path}: {fact}; copy the bundle again") from None
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("model"), dict):
        raise UserError(f"{path}: not a tokenizer (no model); copy the bundle again")
    problems = [*_model_problems(tokenizer["model"]), *_other_problems(tokenizer)]
    if problems:
        raise UserError(*(f"{path}: {problem}; {GET_AGAIN}" for problem in dict.fromkeys(problems)))


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Of a key that occurs twice, parsers read the first, the last, or none."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _model_problems(model: dict[str, Any]) -> Iterator[str]:
    kind = model.get("type")
    if not isinstance(kind, str) or kind not in MODELS:
        yield f"model.type: {_shown(kind)}, which is none of {', '.join(sorted(MODELS))}"
    if not isinstance(model.get("vocab"), dict | list):
        yield "model.vocab: no vocabulary"
    longest = model.get("max_input_chars_per_word", 100)
    if not _is_integer(longest) or not 0 < longest <= LONGEST_WORD:
        yield f"model.max_input_chars_per_word: {_shown(longest)}, not 1 to {LONGEST_WORD}"
    if model.get("dropout"):
        yield f"model.dropout: {_shown(model['dropout'])}, so the same text would have other tokens every time"


def _other_problems(tokenizer: dict[str, Any]) -> Iterator[str]:
    unknown = sorted(set(tokenizer) - KEYS)
    if unknown:
        yield f"{', '.join(map(_shown, unknown[:5]))}: not a part of a tokenizer"
    for part in STEPS:
        steps = list(_steps(tokenizer.get(part), part, 0))
        problems = [step for step in steps if isinstance(step, str)]
        yield from problems[:5]
        if len(steps) > MOST_STEPS:
            yield f"{part}: {len(steps)} steps, above {MOST_STEPS}"
        plain = [step for step in steps if isinstance(step, dict)]
        for step in plain[:MOST_STEPS]:
            yield from (f"{part}: {step['type']}: {problem}" for problem in _step_problems(step))
        if part == "normalizer" and prod(_growth(step) for step in plain) > LARGEST_GROWTH:
            yield f"{part}: its replacements make a text more than {LARGEST_GROWTH} times as long"
        if part == "post_processor" and (added := sum(_added_tokens(step) for step in plain)) > MOST_ADDED:
            yield f"{part}: adds {added} special tokens to a text, above {MOST_ADDED}"


def _steps(step: Any, part: str, nested: int) -> Iterator[dict[str, Any] | str]:
    """The steps of a part in order, those of sequences in their place; a string for a problem."""
    key, kinds = STEPS[part]
    if step is None:
        return
    kind = step.get("type") if isinstance(step, dict) else step
    if isinstance(step, dict) and kind == "Sequence" and isinstance(step.get(key), list):
        if nested >= MOST_NESTED:
            yield f"{part}: sequences nested {MOST_NESTED} deep"
            return
        for each in step[key]:
            yield from _steps(each, part, nested + 1)
    elif isinstance(step, dict) and isinstance(kind, str) and kind in kinds.split():
        yield step
    else:
        yield f"{part}: type {_shown(kind)}, which is none of Sequence, {', '.join(kinds.split())}"


def _step_problems(step: dict[str, Any]) -> Iterator[str]:
    for key, value in step.items():
        if key == "precompiled_charsmap":
            if not isinstance(value, str) or len(value) > LONGEST_TABLE:
                yield f"{key}: not a table of at most {LONGEST_TABLE} characters"
        elif isinstance(value, str) and len(value) > LONGEST_STRING:
            yield f"{key}: {len(value)} characters, above {LONGEST_STRING}"
    pattern = step.get("pattern")
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    if isinstance(expression, str) and (problem := pattern_problem(expression)):
        yield f"pattern: {problem}"


def _growth(step: dict[str, Any]) -> int:
    """By how much a step of a normalizer can multiply a text's length; what it adds once does not count."""
    content = step.get("content")
    return max(1, len(content)) if step["type"] == "Replace" and isinstance(content, str) else 1


def _added_tokens(step: dict[str, Any]) -> int:
    """How many special tokens a step of a post-processor adds to a text or a pair, at most."""
    templates = [template for template in (step.get("single"), step.get("pair")) if isinstance(template, list)]
    special = step.get("special_tokens")
    entries = [entry.get("ids") for entry in special.values() if isinstance(entry, dict)] if isinstance(special, dict) else []
    return max(map(len, templates), default=4) * max((len(ids) for ids in entries if isinstance(ids, list)), default=1)


def pattern_problem(expression: str) -> str | None:
    """Why a regular expression of a stranger is refused: it is too long, or it repeats a group without end.

    Such a repetition, as in (a+)+b, can take time exponential in the text's length; repeated characters and classes, as in \\p{L}+, do not.
    """
    if len(expression) > LONGEST_PATTERN:
        return f"{len(expression)} characters, above {LONGEST_PATTERN}"
    at, classes = 0, 0
    while at < len(expression):
        letter = expression[at]
        if letter == "\\":
            at += 1
        elif letter == "[":
            classes += 1
        elif letter == "]" and classes:
            classes -= 1
        elif letter == ")" and not classes and _repeats_without_end(expression[at + 1 : at + 12]):
            return f"{_shown(expression)} repeats a group without end, which can take for ever"
        at += 1
    return None


def _repeats_without_end(rest: str) -> bool:
    """Whether what follows a group repeats it more than ten times: *, +, {2,}, {2,99}."""
    if rest[:1] in ("*", "+"):
        return True
    bounds = rest[1 : rest.index("}")].split(",") if rest[:1] == "{" and "}" in rest else []
    return rest[:1] == "{" and not (bounds and bounds[-1].isdecimal() and int(bounds[-1]) <= 10)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}…"
