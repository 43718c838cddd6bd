"""Find shipped files, hash files and folders, write files and folders atomically."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from edgedistill.errors import (
    DiskFull,
    UserError,
    border,
    unknown_name,
    user_error,
)

Json = dict[str, Any]  # an object of a JSON file, or one that becomes it
PACKAGE = Path(__file__).resolve().parent
# of Python's documentation, made by bench/general_corpus.py
GENERAL_CORPUS = PACKAGE / "shipped/general_corpus/sentences.txt.gz"
# kind: (folder, pattern); in a checkout the folders are next to the package, in a wheel under shipped/
SHIPPED = {
    "recipe": ("recipes", "**/*.yaml"),
    "runner": ("export", "*/README.md"),
    "suite": ("bench/suites", "*/suite.yaml"),
    "bundle": ("bundles", "*/manifest.json"),  # under shipped/ in a checkout too
}


def shipped_folder(what: str) -> Path:
    """The folder of the shipped recipes, runners, suites or bundles, in an installed wheel or in a
    checkout."""
    folder = SHIPPED[what][0]
    inside = PACKAGE / "shipped" / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder


def shipped(what: str) -> dict[str, Path]:
    """All shipped files of one kind by name: a recipe's file stem, otherwise the name of the file's
    folder."""
    folder = shipped_folder(what)
    pattern = SHIPPED[what][1]
    return {p.stem if what == "recipe" else p.parent.name: p for p in sorted(folder.glob(pattern))}


def find(what: str, name: str | Path) -> Path:
    """The file at a path if there is one, otherwise the shipped file of that name. Raises UserError where
    there is neither."""
    path = Path(name)
    if path.exists() and not path.is_dir():  # a pipe too, as of <(...)
        return path
    known = shipped(what)
    if str(name) in known:
        return known[str(name)]
    if path.is_dir():
        raise UserError(f"{name}: a folder; give the path of the {what} file")
    listed = "; begin with `starter`, `edgedistill recipes` lists all" if what == "recipe" else ""
    fact = unknown_name(what, str(name), known)
    if path.suffix or len(path.parts) > 1:
        fact = f"{name}: no such file, and {fact}"
    raise UserError(fact + listed)


def is_glob(name: str) -> bool:
    """Whether a name has a sign of a pattern."""
    return any(sign in name for sign in "*?[")


def portable(name: str) -> str:
    """The name of a file, a pattern or a model as what is made here records it, on whatever system: of an
    absolute path its last part, of an absolute pattern what follows its last plain folder."""
    for path in (PurePosixPath(name), PureWindowsPath(name)):
        if path.is_absolute():
            parts = path.parts[1:]
            patterns = [at for at, part in enumerate(parts) if is_glob(part)]
            return "/".join(parts[min([*patterns, len(parts) - 1]) :])
    return name


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_folder(folder: Path, suffixes: tuple[str, ...] = ()) -> str:
    """One sha256 over the names and bytes of a folder's files; `suffixes`: only of files with one of
    these."""
    total = hashlib.sha256()
    for path in sorted(
        p for p in folder.rglob("*") if p.is_file() and (not suffixes or p.suffix in suffixes)
    ):
        total.update(f"{path.relative_to(folder).as_posix()}\0{sha256_once(path)}\n".encode())
    return total.hexdigest()


def sha256_once(path: Path) -> str:
    """A file's sha256, computed once a process as long as its size, times and inode stay the same: a command
    opens caches and models of gigabytes several times."""
    state = path.stat()
    return _sha256(path.absolute(), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)


@lru_cache(maxsize=10_000)
def _sha256(path: Path, *state: int) -> str:
    return sha256_file(path)


def cache_key(**parts: Any) -> str:
    """The first 24 hex digits of the sha256 of the arguments as canonical JSON; names cache folders, and is a
    manifest's digest."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def leaves_folder(path: str) -> bool:
    """Whether a relative path would leave its folder, by the syntax of any system."""
    paths = (PurePosixPath(path), PureWindowsPath(path))
    return "\0" in path or any(flavour.anchor or ".." in flavour.parts for flavour in paths)


LARGEST_JSON_BYTES = 1 << 30
LFS_POINTER = "version https://git-lfs"  # how a file begins that stands for one which was not fetched


def read_json(path: Path, way_out: str = "get or write the file again", finite: bool = False) -> Any:
    """The value in a JSON file, with or without a byte order mark; `way_out` ends the line of an error.

    With `finite`, NaN and Infinity, which Python's writer puts out though JSON has none, are errors too.
    Raises UserError for what holds no JSON: an empty or huge file, other text, bytes that are no UTF-8,
    nesting and numbers without end.
    """
    if path.stat().st_size > LARGEST_JSON_BYTES:
        raise UserError(f"{path}: above {LARGEST_JSON_BYTES} bytes; {way_out}")
    try:
        return json.loads(
            path.read_bytes().decode("utf-8-sig"), parse_constant=_no_number if finite else float
        )
    except json.JSONDecodeError as error:
        fact = f"not JSON (line {error.lineno}: {error.msg})" if error.doc.strip() else "empty"
        if error.doc.startswith(LFS_POINTER):
            fact = "a pointer of Git LFS in place of the file"
    except (ValueError, RecursionError, OverflowError) as error:
        # of ValueErrors, only a number is neither JSON's nor UTF-8's
        facts = {
            RecursionError: "nested too deeply",
            UnicodeDecodeError: "not UTF-8",
            OverflowError: "NaN or Infinity",
        }
        fact = f"not JSON ({facts.get(type(error), 'a number of more than 4,300 digits')})"
    raise UserError(f"{path}: {fact}; {way_out}")


def _no_number(name: str) -> float:
    raise OverflowError(name)


def read_json_object(
    path: Path, way_out: str = "get or write the file again", finite: bool = False
) -> dict[str, Any]:
    """`read_json` of a file that holds an object. Raises UserError where it holds another value."""
    value = read_json(path, way_out, finite)
    if not isinstance(value, dict):
        raise UserError(f"{path}: not a JSON object; {way_out}")
    return value


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: to a temporary place beside it, flushed to disk, then renamed."""
    with new_file(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any, compact: bool = False) -> None:
    """Write indented JSON, or `compact` JSON for long lists that only programs read."""
    layout = {"separators": (",", ":")} if compact else {"indent": 2}
    write_text(path, json_text(value, **layout) + "\n")


def json_text(value: Any, **options: Any) -> str:
    """JSON that every parser reads: null in place of a number that is not finite, for which JSON has no
    name."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_free(
    path: Path, option: str = "--out", overwrite: bool | None = None, mark: str = "", what: str = "folder"
) -> None:
    """Raise UserError for an output that exists, unless it may be replaced; `option` names another.

    overwrite: None where the command has no such option. A folder without the file `mark` is not `what` the
    command writes, and is never replaced.
    """
    if not path.exists():
        return
    if mark and not (path / mark).exists():
        raise UserError(f"{path}: exists already and is not {what}; choose another {option}")
    if not overwrite:
        way_out = "delete it" if overwrite is None else "add --overwrite to replace it"
        raise UserError(f"{path}: exists already; {way_out}, or choose another {option}")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path for a file to be written. It is renamed to `path` when the block succeeds and deleted when
    it raises.

    Raises UserError when the disk is full.
    """
    with folder_beside(path) as folder:
        temporary = folder / path.name
        yield temporary
        with _written(path):
            _flush(temporary)
            os.replace(temporary, path)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder next to `path`. It is renamed to `path` when the block succeeds and
    deleted when it raises.

    An existing folder at `path` is replaced only on success. Raises UserError when the disk is full.
    """
    path = path.absolute()
    with folder_beside(path) as folder:
        yield folder
        with _written(path):
            for file in folder.rglob("*"):
                if file.is_file():
                    _flush(file)
            os.chmod(folder, 0o755)
            _swap(folder, path)


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Yield an empty folder next to `path`, of a hidden name, and delete it at the end, with the folders that
    were made for it and are still empty."""
    with border():
        missing = [parent for parent in path.absolute().parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
    with _written(path):
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        with full_disk_as_user_error(path):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # not empty: something was written
            for parent in missing:
                parent.rmdir()


def _swap(new: Path, path: Path) -> None:
    """Rename a folder to `path`, where there may be another one, perhaps just written by another process."""
    try:
        os.replace(new, path)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
    os.replace(path, old / "was")
    try:
        os.replace(new, path)
    except BaseException:
        os.replace(old / "was", path)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def full_disk_as_user_error(path: Path) -> Iterator[None]:
    """Raise DiskFull, which names `path`, for an error in the block that a full disk caused. Other errors
    pass."""
    try:
        yield
    except Exception as error:
        known_error = user_error(error, f"{path} was not written")
        if not isinstance(known_error, DiskFull):
            raise
        raise known_error from error


def _written(path: Path) -> AbstractContextManager[None]:
    """Name `path`, not the temporary file beside it, in the error of a system call that makes or renames
    that."""
    return border(f"{path} was not written")


def _flush(path: Path) -> None:
    """Make a file readable by all, and have its bytes on the disk before it is renamed."""
    os.chmod(path, 0o644)
    with path.open("r+b") as file:  # Windows flushes no file that is open for reading alone
        os.fsync(file.fileno())


LOCK = ".lock"


@contextmanager
def held(folder: Path, work: str) -> Iterator[None]:
    """Keep other processes from the same `work` in a folder, which is made where it is not there.

    SQLite's lock of a file ends with the process that holds it, however that one ends, on every system; the
    file is deleted with it. Raises UserError where another process holds the lock.
    """
    import sqlite3

    path = folder / LOCK
    with border():
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        before = path.stat()
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as lock:
        try:
            lock.executescript("PRAGMA journal_mode = OFF; BEGIN EXCLUSIVE")  # no file but this one
            is_free = os.path.samestat(before, path.stat())  # not one that its holder has deleted meanwhile
        except (sqlite3.OperationalError, FileNotFoundError):
            is_free = False
        if not is_free:
            raise UserError(f"{folder}: another process {work}; wait for that, or give another --out")
        try:
            yield
        finally:
            with suppress(OSError):  # the folder has gone, or the system keeps what is open
                path.unlink()


def difference(before: Any, now: Any, key: str = "") -> str | None:
    """The first key in which two trees of plain data differ, with both values; None where they agree. Keys
    are those of --set, such as stages.0.epochs."""
    if isinstance(before, list) and isinstance(now, list):
        before = dict(enumerate(before))
        now = dict(enumerate(now))
    if not isinstance(before, dict) or not isinstance(now, dict):
        return None if before == now else f"{key} was {before!r}, is now {now!r}"
    for name in {**before, **now}:
        if fact := difference(before.get(name), now.get(name), f"{key}.{name}".lstrip(".")):
            return fact
    return None
