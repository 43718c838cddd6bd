"""A bundle's manifest.json: which ones are refused, and the hashes of the bundle's files.

A stranger may have written its fields, and with them the hashes and the digest that vouch for them: every
field that a runner uses is checked for what an export writes there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from edgedistill import files
from edgedistill.errors import UserError, escaped, shown
from edgedistill.files import Json
from edgedistill.runtime.trust import GET_AGAIN

COPY_AGAIN = "copy the bundle again"
SCHEMA = 1
LARGEST_BYTES = 4_000_000
# that of a graph is the most that a message of protobuf can have
LARGEST_FILE_BYTES = {".onnx": 2**31 - 1, ".safetensors": 2**34}  # of other files:
LARGEST_OTHER_BYTES = 64_000_000  # a vocabulary of 250,000 tokens takes 9 to 17 MB
PAIR = "pair"  # kind of a bundle of two encoders, each in a folder of its own
MEAN = "mean"  # `documents` of a pair whose documents are embedded by both encoders
MOST_PROBLEMS = 20  # listed of a file
LONGEST_NAME = 200  # characters, of a file, a bundle, a label
LONGEST_PROMPT = 10_000
LARGEST_DIM = 65_536
MOST_DIMS = 64
MOST_TOKENS = 131_072  # of max_tokens
MOST_LABELS = 10_000
MOST_PRECISIONS = 20
MOST_FILES = 1_000
MOST_NESTED = 50
LARGEST_ID = 2**31 - 1
LEAST_COSINE = 0.5  # of a threshold: below it, verifying would accept anything
LARGEST_DIFFERENCE = 0.5  # of a probability
INPUTS = ("input_ids", "attention_mask", "input_ids_2", "attention_mask_2")  # of one text, or of a pair
FILE_NAME = "a plain name of a file inside the bundle's folder"
# devices, on Windows
RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{at}" for port in ("com", "lpt") for at in range(10))}
# letters that all systems allow in a file's name, and the slash
_PLAIN = re.compile(r"[^\\:*?\"<>|\x00-\x1f\x7f]*")


def read(folder: Path) -> Json:
    """A bundle's manifest. Raises UserError for a folder that is not a bundle, for damaged JSON, missing
    keys, a newer schema, and with every field that holds what no export writes, such as the name of a file
    outside the folder.
    """
    path = folder / "manifest.json"
    if not path.is_file():
        fact = "not a bundle (no manifest.json); create one with edgedistill export RUN"
        if (folder / "run.json").is_file():
            fact = f"a run, not a bundle; export it first with edgedistill export {folder}"
        raise UserError(f"{folder}: {fact}")
    if path.stat().st_size > LARGEST_BYTES or _leaves(folder, path.name):
        raise UserError(f"{path}: above {LARGEST_BYTES} bytes, or a link out of the folder; {COPY_AGAIN}")
    manifest = files.read_json_object(path, COPY_AGAIN, finite=True)
    schema = manifest.get("schema")
    if type(schema) is not int or schema < 1:
        raise UserError(f"{path}: no schema number, so it is not a bundle's manifest; {COPY_AGAIN}")
    if schema > SCHEMA:
        raise UserError(
            f"{path}: schema {schema}, this edgedistill reads up to {SCHEMA}; install a newer one"
        )
    if _is_deeper(manifest, MOST_NESTED):
        raise UserError(f"{path}: lists and mappings nested more than {MOST_NESTED} deep; {GET_AGAIN}")
    validated(Files if manifest.get("kind") == PAIR else Manifest, manifest, f"{path}: ", GET_AGAIN)
    return manifest


def width(manifest: Json) -> int:
    """The numbers in a row of the graph's output: a classifier's labels, or the dimensions of embeddings."""
    return len(manifest.get("labels", [])) or int(manifest["dims"][0])


def digest(manifest: Json) -> str:
    """The hash of a manifest, leaving out the digest that it may already hold."""
    return files.cache_key(**{name: value for name, value in manifest.items() if name != "digest"})


def changes(folder: Path, manifest: Json, names: Sequence[str]) -> list[str]:
    """One line for each of the named files that is missing, too large to be read, or whose sha256 differs,
    and for a manifest that does not match its digest.
    """
    facts = {name: _file_problem(folder, name, manifest["files"].get(name)) for name in names}
    if "digest" in manifest and manifest["digest"] != digest(manifest):
        facts = {"manifest.json": f"changed since export (its digest differs); {COPY_AGAIN}", **facts}
    return [f"{folder / name}: {fact}" for name, fact in facts.items() if fact]


def _file_problem(folder: Path, name: str, sha256: str | None) -> str | None:
    path = folder / name
    most = LARGEST_FILE_BYTES.get(path.suffix, LARGEST_OTHER_BYTES)
    if _leaves(folder, name):
        return f"a link out of the bundle's folder; {COPY_AGAIN}, with the files that links lead to"
    if not path.is_file():
        return f"missing; {COPY_AGAIN}"
    if path.stat().st_size > most:
        return f"{path.stat().st_size} bytes, such a file has at most {most}; {COPY_AGAIN}"
    if sha256 is None:
        return f"has no sha256 in manifest.json; {GET_AGAIN}"
    if files.sha256_file(path) != sha256:
        return f"changed since export (its sha256 differs from manifest.json); {COPY_AGAIN}"
    return None


def _leaves(folder: Path, name: str) -> bool:
    """Whether a file of the bundle, or a folder on the way to it, is a link that leads out of the bundle's
    folder."""
    try:
        return not (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a circle of links
        return True


# What fields may hold


def is_file_name(name: str) -> bool:
    """Whether this is the name of a file inside the bundle, on any system, such as onnx/model.onnx."""
    if len(name) > LONGEST_NAME or not _PLAIN.fullmatch(name):
        return False
    return all(
        part and part == part.rstrip(" .") and part.split(".")[0].lower() not in RESERVED
        for part in name.split("/")
    )


def is_text(value: str) -> bool:
    """Whether a string can be encoded: JSON can escape half a surrogate pair."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _file_name(value: str) -> str:
    if not is_file_name(value):
        raise ValueError(f"not {FILE_NAME}")
    return value


def _sorted(dims: list[int]) -> list[int]:
    if dims != sorted(set(dims), reverse=True):
        raise ValueError("not the largest first")
    return dims


P = TypeVar("P", bound=BaseModel)


class Part(BaseModel):
    """A mapping of a stranger's JSON: its values have the types and bounds that are declared here, and other
    keys are not looked at."""

    model_config = ConfigDict(strict=True, extra="ignore")


Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=r"^[^\pC\p{Zl}\p{Zp}]+$")]
Text = Annotated[str, Field(max_length=LONGEST_PROMPT)]
Time = Annotated[
    str,
    Field(pattern=r"^(19[7-9]|2\d\d)\d-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)$"),
    AfterValidator(lambda text: datetime.fromisoformat(text) and text),
]
FileName = Annotated[str, AfterValidator(_file_name)]
Identifier = Annotated[str, Field(max_length=LONGEST_NAME, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Space = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Dim = Annotated[int, Field(ge=1, le=LARGEST_DIM)]
Place = Annotated[int, Field(ge=1, le=MOST_PRECISIONS)]
Label = Annotated[str, Field(max_length=LONGEST_NAME)]


class Agreement(Part):
    """How a precision agrees with torch. There is no threshold while that is measured, at export."""

    threshold: Annotated[float, Field(ge=0, le=1)] | None = None


class Precision(Part):
    # onnxruntime reads an .ort file in another way, past our check of the graph
    file: Annotated[FileName, Field(pattern=r"\.onnx$")]
    size_bytes: int = Field(0, ge=0, le=2**40)
    rank: dict[str, Place] = {}
    parity: Agreement = Agreement()


class Calibration(Part):
    """What int8 and binary embeddings are made with, see runtime.compact."""

    int8_range: float = Field(1, gt=0, le=LARGEST_DIM)
    mean: list[Annotated[float, Field(ge=-1, le=1)]] | None = None


class Files(Part):
    """What a bundle and a pair of bundles have."""

    name: Name
    kind: Name
    files: dict[FileName, Hash] = Field(max_length=MOST_FILES)
    documents: Literal["mean"] = "mean"
    # what bench, the card and training read
    teacher: Text = ""  # may be a path
    made_at: Time = "2000-01-01T00:00:00Z"
    recipe: Json = {}
    student: Json = {}
    parameters: Json = {}
    versions: Json = {}
    run: Json = {}


class Manifest(Files):
    dims: Annotated[list[Dim], Field(min_length=1, max_length=MOST_DIMS), AfterValidator(_sorted)]
    max_tokens: int = Field(ge=1, le=MOST_TOKENS)
    prompt: Text
    query_prompt: Text = ""
    document_prompt: Text = ""
    precisions: dict[Identifier, Precision] = Field(min_length=1, max_length=MOST_PRECISIONS)
    output: Name
    pad_id: int = Field(0, ge=0, le=LARGEST_ID)
    labels: list[Label] = Field([], max_length=MOST_LABELS)
    inputs: list[str] = list(INPUTS[:2])
    calibration: Calibration = Calibration()
    space: Space | None = None
    shape: list[int] | None = None  # [1, max_tokens] of graphs that take no other

    @field_validator("inputs")
    @classmethod
    def _of_one_or_two_texts(cls, inputs: list[str]) -> list[str]:
        if inputs not in (list(INPUTS[:2]), list(INPUTS)):
            raise ValueError(f"not {', '.join(INPUTS[:2])} and, for pairs, {', '.join(INPUTS[2:])}")
        return inputs

    @model_validator(mode="after")
    def _fixed_shape_of_its_tokens(self) -> Self:
        if self.shape not in (None, [1, self.max_tokens]):
            raise ValueError(f"shape: {self.shape}, not [1, {self.max_tokens}]")
        return self

    @model_validator(mode="after")
    def _mean_of_an_embedding(self) -> Self:
        if self.calibration.mean is not None and len(self.calibration.mean) != self.dims[0]:
            raise ValueError(f"calibration.mean: {len(self.calibration.mean)} numbers, not {self.dims[0]}")
        return self

    @model_validator(mode="after")
    def _thresholds_mean_something(self) -> Self:
        lowest, highest = (0, LARGEST_DIFFERENCE) if self.labels else (LEAST_COSINE, 1)
        for name, precision in self.precisions.items():
            threshold = precision.parity.threshold
            if threshold is not None and not lowest <= threshold <= highest:
                raise ValueError(
                    f"precisions.{name}.parity.threshold: {threshold}, not {lowest} to {highest}"
                )
        return self


def validated(kind: type[P], data: Json, place: str, way_out: str) -> P:
    """A mapping of a stranger's JSON. Raises UserError with all that is wrong, *place key: fact; way out*."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        lines = map(_line, error.errors(include_url=False)[:MOST_PROBLEMS])
        raise UserError(*(f"{place}{line}; {way_out}" for line in lines)) from None


def _line(problem: Any) -> str:
    place = ".".join(escaped(str(part)) for part in problem["loc"] if part != "[key]")
    if problem["type"] == "missing":
        return f"{place}: missing"
    fact = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {shown(problem['input'])}: {fact}" if place else fact


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether containers lie in each other more than so many levels deep; without recursion, which would
    end."""
    level = [value]
    for _ in range(levels):
        containers = [value.values() if isinstance(value, dict) else value for value in level]
        level = [inner for container in containers for inner in container if isinstance(inner, dict | list)]
    return bool(level)
