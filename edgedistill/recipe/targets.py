"""What the student is trained to match: the teacher's embeddings, reduced, aligned, split or joined."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, Tag, model_validator

from edgedistill.recipe.section import Section, by_kind
from edgedistill.recipe.teacher import Teacher


class _Reduction(Section):
    """What reductions differ in: whether one keeps the teacher's dimensions, gives no more than these, is
    fitted to texts, to the initial student."""

    kind: str
    keeps_dims: ClassVar[bool] = False
    shrinks: ClassVar[bool] = False
    fitted: ClassVar[bool] = True
    fits_student: ClassVar[bool] = False

    @property
    def keeps_space(self) -> bool:
        """Whether embeddings stay in the teacher's own space."""
        return self.keeps_dims


class Unreduced(_Reduction):
    """The teacher's embeddings at their own dimensions."""

    kind: Literal["none"] = "none"
    keeps_dims = True
    fitted = False


class Pca(_Reduction):
    """The principal components of the teacher's embeddings."""

    kind: Literal["pca"]
    shrinks = True
    centre: bool = Field(True, description="Subtract the mean before fitting and when applying.")
    rank: int | None = Field(
        None,
        ge=1,
        description="Keep this many components and reconstruct the embeddings in the original space (then "
        "`dims` is the teacher's). "
        "Default: keep `dims` components.",
    )
    variance_exponent: float = Field(
        0.0,
        ge=-0.5,
        le=1,
        description="Scale each component by its variance to this power: above 0 emphasises the main "
        "components; -0.5 whitens.",
    )

    @property
    def keeps_space(self) -> bool:
        return self.rank is not None


class Gaussian(_Reduction):
    """A random projection with entries from N(0, 1/dims); nothing is fitted."""

    kind: Literal["gaussian"]
    fitted = False
    seed: int = Field(0, ge=0, description="Seed of the projection.")


class Ridge(_Reduction):
    """The linear map from the teacher's embeddings to the initial student's, fitted by ridge regression."""

    kind: Literal["ridge"]
    fits_student = True


class Cca(_Reduction):
    """The teacher's canonical directions: those most correlated with the initial student's embeddings."""

    kind: Literal["cca"]
    shrinks = True
    fits_student = True


Reducer = Annotated[Unreduced | Pca | Gaussian | Ridge | Cca, Field(discriminator="kind")]
Align = Literal["none", "procrustes", "signed_permutation"]
OwnTeacher = Annotated[Teacher | None, Field(description="Default: the recipe's teacher.")]
Normalized = Annotated[bool, Field(description="Scale the targets to unit length.")]
FitSample = Annotated[
    int, Field(ge=2, description="Number of texts that reducers and alignments are fitted on.")
]


class Projected(Section):
    """How embeddings are mapped to the student's space."""

    reduce: Annotated[
        Reducer, Field(description="Dimension reduction; kind none keeps the teacher's dimensions.")
    ] = Unreduced()
    dims: int = Field(ge=1, le=65_536, description="Dimensions of the targets.")
    align: Align = Field(
        "none",
        description="Rotate (procrustes) or permute (signed_permutation) the targets towards the initial "
        "student; cosines stay the same.",
    )

    @property
    def fits_student(self) -> bool:
        """Whether it is also fitted to the initial student's embeddings."""
        return self.align != "none" or self.reduce.fits_student


class TargetBlock(NamedTuple):
    """A block of the targets: its key in the recipe, its teacher (None: the recipe's), the projection of the
    teacher's embeddings, its weight; those of all blocks sum to 1."""

    place: str
    teacher: Teacher | None
    projection: Projected
    weight: float = 1.0
    normalize: bool = True


class SingleTeacher(Projected):
    """Targets made from one teacher's embeddings."""

    kind: Literal["one"] = "one"
    teacher: OwnTeacher = None
    raw: bool = Field(
        False,
        description="Take the teacher's embeddings before they are scaled to unit length, with their "
        "lengths. DistilCSE's KD "
        "matches such embeddings.",
    )
    normalize: Normalized = True
    sample: FitSample = 20_000

    @model_validator(mode="after")
    def _lengths_kept(self) -> SingleTeacher:
        if self.raw and self.normalize:
            raise ValueError(
                "`raw` keeps the lengths that `normalize` removes; set normalize: false, or leave `raw` out"
            )
        return self

    @property
    def width(self) -> int:
        return self.dims

    @property
    def shares(self) -> list[tuple[int, float]] | None:
        """(dimensions, weight) of each teacher's block; None where there is one teacher."""
        return None

    @property
    def blocks(self) -> list[TargetBlock]:
        return [TargetBlock("targets", self.teacher, self, normalize=self.normalize)]

    @property
    def keeps_space(self) -> bool:
        """Whether the targets are in the teacher's own space."""
        return self.align == "none" and self.reduce.keeps_space


class Block(Projected):
    """One teacher's block of the student's dimensions."""

    teacher: OwnTeacher = None
    weight: float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="Weight of this block's cosine; weights are scaled to sum to 1.",
    )


class Split(Section):
    """Each teacher has its own block of the student's dimensions; the cosine is the weighted sum of the
    blocks' cosines."""

    kind: Literal["split"]
    parts: list[Block] = Field(
        min_length=2, description="One block per teacher; their `dims` add up to the student's dimensions."
    )
    sample: FitSample = 20_000
    raw: ClassVar[bool] = False  # blocks are of unit length

    @property
    def width(self) -> int:
        return sum(part.dims for part in self.parts)

    @property
    def shares(self) -> list[tuple[int, float]] | None:
        """(dimensions, weight) of each teacher's block; the weights sum to 1."""
        total = sum(part.weight for part in self.parts)
        return [(part.dims, part.weight / total) for part in self.parts]

    @property
    def blocks(self) -> list[TargetBlock]:
        weights = [weight for _, weight in self.shares or []]
        places = [f"targets.parts[{number}]" for number in range(len(self.parts))]
        parts = zip(places, self.parts, weights, strict=True)
        return [TargetBlock(place, part.teacher, part, weight) for place, part, weight in parts]

    @property
    def fits_student(self) -> bool:
        """Whether a block is also fitted to the initial student's embeddings."""
        return any(part.fits_student for part in self.parts)

    keeps_space: ClassVar[bool] = False


Targets = Annotated[
    Annotated[SingleTeacher, Tag("one")] | Annotated[Split, Tag("split")],
    by_kind("one"),
]
