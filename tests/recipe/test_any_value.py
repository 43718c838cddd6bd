"""In any field of a recipe any value is read, or refused in a line: no traceback, no number that nothing can
be computed with."""

from __future__ import annotations

import copy
import datetime
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from edgedistill import files, recipe
from edgedistill.errors import UserError
from edgedistill.recipe import yaml_file
from edgedistill.recipe.section import Section

Place = tuple[str | int, ...]
VALUES: dict[str, Any] = {
    "inf": math.inf,
    "nan": math.nan,
    "1e300": 1e300,
    "tiny": 5e-324,
    "negative": -1,
    "10^30": 10**30,
    "text of a number": "1e-3",
    "true": True,
    "date": datetime.date(2026, 1, 1),
    "bytes": b"a",
    "empty": "",
    "blank": " ",
    "long": "x" * 5_000,
    "surrogate": "\ud83d",
    "nul": "a\0b",
    "escape": "\x8e\x9b",
    "null": None,
    "list": [],
    "nested": [[[{"a": [{}]}]]],
    "many": [1] * 20_000,
    "mapping": {},
    "key of a number": {1: 2},
    "key of a list": {(1, 2): 3},
    "kind": {"kind": ["a"]},
}


def sections(value: Any, place: Place = ()) -> Iterator[tuple[type[Section], Place]]:
    """The sections of a recipe and where they are in its data."""
    if isinstance(value, Section):
        yield type(value), place
        for name, field in type(value).model_fields.items():
            yield from sections(getattr(value, name), (*place, field.alias or name))
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from sections(each, (*place, at))


def examples() -> dict[type[Section], tuple[dict[str, Any], Place]]:
    """Of every section that shipped recipes have: a recipe's data, and where the section is in it."""
    found: dict[type[Section], tuple[dict[str, Any], Place]] = {}
    for path in files.shipped("recipe").values():
        spec = recipe.read(path)
        for section, place in sections(spec):
            found.setdefault(section, (spec.model_dump(mode="json", by_alias=True), place))
    return found


def changed(data: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    *parents, last = place
    data = copy.deepcopy(data)
    at: Any = data
    for part in parents:
        at = at[part]
    at[last] = value
    return data


@pytest.fixture(scope="module")
def fields() -> list[tuple[dict[str, Any], Place]]:
    return [
        (data, (*place, each.alias or name))
        for section, (data, place) in examples().items()
        for name, each in section.model_fields.items()
    ]


@pytest.mark.parametrize("kind", VALUES)
def test_in_every_field_any_value_is_read_or_refused_in_a_line(
    kind: str, fields: list[tuple[dict[str, Any], Place]]
):
    assert len(fields) > 250
    refused = 0
    for data, place in fields:
        try:
            read = recipe.parse(changed(data, place, VALUES[kind]), "x.yaml")
        except UserError as error:
            refused += 1
            for problem in error.problems:
                assert problem.startswith("x.yaml: "), place
                assert len(problem) < 2_500, place
                assert problem.isprintable(), place
        else:
            json.loads(json.dumps(read.model_dump(mode="json"), allow_nan=False))
            if kind == "text of a number":
                assert recipe.parse(yaml_file.parse(recipe.dump(read), "x"), "x") == read, place
    assert refused > len(fields) / 4
    if kind in (
        "inf",
        "nan",
        "1e300",
        "10^30",
        "date",
        "bytes",
        "surrogate",
        "nul",
        "many",
        "nested",
        "kind",
    ):
        assert refused == len(fields)


TEXTS = {
    "depth": "a: " + "[" * 100_000,
    "depth of mappings": "\n".join(" " * at + "a:" for at in range(600)),
    "digits": "seed: " + "9" * 5_000,
    "digits after the point": "seed: 0." + "9" * 5_000,
    "a list as a key": "? [a, b]\n: 1",
    "a mapping as a key": "{a: 1}: 2",
    "a key twice": "name: a\nname: b",
    "a key twice inside": "teacher: {model: a, model: b}",
    "merging": "a: &a {x: 1}\nb: {<<: *a, y: 2}",
    "merging by tag": "a: &a {x: 1}\nb: {!!merge x: *a, y: 2}",
    "aliases": "a0: &a0 [x, x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)),
    "a circle": "a: &a [*a]",
    "tags": "name: !!binary aGVsbG8=",
    "a tag that does not fit": "seed: !!int abc",
    "another tag that does not fit": "seed: !!bool maybe",
    "a date by tag": "about: !!timestamp 2026-13-45",
    "python": "name: !!python/object/apply:os.getcwd []",
    "tabs": "name:\n\t- a",
    "control letters": "name: a\x00b",
    "not UTF-8": b"name: \xe9",
    "a key that a terminal obeys": '"a\\x9b": "b\\0"',
    "unknown keys": "\n".join(f"key{n}: 1" for n in range(5_000)),
    "large": "#" * 300_000,
    "not a mapping": "- a",
    "empty": "",
    "two documents": "a: 1\n---\nb: 2",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_file_that_holds_no_recipe(kind: str, tmp_path):
    path, text = tmp_path / "x.yaml", TEXTS[kind]
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        recipe.read(path)
    assert all(problem.startswith(f"{path}: ") and len(problem) < 2_500 for problem in caught.value.problems)
    assert all(problem.isprintable() for problem in caught.value.problems)
    assert len(caught.value.problems) <= 41


def test_a_sparse_file_is_not_read(tmp_path):
    with (tmp_path / "x.yaml").open("wb") as file:
        file.truncate(200_000_000_000)
    with pytest.raises(UserError, match=r"x\.yaml: 200,000,000,000 bytes"):
        recipe.read(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("+.5", 0.5),
        ("-1.", -1.0),
        ("16_384", 16384),
        ("0x10", 16),
        ("~", None),
        ("", None),
        ("TRUE", True),
        ("no", "no"),
        ("on", "on"),
        ("2026-01-01", "2026-01-01"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("1e", "1e"),
        ("'1e-3'", "1e-3"),
        ("-", [None]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any):
    read = yaml_file.parse(text, "x")
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text",
    ["1e-3", "1e5", "no", "on", "2026-01-01", "0x10", "1_000", "null", "~", "", "1:30", ".inf", "é", "a: b"],
)
def test_text_stays_text(text: str):
    assert yaml_file.parse(yaml_file.dump({"about": text}), "x") == {"about": text}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            "stages.0.learning_rate='1e-3'",
            "stages[0].learning_rate: '1e-3' is not a number; write one, such as 0.5, without quotes",
        ),
        ("stages.0.batch=1e3", "stages[0].batch: 1000.0 is not a whole number; write one, such as 3"),
        ("stages.0.batch=many", "stages[0].batch: 'many' is not a whole number; write one, such as 3"),
        ("about=true", "about: True is not text; write text in quotes"),
        (
            "student.head_bias=yes",
            "student.head_bias: 'yes' is not true or false; write one of them, without quotes",
        ),
        ("stages.0.epochs=.inf", "stages[0].epochs: must be at most 1000000, not inf"),
        (
            "stages.0.weight_decay=1e300",
            "stages[0].weight_decay: 1e+300 is too large; give at most 1,000,000,000",
        ),
        (
            "stages.0.weight_decay=1e-30",
            "stages[0].weight_decay: 1e-30 is too small; give 1e-18 or more, or 0 where the key may be 0",
        ),
        ("select.suite=", "select.suite: no value; write text in quotes"),
        ("select.suite=''", "select.suite: is empty; give a value, or leave the key out"),
    ],
)
def test_the_advice_helps(change: str, line: str):
    with pytest.raises(UserError) as caught:
        recipe.read("demo-bert2", [change])
    assert [problem.partition(".yaml: ")[2] for problem in caught.value.problems] == [line]


@pytest.mark.parametrize(
    "change",
    [
        "a=[",
        "a=" + "[" * 1_100,
        "a=" + "9" * 5_000,
        "stages.²=1",
        "stages." + "9" * 5_000 + "=1",
        "name=\udcff",
        "=1",
        "a",
    ],
)
def test_a_change_that_cannot_be_read(change: str):
    with pytest.raises(UserError):
        recipe.read("demo-bert2", [change])
