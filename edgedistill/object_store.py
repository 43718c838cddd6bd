"""Files and folders of an object store (s3://, gs://, hf://), by fsspec: texts are read in chunks,
folders copied here to be read, and uploaded once they are whole.

A folder of a store has a place here, see `place_of`, where it is written and read like any other. One file of
it is the mark, which is uploaded last: a folder without its mark is not taken to be there. What the store's
library tries again in vain is a UserError.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedistill import files
from edgedistill.errors import FULL_DISK, UserError, first_line, installing, own_cache, require, unknown_name

PLACES = ".object-stores"  # in the cache: protocol/bucket/path of what is there
EXTRA = "remote"
CHUNK = 16 << 20  # bytes of a file that are fetched at a time
# Not all that fsspec knows: an address may come with a stranger's recipe. memory is that of this process.
PROTOCOLS = ("gs", "hf", "memory", "s3")


if TYPE_CHECKING:
    _Path = Path
else:
    _Path = type(Path())  # before 3.12, Path itself has no subclasses


class StoredFile(_Path):
    """A file in a store: its name is its address. `version` (address, bytes, checksum) is another one where
    the content is another."""

    version: tuple[str, int, str]

    def __str__(self) -> str:
        return super().__str__().replace(os.sep, "/").replace(":/", "://", 1)


def is_address(name: str | Path) -> bool:
    """Whether a name is an address in a store, such as s3://bucket/texts/*.txt, and no path of a file."""
    return "://" in str(name)


def place_of(name: str | Path) -> Path:
    """Where what a name stands for is written and read: a path as it is, an address in the cache. Raises
    UserError for an address that leaves its folder."""
    if not is_address(name):
        return Path(name)
    protocol, _, path = str(name).partition("://")
    parts = path.rstrip("/").split("/")
    if {"..", ".", ""} & set(parts):
        raise UserError(f"{name}: not the address of a file or folder; write s3://bucket/path")
    return Path(own_cache(), PLACES, protocol, *parts)


def address_of(place: Path) -> str:
    """The address that `place_of` has given this place for; empty for all other paths."""
    return place.as_posix().partition(f"/{PLACES}/")[2].replace("/", "://", 1)


def listed(address: str) -> list[str]:
    """The addresses of the files that an address stands for, sorted: a file, the files of a pattern, or all
    below a folder."""
    with _reached(address) as (system, path):
        system.invalidate_cache()
        # not its glob(), which leaves out a folder that could not be listed
        addresses = _below(system, path)
        if not addresses and (pattern := re.search(r"[*?\[]", path)):
            addresses = _below(system, path[: pattern.start()].rpartition("/")[0])
            translate = require("fsspec.utils", address, EXTRA).glob_translate
            # what exists under a name is that file: brackets in it are no pattern
            fits = [re.compile(translate(name)) for name in (path, path.replace("[", "[[]"))]
            addresses = [name for name in addresses if any(pattern.match(name) for pattern in fits)]
        return [f"{address.partition('://')[0]}://{name.lstrip('/')}" for name in sorted(addresses)]


def _below(system: Any, path: str) -> list[str]:
    try:
        return list(system.find(path))
    except FileNotFoundError:
        return []


def noted(name: str | Path) -> Path:
    """The file of a name; for one in a store with what that says of it now, which is what must be read."""
    if not is_address(name):
        return Path(name)
    stored = StoredFile(name)
    stored.version = _version(str(name))
    return stored


def _version(address: str, again: bool = False) -> tuple[str, int, str]:
    with _reached(address) as (system, path):
        if again:
            system.invalidate_cache()
        return address, system.info(path)["size"], str(system.checksum(path))


@contextmanager
def opened(file: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a file; those of one in a store are fetched in chunks. Raises UserError where they
    are fewer than was noted, or those of another file by now."""
    if not isinstance(file, StoredFile):
        with file.open("rb") as handle:
            yield handle
        return
    yield io.BufferedReader(_Chunks(file), CHUNK)
    if _version(str(file), again=True) != file.version:
        raise UserError(f"{file}: changed while it was read; run the command again")


class _Chunks(io.RawIOBase):
    """The bytes of a file in a store, by requests for ranges of them."""

    def __init__(self, file: StoredFile) -> None:
        self.address, self.size, _ = file.version
        self.at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, buffer: Any) -> int:
        wanted = max(0, min(len(buffer), self.size - self.at))
        if wanted:
            with _reached(self.address) as (system, path):
                content = system.cat_file(path, start=self.at, end=self.at + wanted)
            if len(content) != wanted:
                raise UserError(
                    f"{self.address}: cut off: {len(content):,} of {wanted:,} bytes came from byte "
                    f"{self.at:,} on; check the network, and run it again"
                )
            buffer[:wanted] = content
            self.at += wanted
        return wanted


def names(folder: Path) -> set[str]:
    """The names of the files that a folder has in its store, `a/b.json` in folders below; none of a folder
    that is only here."""
    address = address_of(folder)
    addresses = listed(address) if address else []
    return {name.removeprefix(f"{address}/") for name in addresses if name != address}


def pull(name: str | Path, mark: str) -> Path:
    """Have a folder of a store here as it is there, if it has its mark there and not the same one here.
    Returns its place, or the path of a folder that is only here."""
    folder = place_of(name)
    address = address_of(folder)
    present = names(folder)
    if mark not in present:
        return folder
    with _reached(f"{address}/{mark}") as (system, path):
        there = system.cat_file(path)
    if not (folder / mark).exists() or (folder / mark).read_bytes() != there:
        with files.new_folder(folder) as temporary:
            for source in [f"{address}/{name}" for name in sorted(present)]:
                to = temporary / place_of(source).relative_to(folder)
                to.parent.mkdir(parents=True, exist_ok=True)
                with to.open("wb") as copy, opened(noted(source)) as file:
                    shutil.copyfileobj(file, copy, CHUNK)
    return folder


def push(folder: Path, mark: str) -> None:
    """Upload a folder of a place in a store, its mark last; an earlier one there loses its mark first."""
    if not address_of(folder):
        return
    if mark in names(folder):
        with _reached(address_of(folder / mark)) as (system, path):
            system.rm_file(path)
    places = filter(Path.is_file, folder.rglob("*"))
    for place in sorted(places, key=lambda place: (place == folder / mark, place)):
        with _reached(address_of(place)) as (system, path):
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            system.put_file(str(place), path)


@contextmanager
def _reached(address: str) -> Iterator[tuple[Any, str]]:
    """The fsspec file system of an address, and the path in it. What its libraries raise in the block, each
    in classes of its own, becomes a UserError."""
    protocol = address.partition("://")[0]
    if protocol not in PROTOCOLS:
        raise UserError(f"{address}: {unknown_name('object store', protocol, PROTOCOLS)}")
    try:
        yield require("fsspec.core", address, EXTRA).url_to_fs(address)
    except UserError:
        raise
    except Exception as error:
        fact = f"{type(error).__name__}: {first_line(error)}"
        way_out = "check the network, and run it again"
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            raise  # of this machine, which the writer of the file reports
        if isinstance(error, FileNotFoundError):
            fact = "no such file or folder"
            way_out = "correct the address"
        elif isinstance(error, ImportError):
            way_out = installing(EXTRA)
        elif isinstance(error, PermissionError) or "credential" in fact.lower():
            fact = f"refused ({fact})"
            way_out = "set the store's credentials"
        raise UserError(f"{address}: {fact}; {way_out}") from error
