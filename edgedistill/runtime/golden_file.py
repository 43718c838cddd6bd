"""The golden texts of a bundle, 32 or more that tokenizers and runners often get wrong, and its parity.json,
which holds what torch gives for them: written, read, checked, and compared with by a measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field

from edgedistill import files
from edgedistill.errors import UserError, quote
from edgedistill.files import Json
from edgedistill.runtime.bundle import Bundle, kind_of
from edgedistill.runtime.manifest import COPY_AGAIN, INPUTS, LARGEST_ID, Part, validated, width
from edgedistill.runtime.prompts import ROLES, Prompts
from edgedistill.runtime.similarity import COSINE, Measure

MOST_TEXTS = 10_000
LONGEST_TEXT = 1_000_000  # characters
LARGEST_NUMBER = 1e30
UNIT_LENGTH = 0.001  # the embeddings are stored with six digits


class Golden(NamedTuple):
    """What every runner must reproduce: items, the token ids of their texts, and rows (n, d) by torch, each
    item by itself. An item has one text; of a classifier of pairs two.

    roles: of each item, where the encoder has prompts of its own for queries or documents; otherwise empty.
    """

    measure: Measure
    items: list[list[str]]
    ids: list[list[list[int]]]
    rows: np.ndarray
    roles: Sequence[str] = ()

    @property
    def all_roles(self) -> list[str]:
        """The role of each item."""
        return list(self.roles or [ROLES[0]] * len(self.items))

    def name(self, at: int) -> str:
        """An item in a message: its number from 1, and the beginning of its text."""
        return f"{self.measure.item} {at + 1} of {len(self.items)} ({quote(self.items[at][0])})"


def content(golden: Golden, about: Json, max_tokens: int, limits: dict[str, float]) -> Json:
    """parity.json. about: dims or labels. limits: the threshold of each precision."""
    measure = golden.measure
    rows = golden.rows.astype(np.float64).tolist()
    items: list[Any] = golden.items
    ids: list[Any] = golden.ids
    if measure is COSINE:
        items = [item[0] for item in items]
        ids = [item[0] for item in ids]
    return {
        "about": measure.explained.format(max_tokens),
        **about,
        measure.limits: limits,
        "texts": items,
        "ids": ids,
        **({"roles": list(golden.roles)} if golden.roles else {}),
        measure.rows: [[round(value, 6) for value in row] for row in rows],
    }


LongText = Annotated[str, Field(max_length=LONGEST_TEXT)]
Ids = Annotated[list[Annotated[int, Field(ge=0, le=LARGEST_ID)]], Field(min_length=1)]
Number = Annotated[float, Field(gt=-LARGEST_NUMBER, lt=LARGEST_NUMBER, allow_inf_nan=False)]


def _of_texts(item: Any) -> Any:
    """An item as a list: embeddings are of one text, which stands by itself."""
    is_list = isinstance(item, list) and item and isinstance(item[0], str | list)
    return item if is_list else [item]


class _GoldenTexts(Part):
    texts: list[Annotated[list[LongText], BeforeValidator(_of_texts)]] = Field(
        min_length=1, max_length=MOST_TEXTS
    )
    ids: list[Annotated[list[Ids], BeforeValidator(_of_texts)]]
    roles: list[Literal["text", "query", "document"]] = Field([])
    vectors: list[list[Number]] = Field([])
    logits: list[list[Number]] = Field([])


def read(folder: Path, manifest: Json) -> Golden:
    """The golden texts of a bundle, whose files were checked by their hashes.

    Raises UserError with all that is wrong: another shape than the manifest's, numbers that are not finite,
    embeddings that are not of unit length, which would make any cosine reach its threshold.
    """
    path = folder / "parity.json"
    measure = kind_of(manifest).measure
    content = files.read_json_object(path, COPY_AGAIN)
    golden = validated(_GoldenTexts, content, f"{path}: ", COPY_AGAIN)
    rows = getattr(golden, measure.rows)
    if facts := list(_problems(golden, rows, measure, manifest)):
        raise UserError(*(f"{path}: {fact}; {COPY_AGAIN}" for fact in facts))
    array = np.array(rows, np.float32)
    return Golden(measure, golden.texts, golden.ids, array, golden.roles)


def _problems(
    golden: _GoldenTexts, rows: list[list[float]], measure: Measure, manifest: Json
) -> Iterator[str]:
    items = len(golden.texts)
    if len(golden.ids) != items:
        yield f"ids: {len(golden.ids)} for {items} texts"
    if len(golden.roles) not in (items, 0):
        yield f"roles: {len(golden.roles)} for {items} texts"
    texts = len(manifest.get("inputs", INPUTS[:2])) // 2
    if {*map(len, golden.texts), *map(len, golden.ids)} != {texts}:
        yield f"texts, ids: not {texts} of each item"
    most = manifest["max_tokens"]
    if any(len(row) > most for item in golden.ids for row in item):
        yield f"ids: above {most} for a text"
    if len(rows) != items or {*map(len, rows)} != {width(manifest)}:
        yield f"{measure.rows}: not {items} rows of {width(manifest)} numbers"
    elif measure is COSINE and (np.abs(np.linalg.norm(rows, axis=1) - 1) > UNIT_LENGTH).any():
        yield f"{measure.rows}: an embedding that is not of unit length"


def different_ids(opened: Bundle, golden: Golden) -> Iterator[tuple[int, list[Any], list[Any]]]:
    """(index, the bundle's token ids, the expected ones) of each item whose ids differ."""
    items = zip(golden.items, golden.all_roles, golden.ids, strict=True)
    for at, (texts, role, expected) in enumerate(items):
        ids = [row.tolist() for row in opened.tokenize(texts, role)]
        if ids != expected:
            yield at, ids, expected


def rows(opened: Bundle, golden: Golden, together: bool = False) -> np.ndarray:
    """(n, d) embeddings, or (n, C) logits, of the golden token ids: each item alone, or all in one padded
    batch."""
    items = [[np.array(row, np.int64) for row in item] for item in golden.ids]
    if together:
        return opened.item_rows(items, len(items) * opened.max_tokens * (1 + opened.pair))
    return np.concatenate([opened.item_rows([item]) for item in items])


# Which texts

SPECIAL = "[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s> <pad>"
QUESTION = "How do I reset my password?"
LONG = "Once upon a time there was a very long text that went on and on. " * 60
TEXTS = [
    "",
    " ",
    "\t\n  \r\n",
    "a",
    ".",
    "The quick brown fox jumps over the lazy dog.",
    QUESTION,
    "ALL OF THIS IS SHOUTED, and this is not",
    "naïve café, jalapeño, Ångström, Straße, İstanbul, DİZİ, STRAẞE, ǅ",
    # combining marks
    "nai\u0308ve cafe\u0301, and q\u0307\u0323 z\u0351\u036b\u0343\u036a a\u0334\u0335\u031c\u0330",
    "北京今天的天气很好。",
    "東京タワーは高いです。ﾊﾝｶｸ",
    "한국어 문장입니다. \u1112\u1161\u11ab\u1100\u1173\u11af",  # composed, and letter by letter
    "هذا نص يُقرأ من اليمين إلى اليسار",
    "שלום עולם, left to right, then שוב",
    "नमस्ते दुनिया ภาษาไทยไม่มีช่องว่าง",
    "ﬁnance 🙂",
    "👩\u200d👩\u200d👧\u200d👦 🇺🇳 👍🏽 🙃",  # one family, one flag, one thumb
    "🙂" * 50,
    "Привет, мир! Γειά σου Κόσμε, ΟΔΟΣ ΣΑΣ.",  # JavaScript writes ς for a Σ that ends a word
    "\x00\x01\x07\x1b[31mred\x1b[0m \x7f\x85 end",
    "\ufeffzero\u200bwidth\u2060joiner soft\u00adhyphen \u202eoverride\u202c",
    "private \ue000, replaced \ufffd, unassigned \U000e0fff, astral 𝕳𝖊𝖑𝖑𝖔 𐍈",
    f"{SPECIAL} a[SEP]b [sep] x</s>y",
    "1234567890 3.14159 1e-9 ½ ² Ⅷ ١٢٣ €£¥",
    "def f(x): return {'a': x**2}  # https://example.org/?q=a%20b&c=1",
    "word-with_under.scores/and\\slashes… “quotes” — dashes",
]
MOST_ADDED = 32  # added tokens that get a text of their own


def golden_texts(tokenizer: Any, prompt: str, max_tokens: int) -> list[str]:
    """32 texts, among them one of exactly `max_tokens` tokens and one with a token more; then one for each
    added token they lack.

    tokenizer: of transformers. prompt: counts as part of every text, and is not in them.
    """

    def count(text: str) -> int:
        """The tokens of a text, special tokens included, without truncation."""
        return len(tokenizer(prompt + text, verbose=False)["input_ids"])

    added = [token.content for _, token in sorted(tokenizer.added_tokens_decoder.items())]
    others = [token for token in added if token.strip() and token not in SPECIAL.split()]
    full = _text_of(count, max_tokens)
    return [*TEXTS, full, f"{full} a", LONG, "x" * 10_000, "长" * 2_000, *map(_around, others[:MOST_ADDED])]


def texts_in_roles(prompts: Prompts) -> list[tuple[str, str]]:
    """(text, role) of golden texts for each role that has a prompt of its own: a short one and a long one."""
    roles = [role for role in ROLES[1:] if f"{role}_prompt" in prompts.own]
    return [(text, role) for role in roles for text in (QUESTION, LONG)]


def _around(token: str) -> str:
    """An added token by itself, in words, beside spaces and marks, and in other cases: each of its flags
    makes other token ids of it."""
    return (
        f"{token} a{token} {token}1 b{token}c, {token}. {token}{token} ({token.lower()}  "
        f"{token.upper()}\t{token})"
    )


def _text_of(count: Callable[[str], int], tokens: int) -> str:
    """A text of so many tokens, or slightly fewer where every word takes several tokens."""
    steps = {word: count(f"{word} {word}") - count(word) for word in ("a", "the", "1", ".")}
    word = next((word for word, step in steps.items() if step == 1), "a")
    words = (tokens - count(word)) // max(1, steps[word]) + 1
    return " ".join([word] * max(1, words))
