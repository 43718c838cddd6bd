"""The golden texts: 32 or more that tokenizers and runners often get wrong, on which every bundle is compared
with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SPECIAL = "[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s> <pad>"
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
        "How do I reset my password?",
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
        "Once upon a time there was a very long text that went on and on. " * 60,
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
