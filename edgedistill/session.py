"""What a command works with besides its input: data folder, cache, device, log and progress, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgedistill import files

Log = Callable[[str], None]  # one line for the user; the command line writes it to stderr


def silent(line: str) -> None:
    """Log nothing."""


@dataclass(frozen=True)
class Session:
    """Where files are found and cached, what is computed on, and how it is reported.

    data: the folder that relative data paths start from. cache_folder: where corpora, token ids and teacher
        embeddings are kept;
    default: $EDGEDISTILL_CACHE, else ~/.cache/edgedistill. device: auto, cpu or cuda. progress: show progress
        bars.
    remote_code: whether Python code that comes with a model may run. Only the user's own command sets it, no
        file does.
    """

    data: Path | None = None
    device: str = "cpu"
    log: Log = silent
    progress: bool = False
    cache_folder: Path | None = None
    remote_code: bool = False

    @property
    def cache(self) -> Path:
        """The cache's folder."""
        return self.cache_folder or files.cache_folder()


QUIET = Session()
