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
        classify = encoder.text
        predicted, _ = classify(self.items)
        labels = [*self.labels, *predicted]
        names = labelled_tasks.ordered_labels(labels, "the task's and the predicted labels")
        index = {name: number for number, name in enumerate(names)}
        ids = np.array([index[label] for label in labels])
        gold, predicted_ids = np.split(ids, [len(self.labels)])
        samples = {"scores": (predicted_ids == gold).astype(int).tolist()}
        counted = {"rows": len(gold), "labels": len(names)}
        return {**scores(predicted_ids, gold, names), **counted, "samples": samples}


def of_recipe(manifest: Measures, file: str, data: Path | None) -> dict[str, ClassifiedRows]:
    """Return the test rows of the task that a bundle's recipe names or, with `file`, that table read by the
    task's columns.

    Raises UserError where the recipe names no test split, there is no such file, or a label is not among the
    bundle's.
    """
    option = "--suite task"
    known = manifest["labels"]
    spec = recipe.parse(manifest["recipe"], "manifest.json: recipe", recorded=True).finetuning
    if spec is None or (spec.rows.test is None and not file):
        raise UserError(f"{option}: the bundle's recipe names no test split; give a table with {option}:FILE")
    task = spec.rows
    name = "test"
    if file:
        path = Path(file) if Path(file).is_file() or data is None else data / file
        columns = [*map(str, task.columns)]
        name = path.name
        if not path.is_file():
            raise UserError(
                f"{option}:{file}: no such file; give a table with the columns "
                f"{', '.join([*columns, str(task.label)])}"
            )
        rows = labelled_tasks.read_table(path, columns, str(task.label), option)
    else:
        recorded.check_confined(task, data, f"{option}: manifest.json: recipe.stages")
        rows = labelled_tasks.read_test(task, data, option)
    if unknown := sorted(set(rows.labels) - set(known)):
        raise UserError(
            f"{name}: label {unknown[0]!r} is not among the bundle's ({', '.join(known)}); give the "
            "task it was fine-tuned for"
        )
    return {name: ClassifiedRows(*rows)}


def scores(predicted: np.ndarray, gold: np.ndarray, labels: list[str]) -> dict[str, float]:
    """Return {accuracy, f1} of predicted label ids (n,) against gold ones (n,); an id is an index
    in `labels`. `f1` is, of two labels, that of the last (as in 0 and 1) and, of more, the macro average: of
    a label 2·hits / (predicted + gold), and 0 where neither has any."""
    by_label = []
    for label in range(len(labels)):
        one = predicted == label
        other = gold == label
        by_label.append(2 * int((one & other).sum()) / max(1, int(one.sum() + other.sum())))
    return {
        "accuracy": float((predicted == gold).mean()),
        "f1": by_label[-1] if len(labels) == 2 else float(np.mean(by_label)),
    }
