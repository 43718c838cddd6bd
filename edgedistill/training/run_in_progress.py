"""A run while it trains: what every stage works with besides its data and its student."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from accelerate import Accelerator

from edgedistill.session import Session
from edgedistill.training.metrics_log import MetricsLog


@dataclass(frozen=True)
class RunInProgress:
    """folder: the unfinished run's (NAME.partial). accelerator: the device and precision it trains in. metrics: its record.

    pause_at: the step of a distillation stage at which it pauses, with `loop.Paused`; None: it does not.
    """

    folder: Path
    accelerator: Accelerator
    session: Session
    metrics: MetricsLog
    pause_at: int | None = None

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.folder / "checkpoints"
