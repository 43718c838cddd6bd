"""What is checked in a tokenizer.json before the tokenizers library opens it: its size, the kinds of its
parts, and its patterns."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgedistill.errors import UserError
from edgedistill.runtime.trust import GET_AGAIN

LARGEST_BYTES = 64_000_000  # a vocabulary of 250,000 tokens takes 9 to 17 MB
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
_CHARACTER = r"(?:[^\\\[\](){}*+?.^$|]|\\[sSdDwWrnt]|\\[^\w\s]|\\[pP]\{\w+\})"
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
PATTERN = re.compile(rf"(?!.*(?:&&|--|~~)){_ALTERNATIVE}(?:\|{_ALTERNATIVE}){{0,20}}(?:{_SPACES})?")
DECOMPOSED = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18}  # characters that one character becomes, at most
LENGTHENING = ("ByteLevel", "Metaspace")
KEYS = {"version", "truncation", "padding", "added_tokens", "model", *STEPS}


def check(path: Path) -> int:
    """The largest token id. Raises UserError with all that is wrong."""
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        raise UserError(
            f"{path}: {size} bytes, a tokenizer has at most {LARGEST_BYTES}; copy the bundle again"
        )
    try:
        tokenizer = json.loads(path.read_bytes(), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        fact = (
            "nested too deeply"
            if isinstance(error, RecursionError)
            else "not valid JSON, or with a key twice"
        )
        raise UserError(f"{path}: {fact}; copy the bundle again") from None
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("model"), dict):
        raise UserError(f"{path}: not a tokenizer (no model); copy the bundle again")
    problems = [*_model_problems(tokenizer["model"]), *_other_problems(tokenizer)]
    if problems:
        raise UserError(*(f"{path}: {problem}; {GET_AGAIN}" for problem in dict.fromkeys(problems)))
    return max((token for token in _ids(tokenizer) if _is_integer(token)), default=0)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Of a key that occurs twice, parsers read the first, the last, or none."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _ids(tokenizer: dict[str, Any]) -> Iterator[Any]:
    """Every token id of a vocabulary, of the tokens added to it, and of those that a post-processor adds."""
    vocab = tokenizer["model"]["vocab"]
    yield from vocab.values() if isinstance(vocab, dict) else [len(vocab) - 1]
    yield from (token.get("id") for token in tokenizer.get("added_tokens") or [] if isinstance(token, dict))
    for step in _steps(tokenizer.get("post_processor"), "post_processor", 0):
        if isinstance(step, dict):
            yield from (
                pair[-1] for pair in (step.get("sep"), step.get("cls")) if isinstance(pair, list) and pair
            )
            for ids in _special_ids(step):
                yield from ids


def _special_ids(step: dict[str, Any]) -> list[list[Any]]:
    special = step.get("special_tokens")
    entries = (
        [entry.get("ids") for entry in special.values() if isinstance(entry, dict)]
        if isinstance(special, dict)
        else []
    )
    return [ids for ids in entries if isinstance(ids, list)]


def _model_problems(model: dict[str, Any]) -> Iterator[str]:
    kind = model.get("type")
    if not isinstance(kind, str) or kind not in MODELS:
        yield f"model.type: {_shown(kind)}, which is none of {', '.join(sorted(MODELS))}"
    vocab = model.get("vocab")
    if not isinstance(vocab, dict | list):
        yield "model.vocab: no vocabulary"
        return
    tokens = (
        vocab if isinstance(vocab, dict) else [pair[0] for pair in vocab if isinstance(pair, list) and pair]
    )
    longest_token = max((len(token) for token in tokens if isinstance(token, str)), default=0)
    limit = LONGEST_UNIGRAM if kind == "Unigram" else LONGEST_TOKEN
    if longest_token > limit:
        yield f"model.vocab: a token of {longest_token} characters, above {limit}"
    for key in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        if isinstance(model.get(key), str) and len(model[key]) > LONGEST_AFFIX:
            yield f"model.{key}: {len(model[key])} characters, above {LONGEST_AFFIX}"
    unknown = model.get("unk_token", "[UNK]" if kind == "WordPiece" else None)
    if kind in ("WordLevel", "WordPiece") and unknown not in tokens:
        yield (
            f"model.unk_token: {_shown(unknown)}, which is not in the vocabulary, so that a text with "
            "another word has no tokens"
        )
    longest = model.get("max_input_chars_per_word", 100)
    if not _is_integer(longest) or not 0 < longest <= LONGEST_WORD:
        yield f"model.max_input_chars_per_word: {_shown(longest)}, not 1 to {LONGEST_WORD}"
    if model.get("dropout"):
        yield (
            f"model.dropout: {_shown(model['dropout'])}, so the same text would have other tokens every time"
        )


def _other_problems(tokenizer: dict[str, Any]) -> Iterator[str]:
    unknown = sorted(set(tokenizer) - KEYS)
    if unknown:
        yield f"{', '.join(map(_shown, unknown[:5]))}: not a part of a tokenizer"
    added = tokenizer.get("added_tokens")
    if any(_strips_itself(token) for token in (added if isinstance(added, list) else [])):
        yield "added_tokens: one that begins or ends with white space takes the white space around it too"
    before = [
        step
        for part in ("normalizer", "pre_tokenizer")
        for step in _steps(tokenizer.get(part), part, 0)
        if isinstance(step, dict)
    ]
    if (lengthening := sum(step["type"] in LENGTHENING for step in before)) > MOST_LENGTHENING:
        yield (
            f"normalizer, pre_tokenizer: {lengthening} steps of type {' or '.join(LENGTHENING)}, above "
            f"{MOST_LENGTHENING}"
        )
    for part in STEPS:
        steps = list(_steps(tokenizer.get(part), part, 0))
        problems = [step for step in steps if isinstance(step, str)]
        yield from problems[:5]
        if len(steps) > MOST_STEPS:
            yield f"{part}: {len(steps)} steps, above {MOST_STEPS}"
        plain = [step for step in steps if isinstance(step, dict)]
        for step in plain[:MOST_STEPS]:
            yield from (f"{part}: {step['type']}: {problem}" for problem in _step_problems(step))
        if part == "normalizer" and _total_growth(plain) > LARGEST_GROWTH:
            yield f"{part}: its replacements make a text more than {LARGEST_GROWTH} times as long"
        if part == "post_processor" and (added := sum(_added_tokens(step) for step in plain)) > MOST_ADDED:
            yield f"{part}: adds {added} special tokens to a text, above {MOST_ADDED}"
        if part == "post_processor" and any(map(_repeats_the_text, plain)):
            yield f"{part}: repeats the text, which would make it longer than max_tokens"


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
            elif not _is_table(value):
                yield f"{key}: its trie is not as long as it says"
        elif isinstance(value, str) and len(value) > LONGEST_STRING:
            yield f"{key}: {len(value)} characters, above {LONGEST_STRING}"
    pattern = step.get("pattern")
    if isinstance(pattern, dict) and pattern.get("String") == "":
        yield "pattern: an empty string"
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    if isinstance(expression, str) and (problem := pattern_problem(expression)):
        yield f"pattern: {problem}"


def _total_growth(steps: list[dict[str, Any]]) -> int:
    """By how much a normalizer can multiply a text's length: what one step puts in, the next ones may
    lengthen."""
    found = 1
    for step in steps:
        found *= DECOMPOSED.get(step["type"], _growth(step)) if found > 1 else _growth(step)
    return found


def _growth(step: dict[str, Any]) -> int:
    """By how much a step of a normalizer can multiply a text's length; what it adds once does not count."""
    content, table = step.get("content"), step.get("precompiled_charsmap")
    if step["type"] == "Precompiled" and isinstance(table, str):
        return _longest_replacement(table)
    return max(1, len(content)) if step["type"] == "Replace" and isinstance(content, str) else 1


def _is_table(table: str) -> bool:
    """Whether a table of characters has the trie that it announces: tokenizers takes the memory for it before
    it reads any."""
    try:
        data = base64.b64decode(table)
    except (ValueError, binascii.Error):
        return True  # tokenizers refuses it
    return 4 + int.from_bytes(data[:4], "little") <= len(data)


def _longest_replacement(table: str) -> int:
    """Bytes of the longest string in sentencepiece's table of characters: the size of a trie, the trie,
    strings that end in zero."""
    try:
        data = base64.b64decode(table)
    except (ValueError, binascii.Error):
        return 1  # tokenizers refuses it
    return max(map(len, data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")))


def _strips_itself(token: Any) -> bool:
    """Whether an added token is found in the white space that it takes: for each occurrence all of that is
    walked over again."""
    content = token.get("content") if isinstance(token, dict) else None
    return (
        isinstance(content, str)
        and content != content.strip()
        and bool(token.get("lstrip") or token.get("rstrip"))
    )


def _added_tokens(step: dict[str, Any]) -> int:
    """How many special tokens a step of a post-processor adds to a text or a pair, at most."""
    templates = [
        template for template in (step.get("single"), step.get("pair")) if isinstance(template, list)
    ]
    return max(map(len, templates), default=4) * max(map(len, _special_ids(step)), default=1)


def _repeats_the_text(step: dict[str, Any]) -> bool:
    """Whether the template of a single text holds it twice."""
    template = step.get("single")
    return (
        isinstance(template, list)
        and sum(isinstance(each, dict) and "Sequence" in each for each in template) > 1
    )


def pattern_problem(expression: str) -> str | None:
    """Why a regular expression of a stranger is refused: engines differ in what others mean, how long they
    take, and what ends them."""
    if len(expression) <= LONGEST_PATTERN and PATTERN.fullmatch(expression):
        return None
    return f"{_shown(expression)} is no pattern of a published tokenizer, and not as simple as those"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}…"
