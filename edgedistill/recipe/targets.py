"""What the student is trained to match: the teacher's embeddings, reduced and aligned."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from edgedistill.recipe.section import ByKind, OneOf, Section


class Reduction(ByKind):
    """What reductions differ in: whether one keeps the teacher's dimensions, gives no more than these, is
    fitted to texts, to the initial student."""

    keeps_dims: ClassVar[bool] = False
    shrinks: ClassVar[bool] = False
    fitted: ClassVar[bool] = True
    fits_student: ClassVar[bool] = False

    @property
    def keeps_space(self) -> bool:
        """Whether embeddings stay in the teacher's own space."""
        return self.keeps_dims


class Unreduced(Reduction):
    """The teacher's embeddings at their own dimensions."""

    kind: Literal["none"] = "none"
    keeps_dims = True
    fitted = False


class Pca(Reduction):
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


class Ridge(Reduction):
    """The linear map from the teacher's embeddings to the initial student's, fitted by ridge regression."""

    kind: Literal["ridge"]
    fits_student = True


Reducer = Annotated[Reduction, OneOf(Reduction)]
Align = Literal["none", "procrustes", "signed_permutation"]


class Targets(Section):
    """The teacher's embeddings, reduced and aligned."""

    reduce: Annotated[
        Reducer, Field(description="Dimension reduction; kind none keeps the teacher's dimensions.")
    ] = Unreduced()
    dims: int = Field(ge=1, le=65_536, description="Dimensions of the targets.")
    align: Align = Field(
        "none",
        description="Rotate (procrustes) or permute (signed_permutation) the targets towards the initial "
        "student; cosines stay the same.",
    )
    raw: bool = Field(
        False,
        description="Take the teacher's embeddings before they are scaled to unit length, with their "
        "lengths. DistilCSE's KD matches such embeddings.",
    )
    normalize: bool = Field(True, description="Scale the targets to unit length.")
    sample: int = Field(
        20_000, ge=2, description="Number of texts that reducers and alignments are fitted on."
    )

    @model_validator(mode="after")
    def _lengths_kept(self) -> Targets:
        if self.raw and self.normalize:
            raise ValueError(
                "`raw` keeps the lengths that `normalize` removes; set normalize: false, or leave `raw` out"
            )
        return self

    @property
    def fits_student(self) -> bool:
        """Whether it is also fitted to the initial student's embeddings."""
        return self.align != "none" or self.reduce.fits_student

    @property
    def keeps_space(self) -> bool:
        """Whether the targets are in the teacher's own space."""
        return self.align == "none" and self.reduce.keeps_space
