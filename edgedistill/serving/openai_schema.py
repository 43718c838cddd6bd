"""OpenAI's embedding requests, answers and errors: read and checked, written."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from edgedistill.errors import UserError
from edgedistill.runtime.bundle import Bundle
from edgedistill.runtime.compact import compact, layout
from edgedistill.runtime.similarity import unit_rows

# input_type, as Cohere, Voyage and NVIDIA have it, -> our role
ROLES = {
    **dict.fromkeys(("query", "search_query"), "query"),
    **dict.fromkeys(("document", "passage", "search_document"), "document"),
}
# output_dtype, as Voyage and Mistral have it, -> our precision of embeddings; their `binary` is int8
DTYPES = {"float": "float32", "int8": "int8", "ubinary": "binary", "binary": "binary"}
KEYS = ("input", "model", "encoding_format", "dimensions", "output_dtype", "input_type", "user")
TYPES = {
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


@dataclass(eq=False)
class Refusal(Exception):
    """A request that is answered with an error. `message`: place: fact; way out. `param`, `code`: as OpenAI's
    errors have them."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] | None = None

    def body(self) -> bytes:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return orjson.dumps(
            {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
        )


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """The texts of a request, what they are (text, query or document), the dimensions to return, of which
    type, and whether as base64 instead of numbers."""

    texts: list[str]
    role: str
    dim: int
    dtype: str
    base64: bool


@dataclass(frozen=True)
class RequestReader:
    """Reads requests to one bundle. max_texts: per request. max_chars: per text, for tokenizing takes time
    before it truncates."""

    bundle: Bundle
    max_texts: int
    max_chars: int

    def read(self, body: bytes | bytearray) -> EmbeddingRequest:
        """Raises Refusal for what is not JSON in UTF-8, and for keys and values that are not understood."""
        try:
            asked = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            message = f"body: not JSON ({error}); send JSON in UTF-8"
            raise Refusal(400, message, None, "invalid_json") from None
        if not isinstance(asked, dict):
            raise Refusal(400, f'body: {TYPES[type(asked)]}, not an object; send {{"input": …, "model": …}}')
        for key in asked:
            if key not in KEYS:
                raise Refusal(
                    400, f"{key}: not known here; leave it out ({', '.join(KEYS)})", key, "unknown_parameter"
                )
        self.check_model(asked.get("model"))
        encoding = asked.get("encoding_format") or "float"
        if encoding not in ("float", "base64"):
            raise Refusal(
                400, f"encoding_format: {_shown(encoding)}; choose float or base64", "encoding_format"
            )
        dim = self._dim(asked.get("dimensions"))
        dtype = self._dtype(asked.get("output_dtype") or "float", dim)
        if encoding == "base64" and dtype != "float":  # which clients, as openai's, read as float32
            fact = f"base64 is of float alone, and output_dtype is {dtype}"
            raise Refusal(400, f"encoding_format: {fact}; send encoding_format float", "encoding_format")
        return EmbeddingRequest(self._texts(asked), self._role(asked), dim, dtype, encoding == "base64")

    def _role(self, asked: dict[str, Any]) -> str:
        given = asked.get("input_type")
        if given is not None and (not isinstance(given, str) or given not in ROLES):
            way_out = f"choose {', '.join(ROLES)}, or leave it out"
            raise Refusal(400, f"input_type: {_shown(given)}; {way_out}", "input_type")
        role = "text" if given is None else ROLES[given]
        try:
            self.bundle.of(role)
        except UserError:
            fact = f"missing, and {self.bundle.manifest['name']} is a pair of encoders"
            raise Refusal(400, f"input_type: {fact}; send query or document", "input_type") from None
        return role

    def _texts(self, asked: dict[str, Any]) -> list[str]:
        if "input" not in asked:
            raise Refusal(
                400,
                "input: missing; send a string or a list of strings",
                "input",
                "missing_required_parameter",
            )
        given = asked["input"]
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts:
            found = "an empty list" if texts == [] else TYPES[type(texts)]
            raise Refusal(400, f"input: {found}; send a string or a list of strings", "input")
        if len(texts) > self.max_texts and not isinstance(texts[0], int):
            raise Refusal(
                400,
                f"input: {len(texts)} texts, at most {self.max_texts} are allowed; send them in several "
                "requests",
                "input",
            )
        for at, text in enumerate(texts):
            if not isinstance(text, str):
                raise Refusal(400, _not_a_text(at, text), "input")
            if not text:  # as OpenAI does: it is mostly a mistake of the caller's
                raise Refusal(
                    400, f"input[{at}]: an empty string; leave it out, or send a space instead", "input"
                )
            if len(text) > self.max_chars:
                fact = f"{len(text)} characters, at most {self.max_chars} are allowed"
                raise Refusal(
                    400, f"input[{at}]: {fact}; {self.bundle.max_tokens} tokens are read, send less", "input"
                )
        return texts

    def _dim(self, asked: Any) -> int:
        try:
            return self.bundle.embedding_dim(asked)
        except UserError as error:
            message = f"dimensions: {str(error).removeprefix('dim=')}"
            raise Refusal(400, message, "dimensions") from None

    def _dtype(self, asked: Any, dim: int) -> str:
        if not isinstance(asked, str) or asked not in DTYPES:
            raise Refusal(400, f"output_dtype: {_shown(asked)}; choose {', '.join(DTYPES)}", "output_dtype")
        try:
            layout(DTYPES[asked], dim, "output_dtype")
        except UserError as error:
            raise Refusal(400, str(error), "output_dtype") from None
        return asked

    def check_model(self, asked: Any) -> None:
        """Raises Refusal for a model that this server does not have."""
        name = self.bundle.manifest["name"]
        if asked not in (None, name, f"{name}:{self.bundle.precision}"):
            raise Refusal(
                404, f"model: no {_shown(asked)} here; this server has {name}", "model", "model_not_found"
            )


def response(bundle: Bundle, asked: EmbeddingRequest, embeddings: np.ndarray, tokens: int) -> bytes:
    """OpenAI's answer: (n, d) float32 embeddings, in the type asked for, as lists of numbers; float32 also
    as base64 of their little-endian bytes. Raises Refusal where int8 would not hold one."""
    try:
        rows = compact(cut(embeddings, asked.dim), DTYPES[asked.dtype], bundle.calibration)
    except UserError as error:
        raise Refusal(400, str(error).replace("precision", "output_dtype", 1), "output_dtype") from None
    if asked.dtype == "binary":
        rows = (rows ^ 128).view(np.int8)  # 128 less
    given = [base64.b64encode(row).decode() for row in rows.astype("<f4")] if asked.base64 else rows
    data = [{"object": "embedding", "index": at, "embedding": each} for at, each in enumerate(given)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return orjson.dumps(
        {"object": "list", "data": data, "model": bundle.manifest["name"], "usage": usage},
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def cut(embeddings: np.ndarray, dim: int) -> np.ndarray:
    """The first `dim` components of each embedding, normalized again, as the bundle does."""
    return embeddings if dim == embeddings.shape[1] else unit_rows(embeddings[:, :dim])


def _not_a_text(at: int, given: Any) -> str:
    if isinstance(given, int | list) and not isinstance(given, bool):
        reason = "ids of another model's tokenizer would give wrong embeddings unseen"
        return (
            f"input[{at}]: token ids ({TYPES[type(given)]}); {reason}, send strings (LangChain: "
            "check_embedding_ctx_length=False)"
        )
    return f"input[{at}]: {TYPES[type(given)]}, not a string; send strings"


def _shown(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}…"
