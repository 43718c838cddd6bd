"""Milliseconds per step of objectives with a queue, compared with cosine, on the 2-layer, 128-wide student.

cosine; ckd, 16,384 in the queue; congen, 16,384 in the queue, with one view and with two. The objectives
alternate, so that other load on the machine affects all of them alike; teacher embeddings are random, since
no step's time depends on them. python bench/objective_speed.py [--recipe bert-2x128] [--data DIR] [--rounds
7] [--steps 10] [--out bench/reports/objective-speed.json]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgedistill import files, machine, recipe, run
from edgedistill.data import corpus
from edgedistill.data.rows import Rows
from edgedistill.session import QUIET, Session
from edgedistill.teacher import encoder
from edgedistill.teacher.embedding_cache import EMBEDDINGS, CachedEmbeddings
from edgedistill.training import train
from edgedistill.training.initial_student import initial_weights
from edgedistill.training.inputs import batches as training_batches
from edgedistill.training.inputs.stage_targets import StageTargets
from edgedistill.training.load_models import Models
from edgedistill.training.record import MetricsLog, progress_bar
from edgedistill.training.stage_in_progress import RunInProgress, StageInProgress
from edgedistill.training.stages import distillation_stages

WARM = 3  # steps before the first round
OBJECTIVES: dict[str, tuple[str, str | None]] = {
    "cosine": ("{kind: cosine}", None),
    "ckd": ("{kind: ckd, queue: 16384}", None),
    "congen, one view": ("{kind: congen, queue: 16384, alpha: 1}", None),
    "congen": ("{kind: congen, queue: 16384}", "{kind: word_deletion}"),
}


def random_vectors(count: int, dims: int, folder: Path) -> CachedEmbeddings:
    """Random unit embeddings in place of a teacher's."""
    rows = np.random.default_rng(0).standard_normal((count, dims), np.float32)
    (folder / "00000").mkdir()
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.save(folder / "00000" / EMBEDDINGS, rows.astype(np.float16))
    return CachedEmbeddings(folder, 1)


def in_progress(
    spec: recipe.Recipe,
    texts: corpus.Corpus,
    vectors: CachedEmbeddings,
    loaded: encoder.TeacherEncoder,
    folder: Path,
) -> StageInProgress:
    """The recipe's first stage in progress, its queue full, a few steps done."""
    stage = distillation_stages(spec)[0]
    student = initial_weights.build(spec, Models(loaded), loaded.tokenizer, QUIET)
    tokenizer = student.limited_tokenizer.limited(stage.spec.max_tokens)
    batches = training_batches.of_stage(stage, Rows.of_texts(texts), tokenizer, QUIET)
    batches = replace(batches, targets=StageTargets([(vectors, 0)]))
    metrics = MetricsLog(folder / "metrics.jsonl", progress_bar(False), QUIET.log)
    running = RunInProgress(folder, train.accelerator_for(spec, "cpu"), QUIET, metrics)
    one = StageInProgress(stage, student, batches, running)
    if (queue := getattr(one.module.objective, "queue", None)) is not None:
        queue.push(torch.from_numpy(vectors[np.arange(len(queue.ring))]))
    timed(one, WARM)
    return one


def timed(one: StageInProgress, steps: int) -> float:
    """Mean milliseconds per step."""
    start = time.perf_counter()
    for _ in range(steps):
        train.take_step(one)
    return 1e3 * (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="bert-2x128")
    parser.add_argument("--data", type=Path, default=os.environ.get("EDGEDISTILL_DATA"))
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="K=V")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    encoder.flush_denormals()
    times: dict[str, list[float]] = {name: [] for name in OBJECTIVES}
    with tempfile.TemporaryDirectory() as name:
        loops: dict[str, StageInProgress] = {}
        vectors: Any = None
        for what, (objective, view) in OBJECTIVES.items():
            more = [f"stages.0.objective={objective}", "select=null", f"stages.0.view={view or 'null'}"]
            spec = recipe.read(arguments.recipe, [*arguments.changes, *more])
            assert spec.rows is not None
            texts, loaded = (
                corpus.build(spec.rows, Session(data=arguments.data, log=print), spec.seed),
                encoder.TeacherEncoder(spec.teacher),
            )
            vectors = vectors or random_vectors(len(texts), loaded.dims, Path(name))
            (Path(name) / what).mkdir()
            loops[what] = in_progress(spec, texts, vectors, loaded, Path(name) / what)
        for number in range(arguments.rounds):
            for what, one in loops.items():
                times[what].append(timed(one, arguments.steps))
            print(
                f"round {number + 1}: "
                + ", ".join(f"{what} {each[-1]:.0f} ms" for what, each in times.items()),
                flush=True,
            )
    ratios = {
        what: [a / b for a, b in zip(each, times["cosine"], strict=True)] for what, each in times.items()
    }
    report = {
        "schema": 1,
        "bench": "objective-speed",
        "batch": spec.stages[0].batch,
        "steps_a_round": arguments.steps,
        "step_ms": {what: float(np.median(each)) for what, each in times.items()},
        "rounds": times,
        "ratio_to_cosine": {what: float(np.median(each)) for what, each in ratios.items()},
        "machine": machine.here(),
        **run.provenance(),
    }
    if arguments.out:
        files.write_json(arguments.out, report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
