"""recipe -> run: corpus, teacher vectors, student, then one loop per stage."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from edgedistill import batches, checkpoint, corpus, files, finetune, objectives, parallel, prepare, quality, recipe, run, targets
from edgedistill import teacher as teachers
from edgedistill.corpus import Corpus, Say
from edgedistill.errors import UserError
from edgedistill.parallel import Pairs
from edgedistill.students.output import Output, own

CHECKPOINT_SECONDS = 60.0
LOG_SECONDS = 30.0


def train(
    spec: recipe.Recipe,
    out: Path,
    data: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    say: Say = print,
    progress: bool = True,
) -> dict[str, Any]:
    """Train a recipe's student and write the run folder `out`; it appears when it is whole, until then `out`.partial grows.

    Returns what run.json holds. Raises UserError: `out` exists, a run to resume that is another recipe's, bad data.
    """
    teachers.no_denormals()
    partial = _open_partial(spec, out, resume)
    with _forgotten_unless_begun(partial):
        return _train(spec, out, partial, data, device, say, progress)


def _train(spec: recipe.Recipe, out: Path, partial: Path, data: Path | None, device: str, say: Say, progress: bool) -> dict[str, Any]:
    accelerator = _accelerator(spec, device)
    started = time.perf_counter()
    if spec.student.kind == "teacher" and spec.finetuning is None:
        return _keep_teacher(spec, out, partial, data, accelerator, say, progress)
    if spec.finetuning is not None and not spec.distilling:
        return _only_finetune(spec, out, partial, data, accelerator, say, progress)
    made = prepare.prepare(spec, data, accelerator, partial, say, progress)
    texts, student = made.texts, made.student
    selection = Selection(spec.select, data, made.words, made.shape["max_tokens"], partial) if spec.select else None
    if selection:
        check_languages(spec, list(selection.suite.tasks))
    with _progress(progress) as bar:
        log = Log(partial / "metrics.jsonl", bar, say)
        for number, stage in enumerate(spec.distilling):
            loop = Loop(stage, number, spec.seed, made, accelerator, partial, selection, log)
            if not loop.already_done():
                loop.go()
        best = selection.best if selection and selection.best["stage"] else None
        start = finetune.Start(student, made.shape, made.words)
        tuned = _finetuned(spec, start, data, accelerator, partial, best, log) if spec.finetuning else {}
    info = {
        **run.made_by(),
        "seconds": round(time.perf_counter() - started, 1),
        "corpus": _about(texts),
        "dims": run.width(student),
        "parameters": run.count(student),
        "stages": log.stages,
        "selected": best,
        **tuned,
    }
    if accelerator.is_main_process:
        _finish(spec, out, partial, made.shape, student, info)
        say(
            f"{out}: {info['parameters']['total']:,} parameters"
            + (f", {selection.name} {selection.best['score']:.4f}" if selection and selection.best["stage"] else "")
        )
    return info


def _finetuned(
    spec: recipe.Recipe,
    start: finetune.Start,
    data: Path | None,
    accelerator: Accelerator,
    partial: Path,
    best: dict[str, Any] | None,
    log: Log,
) -> dict[str, Any]:
    """Fine-tune in place and leave the classifier's files in `partial`. Returns what run.json says of it."""
    if accelerator.num_processes > 1:
        raise UserError("finetune: runs in one process; start it without accelerate launch")
    module, task = finetune.finetune(spec, start, data, accelerator.device, partial, best, log)
    finetune.write(partial, module, task["labels"])
    for name in ("dev", "test"):
        if task[name] is not None:
            log.say(f"{name}: accuracy {task[name]['accuracy']:.4f}, F1 {task[name]['f1']:.4f}")
    return {"parameters": finetune.parameters(module), "task": task}


def _only_finetune(
    spec: recipe.Recipe, out: Path, partial: Path, data: Path | None, accelerator: Accelerator, say: Say, progress: bool
) -> dict[str, Any]:
    """A run whose one stage learns from labels: nothing is distilled, the teacher embeds nothing."""
    started = time.perf_counter()
    start = finetune.begin(spec, data, partial, say)
    with _progress(progress) as bar:
        log = Log(partial / "metrics.jsonl", bar, say)
        tuned = _finetuned(spec, start, data, accelerator, partial, None, log)
    seconds = round(time.perf_counter() - started, 1)
    nothing: dict[str, Any] = {"corpus": None, "selected": None}
    info = {**run.made_by(), "seconds": seconds, "dims": run.width(start.student), **nothing, "stages": log.stages, **tuned}
    _finish(spec, out, partial, start.shape, start.student, info)
    say(f"{out}: {info['parameters']['total']:,} parameters")
    return info


def _open_partial(spec: recipe.Recipe, out: Path, resume: bool) -> Path:
    partial = run.partial(out)
    if out.exists():
        raise UserError(f"{out}: exists already; choose another --out, or delete it")
    written = partial / "recipe.yaml"
    if partial.exists() and not resume:
        raise UserError(f"{partial}: an unfinished run; go on with --resume, or delete it")
    if resume and not written.exists():
        raise UserError(f"{partial}: nothing to resume; leave --resume out")
    text = recipe.dump(spec)
    if resume and written.read_text(encoding="utf-8") != text:
        what = _difference(written.read_text(encoding="utf-8"), text)
        raise UserError(f"{partial}: was begun with another recipe ({what}); give that one, or another --out")
    partial.mkdir(parents=True, exist_ok=True)
    files.write_text(written, text)
    return partial


@contextmanager
def _forgotten_unless_begun(partial: Path) -> Iterator[None]:
    """Where the user has to mend something before the first step is done, leave nothing that the mended recipe would stumble over."""
    try:
        yield
    except UserError:
        if not (partial / "checkpoints").exists():
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _difference(before: str, now: str) -> str:
    """The first lines that differ between two recipes."""
    for old, new in zip(before.splitlines(), now.splitlines(), strict=False):
        if old != new:
            return f"it says {old.strip()!r}, now {new.strip()!r}"
    return "its length differs"


def _accelerator(spec: recipe.Recipe, device: str) -> Accelerator:
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu")
    cpu = device == "cpu" or not torch.cuda.is_available()
    names = {stage.dtype for stage in spec.distilling}
    if len(names) > 1:
        raise UserError(f"stages: more than one dtype ({', '.join(sorted(names))}); all stages of a run share one")
    AcceleratorState._reset_state()  # of a run before this one in the same process: its precision would stay
    half = bool(names) and teachers.dtype(names.pop()) == torch.bfloat16
    return Accelerator(mixed_precision="bf16" if half else "no", cpu=cpu)


def steps(stage: recipe.Stage, texts: int) -> int:
    """Optimizer steps of a stage over so many texts."""
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


class Log:
    """metrics.jsonl and the progress bar."""

    def __init__(self, path: Path, bar: Progress, say: Say) -> None:
        self.path, self.bar, self.say = path, bar, say
        self.stages: list[dict[str, Any]] = []
        self.last = time.perf_counter()

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
    """The suite that chooses the weights: best so far, and how often in a row there was no gain."""

    def __init__(self, spec: recipe.Select, data: Path | None, words: PreTrainedTokenizerBase, max_tokens: int, partial: Path) -> None:
        self.name, self.every, self.patience = spec.suite, spec.every, spec.patience
        self.suite = quality.suite(spec.suite, data)
        self.words, self.max_tokens = words, max_tokens
        self.file = partial / "best.safetensors"
        self.start()

    def start(self) -> None:
        """A new stage begins: only its own weights compete."""
        self.best: dict[str, Any] = {"suite": self.name, "score": -math.inf, "stage": None, "step": 0}
        self.misses = 0

    def measure(self, student: nn.Module, stage: str, step: int) -> float:
        """Score the student; keep its weights when they are the best."""
        score = float(quality.evaluate(self.suite, lambda texts: prepare.encode(student, self.words, texts, self.max_tokens))["average"])
        if score > self.best["score"]:
            self.best = {"suite": self.name, "score": score, "stage": stage, "step": step}
            self.misses = 0
            with files.new_file(self.file) as temporary:
                save_file({k: v.detach().cpu().contiguous() for k, v in student.state_dict().items()}, temporary)
        else:
            self.misses += 1
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
        log: Log,
    ) -> None:
        self.stage, self.number, self.made, self.student = stage, number, made, made.student
        self.feed = made.feeds[number]
        self.log, self.selection, self.accelerator = log, selection, accelerator
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
        place, wanted = f"stages[{self.number}]", objectives.memory(self.stage.objective)
        rows = None if self.stage.longest is None else self.feed.short(self.stage.longest)
        if rows is not None and len(rows) == 0:
            raise UserError(f"{place}.longest: no text of the corpus has {self.stage.longest} tokens or fewer; raise it")
        if not wanted:
            return rows, None
        rows = np.arange(self.feed.texts) if rows is None else rows
        if wanted >= len(rows):
            raise UserError(f"{place}.objective: a queue of {wanted:,} texts leaves none of {len(rows):,} to train on; lower it")
        drawn = np.zeros(len(rows), bool)
        drawn[np.random.default_rng(self.seed).choice(len(rows), wanted, replace=False, shuffle=False)] = True
        return rows[~drawn], rows[drawn]

    def already_done(self) -> bool:
        """Whether a killed run had finished this stage; if it was the last finished, take over its weights."""
        found = checkpoint.newest(self.folder)
        if found is None or found[0]["stage"] <= self.number:
            return False
        state, tensors = found
        self.log.stages = state["stages"]
        if "handed_over" in tensors:
            self.student.load_state_dict(tensors["handed_over"])
        if self.selection and state["selection"]:
            self.selection.best = state["selection"]["best"]
        return True

    def go(self) -> None:
        self._set_up()
        task = self.log.bar.add_task(self.stage.name, total=self.steps, completed=self.step, loss=math.nan, dev=math.nan, rate=0.0)
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
            elif now - said > LOG_SECONDS and self.log.bar.disable:
                said = now
                self.log.say(f"{self.stage.name}: step {self.step:,} of {self.steps:,}, loss {loss:.4f}")
            if now - saved > CHECKPOINT_SECONDS:
                self._save()
                saved = time.perf_counter()
            rate = (self.step - mark_step) * self.stage.batch / max(1e-9, time.perf_counter() - mark)
            self.log.bar.update(task, completed=self.step, loss=loss, dev=measured, rate=rate)
        self._hand_over()

    def _set_up(self) -> None:
        """Model, optimizer and average, as new or from the last checkpoint."""
        width = run.width(self.student)
        vectors = self.made.vectors if self.feed.vectors is None else self.feed.vectors
        projected = self.made.drops_head and objectives.reads_teacher(self.stage.objective) and not self.embedded
        projection = nn.Linear(width, vectors.dims) if projected else None
        objective = objectives.build(self.stage.objective, vectors.dims, self.made.shape.get("blocks"))
        if self.first is not None:
            objectives.fill(objective, torch.from_numpy(vectors[self.first]))
        self.module = Trained(self.student, projection, objective, self.embedded).to(self.accelerator.device)
        _learn(self.student, only_embeddings=self.embedded)
        self.optimizer = optimizer(self.module, self.stage, self.accelerator.device.type)
        self.names = {parameter: name for name, parameter in self.module.named_parameters()}
        self.average = checkpoint.Average(self.student, self.stage.ema) if self.stage.ema else None
        if self.selection:
            self.selection.start()
        found = checkpoint.newest(self.folder)
        if found is not None and found[0]["stage"] == self.number and found[0]["step"] > 0:
            self._restore(*found)
        elif found is None:
            self.log.cut(0)
        self.prepared = self.accelerator.prepare(self.module)
        self.prepared.train()
        self._window: tuple[int, list[tuple[np.ndarray, np.ndarray]]] = (-1, [])

    def _restore(self, state: dict[str, Any], tensors: dict[str, dict[str, Tensor]]) -> None:
        self.module.load_state_dict(tensors["module"])
        checkpoint.load_optimizer(self.optimizer, self.names, tensors.get("optimizer", {}))
        if self.average:
            self.average.weights = {k: v.to(self.accelerator.device) for k, v in tensors["average"].items()}
        if self.selection:
            self.selection.best, self.selection.misses = state["selection"]["best"], state["selection"]["misses"]
        self.step, self.log.stages = state["step"], state["stages"]
        self.log.cut(state["metrics_bytes"])
        checkpoint.set_random_state(tensors["random"])
        self.log.say(f"{self.stage.name}: going on from step {self.step:,} of {self.steps:,}")

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
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.prepared(views, targets)
        self.optimizer.zero_grad()
        self.accelerator.backward(loss)
        if self.stage.clip:
            self.accelerator.clip_grad_norm_(self.module.parameters(), self.stage.clip)
        self.optimizer.step()
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
        self.log.write(stage=self.stage.name, step=self.step, loss=round(loss, 6), dev=score, texts_s=round(rate, 1))
        at = f"{self.stage.name}: step {self.step:,} of {self.steps:,}"
        self.log.say(f"{at}, loss {loss:.4f}, {self.selection.name} {score:.4f}, {rate:,.0f} texts/s")
        return score

    def _save(self) -> None:
        if not self.accelerator.is_main_process:
            return
        tensors = {
            "module": self.module.state_dict(),
            "optimizer": checkpoint.optimizer_state(self.optimizer, self.names),
            "random": checkpoint.random_state(),
        }
        if self.average:
            tensors["average"] = self.average.weights
        checkpoint.save(self.folder, self._state(self.number, self.step), tensors)

    def _state(self, stage: int, step: int) -> dict[str, Any]:
        selection = {"best": self.selection.best, "misses": self.selection.misses} if self.selection else None
        return {"stage": stage, "step": step, "selection": selection, "stages": self.log.stages, "metrics_bytes": self.log.size()}

    def _hand_over(self) -> None:
        """The stage's result: the selected weights, else the average, else the last."""
        if self.selection and self.selects:
            self.student.load_state_dict(load_file(self.selection.file))
        elif self.average:
            self.student.load_state_dict(self.average.weights)
        self.student.eval()
        self.log.stages.append({"name": self.stage.name, "steps": self.step, "texts": self.step * self.stage.batch})
        if self.accelerator.is_main_process:
            checkpoint.save(self.folder, self._state(self.number + 1, 0), {"handed_over": self.student.state_dict()})


def _learn(student: nn.Module, only_embeddings: bool) -> None:
    """Which of the student's weights learn: all, or those of its embedding layer."""
    for parameter in student.parameters():
        parameter.requires_grad_(not only_embeddings)
    if only_embeddings:
        bare: Any = own(student)
        bare.model.embeddings.requires_grad_(True)


def schedule(stage: recipe.Stage, step: int, steps: int) -> float:
    """The learning rate's factor at a step: linear warm-up, then linear or cosine to 0, or constant."""
    warmup = round(stage.warmup * steps)
    if step < warmup:
        return (step + 1) / warmup
    if stage.schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 1 - done if stage.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def optimizer(module: nn.Module, stage: recipe.Stage, device: str) -> torch.optim.AdamW:
    """AdamW, fused (one pass over memory a step); no decay on vectors (biases, norms) and on the word table."""
    decayed: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    for parameter in module.parameters():
        (spared if parameter.ndim < 2 or id(parameter) in tables else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": stage.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=stage.learning_rate, betas=stage.betas, fused=device in ("cpu", "cuda"))


def _finish(spec: recipe.Recipe, out: Path, partial: Path, shape: dict[str, Any], student: nn.Module, info: dict[str, Any]) -> None:
    """The run folder, whole; then the partial one goes."""
    with files.new_folder(out) as folder:
        (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
        run.write_student(folder, shape, student.state_dict())
        if shape["kind"] == "teacher":
            source = teachers.locate(spec.teacher)
            shutil.copytree(source, folder / "model", ignore=shutil.ignore_patterns(*teachers.OTHER_FORMATS, ".*"))
        for name in ("tokenizer", "targets"):
            if (partial / name).exists():
                shutil.copytree(partial / name, folder / name)
        for name in ("metrics.jsonl", "task.json", "head.safetensors"):
            if (partial / name).exists():
                shutil.copy(partial / name, folder)
        files.write_json(folder / "run.json", info)
    shutil.rmtree(partial)


def itself(spec: recipe.Recipe, teacher: teachers.Teacher, maps: list[targets.Affine]) -> nn.Module:
    """The teacher, or with the maps of its `targets` behind it, the targets themselves as a student."""
    if spec.targets is None:
        return teacher.module
    return run.reduced(teacher.module, maps, spec.targets.blocks if isinstance(spec.targets, recipe.Split) else None)


def check_itself(spec: recipe.Recipe) -> None:
    """Raise UserError where the recipe's targets are made of more than its one teacher."""
    if spec.targets is not None and any(of not in (None, spec.teacher) for plan in targets.plans(spec.targets) for of, _ in plan.sources):
        raise UserError("targets: of other teachers than the recipe's; a graph holds one teacher, measure each alone")
    if isinstance(spec.targets, recipe.Concat):
        raise UserError("targets: one teacher joined with itself; leave `kind: concat` out")


def _fit_itself(
    spec: recipe.Recipe,
    teacher: teachers.Teacher,
    partial: Path,
    data: Path | None,
    accelerator: Accelerator,
    say: Say,
    progress: bool,
) -> Corpus:
    """Fit the maps of a teacher's own `targets` as a student's run would. Returns the corpus they were fitted on."""
    assert isinstance(spec.student, recipe.Itself) and spec.corpus is not None
    assert not isinstance(spec.corpus, recipe.Parallel), "the recipe has made sure"
    texts, first = corpus.build(spec.corpus, data, spec.seed, say), None
    if spec.student.onto is not None:
        other = spec.model_copy(update={"student": spec.student.onto})
        words = prepare.own_tokenizer(other, teacher, texts, None)
        student, shape = prepare.untrained(other, teacher, words, data, prepare.look(other, words, texts, say))
        first = (student, words, shape["max_tokens"])
    prepare.wanted(spec, teacher, texts, first, data, partial, accelerator.device.type, say, progress)
    return texts


def _keep_teacher(
    spec: recipe.Recipe, out: Path, partial: Path, data: Path | None, accelerator: Accelerator, say: Say, progress: bool
) -> dict[str, Any]:
    """The baseline's run: the teacher's own files, nothing trained; with `targets`, the maps that reduce its vectors too."""
    assert isinstance(spec.student, recipe.Itself)
    check_itself(spec)
    teacher = teachers.Teacher(spec.teacher)
    texts = _fit_itself(spec, teacher, partial, data, accelerator, say, progress) if spec.targets else None
    student = itself(spec, teacher, targets.read(partial / "targets") if texts else [])
    nothing: dict[str, Any] = {"seconds": 0.0, "stages": [], "selected": None}
    info = {
        **run.made_by(),
        **nothing,
        "corpus": _about(texts) if texts else None,
        "dims": run.width(student),
        "parameters": run.count(student),
    }
    shape = teachers.itself(spec.student, teacher)
    if isinstance(student, Output):
        shape |= {"kind": "reduced", "blocks": student.blocks}
    with files.new_folder(out) as folder:
        (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
        shutil.copytree(teacher.folder, folder / "model", ignore=shutil.ignore_patterns(*teachers.OTHER_FORMATS, ".*"))
        if texts:
            shutil.copytree(partial / "targets", folder / "targets")
        files.write_json(folder / "student.json", shape)
        teachers.save_tokenizer(teacher.tokenizer, folder / "tokenizer")
        files.write_json(folder / "run.json", info)
    shutil.rmtree(partial)
    say(f"{out}: the teacher itself, {info['dims']} numbers, {info['parameters']['total']:,} parameters")
    return info


def tasks(spec: recipe.Select) -> list[str]:
    """The tasks of the suite that selects, read from its description; its files may lie elsewhere."""
    return quality.tasks(spec.suite)


def check_languages(spec: recipe.Recipe, named: list[str]) -> None:
    """Raise UserError where a language of the pairs is in none of the tasks (en-de, ar-ar), and `select.without` does not say so."""
    if spec.select is None or not isinstance(spec.corpus, recipe.Parallel):
        return
    known = {language for task in named for language in re.split(r"[^a-z]+", task.lower())}
    unseen = [each for each in parallel.languages(spec.corpus) if each not in known and each not in spec.select.without]
    if unseen:
        fact = f"{', '.join(unseen)}: no task of the suite {spec.select.suite} is in these languages, so nothing selects for them"
        raise UserError(f"corpus.pairs: {fact}; choose another suite, or say that it is meant with select.without: [{', '.join(unseen)}]")


def _about(texts: Corpus | Pairs) -> dict[str, Any]:
    """A corpus, for the record."""
    return {"fingerprint": texts.fingerprint, "texts": len(texts), "held_out": len(texts.held_out), "sources": texts.sources}


def _progress(shown: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,} steps  loss {task.fields[loss]:.4f}  dev {task.fields[dev]:.4f}"),
        TextColumn("{task.fields[rate]:,.0f} texts/s"),
        TimeRemainingColumn(),
        transient=True,
        disable=not shown,
    )
