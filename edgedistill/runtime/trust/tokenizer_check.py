"""What is checked in a tokenizer.json before the tokenizers library opens it: the kinds of its parts,
how long they make a text, and its patterns. What that library still refuses is a CheckFailed."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgedistill.errors import CheckFailed, UserError, first_line, shown
from edgedistill.runtime.trust import GET_AGAIN

LONGEST_TOKEN = 1_000  # characters; those of published vocabularies have up to 256
LONGEST_AFFIX = 100  # characters of what marks the inside or the end of a word
LONGEST_STRING = 1_000  # of any other, but for a table of characters
LONGEST_TABLE = 4_000_000  # characters, base64; that of XLM-R has 316,720
LONGEST_WORD = 256  # characters that WordPiece looks at together, at a cost that grows with their square
LONGEST_UNIGRAM = (
    256  # characters of a token that Unigram looks for at every place, at a cost that grows with their square
)
MOST_STEPS = 64  # of a normalizer, pre-tokenizer, …, with all steps of sequences
MOST_NESTED = 8  # sequences within sequences
LARGEST_GROWTH = 1_000  # of a text by the replacements of the normalizer, one after the other
# steps before the model that write a byte as a character or put one before every part: each can double a text
MOST_LENGTHENING = 2
MOST_ADDED = 64  # special tokens that a post-processor adds to a text
MODELS = {"BPE", "Unigram", "WordLevel", "WordPiece"}
STEPS = {  # {part of tokenizer.json: (the key under which a Sequence holds its steps, the kinds of steps)}
    "normalizer": (
        "normalizers",
        "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace Strip "
        "StripAccents",
    ),
    "pre_tokenizer": (
        "pretokenizers",
        "BertPreTokenizer ByteLevel CharDelimiterSplit Digits FixedLength Metaspace Punctuation Split "
        "UnicodeScripts Whitespace "
        "WhitespaceSplit",
    ),
    "post_processor": ("processors", "BertProcessing ByteLevel RobertaProcessing TemplateProcessing"),
    "decoder": ("decoders", "BPEDecoder ByteFallback ByteLevel CTC Fuse Metaspace Replace Strip WordPiece"),
}
# A simple pattern is alternatives of characters and classes where nothing that can fail follows what repeats
# without end: so matching takes
# the time of the text's length in any engine. No nested groups, references, conditions or operations on
# classes. The forms of published
# tokenizers that are not of this kind stand here as they are: they end in \s+ or in the alternative that
# takes what they leave.
LONGEST_PATTERN = 500  # characters; those of published tokenizers have up to 300
_CHARACTER = r"(?:[^\\\[\](){}*+?.^$|]|\\[sSdDwWrnt]|\\[!-/:-@\[-^`{-~]|\\[pP]\{[A-Za-z_]+\})"
_CLASS = rf"\[\^?(?:{_CHARACTER}|[(){{}}*+?.$|])+\]"
_ATOM = rf"(?:{_CHARACTER}|{_CLASS})"
_GROUP = rf"\(\?i?:{_ATOM}{{1,8}}(?:\|{_ATOM}{{1,8}}){{0,20}}\)"
_REPEATED = rf"{_ATOM}(?:\+|\{{[1-9],\}}|\{{1,[1-9]\}})?(?:{_ATOM}\*)?(?:{_GROUP}\?)?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT_4O = [  # capitals before small letters, otherwise capitals
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{ending}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{ending}"
    for ending in (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "")
]
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_KNOWN = "|".join(map(re.escape, [*_GPT_4O, _BLOOM]))
_ALTERNATIVE = rf"(?:{_KNOWN}|(?:{_ATOM}(?:\?|\{{[1-9]\}})?){{0,8}}(?:{_REPEATED}|{_GROUP}))"
_NEWLINES, _TRAILING = re.escape(r"\s*[\r\n]+"), re.escape(r"\s+(?!\S)")
_SPACES = rf"(?:\|{_NEWLINES})?(?:\|{_TRAILING})?\|\\s\+"
PATTERN = re.compile(rf"(?![\s\S]*(?:&&|--|~~)){_ALTERNATIVE}(?:\|{_ALTERNATIVE}){{0,20}}(?:{_SPACES})?")
DECOMPOSED = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18}  # characters that one character becomes, at most
LENGTHENING = ("ByteLevel", "Metaspace")
TABLE = "precompiled_charsmap"  # of sentencepiece: the size of a trie, the trie, strings that end in zero
KEYS = {"version", "truncation", "padding", "added_tokens", "model", *STEPS}


def check(path: Path) -> int:
    """The largest token id. Raises UserError with all that is wrong."""
    try:
        tokenizer = json.loads(path.read_bytes(), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        fact = "nested too deeply" if deep else "not valid JSON, or with a key twice"
        raise UserError(f"{path}: {fact}; copy the bundle again") from None
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("model"), dict):
        raise UserError(f"{path}: not a tokenizer (no model); copy the bundle again")
    problems = list(_model_problems(tokenizer["model"]))
    unknown = sorted(set(tokenizer) - KEYS)
    if unknown:
        problems.append(f"{', '.join(map(shown, unknown[:5]))}: not a part of a tokenizer")
    added = tokenizer.get("added_tokens")
    if any(_strips_itself(token) for token in (added if isinstance(added, list) else [])):
        problems.append(
            "added_tokens: one that begins or ends with white space takes the white space around it too"
        )
    steps = {part: _steps(tokenizer.get(part), part, problems) for part in STEPS}
    problems += [problem for part in STEPS for problem in _part_problems(part, steps[part])]
    lengthening = sum(
        step["type"] in LENGTHENING for part in ("normalizer", "pre_tokenizer") for step in steps[part]
    )
    if lengthening > MOST_LENGTHENING:
        problems.append(
            f"normalizer, pre_tokenizer: {lengthening} steps of type {' or '.join(LENGTHENING)}, above "
            f"{MOST_LENGTHENING}"
        )
    if problems:
        raise UserError(*(f"{path}: {problem}; {GET_AGAIN}" for problem in dict.fromkeys(problems)))
    vocab = tokenizer["model"]["vocab"]
    numbers = list(vocab.values()) if isinstance(vocab, dict) else [len(vocab) - 1]
    return max(_integers([numbers, added, tokenizer.get("post_processor")]), default=0)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Of a key that occurs twice, parsers read the first, the last, or none."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _integers(value: Any) -> Iterator[int]:
    """Every integer in a JSON value: of added tokens and post-processors, all but the types are token ids."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict | list):
            waiting.extend(each.values() if isinstance(each, dict) else each)
        elif type(each) is int:
            yield each


def _model_problems(model: dict[str, Any]) -> Iterator[str]:
    kind, vocab = model.get("type"), model.get("vocab")
    if not isinstance(kind, str) or kind not in MODELS:
        yield f"model.type: {shown(kind)}, which is none of {', '.join(sorted(MODELS))}"
    if not isinstance(vocab, dict | list):
        yield "model.vocab: no vocabulary"
        return
    tokens = vocab
    if isinstance(vocab, list):  # Unigram's, with scores
        tokens = [pair[0] for pair in vocab if isinstance(pair, list) and pair]
    longest_token = max((len(token) for token in tokens if isinstance(token, str)), default=0)
    limit = LONGEST_UNIGRAM if kind == "Unigram" else LONGEST_TOKEN
    if longest_token > limit:
        yield f"model.vocab: a token of {longest_token} characters, above {limit}"
    yield from (f"model.{problem}" for problem in _long_strings(model, LONGEST_AFFIX))
    unknown = model.get("unk_token", "[UNK]" if kind == "WordPiece" else None)
    known = isinstance(unknown, str) and unknown in tokens
    if kind in ("WordLevel", "WordPiece") and not known:
        yield (
            f"model.unk_token: {shown(unknown)}, which is not in the vocabulary, so that a text with "
            "another word has no tokens"
        )
    longest = model.get("max_input_chars_per_word", 100)
    if type(longest) is not int or not 0 < longest <= LONGEST_WORD:
        yield f"model.max_input_chars_per_word: {shown(longest)}, not 1 to {LONGEST_WORD}"
    if model.get("dropout"):
        yield f"model.dropout: {shown(model['dropout'])}, so the same text would have other tokens every time"


def _strips_itself(token: Any) -> bool:
    """Whether an added token is found in the white space that it takes: for each occurrence all of that is
    walked over again."""
    content = token.get("content") if isinstance(token, dict) else None
    if not isinstance(content, str) or content == content.strip():
        return False
    return bool(token.get("lstrip") or token.get("rstrip"))


def _steps(step: Any, part: str, problems: list[str], nested: int = 0) -> list[dict[str, Any]]:
    """The steps of a part in order, those of sequences in their place. What is no step is added to the
    problems."""
    key, kinds = STEPS[part]
    kind = step.get("type") if isinstance(step, dict) else step
    if step is None:
        return []
    if isinstance(step, dict) and kind == "Sequence" and isinstance(step.get(key), list):
        if nested < MOST_NESTED:
            return [each for inner in step[key] for each in _steps(inner, part, problems, nested + 1)]
        problems.append(f"{part}: sequences nested {MOST_NESTED} deep")
    elif isinstance(step, dict) and isinstance(kind, str) and kind in kinds.split():
        return [step]
    else:
        problems.append(f"{part}: type {shown(kind)}, which is none of Sequence, {', '.join(kinds.split())}")
    return []


def _part_problems(part: str, steps: list[dict[str, Any]]) -> Iterator[str]:
    if len(steps) > MOST_STEPS:
        yield f"{part}: {len(steps)} steps, above {MOST_STEPS}"
    for step in steps[:MOST_STEPS]:
        yield from (f"{part}: {step['type']}: {problem}" for problem in _step_problems(step))
    if part == "normalizer" and _total_growth(steps) > LARGEST_GROWTH:
        yield f"{part}: its replacements make a text more than {LARGEST_GROWTH} times as long"
    if part == "post_processor":
        if (added := sum(map(_added_tokens, steps))) > MOST_ADDED:
            yield f"{part}: adds {added} special tokens to a text, above {MOST_ADDED}"
        if any(map(_repeats_the_text, steps)):
            yield f"{part}: repeats the text, which would make it longer than max_tokens"


def _step_problems(step: dict[str, Any]) -> Iterator[str]:
    yield from _long_strings(step, LONGEST_STRING)
    if TABLE in step and _replacements(step) is None:
        yield f"{TABLE}: not a table of characters, or its trie is not as long as it says"
    pattern = step.get("pattern")
    if isinstance(pattern, dict):
        if pattern.get("String") == "":
            yield "pattern: an empty string"
        expression = pattern.get("Regex")
        if isinstance(expression, str) and (problem := pattern_problem(expression)):
            yield f"pattern: {problem}"


def _long_strings(values: dict[str, Any], longest: int) -> Iterator[str]:
    for key, value in values.items():
        most = LONGEST_TABLE if key == TABLE else longest
        if isinstance(value, str) and len(value) > most:
            yield f"{key}: {len(value)} characters, above {most}"


def _replacements(step: dict[str, Any]) -> list[bytes] | None:
    """What a table of characters puts in. None where it has not the trie that it announces: tokenizers takes
    the memory for it before it reads any."""
    try:
        data = base64.b64decode(step[TABLE])
    except (TypeError, ValueError):
        return None
    end = 4 + int.from_bytes(data[:4], "little")
    return data[end:].split(b"\0") if end <= len(data) else None


def _total_growth(steps: list[dict[str, Any]]) -> int:
    """By how much a normalizer can multiply a text's length: what one step puts in, the next ones may
    lengthen. What a step adds once does not count."""
    found = 1
    for step in steps:
        kind, content = step["type"], step.get("content")
        if kind == "Precompiled" and TABLE in step:
            found *= max(1, *map(len, _replacements(step) or [b""]))
        elif kind == "Replace" and isinstance(content, str):
            found *= max(1, len(content))
        elif found > 1:
            found *= DECOMPOSED.get(kind, 1)
    return found


def _added_tokens(step: dict[str, Any]) -> int:
    """How many special tokens a step of a post-processor adds to a text or a pair, at most."""
    templates = [step[key] for key in ("single", "pair") if isinstance(step.get(key), list)]
    special = step.get("special_tokens")
    entries = special.values() if isinstance(special, dict) else []
    ids = [entry.get("ids") for entry in entries if isinstance(entry, dict)]
    each = max((len(some) for some in ids if isinstance(some, list)), default=1)
    return max(map(len, templates), default=4) * each


def _repeats_the_text(step: dict[str, Any]) -> bool:
    """Whether the template of a single text holds it twice."""
    template = step.get("single")
    items = template if isinstance(template, list) else []
    return sum(isinstance(item, dict) and "Sequence" in item for item in items) > 1


def pattern_problem(expression: str) -> str | None:
    """Why a regular expression of a stranger is refused: engines differ in what others mean, how long they
    take, and what ends them."""
    if len(expression) <= LONGEST_PATTERN and PATTERN.fullmatch(expression):
        return None
    return f"{shown(expression)} is no pattern of a published tokenizer, and not as simple as those"


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
