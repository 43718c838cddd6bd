"""What every section of a recipe shares: it is frozen, and it refuses unknown keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field

Pooling = Literal["mean", "cls", "cls_pooler", "max", "last"]
Precision = Literal["fp32", "fp16", "w8", "int8", "w4"]
Head = Literal["none", "linear", "linear_tanh"]
TokenizerSource = Annotated[
    str, Field(description="Where the tokenizer comes from: teacher, assistant, packaged:NAME, a model or run folder, or a hub id.")
]
VocabularySize = Annotated[
    int | None, Field(ge=200, description="Learn a WordPiece vocabulary of this size from the corpus instead of taking `tokenizer`.")
]
HeadDims = Annotated[int | None, Field(ge=1, description="Output dimensions of the head. Default: the teacher's.")]


class Section(BaseModel):
    """A frozen section of a recipe; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def by_kind(default: str) -> Any:
    """Select the class of a union by `kind`; a section without `kind` is of the kind `default`."""
    return Discriminator(lambda v: v.get("kind", default) if isinstance(v, dict) else getattr(v, "kind", default))
