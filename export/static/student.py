"""Read a static student from one file, with numpy alone; README.md beside this has the format.

    encoder = Student(Path("student.bin").read_bytes())
    encoder.encode("how do I reset it?")  # (dims,) float32, of unit length

`edgedistill export NAME --static DIR` writes the file by `pack`, and reads it back by `Student`.
"""

from __future__ import annotations

import re
import struct
import unicodedata
import zlib
from collections import namedtuple
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

MAGIC, VERSION = b"edstudnt", 3
START = struct.Struct("<8s2I")  # magic, version, CRC-32 of all that follows
Header = namedtuple(
    "Header",
    "size tokens width dims biases tanh max_tokens longest_word unknown before after added runs letters "
    "golden",
)
NAMES = Header._fields
HEADER = struct.Struct(f"<{len(NAMES)}i")
Sizes = namedtuple("Sizes", "rows codes bits group exponent")  # of a matrix, before it
LIMITS = {"tokens": 1 << 24, "width": 1 << 16, "dims": 1 << 16, "longest_word": 1_000, "max_tokens": 1 << 24}
REMOVED, SPACE, ALONE, HANGUL = range(4)  # what a run of characters becomes; above: the first one's letter
SEQUENCE = 21  # bits of a letter, or of a place in `letters` where above them stands how many they are
SYLLABLES = range(0xAC00, 0xD7A4)  # of Hangul
CENTROIDS = 256  # at most: a code is a byte
MOST_GOLDEN = 4_096  # bytes of a golden text
ROLES = ("text", "query", "document")
ENDS = "get the file again, or export it again"


Matrix = tuple[int, np.ndarray, np.ndarray]  # bits, integers around zero (n, width), their scales (n, groups)
Table = tuple[Matrix, np.ndarray | None]  # a row per token; or a row per centroid, and the tokens' PQ codes


class StudentError(ValueError):
    """A file that is not a whole and sound student, or a text that has no embedding."""


def pack(
    table: Table,
    weights: np.ndarray | None,
    head: Matrix | None,
    biases: Any,
    tanh: bool,
    tokenizer: dict[str, Any],
    around: tuple[list[int], list[int]],
    characters: dict[str, str],
    prompts: Sequence[str],
    golden: Sequence[tuple[str, str]],
) -> bytes:
    """The file of a student. Its golden embeddings are those that `Student` gives.

    table: its PQ codes, where it has them, are (tokens, blocks) uint8; row k of such a matrix has centroid k
    of every block, dimension h that of block h mod blocks. weights: of the tokens, where there are codes.
    biases: (dims,) or None. tokenizer: the content of tokenizer.json. around: the ids
    before and after those of a text. characters: what becomes of each that does not stay as it is; a space
    ends a word. prompts: of each of ROLES. golden: (role, text); those of more than MOST_GOLDEN bytes are
    left out.
    """
    width = table[0][1].shape[1]
    model, tokens = tokenizer["model"], [""] * len(table[0][1] if weights is None else weights)
    for token, number in model["vocab"].items():
        tokens[number] = token
    if any("\0" in token for token in tokens):
        raise StudentError("tokenizer: a token with U+0000, which the file cannot hold")
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"] if token["content"]}
    longest_first = sorted(added, key=lambda token: -len(token.encode()))
    runs, letters = _runs(characters, set("".join(tokens)))
    halves, exponent = (b"", 0) if weights is None else _halves(weights)
    packed = [_packed(*table, exponent), _packed(head, None, 0) if head else NONE]
    last = b"" if biases is None else np.asarray(biases.tolist(), "<f4").tobytes()
    parts = [
        np.array([*around[0], *around[1], *chain(*runs), *letters], "<i4").tobytes(),
        *(last, *packed, halves),
        *map(_string, ("\0".join(tokens), *prompts, model["continuing_subword_prefix"])),
        *(struct.pack("<i", added[token]) + _string(token) for token in longest_first),
    ]
    dims, limits = len(head[1]) if head else width, (tokenizer["truncation"], "max_input_chars_per_word")
    header = (
        *(len(tokens), width, dims, len(last) // 4, int(tanh)),
        *(limits[0]["max_length"], model[limits[1]], model["vocab"][model["unk_token"]]),
        *map(len, (*around, added, runs, letters)),
    )
    file = _sealed(header, parts, [])
    student, golden_parts = Student(file), list[bytes]()
    for role, text in [each for each in golden if len(each[1].encode()) <= MOST_GOLDEN]:
        embedding = student.encode(text, role).astype("<f2").tobytes()
        golden_parts.append(struct.pack("<i", ROLES.index(role)) + _string(text) + embedding)
    return _sealed(header, parts, golden_parts)


def _sealed(header: tuple[int, ...], parts: list[bytes], golden: list[bytes]) -> bytes:
    content = b"".join([*parts, *golden])
    size = START.size + HEADER.size + len(content)
    body = HEADER.pack(size, *header, len(golden)) + content
    return START.pack(MAGIC, VERSION, zlib.crc32(body)) + body


def _runs(characters: dict[str, str], alphabet: set[str]) -> tuple[list[list[int]], list[int]]:
    """(runs, letters): [first, last, what they become] of characters in order, and the letters of those that
    become several.

    Left out is what makes no difference: a character outside the alphabet of all tokens makes its word
    unknown, and so does another in its place.
    """
    runs, letters = list[list[int]](), list[int]()
    for character, result in characters.items():
        code, parts = ord(character), result.replace(" ", "")
        known = character in alphabet or set(parts) <= alphabet
        if not parts:
            to = SPACE if result else REMOVED
        elif code in SYLLABLES and result == unicodedata.normalize("NFD", character):
            to = HANGUL
        elif result == f" {character} " or (result == f" {parts} " and len(parts) == 1 and not known):
            to = ALONE
        elif not known and " " not in result:
            continue
        else:
            to = ord(parts) if len(parts) == 1 else len(parts) << SEQUENCE | len(letters)
            letters += map(ord, parts if len(parts) > 1 else "")
        first, last, start = runs[-1] if runs else (0, -2, 0)
        if last == code - 1 and to == (start if start <= HANGUL else start + code - first):
            runs[-1][1] = code
        else:
            runs.append([code, code, to])
    return runs, letters


def _string(text: str) -> bytes:
    return struct.pack("<i", len(text.encode())) + text.encode()


NONE = struct.pack("<5i", *Sizes(0, 0, 8, 1, 0))  # a matrix without rows


def _packed(matrix: Matrix, codes: np.ndarray | None, exponent: int) -> bytes:
    """A matrix times 2 ** exponent, with its sizes."""
    bits, values, scales = matrix
    width, stored = values.shape[1], (values.astype(np.int16) + (1 << bits - 1)).astype(np.uint8)
    if bits == 4:
        stored = np.pad(stored, [(0, 0), (0, width % 2)])
        stored = stored[:, ::2] | stored[:, 1::2] << 4
    halves, own = _halves(scales)
    blocks, first = (0, b"") if codes is None else (codes.shape[1], codes.tobytes())
    group = width if scales.shape[1] == 1 else 32
    sizes = Sizes(len(values), blocks, bits, group, own + exponent)
    return struct.pack("<5i", *sizes) + first + halves + stored.tobytes()


def _halves(values: np.ndarray) -> tuple[bytes, int]:
    """(float16, exponent): values = float16 * 2 ** exponent."""
    exponent = int(np.frexp(np.abs(values).max())[1]) - 14  # float16 is exact from 2^-14 to 2^15
    return np.ldexp(values.astype(np.float64), -exponent).astype("<f2").tobytes(), exponent


class Student:
    """A student that was read from the bytes of a file. Raises StudentError for any other bytes.

    golden: role, text and embedding of each golden text.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, START.size
        magic, version, checksum = START.unpack(data.ljust(START.size, b"\0")[: START.size])
        if magic != MAGIC:
            raise StudentError(f"not a student file; {ENDS}")
        self._require(len(data) >= START.size + HEADER.size, "cut off")
        if version != VERSION:
            raise StudentError("another version of the format; get a reader of that version, or export again")
        h = self.header = Header(*self._take(HEADER.size // 4, "<i4").tolist())
        self._require(h.size == len(data), "cut off")
        self._require(zlib.crc32(data[START.size :]) == checksum, "its checksum is wrong")
        self._require(all(0 < getattr(h, name) <= most for name, most in LIMITS.items()))
        self._require(h.biases in (0, h.dims))
        self._require(min(h[NAMES.index("before") :]) >= 0 and 0 <= h.unknown < h.tokens)
        self._require(h.before + h.after < h.max_tokens)
        self.before, self.after = (self._take(count, "<i4").tolist() for count in (h.before, h.after))
        self._characters = _Characters(self._take(3 * h.runs, "<i4"), self._take(h.letters, "<i4"))
        self._require(self._characters.sound)
        self._biases = self._take(h.biases, "<f4")
        table, self._head = self._matrix(), self._matrix()
        self._require(table[0].codes > 0 or table[0].rows == h.tokens)
        self._require(self._head[0].codes == 0 and (self._head[0].rows or h.width) == h.dims)
        self._table = table, self._rows(table, slice(None)) if table[0].codes else None
        self._weights = self._take(h.tokens if table[0].codes else 0, "<f2").astype(np.float32)
        tokens = self._text().split("\0")
        self._require(len(tokens) == h.tokens)
        self._ids = {token: number for number, token in enumerate(tokens) if token}
        self._longest_token = max(map(len, tokens))
        *self.prompts, self._prefix = (self._text() for _ in range(len(ROLES) + 1))
        self._added = {self._text(): number for number in (self._number() for _ in range(h.added))}
        self._pattern = "|".join(map(re.escape, self._added)) or "(?!)"  # the longest come first
        golden = ((self._number(), self._text(), self._take(h.dims, "<f2")) for _ in range(h.golden))
        self.golden = [(role, text, row.astype(np.float32)) for role, text, row in golden]
        self._require(self._at == len(data) and "" not in self._added)
        numbers = *self.before, *self.after, *self._added.values()
        self._require(all(0 <= each < h.tokens for each in numbers))
        self._require(all(0 <= role < len(ROLES) for role, *_ in self.golden))

    def _require(self, holds: bool, fact: str = "its sizes do not fit together") -> None:
        if not holds:
            raise StudentError(f"damaged: {fact}; {ENDS}")

    def _take(self, count: int, kind: str) -> np.ndarray:
        size = count * np.dtype(kind).itemsize
        self._require(0 <= size <= len(self._data) - self._at)
        self._at += size
        return np.frombuffer(self._data, kind, count, self._at - size)

    def _matrix(self) -> Any:
        """(sizes, codes, scales, values), the last three of a row per token or of the matrix."""
        sizes, (_, tokens, width, *_) = Sizes(*self._take(5, "<i4").tolist()), self.header
        self._require(sizes.bits in (4, 8) and 0 < sizes.group <= width and abs(sizes.exponent) <= 64)
        self._require(0 <= sizes.codes <= width and sizes.rows <= (CENTROIDS if sizes.codes else 1 << 24))
        rows = ((tokens, sizes.codes, "u1"), (sizes.rows, -(-width // sizes.group), "<f2"))
        rows += ((sizes.rows, -(-width * sizes.bits // 8), "u1"),)
        codes, scales, values = (self._take(n * size, kind).reshape(n, size) for n, size, kind in rows)
        self._require(not codes.size or codes.max() < sizes.rows)
        return sizes, codes, scales, values

    def _number(self) -> int:
        return int(self._take(1, "<i4")[0])

    def _text(self) -> str:
        return self._decoded(self._take(self._number(), "u1").tobytes())

    def _decoded(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise StudentError(f"damaged: a text that is not UTF-8; {ENDS}") from None

    def tokenize(self, text: str, role: str = "text") -> list[int]:
        """The token ids of a text, with the prompt of its role and special tokens, truncated."""
        if re.search("[\ud800-\udfff]", text):
            raise StudentError("text: half a surrogate pair, which is not text; decode it again")
        found = list[int]()
        room = self.header.max_tokens - len(self.before) - len(self.after)
        for at, part in enumerate(re.split(f"({self._pattern})", self.prompts[ROLES.index(role)] + text)):
            if at % 2:
                found.append(self._added[part])
            for word in () if at % 2 else part.translate(self._characters).split(" "):
                found += self._word(word) if len(found) < room else []
        found = [*self.before, *found[:room], *self.after]
        if not found:
            raise StudentError("text: has no tokens; leave it out")
        return found

    def _word(self, word: str) -> list[int]:
        """The longest token that begins the word, then the longest that goes on, and so to its end."""
        found, start = list[int](), 0
        while start < len(word) <= self.header.longest_word:
            prefix = self._prefix if start else ""
            for end in range(min(len(word), start + self._longest_token), start, -1):
                number = self._ids.get(prefix + word[start:end])
                if number is not None:
                    break
            else:
                return [self.header.unknown]
            found.append(number)
            start = end
        return found if start == len(word) else [self.header.unknown]

    def encode(self, text: str, role: str = "text") -> np.ndarray:
        """The embedding of a text: (dims,) float32, of unit length."""
        ids = self.tokenize(text, role)
        rows = self._of_tokens(*self._table, ids)
        if len(self._weights):
            rows = rows * self._weights[ids, None]
        row = rows.mean(0)
        if self._head[0].rows:
            row = self._rows(self._head, slice(None)) @ row
        if self.header.biases:
            row = row + self._biases
        if self.header.tanh:
            row = np.tanh(row)
        length = float(np.linalg.norm(row))
        self._require(np.isfinite(length), "an embedding that is not finite")
        return np.asarray(row / max(length, 1e-12), np.float32)

    def _of_tokens(self, matrix: Any, book: np.ndarray | None, ids: list[int]) -> np.ndarray:
        """The rows of tokens, (n, width) float32; from a codebook those that their PQ codes select, dimension
        by dimension."""
        if book is None:
            return self._rows(matrix, ids)
        (_, blocks, *_), codes, *_ = matrix
        every = np.arange(self.header.width)
        return book[codes[ids][:, every % blocks], every]

    def _rows(self, matrix: Any, which: Any) -> np.ndarray:
        """Rows of a matrix, (n, width) float32."""
        sizes, _, scales, values = matrix
        values, scale, width = values[which], scales[which], self.header.width
        if sizes.bits == 4:
            values = np.stack([values & 15, values >> 4], -1).reshape(len(values), -1)
        scale = np.repeat(np.ldexp(scale.astype(np.float32), sizes.exponent), sizes.group, 1)[:, :width]
        return (values[:, :width].astype(np.float32) - (1 << sizes.bits - 1)) * scale

    def check(self) -> float:
        """The lowest cosine of a golden text's embedding to the stored one."""
        found = ((self.encode(text, ROLES[role]), row) for role, text, row in self.golden)
        return min((float(one @ row / max(np.linalg.norm(row), 1e-12)) for one, row in found), default=1.0)


class _Characters(dict[int, str]):
    """What each character becomes, for `str.translate`; a space ends a word."""

    def __init__(self, runs: np.ndarray, letters: np.ndarray) -> None:
        self._runs, self._letters = runs.reshape(-1, 3), letters

    @property
    def sound(self) -> bool:
        """Whether the runs are in order, and all that they become are characters."""
        (first, last, to), most = self._runs.T.astype(np.int64), 0x10FFFF
        count, place = to >> SEQUENCE, to & (1 << SEQUENCE) - 1
        beyond = np.where(count > 0, place + count - len(self._letters), to + last - first - most)
        ordered = np.all(first[1:] > last[:-1]) and np.all(last >= first) and np.all(first >= 0)
        syllables = np.all((to != HANGUL) | ((first >= SYLLABLES[0]) & (last <= SYLLABLES[-1])))
        letters = np.all((self._letters >= 0) & (self._letters <= most))
        inside = np.all((last <= most) & (to >= 0) & (beyond <= 0))
        return bool(ordered and syllables and letters and inside)

    def __missing__(self, code: int) -> str:
        self[code] = "".join(self._alone(each) for each in self._letters_of(code))
        return self[code]

    def _run(self, code: int) -> tuple[int, int]:
        """(first character, what it becomes) of the run that holds a character; (code, -1) where it stays."""
        at = int(np.searchsorted(self._runs[:, 0], code, "right")) - 1
        if at < 0 or code > self._runs[at, 1]:
            return code, -1
        return int(self._runs[at, 0]), int(self._runs[at, 2])

    def _letters_of(self, code: int) -> list[int]:
        first, to = self._run(code)
        if to == HANGUL:
            return [ord(letter) for letter in unicodedata.normalize("NFD", chr(code))]
        count, place = max(0, to) >> SEQUENCE, to % (1 << SEQUENCE)
        if count:
            return [int(letter) for letter in self._letters[place : place + count]]
        return [to + code - first if to > HANGUL else code]

    def _alone(self, code: int) -> str:
        """A letter as it stands in a text: a part of words, or what separates them."""
        _, to = self._run(code)
        return ("", " ", f" {chr(code)} ")[to] if 0 <= to <= ALONE else chr(code)
