"""What a paper states of its arms, machine-readable, and where the arms here deviate from it:
settings/PAPER.yaml against the recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml
from arm_recipe import sorting, variant_recipe
from pydantic import Field, ValidationError, field_validator
from ranking_claims import FOLDER, Paper, Part, spliced

from edgedistill import recipe
from edgedistill.errors import UserError

NAMED = 6  # variants that a row names one by one


class Setting(Part):
    """The paper's value of one recipe key, for some or all arms."""

    key: str = Field(
        description="dotted place in the recipe; `sorting_window` of a stage is its batches that are sorted "
        "together"
    )
    paper: Any = Field(description="the paper's value; `not stated` where it gives none")
    where: str = Field(description="section or table of the paper, or its code")
    arms: list[str] | None = Field(None, description="default: every arm that has the key's section")
    why: str = Field("", description="the reason of the deviation, where an arm's value is another")

    _spliced = field_validator("arms", mode="before")(spliced)


class Condition(Part):
    """Something that differs and is no key of a recipe: the measure, the data."""

    what: str
    paper: str
    here: str
    why: str = ""


class PaperSettings(Part):
    """All that is known of a paper's arms. readings: where the paper is ambiguous, or was misread, and how it
    is read here."""

    settings: list[Setting]
    conditions: list[Condition] = Field([])
    readings: list[str] = Field([])


class Deviation(NamedTuple):
    """A setting, the arms that have another value, (value, arms) each, and how many arms were compared."""

    setting: Setting
    values: list[tuple[Any, list[str]]]
    compared: int


class _Absent:
    """Stands for a section that an arm does not have."""


ABSENT = _Absent()


def read(paper: str, folder: Path = FOLDER) -> PaperSettings:
    """settings/PAPER.yaml; nothing where a paper has none. Raises UserError with all its problems."""
    path = folder / "settings" / f"{paper}.yaml"
    if not path.exists():
        return PaperSettings(settings=[])
    try:
        return PaperSettings.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise UserError(
            *(f"{path}: {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        ) from None


def _deviations(whole: dict[str, dict[str, Any]], stated: PaperSettings) -> list[Deviation]:
    """Every setting from which an arm deviates, in the file's order. whole: of every arm, as `_recipes`."""
    found = []
    for setting in stated.settings:
        others: list[tuple[Any, list[str]]] = []
        values = {arm: at(whole[arm], setting.key) for arm in setting.arms or whole}
        values = {arm: value for arm, value in values.items() if value is not ABSENT}
        for arm, value in values.items():
            if value == setting.paper:
                continue
            same = next((arms for known, arms in others if known == value), None)
            if same is None:
                others.append((value, [arm]))
            else:
                same.append(arm)
        if others:
            found.append(Deviation(setting, others, len(values)))
    return found


def problems(paper: Paper, stated: PaperSettings) -> list[str]:
    """What the list of settings does not say or says wrongly: a deviation without its reason, a reason
    without deviation, unknown arms, a deviating arm that is not listed for the setting."""
    unknown = [
        f"{setting.key}: no arm {arm!r}; correct the name"
        for setting in stated.settings
        for arm in setting.arms or []
        if arm not in paper.variants
    ]
    if unknown:
        return unknown
    whole = _recipes(paper)
    found = _deviations(whole, stated)
    mistyped = [
        f"{each.key}: no arm has this key; correct it"
        for each in stated.settings
        if all(at(arm, each.key) is ABSENT for arm in whole.values())
    ]
    silent = [
        f"{each.setting.key}: {', '.join(arms)} has {value!r}, the paper {each.setting.paper!r} "
        f"({each.setting.where}); say why"
        for each in found
        for value, arms in each.values
        if not each.setting.why
    ]
    needless = [
        f"{setting.key}: no arm deviates from {setting.paper!r}; leave `why` out"
        for setting in stated.settings
        if setting.why and all(each.setting is not setting for each in found)
    ]
    held = {arm for setting in stated.settings for arm in setting.arms or paper.variants}
    free = [
        f"{arm}: no setting is held against it; list its own" for arm in paper.variants if arm not in held
    ]
    return mistyped + silent + needless + free + _unlisted(whole, stated)


def _unlisted(whole: dict[str, dict[str, Any]], stated: PaperSettings) -> list[str]:
    """Keys that are listed for some arms, and other arms that have another value than the paper's: they
    deviate without a word."""
    found = []
    for key in dict.fromkeys(each.key for each in stated.settings):
        of_key = [each for each in stated.settings if each.key == key]
        listed = {arm for each in of_key for arm in each.arms or whole}
        usual = [each.paper for each in of_key]
        others: dict[str, list[str]] = {}
        for arm in whole:
            value = at(whole[arm], key)
            if arm not in listed and value is not ABSENT and value not in usual:
                others.setdefault(f"{value!r}", []).append(arm)
        found += [
            f"{key}: {', '.join(arms)} has {value} and is not listed for it; list it"
            for value, arms in others.items()
        ]
    return found


def at(whole: dict[str, Any], key: str) -> Any:
    """The value at a dotted place, such as stages.0.batch; None for a key that is not set, ABSENT without its
    section."""
    value: Any = whole
    *sections, last = key.split(".")
    for part in sections:
        if isinstance(value, list):
            if int(part) >= len(value):
                return ABSENT
            value = value[int(part)]
        elif isinstance(value, dict) and value.get(part) is not None:
            value = value[part]
        else:
            return ABSENT
    return value.get(last, ABSENT) if isinstance(value, dict) else ABSENT


def _recipes(paper: Paper) -> dict[str, dict[str, Any]]:
    """Every variant's whole recipe."""
    return {variant: _whole(variant_recipe(paper, variant, 0, Path("runs"))) for variant in paper.variants}


def _whole(spec: recipe.Recipe) -> dict[str, Any]:
    """A recipe with all its defaults, the sorting of every stage's batches, without epochs where steps are
    given."""
    whole = spec.model_dump(mode="json", by_alias=True)
    for dumped, stage in zip(whole["stages"], spec.stages, strict=True):
        dumped |= sorting(stage, "sorting_window")
        if dumped.get("steps") is not None:
            del dumped["epochs"]
    return whole


def markdown(paper: Paper, stated: PaperSettings) -> list[str]:
    """The page's section on deviations, those of other circumstances in a table of their own, and on how the
    paper is read."""
    found = _deviations(_recipes(paper), stated) if stated.settings else []
    lines = []
    if found or stated.conditions:
        again = [
            each
            for each in found
            if all(arm in paper.counterparts for _, arms in each.values for arm in arms)
        ]
        rest = [each for each in found if each not in again]
        lines += [
            "## Deviations from the paper",
            "",
            f"{len(stated.settings)} of the paper's settings are compared, each with the variants it is "
            "listed for. These differ:",
            "",
            *_rows(rest),
            *(f"| {each.what} | {each.paper} | {each.here} | {each.why} |" for each in stated.conditions),
            "",
        ]
        if again and paper.circumstances:
            lines += [f"And these of the `{paper.circumstances.name}` variants:", "", *_rows(again), ""]
    if stated.readings:
        lines += ["## How the paper is read", "", *(f"* {reading}" for reading in stated.readings), ""]
    return lines


def _rows(found: list[Deviation]) -> list[str]:
    """A table of deviations. Variants are named where others have another value, or the setting has several
    rows."""
    lines = ["| setting | the paper | here | why |", "|---|---|---|---|"]
    for each in found:
        setting, here = each.setting, []
        alone = [other.setting.key for other in found].count(setting.key) == 1
        for value, arms in each.values:
            named = (
                f" ({', '.join(f'`{arm}`' for arm in arms)})"
                if len(arms) <= NAMED
                else f" ({len(arms)} variants)"
            )
            here.append(_plain(value) + ("" if alone and len(arms) == each.compared else named))
        lines.append(
            f"| `{setting.key}` | {_plain(setting.paper)}, {setting.where} | {'; '.join(here)} | "
            f"{setting.why} |"
        )
    return lines


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return str(value.get("kind", value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value}"
