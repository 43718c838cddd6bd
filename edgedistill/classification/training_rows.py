"""The rows that fine-tuning trains on: the task's, the transfer set's, and the logits of the task's
teacher."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from edgedistill import files
from edgedistill.classification import transfer_set
from edgedistill.classification.finetuning_plan import FinetuningPlan, mask_token, task_teacher
from edgedistill.classification.labelled_inputs import ItemTokens, logits
from edgedistill.data.labelled_tasks import Item
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.stage_in_progress import RunInProgress

LOGITS = "teacher_logits.npy"


class TrainingRows(NamedTuple):
    """Rows as tokens, the label of each (n,), and its teacher's logits (n, C) if there is a teacher."""

    tokens: ItemTokens
    labels: np.ndarray
    teacher_logits: np.ndarray | None


def training_rows(plan: FinetuningPlan, student: PreparedStudent, run: RunInProgress) -> TrainingRows:
    """The task's training rows; with `augment` followed by the transfer set, which the task's teacher
    labels."""
    stage, items = plan.stage.spec, list(plan.task.train.items)
    labels, teacher_logits = plan.task.label_ids(plan.task.train), None
    if stage.augment is not None:
        items += _transfer_set(plan, items, student.tokenizer, run)
    if stage.teacher is not None:
        teacher_logits = _teacher_logits(plan, items, run)
        labels = np.concatenate([labels, teacher_logits[len(labels) :].argmax(1)])
    max_tokens = min(stage.max_tokens, student.max_tokens)
    return TrainingRows(
        ItemTokens(items, student.tokenizer, student.prompt, max_tokens), labels, teacher_logits
    )


def _transfer_set(
    plan: FinetuningPlan, items: list[Item], tokenizer: PreTrainedTokenizerBase, run: RunInProgress
) -> list[Item]:
    """New items made from the task's by rule."""
    augment, place = plan.stage.spec.augment, f"{plan.stage.place}.augment"
    assert augment is not None and plan.tagger is not None
    mask = mask_token(augment, tokenizer, place)
    started = time.perf_counter()
    found = transfer_set.transfer_set(augment, items, mask, plan.stage.seed, plan.tagger)
    seconds = time.perf_counter() - started
    run.session.log(f"{place}: {len(found):,} new items from {len(items):,}, in {seconds:.0f} s")
    return found


def _teacher_logits(plan: FinetuningPlan, items: list[Item], run: RunInProgress) -> np.ndarray:
    """The task teacher's logits of every item, (n, C); computed once, then read from the unfinished run's
    folder."""
    teacher, place, device = plan.stage.spec.teacher, f"{plan.stage.place}.teacher", run.accelerator.device
    assert teacher is not None
    opened = task_teacher(teacher, plan.task, place)
    path = run.folder / LOGITS
    if not path.exists():
        run.session.log(f"{place}: logits of {len(items):,} items")
        tokens = ItemTokens(items, opened.tokenizer(), opened.prompt, opened.max_tokens)
        with files.new_file(path) as temporary, temporary.open("wb") as file:
            np.save(file, logits(opened.classifier().to(device), tokens, device))
    return np.asarray(np.load(path))
