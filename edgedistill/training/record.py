"""What a run records: metrics.jsonl and the progress bar, its folder, run.json, and of its teachers names,
revisions, licences and weights."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.repocard import metadata_load
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from edgedistill import files, recipe, resolve, run
from edgedistill.data.rows import Rows
from edgedistill.files import Json
from edgedistill.session import Log
from edgedistill.students import kinds
from edgedistill.teacher.assistant import RunTeacher, run_hashes
from edgedistill.teacher.embedder import AnyTeacher
from edgedistill.teacher.precomputed_embeddings import PrecomputedEmbeddings
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.load_models import Models, named_teachers

LONGEST_LICENCE = 120  # characters


@dataclass
class MetricsLog:
    """metrics.jsonl, the progress bar and the log lines of a run; `stages` holds an entry of run.json for
    each finished stage."""

    path: Path
    bar: Progress
    log: Log
    stages: list[Json] = field(default_factory=list)

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


def progress_bar(shown: bool) -> Progress:
    """A bar per stage: steps, loss, dev score, texts per second, time left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[steps]} steps  loss {task.fields[loss]:.4f}"),
        TextColumn("{task.fields[dev]}"),
        TextColumn("{task.fields[rate]:,.0f} texts/s"),
        TimeRemainingColumn(),
        transient=True,
        disable=not shown,
    )


def write_run(spec: recipe.Recipe, student: PreparedStudent, partial: Path, out: Path, info: Json) -> None:
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


def provenance(student: PreparedStudent, texts: Rows | None, started: float) -> Json:
    """The entries of run.json about where a student comes from and what it is; its training began at
    `started`, by `time.perf_counter`."""
    corpus = None
    if texts is not None:
        held_out = len(texts.held_out)
        corpus = {"fingerprint": texts.fingerprint, "texts": len(texts), "held_out": held_out}
        corpus["sources"] = texts.sources
    entries = {
        **run.provenance(),
        "seconds": round(time.perf_counter() - started, 1),
        "corpus": corpus,
        "dims": kinds.dims(student.module),
        "parameters": kinds.parameters(student.module),
    }
    if student.origin is not None:
        entries["weights"] = student.origin
    if student.earlier:
        entries["earlier"] = list(student.earlier)
    return entries


def teachers(spec: recipe.Recipe, models: Models) -> list[Json]:
    """{name, revision, licence, sha256, weight} of each model that teaches, and of the recipe's teacher where
    it only lends its tokenizer.

    Another model whose layers the student starts from is the last, and has `use`. The weight is the model's
    share in the cosine of the recipe's `targets`; it is None where the model has none, or there are no
    `targets`.
    """
    entries = {}
    named = {"teacher": models.teacher, "assistant": models.assistant, **models.scorers}
    for place, teacher in named_teachers(spec):
        opened = named[place]
        if teacher.name not in entries and opened is not None:
            name = teacher.embeddings or teacher.model
            entries[teacher.name] = _entry(name, teacher.revision, opened, teacher.licence)
    source = models.weights
    if source is not None and source.spec.name not in entries:
        start = _entry(source.spec.model, source.spec.revision, source.opened)
        entries[source.spec.name] = start | {"use": "initial weights"}
    return list(entries.values())


def _entry(
    name: str | None, revision: str | None, opened: AnyTeacher | Path, licence: str | None = None
) -> Json:
    """What is recorded of a model: the licence is the one given, or else the one that its files state; the
    hash is of what decides its embeddings."""
    if isinstance(opened, RunTeacher):
        licences = {teacher["licence"] for teacher in opened.run.info.get("teachers", [{"licence": None}])}
        stated = None if None in licences else ", ".join(sorted(licences))
        sha256 = files.cache_key(run=run_hashes(opened.run))
    elif isinstance(opened, PrecomputedEmbeddings):
        stated = None
        sha256 = files.cache_key(**opened.identity())
    else:
        folder = opened if isinstance(opened, Path) else opened.folder
        stated = stated_licence(folder)
        sha256 = files.sha256_folder(folder, resolve.MODEL_FILES)
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
    licence = named or front.get("license")
    licences = [str(name) for name in (licence if isinstance(licence, list) else [licence]) if name]
    return " ".join(", ".join(licences).split())[:LONGEST_LICENCE] or None
