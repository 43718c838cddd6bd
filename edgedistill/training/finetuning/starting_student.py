"""The student that fine-tuning starts from, where no stage of the same recipe has trained it."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from edgedistill import files, recipe, run
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import tokenizer_files
from edgedistill.training import prepare
from edgedistill.training.initial_student import earlier_training, initial_weights, student_tokenizer
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.load_models import open_models
from edgedistill.training.stages import NumberedStage


def starting_student(spec: recipe.Recipe, stage: NumberedStage[recipe.Finetune], session: Session, folder: Path) -> PreparedStudent:
    """The student with its initial weights, that of another run, or the teacher itself.

    folder: the unfinished run's, which is given the student's tokenizer. Raises UserError as `open_start` does.
    """
    if isinstance(spec.student, recipe.TeacherItself):
        teacher = teachers.TeacherEncoder(spec.teacher, remote_code=session.remote_code)
        tokenizer = tokenizer_files.from_the_start(teacher.tokenizer)
        _keep_tokenizer(tokenizer, folder)
        return PreparedStudent(teacher.module, teachers.teacher_shape(spec.student, teacher), tokenizer)
    if stage.spec.start is not None:
        opened = open_start(spec, stage)
        tokenizer, earlier = opened.tokenizer(), tuple(earlier_training.record(opened))
        _keep_tokenizer(tokenizer, folder)
        return PreparedStudent(opened.student(), opened.shape, tokenizer, earlier=earlier)
    texts = prepare.open_corpus(spec.corpus, session, spec.seed) if spec.corpus is not None and spec.reads_corpus else None
    models = open_models(spec, session)
    tokenizer = student_tokenizer.build(spec, models, texts, session, folder)
    return initial_weights.build(spec, models, tokenizer, session)


def open_start(spec: recipe.Recipe, stage: NumberedStage[recipe.Finetune]) -> run.Run:
    """The finished run whose student the recipe starts from. Raises UserError where that student is not the recipe's."""
    assert stage.spec.start is not None
    folder = Path(stage.spec.start)
    opened = run.open_run(folder, f"{stage.place}.start")
    if opened.recipe.student != spec.student:
        raise UserError(f"{folder}: its student is not this recipe's; give both the same `student`, or another start")
    if opened.shape.get("blocks"):
        raise UserError(f"{folder}: a student of split teachers, whose blocks a classifier cannot use; choose another start")
    return opened


def _keep_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    if not (folder / "tokenizer").exists():
        with files.new_folder(folder / "tokenizer") as temporary:
            tokenizer_files.save_tokenizer(tokenizer, temporary)
