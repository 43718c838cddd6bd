"""A labelled task for a fine-tuned bundle: accuracy and F1 of its predicted labels. It takes `classify` in
place of an encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import recipe
from edgedistill.data import labelled_tasks
from edgedistill.data.labelled_tasks import LabelledRows
from edgedistill.errors import UserError
from edgedistill.evaluation.suites.suite_files import Family, Task
from edgedistill.recipe import recorded

Classify = Callable[[list[Any]], tuple[list[str], Any]]  # texts or pairs -> (predicted labels, probabilities)


def of_recipe(described: dict[str, Any], file: str, data: Path | None) -> dict[str, LabelledRows]:
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
        columns = stage.task.texts, stage.task.label
        return {path.name: labelled_tasks.read_table(path, *columns, "--suite task")}
    if stage.task.test is None:
        raise UserError(
            "--suite task: the bundle's recipe names no test split; give a table with --suite task:FILE"
        )
    recorded.check_confined(stage.task, data, "--suite task: manifest.json: recipe.stages")
    return {"test": labelled_tasks.read_split(stage.task, "test", data, "--suite task")}


def check(labels: list[str], tasks: dict[str, LabelledRows]) -> None:
    """Raise UserError where a task has a label that is not among the bundle's."""
    for name, task in tasks.items():
        unknown = sorted(set(task.labels) - set(labels))
        if unknown:
            raise UserError(
                f"{name}: label {unknown[0]!r} is not among the bundle's ({', '.join(labels)}); give the "
                "task it was fine-tuned for"
            )


def score(task: LabelledRows, classify: Classify) -> dict[str, Any]:
    """Return `accuracy`, `f1`, and the number of `rows` and `labels`."""
    predicted, _ = classify(task.items)
    names = labelled_tasks.ordered_labels(task.labels + predicted, "the task's and the predicted labels")
    index = {name: at for at, name in enumerate(names)}
    predicted_ids, gold = (
        np.array([index[label] for label in labels]) for labels in (predicted, task.labels)
    )
    counted = {"rows": len(gold), "labels": len(names)}
    samples = {"scores": (predicted_ids == gold).astype(int).tolist()}
    return {**scores(predicted_ids, gold, names), **counted, "samples": samples}


def scores(predicted: np.ndarray, gold: np.ndarray, labels: list[str]) -> dict[str, float]:
    """Return {accuracy, f1} of predicted label ids (n,) against gold ones (n,); an id is an index
    in `labels`. `f1` is, of two labels, that of the last (as in 0 and 1) and, of more, the macro average."""
    each = [_f1(predicted == label, gold == label) for label in range(len(labels))]
    return {
        "accuracy": float((predicted == gold).mean()),
        "f1": each[-1] if len(labels) == 2 else float(np.mean(each)),
    }


def _f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return 2·hits / (predicted + gold), and 0 where neither has any."""
    total = int(predicted.sum() + gold.sum())
    return 2 * int((predicted & gold).sum()) / total if total else 0.0


FAMILY = Family(Task, None, score)  # read by `of_recipe`
