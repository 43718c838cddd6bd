"""One distillation stage: batches, loss, optimizer step; measured, selected, checkpointed."""

from __future__ import annotations

import math
import time
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgedistill import objectives, recipe
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
from edgedistill.training.optimizers import learning_rate_factor, optimizers, set_learning_rate
from edgedistill.training.prepare import Prepared
from edgedistill.training.run_in_progress import RunInProgress
from edgedistill.training.stages import NumberedStage, steps
from edgedistill.training.weight_average import Average, interpolated

LOG_SECONDS = 30.0  # between two log lines, where there is no progress bar


class Paused(Exception):
    """Raised where a run was to pause: its checkpoint is written, and resuming it goes on from there. student: as it is now."""

    def __init__(self, student: PreparedStudent) -> None:
        self.student = student
        super().__init__("paused")


class TrainedModule(nn.Module):
    """What the optimizer sees: the student, a projection onto the teacher's dimensions that is dropped afterwards, the objective."""

    def __init__(self, student: nn.Module, projection: nn.Linear | None, objective: nn.Module, only_embeddings: bool = False) -> None:
        """only_embeddings: the output of the student's embedding layer is trained, not that of the whole student."""
        super().__init__()
        self.student = student
        self.projection = projection
        self.objective = objective
        self.only_embeddings = only_embeddings

    def forward(self, views: list[tuple[Tensor, Tensor]], targets: Tensor | None) -> Tensor:
        """views: (ids, mask) of each view, (B, T) each; targets (B, d), of pairs (B, 2, d), or none. Returns the loss ()."""
        student: Any = self.student
        embed = student.embedded if self.only_embeddings else student
        inner = own(student)
        if views[0][0].device.type == "cpu" and isinstance(inner, BertStudent):  # others hardly compute padding
            embed = partial(embed_by_length, embed, inner.model.get_input_embeddings())
        embeddings = [embed(ids, mask) for ids, mask in views]  # one pass over all views padded alike was 7% slower
        if self.projection is not None:
            embeddings = [self.projection(view) for view in embeddings]
        with torch.autocast(views[0][0].device.type, enabled=False):
            return self.objective([view.float() for view in embeddings], targets)


class _Interval:
    """The steps since the last measurement: how many, their loss, their speed."""

    def __init__(self, step: int, batch: int) -> None:
        self.step, self.batch, self.started, self.loss = step, batch, time.perf_counter(), 0.0

    def mean_loss(self, step: int) -> float:
        return self.loss / (step - self.step)

    def rate(self, step: int) -> float:
        """Texts per second."""
        return (step - self.step) * self.batch / max(1e-9, time.perf_counter() - self.started)


class Loop:
    """A distillation stage of a run, from its start or its last checkpoint to its end."""

    def __init__(
        self, stage: NumberedStage[recipe.Stage], prepared: Prepared, run: RunInProgress, selection: Selection | None = None
    ) -> None:
        self.stage, self.number, self.seed = stage.spec, stage.number, stage.seed
        self.prepared, self.student, self.batches = prepared, prepared.student.module, prepared.batches[stage.number]
        self.run, self.metrics, self.accelerator, self.selection = run, run.metrics, run.accelerator, selection
        self.only_embeddings = self.stage.match is not None and self.stage.match.layer == "embeddings"
        self.selects = selection is not None and not self.only_embeddings  # a suite needs layers that can use the new embeddings
        rows, self.queued_rows = self._rows(stage)
        self.texts = self.batches.texts if rows is None else len(rows)
        self.order = BatchOrder(self.stage, self.batches, self.texts, self.seed, rows, self._groups())
        self.steps = steps(self.stage, self.texts)
        torch.manual_seed(self.seed)
        self.step = 0
        self._place = diverged.Place(f"{stage.place}.learning_rate", self.stage.name, self.stage.learning_rate)

    def _groups(self) -> Groups | None:
        """Which texts are similar, for objectives that compare similar ones."""
        targets, stage = self.batches.targets, self.stage
        if stage.group is None:
            return None
        assert targets is not None  # the recipe asks for them: `similar_texts` belongs to an objective of targets
        wanted = similar_texts.count(stage.sorting_window, stage.batch, stage.group)
        return Groups(stage.group, cache(lambda: similar_texts.clusters(targets, self.batches.texts, wanted, self.seed)))

    def _rows(self, stage: NumberedStage[recipe.Stage]) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(the rows that the stage trains on, None for all; the rows that fill its queue at the start, which are none of those)."""
        longest, texts = self.stage.skip_longer_than, self.batches.texts
        rows = None if longest is None else self.batches.short(longest)
        queued = checks.queue_rows(stage, texts if rows is None else len(rows))
        if not queued:
            return rows, None
        rows = np.arange(texts) if rows is None else rows
        drawn = np.zeros(len(rows), bool)
        drawn[np.random.default_rng(self.seed).choice(len(rows), queued, replace=False, shuffle=False)] = True
        return rows[~drawn], rows[drawn]

    def already_done(self) -> bool:
        """Whether a killed run had finished this stage. If it was the last finished one, the student is given its weights."""
        found = resume.finished_stage(self.run.checkpoints, self.number)
        if found is None:
            return False
        self.metrics.stages = found.state["stages"]
        if "handed_over" in found.tensors:
            self.student.load_state_dict(found.tensors["handed_over"])
        if self.selection and found.state["selection"]:
            self.selection.best = found.state["selection"]["best"]
        return True

    def train(self) -> None:
        """Train to the stage's end, and give the student the stage's result."""
        self.set_up()
        bar, batch = self.metrics.bar, self.stage.batch
        task = bar.add_task(self.stage.name, total=self.steps, completed=self.step, loss=math.nan, dev=math.nan, rate=0.0)
        saved = logged = time.perf_counter()
        interval, dev = _Interval(self.step, batch), math.nan
        while self.step < self.steps:
            if self.run.pause_at is not None and self.step >= self.run.pause_at:
                self._pause()
            loss = self.train_step()
            diverged.check_loss(loss, self._place, self.step)
            interval.loss += loss
            now = time.perf_counter()
            if self.selection and self.selects and (self.step % self.selection.every == 0 or self.step == self.steps):
                dev = self._measure(interval.mean_loss(self.step), interval.rate(self.step))
                interval = _Interval(self.step, batch)
                if self.selection.exhausted:
                    break
            elif now - logged > LOG_SECONDS and bar.disable:
                logged = now
                self.metrics.log(f"{self.stage.name}: step {self.step:,} of {self.steps:,}, loss {loss:.4f}")
            if now - saved > checkpoint.EVERY_SECONDS:
                self._save()
                saved = time.perf_counter()
            bar.update(task, completed=self.step, loss=loss, dev=dev, rate=interval.rate(self.step))
        if self.step > interval.step:  # steps that no measurement has logged
            mean, rate = interval.mean_loss(self.step), interval.rate(self.step)
            self.metrics.log(f"{self.stage.name}: {self.step:,} steps, mean loss {mean:.4f}, {rate:,.0f} texts/s")
        self._hand_over()

    def set_up(self) -> None:
        """Module, optimizers and average, new or from the last checkpoint."""
        device = self.accelerator.device
        self.module = self._trained_module().to(device)
        _choose_trained_weights(self.student, self.only_embeddings)
        self.optimizers = optimizers(self.module, self.stage, device.type)
        self.initial = {k: v.detach().clone() for k, v in self.student.state_dict().items()} if self.stage.initial_share else {}
        self.names = {parameter: name for name, parameter in self.module.named_parameters()}
        self.average = Average(self.student, self.stage.ema) if self.stage.ema else None
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

    def _trained_module(self) -> TrainedModule:
        width = kinds.dims(self.student)
        of_stage = self.batches.targets
        targets = self.prepared.targets if of_stage is None else of_stage
        projected = self.prepared.drops_head and objectives.reads_teacher(self.stage.objective) and not self.only_embeddings
        dims = width if targets is None else targets.dims  # without any, nothing in the stage depends on them
        projection = nn.Linear(width, dims) if projected else None
        unit = of_stage is not None and objectives.of_unit_length(of_stage[np.arange(min(self.batches.texts, 256))])
        objective = objectives.build(self.stage.objective, dims, self.prepared.student.shape.get("blocks"), unit)
        if self.accelerator.mixed_precision == "bf16":
            objectives.queues_to_bfloat16(objective)
        if self.queued_rows is not None:
            assert targets is not None  # what a queue is filled with
            objectives.fill_queues(objective, torch.from_numpy(targets[self.queued_rows]))
        return TrainedModule(self.student, projection, objective, self.only_embeddings)

    def _restore(self, found: Checkpoint) -> None:
        """Continue from a checkpoint within this stage."""
        state, tensors = found
        self.module.load_state_dict(tensors["module"])
        checkpoint.load_optimizer(self.optimizers, self.names, tensors.get("optimizer", {}))
        if self.average:
            self.average.weights = {k: v.to(self.accelerator.device) for k, v in tensors["average"].items()}
        if self.selection:
            self.selection.best, self.selection.misses = state["selection"]["best"], state["selection"]["misses"]
        self.step, self.metrics.stages = state["step"], state["stages"]
        self.metrics.truncate(state["metrics_bytes"])
        checkpoint.set_random_state(tensors["random"])
        self.metrics.log(f"{self.stage.name}: resuming from step {self.step:,} of {self.steps:,}")

    def train_step(self) -> float:
        """One optimizer step. Returns the loss of its batch."""
        device = self.accelerator.device
        share = slice(self.accelerator.process_index, None, self.accelerator.num_processes)  # of several processes, this one's
        rows, passes = self.order.at(self.step)
        ids, embeddings = self.batches.batch(rows[share], passes[share])
        views = [(torch.from_numpy(each).to(device), torch.from_numpy(mask).to(device)) for each, mask in ids]
        targets = None if embeddings is None else torch.from_numpy(embeddings).to(device)
        rate = self.stage.learning_rate * learning_rate_factor(self.stage, self.step, self.steps)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        set_learning_rate(self.optimizers, self.stage, rate, self.step)
        loss = self.distributed(views, targets)
        self.accelerator.backward(loss)
        if self.stage.clip:
            self.accelerator.clip_grad_norm_(self.module.parameters(), self.stage.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        if targets is not None:
            objectives.update_queues(self.module.objective, targets)
        if self.average:
            self.average.update(self.student, self.step)
        self.step += 1
        return float(loss.detach())

    def _measure(self, loss: float, rate: float) -> float:
        """The score of the student, or of its average, on the suite of `select`."""
        assert self.selection is not None
        diverged.check_weights(self.module, self._place, self.step)
        current = {k: v.clone() for k, v in self.student.state_dict().items()} if self.average else None
        if self.average:
            self.student.load_state_dict(self.average.weights)
        self.student.eval()
        score = self.selection.measure(self.student, self.stage.name, self.step) if self.accelerator.is_main_process else math.nan
        self.distributed.train()
        if current is not None:
            self.student.load_state_dict(current)
        self.metrics.write(stage=self.stage.name, step=self.step, loss=round(loss, 6), dev=score, texts_s=round(rate, 1))
        at = f"{self.stage.name}: step {self.step:,} of {self.steps:,}"
        self.metrics.log(f"{at}, mean loss {loss:.4f}, {self.selection.name} {score:.4f}, {rate:,.0f} texts/s")
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

    def _pause(self) -> None:
        """Write a checkpoint and raise Paused."""
        self._save()
        self.student.eval()
        raise Paused(self.prepared.student)

    def _state(self, stage: int, step: int) -> dict[str, Any]:
        selection = {"best": self.selection.best, "misses": self.selection.misses} if self.selection else None
        return {"stage": stage, "step": step, "selection": selection, "stages": self.metrics.stages, "metrics_bytes": self.metrics.size()}

    def _hand_over(self) -> None:
        """Give the student the stage's result: the selected weights, else the average, else the last; and write a checkpoint of it."""
        diverged.check_weights(self.module, self._place, self.step)
        if self.selection and self.selects:
            self.student.load_state_dict(self.selection.weights())
        elif self.average:
            self.student.load_state_dict(self.average.weights)
        if self.initial:
            self.student.load_state_dict(interpolated(self.initial, self.student.state_dict(), self.stage.initial_share))
        self.student.eval()
        ended = {"name": self.stage.name, "steps": self.step, "texts": self.step * self.stage.batch}
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
