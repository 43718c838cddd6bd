"""The fine-tuning loop: every learning rate from the same weights, measured on dev; the best weights of
all are kept.

Every draw is a function of the stage's seed, and a checkpoint follows each learning rate that is done. A run
that was killed and resumed starts the next rate, and ends with the bytes of one that was not.
"""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from edgedistill import files, recipe
from edgedistill.students.classifier import Classifier
from edgedistill.training import checkpoint
from edgedistill.training.checkpoint import Checkpoint
from edgedistill.training.checkpoint_selection import LOWEST
from edgedistill.training.inputs.batch_order import BatchOrder
from edgedistill.training.inputs.labelled_rows import LabelledTokens, TrainingRows, digest
from edgedistill.training.optimizers import FUSED, learning_rate_factor
from edgedistill.training.stage_in_progress import RunInProgress
from edgedistill.training.stages import NumberedStage, check_loss, check_weights, steps


def loss(logits: Tensor, labels: Tensor, teacher_logits: Tensor | None, alpha: float) -> Tensor:
    """α·cross-entropy + (1 − α)·mean squared difference of logits; without a teacher the cross-entropy alone.

    logits, teacher_logits (B, C), labels (B,). Returns (). Tang et al. 2019, Eq. 4, who set α = 0; SRA, §3.2.
    """
    if teacher_logits is None:
        return cross_entropy(logits, labels)
    distance = mse_loss(logits, teacher_logits)
    return distance if alpha == 0 else alpha * cross_entropy(logits, labels) + (1 - alpha) * distance


def learning_rates(stage: recipe.Finetune) -> list[float]:
    """The learning rates that are tried, one after the other."""
    return stage.learning_rates or [stage.learning_rate]


class Tuning:
    """A classifier while it is trained at one learning rate after the other."""

    def __init__(
        self,
        stage: NumberedStage[recipe.Finetune],
        module: Classifier,
        rows: TrainingRows,
        dev: LabelledTokens,
        run: RunInProgress,
    ) -> None:
        self.stage, self.seed, self.module, self.rows, self.dev = stage.spec, stage.seed, module, rows, dev
        self.number = stage.number
        # Apart from the line's own checkpoints: with one of those it fits no initial weights.
        self.kept = run.folder / checkpoint.FOLDER / "finetuned"
        self.run, self.metrics, self.device = run, run.metrics, run.accelerator.device
        self.steps = steps(self.stage, len(rows.tokens))
        self.every = min(self.steps, self.stage.every or max(1, len(rows.tokens) // self.stage.batch))
        self.key = f"{stage.place}.learning_rate" + ("s" if self.stage.learning_rates else "")
        self.tried: list[dict[str, Any]] = []  # the learning rates that are done
        self.best: dict[str, Any] = {"score": LOWEST}  # of all learning rates
        self.best_weights: dict[str, Tensor] = {}

    def train(self) -> None:
        """Train at every learning rate, and give the module the best weights of all."""
        initial = copy.deepcopy(self.module.state_dict())
        rates = learning_rates(self.stage)
        arrays = [self.rows.labels, self.rows.teacher_logits, self.dev.gold]
        of_inputs = digest(self.module, [self.rows.tokens, self.dev.tokens], arrays)
        self._resume(of_inputs)
        for rate in rates[len(self.tried) :]:
            self.module.load_state_dict(initial)
            title = self.stage.name if len(rates) == 1 else f"{self.stage.name} at {rate:g}"
            self.tried.append({"rate": rate, **self._try_rate(rate, title)})
            self._save(of_inputs)
        self.module.load_state_dict(self.best_weights)
        done = sum(each["steps"] for each in self.tried)
        self.metrics.stages.append({"name": self.stage.name, "steps": done, "texts": done * self.stage.batch})

    def _resume(self, of_inputs: str) -> None:
        """Take over the learning rates that a killed run had done, unless rows or initial weights have
        changed since."""
        found = checkpoint.newest(self.kept)
        if found is None or found.state["inputs"] != of_inputs:
            return
        self.tried, self.best = found.state["tried"], found.state["best"]
        self.best_weights = found.tensors["best"]
        files.write_text(self.metrics.path, found.state["metrics"])
        rates = len(learning_rates(self.stage))
        self.metrics.log(f"{self.stage.name}: resuming after learning rate {len(self.tried)} of {rates}")

    def _save(self, of_inputs: str) -> None:
        """Write a checkpoint after a learning rate: the best weights of all, and what was measured."""
        state = {"stage": self.number, "step": len(self.tried), "inputs": of_inputs}
        state |= {"tried": self.tried, "best": self.best}
        state["metrics"] = self.metrics.path.read_text(encoding="utf-8")
        checkpoint.save(self.kept, Checkpoint(state, {"best": self.best_weights}))

    def _try_rate(self, rate: float, title: str) -> dict[str, Any]:
        """Train at one learning rate, to the last step or until `patience` is exhausted. Returns the number
        of steps, and the best score on dev."""
        stage, where = self.stage, f"{self.key}: {self.stage.name} diverged at {rate:g}"
        optimizer = torch.optim.Adam(self.module.parameters(), lr=rate, fused=self.device.type in FUSED)
        order = BatchOrder(stage, self.rows.tokens, np.arange(len(self.rows.tokens)), self.seed)
        torch.manual_seed(self.seed)
        self.module.train()
        shown = self.metrics.bar.add_task(
            title, total=self.steps, steps="", loss=math.nan, dev=math.nan, rate=0.0
        )
        started, top, misses, losses = time.perf_counter(), LOWEST, 0, list[float]()
        for step in range(1, self.steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = rate * learning_rate_factor(stage, step - 1, self.steps)
            losses.append(self._take_step(optimizer, order.at(step - 1)[0]))
            check_loss(losses[-1], where, step)
            if step % self.every == 0 or step == self.steps:
                check_weights(self.module, where, step)
                score = self._measure(rate, step, sum(losses) / len(losses), title)
                misses = 0 if score > top else misses + 1
                top, losses = max(top, score), []
                if stage.patience is not None and misses >= stage.patience:
                    break
            speed = step * stage.batch / max(1e-9, time.perf_counter() - started)
            last = losses[-1] if losses else math.nan
            self.metrics.bar.update(shown, completed=step, steps=f"{step:,}", loss=last, dev=top, rate=speed)
        return {"steps": step, "dev": top}

    def _take_step(self, optimizer: torch.optim.Optimizer, rows: np.ndarray) -> float:
        """One optimizer step. Returns the loss of its batch."""
        stage, of_teacher = self.stage, self.rows.teacher_logits
        with self.run.accelerator.autocast():
            found = self.module(*self.rows.tokens.batch(rows, self.device))
        labels = torch.from_numpy(self.rows.labels[rows]).to(self.device)
        teacher = None if of_teacher is None else torch.from_numpy(of_teacher[rows]).to(self.device)
        value = loss(found.float(), labels, teacher, stage.teacher.alpha if stage.teacher else 1.0)
        optimizer.zero_grad()
        value.backward()
        if stage.clip:
            nn.utils.clip_grad_norm_(self.module.parameters(), stage.clip)
        optimizer.step()
        return float(value.detach())

    def _measure(self, rate: float, step: int, mean_loss: float, title: str) -> float:
        """The score on dev; the weights are kept if it is the best of all learning rates."""
        metric = self.stage.metric
        scores = self.dev.scores(self.module, self.device)
        self.module.train()
        if scores[metric] > self.best["score"]:
            self.best = {"score": scores[metric], "rate": rate, "step": step, "dev": scores}
            self.best_weights = copy.deepcopy(self.module.state_dict())
        self.metrics.write(
            stage=self.stage.name, rate=rate, step=step, loss=round(mean_loss, 6), dev=scores[metric]
        )
        self.metrics.log(
            f"{title}: step {step:,} of {self.steps:,}, mean loss {mean_loss:.4f}, dev {metric} "
            f"{scores[metric]:.4f}"
        )
        return scores[metric]
