"""Which weights of a stage are kept: those that score best on the suite of `select`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from edgedistill import files, recipe, run
from edgedistill.evaluation import scoring
from edgedistill.training import student_embeddings
from edgedistill.training.initial_student.prepared_student import PreparedStudent

LOWEST = -sys.float_info.max  # below every score; JSON has no name for −∞


class Selection:
    """The suite that selects the weights: the best score, the weights kept so far, and how many measurements
    in a row brought no gain."""

    def __init__(
        self, spec: recipe.Select, student: PreparedStudent, data: Path | None, folder: Path
    ) -> None:
        """The selected weights are written to `folder`, the unfinished run's."""
        self.name, self.every, self.patience = spec.suite, spec.every, spec.patience
        self.suite = scoring.suite(spec.suite, data)
        self.tokenizer, self.max_tokens = student.tokenizer, student.max_tokens
        self.file = folder / "best.safetensors"
        self.start_stage()

    def start_stage(self) -> None:
        """Forget the scores of the stage before: only a stage's own weights compete."""
        self.best: dict[str, Any] = {"suite": self.name, "score": LOWEST, "stage": None, "step": 0}
        self.misses = 0

    def measure(self, student: nn.Module, stage: str, step: int) -> float:
        """Score the student, and keep its weights when the score is the highest."""
        score = float(scoring.evaluate(self.suite, lambda texts: self._embed(student, texts))["average"])
        self.misses += 1
        if score > self.best["score"]:
            self.misses = 0
            self.best = {"suite": self.name, "score": score, "stage": stage, "step": step}
            with files.new_file(self.file) as temporary:
                run.save_weights(student.state_dict(), temporary)
        return score

    def _embed(self, student: nn.Module, texts: list[str]) -> Any:
        return student_embeddings.embed(student, self.tokenizer, texts, self.max_tokens)

    @property
    def selected(self) -> dict[str, Any] | None:
        """The entry `selected` of run.json; None before the first measurement."""
        return self.best if self.best["stage"] else None

    @property
    def exhausted(self) -> bool:
        """Whether `patience` measurements in a row brought no gain."""
        return self.patience is not None and self.misses >= self.patience

    def weights(self) -> dict[str, Tensor]:
        """The state dict of the selected weights."""
        return load_file(self.file)
