"""Tuples: a query, a text that answers it, texts that do not, and how a teacher scores them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag, model_validator

from edgedistill.recipe.section import HubData, Location, Revision, Section, by_kind

LONGEST_LIST = 64  # documents of a tuple
QUERY_COLUMNS = Field(
    min_length=2,
    max_length=1 + LONGEST_LIST,
    description="The columns of the query, of a text that answers it, and of texts that do not, if any.",
)


class Negatives(Section):
    """Texts that do not answer a query, drawn from all documents by the scores of the teacher.

    A document with more than 0.95 of the positive's cosine is left out: it may answer the query too
    (NV-Retriever, Moreira et al. 2024).
    """

    count: int = Field(7, ge=1, le=LONGEST_LIST - 1, description="How many for each query.")
    ranks: int = Field(
        1_000,
        ge=2,
        description="They are drawn from so many best documents of the query, one from each of `count` parts "
        "of the range of their scores (stratified sampling); the nearest alone teach less.",
    )


class CrossEncoder(Section):
    """A model that reads query and document together and gives one score."""

    model: Location = Field(description="A model folder, or a hub id (which also needs `revision`).")
    revision: Revision = None
    max_tokens: int = Field(256, ge=3, le=8192, description="Longer pairs are truncated.")


class Scores(Section):
    """The scores that a student's ranking is to match. Default: the teacher's cosines.

    Cosines score every document of a batch, a cross-encoder and columns the tuple's own.
    """

    cross_encoder: CrossEncoder | None = Field(None, description="Instead of cosines.")
    columns: list[str] | None = Field(
        None,
        min_length=1,
        max_length=LONGEST_LIST,
        description="Instead of cosines: the columns of the scores, one for each document column.",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_former_keys(cls, data: Any) -> Any:
        """The recipes in shipped bundles hold two more keys, which are not set."""
        unset = [key for key in ("teachers", "bm25") if isinstance(data, dict) and not data.get(key, True)]
        return {key: value for key, value in data.items() if key not in unset} if unset else data

    @model_validator(mode="after")
    def _one_source(self) -> Scores:
        if self.cross_encoder is not None and self.columns is not None:
            raise ValueError("give one of `cross_encoder` and `columns`")
        return self

    @property
    def of_the_tuple(self) -> bool:
        """Whether only the documents of a query's own tuple have scores."""
        return self.cross_encoder is not None or self.columns is not None


class _Tuples(Section):
    """What all kinds of tuples share; `made` ones are of the corpus."""

    kind: str
    made: ClassVar[bool] = False
    negatives: Negatives | None = Field(
        None, description="Add documents that do not answer the query. {}: the defaults."
    )
    scores: Scores = Field(Scores(), description="What a ranking objective matches.")

    @property
    def width(self) -> int:
        """How many texts a row has, with the negatives that are added."""
        added = self.negatives.count if self.negatives is not None else 0
        return len(getattr(self, "columns", ("query", "text"))) + added

    @property
    def patterns(self) -> list[str]:
        """Globs of files that are read."""
        return getattr(self, "files", [])


class _TupleTable(_Tuples):
    """Tuples from the rows of tables."""

    limit: int | None = Field(None, ge=1, description="At most this many tuples, sampled evenly.")
    held_out: int = Field(
        0, ge=0, description="Queries set aside, with all their tuples: never trained on, to measure with."
    )
    licence: str | None = Field(None, description="The licence of the tuples. The model card names it.")

    @model_validator(mode="after")
    def _columns_differ(self) -> _TupleTable:
        columns: list[str] = getattr(self, "columns", [])
        scored = self.scores.columns
        if len({*columns}) < len(columns):
            raise ValueError(f"`columns` {columns} names a column twice")
        if scored is not None and len(scored) != len(columns) - 1:
            raise ValueError(
                f"`scores.columns` names {len(scored)}, and `columns` {len(columns) - 1} of documents; give "
                "each document its score"
            )
        if scored is not None and self.negatives is not None:
            raise ValueError("added `negatives` have no scores in a column; leave one of them out")
        return self


class TupleFiles(_TupleTable):
    """Tables of tuples: .tsv, .csv, .jsonl or .parquet, each also as .gz."""

    kind: Literal["files"] = "files"
    files: list[Location] = Field(
        min_length=1,
        description="Paths or globs. Relative ones start from --data. The corpus' `exclude` applies too.",
    )
    columns: list[str] = QUERY_COLUMNS


class TupleHub(HubData, _TupleTable):
    """Tuples from a hub data set, at a fixed revision."""

    kind: Literal["hub"]
    split: str = Field("train", description="The split that is read.")
    columns: list[str] = QUERY_COLUMNS


Made = Literal["first_sentence", "sentence", "question"]


class TupleCorpus(_Tuples):
    """Tuples made from the corpus' own texts: passages of a text are its queries."""

    kind: Literal["corpus"]
    made = True
    queries: list[Made] = Field(
        ["first_sentence", "sentence", "question"],
        min_length=1,
        description="What is asked: a text's first sentence (often its title or heading), any other "
        "sentence, its questions.",
    )
    per_text: int = Field(3, ge=1, le=100, description="At most so many queries of a text, drawn at random.")

    @model_validator(mode="after")
    def _no_columns(self) -> TupleCorpus:
        if self.scores.columns is not None:
            raise ValueError("`scores.columns` are those of a table, and these tuples are made from texts")
        return self


Tuples = Annotated[
    Annotated[TupleFiles, Tag("files")]
    | Annotated[TupleHub, Tag("hub")]
    | Annotated[TupleCorpus, Tag("corpus")],
    by_kind("files"),
]


def tuple_sources(stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each stage that reads a table of tuples a source, as records list them: `name` and `licence`; the
    number of tuples is not recorded.

    stages: of a dumped recipe.
    """
    found = []
    for stage in stages:
        table = stage.get("tuples")
        if table and table["kind"] != "corpus":
            names = table.get("dataset") or ", ".join(Path(file).name for file in table["files"])
            found.append(
                {"name": f"tuples of the stage {stage['name']}: {names}", "licence": table.get("licence")}
            )
    return found
