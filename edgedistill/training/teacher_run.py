"""The teacher as a student: the baseline's run, with its targets' maps behind it or without."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn

from edgedistill import files, recipe, run
from edgedistill.data import corpus
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel import Pairs
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.students import affine, kinds
from edgedistill.students.output import Output
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import targets
from edgedistill.training import initialise, prepare


def itself(spec: recipe.Recipe, teacher: teachers.Teacher, maps: list[affine.Affine]) -> nn.Module:
    """The teacher, or with the maps of its `targets` behind it, the targets themselves as a student."""
    if spec.targets is None:
        return teacher.module
    return run.reduced(teacher.module, maps, spec.targets.blocks if isinstance(spec.targets, recipe.Split) else None)


def check_itself(spec: recipe.Recipe) -> None:
    """Raise UserError where the recipe's targets are made of more than its one teacher."""
    if spec.targets is not None and any(of not in (None, spec.teacher) for plan in targets.plans(spec.targets) for of, _ in plan.sources):
        raise UserError("targets: of other teachers than the recipe's; a graph holds one teacher, measure each alone")
    if isinstance(spec.targets, recipe.Concat):
        raise UserError("targets: one teacher joined with itself; leave `kind: concat` out")


def _fit_itself(
    spec: recipe.Recipe,
    teacher: teachers.Teacher,
    partial: Path,
    session: Session,
    accelerator: Accelerator,
) -> Corpus:
    """Fit the maps of a teacher's own `targets` as a student's run would. Returns the corpus they were fitted on."""
    assert isinstance(spec.student, recipe.Itself) and spec.corpus is not None
    assert not isinstance(spec.corpus, recipe.Parallel), "the recipe has made sure"
    texts, first = corpus.build(spec.corpus, session, spec.seed), None
    prepare.check_targets(spec, texts.trained, teacher, session)
    if spec.student.onto is not None:
        other = spec.model_copy(update={"student": spec.student.onto})
        words = initialise.own_tokenizer(other, teacher, texts, None, session)
        student, shape = initialise.build(other, teacher, words, session.data, initialise.look(other, words, texts, session))
        first = (student, words, shape["max_tokens"])
    prepare.wanted(spec, teacher, texts, first, session, partial)
    return texts


def keep(spec: recipe.Recipe, out: Path, partial: Path, session: Session, accelerator: Accelerator) -> dict[str, Any]:
    """The baseline's run: the teacher's own files, nothing trained; with `targets`, the maps that reduce its vectors too."""
    assert isinstance(spec.student, recipe.Itself)
    check_itself(spec)
    teacher = teachers.Teacher(spec.teacher)
    texts = _fit_itself(spec, teacher, partial, session, accelerator) if spec.targets else None
    student = itself(spec, teacher, affine.read_maps(partial / "targets") if texts else [])
    nothing: dict[str, Any] = {"seconds": 0.0, "stages": [], "selected": None}
    info = {
        **run.made_by(),
        **nothing,
        "corpus": about(texts) if texts else None,
        "dims": kinds.width(student),
        "parameters": kinds.count(student),
    }
    shape = teachers.itself(spec.student, teacher)
    if isinstance(student, Output):
        shape |= {"kind": "reduced", "blocks": student.blocks}
    with files.new_folder(out) as folder:
        (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
        shutil.copytree(teacher.folder, folder / "model", ignore=shutil.ignore_patterns(*teachers.OTHER_FORMATS, ".*"))
        if texts:
            shutil.copytree(partial / "targets", folder / "targets")
        files.write_json(folder / "student.json", shape)
        teachers.save_tokenizer(teacher.tokenizer, folder / "tokenizer")
        files.write_json(folder / "run.json", info)
    shutil.rmtree(partial)
    session.log(f"{out}: the teacher itself, {info['dims']} numbers, {info['parameters']['total']:,} parameters")
    return info


def about(texts: Corpus | Pairs) -> dict[str, Any]:
    """A corpus, for the record."""
    return {"fingerprint": texts.fingerprint, "texts": len(texts), "held_out": len(texts.held_out), "sources": texts.sources}
