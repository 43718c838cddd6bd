"""An encoder's golden texts: what torch gives for them, and whether each precision of a bundle gives the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edgedistill.errors import CheckFailed, UserError
from edgedistill.export import library_files
from edgedistill.precisions import PRECISIONS
from edgedistill.quantization.golden_texts import golden_texts
from edgedistill.quantization.sample_texts import Reader
from edgedistill.run import Run
from edgedistill.runtime import verify
from edgedistill.runtime.bundle import Bundle
from edgedistill.students.model_folder import opening

SHORTEST = 1e-12  # of a length: what torch's normalize divides by at least


class GoldenTexts(NamedTuple):
    """What every runner must reproduce: texts, their token ids, and unit-length embeddings (n, d) by torch, each text by itself.

    truncated: of each text, whether it has more tokens than its ids.
    """

    texts: list[str]
    ids: list[list[int]]
    truncated: list[bool]
    embeddings: np.ndarray


def reader(run: Run) -> Reader:
    """How a run reads texts."""
    return Reader(run.tokenizer(), run.prompt, run.max_tokens)


def by_torch(run: Run, student: nn.Module) -> GoldenTexts:
    """The golden texts by the run's own tokenizer, in transformers, and its student, in torch.

    Raises UserError as `check_ids` and where an empty text has no tokens, CheckFailed as `check_finite` and `check_directions`.
    """
    tokenizer: Any = run.tokenizer()
    check_ids(run, tokenizer, student)
    if not tokenizer(run.prompt)["input_ids"]:
        fact = "adds no special tokens to a text, so an empty text has no tokens to embed"
        raise UserError(f"tokenizer: {fact}; train a student with another `student.tokenizer`, and export that")

    def count(text: str) -> int:
        return len(tokenizer(run.prompt + text, verbose=False)["input_ids"])

    texts = golden_texts(tokenizer, run.prompt, run.max_tokens)
    truncated = [count(text) > run.max_tokens for text in texts]
    ids = [tokenizer(run.prompt + text, truncation=True, max_length=run.max_tokens)["input_ids"] for text in texts]
    fails = opening(type(student).__name__, "torch cannot embed with it", "open it in transformers, and see there")
    with fails, torch.inference_mode():
        embeddings = [student(torch.tensor([row]), torch.ones((1, len(row)), dtype=torch.long)) for row in ids]
    check_finite(texts, torch.cat(embeddings))
    check_directions(texts, torch.cat(embeddings))
    return GoldenTexts(texts, ids, truncated, torch.nn.functional.normalize(torch.cat(embeddings), dim=-1).numpy())


def check_ids(run: Run, tokenizer: Any, student: nn.Module) -> None:
    """Raise UserError where a token's id, or one that the tokenizer adds to every text, has no row in the student's embedding table."""
    rows = library_files.vocabulary_size(student)
    largest = max(*tokenizer.get_vocab().values(), *tokenizer("")["input_ids"])
    if largest >= rows:
        fact = f"token ids up to {largest}, but an embedding table of {rows} rows"
        raise UserError(f"{run.tokenizer_folder}: {fact}; restore this student's tokenizer")


def check_finite(items: Sequence[Any], rows: torch.Tensor) -> None:
    """Raise CheckFailed where torch itself gives a golden text or item a row that is not finite."""
    finite = torch.isfinite(rows).all(-1)
    if not finite.all():
        at = int(finite.int().argmin())
        raise CheckFailed(
            f"text {at + 1} of {len(items)} ({verify.quote(str(items[at]))}) has no finite embedding in torch either, in float32: "
            "values inside the model overflow; restore its weights, or train it again"
        )


def check_directions(texts: Sequence[str], rows: torch.Tensor) -> None:
    """Raise CheckFailed where torch itself gives a golden text an embedding of only zeros, or too short for unit length."""
    short = rows.norm(dim=-1) <= SHORTEST
    if short.any():
        at = int(short.int().argmax())
        raise CheckFailed(
            f"text {at + 1} of {len(texts)} ({verify.quote(texts[at])}) has an embedding of only zeros in torch too, which has no "
            "direction; restore the model's weights, or choose one whose last layer cannot be all zero (behind a ReLU it can)"
        )


def parity_file(run: Run, golden: GoldenTexts, precisions: list[str]) -> dict[str, Any]:
    """parity.json: golden texts, ids and embeddings, which any runner in any language can repeat."""
    return {
        "about": f"text i -> ids i (unpadded, truncated to {run.max_tokens} tokens) -> vectors i, unit length, by torch in float32",
        "dims": run.dims,
        "cosine_at_least": {precision: PRECISIONS[precision].single_cosine for precision in precisions},
        "texts": golden.texts,
        "ids": golden.ids,
        "truncated": golden.truncated,
        "vectors": [[round(value, 6) for value in row] for row in golden.embeddings.astype(np.float64).tolist()],
    }


def compare(opened: Bundle, golden: GoldenTexts) -> dict[str, Any]:
    """{parity, drift} of one precision of a bundle.

    Raises CheckFailed where token ids differ, or a cosine is below what PRECISIONS requires. Token ids are compared first and apart
    from embeddings, so that a failure names the side that is wrong.
    """
    ids = opened.tokenize(golden.texts)
    for at, (found, expected) in enumerate(zip(ids, golden.ids, strict=True)):
        if found.tolist() != expected:
            raise CheckFailed(
                f"{_name(golden, at)} has other token ids in the bundle ({_short(found.tolist())}) than in the run "
                f"({_short(expected)}); the embeddings were not compared: tokenizer.json lacks a part of the run's tokenizer",
                {"text": at, "ids": found.tolist(), "expected": expected},
            )
    single = np.concatenate([opened.encode_ids([row]) for row in ids]).astype(np.float64)
    batched = opened.encode_ids(ids, batch_tokens=len(ids) * opened.max_tokens).astype(np.float64)
    to_torch, to_torch_batched = (single * golden.embeddings).sum(1), (batched * golden.embeddings).sum(1)
    required = PRECISIONS[opened.precision]
    _require(opened.precision, golden, to_torch, required.single_cosine, "")
    _require(opened.precision, golden, to_torch_batched, required.batched_cosine, " in a batch with the others")
    drift = (single * batched).sum(1)
    if not drift.min() >= required.batch_cosine:
        at = int(np.argmin(drift))
        raise CheckFailed(
            f"{_name(golden, at)} has a single vs. batched cosine of {drift[at]:.6f}, {opened.precision} must reach "
            f"{required.batch_cosine}; the graph mixes the texts of a batch: a bug, please report it",
            {"text": at, "drift": float(drift[at])},
        )
    return {
        "parity": {
            "cosine_mean": round(float(to_torch.mean()), 6),
            "cosine_min": _rounded_down(to_torch.min()),
            "batched_min": _rounded_down(to_torch_batched.min()),
            "threshold": required.single_cosine,
        },
        "drift": {"mean": round(float(drift.mean()), 6), "min": _rounded_down(drift.min())},
    }


def summary(precision: str, found: dict[str, Any]) -> str:
    """One line for the log of an export."""
    parity, drift = found["parity"], found["drift"]
    return (
        f"{precision}: {found['size_bytes'] / 1e6:.2f} MB; cosine to torch {parity['cosine_mean']:.5f} mean, "
        f"{parity['cosine_min']:.5f} min; single vs. batched cosine {drift['min']:.5f} min"
    )


def _require(precision: str, golden: GoldenTexts, cosines: np.ndarray, threshold: float, where: str) -> None:
    at = int(np.argmin(cosines))
    if cosines[at] >= threshold:
        return
    cosine, needed = verify.format_cosines(cosines[at], threshold)
    raise CheckFailed(
        f"{_name(golden, at)} came back at cosine {cosine}{where}, {precision} must reach {needed}; "
        f"token ids agree, so the loss is in the arithmetic: {PRECISIONS[precision].remedy}",
        {"text": at, "cosine": float(cosines[at]), "needed": threshold},
    )


def _name(golden: GoldenTexts, at: int) -> str:
    return f"text {at + 1} of {len(golden.texts)} ({verify.quote(golden.texts[at])})"


def _short(ids: list[int]) -> str:
    return " ".join(map(str, ids[:8])) + (" …" if len(ids) > 8 else "")


def _rounded_down(value: float) -> float:
    """Six digits, rounded down, so that a reported minimum was really reached. (float32 noise is reported as 0.999999.)"""
    return float(np.floor(value * 1e6) / 1e6)
