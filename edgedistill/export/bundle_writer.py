"""run or model -> bundle: graphs in each precision, compared with torch before the folder is written
atomically."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto
from tokenizers import Tokenizer
from torch import nn

from edgedistill import machine, quantization
from edgedistill.errors import CheckFailed, UserError, raise_failed
from edgedistill.export import library_files, model_card, model_source, parity, static_shape
from edgedistill.files import (
    Json,
    cache_key,
    check_free,
    new_folder,
    portable,
    sha256_file,
    write_json,
    write_text,
)
from edgedistill.precisions import PRECISIONS, known_precisions
from edgedistill.quantization import fp16, graph_editor, sample_texts
from edgedistill.quantization.sample_texts import sentences
from edgedistill.run import Run
from edgedistill.runtime import bundle, golden_file
from edgedistill.runtime.compact import measured
from edgedistill.runtime.manifest import INPUTS, SCHEMA, changes, digest, read
from edgedistill.runtime.trust import graph_check
from edgedistill.session import Log
from edgedistill.students import graph, model_folder
from edgedistill.students.classifier import write as write_classifier

PACKAGES = ("onnx", "onnxruntime", "torch", "transformers", "tokenizers", "numpy")
TOLD_IN_FLOAT32 = 0.05  # of all weights; fewer are biases and small tables
MOST_IN_FLOAT32 = 0.9  # of all weights; a graph with more is in no other precision


def export(
    source: str | Path | model_source.Source,
    precisions: list[str],
    out: Path,
    log: Log,
    shape: str | None = None,
) -> Json:
    """Write a run or a model as a bundle at `out`, atomically. Returns {name, parameters, precisions, dims};
    of a classifier, labels in place of dims.

    `source` is a run's folder, or what `model_source.opened` takes as a model. An existing bundle at `out` is
    replaced, anything else is not. Raises UserError: neither run nor model, an unknown precision, the
    tokenizer of another student, a `shape` (1x128, which graphs take alone) of more tokens than the student
    reads. Raises CheckFailed when a graph does not give what torch gives: the bundle is written with the
    other precisions, or not at all where every precision failed.
    """
    precisions = known_precisions(precisions)
    tokens = static_shape.tokens(shape, precisions) if shape else None
    check_free(out, "name", True, "manifest.json", "a bundle")
    with model_source.opened(source) as run:
        if tokens and tokens > run.max_tokens:
            raise UserError(
                f"--shape {shape}: this student reads at most {run.max_tokens} tokens; give no more"
            )
        run.shape = run.shape | {"max_tokens": tokens or run.max_tokens}
        writer = (ClassifierWriter if run.labels else Writer)(run, out, log, bool(tokens))
        written, failed = writer.write(precisions)
        if failed:
            reasons = "; ".join(f"without {precision}: {error}" for precision, error in failed.items())
            fact = f"{out} was written with {', '.join(written)}, {reasons}"
            raise CheckFailed(fact, {"precisions": written} | _details(failed))
        about = writer.about if run.labels else {"dims": [run.dims, *run.matryoshka_dims]}
        return {"name": run.recipe.name, "parameters": run.parameters, "precisions": written, **about}


class Writer:
    """Writes the bundle of a student that embeds. What is not the same for a classifier is a method.

    module: the student in torch. golden: what it gives for the golden texts, whose token ids are `ids`.
    fp32: its graph, from which the precisions are converted. samples: the token ids that activations are
    measured on. fixed: {shape}, what the manifest has of graphs of a fixed shape, else nothing.
    """

    def __init__(self, run: Run, out: Path, log: Log, fixed: bool = False) -> None:
        self.run = run
        self.out = out
        self.log = log
        self.fixed = {"shape": [1, run.max_tokens]} if fixed else {}
        self.module, self.golden, self.fp32 = self.opened()
        self.ids = [row for item in self.golden.ids for row in item]
        self.samples = sample_texts.samples(parity.reader(run), self.ids)
        opened = run.tokenizer()
        self.space = run.space or space(run.shape, self.module, opened.backend_tokenizer)

    def opened(self) -> tuple[Any, golden_file.Golden, ModelProto]:
        """Module, golden texts and graph. Raises CheckFailed where that gives other embeddings than torch on
        random ids."""
        run = self.run
        student = self.run.student()
        golden = parity.by_torch(run, student)
        fp32 = graph.build(student)
        _check_operators(fp32, student)
        _log_similarity(run, self.log)
        worst = self._on_random_ids(student, fp32)
        measure = golden.measure
        if fact := measure.problem(worst, measure.required(PRECISIONS["fp32"]), "fp32", " on random ids"):
            raise CheckFailed(f"{self.out} was not written: its graph {fact}")
        return student, golden, fp32

    def converted(self, precision: str) -> tuple[ModelProto, list[str]]:
        """The graph in a precision, and the names of the products that 8 bits would lose."""
        model, kept = quantization.within_limit(self.fp32, precision, self.samples, self.ids)
        # what few bits lose is judged on texts
        if precision != "fp32" and not np.isfinite(self._on_random_ids(self.module, model)):
            raise CheckFailed(f"the {precision} graph gives rows that are not finite on random ids")
        return model, kept

    def write_files(self, folder: Path, precisions: list[str]) -> None:
        """Write tokenizer and configuration."""
        library_files.write(folder, self.run, self.module, precisions)

    @property
    def about(self) -> Json:
        """What parity.json says of the rows."""
        return {"dims": self.run.dims}

    @property
    def entries(self) -> Json:
        """What the manifest has beside the entries of every bundle: prompts, and the space of its embeddings,
        which all precisions of a student share."""
        return {**self.run.prompts.own, "space": self.space, **self.fixed}

    def card(self, final: Json) -> str:
        """The model card of the final manifest."""
        names = [] if self.fixed else library_files.libraries(self.module)
        return model_card.filled("encoder", final, libraries=names)

    def write(self, precisions: list[str]) -> tuple[Json, dict[str, CheckFailed]]:
        """Write the bundle; returns the manifest's entries of the precisions that passed their checks, and
        why the others failed. Raises CheckFailed where all of them failed."""
        written = {}
        failed = {}
        with new_folder(self.out) as folder:
            self.write_files(folder, precisions)
            for precision in precisions:
                try:
                    written[precision] = self._add(precision, folder)
                except CheckFailed as error:
                    failed[precision] = error
                    (folder / PRECISIONS[precision].file).unlink(missing_ok=True)
            if not written:
                first, *_ = errors = list(failed.values())
                reasons = "; ".join(dict.fromkeys(map(str, errors)))
                raise CheckFailed(f"{self.out} was not written: {reasons}", first.details | _details(failed))
            required = self.golden.measure.required
            limits = {name: required(PRECISIONS[name]) for name in written}
            texts = golden_file.content(self.golden, self.about, self.run.max_tokens, limits)
            write_json(folder / "parity.json", texts, compact=True)
            final = self._write_manifest(folder, written)
            opened = bundle.load(folder, next(iter(written)))
            # what embeddings in fewer bytes are made with
            calibration = None if self.run.labels else measured(opened.encode_document(sentences()))
            final |= {"calibration": calibration} if calibration else {}
            write_text(folder / "README.md", self.card(final))
            seal(folder, final)
            if self.out.exists():
                self.log(f"{self.out}: replaces the existing bundle")
        return written, failed

    def _add(self, precision: str, folder: Path) -> Json:
        """Write and check the graph of a precision; returns its entry in the manifest."""
        converted, kept = self.converted(precision)
        on_device = {}
        if precision == "fp16":  # what the device gives, not this CPU
            simulated = self._compared(precision, fp16.simulated(converted), folder)
            on_device = {key: simulated[key] for key in ("parity", "drift")}
        entry = self._compared(precision, converted, folder) | on_device
        if kept:
            rest = "w8" if precision == "int8" else "float32"
            self.log(f"{precision}: {len(kept)} products stay in {rest}: {', '.join(kept)}")
            entry["weights"] += f"; {len(kept)} of the products in {rest}, which lose the most in 8 bits"
        entry["weights"] += self._left_in_float32(converted, precision)
        self.log(parity.summary(precision, entry, self.golden))
        return entry

    def _write_manifest(self, folder: Path, precisions: Json) -> Json:
        """Write the manifest of these precisions; returns it."""
        content = manifest(folder, self.run, precisions) | self.entries
        write_json(folder / "manifest.json", content)
        return content

    def _on_random_ids(self, module: Any, model: ModelProto) -> float:
        """The smallest cosine of a graph's embeddings to torch's."""
        return graph.compare(module, model, self.run.max_tokens, library_files.vocabulary_size(module))

    def _compared(self, precision: str, model: ModelProto, folder: Path) -> Json:
        """Write a graph, open it as the only one of the bundle, and compare it; returns its entry."""
        row = PRECISIONS[precision]
        if self.fixed:
            model = static_shape.fixed(model, self.run.max_tokens)
        path = folder / row.file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(model.SerializeToString())
        entry = {
            "file": row.file,
            "sha256": sha256_file(path),
            "size_bytes": path.stat().st_size,
            "rank": row.rank._asdict(),
            "weights": row.description,
            "operators": _operators(model),
        }
        self._write_manifest(folder, {precision: entry})
        return entry | parity.compare(bundle.load(folder, precision=precision), self.golden)

    def _left_in_float32(self, converted: ModelProto, precision: str) -> str:
        """What to add to a precision's description where some matrices stay in float32. Raises CheckFailed
        where nearly all of them do."""
        left, share = graph_editor.left_in_float32(self.fp32, converted)
        if precision == "fp32" or share < TOLD_IN_FLOAT32:
            return ""
        names = ", ".join(left[:3]) + (", …" if left[3:] else "")
        fact = f"{len(left)} matrices with {share:.0%} of all weights stay in float32: {names}"
        if share > MOST_IN_FLOAT32:
            raise CheckFailed(
                f"the graph would be {precision} in name only, since {fact}; leave {precision} out"
            )
        self.log(f"{precision}: {fact}")
        return f"; {len(left)} matrices in float32"


class ClassifierWriter(Writer):
    """Writes the bundle of a classifier: labels in place of dimensions. Every graph is compared with torch on
    the golden items, alone and in one padded batch, whose texts have all lengths."""

    def opened(self) -> tuple[Any, golden_file.Golden, ModelProto]:
        classifier = self.run.classifier()
        return classifier, parity.logits_by_torch(self.run, classifier), write_classifier(classifier)

    def converted(self, precision: str) -> tuple[ModelProto, list[str]]:
        return quantization.convert(self.fp32, precision, self.samples), []

    def write_files(self, folder: Path, precisions: list[str]) -> None:
        """Write tokenizer files, and a config with the labels. Other libraries cannot open the bundle
        directly."""
        run = self.run
        library_files.write_tokenizer(folder, run)
        labels = dict(enumerate(run.labels))  # JSON's keys are texts
        ids = {label: at for at, label in labels.items()}
        config = {"model_type": f"edgedistill-{run.kind}-classifier", **run.shape}
        write_json(folder / "config.json", {**config, "id2label": labels, "label2id": ids})

    @property
    def about(self) -> Json:
        return {"labels": self.run.labels}

    @property
    def entries(self) -> Json:
        inputs = INPUTS[: 4 if self.module.pair else 2]
        return {"labels": self.run.labels, "inputs": inputs, "output": "logits", **self.fixed}

    def card(self, final: Json) -> str:
        return model_card.filled("classifier", final)


def _check_operators(model: ModelProto, student: Any) -> None:
    """Raise UserError for a traced graph with operators that bundles may not use."""
    allowed = {graph_check.full_name(*operator) for operator in graph_check.ALLOWED}
    if unknown := [name for name in _operators(model) if name not in allowed]:
        raise UserError(
            f"{type(getattr(student, 'model', student)).__name__}: an architecture whose graph has operators "
            f"that a bundle may not use ({', '.join(unknown)}); {model_folder.TEACH}"
        )


def _log_similarity(run: Run, log: Log) -> None:
    """Report a model whose embeddings another similarity compares than the cosine of a bundle's."""
    source = run.source
    if source and not source.is_unit and source.similarity != "cosine":
        log(
            f"{run.recipe.name}: the model's embeddings are of any length and compared by "
            f"{source.similarity} (similarity_fn_name); the bundle's have unit length, so they rank by "
            "cosine, perhaps in another order"
        )


def _operators(model: ModelProto) -> list[str]:
    """The operators that a runtime needs for a graph, sorted; those outside ONNX's own set with their
    domain."""
    return sorted({graph_check.full_name(node.domain, node.op_type) for node in model.graph.node})


def _details(failed: dict[str, CheckFailed]) -> Json:
    reasons = {precision: {"reason": str(error), **error.details} for precision, error in failed.items()}
    return {"failed": reasons}


def space(shape: Json, module: nn.Module, tokenizer: Tokenizer) -> str:
    """The identifier of a student's embeddings: the hash of its weights, and of what else decides what a text
    becomes: its shape, prompts among it, and its tokenizer. Where long texts are cut is left out."""
    reading = json.loads(tokenizer.to_str()) | {"padding": None, "truncation": None}
    rows = {name: value.detach().cpu().double().numpy() for name, value in module.state_dict().items()}
    weights = {name: hashlib.sha256(row.tobytes()).hexdigest() for name, row in rows.items()}
    return cache_key(shape=shape | {"max_tokens": 0}, tokenizer=reading, weights=weights)[:16]


def manifest(folder: Path, run: Run, precisions: Json) -> Json:
    """The manifest of the files that are in the folder now. `precisions` has {file, sha256, size_bytes,
    parity, drift} of each precision."""
    tokenizer = run.tokenizer()
    return {
        "schema": SCHEMA,
        "name": run.recipe.name,
        "kind": run.kind,
        "made_at": made_at(),
        "recipe": run.recipe.model_dump(mode="json", by_alias=True),
        "student": run.shape,
        "teacher": portable(run.recipe.teacher.name),
        "dims": [run.dims, *run.matryoshka_dims],
        "max_tokens": run.max_tokens,
        "prompt": run.prompt,
        "pad_id": tokenizer.pad_token_id or 0,
        "parameters": run.parameters,
        "precisions": precisions,
        "inputs": INPUTS[:2],
        "output": "sentence_embedding",
        "files": _hashes(folder),
        "versions": machine.versions(PACKAGES),
        "run": run.info,
    }


def made_at() -> str:
    """The time of an export, UTC, in ISO 8601."""
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def seal(folder: Path, manifest: Json) -> None:
    """Write the final manifest, with the hashes of all other files and a digest of itself."""
    final = manifest | {"files": _hashes(folder)}
    write_json(folder / "manifest.json", final | {"digest": digest(final)})


def copy(source: Path, folder: Path) -> None:
    """Copy a bundle's files, after their hashes are checked."""
    about = read(source)
    raise_failed(changes(source, about, sorted(about["files"])))
    for name in (*about["files"], "manifest.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, folder / name)


def _hashes(folder: Path) -> dict[str, str]:
    hashes = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if name != "manifest.json":
            hashes[name] = sha256_file(path)
    return hashes
