"""What a fine-tuning stage learns from: labelled items in token ids, the task teacher's logits, the transfer set."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgedistill import files, recipe, run
from edgedistill.data.labelled import Item, Labelled
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.students.classifier import Classifier
from edgedistill.teacher import encoder as teachers
from edgedistill.training.finetuning import rule_augmentation

TOKENS_A_BATCH = 4_096  # padding included, where nothing is trained
LOGITS = "teacher_logits.npy"


class Tokens:
    """Items as token ids, a list for each of their texts."""

    def __init__(self, items: list[Item], words: PreTrainedTokenizerBase, prompt: str, max_tokens: int) -> None:
        sides = [[prompt + text for text in column] for column in zip(*items, strict=True)]
        self.sides = [teachers.encode_ids(words, column, max_tokens) for column in sides]
        self.pad = words.pad_token_id or 0
        self.longest = np.max([[len(row) for row in side] for side in self.sides], axis=0)

    def __len__(self) -> int:
        return len(self.longest)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens in the longer text of each row, (n,)."""
        return self.longest[rows]

    def batch(self, rows: np.ndarray, device: torch.device) -> list[Tensor]:
        """ids and mask (n, T) of each text of the rows."""
        padded = [teachers.pad([side[row] for row in rows], self.pad) for side in self.sides]
        return [torch.from_numpy(each).to(device) for pair in padded for each in pair]


def logits_of(module: Classifier, tokens: Tokens, device: torch.device) -> np.ndarray:
    """(n, C) float32 of every row, by the module as it stands."""
    out = np.empty((len(tokens), module.out.out_features), np.float32)
    order: list[int] = np.argsort(tokens.longest, kind="stable").tolist()
    longest_first = [np.empty(length, np.int8) for length in tokens.longest]
    with torch.inference_mode():
        for rows in teachers.budget_batches(order, longest_first, TOKENS_A_BATCH):
            out[rows] = module(*tokens.batch(np.array(rows), device)).float().cpu().numpy()
    return out


class Lesson(NamedTuple):
    """What is trained on: rows as tokens, the label of each, and its teacher's logits (n, C) where there is a teacher."""

    tokens: Tokens
    labels: np.ndarray
    teacher: np.ndarray | None


def lesson(
    stage: recipe.Finetune,
    task: Labelled,
    words: PreTrainedTokenizerBase,
    shape: dict[str, Any],
    tag: rule_augmentation.Tagger | None,
    seed: int,
    place: str,
    device: torch.device,
    partial: Path,
    session: Session,
) -> Lesson:
    """The training rows, with `augment` the transfer set behind them, labelled by the task's teacher; `tag`: that set's."""
    items, most = list(task.train.items), min(stage.max_tokens, shape["max_tokens"])
    labels, logits, prompt = task.numbers(task.train), None, str(shape.get("prompt", ""))
    if stage.augment is not None:
        assert tag is not None, "the plan has one"
        items += _made(stage.augment, items, words, tag, seed, f"{place}.augment", session)
    if stage.teacher is not None:
        logits = _taught(stage.teacher, task, items, f"{place}.teacher", device, partial, session)
        labels = np.concatenate([labels, logits[len(labels) :].argmax(1)])
    return Lesson(Tokens(items, words, prompt, most), labels, logits)


def _made(
    spec: recipe.Augment,
    items: list[Item],
    words: PreTrainedTokenizerBase,
    tag: rule_augmentation.Tagger,
    seed: int,
    place: str,
    session: Session,
) -> list[Item]:
    mask = mask_token(spec, words, place)
    started = time.perf_counter()
    made = rule_augmentation.make(spec, items, mask, seed, tag)
    session.log(f"{place}: {len(made):,} new beside {len(items):,}, in {time.perf_counter() - started:.0f} s")
    return made


def mask_token(spec: recipe.Augment, words: PreTrainedTokenizerBase, place: str) -> str:
    """What a masked word becomes. Raises UserError where words are masked and the tokenizer has none."""
    mask: Any = words.mask_token
    if spec.mask and mask is None:
        raise UserError(f"{place}.mask: the student's tokenizer has no mask token; set mask: 0, or choose another tokenizer")
    return str(mask)


def _taught(
    spec: recipe.TaskTeacher, task: Labelled, items: list[Item], place: str, device: torch.device, partial: Path, session: Session
) -> np.ndarray:
    """The task teacher's logits of every item, (n, C); made once, then read from the run that is under way."""
    opened = task_teacher(spec, task, place)
    path = partial / LOGITS
    if not path.exists():
        session.log(f"{place}: logits of {len(items):,} items")
        words = opened.tokenizer()
        tokens = Tokens(items, words, opened.prompt, opened.max_tokens)
        with files.new_file(path) as temporary, temporary.open("wb") as file:
            np.save(file, logits_of(opened.classifier().to(device), tokens, device))
    return np.asarray(np.load(path))


def task_teacher(spec: recipe.TaskTeacher, task: Labelled, place: str) -> run.Run:
    """The run that labels a task's rows. Raises UserError where it was not fine-tuned, or on another task."""
    opened = run.open_run(Path(spec.run), f"{place}.run")
    if opened.task is None:
        raise UserError(f"{place}: {spec.run} was not fine-tuned and has no labels; give a run whose last stage is finetune")
    if opened.labels != task.labels or opened.task["pair"] != (len(task.train.items[0]) == 2):
        theirs = f"{', '.join(opened.labels)} of {'pairs' if opened.task['pair'] else 'texts'}"
        raise UserError(f"{place}: {spec.run} tells {theirs} apart, this task {', '.join(task.labels)}; give a teacher of this task")
    return opened
