"""What torch gives for the golden texts, and whether each precision of a bundle gives the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from edgedistill.errors import CheckFailed, UserError
from edgedistill.export import library_files
from edgedistill.files import Json
from edgedistill.precisions import PRECISIONS
from edgedistill.quantization.sample_texts import Reader
from edgedistill.run import Run
from edgedistill.runtime import golden_file
from edgedistill.runtime.bundle import Bundle
from edgedistill.runtime.golden_file import Golden
from edgedistill.runtime.similarity import COSINE, PROBABILITY, Measure, not_finite
from edgedistill.students.classifier import Classifier
from edgedistill.students.model_folder import opening

SHORTEST = 1e-12  # of a length: what torch's normalize divides by at least


def reader(run: Run) -> Reader:
    """How a run reads texts."""
    return Reader(run.tokenizer(), run.prompt, run.max_tokens)


def checked_reader(run: Run, encoder: Any) -> Reader:
    """How a run reads texts. Raises UserError where an empty text has no tokens, and where a token's id, or
    one that the tokenizer adds to every text, has no row in the student's embedding table."""
    read = reader(run)
    largest = max(*read.tokenizer.get_vocab().values(), *read.tokenizer("")["input_ids"])
    if largest >= (vocabulary_size := library_files.vocabulary_size(encoder)):
        raise UserError(
            f"{run.tokenizer_folder}: token ids up to {largest}, but an embedding table of {vocabulary_size} "
            "rows; restore this student's tokenizer"
        )
    if not read.tokenizer(run.prompt)["input_ids"]:
        raise UserError(
            "tokenizer: adds no special tokens to a text, so an empty text has no tokens to embed; train a "
            "student with another `student.tokenizer`, and export that"
        )
    return read


def by_torch(run: Run, student: Any) -> Golden:
    """The golden texts by the run's own tokenizer, in transformers, and its student, in torch.

    Raises CheckFailed where torch itself gives an embedding that is not finite, or one of zeros, and as
    `checked_reader`.
    """
    read = checked_reader(run, student)
    items = [([text], "text") for text in read.golden_texts()]
    items += [([text], role) for text, role in golden_file.texts_in_roles(run.prompts)]
    golden = _golden(run, read, student, COSINE, items)
    lengths = np.linalg.norm(golden.rows, axis=1)
    if lengths.min() <= SHORTEST:
        raise CheckFailed(
            f"{golden.name(int(lengths.argmin()))} has an embedding of only zeros in torch too, which has no "
            "direction; restore the model's weights, or choose one whose last layer cannot be all zero "
            "(behind a ReLU it can)"
        )
    rows = torch.nn.functional.normalize(torch.from_numpy(golden.rows), dim=-1)
    return golden._replace(rows=rows.numpy())


def logits_by_torch(run: Run, classifier: Classifier) -> Golden:
    """The golden texts, for pairs each with the next but one, and torch's logits of them. Raises as
    `by_torch`."""
    read = checked_reader(run, classifier.encoder)
    texts = read.golden_texts()
    pairs = zip(texts, [*texts[2:], *texts[:2]], strict=True)
    items = [([*pair][: 1 + classifier.pair], "text") for pair in pairs]
    return _golden(run, read, classifier, PROBABILITY, items)


def _golden(
    run: Run, read: Reader, module: Any, measure: Measure, items: list[tuple[list[str], str]]
) -> Golden:
    """What torch gives for items, each the texts and their role, by itself. Raises CheckFailed where that is
    not finite."""
    ids = []
    outputs = []
    way_out = "open it in transformers, and see there"
    fails = opening(type(module).__name__, "torch cannot embed with it", way_out)
    for texts, role in items:
        reader = read._replace(prompt=run.prompts.of(role))
        ids.append(reader.token_ids(texts))
    with fails, torch.inference_mode():
        for item in ids:
            columns = [torch.tensor([row]) for row in item]
            outputs.append(module(*(part for row in columns for part in (row, torch.ones_like(row)))))
    roles = [role for _, role in items] if run.prompts.own else []
    rows = torch.cat(outputs).numpy()
    golden = Golden(measure, [texts for texts, _ in items], ids, rows, roles)
    if (at := not_finite(golden.rows)) is not None:
        raise CheckFailed(
            f"{golden.name(at)} has no finite embedding in torch either, in float32: "
            "values inside the model overflow; restore its weights, or train it again"
        )
    return golden


def compare(opened: Bundle, golden: Golden) -> Json:
    """{parity, drift} of one precision of a bundle: its values to torch's, each text by itself, and to those
    in one padded batch.

    Raises CheckFailed where token ids differ, or a value is worse than PRECISIONS requires. Token ids are
    compared first and apart from rows, so that a failure names the side that is wrong.
    """
    for at, ids, expected in golden_file.different_ids(opened, golden):
        raise CheckFailed(
            f"{golden.name(at)} has other token ids in the bundle ({_short(ids)}) than in the run "
            f"({_short(expected)}); nothing else was compared: tokenizer.json lacks a part of the run's "
            "tokenizer",
            {"text": at, "ids": ids, "expected": expected},
        )
    measure = golden.measure
    precision = opened.precision
    row = PRECISIONS[opened.precision]
    threshold = measure.required(row)
    single = golden_file.rows(opened, golden)
    batched = golden_file.rows(opened, golden, together=True)
    values = measure.between(single, golden.rows)
    others = measure.between(batched, golden.rows)
    for measured, where in ((values, ""), (others, " in a batch with the others")):
        at = measure.worst_of(measured)
        if fact := measure.problem(measured[at], threshold, precision, where):
            raise CheckFailed(
                f"{golden.name(at)} {fact}; token ids agree, so the loss is in the arithmetic: {row.remedy}",
                {"text": at, measure.name: float(measured[at]), "needed": threshold},
            )
    drift = measure.agreement(measure.between(single, batched))
    required = measure.required_drift(row)
    at = int(np.argmin(drift))
    if not drift[at] >= required:
        raise CheckFailed(
            f"{golden.name(at)} has a single vs. batched cosine of {drift[at]:.6f}, {precision} must reach "
            f"{required}; the graph mixes the texts of a batch: a bug, please report it",
            {"text": at, "drift": float(drift[at])},
        )
    return {
        "parity": {
            f"{measure.name}_mean": round(float(values.mean()), 6),
            f"{measure.name}_{measure.worst}": measure.rounded(values),
            f"batched_{measure.worst}": measure.rounded(others),
            "threshold": threshold,
        },
        "drift": {"mean": round(float(drift.mean()), 6), "min": COSINE.rounded(drift)},
    }


def summary(precision: str, entry: Json, golden: Golden) -> str:
    """One line for the log of an export."""
    measure = golden.measure
    mean, worst, *_ = entry["parity"].values()
    return (
        f"{precision}: {entry['size_bytes'] / 1e6:.2f} MB; {measure.about} to torch {mean:.5f} mean, "
        f"{worst:.5f} {measure.worst}; single vs. batched cosine {entry['drift']['min']:.5f} min"
    )


def _short(ids: list[list[int]]) -> str:
    tokens = [str(token) for row in ids for token in row]
    return " ".join([*tokens[:8], "…"] if tokens[8:] else tokens)
