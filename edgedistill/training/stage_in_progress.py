"""One distillation stage of a run while it is trained: its module, its batches, what is measured, selected
and checkpointed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from edgedistill import objectives, recipe
from edgedistill.session import Session
from edgedistill.students import kinds
from edgedistill.students.bert import BertStudent
from edgedistill.students.output import own
from edgedistill.training import checkpoint, checks, diverged, plain_attention, resume
from edgedistill.training.by_length import embed_by_length
from edgedistill.training.checkpoint import Checkpoint
from edgedistill.training.checkpoint_selection import Selection
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.inputs import similar_texts
from edgedistill.training.inputs.batch_order import BatchOrder, Groups
from edgedistill.training.metrics_log import MetricsLog
from edgedistill.training.optimizers import (
    Average,
    interpolated,
    learning_rate_factor,
    optimizers,
    set_learning_rate,
)
from edgedistill.training.stages import NumberedStage, steps
from edgedistill.training.training_data import TrainingData

LOG_SECONDS = 30.0  # between two log lines, where there is no progress bar


@dataclass(frozen=True)
class RunInProgress:
    """A run while it trains: what every stage works with besides its data and its student.

    folder: the unfinished run's (NAME.partial). accelerator: the device and precision it trains in. metrics:
        its record. pause_at: the
    step of a distillation stage at which it pauses, with `Paused`; None: it does not.
    """

    folder: Path
    accelerator: Accelerator
    session: Session
    metrics: MetricsLog
    pause_at: int | None = None

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.folder / "checkpoints"


class Paused(Exception):
    """Raised where a run was to pause: its checkpoint is written, and resuming it goes on from there.
    student: as it is now."""

    def __init__(self, student: PreparedStudent) -> None:
        self.student = student
        super().__init__("paused")


class TrainedModule(nn.Module):
    """What the optimizer sees: the student, a projection onto the teacher's dimensions that is dropped
    afterwards, the objective."""

    def __init__(
        self,
        student: nn.Module,
        projection: nn.Linear | None,
        objective: nn.Module,
        only_embeddings: bool = False,
    ) -> None:
        """only_embeddings: the output of the student's embedding layer is trained, not that of the whole
        student."""
        super().__init__()
        self.student = student
        self.projection = projection
        self.objective = objective
        self.only_embeddings = only_embeddings

    def forward(self, views: list[tuple[Tensor, Tensor]], targets: Tensor | None) -> Tensor:
        """views: (ids, mask) of each view, (B, T) each; targets (B, d), of pairs (B, 2, d), or none. Returns
        the loss ()."""
        student: Any = self.student
        embed = student.embedded if self.only_embeddings else student
        inner = own(student)
        if views[0][0].device.type == "cpu" and isinstance(
            inner, BertStudent
        ):  # others hardly compute padding
            embed = partial(embed_by_length, embed, inner.model.get_input_embeddings())
        embeddings = [
            embed(ids, mask) for ids, mask in views
        ]  # one pass over all views padded alike was 7% slower
        if self.projection is not None:
            embeddings = [self.projection(view) for view in embeddings]
        with torch.autocast(views[0][0].device.type, enabled=False):
            return self.objective([view.float() for view in embeddings], targets)


def trained_module(
    stage: recipe.Stage, student: PreparedStudent, target_dims: int | None, unit: bool
) -> TrainedModule:
    """A student with the objective of a stage behind it, and a projection where the student's head serves
    training only.

    target_dims: None where nothing in the stage depends on them. unit: whether the targets are of unit
        length.
    """
    width, of_embeddings = kinds.dims(student.module), only_embeddings(stage)
    dims = width if target_dims is None else target_dims
    projected = student.drops_head and objectives.reads_teacher(stage.objective) and not of_embeddings
    projection = nn.Linear(width, dims) if projected else None
    objective = objectives.build(stage.objective, dims, student.shape.get("blocks"), unit)
    return TrainedModule(student.module, projection, objective, of_embeddings)


def only_embeddings(stage: recipe.Stage) -> bool:
    """Whether a stage trains only the student's embedding layer."""
    return stage.match is not None and stage.match.layer == "embeddings"


class _Interval:
    """The steps since the last measurement: how many, their loss, their speed."""

    def __init__(self, step: int, batch: int) -> None:
        self.step, self.batch, self.started, self.loss = step, batch, time.perf_counter(), 0.0

    def mean_loss(self, step: int) -> float:
        return self.loss / (step - self.step)

    def rate(self, step: int) -> float:
        """Texts per second."""
        return (step - self.step) * self.batch / max(1e-9, time.perf_counter() - self.started)


class StageInProgress:
    """A distillation stage while it is trained: module, batches, optimizers, and where it is.

    `train.train` runs it from `set_up` to `hand_over`, step by step. Three things here are as they are for a
        reason. The batch of a step
    is a function of (seed, step), so a checkpoint holds no data loader. The measured weights, not the last
    ones, are handed over where a suite selects. And a stage seeds torch when it is built, so its random draws
    do not depend on the stages before it, or on whether these were trained in the same process.
    """

    def __init__(
        self,
        stage: NumberedStage[recipe.Stage],
        student: PreparedStudent,
        data: TrainingData,
        run: RunInProgress,
        selection: Selection | None = None,
    ) -> None:
        self.spec, self.number, self.seed = stage.spec, stage.number, stage.seed
        self.prepared, self.student, self.data, self.batches = (
            student,
            student.module,
            data,
            data.batches[stage.number],
        )
        self.run, self.metrics, self.accelerator, self.selection = (
            run,
            run.metrics,
            run.accelerator,
            selection,
        )
        self.selects = selection is not None and not only_embeddings(
            stage.spec
        )  # a suite needs layers that can use new embeddings
        rows, self.queued_rows = self._rows(stage)
        self.texts = self.batches.texts if rows is None else len(rows)
        self.order = BatchOrder(self.spec, self.batches, self.texts, self.seed, rows, self._groups())
        self.steps = steps(self.spec, self.texts)
        torch.manual_seed(self.seed)
        self.step, self.ended = 0, False
        self._place = diverged.Place(f"{stage.place}.learning_rate", self.spec.name, self.spec.learning_rate)

    def _groups(self) -> Groups | None:
        """Which texts are similar, for objectives that compare similar ones."""
        targets, stage = self.batches.targets, self.spec
        if stage.group is None:
            return None
        assert (
            targets is not None
        )  # the recipe asks for them: `similar_texts` belongs to an objective of targets
        wanted = similar_texts.count(stage.sorting_window, stage.batch, stage.group)
        return Groups(
            stage.group, cache(lambda: similar_texts.clusters(targets, self.batches.texts, wanted, self.seed))
        )

    def _rows(self, stage: NumberedStage[recipe.Stage]) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(the rows that the stage trains on, None for all; the rows that fill its queue at the start, which
        are none of those)."""
        longest, texts = self.spec.skip_longer_than, self.batches.texts
        rows = None if longest is None else self.batches.short(longest)
        queued = checks.queue_rows(stage, texts if rows is None else len(rows))
        if not queued:
            return rows, None
        rows = np.arange(texts) if rows is None else rows
        drawn = np.zeros(len(rows), bool)
        drawn[np.random.default_rng(self.seed).choice(len(rows), queued, replace=False, shuffle=False)] = True
        return rows[~drawn], rows[drawn]

    def already_done(self) -> bool:
        """Whether a killed run had finished this stage. If it was the last finished one, the student is given
        its weights."""
        found = resume.finished_stage(self.run.checkpoints, self.number)
        if found is None:
            return False
        self.metrics.stages = found.state["stages"]
        if "handed_over" in found.tensors:
            self.student.load_state_dict(found.tensors["handed_over"])
        if self.selection and found.state["selection"]:
            self.selection.best = found.state["selection"]["best"]
        return True

    def set_up(self) -> None:
        """Module, optimizers and average, new or from the last checkpoint."""
        device = self.accelerator.device
        self.module = self._trained_module().to(device)
        _choose_trained_weights(self.student, only_embeddings(self.spec))
        self.optimizers = optimizers(self.module, self.spec, device.type)
        self.initial = (
            {k: v.detach().clone() for k, v in self.student.state_dict().items()}
            if self.spec.initial_share
            else {}
        )
        self.names = {parameter: name for name, parameter in self.module.named_parameters()}
        self.average = Average(self.student, self.spec.ema) if self.spec.ema else None
        if self.selection:
            self.selection.start_stage()
        found = resume.unfinished_stage(self.run.checkpoints, self.number)
        if found is not None:
            self._restore(found)
        elif checkpoint.newest(self.run.checkpoints) is None:
            self.metrics.truncate(0)
        plain_attention.use_where_faster(self.student, self.accelerator)
        self.distributed = self.accelerator.prepare(self.module)
        self.distributed.train()
        self.ended, self._dev = self.step >= self.steps, math.nan
        self._task = self.metrics.bar.add_task(
            self.spec.name, total=self.steps, completed=self.step, loss=math.nan, dev=math.nan, rate=0.0
        )
        self._saved = self._logged = time.perf_counter()
        self._interval = _Interval(self.step, self.spec.batch)

    def _trained_module(self) -> TrainedModule:
        of_stage = self.batches.targets
        targets = self.data.targets if of_stage is None else of_stage
        unit = of_stage is not None and objectives.of_unit_length(
            of_stage[np.arange(min(self.batches.texts, 256))]
        )
        module = trained_module(self.spec, self.prepared, targets.dims if targets is not None else None, unit)
        if self.accelerator.mixed_precision == "bf16":
            objectives.queues_to_bfloat16(module.objective)
        if self.queued_rows is not None:
            assert targets is not None  # what a queue is filled with
            objectives.fill_queues(module.objective, torch.from_numpy(targets[self.queued_rows]))
        return module

    def _restore(self, found: Checkpoint) -> None:
        """Continue from a checkpoint within this stage."""
        state, tensors = found
        self.module.load_state_dict(tensors["module"])
        checkpoint.load_optimizer(self.optimizers, self.names, tensors.get("optimizer", {}))
        if self.average:
            self.average.weights = {k: v.to(self.accelerator.device) for k, v in tensors["average"].items()}
        if self.selection:
            self.selection.best, self.selection.misses = (
                state["selection"]["best"],
                state["selection"]["misses"],
            )
        self.step, self.metrics.stages = state["step"], state["stages"]
        self.metrics.truncate(state["metrics_bytes"])
        checkpoint.set_random_state(tensors["random"])
        self.metrics.log(f"{self.spec.name}: resuming from step {self.step:,} of {self.steps:,}")

    def batch(self) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        """The batch of this step: (ids, mask) of each view, (B, T) each, and the targets (B, d), or None."""
        device = self.accelerator.device
        share = slice(
            self.accelerator.process_index, None, self.accelerator.num_processes
        )  # of several processes, this one's
        rows, passes = self.order.at(self.step)
        ids, embeddings = self.batches.batch(rows[share], passes[share])
        views = [(torch.from_numpy(each).to(device), torch.from_numpy(mask).to(device)) for each, mask in ids]
        return views, None if embeddings is None else torch.from_numpy(embeddings).to(device)

    def set_learning_rate(self) -> None:
        """Give the optimizers the learning rate of this step."""
        rate = self.spec.learning_rate * learning_rate_factor(self.spec, self.step, self.steps)
        set_learning_rate(self.optimizers, self.spec, rate, self.step)

    def pause_where_asked(self) -> None:
        """At the run's `pause_at`: write a checkpoint and raise Paused."""
        if self.run.pause_at is not None and self.step >= self.run.pause_at:
            self._save()
            self.student.eval()
            raise Paused(self.prepared)

    def follow(self, loss: float) -> None:
        """What is done after a step with its loss: measure and select, log, write a checkpoint; `ended` is
        set after the last one."""
        diverged.check_loss(loss, self._place, self.step)
        bar, now, self.ended = self.metrics.bar, time.perf_counter(), self.step >= self.steps
        self._interval.loss += loss
        if self.selection and self.selects and (self.step % self.selection.every == 0 or self.ended):
            self._dev = self._measure(self._interval.mean_loss(self.step), self._interval.rate(self.step))
            self._interval = _Interval(self.step, self.spec.batch)
            if self.selection.exhausted:
                self.ended = True
                return
        elif now - self._logged > LOG_SECONDS and bar.disable:
            self._logged = now
            self.metrics.log(f"{self.spec.name}: step {self.step:,} of {self.steps:,}, loss {loss:.4f}")
        if now - self._saved > checkpoint.EVERY_SECONDS:
            self._save()
            self._saved = time.perf_counter()
        bar.update(
            self._task, completed=self.step, loss=loss, dev=self._dev, rate=self._interval.rate(self.step)
        )

    def _measure(self, loss: float, rate: float) -> float:
        """The score of the student, or of its average, on the suite of `select`."""
        assert self.selection is not None
        diverged.check_weights(self.module, self._place, self.step)
        current = {k: v.clone() for k, v in self.student.state_dict().items()} if self.average else None
        if self.average:
            self.student.load_state_dict(self.average.weights)
        self.student.eval()
        score = (
            self.selection.measure(self.student, self.spec.name, self.step)
            if self.accelerator.is_main_process
            else math.nan
        )
        self.distributed.train()
        if current is not None:
            self.student.load_state_dict(current)
        self.metrics.write(
            stage=self.spec.name, step=self.step, loss=round(loss, 6), dev=score, texts_s=round(rate, 1)
        )
        at = f"{self.spec.name}: step {self.step:,} of {self.steps:,}"
        self.metrics.log(
            f"{at}, mean loss {loss:.4f}, {self.selection.name} {score:.4f}, {rate:,.0f} texts/s"
        )
        return score

    def _save(self) -> None:
        """Write a checkpoint within this stage."""
        if not self.accelerator.is_main_process:
            return
        diverged.check_weights(self.module, self._place, self.step)
        tensors = {
            "module": self.module.state_dict(),
            "optimizer": checkpoint.optimizer_state(self.optimizers, self.names),
            "random": checkpoint.random_state(),
        }
        if self.average:
            tensors["average"] = self.average.weights
        checkpoint.save(self.run.checkpoints, Checkpoint(self._state(self.number, self.step), tensors))

    def _state(self, stage: int, step: int) -> dict[str, Any]:
        selection = {"best": self.selection.best, "misses": self.selection.misses} if self.selection else None
        return {
            "stage": stage,
            "step": step,
            "selection": selection,
            "stages": self.metrics.stages,
            "metrics_bytes": self.metrics.size(),
        }

    def hand_over(self) -> None:
        """Give the student the stage's result: the selected weights, else the average, else the last; and
        write a checkpoint of it."""
        if self.step > self._interval.step:  # steps that no measurement has logged
            mean, rate = self._interval.mean_loss(self.step), self._interval.rate(self.step)
            self.metrics.log(
                f"{self.spec.name}: {self.step:,} steps, mean loss {mean:.4f}, {rate:,.0f} texts/s"
            )
        diverged.check_weights(self.module, self._place, self.step)
        if self.selection and self.selects:
            self.student.load_state_dict(self.selection.weights())
        elif self.average:
            self.student.load_state_dict(self.average.weights)
        if self.initial:
            self.student.load_state_dict(
                interpolated(self.initial, self.student.state_dict(), self.spec.initial_share)
            )
        self.student.eval()
        ended = {"name": self.spec.name, "steps": self.step, "texts": self.step * self.spec.batch}
        self.metrics.stages.append(ended | objectives.learned_temperature(self.module.objective))
        if self.accelerator.is_main_process:
            result = {"handed_over": self.student.state_dict()}
            checkpoint.save(self.run.checkpoints, Checkpoint(self._state(self.number + 1, 0), result))


def _choose_trained_weights(student: nn.Module, only_embeddings: bool) -> None:
    """Train all of the student's weights, or those of its embedding layer only."""
    for parameter in student.parameters():
        parameter.requires_grad_(not only_embeddings)
    if only_embeddings:
        bare: Any = own(student)
        bare.model.embeddings.requires_grad_(True)
