"""A bundle as the run that it was exported from: its student, its tokenizer and its recipe, read back from
its files.

The weights are as exact as the most exact precision that the bundle has. A bundle may come from a stranger:
nothing of it is used before the runtime's checks, and its student's shape is checked too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from torch import nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from edgedistill import files, recipe, run
from edgedistill.errors import CheckFailed, UserError, unknown_name
from edgedistill.precisions import PRECISIONS  # the most exact first
from edgedistill.quantization import dequantize
from edgedistill.resolve import BundleFolder, ModelFolder, RunFolder, resolve
from edgedistill.runtime import bundle, manifest
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.students import finite_weights, graph, kinds, modernbert, weights_in_graph
from edgedistill.students.output import Output

LEAST_AGREEMENT = (
    0.9  # cosine of the student read back to its graph, which quantizes activations too, on random ids
)
LONGEST_TOKEN = 100  # characters of a special token
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKEN_NAMES = ("bos_token", "cls_token", "eos_token", "mask_token", "pad_token", "sep_token", "unk_token")


class BundleRun(run.Run):
    """A bundle's student as a finished run; `folder` is the bundle's. precision: which one its weights are
    read from."""

    def __init__(self, opened: bundle.Bundle, spec: recipe.Recipe, shape: dict[str, Any]) -> None:
        info = {"dims": opened.dims[0], "parameters": opened.manifest.get("parameters", {})}
        super().__init__(opened.folder, spec, shape, opened.manifest.get("run", {}) | info)
        self.precision = opened.precision
        self._entry: dict[str, Any] = opened.manifest["precisions"][opened.precision]

    @property
    def origin(self) -> dict[str, Any]:
        """{bundle, precision, sha256 of the graph}."""
        return {"bundle": self.folder.name, "precision": self.precision, "sha256": self._entry["sha256"]}

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """From tokenizer.json alone, with the names of its special tokens: other settings could have it
        loaded by other code.

        Raises UserError for more tokens than the student has embeddings of.
        """
        names = _special_tokens(self.folder / TOKENIZER_CONFIG)
        loaded: Any = PreTrainedTokenizerFast(
            tokenizer_file=str(self.folder / "tokenizer.json"), model_max_length=self.max_tokens, **names
        )
        loaded.backend_tokenizer.no_truncation()
        loaded.backend_tokenizer.no_padding()
        if len(loaded) > self.vocabulary_size:
            fact = (
                f"its tokenizer has {len(loaded):,} tokens, its embedding table {self.vocabulary_size:,} rows"
            )
            raise UserError(f"{self.folder}: {fact}; {GET_AGAIN}")
        return loaded

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding table."""
        return int(self.shape.get("pieces") or self.shape["config"]["vocab_size"])

    def student(self) -> nn.Module:
        """The weights read back. Raises UserError for a traced graph, CheckFailed for one that is not this
        student's."""
        model = onnx.load(self.folder / self._entry["file"])
        weights = weights_in_graph.read(
            dequantize.constants(model), self.shape, str(self.folder)
        )  # first: sizes are checked here
        module = kinds.KINDS[self.kind].build(self.shape)
        module.load_state_dict(weights)
        if self.shape.get("blocks"):
            module = Output(module, None, self.shape["blocks"])
        agreement = graph.compare(
            finite_weights.checked(module, self.folder).eval(), model, self.max_tokens, self.vocabulary_size
        )
        if not agreement > LEAST_AGREEMENT:
            fact = (
                "its graph computes other embeddings than the student read back from it (cosine "
                f"{agreement:.4f})"
            )
            raise CheckFailed(f"{self.folder}: {fact}; give the run it was exported from")
        return module


def open_finished(name: str, place: str) -> run.Run:
    """A finished student: the folder of a run, or the name or folder of a bundle. place: the recipe's field
    that names it.

    Raises UserError where it is neither, or a classifier or a teacher; CheckFailed for a bundle that fails
    the runtime's checks.
    """
    found = resolve(name)
    if isinstance(found, RunFolder):
        opened = run.open_run(found.folder, place)
        if opened.labels:
            raise UserError(
                f"{place}: {name} is a classifier ({', '.join(opened.labels)}); give a student that embeds"
            )
        if opened.kind not in kinds.KINDS:
            raise UserError(f"{place}: {name} is the run of a teacher, not of a student; give a student's")
        return opened
    if isinstance(found, BundleFolder):
        return _open_bundle(found, place)
    if isinstance(found, ModelFolder):
        way_out = "a student with a `kind`, such as bert, can start from a model's layers"
        raise UserError(f"{place}: the folder {name} is neither a bundle nor a run; {way_out}")
    known = unknown_name("finished student", name, files.shipped("bundle"))
    raise UserError(f"{place}: {known}; or give the folder of a bundle or a run")


def _open_bundle(found: BundleFolder, place: str) -> BundleRun:
    folder, about = found.folder, manifest.read(found.folder)
    at = f"{place}: {found.name}"
    if about.get("labels"):
        raise UserError(f"{at} is a classifier, whose weights are not read back; give a student that embeds")
    if about["kind"] not in kinds.KINDS:
        raise UserError(f"{at} is the bundle of a teacher, not of a student; give a student's")
    shape = about.get("student", {})
    _check_layers(shape, at)
    precision = next((each for each in PRECISIONS if each in about["precisions"]), None)
    opened = bundle.load(folder, found.precision or precision, threads=1)
    if problems := manifest.changes(folder, opened.manifest, [TOKENIZER_CONFIG]):
        raise CheckFailed("\n".join(problems), {"problems": problems})
    shape = kinds.checked({**shape, "kind": about["kind"]}, str(folder / "manifest.json"))
    if shape.get("blocks") and sum(size for size, _ in shape["blocks"]) != opened.dims[0]:
        raise UserError(
            f"{folder / 'manifest.json'}: student.blocks: not of {opened.dims[0]} dimensions; {GET_AGAIN}"
        )
    spec = recipe.parse(opened.manifest.get("recipe", {}), str(folder / "manifest.json"))
    return BundleRun(opened, spec, shape)


def _check_layers(shape: dict[str, Any], at: str) -> None:
    """Raise UserError for layers whose graphs are written, but not read back."""
    config = shape.get("config")
    if not isinstance(config, dict):
        return
    family, ropes, which = config.get("model_type", "bert"), config.get("rope_parameters"), ""
    types = (
        [each.get("rope_type", "default") for each in ropes.values() if isinstance(each, dict)]
        if isinstance(ropes, dict)
        else []
    )
    if family not in ("bert", modernbert.MODEL_TYPE):
        which = f"layers ({ascii(family)[:40]})"
    elif other := [each for each in types if each not in modernbert.STEADY_ROPE]:
        which = f"rotary positions ({ascii(other[0])[:40]})"
    if which:
        raise UserError(
            f"{at}: its {which} cannot be read back from a graph; give the run it was exported from"
        )


def _special_tokens(path: Path) -> dict[str, str]:
    """{name: text} of the special tokens in a tokenizer_config.json, which writes some as mappings."""
    config = files.read_json_object(path, "copy the bundle again")
    found = {name: config.get(name) for name in TOKEN_NAMES}
    texts = {
        name: token.get("content") if isinstance(token, dict) else token for name, token in found.items()
    }
    return {
        name: text for name, text in texts.items() if isinstance(text, str) and len(text) <= LONGEST_TOKEN
    }
