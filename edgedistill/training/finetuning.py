"""The last stage of a recipe that fine-tunes on a labelled task: a classifier head is trained behind the
student, and the student with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from edgedistill import files, recipe, run
from edgedistill.data import labelled_tasks, transfer_set
from edgedistill.data.labelled_tasks import LabelledRows, LabelledTask
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.students import classifier, kinds
from edgedistill.students.classifier import Classifier
from edgedistill.training import checkpoint, tuning
from edgedistill.training.initial_student import finished_student
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.inputs.labelled_rows import (
    ItemTokens,
    LabelledTokens,
    TrainingRows,
    digest,
    logits,
)
from edgedistill.training.stage_in_progress import RunInProgress
from edgedistill.training.stages import NumberedStage, stage_seed, steps
from edgedistill.training.trained_module import use_plain_attention


@dataclass(frozen=True)
class LabelledStage:
    """A fine-tuning stage and what it names, opened.

    It starts from the student of the run `start`, and the run `teacher` labels its rows, where it names them.
    The tagger gives the parts of speech for its transfer set, where it has one. It trains on so many rows;
    with a transfer set, that is the most there can be.
    """

    stage: NumberedStage[recipe.Finetune]
    task: LabelledTask
    start: run.Run | None
    teacher: run.Run | None
    tagger: transfer_set.Tagger | None
    rows: int

    @property
    def spec(self) -> recipe.Finetune:
        return self.stage.spec

    @property
    def samples(self) -> int:
        """How many texts training embeds, at all learning rates."""
        rates = len(tuning.learning_rates(self.spec))
        return steps(self.spec, self.rows) * self.spec.batch * len(self.spec.task.texts) * rates

    def new_classifier(self, student: torch.nn.Module) -> Classifier:
        """A randomly initialized head for the task behind a student."""
        spec, pair = self.spec, len(self.spec.task.texts) == 2
        return Classifier(
            student, kinds.dims(student), len(self.task.labels), pair, spec.hidden, spec.dropout
        )


def open_stage(spec: recipe.Recipe, section: recipe.Finetune, session: Session) -> LabelledStage:
    """Raises UserError where something that the stage names is missing or does not fit: rows, a start, the
    task's teacher, a tagger, a batch."""
    number = len(spec.stages) - 1
    stage = NumberedStage(section, number, stage_seed(spec.seed, number))
    place = stage.place
    start = _open_start(spec, Path(section.start), f"{place}.start") if section.start is not None else None
    task = labelled_tasks.read_task(section.task, session.data, spec.seed, section.fraction, f"{place}.task")
    teacher, tagger, rows = None, None, len(task.train.items)
    if section.teacher is not None:
        teacher = _open_teacher(section.teacher, task, f"{place}.teacher")
    if section.augment is not None:
        tagger = transfer_set.tagger(section.augment, f"{place}.augment")
        rows = transfer_set.most_rows(section.augment, task.train.items)
    _check_batch(stage, rows)
    return LabelledStage(stage, task, start, teacher, tagger, rows)


def _open_start(spec: recipe.Recipe, folder: Path, place: str) -> run.Run:
    """The finished run whose student the recipe starts from. Raises UserError where that student is not the
    recipe's."""
    opened = run.open_run(folder, place)
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


def _open_teacher(spec: recipe.TaskTeacher, task: LabelledTask, place: str) -> run.Run:
    """The run that labels a task's rows. Raises UserError where it was not fine-tuned, or on another task."""
    opened = run.open_run(spec.run, f"{place}.run")
    if not opened.labels:
        raise UserError(
            f"{place}: {spec.run} was not fine-tuned and has no labels; give a run whose last stage is "
            "finetune"
        )
    pair = opened.head_shape["pair"]
    if opened.labels != task.labels or pair != (len(task.train.items[0]) == 2):
        of_run = f"{', '.join(opened.labels)} for {'pairs' if pair else 'texts'}"
        raise UserError(
            f"{place}: {spec.run} has the labels {of_run}, this task {', '.join(task.labels)}; give a "
            "teacher of this task"
        )
    return opened


def _check_batch(stage: NumberedStage[recipe.Finetune], rows: int) -> None:
    if stage.spec.batch > rows:
        raise UserError(
            f"{stage.place}.batch: {stage.spec.batch:,} of a task of {rows:,} training rows; lower it"
        )


def mask_token(labelled: LabelledStage, tokenizer: PreTrainedTokenizerBase) -> str:
    """What replaces a masked word. Raises UserError where words are masked and the tokenizer has no mask
    token."""
    augment, mask = labelled.spec.augment, tokenizer.mask_token
    if augment is not None and augment.mask and mask is None:
        raise UserError(
            f"{labelled.stage.place}.augment.mask: the student's tokenizer has no mask token; set mask: 0, "
            "or choose another tokenizer"
        )
    return str(mask)


def _started(start: run.Run) -> PreparedStudent:
    """The student of a finished run, which fine-tuning goes on with."""
    whole = start.model_folder if start.kind == "teacher" else None
    return PreparedStudent(
        start.student(),
        start.shape,
        start.tokenizer(),
        earlier=finished_student.earlier(start),
        model_folder=whole,
    )


def finetuned(labelled: LabelledStage, student: PreparedStudent, running: RunInProgress) -> dict[str, Any]:
    """Train the classifier, and write the files that make a run a classifier's. Returns the entries
    `parameters` and `task` of run.json. The test split is measured here, once, and nowhere else."""
    student.module.requires_grad_(True)
    task, device = labelled.task, running.accelerator.device
    rows = _training_rows(labelled, student, running)
    _check_batch(labelled.stage, len(rows.tokens))
    torch.manual_seed(labelled.stage.seed)
    module = labelled.new_classifier(student.module).to(device)
    use_plain_attention(student.module, running.accelerator)

    def split(part: LabelledRows) -> LabelledTokens:
        tokens = ItemTokens(part.items, student.tokenizer, student.prompt, student.max_tokens)
        return LabelledTokens(tokens, task.label_ids(part), task.labels)

    loop = tuning.Tuning(labelled.stage, module, rows, split(task.dev), running)
    loop.train()
    test = None if task.test is None else split(task.test).scores(module, device)
    _write_classifier(running.folder, module, task.labels)
    parts = {"train": task.train, "dev": task.dev} | ({} if task.test is None else {"test": task.test})
    for name, scores in (("dev", loop.best["dev"]), ("test", test)):
        if scores is not None:
            running.session.log(f"{name}: accuracy {scores['accuracy']:.4f}, F1 {scores['f1']:.4f}")
    found = {
        "labels": task.labels,
        "rows": {name: labelled_tasks.summary(part) for name, part in parts.items()},
        "augmented": len(rows.tokens) - len(task.train.labels),
        "measure": labelled.spec.metric,
        "chosen": {key: loop.best[key] for key in ("rate", "step")},
        "tried": loop.tried,
        "dev": loop.best["dev"],
        "test": test,
    }
    counts = classifier.parameters(kinds.parameters(student.module), module)
    return {"parameters": counts, "task": found}


def _write_classifier(folder: Path, module: Classifier, labels: list[str]) -> None:
    """Write the files that make a run a classifier's: task.json and head.safetensors."""
    shape = {"labels": labels, "pair": module.pair, "hidden": module.hidden.out_features}
    files.write_json(folder / run.HEAD_SHAPE, shape)
    with files.new_file(folder / run.HEAD_WEIGHTS) as temporary:
        weights = {
            name: value for name, value in module.state_dict().items() if not name.startswith("encoder.")
        }
        run.save_weights(weights, temporary)


def _training_rows(labelled: LabelledStage, student: PreparedStudent, running: RunInProgress) -> TrainingRows:
    """The task's training rows; with `augment` followed by the transfer set, which the task's teacher
    labels."""
    spec, items = labelled.spec, list(labelled.task.train.items)
    labels, of_teacher = labelled.task.label_ids(labelled.task.train), None
    if spec.augment is not None and labelled.tagger is not None:
        mask, before = mask_token(labelled, student.tokenizer), len(items)
        items += transfer_set.transfer_set(spec.augment, items, mask, labelled.stage.seed, labelled.tagger)
        running.session.log(
            f"{labelled.stage.place}.augment: {len(items) - before:,} new items from {before:,}"
        )
    if labelled.teacher is not None:
        teacher, device = labelled.teacher, running.accelerator.device
        tokens = ItemTokens(items, teacher.tokenizer(), teacher.prompt, teacher.max_tokens)
        module = teacher.classifier()
        kept = running.folder / checkpoint.FOLDER / f"logits-{digest(module, [tokens])[:24]}.npy"
        if not kept.exists():
            running.session.log(f"{labelled.stage.place}.teacher: logits of {len(items):,} items")
            with files.new_file(kept) as temporary:
                np.save(temporary, logits(module.to(device), tokens, device))
        of_teacher = np.load(kept)
        labels = np.concatenate([labels, of_teacher[len(labels) :].argmax(1)])
    max_tokens = min(spec.max_tokens, student.max_tokens)
    return TrainingRows(ItemTokens(items, student.tokenizer, student.prompt, max_tokens), labels, of_teacher)
