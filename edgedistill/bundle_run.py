"""A bundle as the run that it was exported from: its student, its tokenizer and its recipe, read back from
its files.

The weights are as exact as the most exact precision that the bundle has. A bundle may come from a stranger:
nothing of it is used before the runtime's checks, and its student's shape is checked too.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from torch import nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from edgedistill import files, recipe, run
from edgedistill.errors import CheckFailed, UserError, raise_failed
from edgedistill.files import Json
from edgedistill.precisions import PRECISIONS  # the most exact first
from edgedistill.resolve import BundleFolder, RunFolder, finished
from edgedistill.runtime import bundle, manifest
from edgedistill.runtime.graph_weights import GraphWeights
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.students import finite_weights, graph, kinds

# cosine of the student read back to its graph, which quantizes activations too, on random ids
LEAST_AGREEMENT = 0.9
LONGEST_TOKEN = 100  # characters of a special token
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKEN_NAMES = ("bos_token", "cls_token", "eos_token", "mask_token", "pad_token", "sep_token", "unk_token")


class BundleRun(run.Run):
    """A bundle's student as a finished run; `folder` is the bundle's, and its weights are read from the
    graph in `precision`."""

    def __init__(self, opened: bundle.Bundle, spec: recipe.Recipe, shape: Json) -> None:
        manifest = opened.manifest
        info = {
            **manifest.get("run", {}),
            "dims": opened.dims[0],
            "parameters": manifest.get("parameters", {}),
        }
        super().__init__(opened.folder, spec, shape, info)
        self.precision = opened.precision
        self._entry: Json = manifest["precisions"][opened.precision]
        self.space = opened.space

    @property
    def origin(self) -> Json:
        """{bundle, precision, sha256 of the graph}."""
        return {"bundle": self.folder.name, "precision": self.precision, "sha256": self._entry["sha256"]}

    @property
    def tokenizer_folder(self) -> Path:
        return self.folder

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """From tokenizer.json alone, with the names of its special tokens: other settings could have it
        loaded by other code.

        Raises UserError for more tokens than the student has embeddings of.
        """
        config = files.read_json_object(self.folder / TOKENIZER_CONFIG, "copy the bundle again")
        names = {}
        for name in TOKEN_NAMES:
            token = config.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str) and len(text) <= LONGEST_TOKEN:
                names[name] = text
        loaded = PreTrainedTokenizerFast(
            tokenizer_file=str(self.folder / "tokenizer.json"), model_max_length=self.max_tokens, **names
        )
        loaded.backend_tokenizer.no_truncation()
        loaded.backend_tokenizer.no_padding()
        if len(loaded) > self.vocabulary_size:
            raise UserError(
                f"{self.folder}: its tokenizer has {len(loaded):,} tokens, its embedding table "
                f"{self.vocabulary_size:,} rows; {GET_AGAIN}"
            )
        return loaded

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding table."""
        return int(self.shape.get("vocabulary_size") or self.shape["config"]["vocab_size"])

    def student(self) -> nn.Module:
        """The weights read back. Raises UserError for a traced graph, CheckFailed for one that is not this
        student's."""
        data = (self.folder / self._entry["file"]).read_bytes()
        try:
            constants = GraphWeights(data, str(self.folder)).constants()
        except (KeyError, IndexError, ValueError):
            raise CheckFailed(f"{self.folder}: its constants do not fit together; {GET_AGAIN}") from None
        # first: sizes are checked here
        weights = graph.read_back(constants, self.shape, str(self.folder))
        module = self.unweighted()
        module.load_state_dict(weights)
        model = onnx.ModelProto.FromString(data)
        agreement = graph.compare(
            finite_weights.checked(module, self.folder).eval(), model, self.max_tokens, self.vocabulary_size
        )
        if not agreement > LEAST_AGREEMENT:
            raise CheckFailed(
                f"{self.folder}: its graph computes other embeddings than the student read back from it "
                f"(cosine {agreement:.4f}); give the run it was exported from"
            )
        return module


def open_finished(name: str, place: str) -> run.Run:
    """A finished student: the folder of a run, or the name or folder of a bundle, which the recipe's field
    `place` names.

    Raises UserError where it is neither, or a classifier or a teacher, or where its shape is none that a
    graph holds whole; CheckFailed for a bundle that fails the runtime's checks.
    """
    resolved = finished(name, place)
    if isinstance(resolved, RunFolder):
        opened = run.open_run(resolved.folder, place)
        _check_student(f"{place}: {name}", opened.kind, opened.labels)
        return opened
    about = manifest.read(resolved.folder)
    _check_student(f"{place}: {resolved.name}", about["kind"], about.get("labels", []))
    return _open_bundle(resolved, about)


def _check_student(at: str, kind: str, labels: list[str]) -> None:
    if labels:
        raise UserError(f"{at} is a classifier ({', '.join(labels)}); give a student that embeds")
    if kind == manifest.PAIR:
        raise UserError(
            f"{at} is a pair of encoders; give the folder of one of them, query or document in it"
        )
    if kind not in kinds.KINDS:
        raise UserError(f"{at} is a teacher, not a student; give a student's run or bundle")


def _open_bundle(resolved: BundleFolder, about: Json) -> BundleRun:
    """Open a bundle in the named precision, else in its most exact one."""
    folder = resolved.folder
    precision = resolved.precision
    place = str(folder / "manifest.json")
    if precision is None:
        precision = next((name for name in PRECISIONS if name in about["precisions"]), None)
    opened = bundle.load(folder, precision, threads=1)
    raise_failed(manifest.changes(folder, opened.manifest, [TOKENIZER_CONFIG]))
    shape = kinds.checked({**about.get("student", {}), "kind": about["kind"]}, place)
    spec = recipe.parse(opened.manifest.get("recipe", {}), place, recorded=True)
    return BundleRun(opened, spec, shape)
