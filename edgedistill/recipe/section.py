"""What every piece of a recipe is: frozen, and refusing keys it does not know."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field

Pooling = Literal["mean", "cls", "cls_pooler", "max", "last"]
Precision = Literal["fp32", "w8", "int8"]
Head = Literal["none", "linear", "linear_tanh"]
Words = Annotated[str, Field(description="teacher, assistant, packaged:…, a folder (a run's too), or a hub id")]
Pieces = Annotated[int | None, Field(ge=200, description="learn a WordPiece vocabulary of this size from the corpus instead")]
Width = Annotated[int | None, Field(ge=1, description="output of the head; default: the teacher's")]


class Part(BaseModel):
    """A frozen piece of a recipe; keys it does not know are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def by_kind(default: str) -> Any:
    """Tells the classes of a union apart by `kind`, which may be left out of the one called `default`."""
    return Discriminator(lambda v: v.get("kind", default) if isinstance(v, dict) else getattr(v, "kind", default))
