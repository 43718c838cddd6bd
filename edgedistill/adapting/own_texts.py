"""What somebody's own texts are like: how many there are, how long, and whether the lines of their files are texts or parts of one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgedistill.data import readers
from edgedistill.errors import UserError

FEWEST = 50  # texts that a student can be adapted to, and measured on
READ = 2_000  # lines of a .txt file that are looked at
WRAPPED = 0.5  # share of lines that end inside a sentence, from which on a file's lines are taken to be wrapped


class OwnTexts(NamedTuple):
    """files: how many; texts: how many distinct ones; words: their mean number of words, and that of the longest tenth's shortest one;
    unit: what a text of a .txt file is.
    """

    files: int
    texts: int
    words: float
    long_words: float
    unit: str


def examine(patterns: list[str], data: Path | None, column: str) -> OwnTexts:
    """Read the texts that the globs match and describe them.

    Raises UserError: no file matches, an unreadable file, fewer than FEWEST texts.
    """
    paths = readers.matching_files(patterns, data, "--texts")
    unit = "paragraph" if _wrapped(paths) else "line"
    lengths: dict[int, int] = {}
    for path in paths:
        for text in map(readers.normalize, readers.texts_in(path, column, "--column", unit)):
            if text:
                lengths[hash(text)] = text.count(" ") + 1
    if len(lengths) < FEWEST:
        what = "paragraphs" if unit == "paragraph" else "texts"
        raise UserError(f"--texts: {len(lengths):,} {what} in {len(paths):,} file(s), at least {FEWEST} are needed; add texts")
    words = list(lengths.values())
    return OwnTexts(len(paths), len(lengths), float(np.mean(words)), float(np.quantile(words, 0.9)), unit)


def _wrapped(paths: list[Path]) -> bool:
    """Whether most lines of the .txt files that are followed by another one end inside a sentence, and blank lines divide paragraphs."""
    followed = inside = blank = 0
    for path in (each for each in paths if readers.is_text_file(each)):
        for line, after in pairwise(_first_lines(path)):
            blank += not line.strip()
            if line.strip() and after.strip():
                followed += 1
                inside += line.rstrip()[-1].isalnum() or line.rstrip()[-1] in ",;-"
    return blank > 0 and followed > 0 and inside >= WRAPPED * followed


def _first_lines(path: Path) -> Iterator[str]:
    return islice(readers.texts_in(path, field="--column"), READ)
