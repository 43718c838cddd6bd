"""What a run records of its teachers: names, revisions, licences, weights, and the hashes that a resumed run
must find again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml

from edgedistill import files, recipe, resolve, run
from edgedistill.errors import Problems, UserError
from edgedistill.teacher import targets
from edgedistill.teacher.assistant import RunTeacher, run_hashes
from edgedistill.teacher.encoder import NOT_ON_CUDA, TeacherEncoder
from edgedistill.training.load_models import AnyTeacher, Models, model_files, named_teachers

NAME = "teachers.json"
INITIAL_WEIGHTS = "initial weights"
LONGEST_LICENCE = 120  # characters


def check_device(spec: recipe.Recipe, device: str) -> None:
    """Raise UserError where a teacher is to embed in int8 on a CUDA device. device: auto, cpu or cuda."""
    if device == "cpu" or not (spec.distilling or spec.targets) or not torch.cuda.is_available():
        return
    problems = Problems()
    problems.found += [
        f"{place}.dtype: {NOT_ON_CUDA}" for place, each in named_teachers(spec) if each.dtype == "int8"
    ]
    problems.raise_any()


def keep(spec: recipe.Recipe, models: Models, partial: Path) -> None:
    """Write teachers.json into the unfinished run. Raises UserError where a resumed run finds another teacher
    than it was started with."""
    path, found = partial / NAME, record(spec, models)
    before = {each["name"]: each["sha256"] for each in files.read_json(path)} if path.exists() else {}
    for each in found:
        if before.get(each["name"], each["sha256"]) != each["sha256"]:
            fact = (
                f"{each['name']} has changed since this run was started, and a part of it has learned "
                "from the former"
            )
            raise UserError(f"{partial}: {fact}; restore the model's files, or delete the unfinished run")
    files.write_json(path, found)


def kept(partial: Path) -> dict[str, Any]:
    """The entry `teachers` of run.json; nothing for a run that only learned from labels."""
    return {"teachers": files.read_json(partial / NAME)} if (partial / NAME).exists() else {}


def record(spec: recipe.Recipe, models: Models) -> list[dict[str, Any]]:
    """{name, revision, licence, sha256, weight} of each model that teaches, and of the recipe's teacher where
    it only lends its tokenizer.

    Another model whose layers the student starts from is the last, and has `use`.

    weight: the model's share in the cosine of the recipe's `targets`; None where it has none, or there are no
        `targets`.
    """
    weights, found = _weights(spec), dict[str, dict[str, Any]]()
    for place, each in named_teachers(spec):
        if each.name not in found:
            opened = (
                models.assistant if place == "assistant" and models.assistant is not None else models.of(each)
            )
            stated, sha256 = _of_teacher(opened)
            own = {
                "name": each.embeddings or each.model,
                "revision": each.revision,
                "licence": each.licence or stated,
            }
            found[each.name] = {**own, "sha256": sha256, "weight": weights.get(each.name)}
    started = _of_initial_weights(spec)
    if started is not None and started.name not in found:
        source = resolve.resolve(str(started.model))
        is_run = isinstance(source, resolve.RunFolder)
        folder = model_files(source, started.revision, "student.weights")
        stated, sha256 = _stated(run.open_run(folder) if is_run else folder)
        own = {"name": started.model, "revision": started.revision, "licence": stated, "sha256": sha256}
        found[started.name] = {**own, "weight": None, "use": INITIAL_WEIGHTS}
    return list(found.values())


def _of_initial_weights(spec: recipe.Recipe) -> recipe.Teacher | None:
    """The model whose layers the student starts from, where the recipe names it by itself."""
    student = spec.student
    if not isinstance(student, recipe.Bert | recipe.Recurrent) or student.weights in (
        "random",
        "teacher",
        "assistant",
    ):
        return None
    return recipe.Teacher(model=student.weights, revision=student.revision)


def _weights(spec: recipe.Recipe) -> dict[str, float]:
    """The share of each model in the cosine of the targets, by its name; they sum to 1. A model may have a
    part in several blocks."""
    found: dict[str, float] = {}
    for block in targets.blocks_of(spec.targets) if spec.targets is not None else []:
        for teacher, weight in block.teachers:
            name = (teacher or spec.teacher).name
            found[name] = round(found.get(name, 0.0) + block.weight * weight, 6)
    return found


def _of_teacher(opened: AnyTeacher) -> tuple[str | None, str]:
    """What `_stated` gives of its files; of a file of embeddings no licence, and the hash of what is in
    it."""
    if isinstance(opened, TeacherEncoder):
        return _stated(opened.run if isinstance(opened, RunTeacher) else opened.folder)
    return None, files.cache_key(**opened.identity())


def _stated(source: run.Run | Path) -> tuple[str | None, str]:
    """(the licence that a model's files state, the hash of the files that decide its embeddings)."""
    if isinstance(source, Path):
        return stated_licence(source), files.sha256_folder(source, resolve.MODEL_FILES)
    of_its_own = {each["licence"] for each in source.info.get("teachers", [{"licence": None}])}
    return (", ".join(sorted(of_its_own)) if None not in of_its_own else None), files.cache_key(
        run=run_hashes(source)
    )


def stated_licence(folder: Path) -> str | None:
    """The `license` in the front matter of a model folder's README.md; of a licence called `other`, its name.
    None where there is none."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    first, *rest = card.read_text(encoding="utf-8", errors="replace").split("---\n", 2)
    if first.strip() or len(rest) < 2:
        return None
    try:
        front: Any = yaml.safe_load(rest[0])
    except yaml.YAMLError:
        return None
    if not isinstance(front, dict):
        return None
    named = front.get("license_name") if front.get("license") == "other" else None
    found = named or front.get("license")
    licences = [str(each) for each in (found if isinstance(found, list) else [found]) if each]
    return " ".join(", ".join(licences).split())[:LONGEST_LICENCE] or None
