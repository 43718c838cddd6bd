"""From the teacher's space to the student's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from edgedistill.recipe.section import Part, by_kind
from edgedistill.recipe.sources import Teacher


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
    power: float = Field(
        0.0, ge=-0.5, le=1, description="each direction times its variance to this: above 0 the main ones count for more; −½: whitening"
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


Targets = Annotated[Annotated[One, Tag("one")] | Annotated[Split, Tag("split")] | Annotated[Concat, Tag("concat")], by_kind("one")]
