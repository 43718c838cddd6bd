"""run -> bundle: graphs in each precision, compared with torch before the folder is written atomically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from edgedistill import files, graph, quantization
from edgedistill.errors import CheckFailed, UserError, unknown_name
from edgedistill.export import classifier_parity, golden_parity, library_files, model_card
from edgedistill.export.manifest_writer import manifest, seal
from edgedistill.quantization import PRECISIONS
from edgedistill.run import Run, open_run
from edgedistill.runtime import bundle
from edgedistill.session import Log


def export(run_folder: Path, precisions: list[str], out: Path, log: Log) -> dict[str, Any]:
    """Write a run as a bundle at `out`, atomically. Returns {name, parameters, precisions, dims}; labels in place of dims for a classifier.

    An existing bundle at `out` is replaced, anything else is not. Raises UserError: not a run, an unknown precision, the tokenizer of
    another student. Raises CheckFailed, and writes nothing, when a graph does not give what torch gives.
    """
    precisions = _known(precisions)
    if out.exists() and not (out / "manifest.json").exists():
        raise UserError(f"{out}: already exists and is not a bundle; choose another name")
    run = open_run(run_folder)
    found = _export_classifier(run, precisions, out, log) if run.labels else _export_encoder(run, precisions, out, log)
    return {"name": run.recipe.name, "parameters": run.parameters, **found}


def _export_encoder(run: Run, precisions: list[str], out: Path, log: Log) -> dict[str, Any]:
    student = run.student()
    golden = golden_parity.by_torch(run, student)
    model = graph.build(student)
    found: dict[str, Any] = {}
    with files.new_folder(out) as folder:
        library_files.write(folder, run, student, half="fp32" not in precisions)
        for precision in precisions:
            quantized = quantization.convert(model, precision)
            worst = graph.compare(student, quantized, run.max_tokens, library_files.vocabulary_size(student))
            # random ids judge float32 only: what 8 bits lose is judged on texts. NaN is above nothing.
            if not worst > (PRECISIONS["fp32"].single_cosine if precision == "fp32" else -1):
                raise CheckFailed(
                    f"{out} was not written: the {precision} graph gives other embeddings than torch on random ids (cosine {worst:.4f})"
                )
            found[precision] = _write_graph(folder, quantized, precision)
        files.write_json(folder / "parity.json", golden_parity.parity_file(run, golden, precisions), compact=True)
        for precision in precisions:
            files.write_json(folder / "manifest.json", manifest(folder, run, found))
            found[precision] |= golden_parity.compare(bundle.load(folder, precision=precision), golden, out)
            log(golden_parity.summary(precision, found[precision]))
        final = manifest(folder, run, found)
        files.write_text(folder / "README.md", model_card.encoder_card(final, library_files.libraries(student, precisions)))
        seal(folder, final)
        _log_replaced(out, log)
    return {"precisions": found, "dims": final["dims"]}


def _export_classifier(run: Run, precisions: list[str], out: Path, log: Log) -> dict[str, Any]:
    classifier = run.classifier()
    golden = classifier_parity.by_torch(run, classifier)
    tokenizer: Any = run.tokenizer()
    model = graph.classifier.write(classifier, tokenizer.pad_token_id or 0)
    vocabulary_size = library_files.vocabulary_size(classifier.encoder)
    worst = graph.compare_probabilities(classifier, model, run.max_tokens, vocabulary_size)
    if not worst <= PRECISIONS["fp32"].probability_difference:
        raise CheckFailed(f"{out} was not written: the graph gives other probabilities than torch on random ids (difference {worst:.4f})")
    found: dict[str, Any] = {}
    inputs = bundle.INPUTS[: 4 if classifier.pair else 2]
    entries = {"labels": run.labels, "inputs": inputs, "output": "logits"}
    with files.new_folder(out) as folder:
        library_files.write_classifier(folder, run)
        for precision in precisions:
            found[precision] = _write_graph(folder, quantization.convert(model, precision), precision)
        files.write_json(folder / "parity.json", classifier_parity.parity_file(run, golden, precisions), compact=True)
        for precision in precisions:
            files.write_json(folder / "manifest.json", manifest(folder, run, found) | entries)
            found[precision] |= classifier_parity.compare(bundle.load(folder, precision=precision), golden, out)
            log(classifier_parity.summary(precision, found[precision]))
        final = manifest(folder, run, found) | entries
        files.write_text(folder / "README.md", model_card.classifier_card(final))
        seal(folder, final)
        _log_replaced(out, log)
    return {"precisions": found, "labels": run.labels}


def _known(precisions: list[str]) -> list[str]:
    """The requested precisions, each once, fp32 first."""
    if not precisions:
        raise UserError(f"--precision: none given; choose from {', '.join(PRECISIONS)}")
    unknown = [precision for precision in precisions if precision not in PRECISIONS]
    if unknown:
        raise UserError(*(f"--precision: {unknown_name('precision', precision, PRECISIONS)}" for precision in dict.fromkeys(unknown)))
    return [precision for precision in PRECISIONS if precision in precisions]


def _write_graph(folder: Path, model: onnx.ModelProto, precision: str) -> dict[str, Any]:
    name = PRECISIONS[precision].file
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return {"file": name, "sha256": files.sha256_file(path), "size_bytes": path.stat().st_size}


def _log_replaced(out: Path, log: Log) -> None:
    if out.exists():
        log(f"{out}: replaces the existing bundle")
