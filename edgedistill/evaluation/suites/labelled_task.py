"""A labelled task as a fine-tuned bundle answers it: accuracy and F1. In place of an encoder: items -> (labels, probabilities)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from edgedistill import recipe
from edgedistill.data import labelled
from edgedistill.data.labelled import Rows
from edgedistill.errors import UserError
from edgedistill.evaluation.suites.suite_files import Find, Part

Classify = Callable[[list[Any]], tuple[list[str], Any]]


class TaskTable(Part):
    """A table of labelled texts or pairs: .tsv, .csv, .jsonl or .parquet, each also .gz."""

    name: str = Field(description="of the task")
    file: str = Field(description="beside suite.yaml, else under --data")
    texts: list[str] = Field(["sentence"], min_length=1, max_length=2, description="the column of the text, or the two of a pair")
    label: str = "label"
    positive: str | None = Field(None, description="the label whose F1 is meant; default, of two labels: the last")


class TaskSuite(Part):
    """How often a classifier is right."""

    kind: Literal["task"]
    name: str | None = None
    about: str = ""
    tasks: list[TaskTable] = Field(min_length=1)


@dataclass(frozen=True)
class Judged:
    """One task: what is asked, and what is right."""

    rows: Rows
    positive: str | None

    @property
    def items(self) -> list[Any]:
        """Texts, or pairs as lists."""
        return [item[0] if len(item) == 1 else list(item) for item in self.rows.items]


def read(spec: TaskSuite, find: Find) -> tuple[list[str], dict[str, Judged]]:
    """(no texts: vectors are not asked for, each task by name)."""
    found = {part.name: (part, labelled.of_file(find(part.file), part.texts, part.label, part.name)) for part in spec.tasks}
    return [], {name: Judged(rows, part.positive) for name, (part, rows) in found.items()}


def of_recipe(described: dict[str, Any], file: str, data: Path | None) -> dict[str, Judged]:
    """The test rows of the task that a bundle's recipe names or, with `file`, that table read by the task's columns.

    Raises UserError: the recipe names no test split, no such file.
    """
    stage = recipe.parse(described, "manifest.json: recipe").finetuning
    assert stage is not None, "a bundle with labels was fine-tuned"
    if file:
        path = Path(file) if Path(file).is_file() or data is None else data / file
        if not path.is_file():
            raise UserError(
                f"--suite task:{file}: no such file; give a table with the columns {', '.join([*stage.task.texts, stage.task.label])}"
            )
        return {path.name: Judged(labelled.of_file(path, stage.task.texts, stage.task.label, "--suite task"), stage.positive)}
    if stage.task.test is None:
        raise UserError("--suite task: the bundle's recipe names no test split; give a table with --suite task:FILE")
    return {"test": Judged(labelled.split(stage.task, "test", data, "--suite task"), stage.positive)}


def check(labels: list[str], tasks: dict[str, Judged]) -> None:
    """Raise UserError where a task has a label that a classifier of these does not know."""
    for name, task in tasks.items():
        odd = sorted(set(task.rows.labels) - set(labels))
        if odd:
            raise UserError(
                f"{name}: label {odd[0]!r} is not among the bundle's ({', '.join(labels)}); give the task it was fine-tuned for"
            )


def score(texts: list[str], tasks: dict[str, Judged], classify: Classify) -> dict[str, dict[str, Any]]:
    """Per task `accuracy`, `f1`, `macro_f1`, and how many rows and labels."""
    return {name: _score_task(task, classify) for name, task in tasks.items()}


def _score_task(task: Judged, classify: Classify) -> dict[str, Any]:
    found, _ = classify(task.items)
    names = labelled.ordered(task.rows.labels + found, "the task and what was found")
    place = {name: at for at, name in enumerate(names)}
    answers, gold = (np.array([place[label] for label in labels]) for labels in (found, task.rows.labels))
    return {**labelled.scores(answers, gold, names, task.positive), "rows": len(gold), "labels": len(names)}
