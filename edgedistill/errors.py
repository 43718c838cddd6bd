"""The errors that users see, and the wording of their messages: *place: fact; way out*."""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


class UserError(Exception):
    """Something that you can fix: a wrong argument, a missing bundle, a full disk. A command exits with 2.

        >>> try:
        ...     encoder.encode(["A cat sleeps.", 3])
        ... except edgedistill.UserError as error:
        ...     print(error)
        texts[1]: int, not a string; give strings

    problems: a tuple of lines *place: fact; way out*, one for each problem. Invisible characters are
        escaped, since a quoted text may come from a stranger's file.
    details: a dict, which commands add to the object of `--json`.
    """

    def __init__(self, *problems: str, details: dict[str, Any] | None = None) -> None:
        self.problems = tuple(map(escaped, problems))
        self.details = details or {}
        super().__init__("\n".join(self.problems))


class CheckFailed(Exception):
    """A check ran and failed: a file's hash, an embedding, a recipe's requirement. A command exits with 1.

    details: a dict of measured values, which commands add to the object of `--json`.
    """

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        self.details = details or {}
        super().__init__(message)


def raise_failed(problems: list[str], **details: Any) -> None:
    """Raise CheckFailed with all problems, a line each, where there are any."""
    if problems:
        raise CheckFailed("\n".join(problems), {"problems": problems, **details})


class DiskFull(UserError):
    """A file or folder could not be written for want of space."""


DEBUG = "EDGEDISTILL_DEBUG"  # an environment variable: the command line prints the traceback of every error
SPACE = "free some space, or choose another place"
FULL_DISK = {  # errno: what has run out
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "no space left in the quota",
    errno.EFBIG: "a file larger than is allowed there",
}
# What the user can do about an errno. Other numbers, such as EINVAL, are our bugs.
_ADVICE = {
    "ENOSPC EDQUOT EFBIG": SPACE,
    "EACCES EPERM": "change its permissions, or choose another place",
    "EROFS": "choose another place",
    "ENOENT ENOTDIR EISDIR EEXIST ENOTEMPTY ELOOP": "check the path",
    "ENAMETOOLONG EILSEQ": "choose another name",
    "EMFILE ENFILE": "raise the limit (ulimit -n)",
    "EBUSY ETXTBSY": "end the program that uses it",
    "EMLINK EXDEV EOPNOTSUPP": "choose a place on another file system",
    "ECONNREFUSED ECONNRESET ENETUNREACH EHOSTUNREACH ETIMEDOUT": "check the network",
    "EIO ESTALE ENODEV ENXIO": "check the device",
}
_WAYS_OUT = {getattr(errno, name): advice for names, advice in _ADVICE.items() for name in names.split()}
# Rust's errors and numpy's tofile carry the reason only in their message.
_RUST = re.compile(r"\(os error (\d+)\)")
_NUMPY = re.compile(r"^\d+ requested and \d+ written$")
# MemoryError is Python's and numpy's; torch, onnxruntime, oneDNN and the loader have errors of their own.
_MEMORY = re.compile(
    r"can(no|')t allocate memory|not enough memory|out of memory|failed to allocate|bad_alloc|bad allocation"
    r"|failed to map segment|can't start new thread|could not create a primitive$",
    re.IGNORECASE,
)


@contextmanager
def border(place: str | None = None) -> Iterator[None]:
    """Where errors leave edgedistill, the command line or a function of the library: what the user can fix
    becomes a UserError.

    Also a decorator. The error it was made from is its `__cause__`; what remains is a bug, and passes
    unchanged. The line starts with `place`, by default the file that the error names.
    """
    try:
        yield
    except Exception as error:
        if (of_user := user_error(error, place)) is None:
            raise
        raise of_user from error


def user_error(error: BaseException, place: str | None = None) -> UserError | None:
    """The UserError for an error of the operating system or for want of memory; None where it is neither, so
    probably a bug."""
    number = _system_error(error)
    if isinstance(error, BrokenPipeError | UserError | CheckFailed):
        return None
    if number is not None:
        kind = DiskFull if number in FULL_DISK else UserError
        fact = FULL_DISK.get(number) or os.strerror(number).lower()
        # filename2 is where something was to be moved or linked
        place = place or getattr(error, "filename2", None) or getattr(error, "filename", None)
        if place:
            of_cache = " (EDGEDISTILL_CACHE names one)" * str(place).startswith(str(own_cache()))
            return kind(f"{place}: {fact}; {_WAYS_OUT[number]}{of_cache}")
        return kind(f"{first_line(error)}; {_WAYS_OUT[number]} ({DEBUG}=1 shows where)")
    if wants_memory(error):
        size = f" ({first_line(error)})" if str(error) else ""
        fact = f"{place}: not enough memory" if place else "not enough memory"
        return UserError(f"{fact}{size}; free some, take a smaller batch, or a machine with more")
    if isinstance(error, UnicodeEncodeError) and "\ud800" <= error.object[error.start] <= "\udfff":
        letter = error.object[error.start]
        near = error.object[max(0, error.start - 20) : error.end + 20]
        return UserError(f"{near!a}: holds half a surrogate pair ({letter!a}), which is not text; correct it")
    if isinstance(error, OSError) and error.errno is None and not isinstance(error, io.UnsupportedOperation):
        return UserError(
            f"{first_line(error)}; correct what it names ({DEBUG}=1 shows where)"
        )  # a library's: hub, model, archive
    return None


def own_cache() -> Path:
    """The cache of this machine: $EDGEDISTILL_CACHE, where that is no address in an object store, otherwise
    ~/.cache/edgedistill."""
    cache_place = os.environ.get("EDGEDISTILL_CACHE") or "://"
    return Path(os.path.expanduser("~/.cache/edgedistill") if "://" in cache_place else cache_place)


def wants_memory(error: BaseException) -> bool:
    """Whether memory has run out, in the words of Python or of a library."""
    return isinstance(error, MemoryError) or _MEMORY.search(str(error)) is not None


def _system_error(error: BaseException) -> int | None:
    """The errno behind an error of Python or of a library, where the user can do something about it."""
    rust = _RUST.search(str(error))
    number = None
    if rust:
        number = int(rust[1])
    elif isinstance(error, OSError):
        number = errno.ENOSPC if _NUMPY.match(str(error)) else error.errno
    return number if number in _WAYS_OUT else None


@contextmanager
def as_options(words: Mapping[str, str]) -> Iterator[None]:
    """Raise the UserErrors of a recipe, or of a function, with options of the command line in place of its
    keys, which are regular expressions, or parameters."""
    try:
        yield
    except UserError as error:
        problems = str(error)
        for key, option in words.items():
            problems = re.sub(key, option, problems, flags=re.MULTILINE)
        raise UserError(*problems.split("\n"), details=error.details) from error


class Problems:
    """Collects the problems of several checks, so that one UserError reports them all."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def collect(self, place: str = "") -> Iterator[None]:
        """Keep the problems of a UserError raised in the block; the block ends there and the program goes on
        after it. Each begins with `place`."""
        try:
            yield
        except UserError as error:
            named = [place + problem for problem in error.problems]
            self.found += [problem for problem in named if problem not in self.found]

    def raise_any(self) -> None:
        """Raises UserError where any check had a problem."""
        if self.found:
            raise UserError(*self.found)


MEANT = {"gpu": "cuda"}  # what others call it: ours
MAX_NAMES = 30  # listed in full, such as the keys of a section of a recipe; of more only the closest
FEW_NAMES = 5


def unknown_name(what: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that is not known, with the closest match and the choices.

    For example: `no objective 'ckdd'; did you mean 'ckd'? (ckd, congen, cosine)`.
    """
    names = sorted(known)
    written = shown(name)
    if not names:
        return f"no {what} {written}; there is none to choose from"
    near = difflib.get_close_matches(MEANT.get(str(name), str(name)), names, n=FEW_NAMES)
    if len(names) == 1 and not near:
        return f"no {what} {written}; choose {names[0]}"
    few = names if len(names) <= MAX_NAMES else near or names[:FEW_NAMES]
    more = f" and {len(names) - len(few)} more" * (len(few) < len(names))
    hint = f"did you mean {near[0]!r}? " if near else "choose one: "
    return f"no {what} {written}; {hint}({', '.join(few)}{more})"


def shown(value: object, most: int = 100, quoted: bool = True) -> str:
    """A value as a message shows it: quoted where it is text, cut where it is longer than a line can be."""
    text = repr(value) if quoted else str(value)
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} letters)"


def escaped(text: str) -> str:
    """The text with its invisible characters escaped, among them those that a terminal obeys."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def quote(text: str) -> str:
    """A text in double quotes, shortened to fit a line, with invisible characters escaped."""
    return f'"{escaped(text[:40])}{"…" if len(text) > 40 else ""}"'


def counted(number: int, noun: str) -> str:
    """1 text, 2 texts"""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_line(error: BaseException | str) -> str:
    """The first line of a library's error, at most 300 characters, without control characters: names in files
    are a stranger's too."""
    return escaped((str(error).splitlines() or [type(error).__name__])[0][:300])


def installing(extra: str) -> str:
    """The way out where an optional dependency is missing: edgedistill itself is on no package index."""
    return f'in your clone of edgedistill: pip install ".[{extra}]"'


def require(module: str, what: str, extra: str = "") -> ModuleType:
    """Import an optional dependency. Raises UserError, which names `what` needs it and the extra to install,
    or the package alone, where it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.split(".")[0] == module.split(".")[0]:
            package = missing.name.split(".")[0]
            way_out = installing(extra) if extra else f"pip install {package}"
            raise UserError(f"{what} needs {package}, which is not installed; {way_out}") from None
        raise
    except ImportError as broken:
        raise UserError(f"{what} needs {module}: {first_line(broken)}; install it again") from broken
