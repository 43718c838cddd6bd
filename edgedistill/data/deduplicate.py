"""Rows of texts that are read from many sources: distinct ones without excluded texts, in one temporary file;
and the keys by which a text is known again, whatever letters it is written in.

A row is a text, a pair or a tuple. Its texts go to disk, and eight bytes of it stay in memory: ten million
rows take a few hundred megabytes while they are compared.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, compress
from pathlib import Path

import numpy as np
from numpy import ndarray

from edgedistill.data import readers

PROGRESS = 10_000  # rows read between two reports of the progress
BUFFER = 1 << 20  # bytes
SHARES = 16  # of the digests, compared one after the other
# Why a row is left out.
EMPTY = "with an empty text"
LENGTH = "with a text that is too short or too long"
DUPLICATE = "duplicates"
EXCLUDED = "with an excluded text"
MEASURED = "with a text that is measured"

_WORD = re.compile(r"\w+")

Row = tuple[str, ...]  # texts without tabs, as `readers.normalize` leaves them


def digest(text: str) -> bytes:
    """8 bytes that are equal for texts which are equal but for case."""
    return hashlib.blake2b(text.casefold().encode("utf-8", "surrogatepass"), digest_size=8).digest()


def key(text: str) -> int:
    """A number of 64 bits that is equal for texts of the same words, whatever their case, width, accents,
    punctuation and invisible characters: what is measured must not be trained on in other letters either."""
    plain = unicodedata.normalize("NFKD", text)
    if not plain.isascii():
        plain = "".join(letter for letter in plain if not _is_mark(letter))
    return int.from_bytes(digest(" ".join(_WORD.findall(plain)) or text), "little")


def _is_mark(letter: str) -> bool:
    """Whether it is an accent, or invisible, such as a soft hyphen."""
    return unicodedata.combining(letter) > 0 or unicodedata.category(letter) == "Cf"


def excluded_keys(paths: list[Path]) -> set[int]:
    """Keys of every text in those files, whatever its column: texts that must not be trained on."""
    texts = (readers.normalize(text) for path in paths for text in readers.texts_in_every_column(path))
    return {key(text) for text in texts if text}


def among(keys: ndarray, wanted: Iterable[int]) -> ndarray:
    """Which of the keys, of any shape, are wanted ones: bool."""
    return np.isin(keys, np.fromiter(wanted, np.uint64))


def sample_evenly(rows: ndarray, limit: int | None) -> ndarray:
    """At most `limit` of the rows (n,), spread evenly over them; None: all."""
    if limit is None or len(rows) <= limit:
        return rows
    return rows[np.arange(limit) * len(rows) // limit]


@dataclass(frozen=True)
class Spool:
    """The usable rows of all sources as lines of one file, in the order they were read.

    `offsets` holds the first line of each source, and the number of lines; `distinct` the lines that repeat
    no earlier one, (n,) int64. `read` rows were read; `left_out` holds why others are not among them.
    """

    path: Path
    offsets: list[int]
    distinct: ndarray
    read: int
    left_out: Counter[str]

    def sample(self, limits: list[int | None], limit: int | None) -> ndarray:
        """Distinct lines, at most `limits` of each source and `limit` in all, spread evenly: (n,) int64."""
        parts = np.split(self.distinct, np.searchsorted(self.distinct, self.offsets[1:-1]))
        of_each = [sample_evenly(part, most) for part, most in zip(parts, limits, strict=True)]
        return sample_evenly(np.concatenate(of_each), limit)

    def counts(self, lines: ndarray) -> list[int]:
        """How many of these lines, (n,) ascending, come from each source."""
        return np.diff(np.searchsorted(lines, self.offsets)).tolist()

    def lines(self, wanted: ndarray) -> Iterator[bytes]:
        """These lines, (n,) ascending, without their ends."""
        mask = np.zeros(self.offsets[-1], bool)
        mask[wanted] = True
        with self.path.open("rb", BUFFER) as file:
            yield from (line[:-1] for line in compress(file, mask.tobytes()))

    def keys(self, wanted: ndarray) -> ndarray:
        """The keys of these lines, (n,) uint64."""
        keys = (key(line.decode("utf-8")) for line in self.lines(wanted))
        return np.fromiter(keys, np.uint64, len(wanted))


def gather(
    sources: Iterable[Iterable[Row]],
    flaw: Callable[[Row], str | None],
    path: Path,
    advance: Callable[[int], None] = lambda rows: None,
) -> Spool:
    """Read all sources, and write the rows without a flaw to `path`.

    `advance` is called with a number of rows whenever so many more were read.
    """
    digests = array("Q")
    counts = []
    left_out = Counter[str]()
    read = 0
    with path.open("wb") as lines:
        for source in sources:
            before = len(digests)
            for row in source:
                read += 1
                if read % PROGRESS == 0:
                    advance(PROGRESS)
                if reason := flaw(row):
                    left_out[reason] += 1
                    continue
                line = "\t".join(row)
                lines.write(line.encode("utf-8", "replace") + b"\n")
                digests.append(int.from_bytes(digest(line), "little"))
            counts.append(len(digests) - before)
        advance(read % PROGRESS)
    distinct = _distinct(np.frombuffer(digests, np.uint64))
    left_out[DUPLICATE] = len(digests) - len(distinct)
    return Spool(path, [0, *accumulate(counts)], distinct, read, left_out)


def _distinct(digests: ndarray) -> ndarray:
    """The first position of each digest, ascending; sorted a share at a time, for that takes five times their
    memory."""
    is_first = np.zeros(len(digests), bool)
    share = (digests % SHARES).astype(np.uint8)
    for number in range(SHARES):
        rows = np.flatnonzero(share == number)
        is_first[rows[np.unique(digests[rows], return_index=True)[1]]] = True
    return np.flatnonzero(is_first)
