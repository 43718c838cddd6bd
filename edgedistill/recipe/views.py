"""How the second view of a text is made."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from edgedistill.recipe.section import Section


class Identity(Section):
    """The same text again."""

    kind: Literal["identity"]


class Dropout(Section):
    """The same text under another dropout mask (unsupervised SimCSE); needs `student.dropout`."""

    kind: Literal["dropout"]


class WordDeletion(Section):
    """The text with random words deleted."""

    kind: Literal["word_deletion"]
    fraction: float = Field(
        0.1, gt=0, lt=1, description="Share of words deleted, on average over texts; at least one word stays."
    )


class Crop(Section):
    """A random contiguous span of the text."""

    kind: Literal["crop"]
    drop_fraction: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Share of words outside the span, on average over texts; at least one word stays.",
    )


class DeleteOne(Section):
    """The text with one random word deleted."""

    kind: Literal["delete_one"]


View = Annotated[Identity | Dropout | WordDeletion | Crop | DeleteOne, Field(discriminator="kind")]
