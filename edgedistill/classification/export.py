"""A classifier's run -> the content of its bundle: graph, golden items, files, card."""

from __future__ import annotations

from pathlib import Path

from edgedistill import files, quantization
from edgedistill.classification import classifier as classifiers
from edgedistill.classification.bundle import PROBABILITY
from edgedistill.classification.classifier import Classifier
from edgedistill.export import library_files, model_card, parity
from edgedistill.export.bundle_writer import Content
from edgedistill.quantization import sample_texts
from edgedistill.run import Run
from edgedistill.runtime.golden_file import Golden
from edgedistill.runtime.manifest import INPUTS


def content(run: Run) -> Content:
    """The content of a classifier's bundle. Every graph is compared with torch on the golden items, alone and
    in one padded batch, whose texts have all lengths."""
    classifier = classifiers.read(run)
    golden = _by_torch(run, classifier)
    model = classifiers.write(classifier, parity.reader(run).tokenizer.pad_token_id or 0)
    measured = sample_texts.samples(parity.reader(run), [row for item in golden.ids for row in item])
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
