"""recipe -> run: corpus, teacher vectors, student, then one loop per stage."""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from edgedistill import batches, checkpoint, corpus, feed, files, objectives, quality, recipe, run, surgery, triples, vocabulary
from edgedistill import teacher as teachers
from edgedistill.corpus import Corpus, Say
from edgedistill.errors import UserError
from edgedistill.feed import Feed
from edgedistill.students import bert, bilstm, recurrent, static
from edgedistill.students.teacher import layout, quiet
from edgedistill.tokens import Tokens, tokenize

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
    accelerator = _accelerator(spec, device)
    started = time.perf_counter()
    if spec.student.kind == "teacher":
        return _keep_teacher(spec, out, partial, say)
    made = _prepare(spec, data, accelerator, partial, say, progress)
    texts, student = made.texts, made.student
    selection = Selection(spec.select, data, made.words, made.shape["max_tokens"], partial) if spec.select else None
    with _progress(progress) as bar:
        log = Log(partial / "metrics.jsonl", bar, say)
        for number, stage in enumerate(spec.stages):
            loop = Loop(stage, number, spec.seed, made, accelerator, partial, selection, log)
            if not loop.already_done():
                loop.go()
    info = {
        **run.made_by(),
        "seconds": round(time.perf_counter() - started, 1),
        "corpus": {"fingerprint": texts.fingerprint, "texts": len(texts), "held_out": len(texts.held_out), "sources": texts.sources},
        "dims": run.width(student),
        "parameters": run.count(student),
        "stages": log.stages,
        "selected": selection.best if selection else None,
    }
    if accelerator.is_main_process:
        _finish(spec, out, partial, made.shape, student, info)
        say(
            f"{out}: {info['parameters']['total']:,} parameters"
            + (f", {selection.name} {selection.best['score']:.4f}" if selection else "")
        )
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
    names = {stage.dtype for stage in spec.stages}
    if len(names) > 1:
        raise UserError(f"stages: more than one dtype ({', '.join(sorted(names))}); all stages of a run share one")
    half = bool(names) and teachers.dtype(names.pop()) == torch.bfloat16
    return Accelerator(mixed_precision="bf16" if half else "no", cpu=cpu)


@dataclass(frozen=True)
class Made:
    """What every stage of a run works with."""

    texts: Corpus
    tokens: Tokens
    vectors: teachers.Vectors
    feeds: list[Feed]  # one a stage
    words: PreTrainedTokenizerBase
    student: nn.Module
    shape: dict[str, Any]
    drops_head: bool  # a projection onto the teacher's space serves training only


def _prepare(spec: recipe.Recipe, data: Path | None, accelerator: Accelerator, partial: Path, say: Say, progress: bool) -> Made:
    """Texts, tokens, teacher vectors and the untrained student, from the caches where they have them."""
    assert spec.corpus is not None
    with accelerator.main_process_first():
        texts = corpus.build(spec.corpus, data, spec.seed, say)
        teacher = teachers.Teacher(spec.teacher)
        words = own_tokenizer(spec, teacher, texts, partial, say)
        student, shape = untrained(spec, teacher, words, data)
        check_objectives(spec, student, teacher.dims)
        vectors = teachers.embed_corpus(teacher, texts, accelerator.device.type, say, progress)
        longest = max(stage.max_tokens for stage in spec.stages) if spec.stages else shape["max_tokens"]
        tokens = tokenize(texts, words.backend_tokenizer, min(longest, shape["max_tokens"]), words.pad_token_id or 0, say)
        if isinstance(student, static.StaticStudent) and isinstance(spec.student, recipe.Static) and spec.student.weights == "sif":
            static.weigh(student, torch.from_numpy(tokens.counts(len(words), texts.trained)))
        device = accelerator.device.type
        feeds = [
            _feed(spec, number, texts, tokens, words, vectors, shape["max_tokens"], device, data, say) for number in range(len(spec.stages))
        ]
    return Made(texts, tokens, vectors, feeds, words, student, shape, _dropped_head(spec))


def _feed(
    spec: recipe.Recipe,
    number: int,
    texts: Corpus,
    tokens: Tokens,
    words: PreTrainedTokenizerBase,
    vectors: teachers.Vectors,
    max_tokens: int,
    device: str,
    data: Path | None,
    say: Say,
) -> Feed:
    """What a stage reads: the corpus' texts, or triples of its own."""
    stage = spec.stages[number]
    found = stage_triples(spec, number, data, say)
    if found is not None:
        return feed.of_triples(found, words, min(stage.max_tokens, max_tokens), say)
    wanted = vectors if objectives.reads_teacher(stage.objective) else None
    seed = stage_seed(spec.seed, number)
    return feed.of_texts(stage, f"stages[{number}].view", seed, texts, tokens, words, wanted, max_tokens, device, data, say)


def stage_seed(seed: int, number: int) -> int:
    """Every stage draws numbers of its own."""
    return seed * 1_000_003 + number


def stage_triples(spec: recipe.Recipe, number: int, data: Path | None, say: Say) -> triples.Triples | None:
    """The triples a stage trains on, without the corpus' leaks; None where it trains on the corpus itself."""
    stage = spec.stages[number]
    if stage.triples is None:
        return None
    leaks = spec.corpus.exclude if isinstance(spec.corpus, recipe.Files) else []
    return triples.build(stage.triples, leaks, data, f"stages[{number}].triples", say)


def own_tokenizer(
    spec: recipe.Recipe, teacher: teachers.Teacher, texts: Corpus | None, partial: Path | None, say: Say = lambda line: None
) -> PreTrainedTokenizerBase:
    """The student's tokenizer: the teacher's or a named one, trimmed to the corpus or not, or one learned. Kept in the run's folder."""
    folder = partial / "tokenizer" if partial else None
    if folder and folder.exists():
        return AutoTokenizer.from_pretrained(folder)
    student = spec.student
    assert not isinstance(student, recipe.Itself)
    if student.tokenizer == "teacher":
        words = teacher.tokenizer
    else:
        words = teachers.tokenizer(_model_folder(student.tokenizer, getattr(student, "revision", None), "student.tokenizer"))
    if student.vocabulary is not None:
        if texts is None:
            raise UserError("student.vocabulary: is learned from the corpus, and the recipe has none")
        words = vocabulary.learn(words, texts, student.vocabulary)
    lost = None
    if student.trim is not None:
        if texts is None:
            raise UserError("student.trim: keeps the pieces of the corpus, and the recipe has none")
        trained, held_out = surgery.of_corpus(texts)
        words, _, lost, _ = surgery.trimmed(words, [trained], [held_out], student.trim.min_count)
        say(f"student.trim: {surgery.line(lost)}")
    if folder:
        with files.new_folder(folder) as temporary:
            words.backend_tokenizer.no_padding()
            words.backend_tokenizer.no_truncation()
            words.save_pretrained(temporary)
            if lost is not None:
                files.write_json(temporary / "trim.json", lost)
    return words


def untrained(
    spec: recipe.Recipe, teacher: teachers.Teacher, words: PreTrainedTokenizerBase, data: Path | None
) -> tuple[nn.Module, dict[str, Any]]:
    """The student before its first step, and its shape as data. The same recipe gives the same weights."""
    torch.manual_seed(spec.seed)
    student, pad = spec.student, words.pad_token_id or 0
    assert not isinstance(student, recipe.Itself)
    source = None if isinstance(student, recipe.BiLSTM | recipe.Static) else _source(student, teacher, words)
    start = _first_vectors(spec, teacher, words, source, data)
    if isinstance(student, recipe.BiLSTM):
        shape = bilstm.shape(student, len(words), pad, teacher.dims)
        module: nn.Module = bilstm.build(shape)
        bilstm.start(module, start)  # type: ignore[arg-type]
        return module, shape
    if isinstance(student, recipe.Static):
        shape = static.shape(student, len(words), pad, teacher.dims)
        module = static.build(shape)
        static.start(module, start, student.embeddings.of == "outputs")
        return module, shape
    model = source.model if source else None
    if isinstance(student, recipe.Recurrent):
        assert model is not None  # a recurrent student always has a source
        counted = "pad" if model.config.model_type in teachers.COUNTS_FROM_PAD else "zero"
        shape = recurrent.shape(student, len(words), pad, teacher.dims, model.config, counted)
        unit = recurrent.build(shape)
        recurrent.start(unit, recurrent.chosen(student, model.config), model, counted, start)
        return unit, shape
    shape = bert.shape(student, len(words), pad, teacher.dims, model.config if model else None)
    module = bert.build(shape)
    bert.start(module, bert.chosen(student, model.config) if model else None, model, start, student.embeddings.of == "outputs")
    return module, shape


class Source(NamedTuple):
    """The encoder whose weights a student starts from, and the tokenizer that its word table's rows belong to."""

    model: Any
    words: PreTrainedTokenizerBase


def _source(student: recipe.Bert | recipe.Recurrent, teacher: teachers.Teacher, words: PreTrainedTokenizerBase) -> Source | None:
    """The encoder that a BERT's weights, or a recurrent student's layers, come from."""
    known, kind, instead = {"BertModel": "bert"}, "BERT", "use `weights: random`"
    if isinstance(student, recipe.Recurrent):
        known, kind, instead = recurrent.SOURCES, "BERT or RoBERTa", "give an assistant that is one"
    if student.weights == "random":
        return None
    if student.weights == "teacher":
        model: Any = teacher.module.model
        if type(model).__name__ not in known:
            raise UserError(f"student.weights: the teacher is {type(model).__name__}, not {kind}; {instead}")
        return Source(model, teacher.tokenizer)
    folder = _model_folder(student.weights, student.revision, "student.weights")
    transformer, _ = layout(folder)
    if files.read_json(transformer / "config.json").get("model_type") not in known.values():
        raise UserError(f"student.weights: {folder} is not a {kind}; choose one, or {instead}")
    with quiet():
        options: dict[str, Any] = {"dtype": torch.float32, "add_pooling_layer": student.pooling == "cls_pooler"}
        model = AutoModel.from_pretrained(transformer, **options)
    bare = not any((transformer / name).exists() for name in ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model"))
    if bare and student.tokenizer != "teacher":  # weights without a tokenizer are taken to go with the one that is named
        return Source(model, teachers.tokenizer(_model_folder(student.tokenizer, student.revision, "student.tokenizer")))
    own = teachers.tokenizer(folder)
    if student.tokenizer == "teacher" and not words.get_vocab().keys() <= own.get_vocab().keys():
        way_out = f"set student.tokenizer: {student.weights}"
        raise UserError(f"student.tokenizer: the weights of {student.weights} belong to another vocabulary; {way_out}")
    return Source(model, own)


def _model_folder(name: str, revision: str | None, what: str) -> Path:
    return Path(name) if Path(name).is_dir() else teachers.fetch(name, revision, what)


def _first_vectors(
    spec: recipe.Recipe, teacher: teachers.Teacher, words: PreTrainedTokenizerBase, source: Source | None, data: Path | None
) -> Tensor | None:
    """Vectors (V, w) that the word table starts from, or None for random ones."""
    student = spec.student
    assert not isinstance(student, recipe.Itself)
    theirs: Any = teacher.module.model
    if isinstance(student, recipe.Recurrent) and student.embeddings.source == "random":
        return None
    if source is not None:
        return vocabulary.from_model(words, source.words, source.model.get_input_embeddings().weight.detach())
    if student.embeddings.of == "outputs":
        return torch.from_numpy(teacher.embed_ids(vocabulary.as_texts(words, teacher.tokenizer)))
    if student.embeddings.source == "teacher":
        return vocabulary.from_model(words, teacher.tokenizer, theirs.get_input_embeddings().weight.detach())
    if student.embeddings.source == "glove":
        assert student.embeddings.file is not None and not isinstance(student, recipe.Recurrent) and student.width is not None
        return vocabulary.from_glove(words, (data or Path()) / student.embeddings.file, student.width, spec.seed)
    return None


def _dropped_head(spec: recipe.Recipe) -> bool:
    return not isinstance(spec.student, recipe.Itself) and spec.student.head != "none" and not spec.student.head_kept


def check_objectives(spec: recipe.Recipe, student: nn.Module, teacher_dims: int) -> None:
    """Raise UserError where a stage's objective cannot compare the student's vectors with the teacher's."""
    assert not isinstance(spec.student, recipe.Itself)
    width = (spec.student.dims or teacher_dims) if _dropped_head(spec) else run.width(student)
    for number, stage in enumerate(spec.stages):
        objectives.fits(stage.objective, width, teacher_dims, f"stages[{number}].objective")


def steps(stage: recipe.Stage, texts: int) -> int:
    """Optimizer steps of a stage over so many texts."""
    return stage.steps or max(1, math.floor(texts * stage.epochs / stage.batch))


class Trained(nn.Module):
    """What the optimizer sees: the student, a projection onto the teacher's space that is dropped afterwards, the objective."""

    def __init__(self, student: nn.Module, projection: nn.Linear | None, objective: nn.Module) -> None:
        super().__init__()
        self.student = student
        self.projection = projection
        self.objective = objective

    def forward(self, views: list[tuple[Tensor, Tensor]], targets: Tensor | None) -> Tensor:
        """views: (ids, mask) of each view, (B, T) each; targets (B, d), or none. Returns the loss ()."""
        vectors = [self.student(ids, mask) for ids, mask in views]  # one pass over all views padded alike was 7% slower
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
        score = float(quality.evaluate(self.suite, lambda texts: encode(student, self.words, texts, self.max_tokens))["average"])
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
        made: Made,
        accelerator: Accelerator,
        partial: Path,
        selection: Selection | None,
        log: Log,
    ) -> None:
        self.stage, self.number, self.made, self.student = stage, number, made, made.student
        self.feed = made.feeds[number]
        self.log, self.selection, self.accelerator = log, selection, accelerator
        self.folder = partial / "checkpoints"
        self.seed = stage_seed(seed, number)
        self.rows, self.first = self._rows()
        self.texts = self.feed.texts if self.rows is None else len(self.rows)
        self.steps = steps(stage, self.texts)
        torch.manual_seed(self.seed)
        self.step = 0

    def _rows(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(the rows this stage trains on, None for all; the rows its queue starts from, which are none of those)."""
        place, made, wanted = f"stages[{self.number}]", self.made, objectives.memory(self.stage.objective)
        rows = None if self.stage.longest is None else made.tokens.short(self.stage.longest, made.texts.trained)
        if rows is not None and len(rows) == 0:
            raise UserError(f"{place}.longest: no text of the corpus has {self.stage.longest} tokens or fewer; raise it")
        if not wanted:
            return rows, None
        rows = np.arange(made.texts.trained) if rows is None else rows
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
            if self.selection:
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
            if self.selection and (self.step % self.selection.every == 0 or self.step == self.steps):
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
        projected = self.made.drops_head and objectives.reads_teacher(self.stage.objective)
        projection = nn.Linear(width, self.made.vectors.dims) if projected else None
        objective = objectives.build(self.stage.objective, self.made.vectors.dims)
        if self.first is not None:
            objectives.fill(objective, torch.from_numpy(self.made.vectors[self.first]))
        self.module = Trained(self.student, projection, objective).to(self.accelerator.device)
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
        if self.selection:
            self.student.load_state_dict(load_file(self.selection.file))
        elif self.average:
            self.student.load_state_dict(self.average.weights)
        self.student.eval()
        self.log.stages.append({"name": self.stage.name, "steps": self.step, "texts": self.step * self.stage.batch})
        if self.accelerator.is_main_process:
            checkpoint.save(self.folder, self._state(self.number + 1, 0), {"handed_over": self.student.state_dict()})


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


def encode(student: nn.Module, words: PreTrainedTokenizerBase, texts: list[str], max_tokens: int) -> np.ndarray:
    """Texts -> (n, d) float32 unit rows, by the module as it stands, on its own device."""
    forward = teachers.through_torch(student, next(student.parameters()).device)
    ids = teachers.encode_ids(words, texts, max_tokens)
    return teachers.unit_rows(forward, ids, words.pad_token_id or 0, run.width(student), 8_192)


def _finish(spec: recipe.Recipe, out: Path, partial: Path, shape: dict[str, Any], student: nn.Module, info: dict[str, Any]) -> None:
    """The run folder, whole; then the partial one goes."""
    with files.new_folder(out) as folder:
        (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
        run.write_student(folder, shape, student.state_dict())
        shutil.copytree(partial / "tokenizer", folder / "tokenizer")
        if (partial / "metrics.jsonl").exists():
            shutil.copy(partial / "metrics.jsonl", folder)
        files.write_json(folder / "run.json", info)
    shutil.rmtree(partial)


def _keep_teacher(spec: recipe.Recipe, out: Path, partial: Path, say: Say) -> dict[str, Any]:
    """The baseline's run: the teacher's own files, nothing trained."""
    assert isinstance(spec.student, recipe.Itself)
    teacher = teachers.Teacher(spec.teacher)
    limit = teachers.own_limit(teacher.folder, teacher.tokenizer)
    nothing: dict[str, Any] = {"seconds": 0.0, "corpus": None, "stages": [], "selected": None}
    info = {**run.made_by(), **nothing, "dims": teacher.dims, "parameters": run.count(teacher.module)}
    most = min(spec.student.max_tokens or limit, limit)
    shape = {"kind": "teacher", "pooling": spec.teacher.pooling, "prompt": teacher.prompt, "max_tokens": most}
    with files.new_folder(out) as folder:
        (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
        shutil.copytree(teacher.folder, folder / "model", ignore=shutil.ignore_patterns(*teachers.OTHER_FORMATS, ".*"))
        files.write_json(folder / "student.json", shape)
        words = teacher.tokenizer.backend_tokenizer
        words.no_padding()
        words.no_truncation()
        teacher.tokenizer.save_pretrained(folder / "tokenizer")
        files.write_json(folder / "run.json", info)
    shutil.rmtree(partial)
    say(f"{out}: the teacher itself, {info['parameters']['total']:,} parameters")
    return info


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
