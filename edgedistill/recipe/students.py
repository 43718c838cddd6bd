"""The students, their embedding tables and tokenizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from edgedistill.recipe.section import (
    LARGEST_VOCABULARY,
    LONGEST_PROMPT,
    MOST_LAYERS,
    WIDEST,
    Head,
    Location,
    Pooling,
    Section,
    Source,
)


class Embeddings(Section):
    """How the token embedding table is initialized."""

    source: Literal["teacher", "random"] = Field(
        "teacher", alias="from", description="Whose token embeddings are used."
    )
    of: Literal["token_embeddings", "outputs", "translations"] = Field(
        "token_embeddings",
        description="What is taken from the teacher. token_embeddings: its embedding table, by token text. "
        "outputs: its sentence embedding "
        "of the token alone. translations: the mean embedding of the tokens that translate it, counted in "
        "rows of translations.",
    )
    reduce: Literal["pca"] = Field(
        "pca", description="How the teacher's token embeddings are reduced to the student's width."
    )
    weighting: Literal["none", "frequency"] = Field(
        "none",
        description="frequency: a reduction or factorization of the table weights each token by its count in "
        "the rows plus 1.",
    )
    count_exponent: float = Field(
        0.75,
        gt=0,
        le=1,
        description="Exponent on the counts that weight the tokens. 1: plain counts; smaller: frequent "
        "tokens dominate less.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Embeddings:
        if self.of != "token_embeddings" and self.source != "teacher":
            raise ValueError(f"`of: {self.of}` takes them from the teacher; set `from: teacher`")
        if self.weighting != "none" and self.source != "teacher":
            raise ValueError("`weighting` applies to a table reduced from the teacher's; set `from: teacher`")
        return self

    @property
    def plain(self) -> bool:
        """Whether the table is initialized as by default, apart from its weighting."""
        return self == Embeddings(weighting=self.weighting, count_exponent=self.count_exponent)


class Trim(Section):
    """Keep only the tokens that the training texts use, and the tokens those depend on; the embedding table
    keeps their rows."""

    min_count: int = Field(
        1, ge=0, description="Keep tokens used at least this often, and the characters of all used ones."
    )
    tokens: int | None = Field(
        None,
        ge=1,
        description="Keep at most this many: the characters of used tokens in up to a third, then the most "
        "frequent; of equals the first in the vocabulary. With `min_count: 0`, tokens that no text uses fill "
        "up the number.",
    )


class Unigram(Section):
    """A Unigram tokenizer like XLM-R's, learned from the rows: NFKC, with `<s>` and `</s>`. The same texts
    give the same tokenizer."""

    vocabulary_size: int = Field(
        32_000,
        ge=200,
        le=LARGEST_VOCABULARY,
        description="Maximum vocabulary size, including special tokens and single characters.",
    )
    lowercase: bool = Field(False, description="Lowercase the texts, for an uncased teacher.")
    sample: int = Field(1_000_000, ge=1, description="Learn from at most this many texts, sampled evenly.")


Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)] | Annotated[list[int], Field(max_length=MOST_LAYERS)]
HeadKind = Annotated[
    Head,
    Field(
        description="Layer from the pooled embedding to `dims`: none, linear, or linear_tanh (with a tanh)."
    ),
]
HeadBias = Annotated[bool, Field(description="Whether the head has a bias.")]
DropoutRate = Annotated[float, Field(ge=0, lt=1, description="Dropout probability in training.")]


QueryPrompt = Annotated[
    str | None,
    Field(
        max_length=LONGEST_PROMPT,
        description="Text put before every query, in training and by encode_query. Default: none; of a "
        "finished student its own.",
    ),
]
DocumentPrompt = Annotated[
    str | None,
    Field(
        max_length=LONGEST_PROMPT,
        description="Text put before every document, in training and by encode_document. Default: none; of a "
        "finished student its own.",
    ),
]
INITIAL_TABLE = Field(Embeddings(), description="Initialization of the token embedding table.")


class AnyStudent(Section):
    """What students differ in: all but the teacher itself are `trained`; one `of_layers` has an embedding
    layer, and may take its layers from another model."""

    kind: str
    trained: ClassVar[bool] = True
    of_layers: ClassVar[bool] = False
    bare_table: ClassVar[bool] = False  # a table of token embeddings and their weights, without layers

    @property
    def reduced(self) -> bool:
        """Whether the layers of another model are projected to a smaller width."""
        return False

    @property
    def random_positions(self) -> bool:
        """Whether its position table is randomly initialized."""
        return False

    @property
    def reads_translations(self) -> bool:
        """Whether its token embeddings are fitted to pairs of translations."""
        return False


class BuiltStudent(AnyStudent):
    """A student whose shape the recipe describes: what all kinds share."""

    if TYPE_CHECKING:
        embeddings: Embeddings  # each kind describes its own
    pq_bytes: int | None = Field(
        None,
        ge=1,
        le=WIDEST,
        description="Product-quantize the embedding table: this many PQ codes per token, of one byte each, "
        "or of two with more than 256 `pq_centroids`. Must divide the table's width.",
    )
    pq_centroids: int = Field(
        256,
        ge=2,
        le=32_768,
        description="From how many learned sub-vectors a PQ code selects. 1024 double the size of the codes "
        "of 256; where a code stands for three dimensions, the error of the initial table falls "
        "to two fifths.",
    )
    tokenizer: Source = Field(
        "teacher",
        description="Where the tokenizer comes from: teacher, assistant, packaged:NAME, a model or run "
        "folder, or a hub id.",
    )
    unigram: Unigram | None = Field(
        None, description="Learn a Unigram tokenizer from the rows instead of taking `tokenizer`."
    )
    trim: Trim | None = Field(
        None, description="Keep only the tokens that the rows use. {}: every token used at least once."
    )
    head: HeadKind = "none"
    head_bias: HeadBias = True
    head_kept: bool = Field(
        True,
        description="false: the head is used in training only and dropped from the finished student.",
    )
    dims: int | None = Field(
        None, ge=1, le=65_536, description="Output dimensions of the head. Default: the teacher's."
    )
    max_tokens: int = Field(
        128,
        ge=3,
        le=8192,
        description="Longer texts are truncated to this many tokens, in the exported bundle too.",
    )
    query_prompt: QueryPrompt = None
    document_prompt: DocumentPrompt = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if self.pq_bytes is None and self.pq_centroids != 256:
            raise ValueError("`pq_centroids` are what PQ codes select from; set `pq_bytes`, or leave it out")
        if self.head == "none" and self.dims is not None:
            raise ValueError("`dims` is the output of a head; set `head: linear` or leave it out")
        if self.unigram is not None and self.trim is not None:
            raise ValueError("`unigram` learns its own tokenizer; leave `trim` out")
        return self

    @property
    def reads_translations(self) -> bool:
        return self.embeddings.of == "translations"


class Transformer(BuiltStudent):
    """A transformer student: its layers come from a source, and its table may be factorized."""

    of_layers = True

    weights: Source
    revision: str | None = Field(None, description="Commit, tag or branch where `weights` is a hub id.")
    bottleneck: int | None = Field(
        None,
        ge=1,
        le=WIDEST,
        description="Factorize the embedding table into vocabulary × bottleneck and bottleneck × width, "
        "initialized by SVD.",
    )
    pooling: Pooling = Field("mean", description="How token embeddings become one embedding.")
    dropout: DropoutRate = 0.0

    @model_validator(mode="after")
    def _one_compression(self) -> Self:
        if self.bottleneck is not None and self.pq_bytes is not None:
            raise ValueError("`bottleneck` and `pq_bytes` both compress the embedding table; choose one")
        weighted = self.embeddings.weighting != "none" and self.weights != "random"
        if weighted and self.bottleneck is None and self.pq_bytes is None:
            raise ValueError(
                "`embeddings.weighting` needs a compressed table; set `bottleneck` or `pq_bytes`, or leave "
                "it out"
            )
        return self


class Bert(Transformer):
    """A BERT encoder: randomly initialized, or from all or chosen layers of a known encoder, the teacher or
    any other."""

    kind: Literal["bert"]
    weights: Source = Field(
        "random",
        description="Initial weights: random, teacher, assistant, packaged:NAME, a model or run folder, or a "
        "hub id. Layers of BERT, "
        "CamemBERT, DistilBERT, MPNet, RoBERTa and XLM-R can be taken.",
    )
    layers: Layers | None = Field(
        None, description="How many layers, or a list of which, counted from 0. Default: all."
    )
    width: int | None = Field(
        None,
        ge=4,
        le=WIDEST,
        description="Hidden size. Required with random weights; with other weights a smaller multiple of "
        "their head size projects their layers to this width.",
    )
    heads: int | None = Field(
        None,
        ge=1,
        le=WIDEST,
        description="Attention heads. Default: width / 64, at least 2; projected weights keep the source's "
        "head size.",
    )
    intermediate: int | None = Field(
        None,
        ge=4,
        le=WIDEST,
        description="Feed-forward size. Default: 4 × width. Projected weights keep the most important "
        "neurons.",
    )
    max_positions: int | None = Field(
        None,
        ge=8,
        le=1 << 20,
        description="Rows of the position table. Default: the source's; with random weights 512.",
    )
    embeddings: Embeddings = INITIAL_TABLE

    @model_validator(mode="after")
    def _consistent(self) -> Bert:
        if self.weights == "random" and (not isinstance(self.layers, int) or self.width is None):
            raise ValueError("random weights need `layers` (a number) and `width`")
        sizes = [name for name in ("heads", "intermediate") if getattr(self, name) is not None]
        if self.weights != "random" and sizes and self.width is None:
            raise ValueError(
                f"`{sizes[0]}` is defined by the weights; leave it out, or give a smaller `width`"
            )
        if self.reduced and self.pooling == "cls_pooler":
            raise ValueError(
                "cls_pooler belongs to the weights' own width, not to projected layers; choose another "
                "pooling, or leave `width` out"
            )
        if self.weights != "random" and not self.embeddings.plain:
            raise ValueError("`embeddings` come with the weights; leave them out")
        return self

    @property
    def reduced(self) -> bool:
        return self.weights != "random" and self.width is not None

    @property
    def random_positions(self) -> bool:
        return self.weights == "random"


class BiLSTM(BuiltStudent):
    """A bidirectional LSTM over token embeddings, a read-out, and a head (SRA)."""

    kind: Literal["bilstm"]
    layers: int = Field(1, ge=1, le=8, description="LSTM layers.")
    width: int = Field(300, ge=2, le=WIDEST, description="Width of the token embeddings.")
    hidden: int = Field(512, ge=1, le=WIDEST, description="Hidden units per direction.")
    embeddings: Embeddings = INITIAL_TABLE
    readout: Literal["last", "max", "mean"] = Field(
        "last", description="last: the final state of each direction; max, mean: over all states."
    )
    head: HeadKind = "linear_tanh"
    head_bias: HeadBias = False
    dropout: DropoutRate = 0.0


class Recurrent(Transformer):
    """A transformer: a shared block of BERT or XLM-R layers applied repeatedly, with a narrow embedding table
    (Ding et al. 2022)."""

    kind: Literal["recurrent"]
    weights: Source = Field(
        "teacher",
        description="Initial weights: assistant (the default where the recipe has one), teacher, a model or "
        "run folder, or a hub id.",
    )
    layers: Layers = Field(
        3,
        description="Layers of the shared block: how many of the source's first layers, or a list of which, "
        "counted from 0.",
    )
    repeats: int | None = Field(
        None,
        ge=1,
        le=MOST_LAYERS,
        description="How often the block is applied. Default: until the source's depth is reached.",
    )
    position_ids: Literal["source", "pad", "zero"] = Field(
        "source",
        description="Where position ids start: after the padding id (pad, as XLM-R), at 0 (zero, as BERT), "
        "or as in the source.",
    )
    embeddings: Annotated[
        Embeddings,
        Field(
            description="from: teacher takes the source's tables; from: random initializes all of them "
            "randomly."
        ),
    ] = Embeddings()

    @model_validator(mode="after")
    def _consistent(self) -> Recurrent:
        if isinstance(self.layers, list) and not self.layers:
            raise ValueError("`layers` is empty; the shared block needs at least one")
        if self.embeddings.of == "outputs":
            raise ValueError("`embeddings` are the source's or random; leave `of: outputs` out")
        return self

    @property
    def random_positions(self) -> bool:
        return self.embeddings.source == "random"


class Static(BuiltStudent):
    """A token embedding and a learned weight for each token; a text's embedding is their weighted mean.

    Token weights start as a / (a + the token's relative frequency in the rows), SIF.
    """

    kind: Literal["static"]
    bare_table = True
    width: int = Field(
        256,
        ge=2,
        le=WIDEST,
        description="Width of the token embeddings, and the student's dimensions where it has no head.",
    )
    embeddings: Annotated[
        Embeddings, Field(description="Default: the teacher's sentence embedding of each token alone.")
    ] = Embeddings(of="outputs")
    head_bias: HeadBias = False


class TeacherItself(AnyStudent):
    """The unchanged teacher: the baseline. A recipe for it has no stages."""

    kind: Literal["teacher"]
    trained = False
    max_tokens: int | None = Field(
        None,
        ge=3,
        le=8192,
        description="Longer texts are truncated to this many tokens. Default: the teacher's limit.",
    )
    reference_student: Bert | BiLSTM | None = Field(
        None,
        discriminator="kind",
        description="A student of kind bert or bilstm. With `targets`, ridge and `align` are fitted to its "
        "initial embeddings.",
    )


class Finished(AnyStudent):
    """A finished student of any kind that goes on learning: its shape, weights, tokenizer and head. `kind`
    may be left out."""

    kind: Literal["finished"] = "finished"
    weights: Location = Field(
        description="A shipped bundle such as nano, the folder of a bundle, or the folder of a run."
    )
    dropout: Annotated[
        float | None,
        Field(ge=0, lt=1, description="Dropout probability in training. Default: the finished student's."),
    ] = None
    max_tokens: Annotated[
        int | None,
        Field(
            ge=3,
            le=8192,
            description="Longer texts are truncated to this many tokens. Default: its own limit. A larger "
            "value adds positions.",
        ),
    ] = None
    pq_bytes: Annotated[
        int | None,
        Field(
            ge=1,
            le=WIDEST,
            description="Product-quantize the full table of a static student, as `pq_bytes` of a new one. A "
            "table that was trained whole first loses less.",
        ),
    ] = None
    lexical: Annotated[
        float | None,
        Field(
            gt=0,
            le=10,
            description="Add a random projection of a text's words to its embedding, so that texts with the "
            "same words are found. This is its length beside an embedding of length 1, in a text of 16 "
            "tokens; it grows with the fourth root of the tokens. 0.2 to 0.4 help search and hardly "
            "hurt similarity.",
        ),
    ] = None
    query_prompt: QueryPrompt = None
    document_prompt: DocumentPrompt = None

    @model_validator(mode="after")
    def _finished(self) -> Finished:
        if self.weights in ("teacher", "assistant", "random"):
            raise ValueError(
                f"`weights: {self.weights}` is no finished student; add the `kind` of the new student, such "
                "as bert"
            )
        return self


def drops_head(student: Section) -> bool:
    """Whether a student has a head that serves training only."""
    return getattr(student, "head", "none") != "none" and not getattr(student, "head_kept", True)


def _kind(student: Any) -> str | None:
    """The kind of a student's section; a section of nothing but a finished student's keys needs none, and
    None is an error."""
    if not isinstance(student, dict):
        return getattr(student, "kind", "finished")
    plain = "weights" in student and student.keys() <= Finished.model_fields.keys()
    return student.get("kind", "finished" if plain else None)


Student = Annotated[
    Annotated[Bert, Tag("bert")]
    | Annotated[BiLSTM, Tag("bilstm")]
    | Annotated[Recurrent, Tag("recurrent")]
    | Annotated[Static, Tag("static")]
    | Annotated[Finished, Tag("finished")]
    | Annotated[TeacherItself, Tag("teacher")],
    Discriminator(_kind),
]
