"""Where texts and their vectors come from: the teacher, and corpora of texts or of pairs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from edgedistill.recipe.section import Part, Pooling, by_kind


class Teacher(Part):
    """A sentence encoder, and how its vectors are read; or, in place of the encoder, a file of its vectors."""

    model: str | None = Field(None, description="packaged:all-MiniLM-L6-v2, a folder, or a hub id (which then needs `revision`)")
    vectors: str | None = Field(
        None, description="in place of `model`: a .parquet of texts and vectors, or an .npy; relative: under --data"
    )
    texts: str | None = Field(
        None, description="of an .npy: the file of its texts, a text a row, in its order; default: the same name, .txt"
    )
    text_column: str = Field("text", description="of the file of vectors, or of its texts")
    vector_column: str = Field("vector", description="of a .parquet of vectors")
    revision: str | None = Field(None, description="commit, tag or branch of a hub id")
    pooling: Pooling | None = Field(None, description="only for a plain AutoModel; a sentence-transformers model brings its own")
    prompt: str = Field("", description="text put before every text")
    prompt_name: str | None = Field(None, description="the name of one of the model's own prompts")
    max_tokens: int = Field(128, ge=3, le=8192, description="longer texts are cut here")
    dtype: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto: bf16 where the processor computes in it")
    trust_remote_code: bool = Field(False, description="run Python that comes with the model")

    @model_validator(mode="after")
    def _one_of_two(self) -> Teacher:
        if (self.model is None) == (self.vectors is None):
            raise ValueError("give `model`, or a file of `vectors`; one of the two")
        if self.vectors is not None and (self.prompt or self.prompt_name or self.pooling):
            raise ValueError("`pooling` and prompts tell how a model is read; `vectors` are read as they are")
        return self

    @property
    def name(self) -> str:
        """What the record calls it: the model, at its revision, or the file of its vectors."""
        return self.vectors or (f"{self.model}@{self.revision}" if self.revision is not None else str(self.model))


HoldSeed = Annotated[
    int | None,
    Field(ge=0, description="draws what is held out; default: the recipe's. One number lets recipes of several seeds share vectors"),
]


class Paragraphs(Part):
    """Texts as long as paragraphs, made of lines that follow each other in a source; the teacher reads them like any other."""

    texts: int = Field(ge=1, description="how many, beside the lines themselves; they begin at lines spread evenly over those")
    words: tuple[int, int] = Field(
        (35, 100), strict=False, description="a number is drawn between these two, lines are added until it is reached"
    )

    @model_validator(mode="after")
    def _ascending(self) -> Paragraphs:
        if not 1 <= self.words[0] <= self.words[1]:
            raise ValueError(f"`words` {list(self.words)} must ascend from 1 or more")
        return self


Joined = Annotated[
    Paragraphs | None, Field(description="add texts of neighbouring lines; sentences alone teach no student to read documents")
]


class Hub(Part):
    """A hub data set, at a revision."""

    kind: Literal["hub"]
    dataset: str
    revision: str
    config: str | None = None
    split: str = "train"
    column: str = "text"
    limit: int | None = Field(None, ge=1, description="at most this many texts, drawn evenly")
    min_words: int = Field(1, ge=1)
    max_words: int | None = Field(None, ge=1)
    held_out: int = Field(0, ge=0, description="texts set aside: never trained on, used to compare student and teacher")
    paragraphs: Joined = None
    seed: HoldSeed = None


class Files(Part):
    """Text files: .txt (a text a line), .tsv, .csv, .jsonl, .parquet (a text a row), each also .gz."""

    kind: Literal["files"] = "files"
    texts: list[str] = Field(min_length=1, description="paths or globs; relative ones lie under --data")
    column: str = Field("text", description="the column of .tsv, .csv, .jsonl and .parquet files")
    exclude: list[str] = Field([], description="globs of files (a text in any column) whose texts must not be trained on: leaks")
    limit_per_file: int | None = Field(None, ge=1, description="at most this many texts of one file, drawn evenly")
    limits: dict[str, Annotated[int, Field(ge=1)]] = Field({}, description="of files by name, in place of `limit_per_file`")
    limit: int | None = Field(None, ge=1, description="at most this many texts in all, drawn evenly")
    min_words: int = Field(1, ge=1)
    max_words: int | None = Field(None, ge=1)
    held_out: int = Field(0, ge=0, description="texts set aside: never trained on, used to compare student and teacher")
    paragraphs: Joined = None
    seed: HoldSeed = None
    licences: dict[str, str] = Field({}, description="file name: its texts' licence, for the card of what is trained on them")


class Prose(Part):
    """English prose that is on every machine with this package: documentation of Python and of installed packages."""

    kind: Literal["prose"]
    packages: list[str] = Field(["numpy", "scipy", "torch"], description="documented beside the standard library, where installed")
    limit: int | None = Field(None, ge=1)
    min_words: int = Field(4, ge=1)
    max_words: int | None = Field(64, ge=1)
    held_out: int = Field(0, ge=0)
    paragraphs: Joined = None
    seed: HoldSeed = None


class Pairs(Part):
    """Texts and their translations: tables (.tsv, .csv, .jsonl, .parquet, each also .gz), or in their place a hub data set."""

    name: str | None = Field(None, description="what a stage's `pairs` call these; default: the two languages, such as en-de")
    files: list[str] = Field([], description="paths or globs; relative ones lie under --data")
    dataset: str | None = Field(None, description="in place of `files`: a hub id, which needs `revision`")
    revision: str | None = Field(None, description="for a hub id")
    config: str | None = Field(None, description="for a hub id, such as en-de")
    split: str = Field("train", description="for a hub id")
    columns: tuple[str | int, str | int] = Field(
        strict=False,
        description="of the text and of its translation: names, numbers from 0 where a table has no header, or translation.de on the hub",
    )
    languages: tuple[str, str] | None = Field(None, strict=False, description="of the two columns; default: the columns' names")
    score: str | int | None = Field(None, description="the column of a score, such as the margin of WikiMatrix")
    least: float | None = Field(None, description="pairs of a lower score are left out")
    limit: int | None = Field(None, ge=1, description="at most this many pairs of each file, drawn evenly; default: the corpus' own")

    @model_validator(mode="after")
    def _whole(self) -> Pairs:
        if (self.dataset is None) == (not self.files):
            raise ValueError("give `files`, or a `dataset`; one of the two")
        if self.dataset is not None and self.revision is None:
            raise ValueError(f"the hub id {self.dataset!r} needs a `revision`, or its pairs may change unseen")
        if any(isinstance(column, int) and column < 0 for column in (*self.columns, self.score)):
            raise ValueError("columns are counted from 0; the last one has a number of its own")
        if self.columns[0] == self.columns[1]:
            raise ValueError(f"a text and its translation are two columns, both are {self.columns[0]!r}")
        if self.languages is None and any(isinstance(column, int) for column in self.columns):
            raise ValueError(f"columns {list(self.columns)} do not name their `languages`; give those too, such as [en, de]")
        if (self.score is None) != (self.least is None):
            raise ValueError("`score` and `least` go together: the column, and the lowest score that is read")
        if self.score is not None and isinstance(self.score, int) != isinstance(self.columns[0], int):
            raise ValueError("columns are all names, or all numbers")
        if isinstance(self.columns[0], int) != isinstance(self.columns[1], int):
            raise ValueError("columns are all names, or all numbers")
        return self

    @property
    def of_columns(self) -> tuple[str, str]:
        """The language of each column."""
        return self.languages or (str(self.columns[0]), str(self.columns[1]))

    @property
    def title(self) -> str:
        return self.name or "-".join(self.of_columns)


class Parallel(Part):
    """Texts and their translations. The first side is the teacher's language."""

    kind: Literal["parallel"]
    pairs: list[Pairs] = Field(min_length=1)
    exclude: list[str] = Field(
        [], description="globs of files (a text in any column); pairs with one of those texts on either side are left out"
    )
    limit_per_file: int | None = Field(None, ge=1, description="at most this many pairs of one file, drawn evenly")
    limit: int | None = Field(None, ge=1, description="at most this many pairs in all, drawn evenly")
    min_words: int = Field(1, ge=1, description="of either side; Chinese has no spaces")
    max_chars: int = Field(1000, ge=1, description="of either side; the paper's: 250")
    held_out: int = Field(0, ge=0, description="texts of the first side set aside with all their translations: never trained on")
    seed: HoldSeed = None


Corpus = Annotated[
    Annotated[Files, Tag("files")] | Annotated[Hub, Tag("hub")] | Annotated[Prose, Tag("prose")] | Annotated[Parallel, Tag("parallel")],
    by_kind("files"),
]
