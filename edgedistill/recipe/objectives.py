"""The objectives: which loss is minimized, and which views, pairs and teacher embeddings each one reads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from edgedistill.recipe.section import Section


class Mse(Section):
    """Mean squared error over batch and dimensions (DistilCSE's KD)."""

    kind: Literal["mse"]
    normalize: bool = Field(
        False,
        description="Scale student and teacher embeddings to unit length first. Otherwise a teacher's of "
        "unit length are scaled by √dims: their mean square per dimension is 1/dims, and the student would "
        "collapse to zero.",
    )


class Cosine(Section):
    """½ (1 − cos(student, teacher)), the loss of SRA (Eq. 1)."""

    kind: Literal["cosine"]


class SoftCos(Section):
    """Squared distance to the unit vector half-way to the teacher's: 2 − √(2 (1 + cos)) (text-level
    distillation)."""

    kind: Literal["softcos"]


class Ckd(Section):
    """Contrastive: identify the teacher's embedding among the batch's and a queue of earlier ones (DistilCSE,
    Eq. 5 and 6)."""

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


class Congen(Section):
    """Match the teacher's similarity distribution over a queue, for the text and for a second view of it
    (ConGen, Eq. 1 to 4)."""

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


class Seed(Section):
    """Match the teacher's similarity distribution over its own embedding and a queue (SEED, Fang et al.
    2021)."""

    kind: Literal["seed"]
    queue: int = Field(
        16_384,
        ge=1,
        description="Size of the queue of earlier teacher embeddings; starts with random directions.",
    )
    temperature: float = Field(0.05, gt=0, description="The student's temperature.")
    teacher_temperature: float = Field(0.05, gt=0, description="The teacher's temperature.")


class DualL2(Section):
    """Mean squared error of unit embeddings: teacher against the text, and teacher against its second view
    (ConGen, §4.2)."""

    kind: Literal["dual_l2"]


class Skd(Section):
    """`dual_l2` plus the two views against each other: self-knowledge distillation (ConGen, §4.2)."""

    kind: Literal["skd"]


SimilarTuples = Annotated[
    int | None,
    Field(
        ge=2,
        description="A batch is then made of groups of this many tuples whose positives are in the same "
        "k-means cluster, so that the documents of a batch are hard to tell apart. Must divide `batch`. "
        "Default: drawn at random.",
    ),
]


class InfoNce(Section):
    """Identify the document that answers a query among all documents of the batch, the negatives of all
    tuples included (DistilCSE, Eq. 7; DPR)."""

    kind: Literal["info_nce"]
    temperature: float = Field(0.05, gt=0, description="Divides the cosines.")
    similar_texts: SimilarTuples = None


class Listwise(Section):
    """Match the teacher's distribution over the documents of a batch for each query (ListNet, Cao et al.
    2007), by KL divergence."""

    kind: Literal["listwise"]
    temperature: float = Field(0.05, gt=0, description="Divides the student's cosines.")
    teacher_temperature: float = Field(
        0.05,
        gt=0,
        description="Divides the scores. 0.05 suits cosines; z-scores (with `bm25`) and a cross-encoder's "
        "scores are some twenty times as large and want about 1.",
    )
    positive: bool = Field(
        True,
        description="false: leave a query's own document out of the ranking. Sentences made into queries "
        "score so far above all else for their own text that nothing remains for the others.",
    )
    similar_texts: SimilarTuples = None


class MarginMse(Section):
    """Match how far the positive's score is above each other document's (MarginMSE, Hofstätter et al.
    2020)."""

    kind: Literal["margin_mse"]
    scale: float = Field(
        1.0,
        gt=0,
        description="Multiplies the teacher's margins. 1 suits cosines; margins of 20, of a cross-encoder, "
        "want about 0.05.",
    )
    similar_texts: SimilarTuples = None


class EachSide(Section):
    """An objective applied to source and target side of each pair, or to the queries and the documents of
    tuples, summed; with mse on pairs, multi-stage distillation's Eq. 2 to 4 and 6."""

    kind: Literal["each_side"]
    objective: Objective = Field(description="The objective applied to each side.")

    @model_validator(mode="after")
    def _of_one_text(self) -> EachSide:
        if reads_pairs(self.objective) != {False} or reads_second_view(self.objective):
            raise ValueError(
                "`each_side` applies an objective of single texts to each side; it takes no objective of "
                "pairs or of second views"
            )
        return self


class Mcl(Section):
    """Across a batch of pairs, match the student's cosines to the teacher's among source texts (multi-stage
    distillation, Eq. 5)."""

    kind: Literal["mcl"]


class MclBool(Section):
    """`mcl` with labels instead of the teacher's cosines: 1 for a text and its translation, 0 otherwise
    (ablation of §4.5)."""

    kind: Literal["mcl_bool"]


class MclCe(Section):
    """`mcl` as a cross-entropy over the batch, weighted by the teacher's cosines (ablation of §4.5). These
    are not probabilities, so the teacher's own embeddings are not its optimum."""

    kind: Literal["mcl_ce"]
    temperature: float = Field(0.05, gt=0, description="Divides the cosines.")
    reduction: Literal["mean", "sum", "pairs"] = Field(
        "mean",
        description="Over the texts of a batch: their mean; their sum, as the paper's Eq. 9 prints it; or "
        "the mean over all pairs of "
        "texts, the scale of mcl.",
    )


class Term(Section):
    """One weighted term of a sum."""

    weight: float = Field(gt=0, allow_inf_nan=False, description="Factor of this term.")
    objective: Objective = Field(description="The objective of this term.")


class Sum(Section):
    """A weighted sum of objectives."""

    kind: Literal["sum"]
    terms: list[Term] = Field(min_length=1, max_length=64, description="The weighted terms.")


class Matryoshka(Section):
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
        inner = [self.objective, *(term.objective for term in getattr(self.objective, "terms", []))]
        if any(isinstance(each, Matryoshka) for each in inner):
            raise ValueError("a matryoshka inside a matryoshka; list all `dims` in one")
        if self.dims != sorted(set(self.dims)) or self.dims[0] < 1:
            raise ValueError(f"`dims` {self.dims} must be ascending and start at 1 or more")
        if self.weights is not None and len(self.weights) != len(self.dims):
            raise ValueError(f"{len(self.weights)} `weights` for {len(self.dims)} `dims`; give one for each")
        if self.weights is not None and not all(0 < weight < float("inf") for weight in self.weights):
            raise ValueError(f"`weights` {self.weights} must all be above 0, and finite")
        return self


Objective = Annotated[
    Mse
    | Cosine
    | SoftCos
    | Ckd
    | Congen
    | Seed
    | DualL2
    | Skd
    | InfoNce
    | Listwise
    | MarginMse
    | EachSide
    | Mcl
    | MclBool
    | MclCe
    | Sum
    | Matryoshka,
    Field(discriminator="kind"),
]


# What compares queries with documents: the student's embeddings with each other alone.
Ranking = InfoNce | Listwise | MarginMse


def leaves(objective: Objective) -> list[Objective]:
    """The objective's terms, however nested; the objective itself where it has none."""
    if isinstance(objective, Matryoshka | EachSide):
        return leaves(objective.objective)
    return (
        [leaf for term in objective.terms for leaf in leaves(term.objective)]
        if isinstance(objective, Sum)
        else [objective]
    )


def among_the_batch(leaf: Objective) -> bool:
    """Whether a term compares the texts of a batch only with each other."""
    return isinstance(leaf, Mcl | MclBool | MclCe) or (isinstance(leaf, Ckd) and leaf.queue == 0)


def negatives_in_batch(leaf: Objective) -> bool:
    """Whether the other texts of a batch are a term's negatives, so that it matters which texts share a
    batch."""
    return isinstance(leaf, Ckd | Congen | InfoNce | Mcl | MclBool | MclCe)


def group_of_similar_tuples(objective: Objective) -> int | None:
    """How many similar tuples in a row it compares; None for tuples at random. Raises ValueError
    where its terms differ."""
    found = {leaf.similar_texts for leaf in leaves(objective) if isinstance(leaf, Ranking)} - {None}
    if len(found) > 1:
        raise ValueError(
            "`similar_texts` differs between the objective's terms; a batch has groups of one size, give one "
            "number"
        )
    return found.pop() if found else None


def reads_second_view(objective: Objective) -> bool:
    """Whether the objective compares a text with a second view of it."""
    return any(
        isinstance(leaf, DualL2 | Skd) or (isinstance(leaf, Congen) and leaf.alpha < 1)
        for leaf in leaves(objective)
    )


def reads_scores(objective: Objective) -> bool:
    """Whether any of its terms compares the student's ranking with a teacher's scores."""
    return any(isinstance(leaf, Listwise | MarginMse) for leaf in leaves(objective))


def terms_of(objective: Objective) -> list[Objective]:
    """The terms of its sums, each of them whole: with `each_side` around it where it has one."""
    if isinstance(objective, Sum):
        return [each for term in objective.terms for each in terms_of(term.objective)]
    return terms_of(objective.objective) if isinstance(objective, Matryoshka) else [objective]


def reads_pairs(objective: Objective) -> set[bool]:
    """Whether its terms read pairs: {True}, {False}, or both where terms differ."""
    return {isinstance(term, EachSide | Mcl | MclBool | MclCe) for term in terms_of(objective)}


EachSide.model_rebuild()
Term.model_rebuild()
Sum.model_rebuild()
Matryoshka.model_rebuild()
