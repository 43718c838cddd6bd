"""run or model -> bundle: graphs in each precision, compared with torch before the folder is written atomically."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from edgedistill import files, graph, quantization
from edgedistill.errors import CheckFailed, UserError, unknown_name
from edgedistill.export import classifier_parity, golden_parity, library_files, mixed_precision, model_card, model_source, sample_texts
from edgedistill.export.manifest_writer import manifest, seal
from edgedistill.quantization import PRECISIONS
from edgedistill.run import Run
from edgedistill.runtime import bundle
from edgedistill.session import Log

Ids = list[list[int]]
Found = dict[str, dict[str, Any]]  # precision -> its entry in the manifest


def export(
    source: str | Path, precisions: list[str], out: Path, log: Log, pooling: str | None = None, revision: str | None = None
) -> dict[str, Any]:
    """Write a run or a model as a bundle at `out`, atomically. Returns {name, parameters, precisions, dims}; of a classifier, labels
    in place of dims.

    source: a run's folder, or what `model_source.opened` takes as a model, with its `pooling` and `revision`.
    An existing bundle at `out` is replaced, anything else is not. Raises UserError: neither run nor model, an unknown precision, the
    tokenizer of another student. Raises CheckFailed when a graph does not give what torch gives: the bundle is written with the other
    precisions, or not at all where every precision failed.
    """
    precisions = _known(precisions)
    if out.exists() and not (out / "manifest.json").exists():
        raise UserError(f"{out}: already exists and is not a bundle; choose another name")
    with model_source.opened(str(source), pooling, revision) as run:
        write = _export_classifier if run.labels else _export_encoder
        found, failed = write(run, precisions, out, log)
        if failed:
            raise _incomplete(out, found["precisions"], failed)
        return {"name": run.recipe.name, "parameters": run.parameters, **found}


def _export_encoder(run: Run, precisions: list[str], out: Path, log: Log) -> tuple[dict[str, Any], dict[str, CheckFailed]]:
    student = run.student()
    golden = golden_parity.by_torch(run, student)
    model, measured = graph.build(student), sample_texts.samples(run, golden.ids)
    with files.new_folder(out) as folder:
        library_files.write(folder, run, student, precisions)

        def checked(precision: str) -> dict[str, Any]:
            learned = precision == _learned_precision(run)  # rounding to the nearest is what such a student was trained with
            quantized, kept = _quantized(model, precision, [] if learned and precision == "w4" else measured, golden.ids)
            worst = graph.compare(student, quantized, run.max_tokens, library_files.vocabulary_size(student))
            # random ids judge float32 only: what 8 bits lose is judged on texts. NaN is above nothing.
            if not worst > (PRECISIONS["fp32"].single_cosine if precision == "fp32" else -1):
                raise CheckFailed(f"the {precision} graph gives other embeddings than torch on random ids (cosine {worst:.4f})")
            entry = _write_graph(folder, quantized, precision)
            if kept:
                entry["weights"] += f"; {len(kept)} of the products in w8, which lose the most in int8"
                log(f"int8: {len(kept)} products stay in w8: {', '.join(kept)}")
            files.write_json(folder / "manifest.json", manifest(folder, run, {precision: entry}))
            entry |= golden_parity.compare(bundle.load(folder, precision=precision), golden)
            log(golden_parity.summary(precision, entry))
            return entry

        found, failed = _each(precisions, checked, folder, out)
        files.write_json(folder / "parity.json", golden_parity.parity_file(run, golden, list(found)), compact=True)
        final = manifest(folder, run, found)
        files.write_text(folder / "README.md", model_card.encoder_card(final, library_files.libraries(student, list(found))))
        seal(folder, final)
        _log_replaced(out, log)
    return {"precisions": found, "dims": final["dims"]}, failed


def _export_classifier(run: Run, precisions: list[str], out: Path, log: Log) -> tuple[dict[str, Any], dict[str, CheckFailed]]:
    classifier = run.classifier()
    golden = classifier_parity.by_torch(run, classifier)
    tokenizer: Any = run.tokenizer()
    model = graph.classifier.write(classifier, tokenizer.pad_token_id or 0)
    measured = sample_texts.samples(run, [row for item in golden.ids for row in item])
    vocabulary_size = library_files.vocabulary_size(classifier.encoder)
    worst = graph.compare_probabilities(classifier, model, run.max_tokens, vocabulary_size)
    if not worst <= PRECISIONS["fp32"].probability_difference:
        raise CheckFailed(f"{out} was not written: the graph gives other probabilities than torch on random ids (difference {worst:.4f})")
    entries = {"labels": run.labels, "inputs": bundle.INPUTS[: 4 if classifier.pair else 2], "output": "logits"}
    with files.new_folder(out) as folder:
        library_files.write_classifier(folder, run)

        def checked(precision: str) -> dict[str, Any]:
            entry = _write_graph(folder, quantization.convert(model, precision, measured), precision)
            files.write_json(folder / "manifest.json", manifest(folder, run, {precision: entry}) | entries)
            entry |= classifier_parity.compare(bundle.load(folder, precision=precision), golden)
            log(classifier_parity.summary(precision, entry))
            return entry

        found, failed = _each(precisions, checked, folder, out)
        files.write_json(folder / "parity.json", classifier_parity.parity_file(run, golden, list(found)), compact=True)
        final = manifest(folder, run, found) | entries
        files.write_text(folder / "README.md", model_card.classifier_card(final))
        seal(folder, final)
        _log_replaced(out, log)
    return {"precisions": found, "labels": run.labels}, failed


def _learned_precision(run: Run) -> str | None:
    """The precision that the run's last stage trained the student for."""
    return next((getattr(stage, "quantize", None) for stage in run.recipe.stages[-1:]), None)


def _quantized(model: onnx.ModelProto, precision: str, samples: Ids, golden: Ids) -> tuple[onnx.ModelProto, list[str]]:
    """An encoder's graph in a precision, and of int8 the layers that stay in w8."""
    if precision != "int8":
        return quantization.convert(model, precision, samples), []
    return mixed_precision.int8_with_w8(model, samples, golden)


def _each(precisions: list[str], checked: Callable[[str], dict[str, Any]], folder: Path, out: Path) -> tuple[Found, dict[str, CheckFailed]]:
    """Write and check every precision; the graph of one that fails is removed. Raises CheckFailed where all of them fail."""
    found: Found = {}
    failed: dict[str, CheckFailed] = {}
    for precision in precisions:
        try:
            found[precision] = checked(precision)
        except CheckFailed as error:
            failed[precision] = error
            (folder / PRECISIONS[precision].file).unlink(missing_ok=True)
    if not found:
        reasons = "; ".join(dict.fromkeys(map(str, failed.values())))
        raise CheckFailed(f"{out} was not written: {reasons}", next(iter(failed.values())).details | _details(failed))
    return found, failed


def _incomplete(out: Path, found: Found, failed: dict[str, CheckFailed]) -> CheckFailed:
    """The error of an export that wrote some of its precisions."""
    reasons = "; ".join(f"without {precision}: {error}" for precision, error in failed.items())
    return CheckFailed(f"{out} was written with {', '.join(found)}, {reasons}", {"precisions": found} | _details(failed))


def _details(failed: dict[str, CheckFailed]) -> dict[str, Any]:
    return {"failed": {precision: {"reason": str(error), **error.details} for precision, error in failed.items()}}


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
    return {
        "file": name,
        "sha256": files.sha256_file(path),
        "size_bytes": path.stat().st_size,
        "weights": PRECISIONS[precision].description,
        "operators": _operators(model),
    }


def _operators(model: onnx.ModelProto) -> list[str]:
    """The operators that a runtime needs for a graph, sorted; those outside ONNX's own set with their domain."""
    return sorted({f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in model.graph.node})


def _log_replaced(out: Path, log: Log) -> None:
    if out.exists():
        log(f"{out}: replaces the existing bundle")
