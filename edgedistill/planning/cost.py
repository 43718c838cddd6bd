"""What a recipe costs, before paying it: parameters, bytes, teacher passes, latency of the untrained graph."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

from edgedistill import graph, recipe
from edgedistill.data import corpus
from edgedistill.data.parallel import Pairs
from edgedistill.errors import of_each
from edgedistill.export import quantize
from edgedistill.session import Session, silent
from edgedistill.students import affine, kinds, recurrent
from edgedistill.students.classifier import Classifier
from edgedistill.students.output import own
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import targets
from edgedistill.teacher.embedding_cache import embedded
from edgedistill.training import initialise, loop, prepare, teacher_run, train
from edgedistill.training.finetuning import finetune
from edgedistill.training.inputs import pair_feed

QUERIES = 200
TOKENS = 16  # of the query that is timed: about the median of a search query or a short sentence


def costs(specs: list[recipe.Recipe], session: Session) -> list[dict[str, Any]]:
    """The costs of several. Raises UserError with what is wrong with any of them, each with its name."""
    return of_each(specs, lambda spec: cost(spec, session))


def cost(spec: recipe.Recipe, session: Session) -> dict[str, Any]:
    """The costs of one recipe; the corpus is built (and kept) where training reads it, nothing is embedded or trained.

    `p50_ms` is at batch 1, 16 tokens, graph only, fp32 and every precision. Raises UserError as training would.
    """
    teacher, assistant = initialise.open_teacher(spec.teacher, session.data), prepare.open_assistant(spec)
    texts = prepare.open_corpus(spec.corpus, session, spec.seed) if spec.corpus is not None and spec.reads_corpus else None
    ahead = prepare.look_ahead(spec, texts, teacher, session) if texts is not None else []
    learned = finetune.plan(spec, replace(session, log=silent)) if spec.finetuning is not None else None
    if isinstance(spec.student, recipe.Itself):
        teacher_run.check_itself(spec)
        assert isinstance(teacher, teachers.Teacher), "a recipe of the teacher itself has one"
        student: Any = teacher_run.itself(spec, teacher, _unfitted(spec, teacher.dims))
        pieces = len(teacher.tokenizer)
    else:
        words = initialise.own_tokenizer(spec, teacher, texts, None, session, assistant)
        student, shape = initialise.build(spec, teacher, words, session.data, assistant=assistant)
        pieces = len(words)
        prepare.check_objectives(spec, student, teacher.dims, assistant)
        pair_feed.check(spec, pair_feed.Models(teacher, assistant), words)
        train.check_languages(spec)
    found: dict[str, Any] = {"name": spec.name, "parameters": kinds.count(student), "size_bytes": {}, "p50_ms": {}}
    if not isinstance(spec.student, recipe.Itself):
        found["max_tokens"] = shape["max_tokens"]
    if isinstance(bare := own(student), recurrent.RecurrentStudent):
        found["unit"] = {"layers": len(bare.model.encoder.layer), "times": bare.model.encoder.times}
    fp32 = graph.build(student)
    for precision in quantize.PRECISIONS:
        model = fp32 if precision == "fp32" else quantize.quantize(fp32, precision)
        data_bytes = model.SerializeToString()
        found["size_bytes"][precision] = len(data_bytes)
        found["p50_ms"][precision] = round(_p50(data_bytes, pieces), 3)
    if texts is not None:
        found["texts"] = {"train": texts.trained, "held_out": len(texts) - texts.trained}
        found["teacher_passes"] = _to_embed(spec, pair_feed.Models(teacher, assistant), texts, session)
        found["student_passes"] = 0
        for stage, each in zip(spec.distilling, ahead, strict=True):
            found["student_passes"] += loop.steps(stage, each.rows) * stage.batch * stage.views
    if spec.finetuning is not None and learned is not None:
        _add_finetuning(found, spec.finetuning, student, learned)
    return found


def _add_finetuning(found: dict[str, Any], stage: recipe.Finetune, student: Any, planned: finetune.Planned) -> None:
    """The classifier's parameters, the labelled rows, and the passes over them; of a transfer set the most there can be."""
    (task, rows, _), texts = planned, len(stage.task.texts)
    module = Classifier(student, kinds.width(student), len(task.labels), texts == 2, stage.hidden, stage.dropout)
    found["parameters"] = finetune.parameters(module)
    found["labelled"] = {"train": len(task.train.items), "dev": len(task.dev.items)}
    if stage.augment is not None:
        found["labelled"]["transfer"] = rows
    passes = loop.steps(stage, rows) * stage.batch * texts * len(finetune.rates(stage))
    found["student_passes"] = found.get("student_passes", 0) + passes


def _unfitted(spec: recipe.Recipe, width: int) -> list[affine.Affine]:
    """Maps of the right shapes."""
    plans = targets.plans(spec.targets) if spec.targets else []
    return [affine.Affine(np.ones((width, plan.projected.dims)), np.zeros(plan.projected.dims)) for plan in plans]


def _to_embed(spec: recipe.Recipe, models: pair_feed.Models, texts: corpus.Corpus | Pairs, session: Session) -> int:
    """How many texts teacher and assistant have still to read; an assistant's embedding layer alone costs nothing."""
    if isinstance(texts, Pairs):
        left = 0
        for match, side in pair_feed.passes(spec):
            read, which = texts.first if side == "first" else texts.second, pair_feed.source(match, models)
            if match.at == "output" and which is not None:
                left += len(read) - embedded(which, read, session, unit=False)
        return left
    return len(texts) - embedded(models.teacher, texts, session) if isinstance(models.teacher, teachers.Teacher) else 0


def _p50(model: bytes, pieces: int) -> float:
    """Median milliseconds of one query of TOKENS of so many pieces, on the threads this process may use."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(0).integers(0, min(100, pieces), (1, TOKENS))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    times = []
    for _ in range(QUERIES + 20):
        start = time.perf_counter()
        session.run(["sentence_embedding"], inputs)
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times[20:]))


def table(found: dict[str, Any]) -> str:
    """The costs as people read them."""
    sheet = Table(title=found["name"], title_justify="left", show_header=False)
    parts = found["parameters"]
    shares = " + ".join(f"{parts[name]:,} {name}" for name in ("embedding", "encoder", "head"))
    sheet.add_row("parameters", f"{parts['total']:,} = {shares}")
    if "words" in parts:
        sheet.add_row("of the embedding", f"{parts['words']:,} word table and its projection")
    if "unit" in found:
        sheet.add_row("layers", f"{found['unit']['layers']}, gone through {found['unit']['times']} times")
    if "max_tokens" in found:
        sheet.add_row("reads", f"{found['max_tokens']} tokens; longer texts are cut")
    sheet.add_row("graph", "  ".join(f"{p} {size / 1e6:.2f} MB" for p, size in found["size_bytes"].items()))
    sheet.add_row(f"p50, 1 × {TOKENS} tokens", "  ".join(f"{p} {ms:.2f} ms" for p, ms in found["p50_ms"].items()))
    if "texts" in found:
        sheet.add_row("texts", f"{found['texts']['train']:,} to train on, {found['texts']['held_out']:,} held out")
        sheet.add_row("teacher passes", f"{found['teacher_passes']:,} still to embed")
    if "labelled" in found:
        rows = found["labelled"]
        more = f", at most {rows['transfer']:,} with the transfer set" if "transfer" in rows else ""
        sheet.add_row("labelled rows", f"{rows['train']:,} to train on{more}, {rows['dev']:,} to select by")
    if "student_passes" in found:
        sheet.add_row("student passes", f"{found['student_passes']:,}")
    screen = Console(width=100, record=True, file=io.StringIO())
    screen.print(sheet)
    return screen.export_text().rstrip()
