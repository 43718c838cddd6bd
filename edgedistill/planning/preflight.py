"""Problems of a recipe that are found in a moment: before torch is imported, a corpus is built or a text
embedded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgedistill.data import file_patterns
from edgedistill.errors import Problems, UserError
from edgedistill.evaluation import scoring
from edgedistill.recipe import Recipe

STARTER = "starter"  # the recipe to begin with


def check_all(specs: list[Recipe], data: Path | None) -> None:
    """Check several recipes. Raises one UserError with the problems of all of them."""
    if data is not None and not data.is_dir():
        raise UserError(
            f"--data {data}: no such folder; give the folder that the recipes' relative paths start from"
        )
    problems = Problems()
    for spec in specs:
        with problems.collect(f"{spec.name}: " if len(specs) > 1 else ""):
            check(spec, data)
    problems.raise_any()


def check(spec: Recipe, data: Path | None) -> None:
    """Raises one UserError with all of these: globs that match no file, suites that cannot be read."""
    problems = Problems()
    listed = list(_patterns(spec))
    relative = [pattern for patterns, _ in listed for pattern in filter(file_patterns.is_relative, patterns)]
    if data is None and relative:
        more = f" and {len(relative) - 1} more" if relative[1:] else ""
        problems.found.append(
            f"{spec.name}: reads {relative[0]!r}{more} in a data folder; give --data DIR or set "
            f"EDGEDISTILL_DATA; the recipe {STARTER} is for your own texts"
        )
        listed = []
    for patterns, place in listed:
        with problems.collect():
            file_patterns.matching_files(patterns, data, place)
    if spec.select is not None:
        with problems.collect("select.suite: "):
            scoring.suite(spec.select.suite, data)
    if spec.requirements is not None and spec.requirements.suite is not None:
        with problems.collect("requirements.suite: "):
            scoring.title(spec.requirements.suite)
    problems.raise_any()


def _patterns(spec: Recipe) -> Iterator[tuple[list[str], str]]:
    """(globs of the files that training reads, the recipe's key for them)."""
    if not spec.reads_rows:
        return  # the unchanged teacher, or a student that learns only from labels: the rows are for bench
    sections = [("rows", spec.rows)]
    sections += [(f"stages[{number}].rows", stage.rows) for number, stage in enumerate(spec.distilling)]
    for place, rows in sections:
        if rows is not None:
            yield from ((globs, f"{place}.{key}") for globs, key in rows.patterns)
            yield rows.exclude, f"{place}.exclude"
