"""What somebody's own texts are like: how many there are, how long, and whether the lines of their files are
texts or parts of one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgedistill.data import file_patterns, readers
from edgedistill.errors import UserError

FEWEST = 50  # texts that a student can be adapted to, and measured on
SAMPLE = 500  # texts that their language is judged by


class OwnTexts(NamedTuple):
    """files: how many; wrapped: of them, with wrapped lines, which are read as paragraphs; texts: how many
    distinct ones; words: their mean number of words, and that of the longest tenth's shortest one; sample: a
    few of the texts.
    """

    files: int
    wrapped: int
    texts: int
    words: float
    long_words: float
    sample: list[str]

    @property
    def unit(self) -> str:
        """What a text of a .txt file is, as a recipe says it."""
        return "auto" if self.wrapped else "line"


def examine(patterns: list[str], data: Path | None, column: str) -> OwnTexts:
    """Read the texts that the globs match and describe them.

    Raises UserError: no file matches, an unreadable file, fewer than FEWEST texts.
    """
    paths = file_patterns.matching_files(patterns, data, "--texts")
    lengths: dict[int, int] = {}
    sample: list[str] = []
    wrapped = 0
    for path in paths:
        of_file, paragraphs = 0, readers.is_wrapped(path)
        wrapped += paragraphs
        for text in map(
            readers.normalize,
            readers.texts_in(path, column, "--column", "paragraph" if paragraphs else "line"),
        ):
            if text:
                lengths[hash(text)] = text.count(" ") + 1
                of_file += 1
                if of_file <= max(1, SAMPLE // len(paths)):
                    sample.append(text)
    if len(lengths) < FEWEST:
        raise UserError(
            f"--texts: {len(lengths):,} texts in {len(paths):,} file(s), at least {FEWEST} are needed; add "
            "texts"
        )
    words = list(lengths.values())
    return OwnTexts(
        len(paths), wrapped, len(lengths), float(np.mean(words)), float(np.quantile(words, 0.9)), sample
    )
