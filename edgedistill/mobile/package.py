"""bundle -> mobile package: a folder with graphs for a phone, checked against the bundle before it is written
atomically."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgedistill import files
from edgedistill.errors import CheckFailed, UserError, quote, require, unknown_name
from edgedistill.mobile import ort_format, package_readme, tokenizer_equality, usability_report
from edgedistill.mobile.graph_session import open_session, strings
from edgedistill.mobile.string_graph import EXTENSIONS, NoSuchGraph, StringGraph
from edgedistill.mobile.tokenizer_graph import INPUT, TextTokenizer, joined, tokenizer_graph
from edgedistill.runtime import bundle as bundles
from edgedistill.runtime.onnx_session import open_in_memory
from edgedistill.session import Log

SCHEMA = 1
INPUTS = ("texts", "ids")
SAME_COSINE = 0.9999  # a graph in the package and the bundle's own, for the same text
SMALL_TYPES = {"INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1"}
TEXTS_MODEL, IDS_MODEL = "model_with_tokenizer.onnx", "model.onnx"


def write(
    bundle: str | Path, out: Path, precision: str | None, log: Log, takes: str = "texts"
) -> dict[str, Any]:
    """Write a mobile package of one precision of a bundle at `out`, atomically. Returns its mobile.json.

    takes: "texts" for a graph with the tokenizer in it, in ONNX and in the ORT format; "ids" for the bundle's
        own graph only, in the
    ORT format, which needs a tokenizer on the phone. An existing package at `out` is replaced, anything else
    is not.

    Raises UserError where onnxruntime-extensions is missing, for a classifier, and where there is no such
    bundle or precision. Raises CheckFailed, and leaves nothing at `out`, where the graph gives other token
    ids than tokenizer.json on any text of the adversarial corpus, and where the embeddings of the golden
    texts are not the bundle's.
    """
    require("onnxruntime_extensions", "mobile", "mobile")
    if takes not in INPUTS:
        raise UserError(f"takes: {unknown_name('input', takes, INPUTS)}")
    if out.exists() and not (out / package_readme.MANIFEST).exists():
        raise UserError(f"{out}: already exists and is not a mobile package; choose another name")
    opened = bundles.load(bundle, precision)
    if opened.labels:
        raise UserError(
            f"{opened.manifest['name']}: a classifier; only encoders can be made into a mobile package"
        )
    with files.new_folder(out) as folder:
        found = _Package(opened, folder, out, log).write(takes)
    return found


@dataclass(frozen=True)
class _Package:
    """A package that is being written. folder: where; out: what it will be called."""

    opened: bundles.Bundle
    folder: Path
    out: Path
    log: Log

    def write(self, takes: str) -> dict[str, Any]:
        source = self.opened.folder / self.opened.manifest["precisions"][self.opened.precision]["file"]
        encoder = onnx.load(source)
        self._refuse_small_types(encoder)
        (self.folder / IDS_MODEL).write_bytes(source.read_bytes())
        models, tokenizer = [self.folder / IDS_MODEL], None
        if takes == "texts":
            tokenizer = self._add_tokenizer(encoder)
            models.append(self.folder / TEXTS_MODEL)
        ort_format.convert(models, self.folder)
        report, usability = usability_report.usability(self.folder / IDS_MODEL)
        (self.folder / IDS_MODEL).unlink()  # it is the bundle's own
        (self.folder / package_readme.USABILITY).write_text(report, encoding="utf-8")
        parity = {path.name: self._check(path) for path in sorted(self.folder.glob("*.o*"))}
        for name in ("tokenizer.json", "parity.json"):
            (self.folder / name).write_bytes((self.opened.folder / name).read_bytes())
        found = self._manifest(takes) | {"tokenizer": tokenizer, "parity": parity, "usability": usability}
        (self.folder / "README.md").write_text(package_readme.readme(found), encoding="utf-8")
        listed = sorted(self.folder.iterdir())
        found["files"] = {
            path.name: {"sha256": files.sha256_file(path), "size_bytes": path.stat().st_size}
            for path in listed
        }
        files.write_json(self.folder / package_readme.MANIFEST, found)
        return found

    def _refuse_small_types(self, encoder: onnx.ModelProto) -> None:
        small = {
            onnx.TensorProto.DataType.Name(each.data_type) for each in encoder.graph.initializer
        } & SMALL_TYPES
        if small:
            others = [name for name in self.opened.manifest["precisions"] if name != self.opened.precision]
            way_out = (
                f"choose {' or '.join(others)}" if others else "export it from its run with --precision int8"
            )
            fact = (
                f"precision {self.opened.precision} has {', '.join(sorted(small))} tensors, for which the "
                "ORT format has no type"
            )
            raise UserError(f"{self.opened.manifest['name']}: {fact}; {way_out}")

    def _add_tokenizer(self, encoder: onnx.ModelProto) -> dict[str, Any]:
        """Write the graph that takes texts. Returns {texts, operators}: how many texts were compared, what
        onnxruntime-extensions runs."""
        manifest = self.opened.manifest
        tokenizer = bundles.open_tokenizer(self.opened.folder, self.opened.max_tokens)
        text = TextTokenizer(tokenizer, manifest["prompt"], self.opened.max_tokens, manifest.get("pad_id", 0))
        try:
            graph = tokenizer_graph(text)
        except NoSuchGraph as fact:
            raise self._refused(f"its tokenizer cannot be built into the graph: {fact}") from None
        count, difference = tokenizer_equality.first_difference(graph, text)
        if difference is not None:
            raise self._refused(f"the tokenizer in the graph is not the bundle's: {difference}", text=count)
        self.log(
            f"tokenizer in the graph: the same token ids as tokenizer.json for {count:,} adversarial texts"
        )
        onnx.save(joined(graph, encoder, manifest["output"]), str(self.folder / TEXTS_MODEL))
        return {"texts": count, "operators": _extension_operators(graph)}

    def _refused(self, fact: str, **details: Any) -> CheckFailed:
        way_out = (
            "add --ids for a graph that takes token ids, and tokenize on the phone with the tokenizers "
            "library and tokenizer.json"
        )
        return CheckFailed(f"{self.out} was not written: {fact}; {way_out}", details)

    def _check(self, path: Path) -> float:
        """The lowest cosine, over the golden texts, of a graph in the package and the bundle. Raises
        CheckFailed where it is too low."""
        golden = files.read_json(self.opened.folder / "parity.json")
        ids = self.opened.tokenize(golden["texts"])
        expected = np.concatenate([self.opened.encode_ids([row]) for row in ids]).astype(np.float64)
        run = (
            _texts_runner(path, self.opened.manifest["output"])
            if path.stem == Path(TEXTS_MODEL).stem
            else None
        )
        if run is None:
            session = open_in_memory(str(path))
            rows = [session.run([self.opened.manifest["output"]], _inputs(row))[0] for row in ids]
        else:
            rows = [run([text]) for text in golden["texts"]]
        cosines = (np.concatenate(rows) * expected).sum(1)
        at = int(np.argmin(cosines))
        if not cosines[at] >= SAME_COSINE:
            text = f"text {at + 1} of {len(ids)} ({quote(golden['texts'][at])})"
            fact = (
                f"{path.name}: {text} came back at cosine {cosines[at]:.6f} to the bundle's own "
                f"embedding, {SAME_COSINE} is needed"
            )
            raise CheckFailed(
                f"{self.out} was not written: {fact}; another precision may convert better",
                {"cosine": float(cosines[at])},
            )
        self.log(
            f"{path.name}: {path.stat().st_size / 1e6:.2f} MB; cosine to the bundle's embeddings "
            f"{cosines[at]:.6f} at least"
        )
        return float(np.floor(cosines[at] * 1e6) / 1e6)

    def _manifest(self, takes: str) -> dict[str, Any]:
        opened = self.opened
        kept = {key: opened.manifest[key] for key in ("name", "dims", "max_tokens", "prompt", "output")}
        versions = {
            name: require(name, "mobile", "mobile").__version__
            for name in ("onnxruntime", "onnxruntime_extensions")
        }
        return {
            "schema": SCHEMA,
            **kept,
            "pad_id": opened.manifest.get("pad_id", 0),
            "precision": opened.precision,
            "bundle": opened.manifest.get("digest"),
            "takes": takes,
            "versions": versions,
        }


def _texts_runner(path: Path, output: str) -> Callable[[list[str]], np.ndarray]:
    session = open_session(path)

    def run(texts: list[str]) -> np.ndarray:
        return np.asarray(session.run([output], {INPUT: strings(texts)})[0])

    return run


def _inputs(row: np.ndarray) -> dict[str, np.ndarray]:
    return {"input_ids": row[None], "attention_mask": np.ones((1, len(row)), np.int64)}


def _extension_operators(graph: StringGraph) -> list[str]:
    return sorted({node.op_type for node in graph.nodes if node.domain == EXTENSIONS})
