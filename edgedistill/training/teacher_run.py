"""The teacher as a student: the baseline's run, alone or with the maps of its `targets` behind it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch import nn

from edgedistill import files, recipe, run
from edgedistill.data import corpus
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.students import affine, kinds
from edgedistill.students.output import Output
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import locate_teacher, targets, tokenizer_files
from edgedistill.training import checks, prepare, teacher_record
from edgedistill.training.initial_student import corpus_sample, initial_weights, student_tokenizer
from edgedistill.training.load_models import Models


def as_student(spec: recipe.Recipe, teacher: teachers.TeacherEncoder, maps: list[affine.Affine]) -> nn.Module:
    """The teacher's module; with the maps of its `targets` behind it, a module whose outputs are the targets."""
    if spec.targets is None:
        return teacher.module
    return run.reduced_teacher(teacher.module, maps, spec.targets.blocks if isinstance(spec.targets, recipe.Split) else None)


def check_targets(spec: recipe.Recipe) -> None:
    """Raise UserError where the recipe's targets are made from more than its one teacher."""
    if spec.targets is not None and any(
        of not in (None, spec.teacher) for block in targets.blocks_of(spec.targets) for of, _ in block.teachers
    ):
        raise UserError("targets: of other teachers than the recipe's; a graph holds one teacher, measure each alone")
    if isinstance(spec.targets, recipe.Concat):
        raise UserError("targets: one teacher joined with itself; leave `kind: concat` out")


def _fit_targets(spec: recipe.Recipe, teacher: teachers.TeacherEncoder, partial: Path, session: Session) -> Corpus:
    """Fit the maps of the teacher's own `targets`, as a student's run would. Returns the corpus on which they were fitted."""
    assert isinstance(spec.student, recipe.TeacherItself) and spec.corpus is not None
    assert not isinstance(spec.corpus, recipe.Parallel), "the recipe's own checks guarantee it"
    texts, student = corpus.build(spec.corpus, session, spec.seed), None
    checks.check_targets(spec, texts.training_count, teacher, session)
    if spec.student.reference_student is not None:
        other = spec.model_copy(update={"student": spec.student.reference_student})
        tokenizer = student_tokenizer.build(other, Models(teacher), texts, session)
        sample = corpus_sample.sample(other, tokenizer, texts, session)
        student = initial_weights.build(other, Models(teacher), tokenizer, session, sample)
    prepare.target_embeddings(spec, teacher, texts, student, session, partial)
    return texts


def keep(spec: recipe.Recipe, out: Path, partial: Path, session: Session) -> dict[str, Any]:
    """Write the baseline's run: the teacher's own files, nothing trained; with `targets`, the maps of its embeddings too.

    Returns the content of run.json. Raises UserError as `check_targets` does.
    """
    assert isinstance(spec.student, recipe.TeacherItself)
    check_targets(spec)
    teacher = teachers.TeacherEncoder(spec.teacher, "teacher", session.device, session.remote_code)
    texts = _fit_targets(spec, teacher, partial, session) if spec.targets else None
    student = as_student(spec, teacher, affine.read_maps(partial / "targets") if texts else [])
    info: dict[str, Any] = {
        **run.provenance(),
        "seconds": 0.0,
        "stages": [],
        "selected": None,
        "teachers": teacher_record.record(spec, session.data),
        "corpus": about(texts) if texts else None,
        "dims": kinds.dims(student),
        "parameters": kinds.parameters(student),
    }
    shape = teachers.teacher_shape(spec.student, teacher)
    if isinstance(student, Output):
        shape |= {"kind": "reduced", "blocks": student.blocks}
    with files.new_folder(out) as folder:
        (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
        shutil.copytree(teacher.folder, folder / "model", ignore=shutil.ignore_patterns(*locate_teacher.OTHER_FORMATS, ".*"))
        if texts:
            shutil.copytree(partial / "targets", folder / "targets")
        files.write_json(folder / "student.json", shape)
        tokenizer_files.save_tokenizer(teacher.tokenizer, folder / "tokenizer")
        files.write_json(folder / "run.json", info)
    shutil.rmtree(partial)
    session.log(f"{out}: the teacher itself, {info['dims']} dimensions, {info['parameters']['total']:,} parameters")
    return info


def about(texts: Corpus | ParallelCorpus) -> dict[str, Any]:
    """The entry `corpus` of run.json."""
    return {"fingerprint": texts.fingerprint, "texts": len(texts), "held_out": len(texts.held_out), "sources": texts.sources}
