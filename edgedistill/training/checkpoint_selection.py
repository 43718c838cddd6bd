"""Which weights of a stage are kept: those that score best on the suite of `select`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from edgedistill import files, recipe
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
        """folder: the unfinished run's, where the selected weights are written."""
        self.name, self.every, self.patience, self.tolerance = (
            spec.suite,
            spec.every,
            spec.patience,
            spec.tolerance,
        )
        self.suite = scoring.suite(spec.suite, data)
        self.tokenizer, self.max_tokens = student.tokenizer, student.max_tokens
        self.file = folder / "best.safetensors"
        self.start_stage()

    def start_stage(self) -> None:
        """Forget the scores of the stage before: only a stage's own weights compete."""
        self.best: dict[str, Any] = {"suite": self.name, "score": LOWEST, "stage": None, "step": 0}
        self.misses = 0

    def measure(self, student: nn.Module, stage: str, step: int) -> float:
        """Score the student, and keep its weights when the score is the highest, or later and within
        `tolerance` of the highest."""
        score = float(scoring.evaluate(self.suite, lambda texts: self._embed(student, texts))["average"])
        highest = self.best.get("highest", self.best["score"])
        self.misses = 0 if score > highest else self.misses + 1
        if score > highest - self.tolerance:
            self.best = {"suite": self.name, "score": score, "stage": stage, "step": step}
            if highest > score:
                self.best["highest"] = highest  # of weights that were kept before these
            with files.new_file(self.file) as temporary:
                save_file(
                    {k: v.detach().cpu().contiguous() for k, v in student.state_dict().items()}, temporary
                )
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
