"""A recipe file is read, checked and written; every problem of a file becomes one line of an error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from edgedistill import files
from edgedistill.errors import UserError, shown, unknown_name
from edgedistill.recipe import (
    aliases,
    corpus,
    finetuning,
    objectives,
    stages,
    students,
    targets,
    views,
    yaml_file,
)
from edgedistill.recipe.experiment import Recipe
from edgedistill.recipe.section import Section
from edgedistill.recipe.yaml_file import MOST_PROBLEMS

# Where a `kind` chooses a class: the key that holds the section, then the classes by kind.
KINDS: dict[str, dict[str, type[BaseModel]]] = {
    "student": {
        "bert": students.Bert,
        "bilstm": students.BiLSTM,
        "finished": students.Finished,
        "recurrent": students.Recurrent,
        "static": students.Static,
        "teacher": students.TeacherItself,
    },
    "objective": {
        "mse": objectives.Mse,
        "cosine": objectives.Cosine,
        "softcos": objectives.SoftCos,
        "gram": objectives.Gram,
        "ckd": objectives.Ckd,
        "congen": objectives.Congen,
        "seed": objectives.Seed,
        "dual_l2": objectives.DualL2,
        "skd": objectives.Skd,
        "simcse": objectives.Simcse,
        "sum": objectives.Sum,
        "matryoshka": objectives.Matryoshka,
        "each_side": objectives.EachSide,
        "mcl": objectives.Mcl,
        "mcl_bool": objectives.MclBool,
        "mcl_ce": objectives.MclCe,
    },
    "targets": {"one": targets.SingleTeacher, "split": targets.Split, "concat": targets.Concat},
    "reduce": {
        "none": targets.Unreduced,
        "pca": targets.Pca,
        "gaussian": targets.Gaussian,
        "ridge": targets.Ridge,
        "cca": targets.Cca,
    },
    "reference_student": {"bert": students.Bert, "bilstm": students.BiLSTM},
    "corpus": {
        "files": corpus.Files,
        "hub": corpus.Hub,
        "documentation": corpus.Documentation,
        "parallel": corpus.Parallel,
    },
    "view": {
        "identity": views.Identity,
        "dropout": views.Dropout,
        "word_deletion": views.WordDeletion,
        "crop": views.Crop,
        "delete_one": views.DeleteOne,
        "file": views.ViewFile,
    },
    "triples": {"files": stages.TripleFiles, "hub": stages.TripleHub},
    "stages": {"distil": stages.Stage, "finetune": finetuning.Finetune},
    "task": {"files": finetuning.TaskFiles, "hub": finetuning.TaskHub},
}


def read(name: str | Path, changes: tuple[str, ...] | list[str] = ()) -> Recipe:
    """Read a recipe by path or shipped name, apply `key.path=value` changes, check it whole.

    Raises UserError with every problem of the file.
    """
    return read_file(files.find("recipe", name), changes)


def read_file(path: Path, changes: tuple[str, ...] | list[str] = ()) -> Recipe:
    """The recipe in a file, as `read`."""
    data = yaml_file.read(path)
    if data is None:
        raise UserError(f"{path}: is empty; see edgedistill recipes")
    if not isinstance(data, dict):
        raise UserError(
            f"{path}: a recipe is a mapping of keys to values, this is of type {type(data).__name__}; see "
            "edgedistill recipes"
        )
    for change in changes:
        _set(data, change)
    return parse(data, str(path))


def parse(data: dict[str, Any], place: str) -> Recipe:
    """Check a recipe's data; `place` opens every line of the UserError."""
    yaml_file.check_plain(data, place)
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        lines = [_line(place, problem) for problem in error.errors()[:MOST_PROBLEMS]]
        if error.error_count() > MOST_PROBLEMS:
            lines.append(f"{place}: {error.error_count():,} problems in all; correct these first")
        raise UserError(*dict.fromkeys(lines)) from None


def dump(recipe: Recipe) -> str:
    """The effective recipe as YAML, every field written out."""
    return yaml_file.dump(recipe.model_dump(mode="json", by_alias=True))


def schema() -> str:
    """The JSON schema of recipes, for editors; every key has a description."""
    made = Recipe.model_json_schema(by_alias=True)
    for section in made["$defs"].values():
        kind = section.get("properties", {}).get("kind")
        if kind is not None and "description" not in kind:
            kind["description"] = "Selects: " + " ".join(section["description"].partition("\n\n")[0].split())
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def _set(data: dict[str, Any], change: str) -> None:
    """Apply `stages.0.epochs=1` to the data; the value is read as YAML."""
    path, equals, value = change.partition("=")
    if not equals:
        raise UserError(f"--set {change}: no '='; write --set stages.0.epochs=1")
    *parents, last = path.split(".")
    at: Any = data
    for depth, part in enumerate(parents):
        if isinstance(at, list):
            at = at[_item(at, part, ".".join(parents[:depth]), change)]
        elif isinstance(at, dict):
            at = at.setdefault(part, {})
        else:
            raise UserError(f"--set {change}: {part!r} is inside a plain value; check the path")
    parsed = yaml_file.parse(value, f"--set {change}")
    if isinstance(at, list):
        at[_item(at, last, ".".join(parents), change)] = parsed
    elif isinstance(at, dict):
        at[last] = parsed
    else:
        raise UserError(f"--set {change}: {last!r} is inside a plain value; check the path")


def _item(items: list[Any], index: str, path: str, change: str) -> int:
    """The index of a list item named in a change. Raises UserError where the list at `path` has no such
    item."""
    if index.isdecimal() and len(index) < 10 and int(index) < len(items):
        return int(index)
    if not items:
        raise UserError(f"--set {change}: {path} is empty; add its items in the recipe")
    last = f", the last {path}.{len(items) - 1}" if len(items) > 1 else ""
    raise UserError(
        f"--set {change}: {path} has {len(items)} item{'s' if len(items) > 1 else ''}; the first is "
        f"{path}.0{last}"
    )


def _line(place: str, problem: Any) -> str:
    """One pydantic error as text."""
    where = _where(problem["loc"])
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "union_tag_invalid":
        what = _what(problem["loc"])
        known = KINDS.get(what, {}) or [t.strip(" '") for t in context["expected_tags"].split(",")]
        return (
            f"{place}: {where}.kind: "
            f"{unknown_name('stage' if what == 'stages' else what, context['tag'], known)}"
        )
    if kind == "union_tag_not_found":
        what = _what(problem["loc"])
        return f"{place}: {where}.kind: missing; choose one: ({', '.join(sorted(KINDS.get(what, {})))})"
    if kind == "extra_forbidden":
        return f"{place}: {where}: {_unknown_key(problem['loc'])}"
    if kind == "missing":
        return f"{place}: {where}: missing; this key is required"
    if kind in _EXPECTED or kind == "string_pattern_mismatch":
        return f"{place}: {where}: {_wrong_type(problem)}"
    fact = problem["msg"].removeprefix("Value error, ")
    fact = fact[0].lower() + fact[1:]
    got = (
        f", not {shown(problem['input'])}"
        if not isinstance(problem["input"], dict | list) and kind != "value_error"
        else ""
    )
    return f"{place}: {where + ': ' if where else ''}{fact}{got}"


# pydantic's errors about types: what was expected, in words
_MAPPING, _LIST = "a mapping", "a list"
_EXPECTED = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), _MAPPING),
    "list_type": _LIST,
    **dict.fromkeys(("int_type", "int_from_float"), "a whole number"),
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
}
_WAYS_OUT = {
    "a whole number": "one, such as 3",
    "a number": "one, such as 0.5",
    "true or false": "one of them",
    "text": "text in quotes",
}
_LISTS_OF_SECTIONS = ("stages", "terms", "pairs")
# A section that was given as one value: the key that the value belongs to, and a value for the example where
# none can be used.
_MAIN_KEYS = {
    "objective": ("kind", "cosine"),
    "student": ("kind", "bilstm"),
    "view": ("kind", "crop"),
    "teacher": ("model", "packaged:all-MiniLM-L6-v2"),
    "assistant": ("model", "runs/assistant"),
    "corpus": ("texts", ["*.txt"]),
    "select": ("suite", "sts-dev"),
    "requirements": ("sts", 0.7),
    "size_mb": ("w8", 5),
}


def _wrong_type(problem: Any) -> str:
    """A value of another type than expected: *fact; way out*."""
    value, kind = problem["input"], problem["type"]
    got = (
        "no value"
        if value is None
        else _MAPPING
        if isinstance(value, dict)
        else _LIST
        if isinstance(value, list)
        else shown(value)
    )
    if kind == "string_pattern_mismatch":
        return f"{got} is not a valid name; use lower-case letters, digits, dots and dashes"
    expected = _EXPECTED[kind]
    fact = "no value" if value is None else f"{got} is not {expected}"
    if _TYPE.fullmatch(str(problem["loc"][-1])):  # one choice of several, such as a number or a list
        return fact
    if expected == _MAPPING:
        return f"{fact}; write a mapping{_example_mapping(problem['loc'], value)}"
    if expected == _LIST:
        plain = (
            isinstance(value, str | int | float)
            and len(str(value)) < 100
            and problem["loc"][-1] not in _LISTS_OF_SECTIONS
        )
        return (
            f"{fact}; write a "
            f"list{': ' + json.dumps([value], ensure_ascii=False) if plain else ', each item after a dash'}"
        )
    if expected == "text" and isinstance(value, int | float):
        return f'{fact}; write "{json.dumps(value)}"'
    for found in _unquoted(value):
        if type(found) in _PLAIN.get(expected, ()):
            return f"{fact}; write {json.dumps(found)}{' without quotes' if isinstance(value, str) else ''}"
    return f"{fact}; write {_WAYS_OUT[expected]}"


_PLAIN: dict[str, tuple[type, ...]] = {
    "a whole number": (int,),
    "a number": (int, float),
    "true or false": (bool,),
}


def _unquoted(value: Any) -> list[Any]:
    """What a value is without its quotes, and 1000.0 as a whole number."""
    if isinstance(value, float) and value.is_integer():
        return [int(value)]
    return [yaml_file.plain(value)] if isinstance(value, str) else []


def _example_mapping(loc: tuple[Any, ...], value: Any) -> str:
    """A mapping that a section accepts, with the value that was given in place of it where that fits; ""
    where none is known."""
    section = _section(loc)
    if section not in _MAIN_KEYS:
        return ""
    key, example = _MAIN_KEYS[section]
    if (
        isinstance(value, str)
        and len(value) < 100
        and section != "requirements"
        and (key != "kind" or value in KINDS[section])
    ):
        example = [value] if isinstance(example, list) else value
    return f", such as {{{key}: {json.dumps(example) if isinstance(example, list) else example}}}"


def _unknown_key(loc: tuple[Any, ...]) -> str:
    """Name the key to use instead where other tools call it so, else the nearest one."""
    known, key = _keys(loc[:-1]), str(loc[-1])
    if name := aliases.own_name(key, known):
        return f"no key {key!r}; did you mean {name!r}?"
    return unknown_name("key", key, known)


def _section(loc: tuple[Any, ...]) -> str:
    """The key that holds a place's section; "" for the recipe itself. The tags of unions are skipped."""
    names = [part for part in loc if not isinstance(part, int)]
    while len(names) > 1 and names[-1] in KINDS.get(str(names[-2]), {}):
        names.pop()
    return str(names[-1]) if names else ""


def _tags() -> set[str]:
    return {kind for kinds in KINDS.values() for kind in kinds}


_TYPE = re.compile(
    r"(constrained-)?(int|float|str|bool)|list\[.*"
)  # how pydantic calls the choices of `int | list[int]`


def _where(loc: tuple[Any, ...]) -> str:
    """('stages', 0, 'objective', 'sum', 'terms') → stages[0].objective.terms: without the union's tags, and
    without its types."""
    text, before = "", None
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        if not (part in _tags() and before in KINDS) and part != "[key]" and not _TYPE.fullmatch(part):
            text += f".{part}" if text else str(part)
        before = part
    return text


def _what(loc: tuple[Any, ...]) -> str:
    return next((str(part) for part in reversed(loc) if part in KINDS), str(loc[-1]))


def _keys(loc: tuple[Any, ...]) -> list[str]:
    """The keys known at a place: walk the models along the path."""
    at: Any = Recipe
    names = [part for part in loc if not isinstance(part, int)]
    for before, part in zip((None, *names), names, strict=False):
        if before in KINDS and part in KINDS[str(before)]:
            at = KINDS[str(before)][str(part)]
        elif isinstance(at, type) and issubclass(at, Section):
            field = next((f for n, f in at.model_fields.items() if part in (n, f.alias)), None)
            at = _model_in(field.annotation) if field else Section
    return [field.alias or name for name, field in at.model_fields.items()] if at is not None else []


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model_in(a)) is not None), None)
