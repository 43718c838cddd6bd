"""Views that the user gives in files, looked up by their text."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from edgedistill import recipe
from edgedistill.data import deduplicate, readers
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError

TEXTS = 4_096  # looked up at a time


class ViewFiles:
    """Texts -> their views from the files of a recipe: 16 bytes of memory per row, the views themselves in one file on disk."""

    def __init__(self, spec: recipe.ViewFile, paths: list[Path], place: str, folder: Path) -> None:
        """folder: where the file on disk is written. Raises UserError where the files lack a column; `place`: the recipe key."""
        self.names, self.place, self.spool = ", ".join(path.name for path in paths), place, folder / "spool"
        digests, ends = array("Q"), array("q", [0])
        with self.spool.open("wb") as spool:
            for path in paths:
                columns = (spec.text_column, spec.view_column)
                for text, view in readers.columns_in(path, columns, f"{place}.text_column and .view_column"):
                    digests.append(_digest(text))
                    ends.append(ends[-1] + spool.write(view.encode("utf-8", "replace")))
        self.digests, self.first = np.unique(np.array(digests, np.uint64), return_index=True)
        self.ends = np.array(ends, np.int64)

    def check(self, texts: Corpus) -> None:
        """Raise UserError where a text of the corpus has no view, or an empty one."""
        at = np.concatenate([self._find(chunk) for chunk in texts.chunks(TEXTS)])
        empty = (at >= 0) & np.append(np.diff(self.ends) == 0, False)[at]
        for lacking, what in ((np.flatnonzero(at < 0), "are not in"), (np.flatnonzero(empty), "have an empty view in")):
            if len(lacking):
                fact = f"{len(lacking):,} of the corpus' {len(texts):,} texts {what} {self.names}"
                first = texts.texts(lacking[:1])[0][:60]
                raise UserError(f"{self.place}: {fact}, the first of them {first!r}; add their views, or take the texts out")

    def _find(self, texts: list[str]) -> np.ndarray:
        """The row of each text's view, −1 where it has none, (n,)."""
        wanted = np.array([_digest(text) for text in texts], np.uint64)
        near = np.minimum(np.searchsorted(self.digests, wanted), len(self.digests) - 1)
        return np.where(self.digests[near] == wanted, self.first[near], -1) if len(self.digests) else np.full(len(texts), -1)

    def __call__(self, texts: list[str], first: int) -> list[str]:
        views = []
        with self.spool.open("rb") as spool:
            for row in self._find(texts):
                spool.seek(int(self.ends[row]))
                views.append(spool.read(int(self.ends[row + 1] - self.ends[row])).decode("utf-8"))
        return views


def _digest(text: str) -> int:
    return int.from_bytes(deduplicate.digest(text), "little")
