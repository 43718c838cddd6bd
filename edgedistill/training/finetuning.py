"""The last stage of a recipe that fine-tunes on a labelled task: a classifier head is trained behind the
student, and the student with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase

from edgedistill import files, recipe, run
from edgedistill.data import labelled_tasks, transfer_set
from edgedistill.data.labelled_tasks import LabelledRows, LabelledTask
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.students import classifier, kinds
from edgedistill.students.classifier import Classifier
from edgedistill.teacher.assistant import run_hashes
from edgedistill.training import checkpoint
from edgedistill.training.checkpoint_selection import LOWEST, Selection
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.inputs.batches import Batches
from edgedistill.training.inputs.labelled_rows import LabelledTokens, digest, logits, tokenized
from edgedistill.training.inputs.stage_targets import StageTargets
from edgedistill.training.stage_in_progress import RunInProgress
from edgedistill.training.stages import NumberedStage, stage_seed, steps
from edgedistill.training.trained_module import TrainedModule


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
        texts = steps(self.spec, self.rows) * self.spec.batch * len(self.spec.rows.columns)
        return texts * len(self.spec.rates)

    @property
    def objective(self) -> recipe.CrossEntropy:
        """What it minimizes."""
        return self.spec.objective(len(self.task.labels))

    def new_classifier(self, student: torch.nn.Module) -> Classifier:
        """A randomly initialized head for the task behind a student."""
        of = self.objective
        return Classifier(student, kinds.dims(student), of.labels, of.pair, of.hidden)

    @property
    def attempts(self) -> list[NumberedStage[recipe.Stage]]:
        """The stage at each of its learning rates."""
        key = "learning_rates" if self.spec.learning_rates else "learning_rate"
        stages = [self.spec.attempt(rate, len(self.task.labels)) for rate in self.spec.rates]
        return [
            NumberedStage(stage, self.stage.number, self.stage.seed, number, key)
            for number, stage in enumerate(stages)
        ]


def open_stage(spec: recipe.Recipe, section: recipe.Finetune, session: Session) -> LabelledStage:
    """Raises UserError where something that the stage names is missing or does not fit: rows, a start, the
    task's teacher, a tagger, a batch."""
    number = len(spec.stages) - 1
    stage = NumberedStage(section, number, stage_seed(spec.seed, number))
    place = stage.place
    start = _open_start(spec, Path(section.start), f"{place}.start") if section.start is not None else None
    task = labelled_tasks.read_task(
        section.rows, session.data, spec.seed, section.fraction, f"{place}.rows", session.reading
    )
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


class LabelSelection(Selection):
    """Which weights are kept: those that predict the labels of the dev rows best, at any learning rate. Each
    rate starts from the same weights."""

    def __init__(
        self,
        labelled: LabelledStage,
        batches: Batches,
        dev: LabelledTokens,
        before: Selection | None,
        running: RunInProgress,
    ) -> None:
        """`before` is the selection of the stages before, whose result is kept with this one's."""
        spec, self.dev, self.before, self.running = labelled.spec, dev, before, running
        most = steps(spec, batches.rows)
        every = min(most, spec.every or max(1, batches.rows // spec.batch))
        self.spec = recipe.Select(suite=f"dev {spec.metric}", every=every, patience=spec.patience)
        self.metric = spec.metric
        self.rates = {each.spec.name: each.spec.learning_rate for each in labelled.attempts}
        self.file = running.folder / "best.classifier.safetensors"
        self.initial = running.folder / "initial.safetensors"
        inputs = digest(
            [*batches.sides, *dev.sides], [batches.targets.labels, batches.targets.logits, dev.gold]
        )
        self.best = {"score": LOWEST, "inputs": inputs, "of_rates": {}}
        self.misses = 0

    def resume(self, number: int, running: RunInProgress, done: int) -> tuple[RunInProgress, int]:
        """Take over what a killed run had measured. Where its rows have changed since, all learning rates are
        tried again, from the stage `number` on. Returns the run and how many stages are done."""
        state = running.resumed.state if running.resumed is not None else {}
        found = (state.get("selection") or {}).get("best", {})
        if "of_rates" not in found:
            return running, done
        if self.before is not None:
            self.before.best = found["before"]
        if found["inputs"] == self.best["inputs"]:
            self.best = found
            return running, done
        running.metrics.truncate(found["metrics_bytes"])
        running.metrics.stages = found["stages"]
        return replace(running, resumed=None), number

    def start_stage(self, student: torch.nn.Module | None = None) -> None:
        """Give the student the weights that every learning rate starts from: those it has at the first."""
        self.misses = 0
        if student is None:
            return
        if not self.initial.exists():
            metrics = self.running.metrics
            self.best |= {"metrics_bytes": metrics.size(), "stages": list(metrics.stages)}
            self.best["before"] = None if self.before is None else self.before.best
            with files.new_file(self.initial) as temporary:
                run.save_weights(student.state_dict(), temporary)
        student.load_state_dict(load_file(self.initial))

    def score(self, module: TrainedModule) -> float:
        """The classifier's score on the dev rows."""
        head: Any = module.objective.eval()

        def logits(*columns: torch.Tensor) -> torch.Tensor:
            texts = zip(columns[::2], columns[1::2], strict=True)
            return head.logits(*(module.student(ids, mask) for ids, mask in texts))

        self.scores = self.dev.scores(logits, self.running.accelerator.device)
        return self.scores[self.metric]

    def keep(self, module: TrainedModule, score: float, stage: str, step: int) -> None:
        """Keep the weights of student and head when this score is the highest."""
        rate, of_rates = self.rates[stage], self.best["of_rates"]
        highest = of_rates.get(f"{rate:g}", LOWEST)
        self.misses = 0 if score > highest else self.misses + 1
        of_rates[f"{rate:g}"] = max(highest, score)
        if score > self.best["score"]:
            self.best |= {"score": score, "rate": rate, "step": step, "dev": self.scores}
            with files.new_file(self.file) as temporary:
                run.save_weights(module.state_dict(), temporary)

    def weights(self, part: str = "student.") -> dict[str, torch.Tensor]:
        """The state dict of the selected student or, of `objective.`, its head."""
        found = load_file(self.file)
        return {name.removeprefix(part): value for name, value in found.items() if name.startswith(part)}


@dataclass(frozen=True)
class Finetuning:
    """A fine-tuning stage with its rows in batches, and what selects its weights."""

    labelled: LabelledStage
    batches: Batches
    selection: LabelSelection

    def finish(self, student: PreparedStudent, running: RunInProgress) -> dict[str, Any]:
        """Write the files that make a run a classifier's. Returns the entries `parameters` and `task` of
        run.json. The test split is measured here, once, and nowhere else."""
        labelled, task, best = self.labelled, self.labelled.task, self.selection.best
        module = labelled.new_classifier(student.module)
        module.load_state_dict(self.selection.weights("objective."), strict=False)
        _write_classifier(running.folder, module, task.labels)
        test, device = None, running.accelerator.device
        if task.test is not None:
            test = _split(task.test, task, student).scores(module.to(device).eval(), device)
        parts = {"train": task.train, "dev": task.dev} | ({} if task.test is None else {"test": task.test})
        for name, scores in (("dev", best["dev"]), ("test", test)):
            if scores is not None:
                running.session.log(f"{name}: accuracy {scores['accuracy']:.4f}, F1 {scores['f1']:.4f}")
        ended = running.metrics.stages[labelled.stage.number :]
        tried = zip(labelled.spec.rates, ended, best["of_rates"].values(), strict=True)
        found = {
            "labels": task.labels,
            "rows": {name: labelled_tasks.summary(part) for name, part in parts.items()},
            "augmented": self.batches.rows - len(task.train.labels),
            "measure": labelled.spec.metric,
            "chosen": {key: best[key] for key in ("rate", "step")},
            "tried": [{"rate": rate, "steps": stage["steps"], "dev": dev} for rate, stage, dev in tried],
            "dev": best["dev"],
            "test": test,
        }
        counts = classifier.parameters(kinds.parameters(student.module), module)
        return {"parameters": counts, "task": found}


def prepared(
    labelled: LabelledStage, student: PreparedStudent, before: Selection | None, running: RunInProgress
) -> Finetuning:
    """The stage with its rows; the task's teacher labels them where it has not yet."""
    batches = _training_rows(labelled, student, running)
    _check_batch(labelled.stage, batches.rows)
    dev = _split(labelled.task.dev, labelled.task, student)
    return Finetuning(labelled, batches, LabelSelection(labelled, batches, dev, before, running))


def _split(part: LabelledRows, task: LabelledTask, student: PreparedStudent) -> LabelledTokens:
    sides = tokenized(part.items, student.tokenizer, student.prompt, student.max_tokens)
    return LabelledTokens(sides, task.label_ids(part), task.labels)


def _write_classifier(folder: Path, module: Classifier, labels: list[str]) -> None:
    """Write the files that make a run a classifier's: task.json and head.safetensors."""
    shape = {"labels": labels, "pair": module.pair, "hidden": module.hidden.out_features}
    files.write_json(folder / run.HEAD_SHAPE, shape)
    with files.new_file(folder / run.HEAD_WEIGHTS) as temporary:
        weights = {
            name: value for name, value in module.state_dict().items() if not name.startswith("encoder.")
        }
        run.save_weights(weights, temporary)


def _training_rows(labelled: LabelledStage, student: PreparedStudent, running: RunInProgress) -> Batches:
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
        sides = tokenized(items, teacher.tokenizer(), teacher.prompt, teacher.max_tokens)
        module = teacher.classifier()
        key = files.cache_key(run=run_hashes(teacher), tokens=digest(sides))
        kept = running.folder / checkpoint.FOLDER / f"logits-{key}.npy"
        if not kept.exists():
            running.session.log(f"{labelled.stage.place}.teacher: logits of {len(items):,} items")
            with files.new_file(kept) as temporary:
                np.save(temporary, logits(module.to(device), len(teacher.labels), sides, device))
        of_teacher = np.load(kept)
        labels = np.concatenate([labels, of_teacher[len(labels) :].argmax(1)])
    max_tokens = min(spec.max_tokens, student.max_tokens)
    sides = tokenized(items, student.tokenizer, student.prompt, max_tokens)
    index = np.tile(np.arange(len(items))[:, None], len(sides))
    return Batches(index, sides, max_tokens, StageTargets(labels=labels, logits=of_teacher))
