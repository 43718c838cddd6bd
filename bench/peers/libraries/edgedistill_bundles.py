"""edgedistill's own rows: what ships, the teacher's bundle, and what `fit` and `adapt` make in the minutes
and of the texts that the others get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import Opened, Task

import edgedistill


def _run(task: Task, *arguments: str) -> dict[str, Any]:
    """Run a command line of edgedistill; what it embeds of the teacher is not read from an earlier cache."""
    command = [sys.executable, "-m", "edgedistill", *arguments]
    task.folder.mkdir(parents=True, exist_ok=True)
    kept = os.environ | {"EDGEDISTILL_CACHE": str((task.folder / "cache").absolute())}
    subprocess.run(command, check=True, stdout=sys.stderr, cwd=task.folder, env=kept)
    return {"command": f"edgedistill {' '.join(arguments)}"}


def _minutes(task: Task) -> str:
    """Minutes by the clock in which this process would now get the minutes of a processor that it may have:
    `fit` and `adapt` go by the clock."""
    began, used = time.perf_counter(), time.process_time()
    while time.process_time() - used < 1:
        pass
    return f"{task.minutes * (time.perf_counter() - began) / (time.process_time() - used):.1f}"


def make_teacher_fp32(task: Task) -> dict[str, Any]:
    return _run(
        task, "export", "packaged:all-MiniLM-L6-v2", "--out", str(task.bundle), "--precision", "fp32,int8"
    )


def make_fit(task: Task) -> dict[str, Any]:
    budget = ("--max-mb", "5", "--max-p50-ms", "2", "--minutes", _minutes(task))
    teacher = ("--teacher", "packaged:all-MiniLM-L6-v2")
    return _run(task, "fit", *teacher, "--texts", str(task.texts), *budget, "--out", "fit")


def make_adapt(task: Task) -> dict[str, Any]:
    given = ("--texts", str(task.documents), "--minutes", _minutes(task), "--out", "bundle")
    return _run(task, "adapt", "nano", *given)


def _opened(name: str, precision: str, threads: int) -> Opened:
    bundle = edgedistill.load(name, precision, threads)
    counts = bundle.manifest["parameters"]
    return Opened(
        "edgedistill",
        bundle.encode,
        [bundle.folder / bundle.manifest["precisions"][precision]["file"]],
        counts["total"] if isinstance(counts, dict) else counts,
        bundle.encode_query,
        bundle.encode_document,
    )


def open_nano(task: Task) -> Opened:
    return _opened("nano", "int8", task.threads)


def open_micro(task: Task) -> Opened:
    return _opened("micro", "int8", task.threads)


def open_teacher_fp32(task: Task) -> Opened:
    return _opened(str(task.bundle), "fp32", task.threads)


def open_teacher_int8(task: Task) -> Opened:
    return _opened(str(task.bundle), "int8", task.threads)


def open_fit(task: Task) -> Opened:
    found = json.loads((task.folder / "fit" / "fit.json").read_text(encoding="utf-8"))
    bundle: Path = task.folder / "fit" / "bundle"
    return _opened(str(bundle), found["winner"]["precision"], task.threads)


def open_adapt(task: Task) -> Opened:
    return _opened(str(task.folder / "bundle"), "int8", task.threads)
