"""The stage that learns from labels: a student and a classifier behind it on a task, its teacher's logits, its transfer set.

Everything is a pure function of (seed, step) or in the checkpoint, so that a killed run ends with the same bytes.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from transformers import PreTrainedTokenizerBase

from edgedistill import files, recipe, run
from edgedistill.data import labelled
from edgedistill.data.labelled import Labelled
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.students import classifier, kinds
from edgedistill.students.classifier import Classifier
from edgedistill.teacher import encoder as teachers
from edgedistill.training import checkpoint, initialise, prepare
from edgedistill.training import loop as loops
from edgedistill.training.finetuning import rule_augmentation
from edgedistill.training.finetuning.labelled_inputs import Lesson, Tokens, lesson, logits_of, mask_token, task_teacher
from edgedistill.training.inputs import batches

START, BEST = "start.safetensors", "tuned.safetensors"


class Start(NamedTuple):
    """What fine-tuning begins with: the student, its shape, its tokenizer."""

    student: nn.Module
    shape: dict[str, Any]
    words: PreTrainedTokenizerBase


class Planned(NamedTuple):
    """What the stage learns from, as far as it is known before anything is trained."""

    task: Labelled
    rows: int
    """How many it is trained on; with a transfer set, how many at the most."""
    tag: rule_augmentation.Tagger | None
    """Parts of speech for the transfer set; None without one."""


def begin(spec: recipe.Recipe, session: Session, partial: Path) -> Start:
    """A student that no stage has trained: untrained, of another run, or the teacher itself. Its tokenizer goes into `partial`."""
    stage = spec.finetuning
    assert stage is not None
    if isinstance(spec.student, recipe.Itself):
        return _itself(spec, partial)
    if stage.start is not None:
        return _continued(spec, Path(stage.start), partial)
    texts = prepare.open_corpus(spec.corpus, session, spec.seed) if spec.corpus is not None and spec.reads_corpus else None
    teacher, assistant = initialise.open_teacher(spec.teacher, session.data), prepare.open_assistant(spec)
    words = initialise.own_tokenizer(spec, teacher, texts, partial, session, assistant)
    student, shape = initialise.build(spec, teacher, words, session.data, assistant=assistant)
    return Start(student, shape, words)


def _itself(spec: recipe.Recipe, partial: Path) -> Start:
    assert isinstance(spec.student, recipe.Itself)
    teacher = teachers.Teacher(spec.teacher)
    _keep_tokenizer(teacher.tokenizer, partial)
    return Start(teacher.module, teachers.itself(spec.student, teacher), teacher.tokenizer)


def _continued(spec: recipe.Recipe, folder: Path, partial: Path) -> Start:
    """The student of a finished run."""
    opened = _begun(spec, folder)
    _keep_tokenizer(opened.tokenizer(), partial)
    return Start(opened.student(), opened.shape, opened.tokenizer())


def _begun(spec: recipe.Recipe, folder: Path) -> run.Run:
    """The finished run that a recipe goes on from. Raises UserError where its student is another than the recipe's."""
    opened = run.open_run(folder, f"{_place(spec)}.start")
    if opened.recipe.student != spec.student:
        raise UserError(f"{folder}: its student is not this recipe's; give both the same `student`, or another start")
    if opened.shape.get("blocks"):
        raise UserError(f"{folder}: a student of split teachers, whose blocks a classifier does not read; choose another start")
    return opened


def _keep_tokenizer(words: PreTrainedTokenizerBase, partial: Path) -> None:
    if not (partial / "tokenizer").exists():
        with files.new_folder(partial / "tokenizer") as temporary:
            teachers.save_tokenizer(words, temporary)


def loss(logits: Tensor, labels: Tensor, teacher: Tensor | None, alpha: float) -> Tensor:
    """α·cross-entropy + (1 − α)·mean squared difference of logits; without a teacher the cross-entropy alone.

    logits, teacher (B, C), labels (B,). Returns (). Tang et al. 2019, Eq. 4, who set α = 0; SRA, §3.2.
    """
    if teacher is None:
        return cross_entropy(logits, labels)
    distance = mse_loss(logits, teacher)
    return distance if alpha == 0 else alpha * cross_entropy(logits, labels) + (1 - alpha) * distance


def finetune(
    spec: recipe.Recipe,
    start: Start,
    planned: Planned,
    accelerator: Accelerator,
    partial: Path,
    selected: dict[str, Any] | None,
    log: loops.MetricsLog,
) -> tuple[Classifier, dict[str, Any]]:
    """Train on the task, keep what scored best on dev, measure test once. Returns (the classifier, what happened).

    `selected`: what the stages before chose, which the checkpoints carry on.
    """
    stage, number = spec.finetuning, len(spec.stages) - 1
    assert stage is not None
    task, place, seed, device = planned.task, _place(spec), prepare.stage_seed(spec.seed, number), accelerator.device
    learned = lesson(stage, task, start.words, start.shape, planned.tag, seed, place, device, partial, Session(log=log.log))
    _fits(stage, len(learned.tokens), place)
    torch.manual_seed(seed)
    dims, pair = kinds.width(start.student), len(stage.task.texts) == 2
    module = Classifier(start.student, dims, len(task.labels), pair, stage.hidden, stage.dropout).to(device)
    tuning = Tuning(stage, number, seed, module, learned, task, start, accelerator, partial, selected, log)
    return module, tuning.go()


def plan(spec: recipe.Recipe, session: Session) -> Planned:
    """Read the task and look at all that goes with it.

    Raises UserError where the stage asks for what is not there: rows, a start, a task's teacher, a label, a tagger, a batch of so many.
    """
    stage, place = spec.finetuning, _place(spec)
    assert stage is not None
    if stage.start is not None:
        _begun(spec, Path(stage.start))
    task = labelled.read(stage.task, session.data, spec.seed, stage.fraction, f"{place}.task")
    if stage.positive is not None and stage.positive not in task.labels:
        raise UserError(f"{place}.positive: no label {stage.positive!r} ({', '.join(task.labels)}); name one of these")
    if stage.teacher is not None:
        task_teacher(stage.teacher, task, f"{place}.teacher")
    rows, tag = len(task.train.items), None
    if stage.augment is not None:
        tag = rule_augmentation.tagger(stage.augment, session, task.train.items, f"{place}.augment")
        rows = max(rows, min(stage.augment.limit, rows * (1 + rule_augmentation.rounds(stage.augment, len(stage.task.texts) == 2))))
    _fits(stage, rows, place)
    return Planned(task, rows, tag)


def check_mask(spec: recipe.Recipe, words: PreTrainedTokenizerBase) -> None:
    """Raises UserError where the last stage masks words and the student's tokenizer has no mask token."""
    if spec.finetuning is not None and spec.finetuning.augment is not None:
        mask_token(spec.finetuning.augment, words, f"{_place(spec)}.augment")


def _place(spec: recipe.Recipe) -> str:
    return f"stages[{len(spec.stages) - 1}]"


def _fits(stage: recipe.Finetune, rows: int, place: str) -> None:
    if stage.batch > rows:
        raise UserError(f"{place}.batch: {stage.batch:,} of a task of {rows:,} training rows; lower it")


class Tuning:
    """The loop over learning rates and steps: measured on dev, checkpointed, resumed where it was killed."""

    def __init__(
        self,
        stage: recipe.Finetune,
        number: int,
        seed: int,
        module: Classifier,
        learned: Lesson,
        task: Labelled,
        start: Start,
        accelerator: Accelerator,
        partial: Path,
        selected: dict[str, Any] | None,
        log: loops.MetricsLog,
    ) -> None:
        self.stage, self.number, self.seed, self.module, self.learned, self.task = stage, number, seed, module, learned, task
        self.accelerator, self.partial, self.selected, self.metrics = accelerator, partial, selected, log
        prompt, most = str(start.shape.get("prompt", "")), int(start.shape["max_tokens"])
        self.read = lambda rows: Tokens(rows.items, start.words, prompt, most)
        self.dev, self.gold = self.read(task.dev), task.numbers(task.dev)
        self.rates = rates(stage)
        texts = len(learned.tokens)
        self.steps = loops.steps(stage, texts)
        self.every = min(self.steps, stage.every or max(1, texts // stage.batch))
        self.trial = self.step = self.misses = self.done = 0
        self.total, self.counted = 0.0, 0  # of the loss since the last measurement
        self.best: dict[str, Any] = {"score": -math.inf}
        self.tried: list[dict[str, Any]] = []

    def go(self) -> dict[str, Any]:
        """Train with every rate, put the best weights in place, and say what they score on dev and test."""
        found = checkpoint.newest(self.partial / "checkpoints")
        resumed = found if found is not None and found[0]["stage"] == self.number and "tuning" in found[0] else None
        if resumed is None and found is None:
            self.metrics.cut(0)
        if not (self.partial / START).exists():
            with files.new_file(self.partial / START) as temporary:
                save_file({name: value.detach().cpu().contiguous() for name, value in self.module.state_dict().items()}, temporary)
        if resumed is not None:
            self._position(resumed[0])
        while self.trial < len(self.rates):
            self._begin(None if resumed is None else resumed[1])
            resumed = None
            self._one_rate()
            self.tried.append({"rate": self.rates[self.trial], "steps": self.step, "dev": self.tops})
            self.trial, self.step, self.misses = self.trial + 1, 0, 0
        self.module.load_state_dict(load_file(self.partial / BEST))
        self.module.eval()
        self.metrics.stages.append({"name": self.stage.name, "steps": self.done, "texts": self.done * self.stage.batch})
        return self._about()

    def _begin(self, tensors: dict[str, dict[str, Tensor]] | None) -> None:
        """Weights, optimizer and generator as at the start of a rate, or from the checkpoint."""
        self.module.load_state_dict(load_file(self.partial / START) if tensors is None else tensors["module"])
        fused = self.accelerator.device.type in loops.FUSED
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=self.rates[self.trial], fused=fused)
        self.names = {parameter: name for name, parameter in self.module.named_parameters()}
        self._window: tuple[int, list[tuple[np.ndarray, np.ndarray]]] = (-1, [])
        if tensors is None:
            torch.manual_seed(self.seed)
            self.tops = -math.inf
        else:
            checkpoint.load_optimizer([self.optimizer], self.names, tensors.get("optimizer", {}))
            checkpoint.set_random_state(tensors["random"])
            self.metrics.log(f"{self.stage.name}: going on from step {self.step:,} of {self.steps:,}")
        self.module.train()

    def _one_rate(self) -> None:
        title = self.stage.name if len(self.rates) == 1 else f"{self.stage.name} at {self.rates[self.trial]:g}"
        bar = self.metrics.bar
        task = bar.add_task(title, total=self.steps, completed=self.step, loss=math.nan, dev=math.nan, rate=0.0)
        saved = mark = time.perf_counter()
        begun = self.step
        while self.step < self.steps and not (self.stage.patience is not None and self.misses >= self.stage.patience):
            value = self._one()
            self.step, self.done = self.step + 1, self.done + 1
            self.total, self.counted = self.total + value, self.counted + 1
            if self.step % self.every == 0 or self.step == self.steps:
                self._measure(title)
            now = time.perf_counter()
            if now - saved > loops.CHECKPOINT_SECONDS:
                self._save()
                saved = time.perf_counter()
            rate = (self.step - begun) * self.stage.batch / max(1e-9, now - mark)
            bar.update(task, completed=self.step, loss=value, dev=self.tops, rate=rate)

    def _one(self) -> float:
        stage, learned, device = self.stage, self.learned, self.accelerator.device
        number, within = divmod(self.step, stage.bucket)
        if self._window[0] != number:
            texts, most = len(learned.tokens), stage.max_tokens
            self._window = (number, batches.window(number, texts, None, learned.tokens, stage.batch, stage.bucket, most, self.seed))
        rows, _ = self._window[1][within]
        with self.accelerator.autocast():
            logits = self.module(*learned.tokens.batch(rows, device))
        taught = None if learned.teacher is None else torch.from_numpy(learned.teacher[rows]).to(device)
        alpha = stage.teacher.alpha if stage.teacher is not None else 1.0
        value = loss(logits.float(), torch.from_numpy(learned.labels[rows]).to(device), taught, alpha)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates[self.trial] * loops.schedule(stage, self.step, self.steps)
        self.optimizer.zero_grad()
        value.backward()
        if stage.clip:
            nn.utils.clip_grad_norm_(self.module.parameters(), stage.clip)
        self.optimizer.step()
        return float(value.detach())

    def scores(self, tokens: Tokens, gold: np.ndarray) -> dict[str, float]:
        """Accuracy and F1 of the module as it stands."""
        self.module.eval()
        found = logits_of(self.module, tokens, self.accelerator.device).argmax(1)
        self.module.train()
        return labelled.scores(found, gold, self.task.labels, self.stage.positive)

    def _measure(self, title: str) -> None:
        """Score on dev; keep the weights when they are the best of all rates."""
        scores = self.scores(self.dev, self.gold)
        score = scores[self.stage.measure]
        self.misses = 0 if score > self.tops else self.misses + 1
        self.tops = max(self.tops, score)
        if score > self.best["score"]:
            self.best = {"score": score, "rate": self.rates[self.trial], "step": self.step, "dev": scores}
            with files.new_file(self.partial / BEST) as temporary:
                save_file({name: value.detach().cpu().contiguous() for name, value in self.module.state_dict().items()}, temporary)
        mean = self.total / self.counted
        self.total, self.counted = 0.0, 0
        self.metrics.write(stage=self.stage.name, rate=self.rates[self.trial], step=self.step, loss=round(mean, 6), dev=score)
        self.metrics.log(f"{title}: step {self.step:,} of {self.steps:,}, mean loss {mean:.4f}, dev {self.stage.measure} {score:.4f}")

    def _save(self) -> None:
        tensors = {
            "module": self.module.state_dict(),
            "optimizer": checkpoint.optimizer_state([self.optimizer], self.names),
            "random": checkpoint.random_state(),
        }
        names = ("trial", "step", "misses", "done", "total", "counted", "best", "tried", "tops")
        state = {
            "stage": self.number,
            "step": self.trial * self.steps + self.step,
            "tuning": {name: getattr(self, name) for name in names},
            "selection": None if self.selected is None else {"best": self.selected, "misses": 0},
            "stages": self.metrics.stages,
            "metrics_bytes": self.metrics.size(),
        }
        checkpoint.save(self.partial / "checkpoints", state, tensors)

    def _position(self, state: dict[str, Any]) -> None:
        for name, value in state["tuning"].items():
            setattr(self, name, value)
        self.metrics.stages = state["stages"]
        self.metrics.cut(state["metrics_bytes"])

    def _about(self) -> dict[str, Any]:
        """What happened, for the record; the test split is measured here and nowhere else."""
        test = self.task.test
        rows = {"train": self.task.train, "dev": self.task.dev, **({} if test is None else {"test": test})}
        return {
            "labels": self.task.labels,
            "rows": {name: labelled.about(each) for name, each in rows.items()},
            "augmented": len(self.learned.tokens) - len(self.task.train.labels),
            "measure": self.stage.measure,
            "chosen": {key: self.best[key] for key in ("rate", "step")},
            "tried": self.tried,
            "dev": self.best["dev"],
            "test": None if test is None else self.scores(self.read(test), self.task.numbers(test)),
        }


def rates(stage: recipe.Finetune) -> list[float]:
    """The learning rates that are tried, one after the other."""
    return stage.rates or [stage.learning_rate]


def write(partial: Path, module: Classifier, labels: list[str]) -> None:
    """What makes the run a classifier's: task.json and head.safetensors."""
    files.write_json(partial / "task.json", {"labels": labels, "pair": module.pair, "hidden": module.hidden.out_features})
    with files.new_file(partial / "head.safetensors") as temporary:
        save_file({name: value.detach().cpu().contiguous() for name, value in module.own().items()}, temporary)


def parameters(module: Classifier) -> dict[str, int]:
    """Counts of the whole, the classifier's layers in `head`."""
    return classifier.parameters(kinds.count(module.encoder), module)
