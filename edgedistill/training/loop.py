"""One stage of training: batches, loss, step; measured, selected, checkpointed, resumed."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from edgedistill import files, objectives, recipe
from edgedistill.evaluation import scoring
from edgedistill.session import Log
from edgedistill.students import kinds
from edgedistill.students.output import own
from edgedistill.training import checkpoint, prepare
from edgedistill.training.inputs import batches

CHECKPOINT_SECONDS = 60.0

LOG_SECONDS = 30.0
FUSED = ("cpu", "cuda")  # devices whose Adam makes one pass over memory a step


def steps(stage: recipe.Stage | recipe.Finetune, texts: int) -> int:
    """Optimizer steps of a stage over so many texts, or rows of a task; of fine-tuning at one learning rate."""
    return stage.steps or max(1, math.floor(texts * stage.epochs / stage.batch))


class Trained(nn.Module):
    """What the optimizer sees: the student, a projection onto the teacher's space that is dropped afterwards, the objective."""

    def __init__(self, student: nn.Module, projection: nn.Linear | None, objective: nn.Module, embedded: bool = False) -> None:
        super().__init__()
        self.student = student
        self.projection = projection
        self.objective = objective
        self.embedded = embedded  # only the student's embedding layer is read, and learns

    def forward(self, views: list[tuple[Tensor, Tensor]], targets: Tensor | None) -> Tensor:
        """views: (ids, mask) of each view, (B, T) each; targets (B, d), of pairs (B, 2, d), or none. Returns the loss ()."""
        student: Any = self.student
        read = student.embedded if self.embedded else student
        vectors = [read(ids, mask) for ids, mask in views]  # one pass over all views padded alike was 7% slower
        if self.projection is not None:
            vectors = [self.projection(view) for view in vectors]
        with torch.autocast(views[0][0].device.type, enabled=False):
            return self.objective([view.float() for view in vectors], targets)


class MetricsLog:
    """metrics.jsonl and the progress bar."""

    def __init__(self, path: Path, bar: Progress, log: Log) -> None:
        self.path, self.bar, self.log = path, bar, log
        self.stages: list[dict[str, Any]] = []

    def write(self, **values: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def cut(self, size: int) -> None:
        """Forget lines written after the checkpoint that is being resumed."""
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.truncate(size)

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


class Selection:
    """The suite that chooses the weights: those kept so far, the highest score, and how often in a row there was no gain."""

    def __init__(self, spec: recipe.Select, data: Path | None, words: PreTrainedTokenizerBase, max_tokens: int, partial: Path) -> None:
        self.name, self.every, self.patience, self.within = spec.suite, spec.every, spec.patience, spec.within
        self.suite = scoring.suite(spec.suite, data)
        self.words, self.max_tokens = words, max_tokens
        self.file = partial / "best.safetensors"
        self.start()

    def start(self) -> None:
        """A new stage begins: only its own weights compete."""
        self.best: dict[str, Any] = {"suite": self.name, "score": -math.inf, "stage": None, "step": 0}
        self.misses = 0

    def measure(self, student: nn.Module, stage: str, step: int) -> float:
        """Score the student; keep its weights when they are the best, or later ones that the suite cannot tell from those."""
        score = float(scoring.evaluate(self.suite, lambda texts: prepare.encode(student, self.words, texts, self.max_tokens))["average"])
        highest = self.best.get("highest", self.best["score"])
        self.misses = 0 if score > highest else self.misses + 1
        if score > highest - self.within:
            self.best = {"suite": self.name, "score": score, "stage": stage, "step": step}
            if highest > score:
                self.best["highest"] = highest  # of weights that were kept before these
            with files.new_file(self.file) as temporary:
                save_file({k: v.detach().cpu().contiguous() for k, v in student.state_dict().items()}, temporary)
        return score

    @property
    def given_up(self) -> bool:
        return self.patience is not None and self.misses >= self.patience


class Loop:
    """One stage: batches, loss, step; measured, selected, checkpointed; resumed where it was killed."""

    def __init__(
        self,
        stage: recipe.Stage,
        number: int,
        seed: int,
        made: prepare.Made,
        accelerator: Accelerator,
        partial: Path,
        selection: Selection | None,
        log: MetricsLog,
    ) -> None:
        self.stage, self.number, self.made, self.student = stage, number, made, made.student
        self.feed = made.feeds[number]
        self.metrics, self.selection, self.accelerator = log, selection, accelerator
        self.embedded = stage.match is not None and stage.match.at == "embeddings"
        self.selects = selection is not None and not self.embedded  # what no layer has learned to read yet, no suite can judge
        self.folder = partial / "checkpoints"
        self.seed = prepare.stage_seed(seed, number)
        self.rows, self.first = self._rows()
        self.texts = self.feed.texts if self.rows is None else len(self.rows)
        self.steps = steps(stage, self.texts)
        torch.manual_seed(self.seed)
        self.step = 0

    def _rows(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(the rows this stage trains on, None for all; the rows its queue starts from, which are none of those)."""
        place = f"stages[{self.number}]"
        rows = None if self.stage.longest is None else self.feed.short(self.stage.longest)
        wanted = prepare.queued(self.stage, self.feed.texts if rows is None else len(rows), place)
        if not wanted:
            return rows, None
        rows = np.arange(self.feed.texts) if rows is None else rows
        drawn = np.zeros(len(rows), bool)
        drawn[np.random.default_rng(self.seed).choice(len(rows), wanted, replace=False, shuffle=False)] = True
        return rows[~drawn], rows[drawn]

    def already_done(self) -> bool:
        """Whether a killed run had finished this stage; if it was the last finished, take over its weights."""
        found = checkpoint.newest(self.folder)
        if found is None or found[0]["stage"] <= self.number:
            return False
        state, tensors = found
        self.metrics.stages = state["stages"]
        if "handed_over" in tensors:
            self.student.load_state_dict(tensors["handed_over"])
        if self.selection and state["selection"]:
            self.selection.best = state["selection"]["best"]
        return True

    def go(self) -> None:
        self._set_up()
        task = self.metrics.bar.add_task(self.stage.name, total=self.steps, completed=self.step, loss=math.nan, dev=math.nan, rate=0.0)
        saved = said = mark = time.perf_counter()
        mark_step, measured, total = self.step, math.nan, 0.0
        while self.step < self.steps:
            loss = self._one()
            self.step += 1
            total += loss
            now = time.perf_counter()
            if self.selection and self.selects and (self.step % self.selection.every == 0 or self.step == self.steps):
                rate = (self.step - mark_step) * self.stage.batch / (now - mark)
                measured = self._measure(total / (self.step - mark_step), rate)
                mark, mark_step, total = time.perf_counter(), self.step, 0.0
                if self.selection.given_up:
                    break
            elif now - said > LOG_SECONDS and self.metrics.bar.disable:
                said = now
                self.metrics.log(f"{self.stage.name}: step {self.step:,} of {self.steps:,}, loss {loss:.4f}")
            if now - saved > CHECKPOINT_SECONDS:
                self._save()
                saved = time.perf_counter()
            rate = (self.step - mark_step) * self.stage.batch / max(1e-9, time.perf_counter() - mark)
            self.metrics.bar.update(task, completed=self.step, loss=loss, dev=measured, rate=rate)
        if self.step > mark_step:  # nothing has measured these steps
            loss, rate = total / (self.step - mark_step), (self.step - mark_step) * self.stage.batch / (time.perf_counter() - mark)
            self.metrics.log(f"{self.stage.name}: {self.step:,} steps, mean loss {loss:.4f}, {rate:,.0f} texts/s")
        self._hand_over()

    def _set_up(self) -> None:
        """Model, optimizer and average, as new or from the last checkpoint."""
        width = kinds.width(self.student)
        vectors = self.made.vectors if self.feed.vectors is None else self.feed.vectors
        projected = self.made.drops_head and objectives.reads_teacher(self.stage.objective) and not self.embedded
        dims = width if vectors is None else vectors.dims  # without any, nothing in the stage depends on them
        projection = nn.Linear(width, dims) if projected else None
        theirs = self.feed.vectors
        unit = theirs is not None and objectives.of_unit_length(theirs[np.arange(min(self.feed.texts, 256))])
        objective = objectives.build(self.stage.objective, dims, self.made.shape.get("blocks"), unit)
        if self.accelerator.mixed_precision == "bf16":
            objectives.halve(objective)
        if self.first is not None:
            assert vectors is not None  # what a queue is filled with
            objectives.fill(objective, torch.from_numpy(vectors[self.first]))
        self.module = Trained(self.student, projection, objective, self.embedded).to(self.accelerator.device)
        _learn(self.student, only_embeddings=self.embedded)
        self.optimizers = optimizers(self.module, self.stage, self.accelerator.device.type)
        self.names = {parameter: name for name, parameter in self.module.named_parameters()}
        self.average = checkpoint.Average(self.student, self.stage.ema) if self.stage.ema else None
        if self.selection:
            self.selection.start()
        found = checkpoint.newest(self.folder)
        if found is not None and found[0]["stage"] == self.number and found[0]["step"] > 0:
            self._restore(*found)
        elif found is None:
            self.metrics.cut(0)
        self.prepared = self.accelerator.prepare(self.module)
        self.prepared.train()
        self._window: tuple[int, list[tuple[np.ndarray, np.ndarray]]] = (-1, [])

    def _restore(self, state: dict[str, Any], tensors: dict[str, dict[str, Tensor]]) -> None:
        self.module.load_state_dict(tensors["module"])
        checkpoint.load_optimizer(self.optimizers, self.names, tensors.get("optimizer", {}))
        if self.average:
            self.average.weights = {k: v.to(self.accelerator.device) for k, v in tensors["average"].items()}
        if self.selection:
            self.selection.best, self.selection.misses = state["selection"]["best"], state["selection"]["misses"]
        self.step, self.metrics.stages = state["step"], state["stages"]
        self.metrics.cut(state["metrics_bytes"])
        checkpoint.set_random_state(tensors["random"])
        self.metrics.log(f"{self.stage.name}: going on from step {self.step:,} of {self.steps:,}")

    def _batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the next batch, and the pass over the texts each belongs to; with several processes, this one's share."""
        stage = self.stage
        number, within = divmod(self.step, stage.bucket)
        if self._window[0] != number:
            cut = batches.window(number, self.texts, self.rows, self.feed, stage.batch, stage.bucket, stage.max_tokens, self.seed)
            self._window = (number, cut)
        share = slice(self.accelerator.process_index, None, self.accelerator.num_processes)
        rows, passes = self._window[1][within]
        return rows[share], passes[share]

    def _one(self) -> float:
        device = self.accelerator.device
        read, vectors = self.feed.batch(*self._batch())
        views = [(torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)) for ids, mask in read]
        targets = None if vectors is None else torch.from_numpy(vectors).to(device)
        rate = self.stage.learning_rate * schedule(self.stage, self.step, self.steps)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = rate
        loss = self.prepared(views, targets)
        self.accelerator.backward(loss)
        if self.stage.clip:
            self.accelerator.clip_grad_norm_(self.module.parameters(), self.stage.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        if targets is not None:
            objectives.remember(self.module.objective, targets)
        if self.average:
            self.average.update(self.student, self.step)
        return float(loss.detach())

    def _measure(self, loss: float, rate: float) -> float:
        assert self.selection is not None
        own = {k: v.clone() for k, v in self.student.state_dict().items()} if self.average else None
        if self.average:
            self.student.load_state_dict(self.average.weights)
        self.student.eval()
        score = self.selection.measure(self.student, self.stage.name, self.step) if self.accelerator.is_main_process else math.nan
        self.prepared.train()
        if own is not None:
            self.student.load_state_dict(own)
        self.metrics.write(stage=self.stage.name, step=self.step, loss=round(loss, 6), dev=score, texts_s=round(rate, 1))
        at = f"{self.stage.name}: step {self.step:,} of {self.steps:,}"
        self.metrics.log(f"{at}, mean loss {loss:.4f}, {self.selection.name} {score:.4f}, {rate:,.0f} texts/s")
        return score

    def _save(self) -> None:
        if not self.accelerator.is_main_process:
            return
        tensors = {
            "module": self.module.state_dict(),
            "optimizer": checkpoint.optimizer_state(self.optimizers, self.names),
            "random": checkpoint.random_state(),
        }
        if self.average:
            tensors["average"] = self.average.weights
        checkpoint.save(self.folder, self._state(self.number, self.step), tensors)

    def _state(self, stage: int, step: int) -> dict[str, Any]:
        selection = {"best": self.selection.best, "misses": self.selection.misses} if self.selection else None
        return {"stage": stage, "step": step, "selection": selection, "stages": self.metrics.stages, "metrics_bytes": self.metrics.size()}

    def _hand_over(self) -> None:
        """The stage's result: the selected weights, else the average, else the last."""
        if self.selection and self.selects:
            self.student.load_state_dict(load_file(self.selection.file))
        elif self.average:
            self.student.load_state_dict(self.average.weights)
        self.student.eval()
        ended = {"name": self.stage.name, "steps": self.step, "texts": self.step * self.stage.batch}
        self.metrics.stages.append(ended | objectives.learned(self.module.objective))
        if self.accelerator.is_main_process:
            checkpoint.save(self.folder, self._state(self.number + 1, 0), {"handed_over": self.student.state_dict()})


def _learn(student: nn.Module, only_embeddings: bool) -> None:
    """Which of the student's weights learn: all, or those of its embedding layer."""
    for parameter in student.parameters():
        parameter.requires_grad_(not only_embeddings)
    if only_embeddings:
        bare: Any = own(student)
        bare.model.embeddings.requires_grad_(True)


def schedule(stage: recipe.Stage | recipe.Finetune, step: int, steps: int) -> float:
    """The learning rate's factor at a step: linear warm-up, then linear or cosine to 0, or constant."""
    warmup = round(stage.warmup * steps)
    if step < warmup:
        return (step + 1) / warmup
    if stage.schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 1 - done if stage.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def optimizers(module: Trained, stage: recipe.Stage, device: str) -> list[torch.optim.Optimizer]:
    """AdamW, fused where it can be; no decay on vectors (biases, norms) and on the word table.

    With `optimizer: muon` the matrices of the student's layers leave it for Muon, whose steps are scaled to AdamW's usual size
    (Liu et al. 2025, Eq. 4), so that one learning rate serves both.
    """
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    groups: dict[str, list[nn.Parameter]] = {"muon": [], "decayed": [], "spared": []}
    for name, parameter in module.named_parameters():
        matrix = parameter.ndim > 1 and id(parameter) not in tables
        layers = name.startswith("student.") and "embedding" not in name and ".head." not in name
        groups["muon" if matrix and layers and stage.optimizer == "muon" else "decayed" if matrix else "spared"].append(parameter)
    decays = [{"params": groups["decayed"], "weight_decay": stage.weight_decay}, {"params": groups["spared"], "weight_decay": 0.0}]
    adam = torch.optim.AdamW([g for g in decays if g["params"]], lr=stage.learning_rate, betas=stage.betas, fused=device in FUSED)
    if not groups["muon"]:
        return [adam]
    muon = torch.optim.Muon(groups["muon"], lr=stage.learning_rate, weight_decay=stage.weight_decay, adjust_lr_fn="match_rms_adamw")
    return [muon, adam]


def progress(shown: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,} steps  loss {task.fields[loss]:.4f}  dev {task.fields[dev]:.4f}"),
        TextColumn("{task.fields[rate]:,.0f} texts/s"),
        TimeRemainingColumn(),
        transient=True,
        disable=not shown,
    )
