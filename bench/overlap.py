"""What the texts that shipped students, and those of the other shipped recipes, are trained on have in common
with test sets: equal texts, whatever their case, accents and punctuation, and documents that share 13 words
in a row with a training text. Files count as a whole, also where a recipe samples them.

python bench/overlap.py DATA
"""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgedistill import files, recipe
from edgedistill.data import deduplicate, input_file
from edgedistill.evaluation import scoring
from edgedistill.evaluation.suites import retrieval, suite_files, transfer

SUITES = ("search-test", "search-languages", "sts7", "sts17", "xsts", "bitext", "transfer")
OTHERS = "other recipes"  # in the place of a student
WORDS = 13


def recipes() -> dict[str, list[str]]:
    """The recipes of each shipped student, and all others."""
    found, left = dict[str, list[str]](), list(files.shipped("recipe"))
    for student, folder in files.shipped("bundle").items():
        manifest = files.read_json(folder)
        earlier = [each["recipe"] for each in manifest["run"].get("earlier", [])]
        found[student] = [manifest["recipe"]["name"], *earlier]
        left = [name for name in left if name not in found[student]]
    return {**found, OTHERS: left}


def files_read(names: list[str], data: Path) -> set[str]:
    """The files of texts without labels that recipes name, below the folder of data."""
    specs = [recipe.read(files.shipped("recipe")[name]) for name in names]
    rows = [rows for spec in specs for rows in (spec.rows, *(stage.rows for stage in spec.stages)) if rows]
    patterns = {name for each in rows if not each.label for named, _ in each.patterns for name in named}
    return {path.relative_to(data).as_posix() for pattern in patterns for path in data.glob(pattern)}


def spans(text: str) -> set[int]:
    """Numbers that texts have in common that share 13 words in a row."""
    words = re.findall(r"\w+", text.lower())
    return {*map(hash, zip(*(words[at:] for at in range(WORDS)), strict=False))}


def marks(text: str) -> set[int]:
    """These, and one that equal texts have in common."""
    return {deduplicate.key(text), *spans(text)}


def tested_rows(task: transfer.Labelled) -> list[str]:
    """The texts that are tested on: all if a set is cross-validated."""
    rows = task.split == 2 if task.protocol.folds is None else task.split >= 0
    return [text for side in task.sides for text, is_tested in zip(side, rows, strict=True) if is_tested]


def tested(data: Path) -> dict[tuple[str, str, str], list[set[int]]]:
    """The marks of every text of the test sets, by suite, task and kind of text."""
    found = dict[tuple[str, str, str], list[set[int]]]()
    for suite in SUITES:
        for task, of in scoring.suite(suite, data).tasks.items():
            kind = "sentences"
            if isinstance(of, retrieval.Collection):
                kind, rows = "queries", suite_files.records(of.corpus)
                found[suite, task, "documents"] = [
                    marks(text) | marks(f"{title} {text}") for _, title, text in rows
                ]
            texts = tested_rows(of) if isinstance(of, transfer.Labelled) else of.texts
            found[suite, task, kind] = [{deduplicate.key(text)} for text in dict.fromkeys(texts)]
    return found


def main(data: Path) -> None:
    tests = tested(data)
    wanted, common = set().union(*(texts for each in tests.values() for texts in each)), dict[str, set[int]]()
    report: dict[str, Any] = {"schema": 1, "bench": "overlap", "files": {}, "found": []}
    report["made_at"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for student, names in recipes().items():
        report["files"][student] = sorted(files_read(names, data))
        for name in set(report["files"][student]) - set(common):
            cells = (cell for _, line in input_file.lines(data / name) for cell in line.split("\t"))
            common[name] = {mark for cell in cells for mark in marks(cell) & wanted}
        shared = set().union(*(common[name] for name in report["files"][student]))
        for (suite, task, kind), texts in tests.items():
            row = {"student": student, "suite": suite, "task": task, "kind": kind, "texts": len(texts)}
            report["found"].append({**row, "common": sum(not each.isdisjoint(shared) for each in texts)})
    files.write_json(Path(__file__).parent / "reports/overlap.json", report)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="the folder of training texts and test sets")
    main(parser.parse_args().data)
