"""YAML in, plain data out, bounded in size, depth and digits: text, numbers, true, false, null, lists and
mappings of text keys.

Scalars are YAML 1.2's: 1e-3 is a number, a date and `no` are text. There are no tags and no merging of
mappings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import yaml

from edgedistill.errors import UserError, shown
from edgedistill.files import Json

LARGEST_BYTES = 1 << 18
LARGEST_NUMBER = 1 << 63
LONGEST_TEXT = 10_000  # letters
LONGEST_NUMBER = 400  # digits
MOST_VALUES = 50_000
LONGEST_LIST = 10_000
DEEPEST = 50
MOST_PROBLEMS = 40  # listed of a file

# Of a plain scalar: its tag, how it is written, the letters it starts with, its value.
Scalar = tuple[str, str, str, Callable[[str], Any]]
SCALARS: tuple[Scalar, ...] = (
    ("null", r"~|null|Null|NULL|", "~nN", lambda text: None),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    (
        "int",
        r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+|0o[0-7]+)",
        "-+0123456789",
        lambda text: int(text.replace("_", ""), 0),
    ),
    (
        "float",
        r"[-+]?(\.[0-9]+|(0|[1-9][0-9_]*)(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
        lambda text: float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan")),
    ),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: Json = {}  # noqa: RUF012 (mypy knows it as an attribute of objects)
    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("str", "seq", "map")
    }

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Called for every mapping before it is made."""
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key that is not text", key.start_mark)
            if key.value == "<<" and key.style is None:
                fact = "the merge key <<, which YAML 1.2 does not have; write its keys out"
                raise yaml.constructor.ConstructorError(None, None, fact, key.start_mark)
            if key.value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {shown(key.value)} a second time", key.start_mark
                )
            keys.add(key.value)


class _Dumper(yaml.SafeDumper):
    """Puts in quotes what YAML 1.1 or 1.2 would not read as text."""


def _constructor(tag: str, pattern: re.Pattern[str], make: Callable[[str], Any]) -> Callable[[Any, Any], Any]:
    def construct(loader: Any, node: Any) -> Any:
        if len(node.value) > LONGEST_NUMBER or not pattern.match(node.value):
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown(node.value)} is no {tag}", node.start_mark
            )
        return make(node.value)

    return construct


for _tag, _written, _first, _make in SCALARS:
    _pattern = re.compile(f"(?:{_written})$")
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", _pattern, [*_first, ""] if _tag == "null" else list(_first)
    )
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _constructor(_tag, _pattern, _make))
    if _tag == "float":
        _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, list(_first))


def read(path: Path) -> Any:
    """The data of a YAML file, with or without a byte order mark. Raises UserError for what is not such a
    file."""
    if (size := path.stat().st_size) > LARGEST_BYTES:
        raise UserError(f"{path}: {size:,} bytes, at most {LARGEST_BYTES:,} are read; give a recipe")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not YAML: not UTF-8 (byte {error.start + 1}); save it as UTF-8") from None
    return parse(text, str(path))


def parse(text: str, place: str) -> Any:
    """The data of YAML text; `place` opens the line of a UserError."""
    try:
        data = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{place}: not YAML: {_problem(error)}; correct it there, or give a recipe") from None
    except RecursionError:
        raise UserError(f"{place}: not YAML: nested too deeply; write fewer levels") from None
    check_plain(data, place)
    return data


def dump(data: Any) -> str:
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


def _problem(error: yaml.YAMLError) -> str:
    """What and where, without the excerpt and the name of the string it was read from."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if problem and "'\\t'" in problem:
        problem = "a tab, where spaces must indent"
    return (
        f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
        if mark and problem
        else shown(" ".join(str(error).split()), 200)
    )


def check_plain(data: Any, place: str) -> None:
    """Raises UserError for data that no recipe can hold: what is no plain value, and what is too long, too
    deep or too large to print."""
    count = 0

    def problems(value: Any, where: str, depth: int) -> Iterator[str]:
        nonlocal count
        count += 1
        if count > MOST_VALUES or depth > DEEPEST:
            raise UserError(f"{place}: more than {MOST_VALUES:,} values, or {DEEPEST} levels; write less")
        if isinstance(value, list | tuple | dict) and len(value) > LONGEST_LIST:
            yield f"{where or 'the recipe'}: {len(value):,} items; give at most {LONGEST_LIST:,}"
        elif isinstance(value, dict):
            for key, item in value.items():
                if isinstance(key, str):
                    yield from problems(key, where, depth + 1)
                    yield from problems(
                        item,
                        f"{where}.{shown(key, quoted=False)}" if where else shown(key, quoted=False),
                        depth + 1,
                    )
                else:
                    yield f"{where or 'the recipe'}: a key that is not text ({shown(key)}); put it in quotes"
        elif isinstance(value, list | tuple):
            for at, item in enumerate(value):
                yield from problems(item, f"{where}[{at}]", depth + 1)
        elif fact := _no_plain_value(value):
            yield f"{where}: {fact}"

    listed = []
    for problem in problems(data, "", 0):
        listed.append(f"{place}: {problem}")
        if len(listed) == MOST_PROBLEMS:
            break
    if listed:
        raise UserError(*listed)


def _no_plain_value(value: Any) -> str | None:
    """*fact; way out* of a value that is neither list nor mapping."""
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            return f"{len(value):,} letters; write at most {LONGEST_TEXT:,}"
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            return f"{shown(value)} holds NUL, or half a surrogate pair, which is not text; correct it"
        return None
    if isinstance(value, int) and abs(value) >= LARGEST_NUMBER:
        return "a whole number beyond 2⁶³; write a smaller one"
    return (
        None
        if value is None or isinstance(value, bool | int | float)
        else f"{type(value).__name__} is no value of a recipe; write text"
    )
