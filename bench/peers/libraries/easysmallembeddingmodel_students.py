"""A student by easysmallembeddingmodel (imported as smallmodel): compressed to a size, then distilled.

As its README says: register_teacher, from_teacher, compress(max_fp32_mb=…), distill(). 4M parameters and
16 MB are nano's size in float32. It loads its texts from the hub into a cache; here that holds the texts
that all students get, as many as its 10 epochs have minutes for. `distill` looks for its cache below the
current folder.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import Opened, Task, lines, texts_for
from sentence_transformers_backends import of_torch
from smallmodel import SmallModel, register_teacher

MOST_PARAMETERS, MOST_MB = 4_000_000, 16.0
EPOCHS, TRIAL = 10, 320


def _compressed(task: Task) -> Any:
    config = json.loads((task.teacher / "config.json").read_text(encoding="utf-8"))
    register_teacher(
        "teacher",
        model_id=str(task.teacher),
        short_name="teacher",
        hidden_dim=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        tokenizer_type="wordpiece",
    )
    model = SmallModel.from_teacher("teacher", output_dir=str(task.folder))
    model.compress(max_params=MOST_PARAMETERS, max_fp32_mb=MOST_MB)
    return model


def _cached(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def make_compressed(task: Task) -> dict[str, Any]:
    texts, distilled = lines(task.texts), task.folder / "data" / "distill_corpus" / "mteb_distill_10000.txt"
    _cached(task.folder / "data" / "distill_corpus" / "distill_texts_5000.txt", texts[:5000])
    os.chdir(task.folder)
    model = _compressed(task)

    def distilled_on(some: list[str], epochs: int) -> str:
        _cached(distilled, some)
        return str(model.distill(epochs=epochs))

    some = texts_for(60 * task.minutes / EPOCHS, texts, lambda few: distilled_on(few, 1), TRIAL)
    return {"texts": len(some), "model": distilled_on(some, EPOCHS)}


def open_compressed(task: Task) -> Opened:
    made = json.loads((task.folder / "made.json").read_text(encoding="utf-8"))
    return replace(of_torch(Path(made["model"])), library="easysmallembeddingmodel")
