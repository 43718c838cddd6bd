"""How the second view of a text is made."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from edgedistill.recipe.section import Section


class _View(Section):
    """What views differ in: whether words are left out, which `share` of them (None: one), and whether what
    remains is one span."""

    kind: str
    edits: ClassVar[bool] = True
    span: ClassVar[bool] = False

    @property
    def share(self) -> float | None:
        return None


class Identity(_View):
    """The same text again."""

    kind: Literal["identity"]
    edits = False


class Dropout(_View):
    """The same text under another dropout mask (unsupervised SimCSE); needs `student.dropout`."""

    kind: Literal["dropout"]
    edits = False


class WordDeletion(_View):
    """The text with random words deleted."""

    kind: Literal["word_deletion"]
    fraction: float = Field(
        0.1, gt=0, lt=1, description="Share of words deleted, on average over texts; at least one word stays."
    )

    @property
    def share(self) -> float:
        return self.fraction


class Crop(_View):
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


class DeleteOne(_View):
    """The text with one random word deleted."""

    kind: Literal["delete_one"]


View = Annotated[Identity | Dropout | WordDeletion | Crop | DeleteOne, Field(discriminator="kind")]
