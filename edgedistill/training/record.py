"""What a run records: metrics.jsonl and the progress bar, its folder, run.json, and of its teachers names,
revisions, licences, weights, and the hashes that a resumed run must find again."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.repocard import metadata_load
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from edgedistill import files, recipe, resolve, run
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.session import Log
from edgedistill.students import kinds
from edgedistill.teacher.assistant import RunTeacher, run_hashes
from edgedistill.teacher.embedder import AnyTeacher
from edgedistill.teacher.precomputed_embeddings import PrecomputedEmbeddings
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.load_models import Models, named_teachers

TEACHERS = "teachers.json"  # in the folder of the unfinished run
LONGEST_LICENCE = 120  # characters


class MetricsLog:
    """metrics.jsonl, the progress bar and the log lines of a run; `stages` holds an entry of run.json for
    each finished stage."""

    def __init__(self, path: Path, bar: Progress, log: Log) -> None:
        self.path, self.bar, self.log = path, bar, log
        self.stages: list[dict[str, Any]] = []

    def write(self, **values: Any) -> None:
        """Append one line to metrics.jsonl."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(files.json_text(values) + "\n")

    def truncate(self, size: int) -> None:
        """Drop the lines that were written after the checkpoint from which the run resumes."""
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.truncate(size)

    def size(self) -> int:
        """Bytes of metrics.jsonl."""
        return self.path.stat().st_size if self.path.exists() else 0


class _Selected(ProgressColumn):
    """The last score on the suite of `select`, once there is one."""

    def render(self, task: Task) -> Text:
        dev = task.fields["dev"]
        return Text("" if math.isnan(dev) else f"dev {dev:.4f}")


def progress_bar(shown: bool) -> Progress:
    """A bar per stage: steps, loss, dev score, texts per second, time left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[steps]} steps  loss {task.fields[loss]:.4f}"),
        _Selected(),
        TextColumn("{task.fields[rate]:,.0f} texts/s"),
        TimeRemainingColumn(),
        transient=True,
        disable=not shown,
    )


def write_run(
    spec: recipe.Recipe, student: PreparedStudent, partial: Path, out: Path, info: dict[str, Any]
) -> None:
    """Write the run folder of a student atomically, and delete the unfinished one. `info` is the content of
    run.json."""
    baseline = not spec.student.trained and not spec.stages
    with files.new_folder(out) as folder:
        (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
        run.write_student(folder, student.shape, None if baseline else student.module.state_dict())
        if student.model_folder is not None:
            ignored = shutil.ignore_patterns(*resolve.OTHER_FORMATS, ".*")
            shutil.copytree(student.model_folder, folder / "model", ignore=ignored)
        for name in ("tokenizer", "targets"):
            if (partial / name).exists():
                shutil.copytree(partial / name, folder / name)
        for name in ("metrics.jsonl", run.HEAD_SHAPE, run.HEAD_WEIGHTS):
            if (partial / name).exists():
                shutil.copy(partial / name, folder)
        files.write_json(folder / "run.json", info)
    shutil.rmtree(partial, ignore_errors=True)  # of which the lock may be held open


def provenance(student: PreparedStudent, texts: Rows | None, started: float) -> dict[str, Any]:
    """The entries of run.json about where a student comes from and what it is; its training began at
    `started`, by `time.perf_counter`."""
    corpus = None
    if texts is not None:
        held_out = len(texts.held_out)
        corpus = {"fingerprint": texts.fingerprint, "texts": len(texts), "held_out": held_out}
        corpus["sources"] = texts.sources
    found = {
        **run.provenance(),
        "seconds": round(time.perf_counter() - started, 1),
        "corpus": corpus,
        "dims": kinds.dims(student.module),
        "parameters": kinds.parameters(student.module),
    }
    if student.origin is not None:
        found["weights"] = student.origin
    if student.earlier:
        found["earlier"] = list(student.earlier)
    return found


def keep_teachers(spec: recipe.Recipe, models: Models, partial: Path) -> list[dict[str, Any]]:
    """Write `teachers` into the unfinished run, and return them. Raises UserError where a resumed run finds
    another teacher than it was started with."""
    path, found = partial / TEACHERS, teachers(spec, models)
    before = files.read_json(path) if path.exists() else found  # of the same recipe, so in the same order
    for was, each in zip(before, found, strict=True):
        if was["sha256"] != each["sha256"]:
            fact = (
                f"{each['name']} has changed since this run was started, and a part of it has learned "
                "from the former"
            )
            raise UserError(f"{partial}: {fact}; restore the model's files, or delete the unfinished run")
    files.write_json(path, found)
    return found


def teachers(spec: recipe.Recipe, models: Models) -> list[dict[str, Any]]:
    """{name, revision, licence, sha256, weight} of each model that teaches, and of the recipe's teacher where
    it only lends its tokenizer.

    Another model whose layers the student starts from is the last, and has `use`. The weight is the model's
    share in the cosine of the recipe's `targets`; it is None where the model has none, or there are no
    `targets`.
    """
    found = dict[str, dict[str, Any]]()
    for place, each in named_teachers(spec):
        opened = models.assistant if place == "assistant" else models.teacher
        if each.name not in found and opened is not None:
            name = each.embeddings or each.model
            found[each.name] = _entry(name, each.revision, opened, each.licence)
    source = models.weights
    if source is not None and source.spec.name not in found:
        start = _entry(source.spec.model, source.spec.revision, source.opened)
        found[source.spec.name] = start | {"use": "initial weights"}
    return list(found.values())


def _entry(
    name: str | None, revision: str | None, opened: AnyTeacher | Path, licence: str | None = None
) -> dict[str, Any]:
    """What is recorded of a model: the licence is the one given, or else the one that its files state; the
    hash is of what decides its embeddings."""
    if isinstance(opened, RunTeacher):
        own = {each["licence"] for each in opened.run.info.get("teachers", [{"licence": None}])}
        stated = None if None in own else ", ".join(sorted(own))
        sha256 = files.cache_key(run=run_hashes(opened.run))
    elif isinstance(opened, PrecomputedEmbeddings):
        stated, sha256 = None, files.cache_key(**opened.identity())
    else:
        folder = opened if isinstance(opened, Path) else opened.folder
        stated, sha256 = stated_licence(folder), files.sha256_folder(folder, resolve.MODEL_FILES)
    named = None if name is None else files.portable(name)
    return {"name": named, "revision": revision, "licence": licence or stated, "sha256": sha256}


def stated_licence(folder: Path) -> str | None:
    """The `license` in the front matter of a model folder's README.md; of a licence called `other`, its name.
    None where there is none."""
    card = folder / "README.md"
    try:
        front = (metadata_load(card) if card.is_file() else None) or {}
    except (ValueError, yaml.YAMLError):  # no text, or no front matter that a card could have
        return None
    named = front.get("license_name") if front.get("license") == "other" else None
    found = named or front.get("license")
    licences = [str(each) for each in (found if isinstance(found, list) else [found]) if each]
    return " ".join(", ".join(licences).split())[:LONGEST_LICENCE] or None
