"""The last stage of a recipe that fine-tunes on a labelled task: a classifier head is trained behind the
student, and the student with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from edgedistill import run
from edgedistill.data import labelled_tasks
from edgedistill.data.labelled_tasks import LabelledTask
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.evaluation.suites import labelled_task
from edgedistill.files import Json, cache_key, new_file, write_json
from edgedistill.recipe import Finetune, Recipe, Select, TaskTeacher
from edgedistill.run import Run, Weights
from edgedistill.runtime import batching
from edgedistill.session import Session
from edgedistill.students import classifier, kinds
from edgedistill.students.classifier import Classifier
from edgedistill.teacher.assistant import run_hashes
from edgedistill.training import checkpoint
from edgedistill.training.checkpoint_selection import LOWEST, Selection
from edgedistill.training.initial_student.prepared_student import PreparedStudent, StudentTokenizer
from edgedistill.training.inputs import batches
from edgedistill.training.inputs.batches import Batches
from edgedistill.training.inputs.stage_targets import StageTargets
from edgedistill.training.stage_in_progress import RunInProgress
from edgedistill.training.stages import NumberedStage, stage_seed, steps
from edgedistill.training.trained_module import TrainedModule
from edgedistill.training.training_sources import TrainingSources

TOKENS_PER_BATCH = 4_096  # padding included, where nothing is trained


@dataclass(frozen=True)
class LabelledStage:
    """A fine-tuning stage and what it names, opened; its `attempts` are the stage at each of its learning
    rates.

    The run `teacher` labels its rows, where it names one. It trains on so many rows; with a transfer set,
    that is the most there can be.
    """

    spec: Finetune
    attempts: list[NumberedStage]
    task: LabelledTask
    teacher: Run | None
    rows: int

    @property
    def number(self) -> int:
        return self.attempts[0].number

    @property
    def place(self) -> str:
        """Its name in error messages."""
        return self.attempts[0].place

    @property
    def samples(self) -> int:
        """How many texts training embeds, at all learning rates."""
        texts = steps(self.spec, self.rows) * self.spec.batch * len(self.spec.rows.columns)
        return texts * len(self.spec.rates)

    def new_classifier(self, student: nn.Module) -> Classifier:
        """A randomly initialized head for the task behind a student."""
        labels = len(self.task.labels)
        return Classifier(student, kinds.dims(student), labels, self.task.pair, self.spec.hidden)


def open_stage(spec: Recipe, section: Finetune, session: Session) -> LabelledStage:
    """Raises UserError where something that the stage names is missing or does not fit: rows, the task's
    teacher, a batch."""
    number = len(spec.stages) - 1
    place = f"stages[{number}]"
    measured = set[int]() if spec.rows is None else TrainingSources.of_recipe(spec, session).held_out_texts
    rows_place = f"{place}.rows"
    task = labelled_tasks.open_task(section.rows, session, spec.seed, section.fraction, rows_place, measured)
    teacher = None
    rows = len(task.train)
    if section.teacher is not None:
        teacher = _open_teacher(section.teacher, task, f"{place}.teacher")
    if section.augment is not None:
        rows = labelled_tasks.most_rows(section.augment, task.train)
    if section.batch > rows:
        raise UserError(f"{place}.batch: {section.batch:,} of a task of {rows:,} training rows; lower it")
    seed = stage_seed(spec.seed, number)
    key = "learning_rates" if section.learning_rates else "learning_rate"
    stages = [section.attempt(rate, len(task.labels)) for rate in section.rates]
    attempts = [NumberedStage(stage, number, seed, at, key) for at, stage in enumerate(stages)]
    return LabelledStage(section, attempts, task, teacher, rows)


def _open_teacher(spec: TaskTeacher, task: LabelledTask, place: str) -> Run:
    """The run that labels a task's rows. Raises UserError where it was not fine-tuned, or on another task."""
    opened = run.open_run(spec.run, f"{place}.run")
    if not opened.labels:
        raise UserError(
            f"{place}: {spec.run} was not fine-tuned and has no labels; give a run whose last stage is "
            "finetune"
        )
    pair = opened.head_shape["pair"]
    if opened.labels != task.labels or pair != task.pair:
        raise UserError(
            f"{place}: {spec.run} has the labels {', '.join(opened.labels)} for "
            f"{'pairs' if pair else 'texts'}, this task {', '.join(task.labels)}; give a teacher "
            "of this task"
        )
    return opened


def mask_token(labelled: LabelledStage, tokenizer: PreTrainedTokenizerBase) -> str:
    """What replaces a masked word. Raises UserError where words are masked and the tokenizer has no mask
    token."""
    augment = labelled.spec.augment
    mask = tokenizer.mask_token
    if augment is not None and augment.mask and mask is None:
        raise UserError(
            f"{labelled.place}.augment.mask: the student's tokenizer has no mask token; set mask: 0, "
            "or choose another tokenizer"
        )
    return str(mask)


def logits(module: Callable[..., Tensor], labels: int, rows: Batches, device: torch.device) -> ndarray:
    """Logits (n, labels) float32 of every row, by the module as it is."""
    out = np.empty((rows.rows, labels), np.float32)
    lengths = np.maximum(rows.lengths(np.arange(rows.rows)), 1)
    with torch.inference_mode():
        for part in batching.longest_first(lengths.tolist(), TOKENS_PER_BATCH):
            columns = rows.columns(np.asarray(part))
            arrays = [torch.from_numpy(array).to(device) for column in columns for array in column]
            out[part] = module(*arrays).float().cpu().numpy()
    return out


class Split(NamedTuple):
    """A split that a classifier is scored on, and its token ids."""

    rows: Rows
    tokens: Batches

    @classmethod
    def of(cls, rows: Rows, student: PreparedStudent, session: Session) -> Split:
        """As the student reads it."""
        return cls(rows, batches.of_rows(rows, student.limited_tokenizer, session))

    def scores(self, module: Callable[..., Tensor], device: torch.device) -> dict[str, float]:
        """Accuracy and F1 of a module in eval mode."""
        labels = self.rows.label_names
        predicted = logits(module, len(labels), self.tokens, device).argmax(1)
        return labelled_task.scores(predicted, self.rows.labels, labels)


class LabelSelection(Selection):
    """Which weights are kept: those that predict the labels of the dev rows best, at any learning rate. Each
    rate starts from the same weights."""

    def __init__(
        self,
        labelled: LabelledStage,
        rows: int,
        dev: Split,
        running: RunInProgress,
    ) -> None:
        """For so many training rows."""
        spec = labelled.spec
        self.labelled = labelled
        self.rows = rows
        self.dev = dev
        self.device = running.accelerator.device
        every = min(steps(spec, rows), spec.every or max(1, rows // spec.batch))
        self.spec = Select(suite=f"dev {spec.metric}", every=every, patience=spec.patience)
        self.metric = spec.metric
        self.rates = {stage.spec.name: stage.spec.learning_rate for stage in labelled.attempts}
        self.file = running.folder / "best.classifier.safetensors"
        self.initial = running.folder / "initial.safetensors"
        self.best = {"score": LOWEST, "of_rates": {}}
        self.misses = 0

    def start_stage(self, student: nn.Module) -> None:
        """Give the student the weights that every learning rate starts from: those it has at the first."""
        self.misses = 0
        if not self.initial.exists():
            with new_file(self.initial) as temporary:
                run.save_weights(student.state_dict(), temporary)
        student.load_state_dict(load_file(self.initial))

    def score(self, module: TrainedModule) -> float:
        """The classifier's score on the dev rows."""
        head: Any = module.objective.eval()

        def classify(*columns: Tensor) -> Tensor:
            texts = zip(columns[::2], columns[1::2], strict=True)
            return head.logits(*(module.student(ids, mask) for ids, mask in texts))

        self.scores = self.dev.scores(classify, self.device)
        return self.scores[self.metric]

    def keep(self, module: TrainedModule, score: float, stage: str, step: int) -> None:
        """Keep the weights of student and head when this score is the highest."""
        rate = self.rates[stage]
        of_rates = self.best["of_rates"]
        highest = of_rates.get(f"{rate:g}", LOWEST)
        self.misses = 0 if score > highest else self.misses + 1
        of_rates[f"{rate:g}"] = max(highest, score)
        if score > self.best["score"]:
            self.best |= {"score": score, "rate": rate, "step": step, "dev": self.scores}
            with new_file(self.file) as temporary:
                run.save_weights(module.state_dict(), temporary)

    def weights(self, part: str = "student.") -> Weights:
        """The state dict of the selected student or, of `objective.`, its head."""
        weights = load_file(self.file)
        return {name.removeprefix(part): value for name, value in weights.items() if name.startswith(part)}

    def finish(self, student: PreparedStudent, running: RunInProgress) -> Json:
        """Write the files that make a run a classifier's. Returns the entries `parameters` and `task` of
        run.json. The test split is measured here, once, and nowhere else."""
        labelled = self.labelled
        task = labelled.task
        best = self.best
        module = labelled.new_classifier(student.module)
        module.load_state_dict(self.weights("objective."), strict=False)
        _write_classifier(running.folder, module, task.labels)
        splits = {"train": task.train, "dev": task.dev}
        measured = {"dev": best["dev"], "test": None}
        if task.test is not None:
            splits["test"] = task.test
            test = Split.of(task.test, student, running.session)
            measured["test"] = test.scores(module.to(self.device).eval(), self.device)
        for name, scores in measured.items():
            if scores is not None:
                running.session.log(f"{name}: accuracy {scores['accuracy']:.4f}, F1 {scores['f1']:.4f}")
        ended = running.metrics.stages[labelled.number :]
        tried = zip(labelled.spec.rates, ended, best["of_rates"].values(), strict=True)
        entry = {
            "labels": task.labels,
            "rows": {
                name: {"rows": len(split), "labels": split.label_counts} for name, split in splits.items()
            },
            "augmented": self.rows - len(task.train),
            "measure": labelled.spec.metric,
            "chosen": {key: best[key] for key in ("rate", "step")},
            "tried": [{"rate": rate, "steps": stage["steps"], "dev": dev} for rate, stage, dev in tried],
            **measured,
        }
        counts = classifier.parameters(kinds.parameters(student.module), module)
        return {"parameters": counts, "task": entry}


def prepared(
    labelled: LabelledStage, student: PreparedStudent, running: RunInProgress
) -> tuple[Batches, LabelSelection]:
    """The stage with its rows, and with `augment` those of the transfer set; the task's teacher labels them
    where it has not yet."""
    spec = labelled.spec
    task = labelled.task
    session = running.session
    rows = task.train
    first = labelled.attempts[0]
    if spec.augment is not None:
        mask = mask_token(labelled, student.tokenizer)
        place = f"{first.place}.augment"
        rows = labelled_tasks.augmented(spec.augment, rows, mask, first.seed, session, place)
    targets = StageTargets(labels=rows.labels)
    if labelled.teacher is not None:
        taught = _teacher_logits(labelled.teacher, rows, f"{first.place}.teacher", running)
        labels = np.concatenate([rows.labels, taught[len(rows.labels) :].argmax(1)])
        targets = StageTargets(labels=labels, logits=taught)
    whole = batches.of_stage(first, rows, student.limited_tokenizer, session)
    dev = Split.of(task.dev, student, session)
    selection = LabelSelection(labelled, whole.rows, dev, running)
    running.selections.append(selection)
    return replace(whole, targets=targets), selection


def _teacher_logits(teacher: Run, rows: Rows, place: str, running: RunInProgress) -> ndarray:
    """The logits (n, C) of a task's teacher, kept beside the checkpoints."""
    key = cache_key(run=run_hashes(teacher), rows=rows.fingerprint)
    kept = running.folder / checkpoint.FOLDER / f"logits-{key}.npy"
    if not kept.exists():
        session = running.session
        device = running.accelerator.device
        session.log(f"{place}: logits of {len(rows):,} items")
        tokenizer = StudentTokenizer(teacher.tokenizer(), teacher.max_tokens, teacher.prompts)
        tokens = batches.of_rows(rows, tokenizer, session)
        with new_file(kept) as temporary:
            np.save(temporary, logits(teacher.classifier().to(device), len(teacher.labels), tokens, device))
    return np.load(kept)


def _write_classifier(folder: Path, module: Classifier, labels: list[str]) -> None:
    """Write the files that make a run a classifier's: task.json and head.safetensors."""
    shape = {"labels": labels, "pair": module.pair, "hidden": module.hidden.out_features}
    write_json(folder / run.HEAD_SHAPE, shape)
    weights = module.state_dict()
    head = {name: value for name, value in weights.items() if not name.startswith("encoder.")}
    with new_file(folder / run.HEAD_WEIGHTS) as temporary:
        run.save_weights(head, temporary)
