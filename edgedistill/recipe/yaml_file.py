"""YAML in, plain data out, bounded in size, depth and digits: text, numbers, true, false, null, lists and
mappings of text keys.

Scalars are YAML 1.2's: 1e-3 is a number, a date and `no` are text. There are no tags, no aliases and no
merging of mappings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import yaml

from edgedistill.errors import UserError, shown
from edgedistill.files import Json

LARGEST_BYTES = 1 << 18
LONGEST_NUMBER = 400  # digits
TEXT = "tag:yaml.org,2002:str"

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

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _refusal("an alias; write out what it stands for", self.peek_event())
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Called for every mapping before it is made."""
        keys = set()
        for key, _ in node.value:
            if key.tag != TEXT:
                raise _refusal("a key that is not text; put it in quotes", key)
            if key.value in keys:
                raise _refusal(f"the key {shown(key.value)} a second time", key)
            keys.add(key.value)


def _refusal(fact: str, at: Any) -> yaml.MarkedYAMLError:
    """What is wrong with a node, or an event."""
    return yaml.constructor.ConstructorError(None, None, fact, at.start_mark)


class _Dumper(yaml.SafeDumper):
    """Puts in quotes what YAML 1.1 or 1.2 would not read as text."""


def _constructor(tag: str, pattern: re.Pattern[str], make: Callable[[str], Any]) -> Callable[[Any, Any], Any]:
    def construct(loader: Any, node: Any) -> Any:
        if len(node.value) > LONGEST_NUMBER or not pattern.match(node.value):
            raise _refusal(f"{shown(node.value)} is no {tag}", node)
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
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{place}: not YAML: {_problem(error)}; correct it there, or give a recipe") from None
    except RecursionError:
        raise UserError(f"{place}: not YAML: nested too deeply; write fewer levels") from None


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
