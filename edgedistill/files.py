"""Find a shipped file, hash, write a file or a folder all-or-nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgedistill.errors import UserError, nearest, unknown

PACKAGE = Path(__file__).resolve().parent
SHIPPED = {  # what: (folder, pattern); in a checkout they lie beside the package, in a wheel under shipped/
    "recipe": ("recipes", "**/*.yaml"),
    "target": ("export", "*/target.yaml"),
    "suite": ("bench/suites", "*/suite.yaml"),
    "bundle": ("bundles", "*/manifest.json"),  # under shipped/ in a checkout too
}


def shipped_folder(what: str) -> Path:
    """The folder of shipped recipes, targets, suites or bundles: in the wheel, or in the checkout."""
    folder = SHIPPED[what][0]
    inside = PACKAGE / "shipped" / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder


def shipped(what: str) -> dict[str, Path]:
    """All shipped files of one sort by name: a recipe's file stem, else the name of the folder it lies in."""
    folder, pattern = shipped_folder(what), SHIPPED[what][1]
    return {p.stem if what == "recipe" else p.parent.name: p for p in sorted(folder.glob(pattern))}


def find(what: str, name: str | Path) -> Path:
    """A path that exists wins, else the shipped file of that name."""
    path = Path(name)
    if path.is_file():
        return path
    known = shipped(what)
    if str(name) in known:
        return known[str(name)]
    if path.is_dir():
        raise UserError(f"{name}: is a folder; give the {what}'s own file")
    if path.suffix or len(path.parts) > 1:
        raise UserError(f"{name}: no such file; give a path, or the name of a shipped {what} ({nearest(str(name), known)})")
    raise UserError(unknown(what, str(name), known))


def cache_folder() -> Path:
    """Where corpora, tokens and teacher embeddings are kept: $EDGEDISTILL_CACHE, else ~/.cache/edgedistill."""
    return Path(os.environ.get("EDGEDISTILL_CACHE") or Path.home() / ".cache" / "edgedistill")


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_folder(folder: Path, suffixes: tuple[str, ...] = ()) -> str:
    """One hash over the names and bytes of a folder's files (those with one of the suffixes, when given)."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and (not suffixes or p.suffix in suffixes)):
        total.update(f"{path.relative_to(folder).as_posix()}\0{sha256_file(path)}\n".encode())
    return total.hexdigest()


def key(**parts: Any) -> str:
    """A cache key, or a manifest's digest: the hash of the parts, in canonical JSON; 24 hex digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a sibling first, flushed to disk, then renamed."""
    with new_file(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any, compact: bool = False) -> None:
    """Write JSON for people to read, or `compact`, for the long lists that only programs read."""
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    write_text(path, json.dumps(value, ensure_ascii=False, **layout) + "\n")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; it takes the name when the block ends well and vanishes otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        with _full_disk_is_the_users(path):
            yield temporary
            os.chmod(temporary, 0o644)
            _flush(temporary)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give an empty temporary folder beside `path`; it takes the name when the block ends well and vanishes otherwise.

    A folder that already has the name is replaced only then. Raises UserError when the disk is full.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    os.chmod(temporary, 0o755)
    try:
        with _full_disk_is_the_users(path):
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    os.chmod(file, 0o644)
                    _flush(file)
            _swap(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(new: Path, path: Path) -> None:
    if not path.exists():
        try:
            os.replace(new, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return  # else another process has written the same just now
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
    os.replace(path, old / "was")
    try:
        os.replace(new, path)
    except BaseException:
        os.replace(old / "was", path)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def reserve(path: Path) -> None:
    """Give a file of holes its blocks: writing to a memory map of one on a full disk ends the process with a bus error."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


FULL = {  # errno: what there is too little of
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "no space left in the quota",
    errno.EFBIG: "a file larger than is allowed there",
}
# Rust's errors and numpy's tofile say it in words alone.
_RUST = re.compile(r"\(os error (\d+)\)")
_NUMPY = re.compile(r"^\d+ requested and \d+ written$")


@contextmanager
def _full_disk_is_the_users(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if (fact := _full(error)) is None:
            raise
        raise UserError(f"{path} was not written: {fact}; free some, or choose another place") from error


def _full(error: Exception) -> str | None:
    """What there is too little of when an error, of whoever wrote, is a full disk's."""
    if rust := _RUST.search(str(error)):
        return FULL.get(int(rust[1]))
    if isinstance(error, OSError):
        return FULL[errno.ENOSPC] if _NUMPY.match(str(error)) else FULL.get(error.errno or 0)
    return None


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
