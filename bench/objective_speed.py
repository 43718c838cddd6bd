"""Milliseconds a step of objectives with a memory, beside cosine, on the 2-layer, 128-wide student.

cosine; ckd, 16,384 in the queue; congen, 16,384 in the queue, with one view and with two. The objectives take turns, so that what
else the machine does meets all of them; teacher vectors are random, which no step's time depends on.
python bench/objective_speed.py [--recipe bert-2x128] [--data DIR] [--rounds 7] [--steps 10] [--out bench/reports/objective-speed.json]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgedistill import files, machine, recipe, run
from edgedistill.data import corpus
from edgedistill.data.token_cache import tokenize
from edgedistill.session import QUIET, Session
from edgedistill.teacher import encoder
from edgedistill.teacher.embedding_cache import Vectors
from edgedistill.training import initialise, prepare, train
from edgedistill.training.inputs import text_feed
from edgedistill.training.loop import Loop, MetricsLog, progress

WARM = 3  # steps before the first round
OBJECTIVES: dict[str, tuple[str, str | None]] = {
    "cosine": ("{kind: cosine}", None),
    "ckd": ("{kind: ckd, queue: 16384}", None),
    "congen, one view": ("{kind: congen, queue: 16384, alpha: 1}", None),
    "congen": ("{kind: congen, queue: 16384}", "{kind: word_deletion}"),
}


def random_vectors(count: int, dims: int, folder: Path) -> Vectors:
    """Unit rows in place of a teacher's."""
    rows = np.random.default_rng(0).standard_normal((count, dims), np.float32)
    np.save(folder / "00000.npy", (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16))
    return Vectors(folder, 1)


def prepared(spec: recipe.Recipe, texts: corpus.Corpus, vectors: Vectors, loaded: encoder.Teacher) -> prepare.Made:
    """What a run of the recipe's first stage works with."""
    words, stage = loaded.tokenizer, spec.stages[0]
    student, shape = initialise.build(spec, loaded, words, None)
    cut = tokenize(texts, words.backend_tokenizer, stage.max_tokens, words.pad_token_id or 0, QUIET)
    read = text_feed.of_texts(stage, "stages[0].view", spec.seed, texts, cut, words, vectors, stage.max_tokens, Session(log=print))
    return prepare.Made(texts, vectors, [read], words, student, shape, False)


def loop(spec: recipe.Recipe, made: prepare.Made, folder: Path) -> Loop:
    """The stage's loop, its queue full, a few steps done."""
    log = MetricsLog(folder / "metrics.jsonl", progress(False), lambda line: None)
    one = Loop(spec.stages[0], 0, spec.seed, made, train.accelerator_for(spec, "cpu"), folder, None, log)
    one._set_up()
    if (queue := getattr(one.module.objective, "queue", None)) is not None:
        queue.push(torch.from_numpy(made.vectors[np.arange(len(queue.ring))]))
    timed(one, WARM)
    return one


def timed(one: Loop, steps: int) -> float:
    """Milliseconds a step, over so many."""
    start = time.perf_counter()
    for _ in range(steps):
        one._one()
        one.step += 1
    return 1e3 * (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="bert-2x128")
    parser.add_argument("--data", type=Path, default=os.environ.get("EDGEDISTILL_DATA"))
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="K=V")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    encoder.no_denormals()
    times: dict[str, list[float]] = {name: [] for name in OBJECTIVES}
    with tempfile.TemporaryDirectory() as name:
        loops: dict[str, Loop] = {}
        vectors: Any = None
        for what, (objective, view) in OBJECTIVES.items():
            more = [f"stages.0.objective={objective}", "select=null", f"stages.0.view={view or 'null'}"]
            spec = recipe.read(asked.recipe, [*asked.changes, *more])
            assert spec.corpus is not None
            texts, loaded = corpus.build(spec.corpus, Session(data=asked.data, log=print), spec.seed), encoder.Teacher(spec.teacher)
            vectors = vectors or random_vectors(len(texts), loaded.dims, Path(name))
            (Path(name) / what).mkdir()
            loops[what] = loop(spec, prepared(spec, texts, vectors, loaded), Path(name) / what)
        for number in range(asked.rounds):
            for what, one in loops.items():
                times[what].append(timed(one, asked.steps))
            print(f"round {number + 1}: " + ", ".join(f"{what} {each[-1]:.0f} ms" for what, each in times.items()), flush=True)
    ratios = {what: [a / b for a, b in zip(each, times["cosine"], strict=True)] for what, each in times.items()}
    report = {
        "schema": 1,
        "bench": "objective-speed",
        "batch": spec.stages[0].batch,
        "steps_a_round": asked.steps,
        "step_ms": {what: float(np.median(each)) for what, each in times.items()},
        "rounds": times,
        "ratio_to_cosine": {what: float(np.median(each)) for what, each in ratios.items()},
        "machine": machine.here(),
        **run.made_by(),
    }
    if asked.out:
        files.write_json(asked.out, report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
