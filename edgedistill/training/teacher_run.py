"""The teacher as a student: the baseline's run, alone or with the maps of its `targets` behind it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from edgedistill import files, recipe, resolve, run
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.session import Session
from edgedistill.students import kinds
from edgedistill.students.output import Output, read_maps
from edgedistill.teacher import tokenizer_files
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training import teacher_record
from edgedistill.training.initial_student import corpus_sample, initial_weights, student_tokenizer
from edgedistill.training.open_recipe import Opened, as_student
from edgedistill.training.training_data import target_embeddings


def _fit_targets(opened: Opened, texts: Corpus, partial: Path, session: Session) -> None:
    """Fit the maps of the teacher's own `targets`, as a student's run would."""
    spec, models, student = opened.spec, opened.models, None
    assert isinstance(spec.student, recipe.TeacherItself) and models is not None
    if spec.student.reference_student is not None:
        other = spec.model_copy(update={"student": spec.student.reference_student})
        tokenizer = student_tokenizer.build(other, models, texts, session)
        sample = corpus_sample.sample(other, tokenizer, texts, session)
        student = initial_weights.build(other, models, tokenizer, session, sample)
    target_embeddings(spec, models, texts, student, session, partial)


def keep(opened: Opened, out: Path, partial: Path, session: Session) -> dict[str, Any]:
    """Write the baseline's run: the teacher's own files, nothing trained; with `targets`, the maps of its
    embeddings too.

    Returns the content of run.json.
    """
    spec, models, texts = opened.spec, opened.models, opened.texts
    assert (
        models is not None
        and isinstance(models.teacher, TeacherEncoder)
        and not isinstance(texts, ParallelCorpus)
    )
    student, teacher, shape = opened.student.module, models.teacher, opened.student.shape
    if texts is not None:
        _fit_targets(opened, texts, partial, session)
        student = as_student(spec, teacher, read_maps(partial / "targets"))
    info: dict[str, Any] = {
        **run.provenance(),
        "seconds": 0.0,
        "stages": [],
        "selected": None,
        "teachers": teacher_record.record(spec, models),
        "corpus": about(texts) if texts else None,
        "dims": kinds.dims(student),
        "parameters": kinds.parameters(student),
    }
    if isinstance(student, Output):
        shape |= {"kind": "reduced", "blocks": student.blocks}
    with files.new_folder(out) as folder:
        (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
        shutil.copytree(
            teacher.folder, folder / "model", ignore=shutil.ignore_patterns(*resolve.OTHER_FORMATS, ".*")
        )
        if texts:
            shutil.copytree(partial / "targets", folder / "targets")
        files.write_json(folder / "student.json", shape)
        tokenizer_files.save_tokenizer(teacher.tokenizer, folder / "tokenizer")
        files.write_json(folder / "run.json", info)
    shutil.rmtree(partial)
    session.log(
        f"{out}: the teacher itself, {info['dims']} dimensions, {info['parameters']['total']:,} parameters"
    )
    return info


def about(texts: Corpus | ParallelCorpus) -> dict[str, Any]:
    """The entry `corpus` of run.json."""
    return {
        "fingerprint": texts.fingerprint,
        "texts": len(texts),
        "held_out": len(texts.held_out),
        "sources": texts.sources,
    }
