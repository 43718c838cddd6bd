"""Score an encoder on a suite: read a suite by name, evaluate it. An encoder is texts -> (n, d)
embeddings."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files
from edgedistill.errors import CheckFailed, UserError, quote, unknown_name
from edgedistill.evaluation.suites import MEASURES, labelled_task, suite_files, suite_yaml
from edgedistill.evaluation.suites.cosines import Encode
from edgedistill.evaluation.suites.retrieval import Collection

__all__ = ["Encode", "Suite", "evaluate", "languages", "suite", "task_suite", "title"]


@dataclass(frozen=True)
class Suite:
    """A suite with its files read and checked."""

    name: str
    kind: str
    about: str
    texts: list[str]  # every distinct text once; of retrieval: the queries
    tasks: dict[str, Any]  # by name, in the form its family reads

    def sample(self, count: int, seed: int = 0) -> list[Any]:
        """Draw `count` texts (of a labelled task: texts or pairs), repeated only where the suite has fewer.

        Of retrieval from queries and the corpus' first chunk.
        """
        texts: list[Any] = list(self.texts)
        for task in self.tasks.values():
            if isinstance(task, Collection):
                texts += next(task.chunks(), ([], []))[1]
            elif isinstance(task, labelled_task.TaskTestRows):
                texts += task.items
        texts = [text for text in texts if text]
        random = np.random.default_rng(seed)
        rounds = [random.permutation(len(texts)) for _ in range(-(-count // len(texts)))]
        return [texts[i] for i in np.concatenate(rounds)[:count]]


def suite(name: str | Path, data: Path | str | None = None) -> Suite:
    """Read a suite by path or shipped name. Its files are next to suite.yaml, else under `data` (or
    $EDGEDISTILL_DATA).

    `xsts:en-de,en-ru` reads only those tasks, and is then the suite's name. Raises UserError: unknown suite
        or task, invalid YAML,
    a missing file or column.
    """
    title, path, description = _described(name)
    data = data or os.environ.get("EDGEDISTILL_DATA")
    family = suite_yaml.FAMILIES[description.kind]
    texts, tasks = family.read(
        description, partial(suite_files.locate, path, data=Path(data) if data else None)
    )
    return Suite(title, description.kind, description.about, texts, tasks)


def task_suite(manifest: dict[str, Any], file: str = "", data: Path | None = None) -> Suite:
    """The task a bundle was fine-tuned for: the test split its recipe names or, with `file`, another table of
    the same columns."""
    tasks = labelled_task.of_recipe(manifest["recipe"], file, data)
    labelled_task.check(manifest["labels"], tasks)
    return Suite(f"task:{file}" if file else "task", "task", "the task of the bundle's recipe", [], tasks)


def title(name: str | Path) -> str:
    """What a suite is called in reports, by its path or shipped name. Reads suite.yaml only. Raises UserError
    as `suite`."""
    return _described(name)[0]


def languages(name: str | Path) -> set[str]:
    """The language codes in a suite's task names (en and de of en-de) and bitext columns. Reads suite.yaml
    only."""
    _, _, description = _described(name)
    named = [
        each
        for part in description.tasks
        for each in (part.name, getattr(part, "first", ""), getattr(part, "second", ""))
    ]
    return {code for each in named for code in re.split(r"[^a-z]+", each.lower()) if code}


def evaluate(suite: Suite, encode: Any) -> dict[str, Any]:
    """Score an encoder on a suite. Returns {kind, average, tasks: {name: measures}}; `average` is the mean of
    MEASURES[kind] over tasks.

    For a suite of kind `task` pass a bundle's `classify` in place of an encoder. The measures are described
    at the family's `score`. Raises CheckFailed for embeddings that are not finite, whose cosines would count
    as 0.
    """
    tasks = suite_yaml.FAMILIES[suite.kind].score(
        suite.texts, suite.tasks, partial(_finite, suite.name, encode)
    )
    averaged, _ = MEASURES[suite.kind]
    return {
        "kind": suite.kind,
        "average": float(np.mean([scores[averaged] for scores in tasks.values()])),
        "tasks": tasks,
    }


def _finite(suite: str, encode: Any, texts: Any) -> Any:
    """What an encoder gives. Raises CheckFailed where that is not finite, naming the first text."""
    found = encode(texts)
    if isinstance(found, np.ndarray) and found.dtype.kind == "f" and not np.isfinite(found).all():
        at = int(np.argmin(np.isfinite(found.reshape(len(found), -1)).all(1)))
        raise CheckFailed(
            f"suite {suite}: the embedding of {quote(texts[at])} is not finite; export or train the model "
            "again"
        )
    return found


def _described(name: str | Path) -> tuple[str, Path, suite_yaml.Description]:
    """(title, path, description) of a suite by path or shipped name; tasks after a colon restrict it to
    those."""
    whole, _, chosen = (str(name), "", "") if Path(name).is_file() else str(name).partition(":")
    path = files.find("suite", whole)
    description = suite_yaml.parse(path)
    title = description.name or (path.parent.name if path.name == "suite.yaml" else path.stem)
    return (
        (f"{title}:{chosen}", path, _restricted(description, chosen.split(","), path))
        if chosen
        else (title, path, description)
    )


def _restricted(description: suite_yaml.Description, names: list[str], path: Path) -> suite_yaml.Description:
    """The suite with only the named tasks, in its own order."""
    known = [part.name for part in description.tasks]
    for name in names:
        if name not in known:
            raise UserError(f"{path}: {unknown_name('task', name, known)}")
    return description.model_copy(
        update={"tasks": [part for part in description.tasks if part.name in names]}
    )
