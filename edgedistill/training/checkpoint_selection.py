"""Which weights of a stage are kept: those that score best on the suite of `select`."""

from __future__ import annotations

import sys
from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from edgedistill import files, recipe, run
from edgedistill.evaluation import scoring
from edgedistill.files import Json
from edgedistill.run import Weights
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.trained_module import TrainedModule

LOWEST = -sys.float_info.max  # below every score; JSON has no name for −∞


class Selection:
    """The suite that selects the weights: the best score, the weights kept so far, and how many measurements
    in a row brought no gain."""

    def __init__(
        self, spec: recipe.Select, student: PreparedStudent, data: Path | None, folder: Path
    ) -> None:
        """The selected weights are written to `folder`, the unfinished run's."""
        self.spec = spec
        self.prepared = student
        self.suite = scoring.suite(spec.suite, data)
        self.file = folder / "best.safetensors"
        self.best: Json = {"stage": None}
        self.misses = 0

    def start_stage(self, student: nn.Module) -> None:
        """Forget the scores of the stage before: only a stage's own weights compete."""
        self.best = {"suite": self.spec.suite, "score": LOWEST, "stage": None, "step": 0}
        self.misses = 0

    def score(self, module: TrainedModule) -> float:
        """The student's score on the suite."""
        return float(scoring.evaluate(self.suite, self.prepared.encoder)["average"])

    def keep(self, module: TrainedModule, score: float, stage: str, step: int) -> None:
        """Keep the student's weights when this score of it is the highest."""
        self.misses += 1
        if score > self.best["score"]:
            self.misses = 0
            self.best |= {"score": score, "stage": stage, "step": step}
            with files.new_file(self.file) as temporary:
                run.save_weights(module.student.state_dict(), temporary)

    @property
    def selected(self) -> Json | None:
        """The entry `selected` of run.json; None before the first measurement."""
        return self.best if self.best["stage"] else None

    @property
    def exhausted(self) -> bool:
        """Whether `patience` measurements in a row brought no gain."""
        return self.spec.patience is not None and self.misses >= self.spec.patience

    def weights(self) -> Weights:
        """The state dict of the selected weights."""
        return load_file(self.file)
