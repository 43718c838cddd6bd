"""The recipe reference: complete, up to date, and its examples parse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import recipe_reference
import yaml

from edgedistill import recipe

PAGES = Path(__file__).parents[2] / "recipes"
README, REFERENCE = (PAGES.joinpath(f"{name}.md").read_text("utf-8") for name in ("README", "REFERENCE"))
BASE: dict[str, Any] = {
    "name": "x",
    "teacher": {"model": "packaged:all-MiniLM-L6-v2"},
    "rows": {"files": ["a.txt"]},
    "student": {"kind": "bert", "weights": "teacher", "layers": [0]},
    "stages": [{"name": "distil", "objective": {"kind": "cosine"}}],
}
DEFAULTS = {("student", "finished"), ("reduce", "none")}  # kinds that need no name
EXAMPLES = [
    yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", REFERENCE + README, re.DOTALL)
]


def kinds_in(value: Any, place: str = "") -> set[tuple[str, str]]:
    """(key, kind) of every section that names its kind, at any depth."""
    if isinstance(value, list):
        return {each for item in value for each in kinds_in(item, place)}
    if not isinstance(value, dict):
        return set()
    own = {(place, value["kind"])} if "kind" in value else set()
    return own | {each for key, inner in value.items() for each in kinds_in(inner, key)}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: "-".join(example))
def test_an_example_parses(example: dict[str, Any]):
    recipe.parse({**BASE, **example}, "recipes/README.md")


def test_examples_show_every_student_objective_and_reduction():
    shown = {each for example in EXAMPLES for each in kinds_in(example)} | DEFAULTS
    holders = {"student": recipe.Recipe, "objective": recipe.Stage, "reduce": recipe.Targets}
    held = {place: recipe.sections(of.model_fields[place].annotation) for place, of in holders.items()}
    wanted = {(place, kind) for place, choices in held.items() for kind in recipe.kinds_of(choices)}
    assert not wanted - shown


def test_the_reference_covers_every_section_and_describes_every_key():
    sections = json.loads(recipe.schema())["$defs"]
    listed = [name for _, names in recipe_reference.by_key().values() for name in names]
    assert sorted(listed) == sorted([*sections, "Recipe"])
    for section in sections.values():
        assert all(key.get("description") for key in section["properties"].values()), section


def test_the_reference_is_up_to_date():
    assert recipe_reference.markdown() == REFERENCE, "run make docs"
