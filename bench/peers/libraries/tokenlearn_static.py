"""A static model by tokenlearn: model2vec's, then trained on the teacher's means.

As its README says: python -m tokenlearn.featurize, then python -m tokenlearn.train. It trains until it does
not improve, so two thirds of the minutes go to the means, and their number is what these allow.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from harness import Opened, Task, lines, texts_for
from model2vec_static import of_folder

TRIAL = 640


def _features(task: Task, texts: list[str]) -> Path:
    given, out = task.folder / "dataset", task.folder / f"features-{len(texts)}"
    given.mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (given / "train.jsonl").write_text(rows, encoding="utf-8")
    command = ["tokenlearn.featurize", "--model-name", task.teacher, "--output-dir", out]
    source = ["--dataset-path", given, "--dataset-name", "default", "--dataset-split", "train"]
    subprocess.run([sys.executable, "-m", *command, *source], check=True, stdout=sys.stderr)
    return out


def make_trained(task: Task) -> dict[str, float]:
    texts = lines(task.texts)
    some = texts_for(40 * task.minutes, texts, lambda few: _features(task, few), TRIAL)
    features, started = _features(task, some), time.perf_counter()
    command = ["tokenlearn.train", "--model-name", task.teacher, "--data-path", features]
    subprocess.run(
        [sys.executable, "-m", *command, "--save-path", task.folder / "model"], check=True, stdout=sys.stderr
    )
    return {"texts": len(some), "train_minutes": (time.perf_counter() - started) / 60}


def open_trained(task: Task) -> Opened:
    return of_folder(task.folder / "model", "tokenlearn")
