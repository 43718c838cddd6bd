"""The errors that users see, and the wording of their messages: *place: fact; way out*."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol, TypeVar

N = TypeVar("N", bound="Named")
T = TypeVar("T")


class UserError(Exception):
    """Something the user can fix; a command exits with 2.

    `problems`: one line per problem, each *place: fact; way out*. `details` are added to the JSON object of `--json`.
    """

    def __init__(self, *problems: str, details: dict[str, Any] | None = None) -> None:
        self.problems = problems
        self.details = details or {}
        super().__init__("\n".join(problems))


class CheckFailed(Exception):
    """A check ran and failed: parity, a recipe's requirement, a file's hash; a command exits with 1.

    `details`, the measured values, are added to the JSON object of `--json`.
    """

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        self.details = details or {}
        super().__init__(message)


class Named(Protocol):
    """Anything with a name, such as a recipe."""

    @property
    def name(self) -> str: ...


def map_collecting_errors(items: Sequence[N], function: Callable[[N], T]) -> list[T]:
    """Apply a function to every item and return the results.

    Raises one UserError with the problems of all items; where there are several items, each problem starts with its item's name.
    """
    results, problems = list[T](), list[str]()
    for item in items:
        try:
            results.append(function(item))
        except UserError as error:
            problems += [f"{item.name}: {problem}" if len(items) > 1 else problem for problem in error.problems]
    if problems:
        raise UserError(*problems)
    return results


class Problems:
    """Collects the problems of several checks, so that one UserError reports them all."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep the problems of a UserError raised in the block; the block ends there and the program goes on after it."""
        try:
            yield
        except UserError as error:
            self.found += [problem for problem in error.problems if problem not in self.found]

    def raise_any(self) -> None:
        """Raises UserError where any check had a problem."""
        if self.found:
            raise UserError(*self.found)


MAX_NAMES = 40  # listed in full, such as the keys of a section of a recipe; more do not help in one line


def unknown_name(what: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that is not known, with the closest match and the choices.

    For example: `no objective 'ckdd'; did you mean 'ckd'? (ckd, congen, cosine)`.
    """
    names = sorted(known)
    if not names:
        return f"no {what} {name!r}; there is none to choose from"
    near = difflib.get_close_matches(str(name), names, n=1)
    if len(names) == 1 and not near:
        return f"no {what} {name!r}; choose {names[0]}"
    hint = f"did you mean {near[0]!r}? " if near else "choose one: "
    return f"no {what} {name!r}; {hint}({closest_names(str(name), names)})"


def closest_names(name: str, known: Iterable[str]) -> str:
    """The known names separated by commas; of more than MAX_NAMES only the closest to `name`, and how many others there are."""
    names = sorted(known)
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    close = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    return f"{', '.join(close)} and {len(names) - len(close)} more" if close else f"{len(names)} names"


def first_line(error: BaseException | str) -> str:
    """The first line of a library's error, at most 300 characters, without control characters: names in files are a stranger's too."""
    line = (str(error).splitlines() or [type(error).__name__])[0][:300]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def require(module: str, command: str, extra: str) -> ModuleType:
    """Import an optional dependency. Raises UserError, which names the extra to install, where it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.split(".")[0] == module.split(".")[0]:
            raise UserError(
                f"edgedistill {command} needs {module.split('.')[0]}, which is not installed; pip install 'edgedistill[{extra}]'"
            ) from None
        raise
