"""Cached files are those that were written: their hashes are recorded, and compared when they are opened."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgedistill import files, object_store
from edgedistill.errors import UserError
from edgedistill.session import Log

RECORD = "files.json"  # in a cached folder: the sha256 of each of its other files


def cached_folder(folder: Path, write: Callable[[Path], Any], log: Log) -> Path:
    """The folder, with its files as they were written.

    `write` is called with an empty folder to fill where there is none yet, and again where a file has changed
    since.
    """
    if not folder.exists():
        object_store.pull(folder, RECORD)
    return folder if intact(folder, log) else written(folder, write)


def written(folder: Path, write: Callable[[Path], Any]) -> Path:
    """The folder, with the files that `write` puts into an empty one, in place of those that it had. Raises
    UserError where somebody deletes files meanwhile: the others would be taken for all."""
    with files.new_folder(folder) as temporary:
        record = temporary / RECORD
        record.touch()
        write(temporary)
        if not record.exists():
            raise UserError(f"{folder}: deleted while it was written; run the command again")
        found = sorted(path for path in temporary.rglob("*") if path.is_file() and path != record)
        hashes = {path.relative_to(temporary).as_posix(): files.sha256_file(path) for path in found}
        files.write_json(record, hashes)
    object_store.push(folder, RECORD)
    return folder


def intact(folder: Path, log: Log) -> bool:
    """Whether the folder is there with its files as they were written; what is damaged is named."""
    if not folder.exists():
        return False
    hashes = recorded(folder / RECORD)
    changed = next((name for name, sha256 in hashes.items() if not is_unchanged(folder / name, sha256)), None)
    if changed is not None:
        log(f"{folder / changed}: damaged or missing; making it again")
    elif not hashes:
        log(f"{folder / RECORD}: damaged or missing; making its folder again")
    return bool(hashes) and changed is None


def recorded(path: Path) -> dict[str, str]:
    """The hashes of files as they were recorded, name -> sha256; none where the record is missing or
    damaged."""
    try:
        found = files.read_json(path)
    except (OSError, UserError):
        return {}
    return (
        found if isinstance(found, dict) and all(isinstance(sha256, str) for sha256 in found.values()) else {}
    )


def is_unchanged(path: Path, sha256: str) -> bool:
    """Whether a file is there and has this hash."""
    try:
        found = path.stat()
        return _sha256(path, found.st_size, found.st_mtime_ns, found.st_ino) == sha256
    except OSError:
        return False


@lru_cache(maxsize=10_000)
def _sha256(path: Path, size: int, changed_ns: int, inode: int) -> str:
    """Computed once a process, for as long as size, time and inode stay: a command opens a cache of gigabytes
    several times."""
    return files.sha256_file(path)
