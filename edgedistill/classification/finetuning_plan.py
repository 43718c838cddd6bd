"""What a fine-tuning stage trains on, checked before anything is trained: task, start, task teacher, transfer
set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from edgedistill import recipe, run
from edgedistill.classification import transfer_set
from edgedistill.data import labelled_tasks
from edgedistill.data.labelled_tasks import LabelledTask
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.training.stages import NumberedStage, finetuning_stage


@dataclass(frozen=True)
class FinetuningPlan:
    """A fine-tuning stage, its task, and the parts of speech for its transfer set (None without one).

    start: the run whose student it starts from, if it names one. rows: the number of training rows; with a
        transfer set, the most there can
    be.
    """

    stage: NumberedStage[recipe.Finetune]
    task: LabelledTask
    start: run.Run | None
    rows: int
    tagger: transfer_set.Tagger | None

    @property
    def pairs(self) -> bool:
        """Whether an item of the task is two texts."""
        return len(self.stage.spec.task.texts) == 2


def plan(spec: recipe.Recipe, session: Session) -> FinetuningPlan | None:
    """The plan of a recipe's fine-tuning stage, or None where it has none.

    Raises UserError where something it names is missing or does not fit: rows, a start, the task's teacher, a
    tagger, a batch.
    """
    stage = finetuning_stage(spec)
    if stage is None:
        return None
    start = _open_start(spec, stage, Path(stage.spec.start)) if stage.spec.start is not None else None
    task = labelled_tasks.read_task(
        stage.spec.task, session.data, spec.seed, stage.spec.fraction, f"{stage.place}.task"
    )
    if stage.spec.teacher is not None:
        task_teacher(stage.spec.teacher, task, f"{stage.place}.teacher")
    rows, tagger, augment = len(task.train.items), None, stage.spec.augment
    if augment is not None:
        tagger = transfer_set.tagger(augment, f"{stage.place}.augment")
        rows = transfer_set.most_rows(augment, task.train.items)
    check_batch(stage, rows)
    return FinetuningPlan(stage, task, start, rows, tagger)


def _open_start(spec: recipe.Recipe, stage: NumberedStage[recipe.Finetune], folder: Path) -> run.Run:
    """The finished run whose student the recipe starts from. Raises UserError where that student is not the
    recipe's."""
    opened = run.open_run(folder, f"{stage.place}.start")
    if opened.recipe.student != spec.student:
        raise UserError(
            f"{folder}: its student is not this recipe's; give both the same `student`, or another start"
        )
    if opened.shape.get("blocks"):
        raise UserError(
            f"{folder}: a student of split teachers, whose blocks a classifier cannot use; choose another "
            "start"
        )
    return opened


def learning_rates(stage: recipe.Finetune) -> list[float]:
    """The learning rates that are tried, one after the other."""
    return stage.learning_rates or [stage.learning_rate]


def task_teacher(spec: recipe.TaskTeacher, task: LabelledTask, place: str) -> run.Run:
    """The run that labels a task's rows. Raises UserError where it was not fine-tuned, or on another task;
    `place`: the recipe key."""
    opened = run.open_run(Path(spec.run), f"{place}.run")
    if opened.task is None:
        raise UserError(
            f"{place}: {spec.run} was not fine-tuned and has no labels; give a run whose last stage is "
            "finetune"
        )
    if opened.labels != task.labels or opened.task["pair"] != (len(task.train.items[0]) == 2):
        of_run = f"{', '.join(opened.labels)} for {'pairs' if opened.task['pair'] else 'texts'}"
        raise UserError(
            f"{place}: {spec.run} has the labels {of_run}, this task {', '.join(task.labels)}; give a "
            "teacher of this task"
        )
    return opened


def check_batch(stage: NumberedStage[recipe.Finetune], rows: int) -> None:
    """Raise UserError where a batch is larger than the training set."""
    if stage.spec.batch > rows:
        raise UserError(
            f"{stage.place}.batch: {stage.spec.batch:,} of a task of {rows:,} training rows; lower it"
        )


def check_mask(spec: recipe.Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError where the fine-tuning stage masks words and the student's tokenizer has no mask
    token."""
    stage = finetuning_stage(spec)
    if stage is not None and stage.spec.augment is not None:
        mask_token(stage.spec.augment, tokenizer, f"{stage.place}.augment")


def mask_token(spec: recipe.Augment, tokenizer: PreTrainedTokenizerBase, place: str) -> str:
    """What a masked word is replaced by. Raises UserError where words are masked and the tokenizer has no
    mask token."""
    mask: Any = tokenizer.mask_token
    if spec.mask and mask is None:
        raise UserError(
            f"{place}.mask: the student's tokenizer has no mask token; set mask: 0, or choose another "
            "tokenizer"
        )
    return str(mask)
