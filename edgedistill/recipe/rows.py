"""The rows that are trained on. A row has k text columns: one text, a text and its translation, a query with
documents, or what a label is of; and scores or a label where its table has them."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from edgedistill.errors import shown
from edgedistill.files import Json
from edgedistill.recipe.section import Location, Revision, Section
from edgedistill.recipe.teacher import OtherTeachers

DOCUMENTATION = "packaged:documentation"  # a name among files
LONGEST_LIST = 64  # documents of a row
LONGEST_TRANSLATION = 1_000  # characters of a text of a pair of translations, by default


class Paragraphs(Section):
    """Paragraph-length texts made by joining consecutive lines of a source; the teacher embeds them like any
    other text."""

    texts: int = Field(
        ge=1,
        description="How many paragraphs to add to the single lines. Their first lines are spread evenly over"
        " all.",
    )
    words: tuple[int, int] = Field(
        (35, 100),
        strict=False,
        description="Length in words: a target between these two is drawn, then lines are added until it is "
        "reached.",
    )

    @model_validator(mode="after")
    def _ascending(self) -> Paragraphs:
        if not 1 <= self.words[0] <= self.words[1]:
            raise ValueError(f"`words` {list(self.words)} must be ascending and start at 1 or more")
        return self


class Passages(Section):
    """Also train on passages of longer texts: their sentences, and runs of two to four neighbouring ones."""

    texts: int | None = Field(
        None, ge=1, description="At most this many passages, drawn at random. Default: all."
    )


class Queries(Section):
    """Queries made from the recipe's own rows: sentences of a text, which that text answers."""

    per_text: int = Field(
        3, ge=1, le=100, description="At most this many queries for each text, drawn at random."
    )


class Negatives(Section):
    """Texts that do not answer a query, drawn from all documents by the scores of the teacher.

    A document with more than 0.95 of the positive's cosine is left out: it may answer the query too
    (NV-Retriever, Moreira et al. 2024).
    """

    count: int = Field(7, ge=1, le=LONGEST_LIST - 1, description="Negatives for each query.")
    ranks: int = Field(
        1_000,
        ge=2,
        description="They are drawn from this many documents that score best for the query, one from each of "
        "`count` parts of the range of their scores (stratified sampling). The nearest alone "
        "teach less.",
    )


class JointScores(Section):
    """The mean of several scores of a query's documents: the cosines of the recipe's teacher and of other
    models, and BM25. Each is turned into z-scores among these documents first."""

    teachers: OtherTeachers = Field(
        [],
        description="Models beside the recipe's teacher, each with its own prompts and pooling.",
    )
    bm25: float = Field(
        0.0,
        ge=0,
        le=1_000,
        description="The weight of BM25, which counts words in all documents. Each teacher's weight is 1.",
    )


Columns = Annotated[list[str], Field(max_length=LONGEST_LIST), Tag("list[str]")]
Scores = Annotated[
    Columns | Annotated[JointScores, Tag("mapping")],
    Discriminator(lambda value: "list[str]" if isinstance(value, list) else "mapping"),
]


class Table(Section):
    """Files, or a data set of the Hugging Face hub, with the same columns."""

    name: str | None = Field(
        None,
        description="The name by which a stage's `tables` choose it. Default: its languages, such as en-de.",
    )
    files: list[Location] = Field(
        [],
        description="Paths or globs; relative ones start from --data. Texts: .txt (one per line), .md, .rst, "
        ".html and .pdf (one per paragraph, heading, list item, table row or code block). Tables: .tsv, "
        ".csv, .jsonl, .json or .parquet (a row each). Each also as .gz.",
    )
    dataset: str | None = Field(
        None, description="Instead of `files`: the hub id of a data set (needs `revision`)."
    )
    revision: Revision = None
    config: str | None = Field(None, description="The configuration of a data set, where it has several.")
    split: str = Field("train", description="The split of a data set.")
    columns: list[str | int] = Field(
        [],
        max_length=1 + LONGEST_LIST,
        description="Of rows of several texts: their columns, in the order in which objectives read them. "
        "That is a text and its translation; or a query, a text that answers it, and texts that "
        "do not. By name; by number, counted from 0, if a table has no header; by nested name, "
        "such as translation.de, in a data set.",
    )
    languages: list[str] = Field(
        [],
        max_length=LONGEST_LIST,
        description="The languages of the texts. With two `columns`, the texts of a row are translations of "
        "each other; the teacher's language comes first.",
    )
    score_column: str | int | None = Field(
        None, description="The column of a quality score, such as WikiMatrix's margin."
    )
    min_score: float | None = Field(None, description="Rows whose `score_column` is lower are left out.")
    limit_per_file: int | None = Field(
        None, ge=1, description="At most this many rows per file, sampled evenly."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Table:
        named = [*self.columns, *([] if self.score_column is None else [self.score_column])]
        if self.dataset is not None and self.revision is None:
            raise ValueError(
                f"the hub id {shown(self.dataset)} needs a `revision`, or its rows may change without notice"
            )
        if any(isinstance(column, int) and column < 0 for column in named):
            raise ValueError("columns are counted from 0; negative numbers are not supported")
        if len({*self.columns}) < len(self.columns):
            raise ValueError(f"`columns` {self.columns} names a column twice; a row has different ones")
        if len({type(column) for column in named}) > 1:
            raise ValueError("give all columns as names, or all as numbers")
        if self.languages and self.columns and not len(self.languages) == len(self.columns) == 2:
            raise ValueError(
                f"`languages` {self.languages} are of two `columns`, a text and its translation; name both"
            )
        if (self.score_column is None) != (self.min_score is None):
            raise ValueError("`score_column` and `min_score` go together")
        return self

    @property
    def title(self) -> str:
        return self.name or "-".join(self.languages)


SOURCE = {"name", "files", "dataset", "revision", "config", "split"}
OF_TEXTS = {"column", "unit", "paragraphs", "passages", "documentation_texts"}
OF_DOCUMENTS = {"scores", "negatives"}
OF_LABELS = {"dev", "dev_rows", "test"}
QUALITY = {"score_column", "min_score"}
READ_OF_LABELLED = {*SOURCE, *OF_LABELS, "columns", "label"}
READ_OF_MADE = {"queries", "negatives", "scores"}


class Rows(Table):
    """Rows of one text, or with `columns` of several: translations, queries with documents, labelled
    texts."""

    tables: list[Table] = Field(
        [],
        description="Instead of `files`: several tables, each with `columns` of its own, such as one for each"
        " pair of languages.",
    )
    queries: Queries | None = Field(
        None,
        description="Instead of `files`: queries made from the recipe's own rows. `{}`: with the defaults.",
    )
    column: str | Annotated[list[str], Field(min_length=1)] | None = Field(
        None,
        description="Of rows of one text: its column in tables. `title,body` joins two columns into one text."
        " In a list, each column has texts of its own, and a file needs only one of them. "
        "Default: text; in a table without it, all columns with words.",
    )
    unit: Literal["line", "paragraph", "auto"] = Field(
        "line",
        description="What one text of a .txt file is. line: each line. paragraph: the lines up to a blank "
        "one, joined. auto: paragraphs in files whose lines are wrapped, lines in all others.",
    )
    scores: Scores = Field(
        [],
        description="What a ranking should match: columns of scores, one for each document column; or the "
        "mean score of several models and BM25. Default: the teacher's cosines.",
    )
    negatives: Negatives | None = Field(
        None, description="Add documents that do not answer the query. `{}`: with the defaults."
    )
    label: str | None = Field(
        None,
        description="The column of labels. Numbers are read as text. If a data set of the hub names its "
        "classes, these names are the labels.",
    )
    dev: Location | None = Field(
        None, description="Labelled rows that select the weights: a file, or a split of the data set."
    )
    dev_rows: int | None = Field(
        None,
        ge=2,
        description="Instead of `dev`: this many rows are set aside, by seed, stratified by label.",
    )
    test: Location | None = Field(
        None,
        description="Labelled rows to evaluate on once, at the end, and by `bench --suite task`. Leave it out"
        " for GLUE, whose test labels are hidden.",
    )
    exclude: list[Location] = Field(
        [],
        description="Globs of files with texts that must not be trained on, such as test sets. All their "
        "columns are read. Those of the recipe's `rows` also count for the rows of its stages.",
    )
    held_out: int = Field(
        0,
        ge=0,
        description="This many texts of the first column are set aside, with the rest of their rows. They are"
        " never trained on; they measure how well the student agrees with the teacher.",
    )
    seed: int | None = Field(
        None,
        ge=0,
        description="Seed that selects the held-out texts. Default: the recipe's seed. "
        "A fixed value lets recipes with different seeds share teacher embeddings.",
    )
    limit: int | None = Field(None, ge=1, description="At most this many rows in total, sampled evenly.")
    limits: dict[str, Annotated[int, Field(ge=1)]] = Field(
        {}, description="The limit of a single file, by file name, instead of `limit_per_file`."
    )
    min_words: int = Field(
        1,
        ge=1,
        description="Rows with a text of fewer words are left out. Chinese has no spaces: keep 1.",
    )
    max_words: int | None = Field(None, ge=1, description="Rows with a text of more words are left out.")
    max_chars: int | None = Field(
        None,
        ge=1,
        description="Rows with a text of more characters are left out. Default: 1000 for translations; the "
        "paper on multi-stage distillation uses 250.",
    )
    paragraphs: Paragraphs | None = Field(
        None,
        description="Also train on paragraphs joined from consecutive lines; a student that has only seen "
        "sentences embeds documents badly.",
    )
    passages: Passages | None = Field(
        None,
        description="Also train on passages of the texts: sentences and runs of them. Those of held-out texts"
        " are held out too. `{}`: with the defaults.",
    )
    documentation_texts: int = Field(
        0,
        ge=0,
        description="Also train on this many sentences of Python's documentation, which come with the "
        "package, so that a finished student forgets less of other texts. None of them is held "
        "out.",
    )
    licences: dict[str, str] = Field(
        {}, description="The licence of the texts, by file name or data set. The model card lists them."
    )

    @property
    def parts(self) -> list[Table]:
        """The tables with columns, in the recipe's order; of rows of one text, these themselves."""
        return [*self.tables] or [self]

    @property
    def text_columns(self) -> int:
        """How many text columns the tables have."""
        return 2 if self.queries is not None else len(self.parts[0].columns) or 1

    def of_split(self, name: Literal["dev", "test"]) -> Rows:
        """The labelled rows of another split, in place of those to train on."""
        split = getattr(self, name)
        source = {"files": [split]} if self.dataset is None else {"split": split}
        return self.model_copy(update=source)

    @property
    def width(self) -> int:
        """How many texts a row has, with the negatives that are added."""
        return self.text_columns + (self.negatives.count if self.negatives is not None else 0)

    @property
    def translated(self) -> bool:
        """Whether the texts of a row are translations of each other."""
        return bool(self.languages_of_tables)

    @property
    def score_columns(self) -> list[str]:
        """The columns of scores."""
        return [] if isinstance(self.scores, JointScores) else self.scores

    @property
    def ranked(self) -> bool:
        """Whether a row is a query with documents."""
        return self.text_columns > 1 and not self.translated and self.label is None

    @property
    def languages_of_tables(self) -> list[str]:
        """Every language of translations, in the recipe's order."""
        translations = (part.languages for part in self.parts if part.columns)
        return list(dict.fromkeys(chain.from_iterable(translations)))

    @property
    def patterns(self) -> list[tuple[list[str], str]]:
        """(globs of files that are read, their key in this section)."""
        numbered = enumerate(self.tables)
        patterns = [(self.files, "files"), *((part.files, f"tables[{at}].files") for at, part in numbered)]
        return [(files, key) for files, key in patterns if files and DOCUMENTATION not in files]

    @model_validator(mode="after")
    def _whole(self) -> Rows:
        sources = [bool(self.files), self.dataset is not None, bool(self.tables), self.queries is not None]
        if sum(sources) != 1:
            raise ValueError("give one of `files`, `dataset`, `tables` and `queries`")
        if self.dataset is not None and isinstance(self.column, list):
            raise ValueError("`column` of a `dataset` is one; name one")
        if DOCUMENTATION in self.files and len(self.files) > 1:
            raise ValueError(f"{DOCUMENTATION} stands alone; beside other files add `documentation_texts`")
        for number, table in enumerate(self.tables):
            if not (table.files or table.dataset):
                raise ValueError(f"`tables`[{number}] has neither `files` nor a `dataset`")
            if len(table.columns) < 2:
                raise ValueError(f"`tables`[{number}] needs two `columns` or more")
        if len({(len(table.columns), bool(table.languages)) for table in self.tables}) > 1:
            raise ValueError("`tables` differ: give all as many `columns`, and all `languages` or none")
        self._fields_fit()
        return self

    def _fields_fit(self) -> None:
        """Raise ValueError for a key that such rows do not read."""
        everything = set(type(self).model_fields)
        if self.label is not None:
            self._labelled_fits()
            self._refuse(everything - READ_OF_LABELLED, "is not read of labelled rows; leave it out")
        elif self.queries is not None:
            self._refuse(everything - READ_OF_MADE, "is not read of rows with `queries`; leave it out")
        elif self.text_columns > 1:
            self._refuse(OF_TEXTS, "is of rows of one text; leave it out beside `columns`")
        elif self.columns:
            raise ValueError(
                "`columns` are two or more, or have a `label`; name one column of texts `column`"
            )
        else:
            self._refuse(QUALITY, "is of rows with `columns`; leave it out")
        if not self.ranked:
            self._refuse(OF_DOCUMENTS, "is of queries with documents; name their `columns`")
        if self.label is None:
            self._refuse(OF_LABELS, "is of labelled rows; name their `label`")
        if self.tables:
            self._refuse({"columns", "languages", *QUALITY}, "is of each of the `tables`; move it there")
        if isinstance(self.scores, JointScores):
            if self.width < 3:
                raise ValueError("`scores` compare the documents of a row, which has one; add `negatives`")
        elif self.queries is not None:
            self._refuse({"scores"}, "of made `queries` are no columns; give `teachers` or `bm25`")
        elif self.scores and len(self.scores) != self.text_columns - 1:
            raise ValueError(
                f"`scores` names {len(self.scores)}, and `columns` {self.text_columns - 1} of documents; "
                "give each document its score"
            )
        if self.score_columns and self.negatives is not None:
            raise ValueError("added `negatives` have no `scores`; leave one out")

    def _refuse(self, keys: set[str], fact: str) -> None:
        for key in sorted(keys):
            if getattr(self, key) != type(self).model_fields[key].get_default():
                raise ValueError(f"`{key}` {fact}")

    def _labelled_fits(self) -> None:
        if not 1 <= len(self.columns) <= 2:
            raise ValueError("a `label` is of one of the `columns` or of two; name them")
        if (self.dev is None) == (self.dev_rows is None):
            raise ValueError("give either `dev` or `dev_rows`: one of them must select the weights")
        if self.dev is not None and self.dev == self.test:
            raise ValueError(f"`dev` and `test` are both {self.dev}; give one of them other rows")


def row_sources(stages: list[Json]) -> list[Json]:
    """Each file or data set that a stage reads as rows of its own, as records list sources: `name` and
    `licence`; the number of rows is not recorded.

    stages: of a dumped recipe.
    """
    sources = []
    for stage in stages:
        rows = stage.get("rows")
        if rows and not rows.get("queries") and not rows.get("label"):
            tables = rows.get("tables") or [rows]
            files = [Path(file).name for table in tables for file in table.get("files") or ()]
            files += [table["dataset"] for table in tables if table.get("dataset")]
            licences = rows.get("licences") or {}
            sources += [
                {"name": f"{file} (stage {stage['name']})", "licence": licences.get(file)} for file in files
            ]
    return sources
