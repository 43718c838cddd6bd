"""Texts per second of embedding with the teacher, compared with sentence-transformers' encode on its defaults; same texts, same run.

python bench/teacher_speed.py [--recipe bert-2x128] [--data DIR] [--texts 50000] [--out bench/reports/teacher-speed.json]
Goal: at least 5 times the texts per second, with a cosine to its embeddings of at least 0.9995 for every text.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch

from edgedistill import files, machine, recipe, run
from edgedistill.data import corpus
from edgedistill.session import Session
from edgedistill.teacher import encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="bert-2x128", help="whose corpus and teacher")
    parser.add_argument("--data", type=Path, default=os.environ.get("EDGEDISTILL_DATA"))
    parser.add_argument("--texts", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    from sentence_transformers import SentenceTransformer

    spec = recipe.read(arguments.recipe)
    assert spec.corpus is not None
    built = corpus.build(spec.corpus, Session(data=arguments.data, log=print), spec.seed)
    texts = built.texts(np.random.default_rng(0).choice(len(built), min(arguments.texts, len(built)), replace=False))
    teacher = encoder.TeacherEncoder(spec.teacher)
    peer = SentenceTransformer(str(teacher.folder), device="cpu")
    teacher.embed(texts[:256])
    peer.encode(texts[:256])
    seconds: dict[str, list[float]] = {"edgedistill": [], "sentence-transformers": []}
    for _ in range(arguments.rounds):
        for name, embed in (("edgedistill", teacher.embed), ("sentence-transformers", peer.encode)):
            started = time.perf_counter()
            vectors = embed(texts)
            seconds[name].append(time.perf_counter() - started)
            print(f"{name}: {len(texts) / seconds[name][-1]:,.0f} texts/s", flush=True)
            if name == "edgedistill":
                ours = vectors.astype(np.float16).astype(np.float32)  # as the cache stores them
            else:
                cosines = (ours * vectors).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(vectors, axis=1)
    rates = {name: len(texts) / float(np.median(each)) for name, each in seconds.items()}
    report = {
        "schema": 1,
        "bench": "teacher-speed",
        "texts": len(texts),
        "texts_s": rates,
        "seconds": seconds,
        "ratio": rates["edgedistill"] / rates["sentence-transformers"],
        "cosine": {"mean": float(cosines.mean()), "min": float(cosines.min())},
        "dtype": str(teacher.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "machine": machine.here(),
        **run.provenance(),
    }
    if arguments.out:
        files.write_json(arguments.out, report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
