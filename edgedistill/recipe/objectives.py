"""What a student is to match, and what of a text each objective reads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from edgedistill.recipe.section import Part


class Mse(Part):
    """Mean squared difference over batch and dims (DistilCSE, Eq. of KD)."""

    kind: Literal["mse"]
    unit: bool = Field(False, description="scale both sides to unit length first")
    scale: float | None = Field(
        None,
        gt=0,
        description="the teacher's vectors times this; null: √dims where they have unit length, so that a number's mean square is 1 as in "
        "the pooled outputs of the papers (at 1/dims a student learns to give none), else 1",
    )


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


def among_the_batch(leaf: Objective) -> bool:
    """Whether a term compares the texts of a batch with each other, and with nothing beside them."""
    return isinstance(leaf, Gram | Simcse | Mcl | MclBool | MclCe) or (isinstance(leaf, Ckd) and leaf.queue == 0)


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


EachSide.model_rebuild()
Term.model_rebuild()
Sum.model_rebuild()
Matryoshka.model_rebuild()
