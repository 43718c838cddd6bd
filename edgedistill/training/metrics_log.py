"""The record of a training run: metrics.jsonl, the progress bar, the stages that are done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from edgedistill import files
from edgedistill.session import Log


class MetricsLog:
    """metrics.jsonl, the progress bar and the log lines of a run; `stages` holds an entry of run.json for
    each finished stage."""

    def __init__(self, path: Path, bar: Progress, log: Log) -> None:
        self.path, self.bar, self.log = path, bar, log
        self.stages: list[dict[str, Any]] = []

    def write(self, **values: Any) -> None:
        """Append one line to metrics.jsonl."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(files.json_text(values) + "\n")

    def truncate(self, size: int) -> None:
        """Drop the lines that were written after the checkpoint from which the run resumes."""
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.truncate(size)

    def size(self) -> int:
        """Bytes of metrics.jsonl."""
        return self.path.stat().st_size if self.path.exists() else 0


def progress_bar(shown: bool) -> Progress:
    """A bar per stage: steps, loss, dev score, texts per second, time left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(
            "{task.completed:,}/{task.total:,} steps  loss {task.fields[loss]:.4f}  dev "
            "{task.fields[dev]:.4f}"
        ),
        TextColumn("{task.fields[rate]:,.0f} texts/s"),
        TimeRemainingColumn(),
        transient=True,
        disable=not shown,
    )
