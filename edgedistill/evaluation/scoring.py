"""How good vectors are: suites of tasks, and agreement with the teacher. An encoder is texts -> (n, d) rows."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import Field, TypeAdapter, ValidationError

from edgedistill import files
from edgedistill.errors import UserError, unknown
from edgedistill.evaluation.suites import MEASURES, bitext, labelled_task, pair_classification, retrieval, sts, suite_files, transfer
from edgedistill.evaluation.suites.cosines import Encode, Floats, Ints, dot, spearman, unit
from edgedistill.evaluation.suites.retrieval import Collection, ndcg

__all__ = ["Collection", "Encode", "Floats", "Ints", "Suite", "agreement", "evaluate", "ndcg", "spearman", "suite", "task_suite"]

Spec = (
    sts.StsSuite
    | retrieval.RetrievalSuite
    | bitext.BitextSuite
    | transfer.TransferSuite
    | pair_classification.SimilaritySuite
    | labelled_task.TaskSuite
)
Read = Callable[[Any, suite_files.Find], tuple[list[str], dict[str, Any]]]
Score = Callable[[list[str], dict[str, Any], Any], dict[str, dict[str, Any]]]
_SUITE: TypeAdapter[Spec] = TypeAdapter(Annotated[Spec, Field(discriminator="kind")])
_KINDS: dict[str, tuple[type[suite_files.Part], type[suite_files.Part], Read, Score]] = {  # a suite, one of its tasks, read, score
    "sts": (sts.StsSuite, sts.StsFile, sts.read, sts.score),
    "retrieval": (retrieval.RetrievalSuite, retrieval.RetrievalFolder, retrieval.read, retrieval.score),
    "bitext": (bitext.BitextSuite, bitext.BitextFile, bitext.read, bitext.score),
    "transfer": (transfer.TransferSuite, transfer.TransferFolder, transfer.read, transfer.score),
    "similarity": (
        pair_classification.SimilaritySuite,
        pair_classification.PairTables,
        pair_classification.read,
        pair_classification.score,
    ),
    "task": (labelled_task.TaskSuite, labelled_task.TaskTable, labelled_task.read, labelled_task.score),
}


@dataclass(frozen=True)
class Suite:
    """What to measure, its files read and checked."""

    name: str
    kind: str
    about: str
    texts: list[str]  # every distinct text once; retrieval: the queries
    tasks: dict[str, Any]  # by name, as its family holds them

    def sample(self, count: int, seed: int = 0) -> list[Any]:
        """`count` texts (of a task: its texts or pairs) drawn from the suite's own, with repetition only where it has fewer.

        Of retrieval both queries and corpus.
        """
        texts: list[Any] = list(self.texts)
        for part in self.tasks.values():
            if isinstance(part, Collection):
                texts += next(part.chunks(), ([], []))[1]
            elif isinstance(part, labelled_task.Judged):
                texts += part.items
        texts = [text for text in texts if text]
        random = np.random.default_rng(seed)
        rounds = [random.permutation(len(texts)) for _ in range(-(-count // len(texts)))]
        return [texts[i] for i in np.concatenate(rounds)[:count]]


def suite(name: str | Path, data: Path | str | None = None) -> Suite:
    """Read a suite by path or shipped name, with its files: beside suite.yaml first, else under `data` (or $EDGEDISTILL_DATA).

    `xsts:en-de,en-ru` reads those tasks of it alone, and is then the suite's name. Raises UserError: unknown name or task, bad YAML, a
    file or a column that is not there.
    """
    title, path, spec = _described(name)
    data = data or os.environ.get("EDGEDISTILL_DATA")
    _, _, read, _ = _KINDS[spec.kind]
    texts, tasks = read(spec, partial(suite_files.locate, path, data=Path(data) if data else None))
    return Suite(title, spec.kind, spec.about, texts, tasks)


def task_suite(manifest: dict[str, Any], file: str = "", data: Path | None = None) -> Suite:
    """The task a bundle was fine-tuned for: the test split its recipe names, or with `file` another table of the same columns."""
    tasks = labelled_task.of_recipe(manifest["recipe"], file, data)
    labelled_task.check(manifest["labels"], tasks)
    return Suite(f"task:{file}" if file else "task", "task", "the task of the bundle's recipe", [], tasks)


def languages(name: str | Path) -> set[str]:
    """What a suite's tasks are called, in parts: en and de of en-de; of translations also their columns. Reads none of their files."""
    _, _, spec = _described(name)
    named = [each for part in spec.tasks for each in (part.name, getattr(part, "first", ""), getattr(part, "second", ""))]
    return {code for each in named for code in re.split(r"[^a-z]+", each.lower()) if code}


def _described(name: str | Path) -> tuple[str, Path, Spec]:
    """(title, file, description) of a suite by path or shipped name; behind a colon the tasks that alone are asked for."""
    whole, _, chosen = (str(name), "", "") if Path(name).is_file() else str(name).partition(":")
    path = files.find("suite", whole)
    spec = _parse(path)
    title = spec.name or (path.parent.name if path.name == "suite.yaml" else path.stem)
    return (f"{title}:{chosen}", path, _only(spec, chosen.split(","), path)) if chosen else (title, path, spec)


def _only(spec: Spec, names: list[str], path: Path) -> Spec:
    """The suite with some of its tasks, in its own order."""
    known = [part.name for part in spec.tasks]
    for name in names:
        if name not in known:
            raise UserError(f"{path}: {unknown('task', name, known)}")
    return spec.model_copy(update={"tasks": [part for part in spec.tasks if part.name in names]})


def evaluate(suite: Suite, encode: Any) -> dict[str, Any]:
    """Score an encoder on a suite: {kind, average, tasks{name: numbers}}; the average is over the tasks' MEASURES[kind].

    A suite of kind task asks a bundle's `classify` in place of an encoder. What a task's other numbers are, its family's `score` says.
    """
    *_, score = _KINDS[suite.kind]
    tasks, (headline, _) = score(suite.texts, suite.tasks, encode), MEASURES[suite.kind]
    return {"kind": suite.kind, "average": float(np.mean([found[headline] for found in tasks.values()])), "tasks": tasks}


def agreement(student: Floats, teacher: Floats, lengths: Ints, pairs: int = 50_000, queries: int = 2_000, seed: int = 0) -> dict[str, Any]:
    """How far a student's vectors say what its teacher's say of the same texts; needs no labels.

    student (n, d), teacher (n, e), lengths (n,) in tokens. `spearman`: of pairwise cosines over sampled pairs; `cosine_mean`, `cosine_min`:
    of the two vectors of a text (None when d != e); `top10_overlap`: share of the teacher's ten nearest found among the student's
    ten. `by_length`: the same by tokens; pairs lie within a bucket, neighbours come from all texts.
    """
    if len(student) != len(teacher) or len(student) != len(lengths):
        raise ValueError(f"{len(student)} student vectors, {len(teacher)} teacher vectors, {len(lengths)} lengths")
    student, teacher, lengths = unit(student), unit(teacher), np.asarray(lengths)
    random = np.random.default_rng(seed)
    asked = np.sort(random.permutation(len(student))[:queries])
    overlap = _overlap(student, teacher, asked, 10)
    cosines = dot(student, teacher) if student.shape[1] == teacher.shape[1] else None
    everything = np.arange(len(student))

    def numbers(rows: Ints) -> dict[str, Any]:
        i, j = _draw_pairs(rows, pairs, random)
        found = overlap[np.isin(asked, rows)]
        return {
            "texts": len(rows),
            "spearman": spearman(dot(student[i], student[j]), dot(teacher[i], teacher[j])),
            "cosine_mean": float(cosines[rows].mean()) if cosines is not None else None,
            "cosine_min": float(cosines[rows].min()) if cosines is not None else None,
            "top10_overlap": float(found.mean()) if len(found) else None,
        }

    buckets = {}
    for low, high in ((0, 8), (9, 16), (17, 32), (33, 64), (65, None)):
        rows = everything[(lengths >= low) & (lengths <= (high or lengths.max(initial=0)))]
        if len(rows) >= 2:
            buckets[f"{low}-{high}" if high else f"{low}+"] = numbers(rows)
    return {**numbers(everything), "pairs": min(pairs, len(student) * (len(student) - 1) // 2), "by_length": buckets}


def _draw_pairs(rows: Ints, count: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """`count` pairs of different rows; all of them, when there are no more."""
    if len(rows) * (len(rows) - 1) // 2 <= count:
        i, j = np.triu_indices(len(rows), 1)
    else:
        i = random.integers(0, len(rows), count)
        j = (i + random.integers(1, len(rows), count)) % len(rows)
    return rows[i], rows[j]


def _overlap(x: Floats, y: Floats, asked: Ints, k: int) -> Floats:
    """Share of common nearest rows of each asked row, itself left out: (len(asked),)."""
    k = min(k, len(x) - 1)
    if k < 1:
        return np.ones(len(asked))
    shares = []
    for rows in np.array_split(asked, max(1, len(asked) // 256)):
        tops = []
        for vectors in (x, y):
            scores = vectors[rows] @ vectors.T
            scores[np.arange(len(rows)), rows] = -np.inf
            tops.append(np.argpartition(-scores, k - 1, axis=1)[:, :k])
        shares += [len(set(a.tolist()) & set(b.tolist())) / k for a, b in zip(*tops, strict=True)]
    return np.array(shares)


def _parse(path: Path) -> Spec:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: a suite is a mapping, this is a {type(data).__name__}; see bench/suites/sts7/suite.yaml")
    if data.get("kind") not in _KINDS:
        raise UserError(f"{path}: kind: {unknown('kind of suite', data.get('kind', ''), _KINDS)}")
    try:
        spec = _SUITE.validate_python(data)
    except ValidationError as error:
        raise UserError(*dict.fromkeys(_line(path, problem) for problem in error.errors())) from None
    names = [part.name for part in spec.tasks]
    if len(set(names)) < len(names):
        raise UserError(f"{path}: tasks: two have the same name ({', '.join(sorted(names))}); rename one")
    return spec


def _line(path: Path, problem: Any) -> str:
    """One pydantic error in our words."""
    loc = problem["loc"][1:]  # without the union's tag
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    if problem["type"] == "extra_forbidden":
        whole, task, *_ = _KINDS[problem["loc"][0]]
        model = task if len(loc) > 1 else whole
        return f"{path}: {where}: {unknown('key', loc[-1], model.model_fields)}"
    if problem["type"] == "missing":
        return f"{path}: {where}: missing; this key is required"
    fact = problem["msg"].removeprefix("Value error, ")
    got = "" if problem["type"] == "value_error" else f", not {problem['input']!r}"
    return f"{path}: {where}: {fact[0].lower()}{fact[1:]}{got}"
