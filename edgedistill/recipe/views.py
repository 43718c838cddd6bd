"""Ways to another view of a text."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from edgedistill.recipe.section import Part


class Identity(Part):
    """The text itself, once more."""

    kind: Literal["identity"]


class Dropout(Part):
    """The text itself under another dropout mask (SimCSE, unsupervised); needs `student.dropout`."""

    kind: Literal["dropout"]


class WordDeletion(Part):
    """The text without a random part of its words."""

    kind: Literal["word_deletion"]
    fraction: float = Field(0.1, gt=0, lt=1, description="of the words, on average over texts; at least one word stays")


class Crop(Part):
    """A random contiguous part of the text."""

    kind: Literal["crop"]
    fraction: float = Field(0.1, gt=0, lt=1, description="of the words that goes, on average over texts; at least one word stays")


class DeleteOne(Part):
    """The text without one of its words."""

    kind: Literal["delete_one"]


class Synonym(Part):
    """Some words replaced by WordNet synonyms; needs nltk and its WordNet data."""

    kind: Literal["synonym"]
    fraction: float = Field(0.1, gt=0, le=1, description="of the words, on average; only words that have a synonym, one at least")


class Mlm(Part):
    """Some words refilled by a masked language model, once for the whole corpus."""

    kind: Literal["mlm"]
    model: str = Field("google-bert/bert-base-uncased", description="a folder, or a hub id (which then needs `revision`)")
    revision: str | None = Field(None, description="for a hub id")
    fraction: float = Field(0.15, gt=0, lt=1, description="of the tokens, on average; one at least; only words of one piece")


class Translator(Part):
    """A translation model, such as Marian's."""

    model: str = Field(description="a folder, or a hub id (which then needs `revision`)")
    revision: str | None = Field(None, description="for a hub id")


class BackTranslation(Part):
    """The text translated there and back, once for the whole corpus."""

    kind: Literal["back_translation"]
    there: Translator = Field(description="for example Helsinki-NLP/opus-mt-en-fr")
    back: Translator = Field(description="for example Helsinki-NLP/opus-mt-fr-en")
    beams: int = Field(1, ge=1, le=16)


class ViewFile(Part):
    """Views made elsewhere: a table of texts and their views."""

    kind: Literal["file"]
    files: list[str] = Field(min_length=1, description="paths or globs of .tsv, .csv, .jsonl or .parquet; relative ones lie under --data")
    text: str = Field("text", description="the column of the texts, which must be all of the corpus'")
    view: str = Field("view", description="the column of their views")


View = Annotated[
    Identity | Dropout | WordDeletion | Crop | DeleteOne | Synonym | Mlm | BackTranslation | ViewFile, Field(discriminator="kind")
]
