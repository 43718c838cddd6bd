"""How the second view of a text is made."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from edgedistill.recipe.section import ByKind, OneOf


class AnyView(ByKind):
    """What views differ in: whether words are left out, which `share` of them, and whether what remains is
    one span."""

    edits: ClassVar[bool] = True
    span: ClassVar[bool] = False

    @property
    def share(self) -> float:
        return 0.0


class WordDeletion(AnyView):
    """The text with random words deleted."""

    kind: Literal["word_deletion"]
    fraction: float = Field(
        0.1, gt=0, lt=1, description="Share of words deleted, on average over texts; at least one word stays."
    )

    @property
    def share(self) -> float:
        return self.fraction


class Crop(AnyView):
    """A random contiguous span of the text."""

    kind: Literal["crop"]
    span = True
    drop_fraction: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Share of words outside the span, on average over texts; at least one word stays.",
    )

    @property
    def share(self) -> float:
        return self.drop_fraction


View = Annotated[AnyView, OneOf(AnyView)]
