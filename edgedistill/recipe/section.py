"""What every section of a recipe shares: it is frozen, and it refuses unknown keys."""

from __future__ import annotations

import math
import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    ValidationInfo,
    field_validator,
)
from pydantic_core import CoreSchema

from edgedistill import files
from edgedistill.errors import shown
from edgedistill.precisions import PRECISIONS

Pooling = Literal["mean", "cls", "cls_pooler", "max", "last"]
if TYPE_CHECKING:
    Precision = str
else:
    Precision = Literal[tuple(PRECISIONS)]
Head = Literal["none", "linear", "linear_tanh"]
# Keys that several sections have.
Steps = Annotated[int | None, Field(ge=1, description="Optimizer steps, instead of `epochs`.")]
Warmup = Annotated[float, Field(ge=0, lt=1, description="Share of the steps with linear warm-up.")]
Clip = Annotated[float | None, Field(gt=0, description="Maximum gradient norm; null: no clipping.")]
Patience = Annotated[
    int | None, Field(ge=1, description="Stop after this many evaluations without improvement.")
]
TrainingTokens = Annotated[
    int, Field(ge=3, le=8192, description="Longer texts are truncated to this many tokens in training.")
]
TrainingDtype = Annotated[
    Literal["auto", "fp32", "bf16"],
    Field(description="auto: bf16 where the hardware computes in bf16, else fp32."),
]
# A file, a pattern or a model: what is made on a machine records no folder of it.
Location = Annotated[str, PlainSerializer(files.portable, when_used="json")]


def _of_source(name: str) -> str:
    """The same where some names are keywords: a folder of such a name stays a path."""
    recorded = files.portable(name)
    return (
        f"./{recorded}" if recorded != name and recorded in ("teacher", "assistant", "random") else recorded
    )


# Where weights or a tokenizer come from: teacher, assistant, random, or a place.
Source = Annotated[str, PlainSerializer(_of_source, when_used="json")]
Revision = Annotated[str | None, Field(description="Commit, tag or branch of a hub id.")]
LONGEST_PROMPT = 10_000  # characters, of any text
LONGEST_LIST = 10_000
NO_TEXT = re.compile("[\0\ud800-\udfff]")
# The largest sizes that a field takes; what fits this machine is another question (see initial_weights).
LARGEST_VOCABULARY = 1_000_000
LARGEST_BATCH = 1 << 17
MOST_EPOCHS = 1e6
MOST_LAYERS = 64
WIDEST = 16_384


# What fields without narrower bounds hold: whole numbers that fit 32 bits, as seeds and counts have to;
# numbers of a size that float32 can square. MOST_SORTED counts rows.
LARGEST_WHOLE = 2**31 - 1
LARGEST = 1e9
SMALLEST = 1e-18
MOST_SORTED = 20_000_000


class Section(BaseModel):
    """A frozen section of a recipe; unknown keys are errors, and so are values that nothing can be computed
    with."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @field_validator("*", mode="after")
    @classmethod
    def _within_bounds(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        empty = cls.model_fields[name].default == "" or name.endswith("_prompt")
        if fact := _beyond_bounds(value, empty):
            raise ValueError(fact)
        return value


class ByKind(Section):
    """A section whose `kind` chooses one of several classes. Those of this package are known as soon as they
    are defined, others by `recipe.add`."""

    kind: str
    kinds: ClassVar[dict[str, type[ByKind]]]

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if ByKind in cls.__bases__:
            cls.kinds = {}
        elif __package__ is not None and cls.__module__.startswith(__package__):
            cls.register()

    @classmethod
    def register(cls) -> None:
        """Make the section one of its base's kinds, where it has a `kind` of its own."""
        for kind in get_args(cls.model_fields["kind"].annotation):
            cls.kinds[kind] = cls


class OneOf:
    """Annotates a field of a base class: it holds a section of one of the base's kinds."""

    def __init__(self, base: type[ByKind]) -> None:
        self.base = base

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(
            Annotated[reduce(or_, self.base.kinds.values()), Field(discriminator="kind")]
        )


def _beyond_bounds(value: Any, empty: bool) -> str | None:
    """*fact; way out* of a field's value, or of a part of it; None where all is well.

    `empty` says whether empty text means something.
    """
    if isinstance(value, list | tuple | dict):
        if len(value) > LONGEST_LIST:
            return f"has {len(value):,} items; give at most {LONGEST_LIST:,}"
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return next(filter(None, (_beyond_bounds(part, empty=False) for part in parts)), None)
    if isinstance(value, str):
        if len(value) > LONGEST_PROMPT:
            return f"has {len(value):,} letters; write at most {LONGEST_PROMPT:,}"
        if NO_TEXT.search(value):
            return f"{shown(value)} holds NUL, or half a surrogate pair, which is not text; correct it"
        return None if value.strip() or empty else "is empty; give a value, or leave the key out"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    largest = LARGEST_WHOLE if isinstance(value, int) else LARGEST
    if not math.isfinite(value) or abs(value) > largest:
        return f"{value} is too large; give at most {largest:,.0f}"
    if 0 < abs(value) < SMALLEST:
        return f"{value} is too small; give {SMALLEST} or more, or 0 where the key may be 0"
    return None


def check_sorted_rows(batch: int, window: int) -> None:
    """Raise ValueError where more rows would be sorted by length at a time than memory is meant for."""
    if window > 1 and batch * window > MOST_SORTED:
        raise ValueError(
            f"`bucket`: {batch * window:,} rows would be sorted at a time; set it to at most "
            f"{max(1, MOST_SORTED // batch)}"
        )


def by_kind(default: str) -> Any:
    """Select the class of a union by `kind`; a section without `kind` is of the kind `default`."""
    return Discriminator(
        lambda v: v.get("kind", default) if isinstance(v, dict) else getattr(v, "kind", default)
    )
