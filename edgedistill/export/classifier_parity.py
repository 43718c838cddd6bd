"""A classifier's golden items (texts or pairs): what torch gives for them, and whether each precision of a bundle gives the same."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from edgedistill.data.labelled_tasks import Item
from edgedistill.errors import CheckFailed
from edgedistill.export import golden_parity
from edgedistill.precisions import PRECISIONS
from edgedistill.quantization.golden_texts import golden_texts
from edgedistill.run import Run
from edgedistill.runtime import verify
from edgedistill.runtime.bundle import Bundle
from edgedistill.runtime.classification import probability_difference
from edgedistill.students.classifier import Classifier


class GoldenItems(NamedTuple):
    """What every runner must reproduce: items, the token ids of each of their texts, and logits (n, C) by torch, each item by itself.

    truncated: of each item, whether one of its texts has more tokens than its ids.
    """

    items: list[Item]
    ids: list[list[list[int]]]
    truncated: list[bool]
    logits: np.ndarray


def by_torch(run: Run, classifier: Classifier) -> GoldenItems:
    """The golden texts by the run's own tokenizer and classifier; for pairs, each text with the next but one."""
    tokenizer: Any = run.tokenizer()
    golden_parity.check_ids(run, tokenizer, classifier.encoder)

    def count(text: str) -> int:
        return len(tokenizer(run.prompt + text, verbose=False)["input_ids"])

    texts = golden_texts(tokenizer, run.prompt, run.max_tokens)
    items: list[Item] = [(text, texts[(at + 2) % len(texts)]) if classifier.pair else (text,) for at, text in enumerate(texts)]
    ids = [[tokenizer(run.prompt + text, truncation=True, max_length=run.max_tokens)["input_ids"] for text in item] for item in items]
    truncated = [any(count(text) > run.max_tokens for text in item) for item in items]
    with torch.inference_mode():
        logits = [
            classifier(*(each for row in rows for each in (torch.tensor([row]), torch.ones((1, len(row)), dtype=torch.long))))
            for rows in ids
        ]
    golden_parity.check_finite(items, torch.cat(logits))
    return GoldenItems(items, ids, truncated, torch.cat(logits).numpy())


def parity_file(run: Run, golden: GoldenItems, precisions: list[str]) -> dict[str, Any]:
    """parity.json: golden items, ids and logits, which any runner in any language can repeat."""
    return {
        "about": f"item i (a text, or a pair) -> ids i of each of its texts (unpadded, truncated to {run.max_tokens} tokens) -> logits i "
        "by torch in float32",
        "labels": run.labels,
        "probability_within": {precision: PRECISIONS[precision].probability_difference for precision in precisions},
        "texts": golden.items,
        "ids": golden.ids,
        "truncated": golden.truncated,
        "logits": [[round(value, 6) for value in row] for row in golden.logits.astype(np.float64).tolist()],
    }


def compare(opened: Bundle, golden: GoldenItems) -> dict[str, Any]:
    """{parity, drift} of one precision of a bundle.

    Raises CheckFailed where token ids differ, or a probability by more than PRECISIONS allows.
    """
    ids = opened.tokenize_items(golden.items)
    for at, (found, expected) in enumerate(zip(ids, golden.ids, strict=True)):
        if [row.tolist() for row in found] != expected:
            raise CheckFailed(
                f"{_name(golden, at)} has other token ids in the bundle than in the run; tokenizer.json lacks a "
                "part of the run's tokenizer",
                {"text": at, "ids": [row.tolist() for row in found], "expected": expected},
            )
    single = np.concatenate([opened.logits_ids([item]) for item in ids])
    batched = opened.logits_ids(ids, batch_tokens=2 * len(ids) * opened.max_tokens)
    _require(opened.precision, golden, single, "")
    _require(opened.precision, golden, batched, " in a batch with the others")
    difference, moved = probability_difference(single, golden.logits), probability_difference(single, batched)
    return {
        "parity": {
            "apart_mean": round(float(difference.mean()), 6),
            "apart_max": round(float(difference.max()), 6),
            "labels_kept": round(float((single.argmax(1) == golden.logits.argmax(1)).mean()), 4),
            "threshold": PRECISIONS[opened.precision].probability_difference,
        },
        "drift": {"mean": round(1 - float(moved.mean()), 6), "min": round(1 - float(moved.max()), 6)},
    }


def summary(precision: str, found: dict[str, Any]) -> str:
    """One line for the log of an export."""
    parity = found["parity"]
    return (
        f"{precision}: {found['size_bytes'] / 1e6:.2f} MB; difference of probabilities to torch {parity['apart_mean']:.4f} mean, "
        f"{parity['apart_max']:.4f} max"
    )


def _require(precision: str, golden: GoldenItems, logits: np.ndarray, where: str) -> None:
    required = PRECISIONS[precision]
    difference, threshold = probability_difference(logits, golden.logits), required.probability_difference
    at = int(np.argmax(difference))
    if difference[at] <= threshold:
        return
    raise CheckFailed(
        f"{_name(golden, at)} has a probability that differs by {difference[at]:.4f} from torch's{where}, "
        f"{precision} must stay within {threshold}; token ids agree, so the loss is in the arithmetic: {required.remedy}",
        {"text": at, "apart": float(difference[at]), "allowed": threshold},
    )


def _name(golden: GoldenItems, at: int) -> str:
    return f"item {at + 1} of {len(golden.items)} ({verify.quote(golden.items[at][0])})"
