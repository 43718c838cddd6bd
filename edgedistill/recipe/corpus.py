"""Where training texts come from: files, hub data sets, Python's documentation, or texts with their
translations."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, Tag, model_validator

from edgedistill.recipe.section import HubData, Location, Revision, Section, by_kind


class Paragraphs(Section):
    """Paragraph-length texts made by joining consecutive lines of a source; the teacher embeds them like any
    other text."""

    texts: int = Field(
        ge=1,
        description="How many to add to the single lines. Their first lines are spread evenly over the "
        "corpus.",
    )
    words: tuple[int, int] = Field(
        (35, 100),
        strict=False,
        description="Length range: a target between these two is drawn, then lines are added until it is "
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


MinWords = Annotated[
    int,
    Field(ge=1, description="Rows with fewer words are left out. Chinese has no spaces: keep 1."),
]
MaxWords = Annotated[int | None, Field(ge=1, description="Texts with more words are left out.")]
LICENCES = "File name: the licence of its texts. The model card lists them."


class _Sampled(Section):
    """How much of a corpus is read, and what is set aside. A row is a text, or a text and its translation."""

    kind: str
    translated: ClassVar[bool] = False  # whether the texts of a row are translations of each other
    limit: int | None = Field(None, ge=1, description="At most this many rows in total, sampled evenly.")
    min_words: MinWords = 1
    held_out: int = Field(
        0,
        ge=0,
        description="Texts set aside, with all their translations: never trained on, used to measure how "
        "well the student agrees with the teacher.",
    )
    seed: int | None = Field(
        None,
        ge=0,
        description="Seed that selects the held-out texts. Default: the recipe's seed. "
        "A fixed value lets recipes with different seeds share teacher embeddings.",
    )

    @property
    def patterns(self) -> list[tuple[list[str], str]]:
        """(globs of files that are read, their key in this section)."""
        return []

    @property
    def languages(self) -> list[str]:
        """Every language of pairs of translations, in the recipe's order."""
        return []


class Texts(_Sampled):
    """What all corpora of single texts share."""

    max_words: MaxWords = None
    paragraphs: Paragraphs | None = Field(
        None,
        description="Also train on paragraphs joined from consecutive lines; a student that has only seen "
        "sentences embeds documents badly.",
    )
    passages: Passages | None = Field(
        None,
        description="Also train on passages of the texts: sentences and runs of them; of held-out texts, "
        "held out too. {}: the defaults.",
    )
    documentation_texts: int = Field(
        0,
        ge=0,
        description="Also train on so many sentences of Python's documentation, which come with this "
        "package, so that a finished student keeps what it knows of other texts. None of them are held out.",
    )
    exclude: list[Location] = Field(
        [],
        description="Globs of files with texts that must not be trained on, such as test sets; every column "
        "of theirs is read.",
    )

    @property
    def limits_per_source(self) -> tuple[int | None, dict[str, int]]:
        """(at most so many texts of each file, those that have a limit of their own)."""
        return None, {}


class Hub(HubData, Texts):
    """A data set on the Hugging Face hub, at a fixed revision."""

    kind: Literal["hub"]
    split: str = Field("train", description="The split that is read.")
    column: str = Field("text", description="The column of texts.")


class Files(Texts):
    """Text files: .txt (one text per line), .md, .rst, .html and .pdf (one per paragraph, heading, list item,
    table row or code block), .tsv, .csv, .jsonl, .json or .parquet (one per row), each also as .gz. What a
    folder or a glob stands for and cannot be read is skipped and logged.
    """

    kind: Literal["files"] = "files"
    texts: list[Location] = Field(
        min_length=1, description="Paths or globs. Relative ones start from --data."
    )
    column: str | Annotated[list[str], Field(min_length=1)] | None = Field(
        None,
        description="The column of texts in .tsv, .csv, .jsonl and .parquet files, or several that are one "
        "text, as in title,body; of a list, each holds texts of its own, and a file has one of them or more. "
        "By default text or, in a table without it, all columns with words.",
    )
    unit: Literal["line", "paragraph", "auto"] = Field(
        "line",
        description="What a text of a .txt file is: a line; or a paragraph, the lines up to a blank one "
        "joined. auto: a paragraph in files "
        "whose lines are wrapped, a line in all others.",
    )
    limit_per_file: int | None = Field(
        None, ge=1, description="At most this many texts per file, sampled evenly."
    )
    limits: dict[str, Annotated[int, Field(ge=1)]] = Field(
        {}, description="File name: its own limit, instead of `limit_per_file`."
    )
    licences: dict[str, str] = Field({}, description=LICENCES)

    @property
    def limits_per_source(self) -> tuple[int | None, dict[str, int]]:
        return self.limit_per_file, self.limits

    @property
    def patterns(self) -> list[tuple[list[str], str]]:
        return [(self.texts, "texts")]


class Documentation(Texts):
    """64,000 English sentences of Python's documentation, a file that comes with this package: the same texts
    on every machine."""

    kind: Literal["documentation"]
    min_words: MinWords = 4
    max_words: MaxWords = 64


class Pairs(Section):
    """Texts and their translations: tables (.tsv, .csv, .jsonl, .parquet, each also as .gz) or a hub data
    set."""

    name: str | None = Field(
        None, description="What a stage's `pairs` call these. Default: the two languages, such as en-de."
    )
    files: list[Location] = Field([], description="Paths or globs. Relative ones start from --data.")
    dataset: str | None = Field(None, description="Instead of `files`: a hub id (needs `revision`).")
    revision: Revision = None
    config: str | None = Field(None, description="Configuration of a hub data set, such as en-de.")
    split: str = Field("train", description="Split of a hub data set.")
    columns: tuple[str | int, str | int] = Field(
        strict=False,
        description="The columns of the source text and of its translation: names, 0-based numbers where a "
        "table has no header, "
        "or nested names such as translation.de on the hub.",
    )
    languages: tuple[str, str] | None = Field(
        None, strict=False, description="The languages of the two columns. Default: the columns' names."
    )
    score_column: str | int | None = Field(
        None, description="The column of a quality score, such as WikiMatrix's margin."
    )
    min_score: float | None = Field(None, description="Pairs with a lower score are left out.")
    limit: int | None = Field(
        None,
        ge=1,
        description="At most this many pairs per file, sampled evenly. Default: the corpus' limit_per_file.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Pairs:
        if (self.dataset is None) == (not self.files):
            raise ValueError("give either `files` or a `dataset`")
        if self.dataset is not None and self.revision is None:
            raise ValueError(
                f"the hub id {self.dataset!r} needs a `revision`, or its pairs may change without notice"
            )
        if any(isinstance(column, int) and column < 0 for column in (*self.columns, self.score_column)):
            raise ValueError("columns are counted from 0; negative numbers are not supported")
        if self.columns[0] == self.columns[1]:
            raise ValueError(
                f"a text and its translation need two different columns, both are {self.columns[0]!r}"
            )
        if self.languages is None and any(isinstance(column, int) for column in self.columns):
            raise ValueError(
                f"numbered columns {list(self.columns)} do not name their `languages`; add them, such as "
                "[en, de]"
            )
        if (self.score_column is None) != (self.min_score is None):
            raise ValueError("`score_column` and `min_score` go together")
        mixed = isinstance(self.columns[0], int) != isinstance(self.columns[1], int)
        if mixed or (
            self.score_column is not None
            and isinstance(self.score_column, int) != isinstance(self.columns[0], int)
        ):
            raise ValueError("give all columns as names, or all as numbers")
        return self

    @property
    def of_columns(self) -> tuple[str, str]:
        """The language of each column."""
        return self.languages or (str(self.columns[0]), str(self.columns[1]))

    @property
    def title(self) -> str:
        return self.name or "-".join(self.of_columns)


class Parallel(_Sampled):
    """Texts and their translations, for cross-lingual distillation. The source side is in the teacher's
    language."""

    kind: Literal["parallel"]
    translated = True
    pairs: list[Pairs] = Field(min_length=1, description="One entry per language pair or source.")
    exclude: list[Location] = Field(
        [],
        description="Globs of files; pairs with one of their texts on either side are left out. Every column "
        "is read.",
    )
    limit_per_file: int | None = Field(
        None, ge=1, description="At most this many pairs per file, sampled evenly."
    )
    max_chars: int = Field(
        1000, ge=1, description="Pairs with more characters on either side are left out. The paper uses 250."
    )
    licences: dict[str, str] = Field({}, description=LICENCES)

    @property
    def patterns(self) -> list[tuple[list[str], str]]:
        numbered = enumerate(self.pairs)
        return [(part.files, f"pairs[{number}].files") for number, part in numbered if part.files]

    @property
    def languages(self) -> list[str]:
        return list(dict.fromkeys(language for part in self.pairs for language in part.of_columns))


Corpus = Annotated[
    Annotated[Files, Tag("files")]
    | Annotated[Hub, Tag("hub")]
    | Annotated[Documentation, Tag("documentation")]
    | Annotated[Parallel, Tag("parallel")],
    by_kind("files"),
]
