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


class Translator(Section):
    """A translation model, such as Marian's."""

    model: str = Field(description="A model folder, or a hub id (needs `revision`).")
    revision: str | None = Field(None, description="Commit, tag or branch of a hub id.")


class BackTranslation(Section):
    """The text translated to another language and back, computed once for the whole corpus."""

    kind: Literal["back_translation"]
    forward: Translator = Field(
        description="Into the other language, for example Helsinki-NLP/opus-mt-en-fr."
    )
    backward: Translator = Field(description="Back again, for example Helsinki-NLP/opus-mt-fr-en.")


View = Annotated[
    Identity | Dropout | WordDeletion | Crop | DeleteOne | BackTranslation,
    Field(discriminator="kind"),
]
