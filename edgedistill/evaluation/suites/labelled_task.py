"""A labelled task for a fine-tuned bundle: accuracy and F1 of its predicted labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import recipe
from edgedistill.data import labelled_tasks
from edgedistill.errors import UserError
from edgedistill.evaluation.suites.cosines import Encoder, Measures
from edgedistill.evaluation.suites.suite_files import Task, TaskData
from edgedistill.recipe import recorded


class TaskOfRecipe(Task):
    """The task that a bundle's recipe names, read by `of_recipe`."""


@dataclass(frozen=True)
class ClassifiedRows(TaskData):
    """Texts or pairs with their labels. What scores them is `classify` of a bundle, in place of an
    encoder: items -> (predicted labels, probabilities)."""

    items: list[Any]
    labels: list[str]

    @property
    def timed(self) -> list[Any]:
        return self.items

    def score(self, encoder: Encoder) -> Measures:
        """`accuracy`, `f1`, and the number of `rows` and `labels`."""
        classify: Any = encoder.text
        predicted, _ = classify(self.items)
        labels = [*self.labels, *predicted]
        names = labelled_tasks.ordered_labels(labels, "the task's and the predicted labels")
        index = {name: number for number, name in enumerate(names)}
        ids = np.array([index[label] for label in labels])
        gold, predicted_ids = np.split(ids, [len(self.labels)])
        samples = {"scores": (predicted_ids == gold).astype(int).tolist()}
        counted = {"rows": len(gold), "labels": len(names)}
        return {**scores(predicted_ids, gold, names), **counted, "samples": samples}


def of_recipe(described: dict[str, Any], file: str, data: Path | None) -> dict[str, ClassifiedRows]:
    """Return the test rows of the task that a bundle's recipe names or, with `file`, that table read by the
    task's columns.

    Raises UserError where the recipe names no test split, or there is no such file.
    """
    spec = recipe.parse(described, "manifest.json: recipe").finetuning
    assert spec is not None, "a bundle with labels was fine-tuned"
    task = spec.rows
    columns = list(map(str, task.columns))
    label = str(task.label)
    if file:
        path = Path(file) if Path(file).is_file() or data is None else data / file
        if not path.is_file():
            way_out = f"give a table with the columns {', '.join([*columns, label])}"
            raise UserError(f"--suite task:{file}: no such file; {way_out}")
        rows = labelled_tasks.read_table(path, columns, label, "--suite task")
        return {path.name: ClassifiedRows(*rows)}
    if task.test is None:
        way_out = "give a table with --suite task:FILE"
        raise UserError(f"--suite task: the bundle's recipe names no test split; {way_out}")
    recorded.check_confined(task, data, "--suite task: manifest.json: recipe.stages")
    rows = labelled_tasks.read_split(task, "test", data, "--suite task")
    return {"test": ClassifiedRows(*rows)}


def check(labels: list[str], tasks: dict[str, ClassifiedRows]) -> None:
    """Raise UserError where a task has a label that is not among the bundle's."""
    for name, task in tasks.items():
        unknown = sorted(set(task.labels) - set(labels))
        if unknown:
            raise UserError(
                f"{name}: label {unknown[0]!r} is not among the bundle's ({', '.join(labels)}); give "
                "the task it was fine-tuned for"
            )


def scores(predicted: np.ndarray, gold: np.ndarray, labels: list[str]) -> dict[str, float]:
    """Return {accuracy, f1} of predicted label ids (n,) against gold ones (n,); an id is an index
    in `labels`. `f1` is, of two labels, that of the last (as in 0 and 1) and, of more, the macro average."""
    by_label = [_f1(predicted == label, gold == label) for label in range(len(labels))]
    return {
        "accuracy": float((predicted == gold).mean()),
        "f1": by_label[-1] if len(labels) == 2 else float(np.mean(by_label)),
    }


def _f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return 2·hits / (predicted + gold), and 0 where neither has any."""
    total = int(predicted.sum() + gold.sum())
    return 2 * int((predicted & gold).sum()) / total if total else 0.0
