"""The objectives: which loss is minimized, and what each one reads of a batch, declared on its class."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from edgedistill.recipe.section import ByKind, OneOf, Section


class Loss(ByKind):
    """What every objective declares: `columns`, those of a row whose texts it compares, (0,) a text, (0, 1) a
    text and its translation, (0, ...) a query and all documents; what of the `teacher` it reads; where its
    `negatives` come from; whether it compares one `coordinate` of the student with the teacher's, so that the
    dimensions must be equal."""

    columns: ClassVar[tuple[int | EllipsisType, ...]] = (0,)
    teacher: ClassVar[Literal["embeddings", "scores", "labels", "nothing"]] = "embeddings"
    negatives: ClassVar[Literal["batch", "queue", "row", "nothing"]] = "nothing"
    coordinates: ClassVar[bool] = True

    @property
    def second_view(self) -> bool:
        """Whether it compares a text with a second view of it."""
        return any(part.second_view for part in self.parts)

    @property
    def prefilled(self) -> int:
        """How many training texts fill its queue before the first step, and are not trained on."""
        return max((part.prefilled for part in self.parts), default=0)

    @property
    def alone(self) -> bool:
        """Whether the other texts of a batch are all its negatives, so that one text has none."""
        return self.negatives == "batch" and not getattr(self, "queue", 0)

    @property
    def cuts(self) -> list[int]:
        """The dimensions, ascending, that embeddings can be truncated to (Matryoshka)."""
        return sorted({dims for part in self.parts for dims in part.cuts})

    @property
    def parts(self) -> Sequence[Loss]:
        """The objectives that it is made of."""
        return []

    @property
    def leaves(self) -> list[Loss]:
        """Its terms, however nested; itself where it has none."""
        return [leaf for part in self.parts for leaf in part.leaves] or [self]

    @property
    def terms_whole(self) -> list[Loss]:
        """The terms of its sums, each with `each_side` around it where it has one."""
        return [term for part in self.parts for term in part.terms_whole] or [self]


class Mse(Loss):
    """Mean squared error over batch and dimensions (DistilCSE's KD)."""

    kind: Literal["mse"]
    normalize: bool = Field(
        False,
        description="Scale student and teacher embeddings to unit length first. Otherwise, a teacher's "
        "embeddings of unit length are scaled by √dims: their mean square is 1/dims, so small "
        "that the student would collapse to zero.",
    )


class Cosine(Loss):
    """½ (1 − cos(student, teacher)), the loss of SRA (Eq. 1)."""

    kind: Literal["cosine"]


class SoftCos(Loss):
    """Squared distance to the unit vector half-way to the teacher's: 2 − √(2 (1 + cos)) (text-level
    distillation)."""

    kind: Literal["softcos"]


class Ckd(Loss):
    """Contrastive: identify the teacher's embedding among the batch's and a queue of earlier ones (DistilCSE,
    Eq. 5 and 6)."""

    negatives = "batch"
    kind: Literal["ckd"]
    queue: int = Field(
        16_384,
        ge=0,
        le=1 << 20,
        description="Earlier teacher embeddings used as negatives in addition to the batch; starts empty. "
        "The paper uses 65536.",
    )
    temperature: float = Field(
        0.05, gt=0, description="Initial value where it is learned (the reference code starts at 0.37)."
    )
    learn_temperature: bool = Field(True, description="false: the temperature stays constant.")


class Congen(Loss):
    """Match the teacher's similarity distribution over a queue, for the text and for a second view of it
    (ConGen, Eq. 1 to 4)."""

    negatives = "batch"
    kind: Literal["congen"]
    queue: int = Field(
        16_384,
        ge=0,
        le=1 << 20,
        description="Starts with this many training texts, which are then not trained on; each batch "
        "replaces the oldest.",
    )
    temperature: float = Field(
        0.05,
        gt=0,
        description="The student's temperature. The paper uses 0.05 for BERT-Tiny, 0.07 for most models.",
    )
    teacher_temperature: float = Field(0.05, gt=0, description="The teacher's temperature.")
    alpha: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Weight of the text itself against its second view. 1: no second view; 0: the second "
        "view alone.",
    )

    @property
    def second_view(self) -> bool:
        return self.alpha < 1

    @property
    def prefilled(self) -> int:
        return self.queue


class InfoNce(Loss):
    """Identify the document that answers a query among all documents of the batch, the negatives of all
    rows included (DistilCSE, Eq. 7; DPR)."""

    columns = (0, ...)
    teacher = "nothing"
    negatives = "batch"
    coordinates = False
    kind: Literal["info_nce"]
    temperature: float = Field(0.05, gt=0, description="Divides the cosines.")


class Listwise(Loss):
    """Match the teacher's distribution over the documents of a batch for each query (ListNet, Cao et al.
    2007), by KL divergence."""

    columns = (0, ...)
    teacher = "scores"
    negatives = "row"
    coordinates = False
    kind: Literal["listwise"]
    temperature: float = Field(0.05, gt=0, description="Divides the student's cosines.")
    teacher_temperature: float = Field(
        0.05,
        gt=0,
        description="Divides the teacher's scores. 0.05 suits cosines; a cross-encoder's scores are some "
        "twenty times as large and need about 1.",
    )
    positive: bool = Field(
        True,
        description="false: leave the query's own document out of the ranking. A query made from a sentence "
        "scores so far above all else for its own text that nothing remains for the others.",
    )


class MarginMse(Loss):
    """Match how far the positive's score is above each other document's (MarginMSE, Hofstätter et al.
    2020)."""

    columns = (0, ...)
    teacher = "scores"
    negatives = "row"
    coordinates = False
    kind: Literal["margin_mse"]
    scale: float = Field(
        1.0,
        gt=0,
        description="Multiplies the teacher's margins. 1 suits cosines; a cross-encoder's margins of 20 need "
        "about 0.05.",
    )


class EachSide(Loss):
    """An objective applied to the source and the target side of each pair, or to queries and documents, and
    summed. With mse on pairs, it is multi-stage distillation's Eq. 2 to 4 and 6."""

    columns = (0, ...)
    kind: Literal["each_side"]
    objective: Objective = Field(description="The objective applied to each side.")

    @model_validator(mode="after")
    def _of_one_text(self) -> EachSide:
        compared = {leaf.columns for leaf in self.objective.terms_whole}
        if compared != {(0,)} or self.objective.second_view:
            raise ValueError(
                "`each_side` applies an objective of single texts to each side; it takes no objective of "
                "pairs or of second views"
            )
        return self

    @property
    def parts(self) -> list[Loss]:
        return [self.objective]

    @property
    def terms_whole(self) -> list[Loss]:
        return [self]


class Mcl(Loss):
    """Across a batch of pairs, match the student's cosines to the teacher's among source texts (multi-stage
    distillation, Eq. 5)."""

    columns = (0, 1)
    negatives = "batch"
    coordinates = False
    kind: Literal["mcl"]


class CrossEntropy(Loss):
    """Predict the label of a text or of a pair, by a head of its own behind the student: what a finetune
    stage trains with."""

    teacher = "labels"
    coordinates = False
    kind: str = "cross_entropy"
    labels: int
    pair: bool
    hidden: int
    dropout: float
    alpha: float


class Term(Section):
    """One weighted term of a sum."""

    weight: float = Field(gt=0, allow_inf_nan=False, description="Factor of this term.")
    objective: Objective = Field(description="The objective of this term.")


class Sum(Loss):
    """A weighted sum of objectives."""

    kind: Literal["sum"]
    terms: list[Term] = Field(min_length=1, max_length=64, description="The weighted terms.")

    @property
    def parts(self) -> list[Loss]:
        return [term.objective for term in self.terms]


class Matryoshka(Loss):
    """An objective over the first d₁ < d₂ < … dimensions, so that embeddings can be truncated there (Kusupati
    et al. 2022).

    Student and teacher are truncated alike: with PCA `targets` the teacher's first dimensions carry the most
        variance.
    """

    kind: Literal["matryoshka"]
    dims: list[int] = Field(
        min_length=2, max_length=64, description="Ascending; the last is the student's full dimensions."
    )
    weights: list[float] | None = Field(None, description="Weight of each entry of `dims`. Default: 1.")
    objective: Objective = Field(description="The objective applied at each size.")

    @model_validator(mode="after")
    def _ascending(self) -> Matryoshka:
        if self.objective.cuts:
            raise ValueError("a matryoshka inside a matryoshka; list all `dims` in one")
        if self.dims != sorted(set(self.dims)) or self.dims[0] < 1:
            raise ValueError(f"`dims` {self.dims} must be ascending and start at 1 or more")
        if self.weights is not None and len(self.weights) != len(self.dims):
            raise ValueError(f"{len(self.weights)} `weights` for {len(self.dims)} `dims`; give one for each")
        if self.weights is not None and not all(0 < weight < float("inf") for weight in self.weights):
            raise ValueError(f"`weights` {self.weights} must all be above 0, and finite")
        return self

    @property
    def parts(self) -> list[Loss]:
        return [self.objective]

    @property
    def cuts(self) -> list[int]:
        return self.dims


Objective = Annotated[Loss, OneOf(Loss)]

for holder in (EachSide, Term, Sum, Matryoshka):
    holder.model_rebuild()
