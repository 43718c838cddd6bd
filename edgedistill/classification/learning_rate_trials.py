"""The fine-tuning loop over learning rates and steps: measured on dev, checkpointed, resumed where it was
killed.

Everything is a pure function of (seed, step) or in the checkpoint, so that a killed run ends with the same
bytes.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from edgedistill import files
from edgedistill.classification.finetuning_plan import FinetuningPlan, learning_rates
from edgedistill.classification.labelled_inputs import ItemTokens, logits
from edgedistill.classification.training_rows import TrainingRows
from edgedistill.data import labelled_tasks
from edgedistill.evaluation import classification_metrics
from edgedistill.students.classifier import Classifier
from edgedistill.training import checkpoint, diverged, resume
from edgedistill.training.checkpoint import Checkpoint
from edgedistill.training.checkpoint_selection import LOWEST
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.inputs.batch_order import BatchOrder
from edgedistill.training.optimizers import FUSED, learning_rate_factor
from edgedistill.training.stage_in_progress import RunInProgress
from edgedistill.training.stages import steps

START, BEST = "start.safetensors", "tuned.safetensors"


def loss(logits: Tensor, labels: Tensor, teacher_logits: Tensor | None, alpha: float) -> Tensor:
    """α·cross-entropy + (1 − α)·mean squared difference of logits; without a teacher the cross-entropy alone.

    logits, teacher_logits (B, C), labels (B,). Returns (). Tang et al. 2019, Eq. 4, who set α = 0; SRA, §3.2.
    """
    if teacher_logits is None:
        return cross_entropy(logits, labels)
    distance = mse_loss(logits, teacher_logits)
    return distance if alpha == 0 else alpha * cross_entropy(logits, labels) + (1 - alpha) * distance


@dataclass
class Position:
    """Where the loop is; the fields are those of the checkpoint's `tuning`."""

    trial: int = 0  # number of the learning rate
    step: int = 0  # at that rate
    misses: int = 0  # measurements in a row without a gain, at that rate
    done: int = 0  # steps at all rates
    total: float = 0.0  # loss summed since the last measurement
    counted: int = 0  # steps since then
    best: dict[str, Any] = field(default_factory=lambda: {"score": LOWEST})  # of all rates
    tried: list[dict[str, Any]] = field(default_factory=list)  # the rates that are done
    tops: float = LOWEST  # best score at this rate


class Tuning:
    """The loop over learning rates and steps."""

    def __init__(
        self,
        plan: FinetuningPlan,
        module: Classifier,
        rows: TrainingRows,
        student: PreparedStudent,
        run: RunInProgress,
        selected: dict[str, Any] | None,
    ) -> None:
        """selected: what the stages before have selected; the checkpoints carry it on."""
        self.stage, self.number, self.seed, self.task = (
            plan.stage.spec,
            plan.stage.number,
            plan.stage.seed,
            plan.task,
        )
        self.module, self.rows, self.student, self.selected = module, rows, student, selected
        self.run, self.metrics, self.device = run, run.metrics, run.accelerator.device
        self.dev, self.gold = self._tokens(self.task.dev), self.task.label_ids(self.task.dev)
        self.rates = learning_rates(self.stage)
        texts = len(rows.tokens)
        self.steps = steps(self.stage, texts)
        self.every = min(self.steps, self.stage.every or max(1, texts // self.stage.batch))
        self.at = Position()
        self.key = f"{plan.stage.place}.learning_rate" + ("s" if self.stage.learning_rates else "")

    def _tokens(self, split: labelled_tasks.LabelledRows) -> ItemTokens:
        return ItemTokens(split.items, self.student.tokenizer, self.student.prompt, self.student.max_tokens)

    @property
    def rate(self) -> float:
        """The learning rate that is being tried."""
        return self.rates[self.at.trial]

    @property
    def _place(self) -> diverged.Place:
        return diverged.Place(self.key, self.stage.name, self.rate)

    def train(self) -> dict[str, Any]:
        """Train at every learning rate and load the best weights. Returns the entry `task` of run.json, with
        scores on dev and test."""
        resumed = resume.unfinished_finetuning(self.run.checkpoints, self.number)
        if checkpoint.newest(self.run.checkpoints) is None:
            self.metrics.truncate(0)
        if not (self.run.folder / START).exists():
            self._write_weights(START)
        if resumed is not None:
            self.at = Position(**resumed.state["tuning"])
            self.metrics.stages = resumed.state["stages"]
            self.metrics.truncate(resumed.state["metrics_bytes"])
        while self.at.trial < len(self.rates):
            self._set_up(resumed)
            resumed = None
            self._try_rate()
            self.at.tried.append({"rate": self.rate, "steps": self.at.step, "dev": self.at.tops})
            self.at.trial, self.at.step, self.at.misses = self.at.trial + 1, 0, 0
        self.module.load_state_dict(load_file(self.run.folder / BEST))
        self.module.eval()
        self.metrics.stages.append(
            {"name": self.stage.name, "steps": self.at.done, "texts": self.at.done * self.stage.batch}
        )
        return self._result()

    def _write_weights(self, name: str) -> None:
        with files.new_file(self.run.folder / name) as temporary:
            save_file(
                {name: value.detach().cpu().contiguous() for name, value in self.module.state_dict().items()},
                temporary,
            )

    def _set_up(self, resumed: Checkpoint | None) -> None:
        """Weights, optimizer and generator as at the start of a learning rate, or as in the checkpoint."""
        weights = load_file(self.run.folder / START) if resumed is None else resumed.tensors["module"]
        self.module.load_state_dict(weights)
        self.optimizer = torch.optim.Adam(
            self.module.parameters(), lr=self.rate, fused=self.device.type in FUSED
        )
        self.names = {parameter: name for name, parameter in self.module.named_parameters()}
        self.order = BatchOrder(self.stage, self.rows.tokens, len(self.rows.tokens), self.seed)
        if resumed is None:
            torch.manual_seed(self.seed)
            self.at.tops = LOWEST
        else:
            checkpoint.load_optimizer([self.optimizer], self.names, resumed.tensors.get("optimizer", {}))
            checkpoint.set_random_state(resumed.tensors["random"])
            self.metrics.log(f"{self.stage.name}: resuming from step {self.at.step:,} of {self.steps:,}")
        self.module.train()

    def _try_rate(self) -> None:
        """Train at one learning rate, to the last step or until `patience` is exhausted."""
        title = self.stage.name if len(self.rates) == 1 else f"{self.stage.name} at {self.rate:g}"
        bar, at = self.metrics.bar, self.at
        task = bar.add_task(title, total=self.steps, completed=at.step, loss=math.nan, dev=math.nan, rate=0.0)
        saved = started = time.perf_counter()
        first = at.step
        while at.step < self.steps and not (
            self.stage.patience is not None and at.misses >= self.stage.patience
        ):
            value = self._train_step()
            at.step, at.done = at.step + 1, at.done + 1
            diverged.check_loss(value, self._place, at.step)
            at.total, at.counted = at.total + value, at.counted + 1
            if at.step % self.every == 0 or at.step == self.steps:
                self._measure(title)
            now = time.perf_counter()
            if now - saved > checkpoint.EVERY_SECONDS:
                self._save()
                saved = time.perf_counter()
            texts_s = (at.step - first) * self.stage.batch / max(1e-9, now - started)
            bar.update(task, completed=at.step, loss=value, dev=at.tops, rate=texts_s)

    def _train_step(self) -> float:
        """One optimizer step. Returns the loss of its batch."""
        stage, device = self.stage, self.device
        rows, _ = self.order.at(self.at.step)
        with self.run.accelerator.autocast():
            found = self.module(*self.rows.tokens.batch(rows, device))
        teacher = (
            None
            if self.rows.teacher_logits is None
            else torch.from_numpy(self.rows.teacher_logits[rows]).to(device)
        )
        alpha = stage.teacher.alpha if stage.teacher is not None else 1.0
        value = loss(found.float(), torch.from_numpy(self.rows.labels[rows]).to(device), teacher, alpha)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * learning_rate_factor(stage, self.at.step, self.steps)
        self.optimizer.zero_grad()
        value.backward()
        if stage.clip:
            nn.utils.clip_grad_norm_(self.module.parameters(), stage.clip)
        self.optimizer.step()
        return float(value.detach())

    def _scores(self, tokens: ItemTokens, gold: np.ndarray) -> dict[str, float]:
        """Accuracy and F1 of the module as it is."""
        self.module.eval()
        predicted = logits(self.module, tokens, self.device).argmax(1)
        self.module.train()
        return classification_metrics.scores(predicted, gold, self.task.labels, None)

    def _measure(self, title: str) -> None:
        """Score on dev; keep the weights if they are the best of all learning rates."""
        at, metric = self.at, self.stage.metric
        diverged.check_weights(self.module, self._place, at.step)
        scores = self._scores(self.dev, self.gold)
        score = scores[metric]
        at.misses = 0 if score > at.tops else at.misses + 1
        at.tops = max(at.tops, score)
        if score > at.best["score"]:
            at.best = {"score": score, "rate": self.rate, "step": at.step, "dev": scores}
            self._write_weights(BEST)
        mean = at.total / at.counted
        at.total, at.counted = 0.0, 0
        self.metrics.write(
            stage=self.stage.name, rate=self.rate, step=at.step, loss=round(mean, 6), dev=score
        )
        self.metrics.log(
            f"{title}: step {at.step:,} of {self.steps:,}, mean loss {mean:.4f}, dev {metric} {score:.4f}"
        )

    def _save(self) -> None:
        """Write a checkpoint within this stage."""
        tensors = {
            "module": self.module.state_dict(),
            "optimizer": checkpoint.optimizer_state([self.optimizer], self.names),
            "random": checkpoint.random_state(),
        }
        state = {
            "stage": self.number,
            "step": self.at.trial * self.steps + self.at.step,
            "tuning": vars(self.at),
            "selection": None if self.selected is None else {"best": self.selected, "misses": 0},
            "stages": self.metrics.stages,
            "metrics_bytes": self.metrics.size(),
        }
        checkpoint.save(self.run.checkpoints, Checkpoint(state, tensors))

    def _result(self) -> dict[str, Any]:
        """The entry `task` of run.json; the test split is measured here and nowhere else."""
        test = self.task.test
        rows = {"train": self.task.train, "dev": self.task.dev, **({} if test is None else {"test": test})}
        return {
            "labels": self.task.labels,
            "rows": {name: labelled_tasks.summary(each) for name, each in rows.items()},
            "augmented": len(self.rows.tokens) - len(self.task.train.labels),
            "measure": self.stage.metric,
            "chosen": {key: self.at.best[key] for key in ("rate", "step")},
            "tried": self.at.tried,
            "dev": self.at.best["dev"],
            "test": None if test is None else self._scores(self._tokens(test), self.task.label_ids(test)),
        }
