"""An arm's effective recipe: a base or a shipped recipe with the changes of the paper's file, and how it
differs from others."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import baselines
from ranking_claims import FOLDER, Paper, slug

from edgedistill import recipe

sys.path.append(str(FOLDER.parents[1] / "recipes"))
from convert_rows import with_rows

FILE_KEYS = ("files", "dev", "test")  # of a stage
ONLY_NAMES = ("name", "about", "seed", "requirements")  # of a recipe: they change nothing in its training


def variant_recipe(
    paper: Paper, variant: str, seed: int, runs: Path, changes: tuple[str, ...] = ()
) -> recipe.Recipe:
    """The recipe of a variant. Raises UserError for a recipe that does not exist, or a change that does not
    fit it."""
    replaced, chosen = [], paper.variants[variant]
    for change in [*([] if chosen.only_own_changes else paper.set), *chosen.set, *changes]:
        for other, spec in paper.variants.items():
            change = change.replace(
                f"{{run:{other}}}", str(runs / paper.paper / slug(other, 0 if spec.shared else seed))
            )
        replaced.append(change.replace("{seed}", str(seed)))
    return _read(chosen.recipe, tuple(replaced)).model_copy(
        update={"seed": seed, "name": slug(variant, seed)}
    )


def with_teacher(spec: recipe.Recipe, folder: Path | None) -> recipe.Recipe:
    """The recipe with its teacher of the hub read from a folder; itself without one, or where its teacher is
    not of the hub."""
    if folder is None or spec.teacher.revision is None:
        return spec
    return spec.model_copy(
        update={"teacher": spec.teacher.model_copy(update={"model": str(folder), "revision": None})}
    )


@cache
def _read(name: str, changes: tuple[str, ...]) -> recipe.Recipe:
    recipe.add(*baselines.SECTIONS)
    base = FOLDER / "bases" / f"{name}.yaml"
    return recipe.read(base if base.is_file() else name, list(changes))


def composition_of(paper: Paper, variant: str, seed: int) -> dict[str, Any]:
    """The composition of a variant's recipe, read once for all seeds unless a change depends on the seed.
    Raises as `variant_recipe`."""
    chosen = paper.variants[variant]
    seeded = any("{seed}" in change for change in [*paper.set, *chosen.set])
    return composition(variant_recipe(paper, variant, seed if seeded else 0, Path("runs")))


def sorting(stage: Any, name: str = "bucket") -> dict[str, Any]:
    """How a stage sorts its batches, under a name; a stage that fine-tunes does not."""
    return {} if stage.kind == "finetune" else {name: stage.sorting_window}


def composition(spec: recipe.Recipe) -> dict[str, Any]:
    """Every setting of a recipe that is not a default, {"stages.0.batch": 128}: equal for two runs of one
    arm, whatever their seed.

    The sorting of batches stands for itself, since its default depends on the objective. Run folders appear
    without their place and seed.
    """
    plain = spec.model_dump(mode="json", exclude_defaults=True, exclude=set(ONLY_NAMES), by_alias=True)
    plain["stages"] = [
        dumped | {"kind": stage.kind} | sorting(stage)
        for dumped, stage in zip(plain.get("stages", []), spec.stages, strict=True)
    ]
    found: dict[str, Any] = json.loads(
        json.dumps({key: _placeless(value) for key, value in _flat("", plain)})
    )
    return found


def settings_now(before: dict[str, Any]) -> dict[str, Any]:
    """The composition that a report holds, by the keys that recipes have now."""
    nested: dict[str, Any] = {}
    for place, value in before.items():
        *parents, last = place.split(".")
        at = nested
        for part in parents:
            at = at.setdefault(part, {})
        at[last] = value
    return dict(_flat("", with_rows(_with_lists(nested))))


def _with_lists(value: Any) -> Any:
    """The same with a list in place of every mapping whose keys are numbers."""
    if not isinstance(value, dict):
        return value
    items = {key: _with_lists(each) for key, each in value.items()}
    return list(items.values()) if items and all(map(str.isdecimal, items)) else items


def runs_before(paper: Paper, variant: str) -> list[str]:
    """The variants whose runs a variant's recipe reads, {run:VARIANT}."""
    chosen = paper.variants[variant]
    changes = " ".join([*([] if chosen.only_own_changes else paper.set), *chosen.set])
    return [other for other in paper.variants if f"{{run:{other}}}" in changes]


def student_samples(spec: recipe.Recipe) -> int | None:
    """How many texts the student embeds in training, every view and side counted; None where that depends on
    the size of the corpus."""
    if any(stage.steps is None for stage in spec.stages):
        return None
    return sum((stage.steps or 0) * stage.batch * texts_embedded(spec, stage) for stage in spec.stages)


def texts_embedded(spec: recipe.Recipe, stage: recipe.Stage | recipe.Finetune) -> int:
    """How many texts the student embeds for one training sample: every view, every side of a pair and every
    column of a triple."""
    return stage.views(spec.rows_of(stage)) if isinstance(stage, recipe.Stage) else len(stage.rows.columns)


def files_read(spec: recipe.Recipe) -> list[str]:
    """The files that the stages of a recipe read, as it names them: triples, pairs and labelled tasks."""
    found = [
        value
        for place, value in _flat("", {"stages": spec.model_dump(mode="json")["stages"]})
        if place.rpartition(".")[2] in FILE_KEYS
    ]
    return sorted(
        {name for value in found if value for name in (value if isinstance(value, list) else [value])}
    )


def _flat(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(dotted place, value) of every leaf; lists of plain values are leaves."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(f"{place}.{key}" if place else key, each)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for number, each in enumerate(value):
            yield from _flat(f"{place}.{number}", each)
    else:
        yield place, value


def _placeless(value: Any) -> Any:
    """A run's folder as the arm's name alone: runs/reproduction/sra/teacher-s0 is run:teacher."""
    if isinstance(value, str) and (found := re.fullmatch(r".*/([^/]+)-s\d+", value)):
        return f"run:{found[1]}"
    return value
