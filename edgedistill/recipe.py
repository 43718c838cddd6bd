"""Recipe and its parts: the whole vocabulary of an experiment. Frozen data, extra keys forbidden, all problems at once."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from edgedistill import files
from edgedistill.errors import UserError, unknown

Pooling = Literal["mean", "cls", "cls_pooler", "max", "last"]
Precision = Literal["fp32", "w8", "int8"]
Head = Literal["none", "linear", "linear_tanh"]
Words = Annotated[str, Field(description="teacher, assistant, packaged:…, a folder (a run's too), or a hub id")]
Pieces = Annotated[int | None, Field(ge=200, description="learn a WordPiece vocabulary of this size from the corpus instead")]
Width = Annotated[int | None, Field(ge=1, description="output of the head; default: the teacher's")]


class Part(BaseModel):
    """A frozen piece of a recipe; keys it does not know are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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


class Files(Part):
    """Text files: .txt (a text a line), .tsv, .csv, .jsonl, .parquet (a text a row), each also .gz."""

    kind: Literal["files"] = "files"
    texts: list[str] = Field(min_length=1, description="paths or globs; relative ones lie under --data")
    column: str = Field("text", description="the column of .tsv, .csv, .jsonl and .parquet files")
    exclude: list[str] = Field([], description="globs of files (a text in any column) whose texts must not be trained on: leaks")
    limit_per_file: int | None = Field(None, ge=1, description="at most this many texts of one file, drawn evenly")
    limit: int | None = Field(None, ge=1, description="at most this many texts in all, drawn evenly")
    min_words: int = Field(1, ge=1)
    max_words: int | None = Field(None, ge=1)
    held_out: int = Field(0, ge=0, description="texts set aside: never trained on, used to compare student and teacher")


class Prose(Part):
    """English prose that is on every machine with this package: documentation of Python and of installed packages."""

    kind: Literal["prose"]
    packages: list[str] = Field(["numpy", "scipy", "torch"], description="documented beside the standard library, where installed")
    limit: int | None = Field(None, ge=1)
    min_words: int = Field(4, ge=1)
    max_words: int | None = Field(64, ge=1)
    held_out: int = Field(0, ge=0)


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


def _kind(default: str) -> Any:
    return Discriminator(lambda v: v.get("kind", default) if isinstance(v, dict) else getattr(v, "kind", default))


Corpus = Annotated[
    Annotated[Files, Tag("files")] | Annotated[Hub, Tag("hub")] | Annotated[Prose, Tag("prose")] | Annotated[Parallel, Tag("parallel")],
    _kind("files"),
]


class Embeddings(Part):
    """Where the word table starts."""

    source: Literal["teacher", "random", "glove"] = Field("teacher", alias="from")
    of: Literal["words", "outputs"] = Field("words", description="the teacher's word table, or its vector of every piece alone")
    reduce: Literal["pca"] = Field("pca", description="how the teacher's vectors come to the student's width")
    file: str | None = Field(None, description="glove: a text file, a word and its numbers a line; relative ones lie under --data")
    weigh: Literal["none", "counts"] = Field(
        "none", description="counts: a reduction or factorisation of the table heeds a piece by its count in the corpus, plus 1"
    )
    power: float = Field(0.75, gt=0, le=1, description="of the counts that weigh; 1: as counted, less: frequent pieces rule less")

    @model_validator(mode="after")
    def _file_with_glove(self) -> Embeddings:
        if (self.source == "glove") != (self.file is not None):
            raise ValueError("`file` goes with `from: glove`, and only with it")
        if self.of == "outputs" and self.source != "teacher":
            raise ValueError("`of: outputs` are the teacher's; set `from: teacher`")
        if self.weigh != "none" and self.source != "teacher":
            raise ValueError("`weigh` is for tables that are reduced, those of the teacher; set `from: teacher`")
        return self

    @property
    def plain(self) -> bool:
        """Whether the table comes as it does by default, however its reduction is weighed."""
        return self == Embeddings(weigh=self.weigh, power=self.power)


class Trim(Part):
    """Keep the tokenizer's pieces that the training texts use, and what those need; the word table keeps their rows."""

    min_count: int = Field(1, ge=1, description="keep pieces used at least this often")


class Unigram(Part):
    """A Unigram tokenizer as XLM-R's, learned from the corpus: NFKC, marked words, <s> … </s>; the same texts give the same pieces."""

    pieces: int = Field(32_000, ge=200, description="at most this many, special ones and single characters included")
    lowercase: bool = Field(False, description="as an uncased teacher reads")
    sample: int = Field(1_000_000, ge=1, description="texts it is learned from at most, drawn evenly")


Learned = Annotated[Unigram | None, Field(description="learn a Unigram tokenizer from the corpus instead of taking `tokenizer`")]
Trimmed = Annotated[Trim | None, Field(description="keep only the tokenizer's pieces that the corpus uses; {}: all it uses")]


class Bert(Part):
    """A BERT encoder: from random, from a hub id or folder, or from chosen layers of the teacher."""

    kind: Literal["bert"]
    weights: str = Field("random", description="random, teacher, assistant, a folder, or a hub id")
    revision: str | None = Field(None, description="for a hub id")
    layers: int | list[int] | None = Field(None, description="how many, or which of the teacher's, counted from 0")
    width: int | None = Field(None, ge=4, description="beside `weights` other than random: below theirs, they are projected to it")
    heads: int | None = Field(
        None, ge=1, description="default: width / 64, at least 2; of projected weights: of their size where that divides"
    )
    intermediate: int | None = Field(None, ge=4, description="default: 4 × width; projected weights keep the neurons that say most")
    positions: int = Field(512, ge=8)
    bottleneck: int | None = Field(None, ge=1, description="factorise the word table: pieces × bottleneck → width, SVD start")
    embeddings: Embeddings = Embeddings()
    tokenizer: Words = "teacher"
    vocabulary: Pieces = None
    unigram: Learned = None
    trim: Trimmed = None
    pooling: Pooling = "mean"
    head: Head = Field("none", description="pooled vector → `dims`")
    head_bias: bool = True
    head_kept: bool = Field(True, description="false: the head serves training only and is dropped at export")
    dims: Width = None
    dropout: float = Field(0.0, ge=0, lt=1)
    max_tokens: int = Field(128, ge=3, le=8192, description="longer texts are cut here, also on the device")

    @model_validator(mode="after")
    def _whole(self) -> Bert:
        if self.weights == "random" and (not isinstance(self.layers, int) or self.width is None):
            raise ValueError("random weights need `layers` (a count) and `width`")
        if isinstance(self.layers, list) and self.weights != "teacher":
            raise ValueError("a list of layers goes with `weights: teacher`; otherwise give their count")
        given = [name for name in ("heads", "intermediate") if getattr(self, name) is not None]
        if self.weights != "random" and given and self.width is None:
            raise ValueError(f"`{given[0]}` comes with the weights; leave it out, or give a smaller `width`")
        if self.reduced and self.pooling == "cls_pooler":
            raise ValueError(
                "a pooler's tanh is of the weights' own numbers, not of projected ones; choose another pooling, or leave `width` out"
            )
        if self.weights != "random" and not self.embeddings.plain:
            raise ValueError("`embeddings` come with the weights; leave them out")
        if self.weights != "random" and self.bottleneck is None:
            _nothing_to_weigh(self.embeddings)
        if self.width and self.heads and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        _dims_of_a_head(self.head, self.dims)
        return self

    @property
    def reduced(self) -> bool:
        """Whether weights are projected to a smaller width."""
        return self.weights != "random" and self.width is not None

    @model_validator(mode="after")
    def _one_vocabulary(self) -> Bert:
        _one_of(self.trim, self.vocabulary, self.unigram)
        return self


def _dims_of_a_head(head: str, dims: int | None) -> None:
    if head == "none" and dims is not None:
        raise ValueError("`dims` is the output of a head; choose `head: linear` or leave it out")


def _nothing_to_weigh(embeddings: Embeddings) -> None:
    if embeddings.weigh != "none":
        raise ValueError("`embeddings.weigh` is for a table that is reduced, this one is taken whole; set `bottleneck`, or leave it out")


def _one_of(trim: Trim | None, vocabulary: int | None, unigram: Unigram | None) -> None:
    if trim is not None and vocabulary is not None:
        raise ValueError("`trim` keeps the tokenizer's pieces, `vocabulary` learns others; choose one")
    if unigram is not None and (trim is not None or vocabulary is not None):
        raise ValueError(f"`unigram` learns a tokenizer of its own; leave `{'trim' if trim else 'vocabulary'}` out")


class BiLSTM(Part):
    """A bidirectional LSTM over word vectors, a read-out, and a head."""

    kind: Literal["bilstm"]
    layers: int = Field(1, ge=1, le=8)
    width: int = Field(300, ge=2, description="of the word vectors")
    hidden: int = Field(512, ge=1, description="per direction")
    embeddings: Embeddings = Embeddings()
    tokenizer: Words = "teacher"
    vocabulary: Pieces = None
    unigram: Learned = None
    trim: Trimmed = None
    readout: Literal["last", "max", "mean"] = Field("last", description="last: the final state of either direction")
    head: Head = "linear_tanh"
    head_bias: bool = False
    head_kept: bool = True
    dims: Width = None
    dropout: float = Field(0.0, ge=0, lt=1)
    max_tokens: int = Field(128, ge=3, le=8192)

    @model_validator(mode="after")
    def _one_vocabulary(self) -> BiLSTM:
        _one_of(self.trim, self.vocabulary, self.unigram)
        return self


class Recurrent(Part):
    """A few layers of a BERT or XLM-R, applied again and again, behind a narrow word table (Ding et al. 2022, multi-stage distillation)."""

    kind: Literal["recurrent"]
    weights: str = Field("teacher", description="where the layers come from: teacher, assistant, a folder (a run's too), or a hub id")
    revision: str | None = Field(None, description="for a hub id")
    layers: Annotated[int, Field(ge=1)] | list[int] = Field(3, description="the unit: how many (the first), or which, counted from 0")
    times: int | None = Field(None, ge=1, description="how often the unit is applied; default: as often as gives the source's depth")
    bottleneck: int | None = Field(None, ge=1, description="factorise the word table: pieces × bottleneck → width; default: whole")
    positions: Literal["source", "pad", "zero"] = Field(
        "source", description="counted from behind the tokenizer's padding id (XLM-R), from 0 (BERT), or as the source counts"
    )
    embeddings: Embeddings = Field(Embeddings(), description="from: teacher takes the source's tables, from: random draws all anew")
    tokenizer: Words = "teacher"
    vocabulary: Pieces = None
    unigram: Learned = None
    trim: Trimmed = None
    pooling: Pooling = "mean"
    head: Head = Field("none", description="pooled vector → `dims`")
    head_bias: bool = True
    head_kept: bool = Field(True, description="false: the head serves training only and is dropped at export")
    dims: Width = None
    dropout: float = Field(0.0, ge=0, lt=1)
    max_tokens: int = Field(128, ge=3, le=8192, description="longer texts are cut here, also on the device")

    @model_validator(mode="after")
    def _whole(self) -> Recurrent:
        if isinstance(self.layers, list) and not self.layers:
            raise ValueError("`layers` names none; a unit has at least one")
        if self.embeddings.source == "glove" or self.embeddings.of == "outputs":
            raise ValueError("`embeddings` are the source's or random; set `from: teacher` or `from: random`")
        if self.bottleneck is None:
            _nothing_to_weigh(self.embeddings)
        _dims_of_a_head(self.head, self.dims)
        _one_of(self.trim, self.vocabulary, self.unigram)
        return self


class Static(Part):
    """A vector and a learned weight for each piece; a text is their mean."""

    kind: Literal["static"]
    width: int = Field(256, ge=2, description="of the piece vectors, and of the student's where it has no head")
    embeddings: Embeddings = Field(Embeddings(of="outputs"), description="default: the teacher's vector of every piece alone")
    weights: Literal["sif", "equal"] = Field("sif", description="where a piece's weight starts: a / (a + its share of the corpus), or 1")
    tokenizer: Words = "teacher"
    vocabulary: Pieces = None
    unigram: Learned = None
    trim: Trimmed = None
    head: Head = Field("none", description="mean vector → `dims`")
    head_bias: bool = False
    head_kept: bool = Field(True, description="false: the head serves training only and is dropped at export")
    dims: Width = None
    max_tokens: int = Field(128, ge=3, le=8192, description="longer texts are cut here, also on the device")

    @model_validator(mode="after")
    def _head_with_dims(self) -> Static:
        _dims_of_a_head(self.head, self.dims)
        _one_of(self.trim, self.vocabulary, self.unigram)
        return self


class Itself(Part):
    """The teacher itself, unchanged: the baseline. A recipe with no stages."""

    kind: Literal["teacher"]
    max_tokens: int | None = Field(None, ge=3, le=8192, description="default: the teacher's own limit")
    onto: Bert | BiLSTM | None = Field(None, discriminator="kind", description="with `targets`: the student that ridge, cca, align look at")


Student = Annotated[Bert | BiLSTM | Recurrent | Static | Itself, Field(discriminator="kind")]


class Whole(Part):
    """The teacher's vectors at their own width."""

    kind: Literal["none"] = "none"


class Pca(Part):
    """The directions in which the teacher's vectors vary most."""

    kind: Literal["pca"]
    centre: bool = Field(True, description="take the mean away first, there and later")
    rank: int | None = Field(
        None, ge=1, description="keep this many directions and lead back to the teacher's own numbers, as many as `dims`; default: `dims`"
    )


class Gaussian(Part):
    """A random projection, N(0, 1/dims): nothing is fitted."""

    kind: Literal["gaussian"]
    seed: int = Field(0, ge=0)


class Ridge(Part):
    """The linear map that leads nearest to the untrained student's vectors."""

    kind: Literal["ridge"]
    strength: float = Field(1.0, gt=0, description="λ of ‖T W − S‖² + λ‖W‖²")


class Cca(Part):
    """The teacher's side of the directions that correlate most with the untrained student's vectors."""

    kind: Literal["cca"]
    strength: float = Field(1e-3, gt=0, description="added to the diagonal of both covariances, in units of their mean variance")


Reducer = Annotated[Whole | Pca | Gaussian | Ridge | Cca, Field(discriminator="kind")]
Align = Literal["none", "procrustes", "signed_permutation"]


class Projected(Part):
    """How vectors come to the student's space."""

    reduce: Reducer = Whole()
    dims: int = Field(ge=1, description="numbers of the targets; with `reduce: {kind: none}` the teacher's own width")
    align: Align = Field("none", description="turn them towards the untrained student's vectors; cosines among them stay as they are")

    @property
    def looks(self) -> bool:
        """Whether it is fitted to the untrained student's vectors too."""
        return self.align != "none" or isinstance(self.reduce, Ridge | Cca)


class One(Projected):
    """Targets made of one teacher's vectors."""

    kind: Literal["one"] = "one"
    teacher: Teacher | None = Field(None, description="default: the recipe's")
    unit: bool = Field(True, description="scale the targets to unit length")
    sample: int = Field(20_000, ge=2, description="texts that the reducer and the alignment are fitted on")

    @property
    def width(self) -> int:
        return self.dims


class Block(Projected):
    """A teacher's share of the student's numbers."""

    teacher: Teacher | None = Field(None, description="default: the recipe's")
    weight: float = Field(1.0, gt=0, description="of its cosine among the others; all are scaled to sum to 1")


class Split(Part):
    """Each teacher has numbers of the student's to itself; the cosine is the weighted sum of the blocks' cosines."""

    kind: Literal["split"]
    parts: list[Block] = Field(min_length=2)
    sample: int = Field(20_000, ge=2, description="texts that reducers and alignments are fitted on")

    @property
    def width(self) -> int:
        return sum(part.dims for part in self.parts)

    @property
    def blocks(self) -> list[tuple[int, float]]:
        """(numbers, weight) of each block; the weights sum to 1."""
        total = sum(part.weight for part in self.parts)
        return [(part.dims, part.weight / total) for part in self.parts]


class Joined(Part):
    """A teacher of a concatenation."""

    teacher: Teacher | None = Field(None, description="default: the recipe's")
    weight: float = Field(1.0, gt=0, description="of its cosine in the concatenation's; all are scaled to sum to 1")


class Concat(Projected):
    """The teachers' vectors, one behind the other, as one wide teacher."""

    kind: Literal["concat"]
    parts: list[Joined] = Field(min_length=2)
    unit: bool = Field(True, description="scale the targets to unit length")
    sample: int = Field(20_000, ge=2, description="texts that the reducer and the alignment are fitted on")

    @property
    def width(self) -> int:
        return self.dims


Targets = Annotated[Annotated[One, Tag("one")] | Annotated[Split, Tag("split")] | Annotated[Concat, Tag("concat")], _kind("one")]


class Mse(Part):
    """Mean squared difference over batch and dims (DistilCSE, Eq. of KD)."""

    kind: Literal["mse"]
    unit: bool = Field(False, description="scale both sides to unit length first")


class Cosine(Part):
    """½ (1 − cos(student, teacher)), the loss of SRA (Eq. 1)."""

    kind: Literal["cosine"]


class SoftCos(Part):
    """Squared distance to the unit vector half-way to the teacher's: 2 − √(2 (1 + cos)) (text-level distillation)."""

    kind: Literal["softcos"]
    detach: bool = Field(False, description="no gradient through the half-way vector: twice the gradient, in the same direction")


class Gram(Part):
    """Match the teacher's pairwise cosines (Park et al. 2019); the widths may differ."""

    kind: Literal["gram"]


class Ckd(Part):
    """Find the teacher's vector among the batch's and a queue of earlier ones (DistilCSE, Eq. 5 and 6)."""

    kind: Literal["ckd"]
    queue: int = Field(16_384, ge=0, description="earlier teacher vectors beside the batch; starts empty; the paper's: 65536")
    temperature: float = Field(0.05, gt=0, description="at the start, where it is learned (the reference code starts at 0.37)")
    learned: bool = Field(True, description="false: the temperature stays")


class Congen(Part):
    """Similarities to a queue follow the teacher's, in the text and in another view of it (ConGen, Eq. 1 to 4)."""

    kind: Literal["congen"]
    queue: int = Field(16_384, ge=0, description="starts from training texts, which then leave training; the batch comes beside it")
    temperature: float = Field(0.05, gt=0, description="the student's; the paper's: 0.05 for BERT-Tiny, 0.07 for most")
    teacher_temperature: float = Field(0.05, gt=0)
    alpha: float = Field(0.5, gt=0, le=1, description="weight of the text itself; 1: no second view")


class Seed(Part):
    """Similarities to the teacher's own vector and a queue follow the teacher's (SEED, Fang et al. 2021)."""

    kind: Literal["seed"]
    queue: int = Field(16_384, ge=1, description="starts from random directions")
    temperature: float = Field(0.05, gt=0, description="the student's")
    teacher_temperature: float = Field(0.05, gt=0)


class DualL2(Part):
    """Mean squared difference of unit vectors, teacher against the text and against its other view (ConGen, §4.2)."""

    kind: Literal["dual_l2"]


class Skd(Part):
    """`dual_l2`, and the two views against each other: self-knowledge distillation (ConGen, §4.2)."""

    kind: Literal["skd"]


class Simcse(Part):
    """Find the text's other view among the batch's: SimCSE; on triples, the entailed text beside hard negatives (DistilCSE, Eq. 7)."""

    kind: Literal["simcse"]
    temperature: float = Field(0.05, gt=0)


class EachSide(Part):
    """An objective over either side of a pair, added; with mse, multi-stage distillation's Eq. 2 to 4 and 6."""

    kind: Literal["each_side"]
    objective: Objective

    @model_validator(mode="after")
    def _of_one_text(self) -> EachSide:
        if reads_pairs(self.objective) != {False} or reads_second_view(self.objective):
            raise ValueError("`each_side` puts an objective of one text to either side; it takes none of pairs, nor of second views")
        return self


class Mcl(Part):
    """Across a batch's pairs, the student's cosines follow the teacher's among the first sides (multi-stage distillation, Eq. 5)."""

    kind: Literal["mcl"]


class MclBool(Part):
    """`mcl` with 1 for a text and its own translation and 0 for any other, whatever the teacher says (ablation of §4.5)."""

    kind: Literal["mcl_bool"]


class MclCe(Part):
    """`mcl` as a cross-entropy over the batch, weighed by the teacher's cosines (ablation of §4.5)."""

    kind: Literal["mcl_ce"]
    temperature: float = Field(0.05, gt=0)


class Term(Part):
    weight: float = Field(gt=0)
    objective: Objective


class Sum(Part):
    """A weighted sum of objectives."""

    kind: Literal["sum"]
    terms: list[Term] = Field(min_length=1)


class Matryoshka(Part):
    """An objective over the first d₁ < d₂ < … numbers of the vectors, so that they can be cut there (Kusupati et al. 2022).

    Student and teacher are cut alike: with `targets` by PCA the teacher's first numbers are those that matter most.
    """

    kind: Literal["matryoshka"]
    dims: list[int] = Field(min_length=2, description="ascending; the last is the student's whole width")
    weights: list[float] | None = Field(None, description="one for each of `dims`; default: 1")
    objective: Objective

    @model_validator(mode="after")
    def _ascending(self) -> Matryoshka:
        inner = [self.objective, *(term.objective for term in getattr(self.objective, "terms", []))]
        if any(isinstance(each, Matryoshka) for each in inner):
            raise ValueError("a matryoshka inside a matryoshka; list all `dims` in one")
        if self.dims != sorted(set(self.dims)) or self.dims[0] < 1:
            raise ValueError(f"`dims` {self.dims} must ascend from 1 or more")
        if self.weights is not None and len(self.weights) != len(self.dims):
            raise ValueError(f"{len(self.weights)} `weights` for {len(self.dims)} `dims`; give one for each")
        if self.weights is not None and min(self.weights) <= 0:
            raise ValueError(f"`weights` {self.weights} must all be above 0")
        return self


Objective = Annotated[
    Mse | Cosine | SoftCos | Gram | Ckd | Congen | Seed | DualL2 | Skd | Simcse | EachSide | Mcl | MclBool | MclCe | Sum | Matryoshka,
    Field(discriminator="kind"),
]


def leaves(objective: Objective) -> list[Objective]:
    """The objective's terms, however nested; itself where it has none."""
    if isinstance(objective, Matryoshka | EachSide):
        return leaves(objective.objective)
    return [leaf for term in objective.terms for leaf in leaves(term.objective)] if isinstance(objective, Sum) else [objective]


def reads_second_view(objective: Objective) -> bool:
    """Whether the objective compares a text with another view of it."""
    return any(isinstance(leaf, DualL2 | Skd | Simcse) or (isinstance(leaf, Congen) and leaf.alpha < 1) for leaf in leaves(objective))


def reads_pairs(objective: Objective) -> set[bool]:
    """Whether its terms read a pair's two sides; both answers where some do."""
    if isinstance(objective, Sum):
        return {answer for term in objective.terms for answer in reads_pairs(term.objective)}
    if isinstance(objective, Matryoshka):
        return reads_pairs(objective.objective)
    return {isinstance(objective, EachSide | Mcl | MclBool | MclCe)}


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


class TripleFiles(Part):
    """Tables of triples: .tsv, .csv, .jsonl or .parquet, each also .gz."""

    kind: Literal["files"] = "files"
    files: list[str] = Field(min_length=1, description="paths or globs; relative ones lie under --data; leaks are the corpus' `exclude`")
    columns: tuple[str, str, str] = Field(
        ("anchor", "entailment", "contradiction"), strict=False, description="a text, one that means the same, one that does not"
    )
    limit: int | None = Field(None, ge=1, description="at most this many triples, drawn evenly")


class TripleHub(Part):
    """Triples from a hub data set, at a revision."""

    kind: Literal["hub"]
    dataset: str
    revision: str
    config: str | None = None
    split: str = "train"
    columns: tuple[str, str, str] = Field(
        ("anchor", "positive", "negative"), strict=False, description="a text, one that means the same, one that does not"
    )
    limit: int | None = Field(None, ge=1, description="at most this many triples, drawn evenly")


Triples = Annotated[Annotated[TripleFiles, Tag("files")] | Annotated[TripleHub, Tag("hub")], _kind("files")]


class Match(Part):
    """What the two sides of a pair are to match."""

    of: Literal["teacher", "assistant"] = "teacher"
    at: Literal["output", "embeddings"] = Field(
        "output",
        description="embeddings: the mean of the embedding layers' vectors, the student's against the assistant's; no other layer learns",
    )
    language: Literal["source", "own"] = Field("source", description="both sides the vector of the first, or each side its own")

    @model_validator(mode="after")
    def _of_an_assistant(self) -> Match:
        if self.of == "teacher" and (self.at != "output" or self.language != "source"):
            raise ValueError("`at: embeddings` and `language: own` are of an assistant, which reads all the languages; set `of: assistant`")
        return self


class Stage(Part):
    """One pass of training: an objective, and how it is optimised."""

    kind: Literal["distil"] = "distil"
    name: str
    objective: Objective
    view: View | None = Field(None, description="the second view of every text, for the objectives that read one")
    triples: Triples | None = Field(None, description="train on these instead of the corpus' texts; for simcse")
    match: Match | None = Field(None, description="over pairs: whose vectors; default: the teacher's of the first side, for both")
    pairs: list[str] | None = Field(None, description="train on the parts of `corpus.pairs` with these names; default: on all")
    epochs: float = Field(1.0, gt=0, description="passes over the corpus; fractions are fine")
    steps: int | None = Field(None, ge=1, description="instead of epochs")
    batch: int = Field(256, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    warmup: float = Field(0.05, ge=0, lt=1, description="fraction of the steps")
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    weight_decay: float = Field(0.01, ge=0, description="not on biases, norms and the word table")
    betas: tuple[float, float] = Field((0.9, 0.999), strict=False)
    clip: float | None = Field(1.0, gt=0, description="largest norm of the gradient")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of a moving average of the weights; the average is what is selected")
    max_tokens: int = Field(64, ge=3, description="longer texts are cut here in training")
    longest: int | None = Field(None, ge=3, description="train on the texts of at most this many tokens; default: on all")
    bucket: int = Field(100, ge=1, description="batches are cut from this many batches' worth of shuffled texts, sorted by length; 1: none")
    dtype: Literal["auto", "fp32", "bf16"] = "auto"

    @model_validator(mode="after")
    def _views_are_read(self) -> Stage:
        kinds = sorted({leaf.kind for leaf in leaves(self.objective)})
        if self.triples is not None:
            if kinds != ["simcse"]:
                raise ValueError(f"`triples` have no teacher vectors; simcse alone reads them, not {', '.join(kinds)}")
            if self.view is not None or self.longest is not None:
                raise ValueError(f"`{'view' if self.view else 'longest'}` is of the corpus' texts; leave it out beside `triples`")
        elif self.view is None and reads_second_view(self.objective):
            alone = ", or set alpha: 1" if "congen" in kinds else ", or `triples`" if kinds == ["simcse"] else ""
            raise ValueError(f"{', '.join(kinds)} compares a text with another view of it; give the stage a `view`{alone}")
        elif self.view is not None and not reads_second_view(self.objective):
            raise ValueError(f"{', '.join(kinds)} reads no second view; leave `view` out")
        return self

    @property
    def views(self) -> int:
        """How many texts the student reads for each one a batch counts."""
        return 3 if self.triples is not None else 2 if self.view is not None or reads_pairs(self.objective) == {True} else 1


def _stage_of_pairs(place: str, stage: Stage, pairs: Parallel | None, student: Student, assisted: bool) -> None:
    """Raise ValueError where a stage and its corpus do not read the same."""
    if pairs is None or stage.triples is not None:
        for field in ("match", "pairs"):
            if getattr(stage, field) is not None:
                raise ValueError(f"{place}.{field}: is of a parallel corpus' pairs; leave it out, or set corpus.kind: parallel")
        if True in reads_pairs(stage.objective):
            raise ValueError(f"{place}.objective: {stage.objective.kind} reads pairs; set corpus.kind: parallel")
        return
    if False in reads_pairs(stage.objective):
        way_out = "put it to both sides, {kind: each_side, objective: …}"
        kinds = ", ".join(sorted({leaf.kind for leaf in leaves(stage.objective)}))
        raise ValueError(f"{place}.objective: {kinds} reads single texts, the corpus holds pairs; {way_out}")
    unknown_names = sorted(set(stage.pairs or []) - {part.title for part in pairs.pairs})
    if unknown_names:
        known = ", ".join(dict.fromkeys(part.title for part in pairs.pairs))
        raise ValueError(f"{place}.pairs: none are called {unknown_names[0]!r}; corpus.pairs are ({known})")
    if stage.match is not None and stage.match.of == "assistant" and not assisted:
        raise ValueError(f"{place}.match: of an assistant, and the recipe names none; set assistant.model")
    if stage.match is not None and stage.match.at == "embeddings" and not isinstance(student, Bert | Recurrent):
        raise ValueError(f"{place}.match: a {student.kind} student has no embedding layer to match; choose bert or recurrent")
    if (
        stage.match is not None
        and stage.match.at == "embeddings"
        and any(isinstance(leaf, Mcl | MclBool | MclCe) for leaf in leaves(stage.objective))
    ):
        raise ValueError(
            f"{place}.objective: {stage.objective.kind} compares whole texts; embeddings are matched by {{kind: each_side, objective: …}}"
        )


class TaskFiles(Part):
    """A labelled task in tables: .tsv, .csv, .jsonl or .parquet, each also .gz; a text, or a pair of texts, and its label."""

    kind: Literal["files"] = "files"
    train: list[str] = Field(min_length=1, description="paths or globs; relative ones lie under --data")
    dev: str | None = Field(None, description="what chooses the weights; default: `dev_rows` of `train`")
    test: str | None = Field(None, description="measured once, at the end, and by `bench --suite task`")
    texts: list[str] = Field(["sentence"], min_length=1, max_length=2, description="the column of the text, or the two of a pair")
    label: str = Field("label", description="the column of the labels, which are read as words; a 0 is the label '0'")
    dev_rows: int | None = Field(
        None, ge=2, description="rows of `train` set aside in place of a `dev` file, drawn by seed, label by label"
    )

    @model_validator(mode="after")
    def _one_dev(self) -> TaskFiles:
        return _with_one_dev(self)


class TaskHub(Part):
    """A labelled task from a hub data set, at a revision."""

    kind: Literal["hub"]
    dataset: str
    revision: str
    config: str | None = None
    train: str = "train"
    dev: str | None = Field("validation", description="the split that chooses the weights; null: `dev_rows` of `train`")
    test: str | None = Field(None, description="measured once, at the end; GLUE's test labels are hidden, leave it out there")
    texts: list[str] = Field(["sentence"], min_length=1, max_length=2, description="the column of the text, or the two of a pair")
    label: str = Field("label", description="the column of the labels; a number gets the name the data set has for it")
    dev_rows: int | None = Field(
        None, ge=2, description="rows of `train` set aside in place of a `dev` split, drawn by seed, label by label"
    )

    @model_validator(mode="after")
    def _one_dev(self) -> TaskHub:
        return _with_one_dev(self)


def _with_one_dev(task: Any) -> Any:
    if (task.dev is None) == (task.dev_rows is None):
        raise ValueError("something must choose the weights: give `dev`, or `dev_rows` of train; one of the two")
    return task


Task = Annotated[Annotated[TaskFiles, Tag("files")] | Annotated[TaskHub, Tag("hub")], _kind("files")]


class TaskTeacher(Part):
    """A fine-tuned model whose logits are matched: α·cross-entropy + (1 − α)·MSE of logits (Tang et al. 2019; SRA, §3.2)."""

    run: str = Field(description="the folder of a run of the same task whose last stage is `finetune`, mostly of student `teacher`")
    alpha: float = Field(0.0, ge=0, lt=1, description="weight of the labels; Tang's is 0: the teacher's logits alone")


class Augment(Part):
    """A transfer set made by rule: words masked, replaced by others of their part of speech, n-grams (Tang et al. 2019; SRA's TS)."""

    mask: float = Field(0.1, ge=0, lt=1, description="chance of a word to become the tokenizer's mask")
    pos: float = Field(0.1, ge=0, lt=1, description="chance of a word to become one of the training texts with its part of speech")
    ngram: float = Field(0.25, ge=0, lt=1, description="chance of a text to shrink to 1 to 5 of its words in a row")
    rounds: int | None = Field(None, ge=1, description="over the training texts; default: 20, of pairs 10")
    limit: int = Field(800_000, ge=1, description="stop at so many texts or pairs, the labelled ones counted in")
    tags: str | None = Field(None, description="a table of words and their tags (columns word, tag); default: nltk's tagger and its data")

    @model_validator(mode="after")
    def _edits(self) -> Augment:
        if self.mask + self.pos > 1 or self.mask + self.pos + self.ngram == 0:
            raise ValueError("`mask` and `pos` share a word's chances and sum to at most 1; one of the three is above 0")
        if self.tags is not None and self.pos == 0:
            raise ValueError("`tags` serve `pos`, which is 0; leave one out")
        return self


class Finetune(Part):
    """Train the student and a classifier behind it on a labelled task (SRA, §3.2); the last stage, or the only one."""

    kind: Literal["finetune"]
    name: str = "finetune"
    task: Task
    start: str | None = Field(
        None, description="the folder of a run of this very student to begin from, in place of stages before this one"
    )
    teacher: TaskTeacher | None = Field(None, description="default: the labels alone")
    augment: Augment | None = Field(None, description="train on a transfer set too, which the task's `teacher` labels")
    fraction: float = Field(1.0, gt=0, le=1, description="of the training rows, drawn by seed, label by label; the paper: 0.2, 0.3, 0.5, 1")
    hidden: int = Field(256, ge=1, description="width of the classifier's hidden layer")
    dropout: float = Field(0.0, ge=0, lt=1, description="before either layer of the classifier")
    epochs: float = Field(5.0, gt=0, description="passes over the rows trained on; fractions are fine")
    steps: int | None = Field(None, ge=1, description="instead of epochs")
    batch: int = Field(32, ge=1)
    learning_rate: float = Field(3e-4, gt=0, description="of Adam")
    rates: list[float] | None = Field(
        None,
        min_length=1,
        description="try each of these, from the same start, and keep the best on dev; the paper: 2e-4, 3e-4, 5e-4, 1e-3",
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="fraction of the steps")
    schedule: Literal["linear", "constant"] = "constant"
    clip: float | None = Field(None, gt=0, description="largest norm of the gradient")
    measure: Literal["accuracy", "f1"] = Field("accuracy", description="what chooses the weights on dev")
    positive: str | None = Field(None, description="the label whose F1 is meant; default, of two labels: the last")
    every: int | None = Field(None, ge=1, description="steps between measurements on dev; default: once a pass")
    patience: int | None = Field(None, ge=1, description="stop after this many measurements without gain")
    max_tokens: int = Field(128, ge=3, description="longer texts are cut here in training")
    bucket: int = Field(50, ge=1, description="batches are cut from this many batches' worth of shuffled rows, sorted by length; 1: none")

    @model_validator(mode="after")
    def _taught(self) -> Finetune:
        if self.augment is not None and self.teacher is None:
            raise ValueError("`augment` makes texts without labels; give a `teacher` that labels them, or leave it out")
        if self.rates is not None and (min(self.rates) <= 0 or len(set(self.rates)) < len(self.rates)):
            raise ValueError(f"`rates` {self.rates} must be above 0, and each another")
        return self


AnyStage = Annotated[Annotated[Stage, Tag("distil")] | Annotated[Finetune, Tag("finetune")], _kind("distil")]


class Select(Part):
    """Keep the weights that score best on a suite; never a test set."""

    suite: str = "sts-dev"
    every: int = Field(500, ge=1, description="optimizer steps")
    patience: int | None = Field(None, ge=1, description="stop after this many measurements without gain")
    without: list[str] = Field([], description="languages of a parallel corpus that no task of the suite is in, and that is meant so")


class Promise(Part):
    """What the bundle is to keep; `bench` fails when it does not."""

    sts: float | None = Field(None, ge=-1, le=1, description="average Spearman on the suite")
    sts_kept: float | None = Field(None, ge=0, description="of the teacher's, same suite")
    suite: str | None = Field(None, description="where the promise holds; default: any STS suite")
    size_mb: dict[Precision, float] = Field({}, description="largest graph file per precision, in 10⁶ bytes")


class Recipe(Part):
    """One experiment, whole."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    about: str = ""
    seed: int = Field(0, ge=0)
    teacher: Teacher
    assistant: Teacher | None = Field(
        None, description="between teacher and student: a finished run's folder, a model's folder, or a hub id"
    )
    corpus: Corpus | None = None
    targets: Targets | None = Field(None, description="what the student is to match; default: the teacher's vectors as they are")
    student: Student
    stages: list[AnyStage] = Field([], description="of kind distil, the default, and at the end one of kind finetune or none")
    select: Select | None = None
    promise: Promise | None = None

    @property
    def distilling(self) -> list[Stage]:
        """The stages that learn from the teacher: all but a fine-tuning one."""
        return [stage for stage in self.stages if isinstance(stage, Stage)]

    @property
    def finetuning(self) -> Finetune | None:
        """The stage that learns from labels."""
        return self.stages[-1] if self.stages and isinstance(self.stages[-1], Finetune) else None

    @model_validator(mode="after")
    def _whole(self) -> Recipe:
        if self.distilling and self.corpus is None:
            raise ValueError("stages need a `corpus`")
        if self.distilling and self.student.kind == "teacher":
            raise ValueError("the teacher itself is not trained; leave `stages` out")
        if len({stage.name for stage in self.stages}) < len(self.stages):
            raise ValueError("two stages have the same name")
        if not isinstance(self.student, Itself):
            for number, stage in enumerate(self.distilling):
                self._views_differ(f"stages[{number}]", stage, self.student)
        return self

    def _views_differ(self, place: str, stage: Stage, student: Bert | BiLSTM | Recurrent | Static) -> None:
        kinds = {leaf.kind for leaf in leaves(stage.objective)}
        same = isinstance(stage.view, Dropout) or (isinstance(stage.view, Identity) and "simcse" in kinds)
        if same and not getattr(student, "dropout", 0):  # a static student has none
            raise ValueError(f"{place}.view: without dropout both views give the same vector; set student.dropout, or choose another view")
        if "simcse" in kinds and len(kinds) > 1 and student.head != "none" and not student.head_kept:
            raise ValueError(
                f"{place}.objective: simcse compares the student's own vectors, the others what the dropped head makes of them; "
                "give simcse a stage of its own, or set student.head_kept: true"
            )

    @model_validator(mode="after")
    def _finetuned_last(self) -> Recipe:
        """One stage learns from labels, and it is the last; what it cannot work with is refused here."""
        at = next((number for number, stage in enumerate(self.stages) if isinstance(stage, Finetune)), None)
        if at is None:
            return self
        last = self.stages[at]
        assert isinstance(last, Finetune)
        if at < len(self.stages) - 1:
            raise ValueError(f"stages[{at}]: a finetune stage is the last; put it behind the others, one a recipe")
        if last.start is not None and (self.distilling or isinstance(self.student, Itself)):
            what = "the stages before it say" if self.distilling else "the teacher itself says"
            raise ValueError(f"stages[{at}].start: {what} where it starts; leave `start` out")
        if isinstance(self.student, Static) and self.student.weights == "sif" and not self.distilling and last.start is None:
            raise ValueError("student.weights: sif counts pieces over texts distilled on, and there are none; set weights: equal")
        if isinstance(self.targets, Split) or (self.targets is not None and isinstance(self.student, Itself)):
            raise ValueError(
                f"stages[{at}]: a classifier reads the student's own vector; leave split `targets`, and those of a teacher, out"
            )
        return self

    @model_validator(mode="after")
    def _pairs_are_read(self) -> Recipe:
        """A parallel corpus, objectives over pairs, and an assistant go together."""
        pairs = self.corpus if isinstance(self.corpus, Parallel) else None
        for number, stage in enumerate(self.distilling):
            _stage_of_pairs(f"stages[{number}]", stage, pairs, self.student, self.assistant is not None)
        if pairs is not None and self.targets is not None:
            raise ValueError("`targets` are made of texts, not of pairs; give the student `head: linear` where its width is another")
        if self.assistant is None and "assistant" in (getattr(self.student, "weights", None), getattr(self.student, "tokenizer", None)):
            raise ValueError("student: of an assistant, and the recipe names none; set assistant.model")
        if self.assistant is not None and self.assistant.vectors is not None:
            raise ValueError("assistant: must be a model; a file of vectors has no layers to give, nor vectors of new texts")
        return self

    @model_validator(mode="after")
    def _targets_are_possible(self) -> Recipe:
        parts = self.targets.parts if isinstance(self.targets, Split) else [self.targets]
        looks = any(isinstance(part, Projected) and part.looks for part in parts)
        if isinstance(self.student, Itself):
            if self.targets is not None and self.corpus is None:
                raise ValueError("`targets` are fitted on the texts of a `corpus`; name one")
            if looks and self.student.onto is None:
                raise ValueError("ridge, cca and `align` look at an untrained student; say which with student.onto")
            if self.student.onto is not None and not looks:
                raise ValueError("student.onto is there for ridge, cca and `align`; leave it out")
        elif self.student.head != "none" and not self.student.head_kept and (looks or isinstance(self.targets, Split)):
            raise ValueError("split, ridge, cca and `align` need the student's own vectors; with `head_kept: false` they are others")
        return self

    @model_validator(mode="after")
    def _without_weights(self) -> Recipe:
        """A teacher that is a file of vectors has no words, tokenizer or layers to give."""
        student = self.student
        if self.teacher.vectors is None:
            return self
        if isinstance(student, Itself):
            raise ValueError("the teacher is a file of vectors, so there is no teacher to export")
        for field, value in (("tokenizer", student.tokenizer), ("weights", getattr(student, "weights", None))):
            if value == "teacher":
                raise ValueError(f"the teacher is a file of vectors and brings no {field}; set student.{field} to a folder or a hub id")
        if getattr(student, "weights", "random") == "random" and student.embeddings.source == "teacher":
            raise ValueError("the teacher is a file of vectors and brings no words; set student.embeddings: {from: random}")
        return self


EachSide.model_rebuild()
Term.model_rebuild()
Sum.model_rebuild()
Matryoshka.model_rebuild()
KINDS = {
    "student": {"bert": Bert, "bilstm": BiLSTM, "recurrent": Recurrent, "static": Static, "teacher": Itself},
    "objective": {"mse": Mse, "cosine": Cosine, "softcos": SoftCos, "gram": Gram, "ckd": Ckd, "congen": Congen, "seed": Seed}
    | {"dual_l2": DualL2, "skd": Skd, "simcse": Simcse, "sum": Sum, "matryoshka": Matryoshka}
    | {"each_side": EachSide, "mcl": Mcl, "mcl_bool": MclBool, "mcl_ce": MclCe},
    "targets": {"one": One, "split": Split, "concat": Concat},
    "reduce": {"none": Whole, "pca": Pca, "gaussian": Gaussian, "ridge": Ridge, "cca": Cca},
    "onto": {"bert": Bert, "bilstm": BiLSTM},
    "corpus": {"files": Files, "hub": Hub, "prose": Prose, "parallel": Parallel},
    "view": {"identity": Identity, "dropout": Dropout, "word_deletion": WordDeletion, "crop": Crop, "delete_one": DeleteOne}
    | {"synonym": Synonym, "mlm": Mlm, "back_translation": BackTranslation, "file": ViewFile},
    "triples": {"files": TripleFiles, "hub": TripleHub},
    "stages": {"distil": Stage, "finetune": Finetune},
    "task": {"files": TaskFiles, "hub": TaskHub},
}


def read(name: str | Path, changes: tuple[str, ...] | list[str] = ()) -> Recipe:
    """Read a recipe by path or shipped name, apply `key.path=value` changes, check it whole.

    Raises UserError with every problem of the file.
    """
    path = files.find("recipe", name)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: a recipe is a mapping, this is a {type(data).__name__}; see edgedistill recipes")
    for change in changes:
        _set(data, change)
    return parse(data, str(path))


def parse(data: dict[str, Any], place: str) -> Recipe:
    """Check a recipe's data; `place` opens every line of the UserError."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise UserError(*dict.fromkeys(_line(place, problem) for problem in error.errors())) from None


def dump(recipe: Recipe) -> str:
    """The effective recipe as YAML, every field written out."""
    data = recipe.model_dump(mode="json", by_alias=True)
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def schema() -> str:
    """The JSON schema of recipes, for editors."""
    return json.dumps(Recipe.model_json_schema(by_alias=True), indent=2, ensure_ascii=False) + "\n"


def _set(data: dict[str, Any], change: str) -> None:
    """Apply `stages.0.epochs=1` to the data; the value is read as YAML."""
    path, equals, value = change.partition("=")
    if not equals:
        raise UserError(f"--set {change}: no '='; write --set stages.0.epochs=1")
    *parents, last = path.split(".")
    at: Any = data
    for part in parents:
        if isinstance(at, list):
            if not part.isdigit() or int(part) >= len(at):
                raise UserError(f"--set {change}: no item {part!r} among {len(at)}; count from 0")
            at = at[int(part)]
        elif isinstance(at, dict):
            at = at.setdefault(part, {})
        else:
            raise UserError(f"--set {change}: {part!r} is inside a plain value; check the path")
    parsed = yaml.safe_load(value)
    if isinstance(parsed, str):  # YAML 1.1 reads 1e-3 as text; people mean a number
        with suppress(ValueError):
            parsed = float(parsed)
    if isinstance(at, list):
        if not last.isdigit() or int(last) >= len(at):
            raise UserError(f"--set {change}: no item {last!r} among {len(at)}; count from 0")
        at[int(last)] = parsed
    elif isinstance(at, dict):
        at[last] = parsed
    else:
        raise UserError(f"--set {change}: {last!r} is inside a plain value; check the path")


def _line(place: str, problem: Any) -> str:
    """One pydantic error in our words."""
    where = _where(problem["loc"])
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "union_tag_invalid":
        what = _what(problem["loc"])
        known = KINDS.get(what, {}) or [t.strip(" '") for t in context["expected_tags"].split(",")]
        return f"{place}: {where}.kind: {unknown('stage' if what == 'stages' else what, context['tag'], known)}"
    if kind == "union_tag_not_found":
        what = _what(problem["loc"])
        return f"{place}: {where}.kind: missing; choose one: ({', '.join(sorted(KINDS.get(what, {})))})"
    if kind == "extra_forbidden":
        return f"{place}: {where}: {unknown('key', problem['loc'][-1], _keys(problem['loc'][:-1]))}"
    if kind == "missing":
        return f"{place}: {where}: missing; this key is required"
    fact = problem["msg"].removeprefix("Value error, ")
    fact = fact[0].lower() + fact[1:]
    got = f", not {problem['input']!r}" if not isinstance(problem["input"], dict | list) and kind != "value_error" else ""
    return f"{place}: {where + ': ' if where else ''}{fact}{got}"


def _tags() -> set[str]:
    return {kind for kinds in KINDS.values() for kind in kinds}


_TYPE = re.compile(r"int|float|str|bool|list\[.*")  # how pydantic calls the choices of `int | list[int]`


def _where(loc: tuple[Any, ...]) -> str:
    """('stages', 0, 'objective', 'sum', 'terms') → stages[0].objective.terms: without the union's tags, and without its types."""
    text, before = "", None
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        if not (part in _tags() and before in KINDS) and not _TYPE.fullmatch(part):
            text += f".{part}" if text else str(part)
        before = part
    return text


def _what(loc: tuple[Any, ...]) -> str:
    return next((str(part) for part in reversed(loc) if part in KINDS), str(loc[-1]))


def _keys(loc: tuple[Any, ...]) -> list[str]:
    """The keys known at a place: walk the models along the path."""
    at: Any = Recipe
    names = [part for part in loc if not isinstance(part, int)]
    for before, part in zip((None, *names), names, strict=False):
        if before in KINDS and part in KINDS[str(before)]:
            at = KINDS[str(before)][str(part)]
        elif isinstance(at, type) and issubclass(at, Part):
            field = next((f for n, f in at.model_fields.items() if part in (n, f.alias)), None)
            at = _model_in(field.annotation) if field else Part
    return [field.alias or name for name, field in at.model_fields.items()] if at is not None else []


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model_in(a)) is not None), None)
