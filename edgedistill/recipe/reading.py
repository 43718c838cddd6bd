"""A file becomes a recipe, or every problem of it one line in our words."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from edgedistill import files
from edgedistill.errors import UserError, unknown
from edgedistill.recipe.experiment import Recipe
from edgedistill.recipe.finetuning import Finetune, TaskFiles, TaskHub
from edgedistill.recipe.objectives import (
    Ckd,
    Congen,
    Cosine,
    DualL2,
    EachSide,
    Gram,
    Matryoshka,
    Mcl,
    MclBool,
    MclCe,
    Mse,
    Seed,
    Simcse,
    Skd,
    SoftCos,
    Sum,
)
from edgedistill.recipe.section import Part
from edgedistill.recipe.sources import Files, Hub, Parallel, Prose
from edgedistill.recipe.stages import Stage, TripleFiles, TripleHub
from edgedistill.recipe.students import Bert, BiLSTM, Itself, Recurrent, Static
from edgedistill.recipe.targets import Cca, Concat, Gaussian, One, Pca, Ridge, Split, Whole
from edgedistill.recipe.views import BackTranslation, Crop, DeleteOne, Dropout, Identity, Mlm, Synonym, ViewFile, WordDeletion

KINDS = {
    "student": {"bert": Bert, "bilstm": BiLSTM, "recurrent": Recurrent, "static": Static, "teacher": Itself},
    "objective": {"mse": Mse, "cosine": Cosine, "softcos": SoftCos, "gram": Gram, "ckd": Ckd, "congen": Congen, "seed": Seed}
    | {"dual_l2": DualL2, "skd": Skd, "simcse": Simcse, "sum": Sum, "matryoshka": Matryoshka}
    | {"each_side": EachSide, "mcl": Mcl, "mcl_bool": MclBool, "mcl_ce": MclCe},
    "targets": {"one": One, "split": Split, "concat": Concat},
    "reduce": {"none": Whole, "pca": Pca, "gaussian": Gaussian, "ridge": Ridge, "cca": Cca},
    "onto": {"bert": Bert, "bilstm": BiLSTM},
    "corpus": {"files": Files, "hub": Hub, "prose": Prose, "parallel": Parallel},
    "view": {"identity": Identity, "dropout": Dropout, "word_deletion": WordDeletion, "crop": Crop, "delete_one": DeleteOne}
    | {"synonym": Synonym, "mlm": Mlm, "back_translation": BackTranslation, "file": ViewFile},
    "triples": {"files": TripleFiles, "hub": TripleHub},
    "stages": {"distil": Stage, "finetune": Finetune},
    "task": {"files": TaskFiles, "hub": TaskHub},
}


def read(name: str | Path, changes: tuple[str, ...] | list[str] = ()) -> Recipe:
    """Read a recipe by path or shipped name, apply `key.path=value` changes, check it whole.

    Raises UserError with every problem of the file.
    """
    path = files.find("recipe", name)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {_said(error)}") from None
    if data is None:
        raise UserError(f"{path}: is empty; see edgedistill recipes")
    if not isinstance(data, dict):
        raise UserError(f"{path}: a recipe is a mapping, this is a {type(data).__name__}; see edgedistill recipes")
    for change in changes:
        _set(data, change)
    return parse(data, str(path))


def _said(error: Exception) -> str:
    """A YAML error in a line: what and where, without the excerpt and the name of the string it was read from."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark and problem else " ".join(str(error).split())


def parse(data: dict[str, Any], place: str) -> Recipe:
    """Check a recipe's data; `place` opens every line of the UserError."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise UserError(*dict.fromkeys(_line(place, problem) for problem in error.errors())) from None


def dump(recipe: Recipe) -> str:
    """The effective recipe as YAML, every field written out."""
    data = recipe.model_dump(mode="json", by_alias=True)
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def schema() -> str:
    """The JSON schema of recipes, for editors."""
    return json.dumps(Recipe.model_json_schema(by_alias=True), indent=2, ensure_ascii=False) + "\n"


def _set(data: dict[str, Any], change: str) -> None:
    """Apply `stages.0.epochs=1` to the data; the value is read as YAML."""
    path, equals, value = change.partition("=")
    if not equals:
        raise UserError(f"--set {change}: no '='; write --set stages.0.epochs=1")
    *parents, last = path.split(".")
    at: Any = data
    for part in parents:
        if isinstance(at, list):
            if not part.isdigit() or int(part) >= len(at):
                raise UserError(f"--set {change}: no item {part!r} among {len(at)}; count from 0")
            at = at[int(part)]
        elif isinstance(at, dict):
            at = at.setdefault(part, {})
        else:
            raise UserError(f"--set {change}: {part!r} is inside a plain value; check the path")
    parsed = yaml.safe_load(value)
    if isinstance(parsed, str):  # YAML 1.1 reads 1e-3 as text; people mean a number
        with suppress(ValueError):
            parsed = float(parsed)
    if isinstance(at, list):
        if not last.isdigit() or int(last) >= len(at):
            raise UserError(f"--set {change}: no item {last!r} among {len(at)}; count from 0")
        at[int(last)] = parsed
    elif isinstance(at, dict):
        at[last] = parsed
    else:
        raise UserError(f"--set {change}: {last!r} is inside a plain value; check the path")


def _line(place: str, problem: Any) -> str:
    """One pydantic error in our words."""
    where = _where(problem["loc"])
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "union_tag_invalid":
        what = _what(problem["loc"])
        known = KINDS.get(what, {}) or [t.strip(" '") for t in context["expected_tags"].split(",")]
        return f"{place}: {where}.kind: {unknown('stage' if what == 'stages' else what, context['tag'], known)}"
    if kind == "union_tag_not_found":
        what = _what(problem["loc"])
        return f"{place}: {where}.kind: missing; choose one: ({', '.join(sorted(KINDS.get(what, {})))})"
    if kind == "extra_forbidden":
        return f"{place}: {where}: {unknown('key', problem['loc'][-1], _keys(problem['loc'][:-1]))}"
    if kind == "missing":
        return f"{place}: {where}: missing; this key is required"
    fact = problem["msg"].removeprefix("Value error, ")
    fact = fact[0].lower() + fact[1:]
    got = f", not {problem['input']!r}" if not isinstance(problem["input"], dict | list) and kind != "value_error" else ""
    return f"{place}: {where + ': ' if where else ''}{fact}{got}"


def _tags() -> set[str]:
    return {kind for kinds in KINDS.values() for kind in kinds}


_TYPE = re.compile(r"int|float|str|bool|list\[.*")  # how pydantic calls the choices of `int | list[int]`


def _where(loc: tuple[Any, ...]) -> str:
    """('stages', 0, 'objective', 'sum', 'terms') → stages[0].objective.terms: without the union's tags, and without its types."""
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
        elif isinstance(at, type) and issubclass(at, Part):
            field = next((f for n, f in at.model_fields.items() if part in (n, f.alias)), None)
            at = _model_in(field.annotation) if field else Part
    return [field.alias or name for name, field in at.model_fields.items()] if at is not None else []


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model_in(a)) is not None), None)
