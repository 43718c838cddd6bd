"""The recipe reference as Markdown: every section with its keys, their defaults and meaning, from the
schema."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from edgedistill.recipe import Recipe, schema, sections

HEAD = """# Every key of a recipe

`make docs` writes this page from the schema. [README.md](README.md) has examples. `null` means not set. Where
a section has several kinds, you may leave out `kind` for the first: `distil` for a stage.
"""
COLUMNS, RULE = "| key | type | default | meaning |", "| --- | --- | --- | --- |"


@cache
def _definitions() -> dict[str, Any]:
    """The JSON schema of each section, by its name."""
    whole = json.loads(schema())
    return {"Recipe": whole, **whole["$defs"]}


def by_key() -> dict[str, list[str]]:
    """The sections' names by the key that holds them, in the order in which a reader meets them."""
    found, todo = {"The recipe": [Recipe.__name__]}, [Recipe]
    listed = {Recipe.__name__}
    for section in todo:  # grows while it is walked
        for name, field in section.model_fields.items():
            held = sections(field.annotation)
            todo += [each for each in held if each not in todo]
            new = [each.__name__ for each in held if each.__name__ not in listed]
            listed.update(new)
            if new:
                found.setdefault(f"`{field.alias or name}`", []).extend(new)
    return found


def markdown() -> str:
    """The page: a table per section, with key, type, default and meaning; what several sections of a title
    share stands once, before them."""
    definitions = _definitions()
    lines = [HEAD]
    for title, names in by_key().items():
        lines += [f"## {title}", ""]
        rows = {name: _rows(definitions[name]) for name in names}
        owners = dict[str, list[str]]()
        for name in names:
            for row in rows[name]:
                owners.setdefault(row, []).append(
                    _heading(name, definitions[name]).strip(".`").split(": ")[-1]
                )
        shared = {row: of for row, of in owners.items() if len(of) > 1}
        if shared:
            of_kinds = [
                f"{row} {'all' if len(of) == len(names) else ', '.join(of)} |" for row, of in shared.items()
            ]
            lines += ["Keys of several kinds:", "", f"{COLUMNS} kinds |", f"{RULE} --- |", *of_kinds, ""]
        for name in names:
            section = definitions[name]
            lines += [f"**{_heading(name, section)}** {' '.join(section['description'].split())}", ""]
            if own := [row for row in rows[name] if row not in shared]:
                lines += [COLUMNS, RULE, *own, ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(section: dict[str, Any]) -> list[str]:
    keys = {key: value for key, value in section.get("properties", {}).items() if key != "kind"}
    return [_row(key, value, key in section.get("required", [])) for key, value in keys.items()]


def _heading(name: str, section: dict[str, Any]) -> str:
    """The kind that selects a section, or its name where nothing selects it."""
    if kind := section.get("properties", {}).get("kind", {}).get("const"):
        return f"`kind: {kind}`."
    return f"{re.sub('(?<=[a-z])(?=[A-Z])', ' ', name).capitalize()}."


def _row(key: str, value: dict[str, Any], required: bool) -> str:
    default = "required" if required else f"`{_plain(value.get('default'))}`"
    meaning = " ".join(value.get("description", "").split()).replace("|", "\\|")
    return f"| `{key}` | {_type(value).replace('|', chr(92) + '|')} | {default} | {meaning} |"


def _plain(value: Any) -> str:
    """A default as one would write it in YAML; a nested section's defaults stand in its own table."""
    if isinstance(value, dict) and value:
        shown = {
            k: v
            for k, v in value.items()
            if k in ("from", "of", "kind") and v not in ("teacher", "token_embeddings")
        }
        return json.dumps(shown) if shown else "{}"
    return json.dumps(value, ensure_ascii=False)


def _type(value: dict[str, Any]) -> str:
    """A JSON schema type in short: int ≥ 1, list of str, one of a, b."""
    if "$ref" in value:
        return _named(value["$ref"])
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
        inner = value.get("additionalProperties")
        return f"mapping to {_type(inner)}" if isinstance(inner, dict) else "mapping"
    name = {"integer": "int", "number": "float", "string": "str", "boolean": "bool"}.get(str(kind), str(kind))
    bounds = [("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<")]
    limits = [f"{sign} {value[key]:g}" for key, sign in bounds if key in value]
    return f"{name} {', '.join(limits)}".strip()


def _named(reference: str) -> str:
    name = reference.rsplit("/", 1)[1]
    kind = _definitions()[name].get("properties", {}).get("kind", {}).get("const")
    return f"`{kind}`" if kind else name
