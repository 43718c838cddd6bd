"""What a recipe costs, before training: parameters, size, latency, texts to embed, training samples, and
about how long it takes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnxruntime
from rich.table import Table

from edgedistill import quantization, recipe
from edgedistill.classification import classifier, finetune
from edgedistill.classification.finetune import LabelledStage
from edgedistill.errors import map_collecting_errors
from edgedistill.evaluation.tables import plain
from edgedistill.planning import training_time
from edgedistill.precisions import PRECISIONS
from edgedistill.runtime.onnx_session import open_in_memory
from edgedistill.session import Session
from edgedistill.students import graph, kinds, recurrent
from edgedistill.students.output import own
from edgedistill.training.open_recipe import Opened, open_recipe

ROUNDS, QUERIES, WARM_UPS = 3, 60, 5  # of each precision; the rounds of the precisions alternate
ROUND_SECONDS = 0.05  # a round of slow queries ends earlier, after the query that passes this
SAMPLES = 8  # texts that activations are measured on: what they hold changes no size and no latency
TOKENS = 16  # of the timed query: about the median of a search query or a short sentence


def costs(specs: list[recipe.Recipe], session: Session) -> list[dict[str, Any]]:
    """The costs of several recipes, as `cost`, with their estimated training time. Warnings go to the log.

    Raises one UserError with the problems of all of them before anything is measured; see `open_recipe`.
    """
    found = []
    for opened, labelled in map_collecting_errors(specs, lambda spec: _open(spec, session)):
        for warning in opened.warnings:
            session.log(
                f"warning: {opened.spec.name}: {warning}" if len(specs) > 1 else f"warning: {warning}"
            )
        found.append(_cost(opened, labelled, session, timed=True))
    return found


def cost(spec: recipe.Recipe, session: Session) -> dict[str, Any]:
    """The cost of one recipe, without the training time. The corpus is built and cached; nothing is embedded
    or trained.

    `size_bytes` and `p50_ms` are of the graph of the initial student, in every precision; see
        `size_and_latency`. Those of a large or
    deep student are not measured: the sizes are computed from its parameters, and no latency is given.
    Raises UserError as `open_recipe`.
    """
    return _cost(*_open(spec, session), session, timed=False)


def _open(spec: recipe.Recipe, session: Session) -> tuple[Opened, LabelledStage | None]:
    if spec.finetuning is not None:
        return finetune.open_recipe(spec, session)
    return open_recipe(spec, session), None


def _cost(opened: Opened, labelled: LabelledStage | None, session: Session, timed: bool) -> dict[str, Any]:
    spec, student, corpus = opened.spec, opened.student.module, opened.texts
    found: dict[str, Any] = {"name": spec.name, "parameters": kinds.parameters(student)}
    found["max_tokens"] = opened.student.max_tokens
    if isinstance(bare := own(student), recurrent.RecurrentStudent):
        found["unit"] = {"layers": len(bare.model.encoder.layer), "times": bare.model.encoder.times}
    if training_time.is_measured(student):
        found["size_bytes"], found["p50_ms"] = size_and_latency(student, len(opened.student.tokenizer))
    else:
        total = found["parameters"]["total"]
        found["size_bytes"] = {name: round(total * row.bytes_per_weight) for name, row in PRECISIONS.items()}
        found["p50_ms"] = {}
    if labelled is not None:
        found |= _finetuning(labelled, student, found["parameters"])
    missing = training_time.texts_to_embed(opened, session)
    if corpus is not None:
        found["texts"] = {"train": corpus.training_count, "held_out": len(corpus.held_out)}
        found["teacher_texts"] = sum(each.missing for each in missing)
    samples = training_time.training_samples(opened) + (labelled.samples if labelled is not None else 0)
    if samples:
        found["training_samples"] = samples
    if timed and (spec.stages or missing):
        found["estimated_seconds"] = training_time.estimate_seconds(opened, missing, session)
    return found | {"warnings": opened.warnings}


def _finetuning(labelled: LabelledStage, student: Any, parameters: dict[str, int]) -> dict[str, Any]:
    """The parameters with the classifier head, and the labelled rows; `transfer` is the most that the
    transfer set can hold."""
    task = labelled.task
    rows = {"train": len(task.train.items), "dev": len(task.dev.items)}
    if labelled.tagger is not None:
        rows["transfer"] = labelled.rows
    whole = classifier.parameters(parameters, labelled.new_classifier(student))
    return {"parameters": whole, "labelled": rows}


def size_and_latency(student: Any, vocabulary_size: int) -> tuple[dict[str, int], dict[str, float]]:
    """({precision: bytes of the graph}, {precision: milliseconds at batch 1, TOKENS tokens, graph only}) of
    fp32 and the rest.

    Milliseconds: the median over rounds of each round's median.
    """
    sizes: dict[str, int] = {}
    sessions: dict[str, onnxruntime.InferenceSession] = {}
    fp32 = graph.build(student)
    samples = np.random.default_rng(0).integers(0, vocabulary_size, (SAMPLES, TOKENS)).tolist()
    for precision in PRECISIONS:
        # rounding w4 by samples takes long, and changes neither its size nor its latency
        model = quantization.convert(fp32, precision, [] if precision == "w4" else samples)
        serialized = model.SerializeToString()
        sizes[precision] = len(serialized)
        # threads sleep between queries: several sessions are open at once
        sessions[precision] = open_in_memory(serialized, 0, {"force_spinning_stop": "1"})
    medians = [
        {precision: _median_ms(session, vocabulary_size) for precision, session in sessions.items()}
        for _ in range(ROUNDS)
    ]
    return sizes, {
        precision: round(float(np.median([each[precision] for each in medians])), 3) for precision in sessions
    }


def _median_ms(session: onnxruntime.InferenceSession, vocabulary_size: int) -> float:
    """Median milliseconds of one query of a round."""
    ids = np.random.default_rng(0).integers(0, min(100, vocabulary_size), (1, TOKENS))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < WARM_UPS + QUERIES and time.perf_counter() - began < ROUND_SECONDS:
        start = time.perf_counter()
        session.run(["sentence_embedding"], inputs)
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times[WARM_UPS:] or times[-1:]))


def table(found: dict[str, Any]) -> str:
    """The cost of a recipe as a table."""
    sheet = Table(title=found["name"], title_justify="left", show_header=False)
    for label, value in _rows(found):
        sheet.add_row(label, value)
    lines = [plain(sheet)]
    if "estimated_seconds" in found:
        seconds = found["estimated_seconds"]
        total, *parts = (
            duration(each) for each in (sum(seconds.values()), seconds["teacher"], seconds["student"])
        )
        about = "" if total.startswith("less") else "about "
        lines.append(
            f"estimated training time on this machine: {about}{total} (teacher {parts[0]}, student "
            f"{parts[1]}{', without fine-tuning' if 'labelled' in found else ''})"
        )
    return "\n".join(lines)


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    parameters = found["parameters"]
    shares = " + ".join(f"{parameters[name]:,} {name}" for name in ("embedding", "encoder", "head"))
    rows = [("parameters", f"{parameters['total']:,} = {shares}")]
    if "words" in parameters:
        rows.append(("of the embedding", f"{parameters['words']:,} token embedding table and its projection"))
    if "unit" in found:
        layers, times = found["unit"]["layers"], found["unit"]["times"]
        rows.append(
            ("shared layer block", f"{layers} layer{'s' if layers > 1 else ''}, repeated {times} times")
        )
    if "max_tokens" in found:
        rows.append(("max input tokens", f"{found['max_tokens']}; longer texts are truncated"))
    about = "" if found["p50_ms"] else "about "
    rows.append(
        ("graph", "  ".join(f"{p} {about}{size / 1e6:.2f} MB" for p, size in found["size_bytes"].items()))
    )
    latencies = "  ".join(f"{p} {ms:.2f} ms" for p, ms in found["p50_ms"].items())
    measured = f"{latencies}  (a single text of {TOKENS} tokens)"
    rows.append(
        (
            "p50, initial student",
            measured if latencies else "not measured: the student is too large or too deep for a check",
        )
    )
    if "texts" in found:
        rows.append(
            ("texts", f"{found['texts']['train']:,} to train on, {found['texts']['held_out']:,} held out")
        )
        rows.append(("teacher texts to embed", f"{found['teacher_texts']:,}"))
    if "labelled" in found:
        labelled = found["labelled"]
        more = f", at most {labelled['transfer']:,} with the transfer set" if "transfer" in labelled else ""
        rows.append(
            ("labelled rows", f"{labelled['train']:,} to train on{more}, {labelled['dev']:,} to select by")
        )
    if "training_samples" in found:
        rows.append(("training samples", f"{found['training_samples']:,}"))
    return rows


def duration(seconds: float) -> str:
    """Rounded for people: less than 1 s, 40 s, 12 min, 3.5 h."""
    if seconds < 1:
        return "less than 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
