"""The golden texts of a bundle, 32 or more that tokenizers and runners often get wrong, and its parity.json,
which holds what torch gives for them: written, read, checked, and compared with by a measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import files
from edgedistill.errors import UserError, quote
from edgedistill.runtime.bundle import Bundle, kind_of
from edgedistill.runtime.manifest import INPUTS, LARGEST_ID, is_text, width
from edgedistill.runtime.prompts import ROLES, Prompts
from edgedistill.runtime.similarity import Measure

MOST_TEXTS = 10_000
LONGEST_TEXT = 1_000_000  # characters
LARGEST_NUMBER = 1e30
UNIT_LENGTH = 0.001  # the embeddings are stored with six digits


class Golden(NamedTuple):
    """What every runner must reproduce: texts, their token ids, and rows (n, d) by torch, each text by
    itself.

    A classifier's texts are items, of one or two texts each, and its ids a list for each of these.
    truncated: of each text, whether it has more tokens than its ids. roles: of each text, where the encoder
        has prompts of its own for queries or documents; otherwise empty.
    """

    measure: Measure
    texts: list[Any]
    ids: list[Any]
    truncated: list[bool]
    rows: np.ndarray
    roles: Sequence[str] = ()

    @property
    def all_roles(self) -> list[str]:
        """The role of each text."""
        return list(self.roles or [ROLES[0]] * len(self.texts))

    def name(self, at: int) -> str:
        """A text in a message: its number from 1, and its beginning."""
        text = self.texts[at] if isinstance(self.texts[at], str) else self.texts[at][0]
        return f"{self.measure.item} {at + 1} of {len(self.texts)} ({quote(text)})"


def content(
    golden: Golden, about: dict[str, Any], max_tokens: int, limits: dict[str, float]
) -> dict[str, Any]:
    """parity.json. about: dims or labels. limits: the threshold of each precision."""
    return {
        "about": golden.measure.explained.format(max_tokens),
        **about,
        golden.measure.limits: limits,
        "texts": golden.texts,
        "ids": golden.ids,
        "truncated": golden.truncated,
        **({"roles": list(golden.roles)} if golden.roles else {}),
        golden.measure.rows: [
            [round(value, 6) for value in row] for row in golden.rows.astype(np.float64).tolist()
        ],
    }


def read(folder: Path, manifest: dict[str, Any]) -> Golden:
    """The golden texts of a bundle, whose files were checked by their hashes.

    Raises UserError with all that is wrong: another shape than the manifest's, numbers that are not finite,
        embeddings that are not of unit
    length, which would make any cosine reach its threshold.
    """
    path = folder / "parity.json"
    golden = files.read_json_object(path, "copy the bundle again")
    if problems := list(_problems(golden, manifest)):
        raise UserError(*(f"{path}: {problem}; copy the bundle again" for problem in problems))
    measure = kind_of(manifest).measure
    rows = np.array(golden[measure.rows], np.float32)
    truncated, roles = golden.get("truncated", []), golden.get("roles", [])
    return Golden(measure, golden["texts"], golden["ids"], truncated, rows, roles)


def different_ids(opened: Bundle, golden: Golden) -> Iterator[tuple[int, list[Any], list[Any]]]:
    """(index, the bundle's token ids, the expected ones) of each text whose ids differ."""
    found = opened.golden_ids(golden.texts, golden.all_roles)
    for at, (ids, expected) in enumerate(zip(found, golden.ids, strict=True)):
        if ids != expected:
            yield at, ids, expected


def rows(opened: Bundle, golden: Golden, together: bool = False) -> np.ndarray:
    """(n, d) embeddings, or (n, C) logits, of the golden token ids: each text alone, or all in one padded
    batch."""
    if together:
        return opened.golden_rows(golden.ids, len(golden.ids) * opened.max_tokens)
    return np.concatenate([opened.golden_rows([each], None) for each in golden.ids])


def _problems(golden: dict[str, Any], manifest: dict[str, Any]) -> Iterator[str]:
    texts, ids, truncated, roles = (golden.get(key) for key in ("texts", "ids", "truncated", "roles"))
    if not isinstance(texts, list) or not 0 < len(texts) <= MOST_TEXTS:
        yield f"texts: not a list of 1 to {MOST_TEXTS}"
        return
    count, most, labels = len(texts), manifest["max_tokens"], manifest.get("labels")
    columns = len(manifest.get("inputs", INPUTS[:2])) // 2  # texts of an item
    items = [item if labels and isinstance(item, list) else [item] for item in texts]
    if not all(len(item) == columns for item in items) or not all(
        is_text(text, LONGEST_TEXT) for item in items for text in item
    ):
        yield f"texts: an item that is not {'a pair of texts' if columns == 2 else 'a text'}"
    if not isinstance(ids, list) or len(ids) != count:
        yield f"ids: not a list of {count}, one for each text"
    elif not all(_are_ids(row if labels else [row], columns, most) for row in ids):
        yield f"ids: not 1 to {most} token ids for each text"
    rows = kind_of(manifest).measure.rows
    if fact := _matrix_problem(golden.get(rows), (count, width(manifest)), unit=not labels):
        yield f"{rows}: {fact}"
    is_list = isinstance(truncated, list) and [type(each) for each in truncated] == [bool] * count
    if truncated is not None and not is_list:
        yield f"truncated: not a list of {count} times true or false"
    if roles is not None and (
        not isinstance(roles, list) or [each in ROLES for each in roles] != [True] * count
    ):
        yield f"roles: not a list of {count}, each of {', '.join(ROLES)}"


def _are_ids(rows: Any, columns: int, most: int) -> bool:
    """Whether there is a list of token ids for each text of an item."""
    return (
        isinstance(rows, list)
        and len(rows) == columns
        and all(isinstance(row, list) and 0 < len(row) <= most for row in rows)
        and all(type(token) is int and 0 <= token <= LARGEST_ID for row in rows for token in row)
    )


def _matrix_problem(rows: Any, shape: tuple[int, int], unit: bool) -> str | None:
    """What is wrong with a list of rows. unit: whether these are embeddings."""
    count, columns = shape
    are_rows = isinstance(rows, list) and all(isinstance(row, list) and len(row) == columns for row in rows)
    if not are_rows or len(rows) != count or {type(value) for row in rows for value in row} - {int, float}:
        return f"not {count} rows of {columns} numbers"
    try:
        found = np.array(rows, np.float64)
    except OverflowError:  # an integer above all numbers
        return "a number that is not finite"
    if not (np.abs(found) < LARGEST_NUMBER).all():
        return "a number that is not finite"
    if unit and np.abs(np.linalg.norm(found, axis=1) - 1).max() > UNIT_LENGTH:
        return "an embedding that is not of unit length"
    return None


# Which texts

SPECIAL = "[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s> <pad>"
QUESTION = "How do I reset my password?"
LONG = "Once upon a time there was a very long text that went on and on. " * 60
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
    return [*_fixed_texts(_text_of(count, max_tokens)), *map(_around, others[:MOST_ADDED])]


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


def _fixed_texts(full: str) -> list[str]:
    return [
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
        full,
        f"{full} a",
        LONG,
        "x" * 10_000,
        "长" * 2_000,
    ]


def _text_of(count_tokens: Callable[[str], int], tokens: int) -> str:
    """A text of so many tokens, or slightly fewer where every word takes several tokens."""
    word = next(
        (word for word in ("a", "the", "1", ".") if count_tokens(f"{word} {word}") - count_tokens(word) == 1),
        "a",
    )
    step = max(1, count_tokens(f"{word} {word}") - count_tokens(word))
    count = max(1, (tokens - count_tokens(word)) // step + 1)
    return " ".join([word] * count)
