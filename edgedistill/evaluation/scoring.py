"""Score an encoder on a suite: read a suite by name, evaluate it. An encoder is texts -> (n, d)
embeddings."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from pydantic import Field

from edgedistill import files, recipe
from edgedistill.errors import UserError, unknown_name
from edgedistill.evaluation.suites import FAMILIES, FLOAT32_ALONE, labelled_task
from edgedistill.evaluation.suites.cosines import Encode, Encoder, Measures, Remembered
from edgedistill.evaluation.suites.mteb_task import MtebTask
from edgedistill.evaluation.suites.suite_files import Search, Task, TaskData, locate
from edgedistill.recipe import Section, yaml_file

__all__ = [
    "Encode",
    "Encoder",
    "Search",
    "Suite",
    "describe",
    "evaluate",
    "languages",
    "rankings",
    "suite",
    "task_suite",
    "title",
]
SHIPPED = ("mini", "sts-small")  # whose texts ship: `adapt` and `fit` judge by them
T = TypeVar("T", bound=Task)


class Description(Section, Generic[T]):
    """A whole suite.yaml, with the tasks of one family."""

    kind: str
    name: str | None = None
    about: str = ""
    tasks: list[T] = Field(min_length=1)


@dataclass(frozen=True)
class Suite:
    """A suite with its files read and checked."""

    name: str
    kind: str
    tasks: dict[str, TaskData]

    @cached_property
    def texts(self) -> list[str]:
        """Every distinct text once; of retrieval: the queries."""
        return list(dict.fromkeys(text for task in self.tasks.values() for text in task.texts))

    def sample(self, count: int) -> list[Any]:
        """Draw `count` texts (of a labelled task: texts or pairs), repeated only where the suite has fewer.

        Those of a retrieval suite are drawn from the queries and the corpus' first chunk.
        """
        texts = [text for task in self.tasks.values() for text in task.timed if text]
        distinct = texts if self.kind == "task" else list(dict.fromkeys(texts))
        random = np.random.default_rng(0)
        order = list[int]()
        while len(order) < count:
            order += random.permutation(len(distinct)).tolist()
        return [distinct[at] for at in order[:count]]


def suite(name: str | Path, data: Path | str | None = None) -> Suite:
    """Read a suite by path or shipped name. Its files are next to suite.yaml, else under `data` (or
    $EDGEDISTILL_DATA).

    `xsts:en-de,en-ru` reads only those tasks, and is then the suite's name; `mteb:STS12` is a task of mteb.
    Raises UserError for an unknown suite or task, invalid YAML, and a missing file or column.
    """
    title, path, description = _described(name)
    data = data or os.environ.get("EDGEDISTILL_DATA")
    find = partial(locate, path, data=Path(data) if data else None)
    return Suite(title, description.kind, {part.name: part.read(find) for part in description.tasks})


def task_suite(manifest: Measures, file: str = "", data: Path | None = None) -> Suite:
    """Return the task a bundle was fine-tuned for: the test split its recipe names or, with `file`, another
    table of the same columns."""
    tasks = labelled_task.of_recipe(manifest, file, data)
    return Suite(f"task:{file}" if file else "task", "task", dict(tasks))


def title(name: str | Path) -> str:
    """Return what a suite, by path or shipped name, is called in reports. Only suite.yaml is read. Raises
    UserError as `suite`."""
    return _described(name)[0]


def languages(name: str | Path) -> set[str]:
    """Return the language codes in a suite's task names (en and de of en-de) and bitext columns. Only
    suite.yaml is read."""
    _, _, description = _described(name)
    codes = set()
    for part in description.tasks:
        for named in (part.name, getattr(part, "first", ""), getattr(part, "second", "")):
            codes.update(re.findall(r"[a-z]+", named.lower()))
    return codes


def evaluate(suite: Suite, encode: Any, precisions: Sequence[str] = (), samples: bool = False) -> Measures:
    """Score an encoder on a suite. Returns {kind, average, tasks: {name: measures}}; `average` is the mean
    over tasks of the measure that the family averages.

    `precisions`: of embeddings, in which a family that shares them is scored too (see `runtime.compact`);
    the result and each task then have `embeddings`, {precision: score}. `encode` is a bundle, an `Encoder`,
    or embeds texts of all roles: a suite of retrieval has queries and documents. For a suite of kind `task`
    pass a bundle's `classify`. The measures are described at the family's `score`; `samples`, the scores of
    single items, are left out where not asked for.
    """
    quality = rankings(suite, encode, Search(precisions=tuple(precisions)))[suite.name]
    for measures in quality["tasks"].values() if not samples else ():
        measures.pop("samples", None)
    return quality


def rankings(suite: Suite, encode: Any, search: Search) -> dict[str, Measures]:
    """Score an encoder on a suite, of kind retrieval also beside what `search` names. Returns, by the suite's
    name and that with the title of each further ranking, what `evaluate` returns; of a ranking with BM25 also
    its `weight` and the average of `bm25` alone."""
    encoder = Encoder.of(encode)
    by_title: dict[str, dict[str, Measures]] = {}
    averaged = FAMILIES[suite.kind].averaged
    if suite.kind not in FLOAT32_ALONE:
        encoder = encoder._replace(text=Remembered(encoder.text))  # tasks share texts
    for name, task in suite.tasks.items():
        for title, measures in task.rankings(encoder, search, averaged).items():
            by_title.setdefault(f"{suite.name}{title}", {})[name] = measures
    qualities = {}
    for title, tasks in by_title.items():
        measured = list(tasks.values())
        quality = {"kind": suite.kind, "average": _mean(measured, averaged), "tasks": tasks}
        if "embeddings" in measured[0]:
            compacted = [measures["embeddings"] for measures in measured]
            quality["embeddings"] = {name: _mean(compacted, name) for name in compacted[0]}
        if "bm25" in measured[0]:
            alone = _mean([measures["bm25"] for measures in measured], averaged)
            quality |= {"weight": search.weight, "bm25": alone}
        qualities[title] = quality
    return qualities


def _mean(measures: list[Measures], name: str) -> float:
    return float(np.mean([scores[name] for scores in measures]))


def describe(path: Path) -> Description[Any]:
    """Read and check a suite.yaml, but none of the files it names. Raises UserError with all its problems."""
    data = yaml_file.read(path)
    if not isinstance(data, dict):
        raise UserError(
            f"{path}: a suite is a mapping, this is a {type(data).__name__}; see bench/suites/sts7/suite.yaml"
        )
    kind = data.get("kind", "")
    known = [name for name in FAMILIES if name != "task"]
    if kind not in known:
        raise UserError(f"{path}: kind: {unknown_name('kind of suite', kind, known)}")
    task: Any = FAMILIES[kind]
    section: Any = Description[task]
    description: Description[Any] = recipe.checked(data, str(path), section)
    names = [part.name for part in description.tasks]
    if len(set(names)) < len(names):
        raise UserError(f"{path}: tasks: two have the same name ({', '.join(sorted(names))}); rename one")
    return description


def _described(name: str | Path) -> tuple[str, Path, Description[Any]]:
    """Return (title, path, description) of a suite by path or shipped name; tasks after a colon restrict it
    to those, in its own order."""
    whole, _, chosen = str(name).partition(":")
    if whole == "mteb":
        tasks = [MtebTask(name=task) for task in chosen.split(",")]
        return str(name), Path("mteb"), Description(kind="mteb", tasks=tasks)
    if Path(name).is_file():
        whole = str(name)
        chosen = ""
    path = files.find("suite", whole)
    description = describe(path)
    title = description.name or (path.parent.name if path.name == "suite.yaml" else path.stem)
    if not chosen:
        return title, path, description
    known = [part.name for part in description.tasks]
    for task in chosen.split(","):
        if task not in known:
            raise UserError(f"{path}: {unknown_name('task', task, known)}")
    tasks = [part for part in description.tasks if part.name in chosen.split(",")]
    return f"{title}:{chosen}", path, description.model_copy(update={"tasks": tasks})
