"""A classifier's run -> the content of its bundle: graph, golden items, files, card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from edgedistill import files, quantization
from edgedistill.classification import classifier as classifiers
from edgedistill.classification.bundle import PROBABILITY
from edgedistill.classification.classifier import Classifier
from edgedistill.export import library_files, model_card, parity
from edgedistill.export.bundle_writer import Content, Writer
from edgedistill.quantization import sample_texts
from edgedistill.run import Run
from edgedistill.runtime.golden_file import Golden
from edgedistill.runtime.manifest import INPUTS


class ClassifierWriter(Writer):
    """Writes the bundle of a classifier: labels in place of dimensions. Every graph is compared with torch on
    the golden items, alone and in one padded batch, whose texts have all lengths."""

    def opened(self) -> Content:
        classifier, read = classifiers.read(self.run), parity.reader(self.run)
        golden = _by_torch(self.run, classifier)
        model = classifiers.write(classifier, read.tokenizer.pad_token_id or 0)
        ids = [row for item in golden.ids for row in item]
        return Content(classifier, golden, model, sample_texts.samples(read, ids))

    def converted(self, precision: str) -> tuple[onnx.ModelProto, list[str]]:
        return quantization.convert(self.content.fp32, precision, self.content.samples), []

    def write_files(self, folder: Path, precisions: list[str]) -> None:
        """Write tokenizer files, and a config with the labels. Other libraries cannot open the bundle
        directly."""
        run = self.run
        library_files.write_tokenizer(folder, run)
        labels = {
            "id2label": {str(at): label for at, label in enumerate(run.labels)},
            "label2id": {name: at for at, name in enumerate(run.labels)},
        }
        config = {"model_type": f"edgedistill-{run.kind}-classifier", **run.shape, **labels}
        files.write_json(folder / "config.json", config)

    @property
    def about(self) -> dict[str, Any]:
        return {"labels": self.run.labels}

    @property
    def entries(self) -> dict[str, Any]:
        inputs = INPUTS[: 4 if self.content.module.pair else 2]
        return {"labels": self.run.labels, "inputs": inputs, "output": "logits"}

    def card(self, final: dict[str, Any]) -> str:
        return model_card.filled("classifier", final)


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
