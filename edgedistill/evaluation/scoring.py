"""Score an encoder on a suite: read a suite by name, evaluate it. An encoder is texts -> (n, d)
embeddings."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from pydantic import Field

from edgedistill import files, recipe
from edgedistill.data.labelled_tasks import LabelledRows
from edgedistill.errors import CheckFailed, UserError, quote, unknown_name
from edgedistill.evaluation.suites import FAMILIES, labelled_task
from edgedistill.evaluation.suites.cosines import Encode, Encoder, encoded, unit
from edgedistill.evaluation.suites.retrieval import Collection, Documents, Search, rankings
from edgedistill.evaluation.suites.suite_files import Rows, Task, locate
from edgedistill.recipe import Section, yaml_file
from edgedistill.runtime.compact import compact, expanded
from edgedistill.runtime.similarity import not_finite

__all__ = [
    "Documents",
    "Encode",
    "Encoder",
    "Search",
    "Suite",
    "describe",
    "evaluate",
    "evaluate_search",
    "finite",
    "languages",
    "suite",
    "task_suite",
    "title",
]
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
    texts: list[str]  # every distinct text once; of retrieval: the queries
    tasks: dict[str, Any]  # by name, in the form its family reads

    def sample(self, count: int, seed: int = 0) -> list[Any]:
        """Draw `count` texts (of a labelled task: texts or pairs), repeated only where the suite has fewer.

        Those of a retrieval suite are drawn from the queries and the corpus' first chunk.
        """
        texts: list[Any] = list(self.texts)
        for task in self.tasks.values():
            if isinstance(task, Collection):
                texts += next(task.chunks(), ([], []))[1]
            elif isinstance(task, LabelledRows):
                texts += task.items
        texts = [text for text in texts if text]
        random = np.random.default_rng(seed)
        rounds = [random.permutation(len(texts)) for _ in range(-(-count // len(texts)))]
        return [texts[i] for i in np.concatenate(rounds)[:count]]


def suite(name: str | Path, data: Path | str | None = None) -> Suite:
    """Read a suite by path or shipped name. Its files are next to suite.yaml, else under `data` (or
    $EDGEDISTILL_DATA).

    `xsts:en-de,en-ru` reads only those tasks, and is then the suite's name; `mteb:STS12` is a task of mteb.
    Raises UserError for an unknown suite or task, invalid YAML, and a missing file or column.
    """
    title, path, description = _described(name)
    data = data or os.environ.get("EDGEDISTILL_DATA")
    find = partial(locate, path, data=Path(data) if data else None)
    rows, read = Rows(), FAMILIES[description.kind].read
    assert read is not None, "`describe` refuses such kinds"
    tasks = {part.name: read(part, find, rows) for part in description.tasks}
    return Suite(title, description.kind, list(rows), tasks)


def task_suite(manifest: dict[str, Any], file: str = "", data: Path | None = None) -> Suite:
    """Return the task a bundle was fine-tuned for: the test split its recipe names or, with `file`, another
    table of the same columns."""
    tasks = labelled_task.of_recipe(manifest["recipe"], file, data)
    labelled_task.check(manifest["labels"], tasks)
    return Suite(f"task:{file}" if file else "task", "task", [], tasks)


def title(name: str | Path) -> str:
    """Return what a suite, by path or shipped name, is called in reports. Only suite.yaml is read. Raises
    UserError as `suite`."""
    return _described(name)[0]


def languages(name: str | Path) -> set[str]:
    """Return the language codes in a suite's task names (en and de of en-de) and bitext columns. Only
    suite.yaml is read."""
    _, _, description = _described(name)
    named = [
        each
        for part in description.tasks
        for each in (part.name, getattr(part, "first", ""), getattr(part, "second", ""))
    ]
    return {code for each in named for code in re.split(r"[^a-z]+", each.lower()) if code}


def evaluate(
    suite: Suite, encode: Any, precisions: Sequence[str] = (), samples: bool = False
) -> dict[str, Any]:
    """Score an encoder on a suite. Returns {kind, average, tasks: {name: measures}}; `average` is the mean
    over tasks of the measure that the family averages.

    `precisions`: of embeddings, in which a family that shares them is scored too (see `runtime.compact`);
    the result and each task then have `embeddings`, {precision: score}. `encode` is a bundle, an `Encoder`,
    or embeds texts of all roles: a suite of retrieval has queries and documents. For a suite of kind `task`
    pass a bundle's `classify`. The measures are described at the family's `score`; `samples`, the scores of
    single items, are left out where not asked for. Raises CheckFailed for
    embeddings that are not finite, whose cosines would count as 0.
    """
    family, encoder = FAMILIES[suite.kind], finite(encode, f"suite {suite.name}")
    given: Any = encoder if family.roles else encoder.text
    if family.shares_embeddings:
        given = unit(encoded(given, suite.texts))
    tasks = {name: family.score(task, given) for name, task in suite.tasks.items()}
    for precision in precisions:
        rows = unit(expanded(compact(given, precision, encoder.calibration)))
        for name, task in suite.tasks.items():
            score = family.score(task, rows)[family.averaged]
            tasks[name]["embeddings"] = {**tasks[name].get("embeddings", {}), precision: score}
    for measures in tasks.values() if not samples else ():
        measures.pop("samples", None)
    return _averaged(suite, tasks)


def evaluate_search(suite: Suite, encode: Any, search: Search) -> dict[str, dict[str, Any]]:
    """Score an encoder, as `evaluate` takes it, on a suite of kind retrieval, alone and beside what `search`
    names. Returns, by the suite's name and the title of each ranking, what `evaluate` returns; of one with
    BM25 also its `weight` and the average of `bm25` alone."""
    given, by_title = finite(encode, f"suite {suite.name}"), dict[str, dict[str, Any]]()
    for name, task in suite.tasks.items():
        for title, measures in rankings(task, given, search).items():
            by_title.setdefault(f"{suite.name}{title}", {})[name] = measures
    found = {title: _averaged(suite, tasks) for title, tasks in by_title.items()}
    for each in found.values():
        alone = [measures["bm25"]["ndcg_at_10"] for measures in each["tasks"].values() if "bm25" in measures]
        if alone:
            each.update(weight=search.weight, bm25=float(np.mean(alone)))
    return found


def _averaged(suite: Suite, tasks: dict[str, Any]) -> dict[str, Any]:
    measure = FAMILIES[suite.kind].averaged
    average = float(np.mean([scores[measure] for scores in tasks.values()]))
    found = {"kind": suite.kind, "average": average, "tasks": tasks}
    if compacted := [scores["embeddings"] for scores in tasks.values() if "embeddings" in scores]:
        found["embeddings"] = {
            name: float(np.mean([scores[name] for scores in compacted])) for name in compacted[0]
        }
    return found


def finite(encode: Any, place: str) -> Encoder:
    """Return an encoder, by the roles of texts, that raises CheckFailed for embeddings that are not finite,
    naming the first text."""

    def checked(encode: Encode, texts: Any) -> Any:
        found = encode(texts)
        is_float = isinstance(found, np.ndarray) and found.dtype.kind == "f"
        if is_float and (at := not_finite(found)) is not None:
            raise CheckFailed(
                f"{place}: the embedding of {quote(texts[at])} is not finite; export or train the model again"
            )
        return found

    text, query, document, calibration = Encoder.of(encode)
    return Encoder(partial(checked, text), partial(checked, query), partial(checked, document), calibration)


def describe(path: Path) -> Description[Any]:
    """Read and check a suite.yaml, but none of the files it names. Raises UserError with all its problems."""
    data = yaml_file.read(path)
    if not isinstance(data, dict):
        raise UserError(
            f"{path}: a suite is a mapping, this is a {type(data).__name__}; see bench/suites/sts7/suite.yaml"
        )
    known = [name for name, each in FAMILIES.items() if each.read is not None]
    if data.get("kind") not in known:
        raise UserError(f"{path}: kind: {unknown_name('kind of suite', data.get('kind', ''), known)}")
    family = FAMILIES[data["kind"]]
    kind: Any = Description[family.task]  # type: ignore[name-defined]
    description: Description[Any] = recipe.checked(data, str(path), kind)
    names = [part.name for part in description.tasks]
    if len(set(names)) < len(names):
        raise UserError(f"{path}: tasks: two have the same name ({', '.join(sorted(names))}); rename one")
    return description


def _described(name: str | Path) -> tuple[str, Path, Description[Any]]:
    """Return (title, path, description) of a suite by path or shipped name; tasks after a colon restrict it
    to those, in its own order."""
    whole, chosen = str(name), ""
    if whole.startswith("mteb:"):
        tasks = [Task(name=each) for each in whole.removeprefix("mteb:").split(",")]
        return whole, Path("mteb"), Description(kind="mteb", tasks=tasks)
    if not Path(name).is_file():
        whole, _, chosen = whole.partition(":")
    path = files.find("suite", whole)
    description = describe(path)
    title = description.name or (path.parent.name if path.name == "suite.yaml" else path.stem)
    if not chosen:
        return title, path, description
    known, names = {part.name: part for part in description.tasks}, chosen.split(",")
    for each in names:
        if each not in known:
            raise UserError(f"{path}: {unknown_name('task', each, known)}")
    tasks = [part for part in description.tasks if part.name in names]
    return f"{title}:{chosen}", path, description.model_copy(update={"tasks": tasks})
