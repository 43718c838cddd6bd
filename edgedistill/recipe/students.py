"""The students, their word tables and tokenizers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from edgedistill.recipe.section import Head, Part, Pieces, Pooling, Width, Words


class Embeddings(Part):
    """Where the word table starts."""

    source: Literal["teacher", "random", "glove"] = Field("teacher", alias="from")
    of: Literal["words", "outputs", "translations"] = Field(
        "words",
        description="the teacher's word table, by a piece's text; its vector of every piece alone; or the words that a piece of another "
        "language is translated by in a parallel corpus",
    )
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
        if self.of != "words" and self.source != "teacher":
            raise ValueError(f"`of: {self.of}` are the teacher's; set `from: teacher`")
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


Codes = Annotated[
    int | None,
    Field(
        ge=1, description="product-quantize the word table: so many codes of a byte a piece, each for one of 256 learned blocks of numbers"
    ),
]


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
    positions: int | None = Field(None, ge=8, description="rows of the position table; default: those of the weights, random ones: 512")
    bottleneck: int | None = Field(None, ge=1, description="factorise the word table: pieces × bottleneck → width, SVD start")
    codes: Codes = None
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
        _one_table(self.bottleneck, self.codes)
        if self.weights != "random" and self.bottleneck is None and self.codes is None:
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
        raise ValueError(
            "`embeddings.weigh` is for a table that is reduced, this one is taken whole; set `bottleneck` or `codes`, or leave it out"
        )


def _one_table(bottleneck: int | None, codes: int | None) -> None:
    if bottleneck is not None and codes is not None:
        raise ValueError("`bottleneck` factorises the word table, `codes` quantize it; choose one")


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
    codes: Codes = None
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
    def _head_with_dims(self) -> BiLSTM:
        _dims_of_a_head(self.head, self.dims)
        _one_of(self.trim, self.vocabulary, self.unigram)
        return self


class Recurrent(Part):
    """A few layers of a BERT or XLM-R, applied again and again, behind a narrow word table (Ding et al. 2022, multi-stage distillation)."""

    kind: Literal["recurrent"]
    weights: str = Field(
        "teacher",
        description="of the layers: assistant (the default where there is one), teacher, a folder (a run's too), or a hub id",
    )
    revision: str | None = Field(None, description="for a hub id")
    layers: Annotated[int, Field(ge=1)] | list[int] = Field(3, description="the unit: how many (the first), or which, counted from 0")
    times: int | None = Field(None, ge=1, description="how often the unit is applied; default: as often as gives the source's depth")
    bottleneck: int | None = Field(None, ge=1, description="factorise the word table: pieces × bottleneck → width; default: whole")
    codes: Codes = None
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
        _one_table(self.bottleneck, self.codes)
        if self.bottleneck is None and self.codes is None:
            _nothing_to_weigh(self.embeddings)
        _dims_of_a_head(self.head, self.dims)
        _one_of(self.trim, self.vocabulary, self.unigram)
        return self


class Static(Part):
    """A vector and a learned weight for each piece; a text is their mean."""

    kind: Literal["static"]
    width: int = Field(256, ge=2, description="of the piece vectors, and of the student's where it has no head")
    codes: Codes = None
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
