"""run or model -> bundle: graphs in each precision, compared with torch before the folder is written
atomically."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import onnx

from edgedistill import files, quantization
from edgedistill.errors import CheckFailed, UserError
from edgedistill.export import library_files, model_card, model_source, parity
from edgedistill.precisions import PRECISIONS, known_precisions
from edgedistill.quantization import TokenIds, graph_facts, mixed_precision, sample_texts
from edgedistill.run import Run, versions
from edgedistill.runtime import bundle, golden_file
from edgedistill.runtime.manifest import SCHEMA, digest
from edgedistill.runtime.trust import operators
from edgedistill.session import Log
from edgedistill.students import graph, model_folder

PACKAGES = ("onnx", "onnxruntime", "torch", "transformers", "tokenizers", "numpy")

MOST_IN_FLOAT32 = 0.9  # of the weights of products; a graph with more is in no other precision

Found = dict[str, dict[str, Any]]  # precision -> its entry in the manifest


def export(
    source: str | Path,
    precisions: list[str],
    out: Path,
    log: Log,
    pooling: str | None = None,
    revision: str | None = None,
    remote_code: bool = False,
) -> dict[str, Any]:
    """Write a run or a model as a bundle at `out`, atomically. Returns {name, parameters, precisions, dims};
    of a classifier, labels in place of dims.

    source: a run's folder, or what `model_source.opened` takes as a model, with its `pooling`, `revision` and
        `remote_code`.
    An existing bundle at `out` is replaced, anything else is not. Raises UserError: neither run nor model, an
    unknown precision, the tokenizer of another student. Raises CheckFailed when a graph does not give what
    torch gives: the bundle is written with the other precisions, or not at all where every precision failed.
    """
    precisions = known_precisions(precisions)
    if out.exists() and not (out / "manifest.json").exists():
        raise UserError(f"{out}: already exists and is not a bundle; choose another name")
    with model_source.opened(str(source), pooling, revision, remote_code) as run:
        content = _content(run, precisions, log)
        found, failed = _write(run, content, precisions, out, log)
        if failed:
            raise _incomplete(out, found, failed)
        dims = {"dims": [run.dims, *run.matryoshka_dims]}
        about = content.about if run.labels else dims
        return {"name": run.recipe.name, "parameters": run.parameters, "precisions": found, **about}


class Content(NamedTuple):
    """What differs between the bundles of encoders and of classifiers.

    golden is what torch gives for the golden texts, and fp32 the graph that precisions are converted from.
    convert gives the graph of a precision and what is added to the precision's description, or raises
    CheckFailed. write_files writes tokenizer and configuration into a folder. about is in parity.json: the
    dims, or the labels. entries go into the manifest, beside those of every bundle. card makes the model card
    of the final manifest.
    """

    golden: golden_file.Golden
    fp32: onnx.ModelProto
    convert: Callable[[str], tuple[onnx.ModelProto, str]]
    write_files: Callable[[Path], None]
    about: dict[str, Any]
    entries: dict[str, Any]
    card: Callable[[dict[str, Any]], str]


def _content(run: Run, precisions: list[str], log: Log) -> Content:
    """What goes into the bundle of a run. A classifier has a room beside the line, which is entered here."""
    if not run.labels:
        return _encoder(run, precisions, log)
    from edgedistill.classification import export

    return export.content(run)


def _encoder(run: Run, precisions: list[str], log: Log) -> Content:
    student = run.student()
    golden = parity.by_torch(run, student)
    model, measured = graph.build(student), sample_texts.samples(parity.reader(run), golden.ids)
    _check_operators(model, student)
    source = model_folder.read(run.model_folder) if run.model_folder.is_dir() else None
    if source and not source.is_unit and source.similarity != "cosine":
        fact = (
            f"the model's embeddings are of any length and compared by {source.similarity} "
            "(similarity_fn_name)"
        )
        log(
            f"{run.recipe.name}: {fact}; the bundle's have unit length, so they rank by cosine, perhaps in "
            "another order"
        )

    def convert(precision: str) -> tuple[onnx.ModelProto, str]:
        quantized, kept = _quantized(model, precision, measured, golden.ids)
        worst = graph.compare(student, quantized, run.max_tokens, library_files.vocabulary_size(student))
        # random ids judge float32 only: what 8 bits lose is judged on texts. NaN is above nothing.
        if not worst > (PRECISIONS["fp32"].single_cosine if precision == "fp32" else -1):
            raise CheckFailed(
                f"the {precision} graph gives other embeddings than torch on random ids (cosine {worst:.4f})"
            )
        if not kept:
            return quantized, ""
        log(f"int8: {len(kept)} products stay in w8: {', '.join(kept)}")
        return quantized, f"; {len(kept)} of the products in w8, which lose the most in int8"

    return Content(
        golden,
        model,
        convert,
        lambda folder: library_files.write(folder, run, student, precisions),
        {"dims": run.dims},
        {},
        lambda final: model_card.encoder_card(
            final, library_files.libraries(student, list(final["precisions"]))
        ),
    )


def _write(
    run: Run, content: Content, precisions: list[str], out: Path, log: Log
) -> tuple[Found, dict[str, CheckFailed]]:
    """Write the bundle; returns the precisions that passed their checks, and why the others failed."""
    with files.new_folder(out) as folder:
        content.write_files(folder)

        def compared(precision: str, quantized: onnx.ModelProto) -> dict[str, Any]:
            entry = _write_graph(folder, quantized, precision)
            files.write_json(
                folder / "manifest.json", manifest(folder, run, {precision: entry}) | content.entries
            )
            return entry | parity.compare(bundle.load(folder, precision=precision), content.golden)

        def checked(precision: str) -> dict[str, Any]:
            quantized, addition = content.convert(precision)
            device = quantization.simulated(quantized, precision)
            simulated = compared(precision, device) if device is not None else {}
            entry = compared(precision, quantized)
            entry |= {
                key: simulated[key] for key in ("parity", "drift") if key in simulated
            }  # what the device gives, not this CPU
            entry["weights"] += addition + _left_in_float32(content.fp32, quantized, precision, log)
            log(parity.summary(precision, entry, content.golden))
            return entry

        found, failed = _each(precisions, checked, folder, out)
        limits = {precision: content.golden.measure.required(PRECISIONS[precision]) for precision in found}
        files.write_json(
            folder / "parity.json",
            golden_file.content(content.golden, content.about, run.max_tokens, limits),
            compact=True,
        )
        final = manifest(folder, run, found) | content.entries
        files.write_text(folder / "README.md", content.card(final))
        seal(folder, final)
        _log_replaced(out, log)
    return found, failed


def _quantized(
    model: onnx.ModelProto, precision: str, samples: TokenIds, golden: TokenIds
) -> tuple[onnx.ModelProto, list[str]]:
    """An encoder's graph in a precision, and of int8 the layers that stay in w8."""
    if precision != "int8":
        return quantization.convert(model, precision, samples), []
    return mixed_precision.int8_with_w8(model, samples, golden)


def _each(
    precisions: list[str], checked: Callable[[str], dict[str, Any]], folder: Path, out: Path
) -> tuple[Found, dict[str, CheckFailed]]:
    """Write and check every precision; the graph of one that fails is removed. Raises CheckFailed where all
    of them fail."""
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
        raise CheckFailed(
            f"{out} was not written: {reasons}", next(iter(failed.values())).details | _details(failed)
        )
    return found, failed


def _incomplete(out: Path, found: Found, failed: dict[str, CheckFailed]) -> CheckFailed:
    """The error of an export that wrote some of its precisions."""
    reasons = "; ".join(f"without {precision}: {error}" for precision, error in failed.items())
    return CheckFailed(
        f"{out} was written with {', '.join(found)}, {reasons}", {"precisions": found} | _details(failed)
    )


def _details(failed: dict[str, CheckFailed]) -> dict[str, Any]:
    return {
        "failed": {precision: {"reason": str(error), **error.details} for precision, error in failed.items()}
    }


def _write_graph(folder: Path, model: onnx.ModelProto, precision: str) -> dict[str, Any]:
    if found := graph_facts.not_finite(model):
        raise CheckFailed(f"the {precision} graph's {found}; {PRECISIONS[precision].remedy}")
    name = PRECISIONS[precision].file
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return {
        "file": name,
        "sha256": files.sha256_file(path),
        "size_bytes": path.stat().st_size,
        "rank": PRECISIONS[precision].rank._asdict(),
        "weights": PRECISIONS[precision].description,
        "operators": _operators(model),
    }


def _check_operators(model: onnx.ModelProto, student: Any) -> None:
    """Raise UserError for a traced graph with operators that bundles may not use."""
    allowed = {operators.full_name(*each) for each in operators.ALLOWED}
    if unknown := [name for name in _operators(model) if name not in allowed]:
        fact = f"an architecture whose graph has operators that a bundle may not use ({', '.join(unknown)})"
        raise UserError(f"{type(getattr(student, 'model', student)).__name__}: {fact}; {model_folder.TEACH}")


def _left_in_float32(fp32: onnx.ModelProto, quantized: onnx.ModelProto, precision: str, log: Log) -> str:
    """What to add to a precision's description where some products stay in float32. Raises CheckFailed where
    nearly all of them do."""
    left, share = graph_facts.left_in_float32(fp32, quantized)
    if precision == "fp32":
        return ""
    names = ", ".join(f"{layer} ({operator})" for layer, operator in list(left.items())[:3]) + (
        ", …" if len(left) > 3 else ""
    )
    if share > MOST_IN_FLOAT32:
        fact = (
            f"{len(left)} products with {share:.0%} of their weights stay in float32: {names}"
            if left
            else "it converts nothing"
        )
        raise CheckFailed(f"the graph would be {precision} in name only, since {fact}; leave {precision} out")
    if not left:
        return ""
    log(f"{precision}: {len(left)} products with {share:.1%} of their weights stay in float32: {names}")
    return f"; {len(left)} products in float32"


def _operators(model: onnx.ModelProto) -> list[str]:
    """The operators that a runtime needs for a graph, sorted; those outside ONNX's own set with their
    domain."""
    return sorted(
        {f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in model.graph.node}
    )


def _log_replaced(out: Path, log: Log) -> None:
    if out.exists():
        log(f"{out}: replaces the existing bundle")


def manifest(folder: Path, run: Run, precisions: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the files that are in the folder now. precisions: {file, sha256, size_bytes, parity,
    drift} of each precision."""
    tokenizer: Any = run.tokenizer()
    return {
        "schema": SCHEMA,
        "name": run.recipe.name,
        "kind": run.kind,
        "made_at": time.strftime(
            "%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
        ),
        "recipe": run.recipe.model_dump(mode="json", by_alias=True),
        "student": run.shape,
        "teacher": run.recipe.teacher.name,
        "dims": [run.dims, *run.matryoshka_dims],
        "max_tokens": run.max_tokens,
        "prompt": run.prompt,
        "pad_id": tokenizer.pad_token_id or 0,
        "parameters": run.parameters,
        "precisions": precisions,
        "inputs": ["input_ids", "attention_mask"],
        "output": "sentence_embedding",
        "files": _hashes(folder),
        "versions": versions(PACKAGES),
        "run": run.info,
    }


def seal(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the final manifest, with the hashes of all other files and a digest of itself."""
    final = manifest | {"files": _hashes(folder)}
    files.write_json(folder / "manifest.json", final | {"digest": digest(final)})


def _hashes(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(folder).as_posix(): files.sha256_file(path) for path in paths}
