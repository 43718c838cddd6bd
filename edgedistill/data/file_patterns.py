"""Find files by paths and globs. What exists under a name is that file: brackets in it are no pattern."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from edgedistill.data import input_file
from edgedistill.errors import UserError


def matching_files(patterns: list[str], data: Path | None, place: str) -> list[Path]:
    """The files that match any of the globs, in order, each once. `data`: the folder that relative globs
    start from.

    `**` stands for a folder and all below it, linked ones too. `place`: the option that names the globs, for
        errors. Raises UserError:
    no file matches, unknown file type, no data folder.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        absolute = Path(pattern).is_absolute()
        if not absolute and data is None:
            raise UserError(
                f"{place}: {pattern!r} is relative, and there is no data folder; give --data DIR or set "
                "EDGEDISTILL_DATA"
            )
        root = Path(pattern).anchor if absolute else data or ""
        parts = Path(pattern).relative_to(root).parts if absolute else Path(pattern).parts
        paths = sorted(path for path in set(_expanded(Path(root), parts)) if os.path.isfile(path))
        if not paths:
            if os.path.isdir(Path(root, *parts)):
                raise UserError(
                    f"{place}: {pattern!r} is a folder; give a pattern of files, such as "
                    f"{str(Path(pattern) / '**/*.txt')!r}"
                )
            where, also = ("", "") if absolute else (f" in {root}", " and --data")
            raise UserError(f"{place}: no file matches {pattern!r}{where}; check the pattern{also}")
        for path in paths:
            input_file.kind(path)
        found |= dict.fromkeys(paths)
    return list(found)


def from_here(patterns: list[str]) -> list[str]:
    """Globs that start from the current folder, absolute: a recipe's relative ones start from --data."""
    return [os.path.abspath(each) for each in patterns]


def _expanded(folder: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    """The paths that the rest of a pattern stands for below a folder."""
    if not parts:
        yield folder
    elif parts[0] == "**":
        for below in _folders(folder):
            yield from _expanded(below, parts[1:] or ("*",))
    elif os.path.lexists(folder / parts[0]):
        yield from _expanded(folder / parts[0], parts[1:])
    elif any(sign in parts[0] for sign in "*?[") and os.path.isdir(folder):
        literal_brackets = parts[0].replace("[", "[[]")
        for name in os.listdir(folder):
            if fnmatchcase(name, parts[0]) or fnmatchcase(name, literal_brackets):
                yield from _expanded(folder / name, parts[1:])


def _folders(top: Path) -> list[Path]:
    """A folder and every folder below it, each once; what is reached only by a link comes last."""
    found, links, seen = list[Path](), [top], set[str]()
    while links:
        waiting = [links.pop(0)]
        while waiting:
            folder = waiting.pop()
            if os.path.isdir(folder) and (real := os.path.realpath(folder)) not in seen:
                seen.add(real)
                found.append(folder)
                for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                    if entry.is_dir():
                        (links if entry.is_symlink() else waiting).append(Path(entry.path))
    return found
