"""The recipe reference as Markdown: every section with its keys, their defaults and meaning, from the
schema."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from edgedistill.recipe import Recipe, Section, schema, sections

HEAD = """# Every key of a recipe

A recipe is a YAML file of *sections*: keys that hold further keys. This is a whole recipe:

```yaml
name: mine
teacher: {model: "packaged:all-MiniLM-L6-v2"}
rows: {files: ["*.txt"]}
student: {kind: bert, weights: teacher, layers: [0, 5]}
stages:
  - {name: distil, objective: {kind: cosine}}
```

[README.md](README.md) says what each section is for, with examples. This page lists every key.
`edgedistill check` names each key of a recipe that is misspelt or does not fit.

* *type*: a link leads to the section that the key holds.
* *default*: the value of a key that you leave out. An empty cell means `null`: not set.
* Some sections have several kinds. Their key `kind` chooses one. You may leave it out of a stage of kind
  `distil` and of a student of kind `finished`.
* `--set stages.0.epochs=2` changes one value for a command. Items of a list count from 0.

`make docs` writes this page from the schema.
"""
COLUMNS, RULE = "| key | type | default | meaning |", "| --- | --- | --- | --- |"
TOP = "The recipe"
GROUPS = {  # the keys of long sections by what they are for; the last group takes all others
    "Rows": {
        "What is read": "files dataset revision config split tables queries name licences",
        "Which columns": "column unit columns languages",
        "Labels, scores and negatives": "label dev dev_rows test scores negatives",
        "Texts that are added": "paragraphs passages documentation_texts",
        "Rows that are left out": "",
    },
    "Stage": {
        "What is learned": "name objective rows tables match view",
        "How long, in which batches": "epochs steps minutes batch max_tokens skip_longer_than bucket",
        "Forgetting less of what a finished student knew": "initial_share rehearsal",
        "The optimizer": "",
    },
}


@cache
def _definitions() -> dict[str, Any]:
    """The JSON schema of each section, by its name."""
    whole = json.loads(schema())
    return {"Recipe": whole, **whole["$defs"]}


def by_key() -> dict[str, tuple[int, list[str]]]:
    """Each key that holds sections, after the key that it is part of: its depth, and the sections' names."""
    found = {TOP: (0, [Recipe.__name__])}
    _walk(Recipe, 1, found)
    return found


def _walk(section: type[Section], depth: int, found: dict[str, tuple[int, list[str]]]) -> None:
    for name, field in section.model_fields.items():
        listed = [each for _, names in found.values() for each in names]
        new = [each for each in sections(field.annotation) if each.__name__ not in listed]
        if new:
            found.setdefault(field.alias or name, (depth, []))[1].extend(each.__name__ for each in new)
        for each in new:
            _walk(each, depth + 1, found)


def markdown() -> str:
    """The page: its contents, then a table per section, with key, type, default and meaning; what several
    sections share stands once."""
    contents, lines, path, shown = [HEAD], list[str](), list[str](), dict[str, str]()
    for title, (depth, names) in by_key().items():
        path[depth:] = [title]
        kinds = ", ".join(f"`{_kind(name)}`" for name in names if _kind(name))
        about = re.split(r"[:;.] | \(|\.$", _about(names[0]))[0]
        contents.append(f"{'  ' * (depth - 1)}* {_link(title)}: {kinds or about}")
        lines += ["", f"## {title if title == TOP else f'`{title}`'}", ""]
        lines += [f"Part of {_link(path[-2])}.", ""] if depth > 1 else []
        lines += _tables(names, shown)
        shown |= {row: title for name in names for row in _rows(name).values()}
    return "\n".join(contents + lines).rstrip() + "\n"


def _tables(names: list[str], shown: dict[str, str]) -> list[str]:
    """The tables of a key's sections; `shown` are the rows of other keys' tables, with these keys."""
    lines, owners = list[str](), dict[str, list[str]]()
    for name in names:
        for row in _rows(name).values():
            owners.setdefault(row, []).append(f"`{_kind(name)}`")
    shared = {row: "all" if len(of) == len(names) else ", ".join(of) for row, of in owners.items() if of[1:]}
    if shared:
        of_kinds = [f"{row} {of} |" for row, of in shared.items()]
        lines += ["### Keys of several kinds", "", f"{COLUMNS} kinds |", f"{RULE} --- |", *of_kinds, ""]
    for name in names:
        rows = {key: row for key, row in _rows(name).items() if row not in shared}
        lines += [f"### {_heading(name)}", ""] if len(names) > 1 else []
        lines += [_about(name), ""]
        if rows and shown.keys() >= {*rows.values()}:
            keys = ", ".join(f"`{key}`" for key in rows)
            lines += [f"Its keys mean the same as in {_link(shown[next(iter(rows.values()))])}: {keys}.", ""]
            continue
        for group, keys in GROUPS.get(name, {"": ""}).items():
            of_group = [rows.pop(key) for key in keys.split() or [*rows]]
            lines += [f"**{group}**", ""] if group else []
            lines += [COLUMNS, RULE, *of_group, ""] if of_group else []
    return lines[:-1]


def _link(title: str) -> str:
    return f"[{title}](#{title.lower().replace(' ', '-')})"


def _about(name: str) -> str:
    return " ".join(_definitions()[name]["description"].split())


def _heading(name: str) -> str:
    """The kind that selects a section, or its name where nothing selects it."""
    return f"`kind: {_kind(name)}`" if _kind(name) else re.sub("(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def _rows(name: str) -> dict[str, str]:
    """The rows of a section's table, by key."""
    section = _definitions()[name]
    return {
        key: _row(key, value, key in section.get("required", []))
        for key, value in section["properties"].items()
        if key != "kind"
    }


def _kind(name: str) -> str:
    """The kind that selects a section; none where nothing selects it."""
    return str(_definitions()[name].get("properties", {}).get("kind", {}).get("const", ""))


def _row(key: str, value: dict[str, Any], required: bool) -> str:
    default = "*required*" if required else _default(value.get("default"))
    meaning = " ".join(value.get("description", "").split()).replace("|", "\\|")
    return f"| `{key}` | {_type(value)} | {default} | {meaning} |"


def _default(value: Any) -> str:
    """A default as one would write it in YAML; a section's defaults stand in its own table."""
    if isinstance(value, dict):
        value = value.get("kind") or ("{of: outputs}" if value.get("of") == "outputs" else "")
    shown = value if isinstance(value, str) else json.dumps(value)
    return f"`{shown}`" if shown not in ("", "[]", "null") else ""


def _type(value: dict[str, Any]) -> str:
    """A JSON schema type in short: int ≥ 1, list of str, one of a, b."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return next(_link(title) for title, (_, names) in by_key().items() if name in names)
    for choice in ("anyOf", "oneOf"):
        if choice in value:
            found = [_type(each) for each in value[choice] if each.get("type") != "null"]
            return " or ".join(dict.fromkeys(found))
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    kind = value.get("type")
    if kind == "array":
        items = value.get("prefixItems")
        return (
            f"[{', '.join(_type(each) for each in items)}]" if items else f"list of {_type(value['items'])}"
        )
    if kind == "object":
        return f"mapping to {_type(value['additionalProperties'])}"
    name = {"integer": "int", "number": "float", "string": "str", "boolean": "bool"}.get(str(kind), str(kind))
    bounds = [("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<")]
    limits = [f"{sign} {value[key]:,.9g}" for key, sign in bounds if key in value]
    return f"{name} {', '.join(limits)}".strip()
