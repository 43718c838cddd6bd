"""bundle -> mobile package: a folder with graphs for a phone, checked against the bundle before it is written
atomically."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import onnx

from edgedistill import files
from edgedistill.device.tokenizer_equality import TextTokenizer, first_difference
from edgedistill.errors import CheckFailed, UserError, quote, require
from edgedistill.mobile.string_graph import (
    EXTENSIONS,
    NoSuchGraph,
    extensions_library,
    open_session,
    strings,
)
from edgedistill.mobile.tokenizer_graph import INPUT, ids_by, joined, tokenizer_graph
from edgedistill.runtime import bundle as bundles
from edgedistill.runtime.onnx_session import open_in_memory
from edgedistill.session import Log

SCHEMA = 1
MANIFEST, README = "mobile.json", Path(__file__).with_name("readme.md.jinja")
SAME_COSINE = 0.9999  # a graph in the package and the bundle's own, for the same text
SMALL_TYPES = {"INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1"}
BUNDLED, CALLERS = ("tokenizer.json", "parity.json"), ("Encoder.kt", "Encoder.swift")  # files that are copied
OWN_TOKENIZER = (
    "add --ids for a graph that takes token ids, and tokenize on the phone with the tokenizers library and "
    "tokenizer.json"
)
CONFIG = "required_operators.config"
TEXTS_MODEL, IDS_MODEL = "model_with_tokenizer.onnx", "model.onnx"


def write(
    bundle: str | Path, out: Path, precision: str | None, log: Log, ids: bool = False
) -> dict[str, Any]:
    """Write a mobile package of one precision of a bundle at `out`, atomically. Returns its mobile.json.

    The package has a graph with the tokenizer in it, in ONNX and in the ORT format. With `ids` it has the
    bundle's own graph only, in the ORT format, which needs a tokenizer on the phone. An existing package at
    `out` is replaced, anything else is not.

    Raises UserError where onnxruntime-extensions is missing, for a classifier, and where there is no such
    bundle or precision. Raises CheckFailed, and leaves nothing at `out`, where the graph gives other token
    ids than tokenizer.json on any adversarial text, and where the embeddings of the golden texts are not the
    bundle's.
    """
    require("onnxruntime_extensions", "edgedistill mobile", "mobile")
    files.check_free(out, "name", True, MANIFEST, "a mobile package")
    opened = bundles.load(bundle, precision)
    if opened.labels:
        raise UserError(
            f"{opened.manifest['name']}: a classifier; only encoders can be made into a mobile package"
        )
    if len(opened.encoders) > 1:
        way_out = f"give one of them, {opened.folder}/query"
        raise UserError(f"{opened.manifest['name']}: a pair of encoders, and a package has one; {way_out}")
    with files.new_folder(out) as folder:
        found = _Package(opened, folder, out, log).write(ids)
    return found


@dataclass(frozen=True)
class _Package:
    """A package that is being written in `folder` and will be called `out`."""

    opened: bundles.Bundle
    folder: Path
    out: Path
    log: Log

    def write(self, ids: bool) -> dict[str, Any]:
        about = self.opened.manifest
        source = self.opened.graph_file
        encoder = onnx.load(source)
        self._refuse_small_types(encoder)
        (self.folder / IDS_MODEL).write_bytes(source.read_bytes())
        tokenizer = None if ids else self._add_tokenizer(encoder)
        _convert(sorted(self.folder.glob("*.onnx")), self.folder)
        (self.folder / IDS_MODEL).unlink()  # it is the bundle's own
        found = {
            "schema": SCHEMA,
            **{key: about[key] for key in ("name", "dims", "max_tokens", "prompt", "output")},
            **self.opened.prompts.own,
            "pad_id": about.get("pad_id", 0),
            "precision": self.opened.precision,
            "bundle": about.get("digest"),
            "takes": "ids" if ids else "texts",
            "versions": {
                name: require(name, "edgedistill mobile", "mobile").__version__
                for name in ("onnxruntime", "onnxruntime_extensions")
            },
            "tokenizer": tokenizer,
            "parity": {path.name: self._check(path) for path in sorted(self.folder.glob("*.o*"))},
        }
        callers = files.shipped("runner")["mobile"].parent
        for path in (*(self.opened.folder / name for name in BUNDLED), *(callers / name for name in CALLERS)):
            (self.folder / path.name).write_bytes(path.read_bytes())
        readme = jinja2.Template(README.read_text(encoding="utf-8"), trim_blocks=True, lstrip_blocks=True)
        (self.folder / "README.md").write_text(readme.render(found), encoding="utf-8")
        found["files"] = {
            path.name: {"sha256": files.sha256_file(path), "size_bytes": path.stat().st_size}
            for path in sorted(self.folder.iterdir())
        }
        files.write_json(self.folder / MANIFEST, found)
        return found

    def _refuse_small_types(self, encoder: onnx.ModelProto) -> None:
        types = {onnx.TensorProto.DataType.Name(each.data_type) for each in encoder.graph.initializer}
        if small := types & SMALL_TYPES:
            fact = (
                f"precision {self.opened.precision} has {', '.join(sorted(small))} tensors, for which the "
                "ORT format has no type"
            )
            others = self.opened.manifest["precisions"].keys() - {self.opened.precision}
            way_out = f"choose {' or '.join(sorted(others)) or 'int8, exported from its run'}"
            raise UserError(f"{self.opened.manifest['name']}: {fact}; {way_out}")

    def _add_tokenizer(self, encoder: onnx.ModelProto) -> dict[str, Any]:
        """Write the graph that takes texts. Returns {texts, operators}: how many texts were compared, what
        onnxruntime-extensions runs."""
        manifest, prompts = self.opened.manifest, self.opened.prompts
        if prompts.text and prompts.own:
            fact = f"puts the prompt {quote(prompts.text)} before queries and documents too"
            raise self._refused(f"its graph {fact}")
        tokenizer = bundles.open_tokenizer(self.opened.folder, self.opened.max_tokens)
        text = TextTokenizer(tokenizer, manifest["prompt"], self.opened.max_tokens, manifest.get("pad_id", 0))
        try:
            graph = tokenizer_graph(text)
        except NoSuchGraph as fact:
            raise self._refused(f"its tokenizer cannot be built into the graph: {fact}") from None
        count, difference = first_difference(ids_by(graph, text.pad_id), text, "in the graph")
        if difference is not None:
            raise self._refused(f"the tokenizer in the graph is not the bundle's: {difference}", text=count)
        self.log(
            f"tokenizer in the graph: the same token ids as tokenizer.json for {count:,} adversarial texts"
        )
        onnx.save(joined(graph, encoder, manifest["output"]), str(self.folder / TEXTS_MODEL))
        operators = {node.op_type for node in graph.nodes if node.domain == EXTENSIONS}
        return {"texts": count, "operators": sorted(operators)}

    def _refused(self, fact: str, way_out: str = OWN_TOKENIZER, **details: Any) -> CheckFailed:
        return CheckFailed(f"{self.out} was not written: {fact}; {way_out}", details)

    def _check(self, path: Path) -> float:
        """The lowest cosine, over the golden texts, of a graph in the package and the bundle. Raises
        CheckFailed where it is too low."""
        texts = files.read_json(self.opened.folder / "parity.json")["texts"]
        ids = self.opened.tokenize(texts)
        if path.stem == Path(TEXTS_MODEL).stem:
            session = open_session(path)
            inputs = [{INPUT: strings([text])} for text in texts]
        else:
            session = open_in_memory(str(path))
            inputs = [
                {"input_ids": row[None], "attention_mask": np.ones((1, len(row)), np.int64)} for row in ids
            ]
        rows = [session.run([self.opened.manifest["output"]], each)[0] for each in inputs]
        expected = np.concatenate([self.opened.encode_ids([row]) for row in ids]).astype(np.float64)
        cosines = (np.concatenate(rows) * expected).sum(1)
        at = int(np.argmin(cosines))
        if not cosines[at] >= SAME_COSINE:
            text = f"text {at + 1} of {len(ids)} ({quote(texts[at])})"
            fact = (
                f"{path.name}: {text} came back at cosine {cosines[at]:.6f} to the bundle's own "
                f"embedding, {SAME_COSINE} is needed"
            )
            raise self._refused(fact, "another precision may convert better", cosine=float(cosines[at]))
        self.log(
            f"{path.name}: {path.stat().st_size / 1e6:.2f} MB; cosine to the bundle's embeddings "
            f"{cosines[at]:.6f} at least"
        )
        return float(np.floor(cosines[at] * 1e6) / 1e6)


# ---- onnxruntime's own tools for phones


def _convert(models: list[Path], folder: Path) -> None:
    """Write each X.onnx as X.ort into the folder, and CONFIG with what a reduced build of onnxruntime needs.

    They are optimized for every CPU alike: onnxruntime's layout for x86 is left out, as onnxruntime's own
    converter does.
    """
    from onnxruntime.tools import convert_onnx_models_to_ort as converter

    logging.getLogger("ort_format_model.utils").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stdout(io.StringIO()):
        source, target = Path(temporary) / "onnx", Path(temporary) / "ort"
        source.mkdir()
        for model in models:
            (source / model.name).write_bytes(model.read_bytes())
        converter.convert_onnx_models_to_ort(
            source,
            target,
            [converter.OptimizationStyle.Fixed],
            Path(extensions_library()),
            "arm",
            enable_type_reduction=True,
        )
        for path in target.glob("*.ort"):
            (folder / path.name).write_bytes(path.read_bytes())
        written = (target / "required_operators_and_types.config").read_text(encoding="utf-8")
    # without the converter's paths, and without the operators that onnxruntime-extensions brings itself
    kept = [line for line in written.splitlines() if line and not line.startswith(("#", EXTENSIONS))]
    names = ", ".join(model.with_suffix(".ort").name for model in models)
    head = f"# What {names} need: build.sh --include_ops_by_config {CONFIG} …"
    (folder / CONFIG).write_text("\n".join([head, *kept, ""]), encoding="utf-8")
