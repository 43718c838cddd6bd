"""OpenAI's embedding requests, answers and errors: read and checked, written."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from starlette.responses import Response

from edgedistill.errors import UserError, shown
from edgedistill.runtime.bundle import Bundle
from edgedistill.runtime.compact import compact, layout
from edgedistill.runtime.similarity import unit_rows
from edgedistill.runtime.trust.tokenizer_check import distinct

# input_type, as Cohere, Voyage and NVIDIA have it, -> our role
ROLES = {
    "query": "query",
    "search_query": "query",
    "document": "document",
    "passage": "document",
    "search_document": "document",
}
# output_dtype, as Voyage and Mistral have it, -> our precision of embeddings; their `binary` is int8
DTYPES = {"float": "float32", "int8": "int8", "ubinary": "binary", "binary": "binary"}
CODES = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter"}
TOKEN_IDS = (
    "token ids of another model's tokenizer would give wrong embeddings unseen; send strings (LangChain: "
    "check_embedding_ctx_length=False)"
)


@dataclass(eq=False)
class Refusal(Exception):
    """A request that is answered with an error. `message`: place: fact; way out. `param`, `code`: as OpenAI's
    errors have them."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] | None = None

    def response(self) -> Response:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return json_response({"error": error}, self.status, self.headers)


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, status, headers, media_type="application/json")


class EmbeddingRequest(BaseModel):
    """What a request may hold; `limited` bounds its texts."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: list[str]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    output_dtype: Literal["float", "int8", "ubinary", "binary"] | None = None
    input_type: Literal["query", "search_query", "document", "passage", "search_document"] | None = None
    user: str | None = None

    @property
    def dtype(self) -> str:
        return self.output_dtype or "float"

    @property
    def role(self) -> str:
        return ROLES[self.input_type] if self.input_type else "text"


def limited(max_texts: int, max_chars: int) -> type[EmbeddingRequest]:
    """EmbeddingRequest with bounds: an empty text is mostly a mistake of the caller's, and a long one takes
    time before it is truncated."""
    text = Annotated[str, Field(min_length=1, max_length=max_chars)]
    texts = Annotated[
        list[text],
        Field(min_length=1, max_length=max_texts),
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ]
    return create_model("EmbeddingRequest", __base__=EmbeddingRequest, input=(texts, ...))


class RequestReader:
    """Reads requests to one bundle. max_texts: per request. max_chars: per text. names: that a client may
    give for the bundle, beside its own."""

    def __init__(self, bundle: Bundle, max_texts: int, max_chars: int, names: tuple[str, ...] = ()) -> None:
        self.bundle = bundle
        self.kind = limited(max_texts, max_chars)
        self.names = (bundle.manifest["name"], *names)

    def read(self, body: bytes | bytearray) -> EmbeddingRequest:
        """Raises Refusal for what is not JSON in UTF-8, and for keys and values that are not understood."""
        try:
            request = self.kind.model_validate(json.loads(body, object_pairs_hook=distinct))
        except ValidationError as error:
            raise _refusal(error.errors(include_url=False)[0]) from None
        except (ValueError, RecursionError) as error:
            message = f"body: not JSON ({error}); send JSON in UTF-8"
            raise Refusal(400, message, None, "invalid_json") from None
        self.check_model(request.model)
        if request.encoding_format == "base64" and request.dtype != "float":
            # which clients, as openai's, read as float32
            raise Refusal(
                400,
                f"encoding_format: base64 is of float alone, and output_dtype is {request.dtype}; send "
                "encoding_format float",
                "encoding_format",
            )
        param = "dimensions"
        try:
            dim = self.bundle.embedding_dim(request.dimensions)
            param = "output_dtype"
            layout(DTYPES[request.dtype], dim, "")
            param = "input_type"
            self.bundle.of(request.role)
        except UserError as error:
            raise _refused(param, error) from None
        return request

    def check_model(self, model: str | None) -> None:
        """Raises Refusal for a model that this server does not have."""
        precision = self.bundle.precision
        if model not in (None, *self.names, *(f"{name}:{precision}" for name in self.names)):
            message = f"model: no {shown(model)} here; this server has {', '.join(self.names)}"
            raise Refusal(404, message, "model", "model_not_found")


def _refusal(problem: Any) -> Refusal:
    """The first problem of a request in our words."""
    param, *places = problem["loc"] or ["body"]
    place = param + "".join(f"[{number}]" for number in places)
    message = f"{place}: {problem['msg']}"
    if param == "input" and places and isinstance(problem["input"], int | list):
        message = f"{place}: {TOKEN_IDS}"
    elif problem["type"] == "extra_forbidden":
        message = f"{place}: not known here; leave it out ({', '.join(EmbeddingRequest.model_fields)})"
    return Refusal(400, message, param, CODES.get(problem["type"]))


def _refused(param: str, error: UserError) -> Refusal:
    """What a function refuses, under the name that a request has for its argument."""
    fact = re.sub(r"^(dim=|precision: |: )", "", str(error))
    return Refusal(400, f"{param}: {fact}", param)


def response(
    bundle: Bundle, request: EmbeddingRequest, embeddings: np.ndarray, tokens: Counter[str]
) -> Response:
    """OpenAI's answer: (n, d) float32 embeddings, in the type asked for, as lists of numbers; float32 also
    as base64 of their little-endian bytes. `tokens`: those `read`, `cut` and `unknown`. Raises Refusal where
    int8 would clip them."""
    dim = bundle.embedding_dim(request.dimensions)
    if dim < embeddings.shape[1]:
        embeddings = unit_rows(embeddings[:, :dim])
    try:
        rows: Any = compact(embeddings, DTYPES[request.dtype], bundle.calibration)
    except UserError as error:
        raise _refused("output_dtype", error) from None
    if request.dtype == "binary":
        rows = (rows ^ 128).view(np.int8)  # 128 less
    if request.encoding_format == "base64":
        rows = [base64.b64encode(row).decode() for row in rows.astype("<f4")]
    data = [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(rows)]
    usage = {"prompt_tokens": tokens["read"], "total_tokens": tokens["read"]}
    usage |= {"tokens_cut": tokens["cut"], "tokens_unknown": tokens["unknown"]}
    answer = {"object": "list", "data": data, "model": request.model or bundle.manifest["name"]}
    return json_response({**answer, "usage": usage, "space": bundle.space})
