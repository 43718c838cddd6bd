"""The teacher, a sentence encoder or a file of embeddings it computed earlier; and what the student is
trained to match: its embeddings, reduced and aligned."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from edgedistill.recipe.section import ByKind, Location, OneOf, Pooling, Revision, Section


class Teacher(Section):
    """A sentence encoder and how its embeddings are computed, or a file of precomputed embeddings."""

    model: Location | None = Field(
        None,
        description="packaged:all-MiniLM-L6-v2, a model folder, or a hub id (which also needs `revision`).",
    )
    embeddings: Location | None = Field(
        None,
        description="Instead of `model`: precomputed embeddings, .parquet files (a path or glob) of texts "
        "and embeddings, or an .npy (n, d). Relative paths start from --data. With `model` too, a sample of "
        "them is compared with the model's own.",
    )
    texts: Location | None = Field(
        None,
        description="For an .npy: the file with its texts, one text per row in the same order. Default: the "
        "same name ending in .txt.",
    )
    text_column: str = Field(
        "text",
        description="The column of texts in the .parquet, or in the file of `texts`. In a .parquet it may "
        "hold their hashes, 64-bit integers, as `cache --parquet` writes them.",
    )
    embedding_column: str = Field("embedding", description="The column of embeddings in the .parquet.")
    revision: Revision = None
    pooling: Pooling | None = Field(
        None,
        description="Only for a plain transformers model; a sentence-transformers model defines its own "
        "pooling.",
    )
    prompt: str = Field("", description="Text put before every text that is neither a query nor a document.")
    query_prompt: str | None = Field(
        None,
        description="Text put before every query. Default: the model's own prompt named query; if it has "
        "none, as for every text.",
    )
    document_prompt: str | None = Field(
        None,
        description="Text put before every document. Default: the model's own prompt named document, passage "
        "or corpus; if it has none, as for every text.",
    )
    max_tokens: int = Field(128, ge=3, le=8192, description="Longer texts are truncated to this many tokens.")
    dtype: Literal["auto", "fp32", "bf16", "int8"] = Field(
        "auto",
        description="auto: bf16 where the hardware computes in bf16, else fp32. int8: the graph that `export`"
        " would write in int8, about twice as fast on a CPU. It is refused if its embeddings "
        "differ too much from torch's.",
    )
    licence: str | None = Field(
        None,
        description="Its licence, for the model card. Default: the one that the model's own card states.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Teacher:
        if self.model is None and self.embeddings is None:
            raise ValueError("give `model` or `embeddings` (a file of precomputed embeddings)")
        prompts = (self.prompt, self.query_prompt, self.document_prompt)
        if self.model is None and (any(prompts) or self.pooling):
            raise ValueError(
                "`pooling` and prompts apply to a model; precomputed `embeddings` are used unchanged"
            )
        return self

    @property
    def name(self) -> str:
        """How records name it: the model with its revision, or the file of its embeddings."""
        return self.embeddings or (
            f"{self.model}@{self.revision}" if self.revision is not None else str(self.model)
        )


def _models(teachers: list[Teacher]) -> list[Teacher]:
    if any(teacher.model is None for teacher in teachers):
        raise ValueError("teachers beside the recipe's are models; give each its `model`")
    return teachers


OtherTeachers = Annotated[list[Teacher], Field(max_length=8), AfterValidator(_models)]


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
    teachers: OtherTeachers = Field(
        [],
        description="Models beside the recipe's teacher; they read texts as documents. The targets' cosines "
        "are about the mean of all models' cosines. Needs `reduce` of kind pca.",
    )
    sample: int = Field(
        20_000, ge=2, description="Number of texts that reducers and alignments are fitted on."
    )

    @model_validator(mode="after")
    def _lengths_kept(self) -> Targets:
        if self.raw and self.normalize:
            raise ValueError(
                "`raw` keeps the lengths that `normalize` removes; set normalize: false, or leave `raw` out"
            )
        if self.teachers and (self.reduce.kind != "pca" or self.reduce.keeps_space):
            raise ValueError(
                "`teachers` are beside the teacher's dimensions; set reduce: {kind: pca}, no rank"
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
