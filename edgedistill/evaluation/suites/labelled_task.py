"""A labelled task for a fine-tuned bundle: accuracy and F1 of its predicted labels. It takes `classify` in
place of an encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from edgedistill import recipe
from edgedistill.data import labelled_tasks
from edgedistill.data.labelled_tasks import LabelledRows
from edgedistill.errors import UserError
from edgedistill.evaluation import classification_metrics
from edgedistill.evaluation.suites.suite_files import Family, Find, Rows, Task
from edgedistill.recipe import recorded

Classify = Callable[[list[Any]], tuple[list[str], Any]]  # texts or pairs -> (predicted labels, probabilities)


class TaskTable(Task):
    """A table of labelled texts or pairs: .tsv, .csv, .jsonl or .parquet, each also .gz."""

    file: str = Field(description="next to suite.yaml, else under --data")
    texts: list[str] = Field(
        ["sentence"], min_length=1, max_length=2, description="the column of the text, or the two of a pair"
    )
    label: str = "label"
    positive: str | None = Field(
        None, description="the label whose F1 is computed; default, of two labels: the last"
    )


@dataclass(frozen=True)
class TaskTestRows:
    """One task: texts or pairs with their labels."""

    rows: LabelledRows
    positive: str | None

    @property
    def items(self) -> list[Any]:
        """Return texts, or pairs as lists."""
        return [item[0] if len(item) == 1 else list(item) for item in self.rows.items]


def read(part: TaskTable, find: Find, rows: Rows) -> TaskTestRows:
    """Read a table of labelled texts; none is added to the suite's rows, because nothing is embedded."""
    table = labelled_tasks.read_table(find(part.file), part.texts, part.label, part.name)
    return TaskTestRows(table, part.positive)


def of_recipe(described: dict[str, Any], file: str, data: Path | None) -> dict[str, TaskTestRows]:
    """Return the test rows of the task that a bundle's recipe names or, with `file`, that table read by the
    task's columns.

    Raises UserError where the recipe names no test split, or there is no such file.
    """
    stage = recipe.parse(described, "manifest.json: recipe").finetuning
    assert stage is not None, "a bundle with labels was fine-tuned"
    if file:
        path = Path(file) if Path(file).is_file() or data is None else data / file
        if not path.is_file():
            raise UserError(
                f"--suite task:{file}: no such file; give a table with the columns "
                f"{', '.join([*stage.task.texts, stage.task.label])}"
            )
        return {
            path.name: TaskTestRows(
                labelled_tasks.read_table(path, stage.task.texts, stage.task.label, "--suite task"),
                stage.positive_label,
            )
        }
    if stage.task.test is None:
        raise UserError(
            "--suite task: the bundle's recipe names no test split; give a table with --suite task:FILE"
        )
    recorded.check_confined(stage.task, data, "--suite task: manifest.json: recipe.stages")
    return {
        "test": TaskTestRows(
            labelled_tasks.read_split(stage.task, "test", data, "--suite task"), stage.positive_label
        )
    }


def check(labels: list[str], tasks: dict[str, TaskTestRows]) -> None:
    """Raise UserError where a task has a label that is not among the bundle's."""
    for name, task in tasks.items():
        unknown = sorted(set(task.rows.labels) - set(labels))
        if unknown:
            raise UserError(
                f"{name}: label {unknown[0]!r} is not among the bundle's ({', '.join(labels)}); give the "
                "task it was fine-tuned for"
            )


def score(texts: list[str], tasks: dict[str, TaskTestRows], classify: Classify) -> dict[str, dict[str, Any]]:
    """Return, per task, `accuracy`, `f1`, `macro_f1`, and the number of `rows` and `labels`."""
    return {name: _score_task(task, classify) for name, task in tasks.items()}


def _score_task(task: TaskTestRows, classify: Classify) -> dict[str, Any]:
    predicted, _ = classify(task.items)
    names = labelled_tasks.ordered_labels(task.rows.labels + predicted, "the task's and the predicted labels")
    index = {name: at for at, name in enumerate(names)}
    predicted_ids, gold = (
        np.array([index[label] for label in labels]) for labels in (predicted, task.rows.labels)
    )
    return {
        **classification_metrics.scores(predicted_ids, gold, names, task.positive),
        "rows": len(gold),
        "labels": len(names),
    }


FAMILY = Family(TaskTable, read, score)
