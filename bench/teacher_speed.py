"""Texts per second of the teacher's pass over a corpus in each dtype, beside sentence-transformers' encode:
same texts, rounds in turns.

python bench/teacher_speed.py --data DIR [--model packaged:all-MiniLM-L6-v2] [--dtypes bf16,int8] [--out
bench/reports/teacher-speed.json]

Texts are drawn evenly from every file of `unlabeled/` and, so that lengths are mixed, in equal parts from
four ranges of words. Processor time of one thread, medians over rounds in which all take turns: what else
runs on the machine disturbs that least. sentence-transformers runs in fp32, in its default
batches of 32 and in batches of 256. `cosine` is of each dtype's embeddings to fp32's, as the cache stores
them (float16).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LARGE_BATCH = 256
RANGES = ((3, 10), (10, 25), (25, 60), (60, 300))  # in words


def mixed_texts(data: Path, count: int) -> list[str]:
    """At most `count` texts, as many of each range of lengths, shuffled."""
    random, by_range = np.random.default_rng(0), [list[str]() for _ in RANGES]
    for path in sorted((data / "unlabeled").glob("*.txt.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = [line.strip() for _, line in zip(range(20_000), file, strict=False)]
        for found, (low, high) in zip(by_range, RANGES, strict=True):
            fitting = [line for line in lines if low <= len(line.split()) < high]
            found += [fitting[at] for at in random.permutation(len(fitting))[: count // 10]]
    drawn = [found[at] for found in by_range for at in random.permutation(len(found))[: count // len(RANGES)]]
    return [drawn[at] for at in random.permutation(len(drawn))]


def seconds_of(tasks: dict[str, Callable[[], np.ndarray]], rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each task in each round."""
    spent: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds):
        for name, task in tasks.items():
            started = time.process_time()
            task()
            spent[name].append(round(time.process_time() - started, 3))
            print(f"round {number + 1}: {name} {spent[name][-1]:.2f} s", flush=True)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument(
        "--dtypes", default="bf16,int8", help="beside fp32, which is always measured; separated by commas"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("EDGEDISTILL_DATA"),
        required="EDGEDISTILL_DATA" not in os.environ,
    )
    parser.add_argument("--texts", type=int, default=1_500)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = "1"
    import torch
    from sentence_transformers import SentenceTransformer

    from edgedistill import files, machine, recipe, run
    from edgedistill.session import Session
    from edgedistill.teacher import encoder

    torch.set_num_threads(1)
    texts = mixed_texts(Path(arguments.data), arguments.texts)
    dtypes = ["fp32", *arguments.dtypes.split(",")]
    given = {"model": arguments.model, "max_tokens": arguments.max_tokens}
    teachers = {
        dtype: encoder.TeacherEncoder(recipe.Teacher.model_validate({**given, "dtype": dtype}))
        for dtype in dtypes
    }
    tokens = [len(row) for row in teachers["fp32"].reader.token_ids(texts)]
    prepared: dict[str, float] = {}
    for dtype, teacher in teachers.items():
        started = time.process_time()
        teacher.prepare(Session(log=print))
        prepared[dtype] = round(time.process_time() - started, 1)
    peer = SentenceTransformer(str(teachers["fp32"].folder), device="cpu")
    peer.max_seq_length = arguments.max_tokens
    tasks: dict[str, Callable[[], Any]] = {
        "sentence-transformers": lambda: peer.encode(texts, show_progress_bar=False)
    }
    tasks[f"sentence-transformers, batches of {LARGE_BATCH}"] = lambda: peer.encode(
        texts, batch_size=LARGE_BATCH, show_progress_bar=False
    )
    tasks |= {dtype: lambda teacher=teacher: teacher.embed(texts) for dtype, teacher in teachers.items()}
    embeddings = {
        name: task().astype(np.float16).astype(np.float32) for name, task in tasks.items()
    }  # and warm
    seconds = seconds_of(tasks, arguments.rounds)
    rates = {name: len(texts) / float(np.median(each)) for name, each in seconds.items()}
    units = {name: rows / np.linalg.norm(rows, axis=1, keepdims=True) for name, rows in embeddings.items()}
    cosines = {name: (rows * units["fp32"]).sum(1) for name, rows in units.items() if name != "fp32"}
    report = {
        "schema": 2,
        "bench": "teacher-speed",
        "model": Path(arguments.model).name,
        "texts": len(texts),
        "max_tokens": arguments.max_tokens,
        "tokens_mean": round(float(np.mean(tokens)), 1),
        "texts_s": {name: round(rate, 1) for name, rate in rates.items()},
        "ratio": {name: round(rate / rates["sentence-transformers"], 2) for name, rate in rates.items()},
        "cosine_to_fp32": {
            name: {"mean": round(float(each.mean()), 6), "min": round(float(each.min()), 6)}
            for name, each in cosines.items()
        },
        "prepare_seconds": prepared,
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "machine": machine.here(),
        **run.provenance(),
    }
    if arguments.out:
        files.write_json(arguments.out, report)
    print(json.dumps({key: report[key] for key in ("texts_s", "ratio", "cosine_to_fp32")}, indent=1))


if __name__ == "__main__":
    main()
