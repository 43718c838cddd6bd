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
    """What the student may cost: the graph and tokenizer.json together in 10⁶ bytes, and the p50 of one text in the target's runner."""

    max_mb: float
    max_p50_ms: float
    target: str = "native"

    def excess(self, size_bytes: int, p50_ms: float) -> float:
        """By how much a cost exceeds the budget, as a share of it: 0.2 is a fifth too much of one of the two; at most 0 where it fits."""
        return max(size_bytes / 1e6 / self.max_mb, p50_ms / self.max_p50_ms) - 1

    def __str__(self) -> str:
        return f"{self.max_mb:g} MB and {self.max_p50_ms:g} ms"


@dataclass(frozen=True)
class FitRequest:
    """A whole request. texts: globs, or DOCUMENTATION. suite: also scored by, where given. min_kept: share of the teacher's score."""

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
        """The request as plain data: what two processes that work on one fit have to agree in."""
        found = asdict(self) | {"teacher": self.teacher.model_dump(mode="json", exclude_defaults=True), "texts": list(self.texts)}
        found.pop("data")
        return found


def of_settings(settings: dict[str, Any], data: Path | None) -> FitRequest:
    """The request that `FitRequest.settings` described."""
    made = {"teacher": recipe.Teacher(**settings["teacher"]), "texts": tuple(settings["texts"]), "budget": Budget(**settings["budget"])}
    return FitRequest(**{**settings, **made, "data": data})
