"""A classifier's run -> the content of its bundle: graph, golden items, files, card."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch

from edgedistill import files, quantization
from edgedistill.classification import classifier as classifiers
from edgedistill.classification.bundle import PROBABILITY
from edgedistill.classification.classifier import Classifier
from edgedistill.errors import CheckFailed
from edgedistill.export import library_files, model_card, parity
from edgedistill.export.bundle_writer import Content
from edgedistill.precisions import PRECISIONS
from edgedistill.quantization import sample_texts
from edgedistill.run import Run
from edgedistill.runtime.golden_file import Golden
from edgedistill.runtime.manifest import INPUTS
from edgedistill.runtime.onnx_session import open_in_memory
from edgedistill.students import graph_parity

SHAPES = ((1, 1, 0), (1, 0, 3), (3, 7, 7), (17, 33, 5))  # (batch, tokens of each text); 0: max_tokens


def content(run: Run, out: Path) -> Content:
    """The content of a classifier's bundle. Raises CheckFailed where the fp32 graph does not give what torch
    gives."""
    classifier = classifiers.read(run)
    golden = _by_torch(run, classifier)
    model = classifiers.write(classifier, parity.reader(run).tokenizer.pad_token_id or 0)
    measured = sample_texts.samples(parity.reader(run), [row for item in golden.ids for row in item])
    worst = _compare(classifier, model, run.max_tokens)
    if not worst <= PRECISIONS["fp32"].probability_difference:
        raise CheckFailed(
            f"{out} was not written: the graph gives other probabilities than torch on random ids "
            f"(difference {worst:.4f})"
        )
    return Content(
        golden,
        model,
        lambda precision: (quantization.convert(model, precision, measured), ""),
        lambda folder: _write_files(folder, run),
        {"labels": run.labels},
        {"labels": run.labels, "inputs": INPUTS[: 4 if classifier.pair else 2], "output": "logits"},
        model_card.classifier_card,
    )


def _by_torch(run: Run, classifier: Classifier) -> Golden:
    """The golden texts, for pairs each with the next but one, and torch's logits of them. Raises as the
    line's `parity.by_torch`."""
    read = parity.checked_reader(run, classifier.encoder)
    texts = read.golden_texts()
    items = [(text, texts[(at + 2) % len(texts)])[: 1 + classifier.pair] for at, text in enumerate(texts)]
    ids = [read.token_ids(list(item)) for item in items]
    truncated = [any(read.is_truncated(text) for text in item) for item in items]
    golden = Golden(PROBABILITY, items, ids, truncated, parity.rows_by_torch(classifier, ids).numpy())
    parity.check_finite(golden)
    return golden


def _compare(classifier: Classifier, model: onnx.ModelProto, max_tokens: int) -> float:
    """The largest difference of a graph's probabilities to torch's, on random ids at several lengths."""
    session, random, worst = open_in_memory(model.SerializeToString()), np.random.default_rng(0), 0.0
    most = library_files.vocabulary_size(classifier.encoder)
    for batch, *lengths in SHAPES:
        arrays: list[np.ndarray] = []
        for length in lengths[: 1 + classifier.pair]:
            arrays += graph_parity.random_text(random, batch, min(length or max_tokens, max_tokens), most)
        with torch.inference_mode():
            expected = classifier(*map(torch.from_numpy, arrays)).numpy()
        inputs = dict(zip(INPUTS, arrays, strict=False))
        found = graph_parity.run(session, "logits", inputs)
        graph_parity.check_shape(found, expected, inputs)
        worst = float(np.maximum(worst, PROBABILITY.between(found, expected).max()))
    return worst


def _write_files(folder: Path, run: Run) -> None:
    """Write a classifier's tokenizer files, and a config with its labels. Other libraries cannot open its
    bundle directly."""
    library_files.write_tokenizer(folder, run)
    labels = {
        "id2label": {str(at): label for at, label in enumerate(run.labels)},
        "label2id": {name: at for at, name in enumerate(run.labels)},
    }
    files.write_json(
        folder / "config.json", {"model_type": f"edgedistill-{run.kind}-classifier", **run.shape, **labels}
    )
