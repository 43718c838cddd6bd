"""What a user asks of a fit: a teacher, texts, a budget, minutes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgedistill import recipe

DOCUMENTATION = "documentation"  # a name for texts: sentences that come with this package
TARGETS = ("native", "web")


@dataclass(frozen=True)
class Budget:
    """What the student may cost: graph and tokenizer.json together in 10⁶ bytes, and the p50 of one text in
    the target's runner.
    """

    max_mb: float
    max_p50_ms: float
    target: str = "native"

    def excess(self, size_bytes: int, p50_ms: float) -> float:
        """By how much a cost exceeds the budget, as a share: 0.2 is a fifth too much of one of the two; at
        most 0 where it fits.
        """
        return max(size_bytes / 1e6 / self.max_mb, p50_ms / self.max_p50_ms) - 1

    def __str__(self) -> str:
        return f"{self.max_mb:g} MB and {self.max_p50_ms:g} ms"


@dataclass(frozen=True)
class FitRequest:
    """A whole request.

    texts: globs, or DOCUMENTATION. suite: candidates are scored on it too. min_kept: share of the teacher's
    score. data: the folder that relative paths start from.
    """

    teacher: recipe.Teacher
    texts: tuple[str, ...]
    budget: Budget
    minutes: float = 60.0
    column: str = "text"
    min_kept: float | None = None
    suite: str | None = None
    seed: int = 0
    data: Path | None = field(default=None, compare=False)

    def settings(self) -> dict[str, Any]:
        """The request as plain data; `of_settings` reads it."""
        teacher = self.teacher.model_dump(mode="json", exclude_defaults=True)
        found = asdict(self) | {"teacher": teacher, "texts": list(self.texts)}
        found.pop("data")
        return found


def of_settings(settings: dict[str, Any], data: Path | None) -> FitRequest:
    """The request that `FitRequest.settings` described."""
    teacher, budget = recipe.Teacher(**settings["teacher"]), Budget(**settings["budget"])
    opened = {"teacher": teacher, "texts": tuple(settings["texts"]), "budget": budget}
    return FitRequest(**{**settings, **opened, "data": data})
