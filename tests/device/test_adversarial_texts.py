"""The texts on which tokenizers are compared."""

from __future__ import annotations

import unicodedata

from tests.device.adversarial import LINES, SPECIAL, WORD, adversarial_texts


def test_ten_thousand_texts_each_time_the_same():
    texts = adversarial_texts(["[CLS]", "[MASK]"], ["fox", "##ing"], 32)
    assert LINES == len(set(texts)) == len(texts) == 10_000
    assert texts == adversarial_texts(["[CLS]", "[MASK]"], ["fox", "##ing"], 32)
    assert texts != adversarial_texts(["<s>"], ["fox", "##ing"], 32)
    everything = "".join(texts)
    everything.encode("utf-8")  # no half of a surrogate pair
    assert WORD not in everything and SPECIAL not in everything
    assert {"[CLS]", "[cls]", "[CLS", "[CLS][CLS]", "[MASK]"} <= set(texts)


def test_what_the_texts_hold():
    texts = adversarial_texts(["[CLS]"], ["fox", "##ing", "dog", "##s", "."], 32)
    everything = "".join(texts)
    categories = {unicodedata.category(each) for each in everything}
    assert {
        "Lu",
        "Ll",
        "Lt",
        "Lm",
        "Lo",
        "Mn",
        "Mc",
        "Me",
        "Nd",
        "Nl",
        "No",
        "Pc",
        "Pd",
        "Ps",
        "Po",
        "Sm",
        "Sc",
        "So",
    } <= categories
    assert {"Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn"} <= categories
    for first, last in [
        (0x1100, 0x1175),
        (0xAC00, 0xD7A3),
        (0x5D0, 0x5EA),
        (0x620, 0x64A),
        (0x20000, 0x2A6DF),
        (0x1F3FB, 0x1F3FF),
    ]:
        assert any(chr(first) <= each <= chr(last) for each in everything), hex(first)
    assert {"", " ", "\0", "[CLS]"} <= set(texts)
    for part in ("\u200d", "\ufe0f\u20e3", "[CLS][CLS]", "https://", "\0", "\u202b"):
        assert any(part in text for text in texts), ascii(part)
    assert max(map(len, texts)) > 5_000
    assert any(len(word) > 200 for text in texts for word in text.split())
    assert sum(24 <= len(text.split()) < 40 for text in texts) > 200  # about max_tokens
