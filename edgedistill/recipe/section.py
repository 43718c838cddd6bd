"""What every section of a recipe shares: it is frozen, and it refuses unknown keys."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, SerializationInfo, SerializerFunctionWrapHandler, model_serializer

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

CACHE = {"for": "cache key"}


class Section(BaseModel):
    """A frozen section of a recipe; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    # Keys that were renamed: new name -> the name that cache keys were made with, so that caches outlive the renaming.
    KEYED_AS: ClassVar[dict[str, str]] = {}

    @model_serializer(mode="wrap")
    def _with_cached_names(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        return {self.KEYED_AS.get(key, key): value for key, value in data.items()} if info.context == CACHE else data

    def cache_identity(self, exclude: set[str] | None = None) -> dict[str, Any]:
        """The section as the data that a cache key is computed from."""
        return self.model_dump(mode="json", exclude=exclude, context=CACHE)


def by_kind(default: str) -> Any:
    """Select the class of a union by `kind`; a section without `kind` is of the kind `default`."""
    return Discriminator(lambda v: v.get("kind", default) if isinstance(v, dict) else getattr(v, "kind", default))
