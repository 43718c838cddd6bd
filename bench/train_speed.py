"""Texts per second of training the 2-layer, 128-wide student, compared with SentenceTransformerTrainer and
MSELoss.

Teacher embeddings are precomputed for both, batch 256, the same texts; the two alternate. Less than three
minutes, on a machine with nothing else to do.
python bench/train_speed.py [--recipe bert-2x128] [--data DIR] [--rounds 2] [--out
bench/reports/train-speed.json]
Goal: at least 6 times the texts per second.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files, machine, recipe, run
from edgedistill.data import corpus
from edgedistill.session import QUIET, Session
from edgedistill.teacher import encoder
from edgedistill.teacher.embedding_cache import TeacherPass
from edgedistill.training import train
from edgedistill.training.initial_student import initial_weights
from edgedistill.training.load_models import Models

BATCH = 256
STEPS, WARM = 24, 8
FILES = (
    "flickr30k_captions",
    "questions",
    "tatoeba_en",
    "wikisplit",
)  # of `unlabeled`: enough texts, soon read
HELD_OUT = 500  # texts


def our_speed(spec: recipe.Recipe, data: Path | None, folder: Path) -> float:
    """Texts per second of our loop, checkpoints included, over the steps before its last measurement."""
    train.train(spec, folder, Session(data=data, log=lambda line: None))
    return float(
        json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])["texts_s"]
    )


def trainer_speed(spec: recipe.Recipe, texts: list[str], vectors: np.ndarray, folder: Path) -> float:
    """Texts per second of sentence-transformers' trainer on the same student: transformer, mean pooling, a
    dense layer."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MSELoss
    from sentence_transformers.models import Dense, Pooling, Transformer
    from torch.nn import Identity
    from transformers import TrainerCallback

    loaded = encoder.TeacherEncoder(spec.teacher)
    student: Any = initial_weights.build(spec, Models(loaded), loaded.tokenizer, QUIET).module
    student.model.save_pretrained(folder / "student")
    loaded.tokenizer.save_pretrained(folder / "student")
    transformer = Transformer(str(folder / "student"), max_seq_length=spec.stages[0].max_tokens)
    model = SentenceTransformer(
        modules=[transformer, Pooling(128), Dense(128, loaded.dims, activation_function=Identity())],
        device="cpu",
    )
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        report_to=[],
        save_strategy="no",
        logging_steps=STEPS,
        disable_tqdm=True,
        use_cpu=True,
    )
    marks: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.append(time.perf_counter())

    rows = Dataset.from_dict({"sentence": texts, "label": vectors.tolist()})
    SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=rows, loss=MSELoss(model), callbacks=[Clock()]
    ).train()
    return (len(marks) - WARM) * BATCH / (marks[-1] - marks[WARM - 1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="bert-2x128")
    parser.add_argument("--data", type=Path, default=os.environ.get("EDGEDISTILL_DATA"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    importlib.import_module("accelerate")  # the trainer asks for it after minutes
    changes = [
        f"stages.0.steps={STEPS}",
        f"stages.0.batch={BATCH}",
        f"select={{suite: mini, every: {WARM}}}",
        "stages.0.objective={kind: mse}",
        f"rows.limit={BATCH * STEPS + 2 * HELD_OUT}",
        f"rows.held_out={HELD_OUT}",
        f"rows.files={[f'unlabeled/{name}.txt.gz' for name in FILES]}",
        "teacher.dtype=bf16",
    ]
    spec = recipe.read(arguments.recipe, changes)
    assert spec.rows is not None
    built = corpus.build(spec.rows, Session(data=arguments.data, log=print), spec.seed)
    vectors = TeacherPass(encoder.TeacherEncoder(spec.teacher), built, Session(log=print)).open()
    rows = np.random.default_rng(0).choice(built.training_count, BATCH * STEPS, replace=False)
    texts, targets = built.texts(rows), vectors[rows]
    rates: dict[str, list[float]] = {"edgedistill": [], "sentence-transformers": []}
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as name:
            rates["edgedistill"].append(our_speed(spec, arguments.data, Path(name) / "run"))
            rates["sentence-transformers"].append(trainer_speed(spec, texts, targets, Path(name)))
        print(
            f"round {number + 1}: "
            + ", ".join(f"{who} {each[-1]:,.0f} texts/s" for who, each in rates.items()),
            flush=True,
        )
    medians = {who: float(np.median(each)) for who, each in rates.items()}
    ratios = [a / b for a, b in zip(rates["edgedistill"], rates["sentence-transformers"], strict=True)]
    report = {
        "schema": 1,
        "bench": "train-speed",
        "batch": BATCH,
        "texts_s": medians,
        "rounds": rates,
        "ratio": float(np.median(ratios)),
        "machine": machine.here(),
        **run.provenance(),
    }
    if arguments.out:
        files.write_json(arguments.out, report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
