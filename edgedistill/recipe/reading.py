"""A recipe file is read, checked and written; every problem of a file becomes one line of an error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import ValidationError

from edgedistill import files
from edgedistill.errors import UserError, counted, shown, unknown_name
from edgedistill.files import Json
from edgedistill.recipe import yaml_file
from edgedistill.recipe.experiment import Recipe
from edgedistill.recipe.section import ByKind, Section

S = TypeVar("S", bound=Section)
MOST_PROBLEMS = 40  # listed of a file

# What sentence-transformers, transformers and others call the same thing.
ALIASES: dict[str, str] = {
    "corpus": "rows",  # as recipes were written before: recipes/convert_rows.py rewrites them
    "tuples": "rows",
    "task": "rows",
    "pairs": "tables",
    "texts": "files",
    "train": "files",
    "licence": "licences",
    "data_files": "files",
    "path": "dataset",
    "batch_size": "batch",
    "embedding_dim": "dims",
    "eval_steps": "every",
    "gradient_clipping": "clip",
    "hidden_size": "width",
    "intermediate_size": "intermediate",
    "loss": "objective",
    "lr": "learning_rate",
    "lr_scheduler": "schedule",
    "lr_scheduler_type": "schedule",
    "max_grad_norm": "clip",
    "max_length": "max_tokens",
    "max_seq_length": "max_tokens",
    "max_steps": "steps",
    "model_name": "model",
    "model_name_or_path": "model",
    "num_attention_heads": "heads",
    "num_epochs": "epochs",
    "num_hidden_layers": "layers",
    "num_layers": "layers",
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "batch",
    "precision": "dtype",
    "temp": "temperature",
    "vocab_size": "vocabulary_size",
    "wd": "weight_decay",
    "warmup_ratio": "warmup",
}


def sections(annotation: Any) -> list[type[Section]]:
    """The sections that a field of this type holds."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return list(annotation.__dict__.get("kinds", {}).values()) or [annotation]
    return [section for part in get_args(annotation) for section in sections(part)]


def kinds_of(choices: list[type[Section]]) -> dict[str, type[Section]]:
    """The sections by the `kind` that chooses one of them."""
    return {get_args(choice.model_fields["kind"].annotation)[0]: choice for choice in choices}


def add(*sections: type[ByKind]) -> None:
    """Let recipes hold further kinds, such as an objective of one's own."""
    if sections and all(section in section.kinds.values() for section in sections):
        return
    for section in sections:
        section.register()
    holders = [Section]
    for holder in holders:  # grows while it is walked
        holders += [subclass for subclass in holder.__subclasses__() if subclass not in holders]
        del holder.__pydantic_core_schema__
    for holder in holders:
        holder.model_rebuild(force=True)


def read(name: str | Path, changes: tuple[str, ...] | list[str] = ()) -> Recipe:
    """Read a recipe by path or shipped name, apply `key.path=value` changes, check it whole.

    Raises UserError with every problem of the file.
    """
    return read_file(files.find("recipe", name), changes)


def read_file(path: Path, changes: tuple[str, ...] | list[str] = (), recorded: bool = False) -> Recipe:
    """The recipe in a file, as `read`; one that a run `recorded` as `parse` reads it."""
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
    return parse(data, str(path), recorded)


def parse(data: Json, place: str, recorded: bool = False) -> Recipe:
    """Check a recipe's data; `place` opens every line of the UserError. A run or a bundle may have `recorded`
    keys that recipes had then and have no more: these are ignored."""
    return checked(data, place, Recipe, recorded)


def checked(data: Json, place: str, kind: type[S], recorded: bool = False) -> S:
    """The data as a section of this kind, see `parse`. Raises UserError with every problem."""
    try:
        return kind.model_validate(data, extra="ignore" if recorded else None)
    except ValidationError as error:
        problems = error.errors()[:MOST_PROBLEMS]
        # of the choices of `int | list[int]`, the one that the value is of has said what is wrong
        named = {
            _place(problem["loc"], kind).text for problem in problems if problem["type"] not in _EXPECTED
        }
        lines = [
            _line(place, problem, kind)
            for problem in problems
            if not (_is_choice(problem) and _place(problem["loc"], kind).text in named)
        ]
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


def _set(data: Json, change: str) -> None:
    """Apply `stages.0.epochs=1` to the data; the value is read as YAML."""
    path, equals, value = change.partition("=")
    if not equals:
        raise UserError(f"--set {change}: no '='; write --set stages.0.epochs=1")
    parts = path.split(".")
    holder: Any = data
    for depth, part in enumerate(parts):
        is_list = isinstance(holder, list)
        key: Any = _item(holder, part, ".".join(parts[:depth]), change) if is_list else part
        if not (is_list or isinstance(holder, dict)):
            raise UserError(f"--set {change}: {part!r} is inside a plain value; check the path")
        if depth == len(parts) - 1:
            holder[key] = yaml_file.parse(value, f"--set {change}")
        else:
            holder = holder[key] if is_list else holder.setdefault(key, {})


def _item(items: list[Any], index: str, path: str, change: str) -> int:
    """The index of a list item named in a change. Raises UserError where the list at `path` has no such
    item."""
    if index.isdecimal() and len(index) < 10 and int(index) < len(items):
        return int(index)
    raise UserError(
        f"--set {change}: {path} has {counted(len(items), 'item')}, numbered from 0; correct {index!r}"
    )


class _Place(NamedTuple):
    """Where pydantic found a problem."""

    text: str  # as users write it: stages[0].objective.terms
    key: str  # the last key of it
    choices: dict[str, type[Section]]  # by kind, where a kind has to choose what stands there
    section: type[Section] | None  # what stands there; None for a plain value

    @property
    def keys(self) -> list[str]:
        fields = self.section.model_fields if self.section else {}
        return [field.alias or name for name, field in fields.items()]


# How pydantic calls the choices of `int | list[int]`, and the key of a mapping.
_NOT_WRITTEN = re.compile(r"(constrained-)?(int|float|str|bool)|list\[.*|mapping|\[key\]")


def _place(loc: tuple[Any, ...], root: type[Section]) -> _Place:
    """Walk the sections from `root` along pydantic's path: keys, positions in lists, kinds and types of
    values."""
    at = _Place("", "", {}, root)
    for part in loc:
        if isinstance(part, int):
            at = at._replace(text=f"{at.text}[{part}]")
        elif part in at.choices:
            at = at._replace(choices={}, section=at.choices[part])
        elif not _NOT_WRITTEN.fullmatch(part):
            fields = at.section.model_fields if at.section else {}
            field = next((field for name, field in fields.items() if part in (name, field.alias)), None)
            held = sections(field.annotation) if field else []
            section = held[0] if len(held) == 1 else None
            choices = kinds_of(held) if len(held) > 1 else {}
            at = _Place(f"{at.text}.{part}" if at.text else part, part, choices, section)
    return at


def _line(place: str, problem: Any, root: type[Section]) -> str:
    """One pydantic error as text."""
    kind = problem["type"]
    loc = problem["loc"]
    at = _place(loc, root)
    where = f"{place}: {at.text}" if at.text else place
    what = "stage" if at.key == "stages" else at.key
    if kind == "union_tag_invalid":
        return f"{where}.kind: {unknown_name(what, problem['ctx']['tag'], at.choices)}"
    if kind == "union_tag_not_found":
        return f"{where}.kind: missing; choose one: ({', '.join(sorted(at.choices))})"
    if kind == "extra_forbidden":
        key = str(loc[-1])
        known = _place(loc[:-1], root).keys
        ours = ALIASES.get(key.lower().replace("-", "_"))
        if ours in known:
            return f"{where}: no key {key!r}; did you mean {ours!r}?"
        return f"{where}: {unknown_name('key', key, known)}"
    if kind == "missing":
        return f"{where}: missing; this key is required"
    if kind == "string_pattern_mismatch":
        name = shown(problem["input"])
        return f"{where}: {name} is not a valid name; use lower-case letters, digits, dots and dashes"
    if kind in _EXPECTED:
        return f"{where}: {_wrong_type(problem)}"
    fact = problem["msg"].removeprefix("Value error, ")
    for words, ours in _WORDS.items():
        fact = fact.replace(words, ours)
    plain = kind != "value_error" and not isinstance(problem["input"], dict | list)
    got = f", not {shown(problem['input'])}" if plain else ""
    return f"{where}: {fact[0].lower()}{fact[1:]}{got}"


_WORDS = {  # pydantic's, and ours
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}


# pydantic's errors about types: what was expected, in words, and what to write
_MAPPING = ("a mapping", "write a mapping, {key: value}")
_LIST = ("a list", "write a list, each item after a dash")
_EXPECTED = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), _MAPPING),
    "list_type": _LIST,
    **dict.fromkeys(("int_type", "int_from_float"), ("a whole number", "write one, such as 3")),
    "float_type": ("a number", "write one, such as 0.5, without quotes"),
    "bool_type": ("true or false", "write one of them, without quotes"),
    "string_type": ("text", "write text in quotes"),
}


def _wrong_type(problem: Any) -> str:
    """*fact; way out* of a value of another type than expected."""
    value = problem["input"]
    expected, way_out = _EXPECTED[problem["type"]]
    kinds: dict[type, str] = {dict: _MAPPING[0], list: _LIST[0]}
    fact = f"{kinds.get(type(value)) or shown(value)} is not {expected}"
    if value is None:
        fact = "no value"
    return fact if _is_choice(problem) else f"{fact}; {way_out}"


def _is_choice(problem: Any) -> bool:
    """Whether the value is not of one type of several that it may have, such as a number or a list."""
    return problem["type"] in _EXPECTED and bool(_NOT_WRITTEN.fullmatch(str(problem["loc"][-1])))
