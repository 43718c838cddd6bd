"""What every student's shape may hold: a stranger may have written the one in a bundle's manifest.

A shape that passes builds a module of the kinds we know, and nothing else: keys of transformers'
configuration that could load code, or that our graphs do not have, are left out.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Size = Annotated[int, Field(ge=1, le=2**24)]
Layers = Annotated[int, Field(ge=0, le=1_000)]
Share = Annotated[float, Field(ge=0, lt=1)]
Tokens = Annotated[int, Field(ge=1, le=131_072)]


class Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class HeadShape(Fields):
    """The linear layer after pooling."""

    dims: Size
    bias: bool


class StudentShape(Fields):
    """What every student's shape holds."""

    head: HeadShape | None
    tanh: bool
    max_tokens: Tokens
    codes: Size | None = None
    centroids: Annotated[int, Field(ge=2, le=2**15)] = 256
    blocks: list[Annotated[tuple[Size, float], Field(strict=False)]] | None = None
    prompt: Annotated[str, Field(max_length=10_000)] = ""

    def in_blocks(self, width: int) -> Self:
        """The shape itself. Raises ValueError for PQ codes that do not divide the table's width."""
        if self.codes is not None and width % self.codes:
            raise ValueError(f"{self.codes} blocks do not divide a width of {width}")
        return self


class TableShape(StudentShape):
    """What the shapes of students without a BertConfig share."""

    pieces: Size
    pad: Annotated[int, Field(ge=0)]
    width: Size

    @model_validator(mode="after")
    def _pad_in_table(self) -> Self:
        if self.pad >= self.pieces:
            raise ValueError("a padding id above the vocabulary")
        return self.in_blocks(self.width)
