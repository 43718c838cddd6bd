"""Find files by paths, globs and folders. What exists under a name is that file: brackets in it are no
pattern."""

from __future__ import annotations

import difflib
import os
import stat
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from edgedistill import files, object_store
from edgedistill.data import input_file
from edgedistill.errors import UserError
from edgedistill.reading import Reading, endings

MADE = {  # what a folder below another is, whose texts are not its user's: names that are in it
    "a virtual environment": {"pyvenv.cfg"},
    "a bundle": {"manifest.json", "parity.json"},
    "a pair of encoders": {"manifest.json", "document"},
    "a run": {"recipe.yaml", "tokenizer"},
    "a fit": {"state.json", "trials"},
    "a suite": {"suite.yaml"},
    "an exported student": {"student.bin"},
    "an exported page": {"students.json"},
}


def matching_files(
    patterns: list[str], data: Path | None, place: str, reading: Reading | None = None
) -> list[Path]:
    """The files that match any of the globs, in order, each once. Relative globs start from the folder
    `data`; `**` stands for a folder and all below it, linked ones too, but for packages. An address in an
    object store, such as s3://bucket/texts/*.txt, stands for the files there. A folder is all texts and
    tables in it. What hides behind a dot is found only where a pattern has that dot. `reading` is told of the
    other files in folders, of pipes and devices, and of folders that cannot be opened.

    The option `place` names the globs, for errors. Raises UserError: no file matches, no data folder.
    """
    matching = dict[Path, None]()
    reading = reading or Reading()
    for pattern in patterns:
        path = Path(pattern)
        if object_store.is_address(pattern):
            paths = [object_store.noted(address) for address in object_store.listed(pattern)]
        elif os.path.isdir(path := in_data(pattern, data, place)):
            paths = texts_below(path, reading)
        else:
            paths = expanded(path, reading)
        if not paths:
            raise UserError(f"{place}: {pattern!r}: {missing(path, reading)}; give another path")
        matching |= dict.fromkeys(paths)
    return list(matching)


def missing(path: Path, reading: Reading) -> str:
    """What to say of a path where there is nothing: of a folder with what it has instead, otherwise with the
    name beside it that may be meant."""
    if os.path.isdir(path):
        fact = f"no texts in this folder ({', '.join(input_file.KINDS)})"
        others = endings([reading.other_types[str(path)]])
        return f"{fact}, but {others}" if others else fact
    try:
        known = os.listdir(path.parent)
    except PermissionError:
        return "permission denied"
    except OSError:
        known = []
    if path.parent == Path():  # search takes a student's name too
        known += files.shipped("bundle")
    near = difflib.get_close_matches(path.name, known, n=1)
    return f"no such file or folder{f'; did you mean {str(path.parent / near[0])!r}?' if near else ''}"


def named(patterns: list[str], data: Path | None) -> set[str]:
    """The paths that are named themselves, as no file is that a glob or a folder stands for."""
    return {
        pattern if object_store.is_address(pattern) else str((data or Path()) / pattern)
        for pattern in patterns
    }


def expanded(path: Path, reading: Reading | None = None) -> list[Path]:
    """The files that a path or a glob stands for, whatever their type, sorted. Raises UserError for a pipe
    that is named: the texts of a file are read more than once."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise UserError(f"{path}: a pipe, which can be read only once; write what it gives to a file")
    parts = path.parts[bool(path.anchor) :]
    return sorted(set(_files(Path(path.anchor), parts, reading or Reading())))


def in_data(name: str, data: Path | None, place: str) -> Path:
    """A path or glob, where a relative one starts from the folder `data`. Raises UserError where there is
    none."""
    if data is None and is_relative(name):
        raise UserError(
            f"{place}: {name!r} is relative, and there is no data folder; give --data DIR or set "
            "EDGEDISTILL_DATA"
        )
    return (data or Path()) / name


def is_relative(pattern: str) -> bool:
    """Whether a path or glob starts from the data folder."""
    return not (object_store.is_address(pattern) or Path(pattern).is_absolute())


def given(patterns: list[str], data: Path | None, place: str) -> tuple[list[str], list[Path]]:
    """The globs of a command line, and the files that match them. Without a data folder they start from the
    current one; those below it become relative, so that a recipe has them for any machine. Raises as
    `matching_files`."""
    folder = data or Path()
    patterns = [_below(pattern, folder.absolute()) for pattern in patterns]
    return patterns, matching_files(patterns, folder, place)


def _below(pattern: str, folder: Path) -> str:
    inside = not object_store.is_address(pattern) and Path(pattern).is_relative_to(folder)
    return Path(pattern).relative_to(folder).as_posix() if inside else pattern


def texts_below(folder: Path, reading: Reading) -> list[Path]:
    """What a folder stands for: its files of texts and tables, and those of the folders in it. Documents that
    are to be converted first are among them, so that their reader names them. `reading` is told how many
    others there are, by their endings."""
    texts = list[Path]()
    others = reading.other_types[str(folder)] = Counter()
    for path in _files(folder, ("**",), reading):
        name = path.name.lower().removesuffix(".gz")
        if name.endswith(input_file.NAMED):
            texts.append(path)
        else:
            others[os.path.splitext(name)[1] or "without ending"] += 1
    return sorted(texts)


def _files(folder: Path, parts: tuple[str, ...], reading: Reading) -> Iterator[Path]:
    """The files that a pattern stands for, and what is no longer there or closed, as its reader says."""
    for path in _expanded(folder, parts, reading):
        try:
            mode = path.stat().st_mode
        except OSError:
            mode = stat.S_IFREG
        if stat.S_ISREG(mode):
            yield path
        elif not stat.S_ISDIR(mode):
            reading.skip(str(path), UserError("a pipe or a device"))


def _expanded(folder: Path, parts: tuple[str, ...], reading: Reading) -> Iterator[Path]:
    """The paths that the rest of a pattern stands for below a folder. `reading` is told of folders that
    cannot be opened."""
    if not parts:
        yield folder
    elif parts[0] == "**":
        for below in _folders(folder, reading):
            yield from _expanded(below, parts[1:] or ("*",), reading)
    elif os.path.lexists(folder / parts[0]):
        yield from _expanded(folder / parts[0], parts[1:], reading)
    elif files.is_glob(parts[0]) and os.path.isdir(folder):
        literal_brackets = parts[0].replace("[", "[[]")
        hidden = parts[0].startswith(".")
        for name in _names(folder, reading):
            matches = fnmatchcase(name, parts[0]) or fnmatchcase(name, literal_brackets)
            if matches and (hidden or not name.startswith(".")):
                yield from _expanded(folder / name, parts[1:], reading)


def _names(folder: Path, reading: Reading) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        reading.closed(error)
        return []


def _folders(top: Path, reading: Reading) -> list[Path]:
    """A folder and every folder below it, each once; what is reached only by a link comes last. No folder
    that hides behind a dot, none of installed packages, and none of MADE below the first."""
    folders = list[Path]()
    links = [top]
    seen = set[str]()
    while links:
        for folder, names, inside in os.walk(links.pop(0), onerror=reading.closed):
            real = os.path.realpath(folder)
            made = [what for what, marks in MADE.items() if marks <= {*names, *inside} and folder != str(top)]
            if made:
                reading.skip(folder, UserError(made[0]))
            if made or real in seen:
                names.clear()
                continue
            seen.add(real)
            folders.append(Path(folder))
            names[:] = sorted(
                name
                for name in names
                if not name.startswith(".") and name not in ("node_modules", "site-packages", "__pycache__")
            )
            links += [Path(folder, name) for name in names if os.path.islink(os.path.join(folder, name))]
    return folders
