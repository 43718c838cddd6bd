"""export/node/core/tokens.js, which Node and the web share: the token ids of the library `tokenizers`,
for odd texts and odd added tokens."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

NODE = Path(__file__).resolve().parents[2] / "export" / "node"
LIBRARY = NODE / "node_modules" / "@huggingface" / "tokenizers"

pytestmark = [
    pytest.mark.skipif(not shutil.which("node"), reason="needs Node 20 or newer"),
    pytest.mark.skipif(not LIBRARY.is_dir(), reason="needs the packages of export/node: make runners"),
]

TOKENIZE = """
import { readFileSync } from "node:fs";
import * as library from "@huggingface/tokenizers";
import { tokenizer } from "./core/tokens.js";
const cases = JSON.parse(readFileSync(0, "utf8"));
const found = cases.map(({ json, manifest, texts }) => texts.map(tokenizer(library, json, manifest)));
console.log(JSON.stringify(found));
"""
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<mask>"]
WORDS = [
    "ship",
    "Ship",
    "the",
    "C",
    "++",
    "οδοσ",
    "οδος",
    "i",
    "straße",
    "##s",
    "##ing",
    "##11",
    "▁the",
    "▁",
    "▁ship",
    "ab",
    "aab",
    "ba",
    "▁a",
]
LETTERS = [*map(chr, range(32, 127)), *"éßσςιοδαİıΣǅｶ日本🙂٣½▁\u0307\u0301\u200d\u00a0\u3000\x85\ufeff\x00"]
VOCABULARY = list(dict.fromkeys([*SPECIAL, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]))
PARTS = [
    *WORDS[:9],
    "C++",
    "c++",
    "C++11",
    "xC++",
    "ΟΔΟΣ",
    "ΣΑΣ",
    "Σ",
    "𝚺",
    "İstanbul",
    "ǅ",
    "ẞ",
    "ﬁ",
    "café",
    "cafe\u0301",
    "日本",
    "𠮷",
    "ｶﾞ",
    "½",
    "٣",
]
PARTS += [
    "👩\u200d👧",
    "\u200d",
    "\ufeff",
    "\x85",
    "\x00",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\t",
    "\r\n",
    "▁",
    "▁▁",
    "don't",
    "[SEP]",
    "<mask>",
    "[ sep ]",
]
PARTS += [
    "New Tok",
    "new tok",
    "tok",
    "TOKEN",
    "token",
    "$.*",
    "a-b",
    "É",
    "e\u0301",
    "_",
    "aabba",
    "aaaa",
    "ba",
    "x" * 120,
    "०",
    "ⅷ",
    "\ue000",
    "ı",
]
JOINTS = ["", "", " ", " ", "  ", "\t", "\n", ".", "-", "_", "'", "\u00a0"]


def texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    made = [
        "".join(draw.choice(PARTS) + draw.choice(JOINTS) for _ in range(draw.randint(1, 7)))
        for _ in range(count)
    ]
    return ["", " ", *PARTS, *(draw.choice(JOINTS) + text for text in made)]


def framed(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def wordpiece(lowercase: bool, **options: Any) -> Tokenizer:
    made = Tokenizer(models.WordPiece({token: at for at, token in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase, **options)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return framed(made)


def byte_bpe(space: bool) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [
        ("s", "h"),
        ("i", "p"),
        ("sh", "ip"),
        ("Ġ", "t"),
        ("h", "e"),
        ("Ġt", "he"),
        ("a", "b"),
        ("a", "a"),
        ("aa", "b"),
        ("b", "a"),
    ]
    vocabulary = [*SPECIAL, *letters, *("".join(pair) for pair in merges)]
    made = Tokenizer(models.BPE({token: at for at, token in enumerate(vocabulary)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    made.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def unigram(scheme: str, split: bool, *steps: normalizers.Normalizer, fallback: bool = False) -> Tokenizer:
    tokens = [
        *SPECIAL,
        *(token for token in VOCABULARY[5:] if "#" not in token and token != "x"),
        *(f"<0x{byte:02X}>" for byte in range(256) if fallback),
    ]
    draw = random.Random(1)
    scored = [(token, 0.0 if token in SPECIAL else -round(draw.uniform(1, 9), 3)) for token in tokens]
    made = Tokenizer(models.Unigram(scored, unk_id=1, byte_fallback=fallback))
    if steps:
        made.normalizer = normalizers.Sequence(list(steps))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    return framed(made)


def charsmap(pairs: dict[str, str]) -> bytes:
    """SentencePiece's table of characters: a double array over the keys' UTF-8, here with a block of 256
    units a node, and the values."""
    units, blocks = {0: 0}, 1
    values = b"".join(value.encode() + b"\0" for value in pairs.values())
    starts, at = {}, 0
    for key, value in pairs.items():
        starts[key], at = at, at + len(value.encode()) + 1
    base: dict[bytes, int] = {}
    for key in sorted(pairs):
        data, place = key.encode(), 0
        for end in range(len(data) + 1):
            prefix = data[:end]
            if prefix not in base:
                base[prefix] = 256 * blocks
                blocks += 1
                units[place] = (place ^ base[prefix]) << 10 | (prefix[-1] if prefix else 0)
            if prefix == data:
                units[place] |= 256  # a value lies at its label 0
                units[base[prefix]] = starts[key] | 1 << 31
            else:
                place = base[prefix] + data[end]
    array = np.zeros(256 * blocks, "<u4")
    array[list(units)] = list(units.values())
    return (4 * len(array)).to_bytes(4, "little") + array.tobytes() + values


FOLDED = {
    "ﬁ": "fi",
    "½": "1/2",
    "Σ": "σ",
    "İ": "i\u0307",
    "\u00a0": " ",
    "\u3000": " ",
    "e\u0301": "é",
    "\u0301": "",
    "ab": "Q",
    "ｶ": "カ",
    "\t": " ",
    "ｶﾞ": "ガ",
}


def metaspace_bpe() -> Tokenizer:
    vocabulary = [*VOCABULARY, "sh", "ip", *(f"<0x{byte:02X}>" for byte in range(256))]
    made = Tokenizer(
        models.BPE(
            {token: at for at, token in enumerate(vocabulary)},
            [("s", "h"), ("i", "p"), ("sh", "ip"), ("▁", "a"), ("a", "b"), ("b", "a")],
            unk_token="[UNK]",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return framed(made)


def pieces_of(
    step: pre_tokenizers.PreTokenizer, normalizer: normalizers.Normalizer | None = None
) -> Tokenizer:
    made = Tokenizer(models.WordPiece({token: at for at, token in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.pre_tokenizer = step
    if normalizer:
        made.normalizer = normalizer
    return made


def splits(behavior: str, invert: bool, pattern: str | Regex) -> Tokenizer:
    return pieces_of(pre_tokenizers.Split(pattern, behavior, invert))


BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
STEPS = pre_tokenizers
TOKENIZERS = {
    "WordPiece, uncased": wordpiece(True),
    "WordPiece, cased": wordpiece(False),
    "WordPiece, accents kept": wordpiece(True, strip_accents=False, handle_chinese_chars=False),
    "WordPiece, text as it is": wordpiece(False, strip_accents=True, clean_text=False),
    "BPE, bytes": byte_bpe(False),
    "BPE, bytes after a space": byte_bpe(True),
    "BPE, SentencePiece": metaspace_bpe(),
    "Unigram": unigram("always", True, normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")),
    "Unigram, first": unigram("first", True, normalizers.Nmt(), normalizers.NFKC(), normalizers.Strip()),
    "Unigram, whole": unigram("never", False, normalizers.NFKC(), normalizers.Lowercase()),
    "Unigram, bytes": unigram("always", False, normalizers.NFD(), normalizers.StripAccents(), fallback=True),
    "Unigram, XLM-R": unigram(
        "always", True, normalizers.Precompiled(charsmap(FOLDED)), normalizers.Replace(Regex(" {2,}"), " ")
    ),
    "Whitespace": pieces_of(STEPS.Whitespace(), normalizers.Lowercase()),
    "WhitespaceSplit, Punctuation": pieces_of(
        STEPS.Sequence([STEPS.WhitespaceSplit(), STEPS.Punctuation()]), normalizers.NFC()
    ),
    "Digits": pieces_of(STEPS.Sequence([STEPS.Digits(True), STEPS.CharDelimiterSplit(" ")])),
    "Digits together": pieces_of(STEPS.Digits(False), normalizers.NFKD()),
    "FixedLength": pieces_of(STEPS.FixedLength(3)),
    **{f"Punctuation, {behavior}": pieces_of(STEPS.Punctuation(behavior)) for behavior in BEHAVIORS},
    **{
        f"Split, {behavior}, {invert}": splits(behavior, invert, " ")
        for behavior, invert in product(BEHAVIORS, (False, True))
    },
    "Split, pattern": splits("isolated", False, Regex(r"\s+|\w{2}")),
}
FLAGS = ["single_word", "lstrip", "rstrip", "normalized", "special"]


def with_added(tokenizer: Tokenizer, seed: int) -> Tokenizer:
    """A copy with a few added tokens, each with flags of its own; all 32 combinations occur within 8
    seeds."""
    made = Tokenizer.from_str(tokenizer.to_str())
    contents = ["C++", "New Tok", "tok", "Σ", "İ", "É", "a-b", "aab", "日", "TOKEN"]
    random.Random(seed).shuffle(contents)
    for at, content in enumerate(contents[:4]):
        bits = (seed * 4 + at) % 32
        flags = {name: bool(bits >> place & 1) for place, name in enumerate(FLAGS)}
        special = flags.pop("special")
        (made.add_special_tokens if special else made.add_tokens)(
            [AddedToken(content, special=special, **flags)]
        )
    made.add_special_tokens(["[SEP]", AddedToken("<mask>", lstrip=True)])
    return made


def cases() -> Iterator[tuple[str, Tokenizer, str]]:
    for name, made in TOKENIZERS.items():
        yield name, made, ""
    for at, name in enumerate(list(TOKENIZERS)[:12]):
        yield from (
            (f"{name}, added tokens {seed}", with_added(TOKENIZERS[name], seed), "a ship: ")
            for seed in range(at, at + 8)
        )


def test_the_ids_of_tokenizers() -> None:
    asked, expected = [], []
    for at, (name, made, prompt) in enumerate(cases()):
        most = 9 if at % 5 == 4 else 10_000
        made.enable_truncation(most, direction="left" if at % 10 == 9 else "right")
        given = texts(at, 60)
        asked.append(
            {
                "json": json.loads(made.to_str()),
                "manifest": {"max_tokens": most},
                "texts": [prompt + text for text in given],
            }
        )
        expected.append((name, given, [row.ids for row in made.encode_batch(asked[-1]["texts"])]))
    ended = subprocess.run(
        ["node", "--input-type=module", "-e", TOKENIZE],
        cwd=NODE,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    wrong = [
        f"{name}: {text!r}: {found}, not {ids}"
        for (name, given, rows), answer in zip(expected, json.loads(ended.stdout), strict=True)
        for text, ids, found in zip(given, rows, answer, strict=True)
        if ids != found
    ]
    assert sum(len(given) for _, given, _ in expected) > 10_000
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong[:40])
