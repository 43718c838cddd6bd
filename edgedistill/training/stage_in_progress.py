"""One distillation stage of a run while it is trained: its module, its batches, what is measured, selected
and checkpointed."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from edgedistill import objectives
from edgedistill.data.cached_folder import check_uncut
from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.objectives import Targets
from edgedistill.session import Session
from edgedistill.training import checkpoint
from edgedistill.training.checkpoint import Checkpoint
from edgedistill.training.checkpoint_selection import Selection
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.inputs.batch_order import BatchOrder
from edgedistill.training.inputs.batches import Batches
from edgedistill.training.record import MetricsLog
from edgedistill.training.stages import (
    MOST_STEPS,
    NumberedStage,
    check_loss,
    check_weights,
    learning_rate_factor,
    optimizers,
    set_learning_rate,
    steps,
)
from edgedistill.training.trained_module import (
    Accelerator,
    TrainedModule,
    use_plain_attention,
)

CLOCK = 100_000  # parts of a stage's minutes that the learning rate follows
LOG_SECONDS = 30.0  # between two log lines, where there is no progress bar


@dataclass(frozen=True)
class RunInProgress:
    """A run while it trains: what every stage works with besides its data and its student.

    `folder` is that of the unfinished run (NAME.partial), `resumed` its newest checkpoint, if it had one.
    `selections` are what selects the weights of stages, in their order.
    """

    folder: Path
    accelerator: Accelerator
    session: Session
    metrics: MetricsLog
    resumed: Checkpoint | None = None
    selections: list[Selection] = field(default_factory=list)

    def save(self, state: Checkpoint) -> None:
        """Write a checkpoint, in the first process."""
        check_uncut()
        if self.accelerator.processes.number == 0:
            checkpoint.save(self.folder, state)


def stages_done(student: PreparedStudent, run: RunInProgress) -> int:
    """How many stages a killed run had finished; the student is given the weights that the last of them has
    handed over."""
    resumed = run.resumed
    if resumed is None:
        run.metrics.truncate(0)
        return 0
    run.metrics.stages = resumed.state["stages"]
    run.metrics.truncate(resumed.state["metrics_bytes"])
    if "handed_over" in resumed.tensors:
        student.module.load_state_dict(resumed.tensors["handed_over"])
    for selection, best in zip(run.selections, resumed.state["selected"], strict=True):
        selection.best = best
    return int(resumed.state["stage"])


class StageInProgress:
    """A distillation stage while it is trained: module, batches, optimizers, and where it is.

    `train.train` takes its steps and then hands over. It starts as new, or where its last checkpoint was
    written. Three things here are as they are for a reason. The batch of a step is a function of (seed,
    step), so a checkpoint holds no data loader. The measured weights, not the last ones, are handed over
    where a suite selects. And a stage seeds torch when it begins, so its random draws do not depend on the
    stages before it, or on whether these were trained in the same process.
    """

    def __init__(
        self,
        stage: NumberedStage,
        student: PreparedStudent,
        batches: Batches,
        run: RunInProgress,
        selection: Selection | None = None,
    ) -> None:
        self.spec = stage.spec
        self.number = stage.position
        self.seed = stage.seed
        self.prepared = student
        self.student = student.module
        self.batches = batches
        self.run = run
        self.metrics = run.metrics
        self.processes = run.accelerator.processes
        self.device = run.accelerator.device
        self.selection = selection
        # A suite needs layers that can use new embeddings.
        self.selects = selection is not None and not stage.spec.only_embeddings
        self._diverged = (
            f"{stage.place}.{stage.rate_key}: {stage.spec.name} diverged at {self.spec.learning_rate:g}"
        )
        if self.spec.batch < self.processes.count:
            raise UserError(
                f"{stage.place}.batch: {self.spec.batch} rows for {self.processes.count} processes; "
                "raise it, or start fewer"
            )
        rows, queued = self.batches.trained_and_queued(stage)
        self.order = BatchOrder(self.spec, self.batches, rows, self.seed)
        self.step = 0
        self.steps = steps(self.spec, len(rows))
        self._began = time.monotonic()  # earlier, where a killed run goes on
        torch.manual_seed(self.seed)
        self.module = self._trained_module(queued).to(self.device)
        self.student.requires_grad_(not self.spec.only_embeddings)
        if self.spec.only_embeddings:
            bare: Any = self.student
            bare.model.embeddings.requires_grad_(True)
        self.optimizers = optimizers(self.module, self.spec, self.device.type)
        reads_initial = self.spec.initial_share or self.spec.rehearsal
        self.initial = copy.deepcopy(self.student.state_dict()) if reads_initial else {}
        resumed = run.resumed
        if resumed is not None and resumed.state["stage"] == self.number and "module" in resumed.tensors:
            self._restore(resumed)
        elif selection is not None:
            selection.start_stage(self.student)
        self.processes.copy_first(self.module)
        use_plain_attention(self.student, run.accelerator)
        self.module.train()
        self.share = self._share()
        self.ended = self.share >= 1
        self._score = ""  # of the last measurement
        self._losses = list[float]()  # since it
        self._bar = self.metrics.bar.add_task(
            self.spec.name, total=1.0, steps="", loss=math.nan, dev="", rate=0.0
        )
        self._saved = self._logged = self._measured = time.perf_counter()

    def _trained_module(self, queued: ndarray) -> TrainedModule:
        """The student with its objective; `queued` are the rows that fill its queue."""
        sample = self.batches.compared(np.arange(min(self.batches.rows, 256))).embeddings
        dims = self.batches.targets.dims
        unit = all(map(objectives.of_unit_length, sample))
        module = TrainedModule(self.spec, self.prepared, dims, unit, self.processes)
        if self.run.accelerator.bf16:
            objectives.queues_to_bfloat16(module.objective)
        if len(queued):
            objectives.fill_queues(module.objective, self.batches.compared(queued).map(torch.from_numpy))
        return module

    def _restore(self, resumed: Checkpoint) -> None:
        """Continue from a checkpoint within this stage."""
        state, tensors = resumed
        self.module.load_state_dict(tensors["module"])
        checkpoint.load_optimizer(self.optimizers, tensors.get("optimizer", {}))
        if self.selection:
            self.selection.misses = state["misses"]
        self.step = state["step"]
        self.metrics.stages = state["stages"]
        self._began = time.monotonic() - state.get("seconds", 0.0)
        self.metrics.truncate(state["metrics_bytes"])
        checkpoint.set_random_state(tensors["random"])
        self.metrics.log(f"{self.spec.name}: resuming from {self._at}")

    def batch(self) -> tuple[list[tuple[Tensor, Tensor]], Targets]:
        """The batch of this step: (ids, mask) of each view, (B, T) each, and what it is compared with."""
        check_uncut()
        ids, targets = self.batches.batch(*self.order.at(self.step))
        views = [(self._on_device(column), self._on_device(mask)) for column, mask in ids]
        return views, targets.map(self._on_device)

    def _on_device(self, array: ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def loss(self, views: list[tuple[Tensor, Tensor]], targets: Targets) -> Tensor:
        """The loss () of a batch: the student embeds the views, the objective compares them with the
        targets."""
        self.processes.seed_step(self.seed, self.step)
        with self.run.accelerator.autocast():
            loss = self.module(views, targets, self.step)
        return loss

    def set_learning_rate(self) -> None:
        """Give the optimizers the learning rate of this step."""
        step = self.step
        steps = self.steps
        if self.share > step / steps:  # the clock is ahead
            step = int(self.share * CLOCK)
            steps = CLOCK
        rate = self.spec.learning_rate * learning_rate_factor(self.spec, step, steps)
        set_learning_rate(self.optimizers, self.spec, rate, self.step)

    @property
    def _at(self) -> str:
        """step 5 of 200"""
        return f"step {self.step:,}" + (f" of {self.steps:,}" if self.steps < MOST_STEPS else "")

    def _share(self) -> float:
        """The share of the stage that is done: of its steps or, where it has minutes and more of them have
        passed, of these."""
        share = self.step / self.steps if self.steps else 1.0
        if self.spec.minutes is not None:
            passed = (time.monotonic() - self._began) / 60 / self.spec.minutes
            share = max(share, self.processes.of_first(passed))
        return min(1.0, share)

    def follow(self, loss: float) -> None:
        """What is done after a step with its loss: measure and select, log, write a checkpoint; `ended` is
        set after the last one."""
        check_loss(loss, self._diverged, self.step)
        now = time.perf_counter()
        self.share = self._share()
        self.ended = self.share >= 1
        self._losses.append(loss)
        selection = self.selection if self.selects else None
        shown = not self.metrics.bar.disable
        if selection is not None and (self.step % selection.spec.every == 0 or self.ended):
            self._measure(selection)
            if selection.exhausted:
                self.ended = True
                return
        elif now - self._logged > LOG_SECONDS and not shown:
            self._logged = now
            self.metrics.log(f"{self.spec.name}: {self._at}, loss {loss:.4f}")
        if now - self._saved > checkpoint.EVERY_SECONDS:
            self._save()
            self._saved = time.perf_counter()
        self.metrics.bar.update(
            self._bar,
            completed=self.share,
            steps=f"{self.step:,}",
            loss=loss,
            dev=self._score,
            rate=self._texts_per_second(),
        )

    def _texts_per_second(self) -> float:
        seconds = time.perf_counter() - self._measured
        return len(self._losses) * self.spec.batch / max(1e-9, seconds)

    def _measure(self, selection: Selection) -> None:
        """Score the student on the suite of `select`, and start the losses and the clock again."""
        check_weights(self.module, self._diverged, self.step)
        loss = sum(self._losses) / len(self._losses)
        rate = self._texts_per_second()
        self.student.eval()
        measured = selection.score(self.module) if self.processes.number == 0 else math.nan
        score = self.processes.of_first(measured)
        self._score = f"dev {score:.4f}"
        selection.keep(self.module, score, self.spec.name, self.step)
        self.module.train()
        self.metrics.write(
            stage=self.spec.name, step=self.step, loss=round(loss, 6), dev=score, texts_s=round(rate, 1)
        )
        self.metrics.log(
            f"{self.spec.name}: {self._at}, mean loss {loss:.4f}, {selection.spec.suite} {score:.4f}, "
            f"{rate:,.0f} texts/s"
        )
        self._losses = []
        self._measured = time.perf_counter()

    def _save(self) -> None:
        """Write a checkpoint within this stage."""
        check_weights(self.module, self._diverged, self.step)
        tensors = {
            "module": self.module.state_dict(),
            "optimizer": checkpoint.optimizer_state(self.optimizers),
            "random": checkpoint.random_state(),
        }
        if self.initial:
            tensors["handed_over"] = self.initial
        self.run.save(Checkpoint(self._state(self.number, self.step), tensors))

    def _state(self, stage: int, step: int) -> Json:
        return {
            "stage": stage,
            "step": step,
            "selected": [selection.best for selection in self.run.selections],
            "misses": self.selection.misses if self.selection else 0,
            "stages": self.metrics.stages,
            "metrics_bytes": self.metrics.size(),
            "seconds": time.monotonic() - self._began,
        }

    def hand_over(self) -> None:
        """Give the student the stage's result, the selected weights or else the last ones; and write a
        checkpoint of it."""
        if self._losses:  # steps that no measurement has logged
            mean = sum(self._losses) / len(self._losses)
            rate = self._texts_per_second()
            self.metrics.log(
                f"{self.spec.name}: ended at step {self.step:,}, mean loss {mean:.4f}, {rate:,.0f} texts/s"
            )
        check_weights(self.module, self._diverged, self.step)
        if self.selection and self.selects:
            self.student.load_state_dict(self.selection.weights())
        # Wortsman et al. 2022, Robust fine-tuning of zero-shot models: between a model and the same one
        # fine-tuned, both do well. What is no float, such as PQ codes, stays.
        for name, start in self.initial.items():
            if start.is_floating_point():
                self.student.state_dict()[name].lerp_(start, self.spec.initial_share)
        self.student.eval()
        ended = {"name": self.spec.name, "steps": self.step, "texts": self.step * self.spec.batch}
        self.metrics.stages.append(ended | objectives.learned_temperature(self.module.objective))
        result = {"handed_over": self.student.state_dict()}
        self.run.save(Checkpoint(self._state(self.number + 1, 0), result))
