"""How we speak when it is the user's to fix: *place: fact; way out*."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, Protocol, TypeVar

N = TypeVar("N", bound="Named")
T = TypeVar("T")


class UserError(Exception):
    """Something the user can fix (exit 2): one line a problem, each *place: fact; way out*. `numbers` goes into the command's JSON."""

    def __init__(self, *problems: str, numbers: dict[str, Any] | None = None) -> None:
        self.problems = problems
        self.numbers = numbers or {}
        super().__init__("\n".join(problems))


class AnswerIsNo(Exception):
    """The command worked and the answer is no (exit 1): parity failed, a promise broken, a byte changed.

    `numbers` goes into the command's JSON.
    """

    def __init__(self, message: str, numbers: dict[str, Any] | None = None) -> None:
        self.numbers = numbers or {}
        super().__init__(message)


class Named(Protocol):
    """What has a name, such as a recipe."""

    @property
    def name(self) -> str: ...


def of_each(items: Sequence[N], do: Callable[[N], T]) -> list[T]:
    """`do` it to each. Raises UserError with the problems of all; of several items each problem with the name of its own."""
    done, problems = list[T](), list[str]()
    for item in items:
        try:
            done.append(do(item))
        except UserError as error:
            problems += [f"{item.name}: {problem}" if len(items) > 1 else problem for problem in error.problems]
    if problems:
        raise UserError(*problems)
    return done


MANY = 40  # names, such as the keys of a part of a recipe; more are no help in one line


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Log that a name is not known, with the nearest one and all of them: `no objective 'ckdd'; did you mean 'ckd'? (…)`."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else "choose one: "
    return f"no {what} {name!r}; {hint}({nearest(str(name), names)})"


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names in a row; of very many those that are most like this one, and how many there are."""
    names = sorted(known)
    if len(names) <= MANY:
        return ", ".join(names)
    like = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    return f"{', '.join(like)} and {len(names) - len(like)} more" if like else f"{len(names)} names"


def require(module: str, command: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.split(".")[0] == module.split(".")[0]:
            raise UserError(
                f"edgedistill {command} needs {module.split('.')[0]}, which is not installed; pip install 'edgedistill[{extra}]'"
            ) from None
        raise
