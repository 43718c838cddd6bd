"""Make tests/device/adversarial_texts.json.xz: 10,000 texts on which tokenizers differ.

python bench/adversarial_texts.py [--out FILE]

Drawn from a seed, with Python 3.11, whose `unicodedata` decides normal forms and letter case. In the texts
WORD stands for a token of the vocabulary that is tested, and SPECIAL for one of its special tokens.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import sys
import unicodedata
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.device.adversarial import LINES, SPECIAL, TEXTS, WORD

SEED = 20_260_101

# fmt: off
SCRIPTS = [  # first and last code point
    (0x21, 0x7E), (0xA1, 0xFF), (0x100, 0x17F), (0x180, 0x24F), (0x250, 0x2AF), (0x1E00, 0x1EFF),
    (0x370, 0x3FF), (0x1F00, 0x1FFF), (0x400, 0x52F), (0x531, 0x58F), (0x591, 0x5F4), (0x600, 0x6FF),
    (0x750, 0x77F), (0x700, 0x74F), (0x780, 0x7B1), (0x900, 0x97F), (0x980, 0x9FE), (0xA01, 0xA76),
    (0xB82, 0xBFA), (0xC00, 0xC7F), (0xE01, 0xE5B), (0xE81, 0xEDF), (0xF00, 0xFDA), (0x1000, 0x109F),
    (0x10A0, 0x10FF), (0x1200, 0x139F), (0x13A0, 0x13FD), (0x1400, 0x167F), (0x1780, 0x17F9),
    (0x1800, 0x18AA), (0x1C90, 0x1CBF), (0x3041, 0x30FF), (0x4E00, 0x9FFF), (0x3400, 0x4DBF),
    (0xF900, 0xFAD9), (0x20000, 0x2A6DF), (0x2F800, 0x2FA1D), (0xAC00, 0xD7A3), (0x1100, 0x11FF),
    (0x3131, 0x318E), (0xA960, 0xA97C), (0xD7B0, 0xD7FB), (0xFB00, 0xFB4F), (0xFB50, 0xFDFF),
    (0xFE70, 0xFEFC), (0xFF01, 0xFFEE), (0x10330, 0x1034A), (0x10400, 0x1044F), (0x1D400, 0x1D7FF),
    (0x1F100, 0x1F1FF), (0x2C00, 0x2DFF), (0xA640, 0xA69F),
]
MARKS = [
    (0x300, 0x36F), (0x483, 0x489), (0x591, 0x5BD), (0x610, 0x61A), (0x64B, 0x65F), (0x93C, 0x94D),
    (0xE34, 0xE3A), (0x1AB0, 0x1ACE), (0x1DC0, 0x1DFF), (0x20D0, 0x20F0), (0x302A, 0x302F),
    (0x3099, 0x309A), (0xFE00, 0xFE0F), (0xFE20, 0xFE2F), (0x1D165, 0x1D172),
]
SYMBOLS = [
    (0x2010, 0x2027), (0x2030, 0x205E), (0x2070, 0x209C), (0x20A0, 0x20C0), (0x2100, 0x218B),
    (0x2190, 0x22FF), (0x2300, 0x23FF), (0x2460, 0x24FF), (0x2500, 0x25FF), (0x2600, 0x27BF),
    (0x2E00, 0x2E5D), (0x3000, 0x303F), (0x3200, 0x33FF), (0xFE30, 0xFE6B),
]
INVISIBLE = [
    (0x00, 0x1F), (0x7F, 0xA0), (0xAD, 0xAD), (0x61C, 0x61C), (0x180E, 0x180E), (0x2000, 0x200F),
    (0x2028, 0x202F), (0x205F, 0x206F), (0x3000, 0x3000), (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFD),
    (0xE000, 0xE010), (0xE0001, 0xE007F), (0xF0000, 0xF0005), (0x10FFFD, 0x10FFFF),
]
# fmt: on
EMOJI = [(0x1F300, 0x1F64F), (0x1F680, 0x1F6FF), (0x1F900, 0x1FAFF), (0x2600, 0x27BF)]
SKIN = (0x1F3FB, 0x1F3FF)
LIMITS = (16, 32, 64, 128, 256, 512)  # in tokens, of the texts around a limit
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
TRICKY = "İıŞşẞßſŒœÆæØøĐđŁłŉǅǆΣσςΐΰﬃﬁĲĳªº№™℠㎏①½²Ⅷ…‥“”‘’«»‹›—–‐‑´`˜¨¯¸·•†‡§¶©®°±×÷≠≤≥∉≢;·ÅKΩﷺ가각힣ᄀ가각ﾊﾝｶﾞがゟヿ豈﨑"  # noqa: E501
PLAIN = (
    "the quick brown fox jumps over lazy dog can't won't it's I'd you're don't rock'n'roll e-mail co-operate "
    "state-of-the-art "
    "naïve café résumé Zürich São Tōkyō über Straße İstanbul IŞIK coöperate Ångström mañana Łódź Đà Nẵng "
    "crème brûlée fiancée "
    "Москва ёлка йогурт Київ їжак Ελλάδα Σίσυφος ΟΔΟΣ القاهرة مُحَمَّد שָׁלוֹם हिन्दी ไทย ភាសាខ្មែរ 北京 東京タワー "
    "서울 한국어 ქართული Հայաստան "
    "አማርኛ"
).split()


def adversarial_texts() -> list[str]:
    """Distinct texts, always the same, none of them with half a surrogate pair."""
    kinds = _kinds(random.Random(SEED))
    blank = ["", " ", "  ", "\t", "\n", "\r\n", "\0", "\u200b", "\u3000", "\ufeff", "\u0301", "a\0b"]
    found = dict.fromkeys([*blank, *TRICKY, *PLAIN, *(f"a{character}b" for character in TRICKY)])
    for kind in cycle(kinds):
        if len(found) >= LINES:
            break
        found[kind()] = None
    return list(found)


def _kinds(draw: random.Random) -> list[Callable[[], str]]:
    """What makes a text, one function per kind."""

    def one(*groups: Sequence[tuple[int, int]]) -> str:
        first, last = draw.choice(draw.choice(groups))
        return chr(draw.randint(first, last))

    def many(make: Callable[[], str], least: int, most: int, joined: str = "") -> str:
        return joined.join([make() for _ in range(draw.randint(least, most))])

    def word() -> str:
        return draw.choice((WORD, draw.choice(PLAIN)))

    def cased() -> str:
        return draw.choice((str.upper, str.title, str.swapcase, str.lower))(word())

    def script() -> str:
        first, last = draw.choice(SCRIPTS)
        return many(
            lambda: many(lambda: chr(draw.randint(first, last)), 1, 9), 1, 6, draw.choice((" ", " ", ""))
        )

    def marked() -> str:
        letter = draw.choice(
            (lambda: draw.choice(LETTERS), lambda: one(SCRIPTS), lambda: draw.choice(TRICKY))
        )
        return many(lambda: letter() + many(lambda: one(MARKS), 0, 3), 1, 12)

    def emoji() -> str:
        sequence = draw.choice(
            (
                lambda: one(EMOJI) + chr(draw.randint(*SKIN)),
                lambda: many(lambda: one(EMOJI), 2, 4, "\u200d"),
                lambda: one(EMOJI) + "\ufe0f",
                lambda: many(lambda: chr(draw.randint(0x1F1E6, 0x1F1FF)), 2, 3),
                lambda: draw.choice("0123456789#*") + "\ufe0f\u20e3",
                lambda: one(EMOJI),
            )
        )
        return many(lambda: draw.choice((sequence, word))(), 1, 8, draw.choice(("", " ")))

    def invisible() -> str:
        return many(
            lambda: draw.choice((word, lambda: one(INVISIBLE), lambda: draw.choice(LETTERS)))(), 2, 14
        )

    def cjk() -> str:
        wide = [
            (0x4E00, 0x9FFF),
            (0x3400, 0x4DBF),
            (0x20000, 0x323AF),
            (0xF900, 0xFAFF),
            (0x3041, 0x30FF),
            (0x2E80, 0x2FDF),
            (0x31C0, 0x31E3),
        ]
        return many(lambda: draw.choice((lambda: one(wide), word))(), 1, 12, draw.choice(("", "", " ")))

    def hangul() -> str:
        syllable = (
            lambda: one([(0xAC00, 0xD7A3)]),
            lambda: chr(draw.randint(0x1100, 0x1112)) + chr(draw.randint(0x1161, 0x1175)),
        )
        return many(
            lambda: draw.choice(syllable)() + draw.choice(("", "", "\u11ab", "\u11a8")),
            1,
            12,
            draw.choice(("", " ")),
        )

    def right_to_left() -> str:
        hebrew_arabic = [(0x5D0, 0x5EA), (0x620, 0x64A)]
        return many(
            lambda: draw.choice(
                (word, lambda: many(lambda: one(hebrew_arabic, hebrew_arabic, MARKS), 1, 7))
            )(),
            1,
            8,
            " \u200f",
        )

    def number() -> str:
        digits = lambda: many(lambda: draw.choice("0123456789"), 1, 9)  # noqa: E731
        return many(
            lambda: (
                draw.choice("+-±$€£¥₹#~")
                + digits()
                + draw.choice((".", ",", "e-", "%", "²", "½", "’", " "))
                + digits()
            ),
            1,
            6,
            " ",
        )

    def address() -> str:
        host = many(lambda: word().lower(), 1, 3, ".")
        return draw.choice(
            (
                f"https://{host}/?q={word()}%20{word()}&x=1#{word()}",
                f"{word()}@{host}",
                f"C:\\{word()}\\{word()}.TXT",
                f"@{word()}",
            )
        )

    def specials() -> str:
        return many(
            lambda: draw.choice((SPECIAL, word(), "[cls]", "</S>", "[MASK", "</s")),
            1,
            7,
            draw.choice(("", " ")),
        )

    def long_word() -> str:
        return many(lambda: draw.choice((word, lambda: draw.choice(LETTERS)))(), 20, 220) + draw.choice(
            ("", " end", "é", "\u0301", "!")
        )

    def near_the_limit() -> str:
        letter = draw.choice(("a", "é", "长", "🙂", "\u0301", "가", "ﬁ"))
        return letter * draw.choice((1, 99, 100, 101, 199, 200, 201)) + draw.choice(("", "a", " b"))

    def punctuation() -> str:
        return many(
            lambda: draw.choice(
                (
                    word,
                    lambda: many(
                        lambda: one(SYMBOLS, [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)]), 1, 3
                    ),
                )
            )(),
            1,
            12,
        )

    def spaces() -> str:
        return many(
            lambda: draw.choice(
                (
                    word(),
                    " ",
                    "  ",
                    "\t",
                    "\n",
                    "\u00a0",
                    "\u2028",
                    "\u3000",
                    "\x0b",
                    "\x0c",
                    "\x85",
                    "\u1680",
                )
            ),
            1,
            14,
        )

    def any_characters() -> str:
        return many(
            lambda: chr(
                draw.choice(
                    (draw.randint(0, 0xD7FF), draw.randint(0xE000, 0xFFFF), draw.randint(0x10000, 0x10FFFF))
                )
            ),
            1,
            16,
        )

    def wordy() -> str:
        return many(lambda: draw.choice((word, cased))(), 1, 24, " ")

    def normal_forms() -> str:
        letter = draw.choice((lambda: one([(0xC0, 0x24F), (0x1E00, 0x1EFF)]), lambda: one(SCRIPTS), word))
        return many(
            lambda: unicodedata.normalize(draw.choice(("NFC", "NFD", "NFKC", "NFKD")), letter()), 4, 24, " "
        )

    def at_the_limit() -> str:
        limit = draw.choice(LIMITS)
        return many(word, limit - 8, limit + 8, " ")

    def very_long() -> str:
        if draw.random() < 0.98:  # each of these costs as much as a hundred others
            return wordy() + marked()
        return many(lambda: draw.choice((word, script, emoji, marked))(), 800, 1_600, draw.choice(("", " ")))

    kinds = [
        script,
        marked,
        emoji,
        invisible,
        cjk,
        hangul,
        right_to_left,
        number,
        address,
        specials,
        long_word,
        near_the_limit,
        punctuation,
    ]
    return [*kinds, spaces, any_characters, wordy, normal_forms, at_the_limit, very_long]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the adversarial texts.")
    parser.add_argument("--out", type=Path, default=TEXTS)
    text = json.dumps(adversarial_texts(), ensure_ascii=False)
    parser.parse_args().out.write_bytes(lzma.compress(text.encode("utf-8")))


if __name__ == "__main__":
    main()
