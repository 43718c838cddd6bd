"""What a recipe costs, before training: parameters, size, latency, texts to embed, training samples, and
about how long it takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from edgedistill import quantization, recipe
from edgedistill.errors import Problems
from edgedistill.evaluation.tables import significant
from edgedistill.planning import training_time
from edgedistill.precisions import PRECISIONS
from edgedistill.quantization import int8
from edgedistill.runtime import onnx_session
from edgedistill.session import Session, wrapped
from edgedistill.students import classifier, graph, kinds
from edgedistill.training import cache_passes
from edgedistill.training.open_recipe import Opened, open_recipe

Cost = dict[str, Any]  # of a recipe, as the JSON of `check` has it
ROUNDS = 5  # the least of their medians counts: other work on the machine only ever adds
QUERIES = 60  # of a round of each precision
MOST_SECONDS = 0.15  # for each precision, but for a call in each round; a check answers at once
SAMPLES = 8  # texts that activations are measured on: what they hold changes no size and no latency
TOKENS = 16  # of the timed query: about the median of a search query or a short sentence


def costs(specs: list[recipe.Recipe], session: Session) -> list[Cost]:
    """The costs of several recipes. Warnings go to the log.

    The corpora are built, tokenized and cached, and the session's reading is told what the student would not
    read; nothing is embedded or trained. `size_bytes` and `p50_ms` are of the
    graph of the initial student in every precision, for a text of TOKENS tokens. Those of a large or deep
    student are not measured: the sizes are computed from its parameters, and neither a latency nor a training
    time is given. Raises one UserError with the problems of all recipes before anything is measured; see
    `open_recipe`.
    """
    problems = Problems()
    whole = []
    names = [f"{spec.name}: " if len(specs) > 1 else "" for spec in specs]
    for spec, name in zip(specs, names, strict=True):
        with problems.collect(name):
            whole.append(open_recipe(spec, session))
    problems.raise_any()
    for opened, name in zip(whole, names, strict=True):
        for warning in opened.warnings:
            session.log(f"warning: {name}{warning}")
    return [_cost(opened, session) for opened in whole]


def _cost(opened: Opened, session: Session) -> Cost:
    """The cost of one recipe."""
    student = opened.student.module
    corpus = opened.texts
    labelled = opened.labelled
    missing = cache_passes.passes(opened, session)
    samples = training_time.training_samples(opened)
    cost = {
        "name": opened.spec.name,
        "parameters": kinds.parameters(student),
        "max_tokens": opened.student.max_tokens,
        **_of_graphs(opened),
    }
    if labelled is not None:
        head = labelled.new_classifier(student)
        task = labelled.task
        samples += labelled.samples
        cost["parameters"] = classifier.parameters(cost["parameters"], head)
        cost["labelled"] = {"train": len(task.train), "dev": len(task.dev)}
        if labelled.spec.augment is not None:  # the most that the transfer set can hold
            cost["labelled"]["transfer"] = labelled.rows
    for tokens in cache_passes.token_passes(opened, session):
        tokens.open()
    if corpus is not None:
        cost["texts"] = {"train": corpus.training_count, "held_out": len(corpus.held_out)}
        cost["teacher_texts"] = sum(texts.missing for texts in missing)
    if samples:
        cost["training_samples"] = samples
    if training_time.is_measured(student) and (opened.spec.distilling or missing):
        cost["estimated_seconds"] = training_time.estimate_seconds(opened, missing, session)
    return cost | {"warnings": opened.warnings}


def _of_graphs(opened: Opened) -> Cost:
    """Size and latency of the initial student's graphs; of a large or deep one only a computed size."""
    student = opened.student.module
    tokens = len(opened.student.tokenizer)
    if not training_time.is_measured(student):
        total = kinds.parameters(student)["total"]
        sizes = {name: round(total * row.bytes_per_weight) for name, row in PRECISIONS.items()}
        return {"size_bytes": sizes, "p50_ms": {}}
    random = np.random.default_rng(0)
    samples = random.integers(0, tokens, (SAMPLES, TOKENS)).tolist()
    queries = random.integers(0, min(100, tokens), (QUERIES, TOKENS)).tolist()
    sizes, rounds = size_and_latency(student, PRECISIONS, samples, queries, 0, MOST_SECONDS)
    return {"size_bytes": sizes, "p50_ms": {name: round(min(ms), 3) for name, ms in rounds.items()}}


def size_and_latency(
    student: Any,
    precisions: Iterable[str],
    samples: Sequence[Sequence[int]],
    queries: Sequence[Sequence[int]],
    threads: int,
    limit: float = math.inf,
) -> tuple[dict[str, int], dict[str, list[float]]]:
    """({precision: bytes of the graph}, {precision: medians of rounds in ms}) of a student's module.

    Activations are measured on `samples`, `queries` are timed; both are token ids. `threads` and `limit` are
    as in `graph_medians_ms`.
    """
    fp32 = graph.build(student.eval())
    largest = int8.measure(fp32, samples)
    # w4 rounds to the nearest here: with error feedback it is as large and as fast, but takes long to make
    sizes = {}
    rounds = {}
    for name in precisions:
        if name in quantization.PRODUCTS:
            converted = quantization.PRODUCTS[name](fp32, largest).converted()
        else:
            converted = quantization.convert(fp32, name)
        model = converted.SerializeToString()
        sizes[name] = len(model)
        rounds[name] = graph_medians_ms(model, queries, threads, limit)
    return sizes, rounds


def graph_medians_ms(
    model: bytes, ids: Sequence[Sequence[int]], threads: int, limit: float = math.inf
) -> list[float]:
    """Milliseconds of a text in a graph, as `medians_ms`. `ids` are the token ids of some texts. With 0
    threads, onnxruntime chooses their number."""
    session = onnx_session.open_session(model, threads, "cpu")
    outputs = ["sentence_embedding"]
    rows = [np.array([row], np.int64) for row in ids]
    inputs = [{"input_ids": row, "attention_mask": np.ones_like(row)} for row in rows]
    return medians_ms(lambda row: session.run(outputs, row, onnx_session.RUN_OPTIONS), inputs, limit)


def medians_ms(call: Callable[[Any], object], items: Sequence[Any], limit: float = math.inf) -> list[float]:
    """The median milliseconds of a call in each of ROUNDS rounds over the items: over all, or over as many as
    take `limit` seconds in all rounds together, and one at least."""
    medians = []
    for _ in range(ROUNDS):
        times = []
        for item in items:
            start = time.perf_counter()
            call(item)
            times.append(time.perf_counter() - start)
            if sum(times) * ROUNDS >= limit:
                break
        medians.append(1e3 * float(np.median(times)))
    return medians


def table(costs: Cost) -> str:
    """The cost of a recipe as a table, with spaces that do not break between a number and its unit."""
    parameters = costs["parameters"]
    texts = costs.get("texts")
    shares = " + ".join(f"{parameters[name]:,}\xa0{name}" for name in ("embedding", "encoder", "head"))
    latencies = [f"{name}\xa0{significant(ms, 2)}\xa0ms" for name, ms in costs["p50_ms"].items()]
    p50 = f"{'  '.join(latencies)}  (a single text of {TOKENS} tokens)"
    if not latencies:
        p50 = "not measured: the student is too large or too deep for a check, as is its training time"
    rows = {"parameters": f"{parameters['total']:,} = {shares}"}
    if "words" in parameters:
        rows["of the embedding"] = f"{parameters['words']:,} token embedding table and its projection"
    rows["max input tokens"] = f"{costs['max_tokens']}; longer texts are truncated"
    sizes = [f"{name}\xa0{size / 1e6:.2f}\xa0MB" for name, size in costs["size_bytes"].items()]
    rows["graph"] = "  ".join(sizes)
    rows["p50, initial student"] = p50
    if texts:
        rows["texts"] = f"{texts['train']:,} to train on, {texts['held_out']:,} held out"
        rows["teacher texts to embed"] = f"{costs['teacher_texts']:,}"
    if "labelled" in costs:
        counts = [f"{count:,} {split}" for split, count in costs["labelled"].items()]
        rows["labelled rows"] = ", ".join(counts)
    if "training_samples" in costs:
        rows["training samples"] = f"{costs['training_samples']:,}"
    if seconds := costs.get("estimated_seconds"):
        parts = ", ".join(f"{who} {duration(share)}" for who, share in seconds.items())
        without = ", without the fine-tuning" if "labelled" in costs else ""
        rows["training time here"] = f"about {duration(sum(seconds.values()))} ({parts}){without}"
    lines = [line for title, text in rows.items() for line in wrapped(f"{title:24}{text}", 24)]
    return "\n".join([costs["name"], *lines])


def duration(seconds: float) -> str:
    """Rounded for people: less than 1 s, 40 s, 12 min, 3.5 h."""
    if seconds < 1:
        return "less than 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
