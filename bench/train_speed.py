"""Texts a second of training the 2-layer, 128-wide student, beside SentenceTransformerTrainer with MSELoss.

Teacher vectors precomputed for both, batch 256, the same texts; the two take turns.
python bench/train_speed.py [--recipe bert-2x128] [--data DIR] [--rounds 3] [--out bench/reports/train-speed.json]
Goal: at least 6 times the texts a second.
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

from edgedistill import files, machine, recipe, run
from edgedistill.data import corpus
from edgedistill.session import Session
from edgedistill.teacher import encoder
from edgedistill.teacher.embedding_cache import embed_corpus
from edgedistill.training import initialise, train

BATCH = 256
STEPS, WARM = 60, 20


def ours(spec: recipe.Recipe, data: Path | None, folder: Path) -> float:
    """Our loop, checkpoints and progress included; the metric of its last window of steps."""
    train.train(spec, folder, Session(data=data, log=lambda line: None))
    return float(json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])["texts_s"])


def theirs(spec: recipe.Recipe, texts: list[str], vectors: np.ndarray, folder: Path) -> float:
    """sentence-transformers' trainer on the same student: transformer, mean pooling, a dense layer to the teacher's width."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.losses import MSELoss
    from sentence_transformers.models import Dense, Pooling, Transformer
    from torch.nn import Identity
    from transformers import TrainerCallback

    loaded = encoder.Teacher(spec.teacher)
    student, _ = initialise.build(spec, loaded, loaded.tokenizer, None)
    student.model.save_pretrained(folder / "student")  # type: ignore[union-attr, operator]
    loaded.tokenizer.save_pretrained(folder / "student")
    transformer = Transformer(str(folder / "student"), max_seq_length=spec.stages[0].max_tokens)
    model = SentenceTransformer(modules=[transformer, Pooling(128), Dense(128, loaded.dims, activation_function=Identity())], device="cpu")
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
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=rows, loss=MSELoss(model), callbacks=[Clock()]).train()
    return (len(marks) - WARM) * BATCH / (marks[-1] - marks[WARM - 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="bert-2x128")
    parser.add_argument("--data", type=Path, default=os.environ.get("EDGEDISTILL_DATA"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    changes = [
        f"stages.0.steps={STEPS}",
        f"stages.0.batch={BATCH}",
        f"select={{suite: mini, every: {WARM}}}",
        "stages.0.objective={kind: mse}",
    ]
    spec = recipe.read(asked.recipe, changes)
    assert spec.corpus is not None
    built = corpus.build(spec.corpus, Session(data=asked.data, log=print), spec.seed)
    vectors = embed_corpus(encoder.Teacher(spec.teacher), built, Session(log=print))
    rows = np.random.default_rng(0).choice(built.trained, BATCH * STEPS, replace=False)
    texts, targets = built.texts(rows), vectors[rows]
    rates: dict[str, list[float]] = {"edgedistill": [], "sentence-transformers": []}
    for number in range(asked.rounds):
        with tempfile.TemporaryDirectory() as name:
            rates["edgedistill"].append(ours(spec, asked.data, Path(name) / "run"))
            rates["sentence-transformers"].append(theirs(spec, texts, targets, Path(name)))
        print(f"round {number + 1}: " + ", ".join(f"{who} {each[-1]:,.0f} texts/s" for who, each in rates.items()), flush=True)
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
        **run.made_by(),
    }
    if asked.out:
        files.write_json(asked.out, report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
