"""Cached files are those that were written: their hashes are recorded, and compared when they are opened; and
while they are mapped, whether they have been cut."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy import ndarray

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


def written(folder: Path, write: Callable[[Path], Any], uploaded: bool = True) -> Path:
    """The folder, with the files that `write` puts into an empty one, in place of those that it had; one of
    the cache's object store is `uploaded`. Raises UserError where somebody deletes files meanwhile: the
    others would be taken for all."""
    with files.new_folder(folder) as temporary:
        record = temporary / RECORD
        record.touch()
        write(temporary)
        check_uncut()
        if not record.exists():
            raise UserError(f"{folder}: deleted while it was written; run the command again")
        paths = sorted(path for path in temporary.rglob("*") if path.is_file() and path != record)
        hashes = {path.relative_to(temporary).as_posix(): files.sha256_file(path) for path in paths}
        files.write_json(record, hashes)
    if uploaded:
        object_store.push(folder, RECORD)
    return folder


_mapped: WeakKeyDictionary[Any, Path] = WeakKeyDictionary()  # maps of memory that are in use: their files


def mapped(path: Path, dtype: type | np.dtype | None = None) -> ndarray:
    """The numbers of a file, mapped into memory; without `dtype` of an .npy file. Raises UserError where it
    is shorter than it should be."""
    try:
        array = np.load(path, "r") if dtype is None else np.memmap(path, dtype, "r")
    except ValueError as error:
        raise _cut(path) from error
    _mapped[array.base] = path
    return np.asarray(array)


def check_uncut() -> None:
    """Raise UserError where a file has been cut since it was mapped: what was read of it may be zeros, and
    reading on ends the process. Called before reading, and before what was made of it is written. A file that
    was deleted or replaced stays in the map as it was."""
    for memory, path in list(_mapped.items()):
        if memory.size() < len(memory):
            raise _cut(path)


def _cut(path: Path) -> UserError:
    return UserError(f"{path}: cut while it was used; run the command again, which makes that file again")


def intact(folder: Path, log: Log) -> bool:
    """Whether the folder is there with its files as they were written; what is damaged is named."""
    if not folder.exists():
        return False
    try:
        hashes = files.read_json_object(folder / RECORD)
    except (OSError, UserError):
        hashes = {}
    for name, sha256 in (hashes or {RECORD: ""}).items():
        with suppress(OSError):
            if files.sha256_once(folder / name) == sha256:
                continue
        log(f"{folder / name}: damaged or missing; making it again")
        return False
    return True
