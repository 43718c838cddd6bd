"""A run folder: its files, and how to write and open them.

recipe.yaml          the effective recipe
student.json         the student's shape, as data
student.safetensors  the student's weights
model/               for the teacher itself, in place of these two: its own files
targets/             for a recipe with `targets`: the affine map from the teacher's embeddings to them
tokenizer/           tokenizer.json and what else transformers needs
task.json            for a fine-tuned student, with head.safetensors: see students/classifier.py
metrics.jsonl        losses and scores during training
run.json             provenance: versions, corpus, teacher, time, scores
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from edgedistill import files, machine, object_store, recipe
from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.resolve import unfinished_run
from edgedistill.runtime import prompts
from edgedistill.runtime.prompts import Prompts
from edgedistill.students import finite_weights, kinds, model_folder, sentence_transformer
from edgedistill.students.classifier import Classifier
from edgedistill.students.model_folder import ModelFolder, opening
from edgedistill.students.sentence_transformer import Affine

M = TypeVar("M", bound=nn.Module)
Weights = dict[str, torch.Tensor]  # of a module, by name

HEAD_SHAPE = "task.json"
HEAD_WEIGHTS = "head.safetensors"  # what a classifier's run has beside a student's
AGAIN = "copy the run again, or train it again"
PACKAGES = ("edgedistill", "torch", "transformers", "tokenizers", "safetensors", "numpy")


class Shaped:
    """What a student's shape, the content of student.json, says about its texts."""

    shape: Json

    @property
    def max_tokens(self) -> int:
        """Longer texts are truncated."""
        return int(self.shape["max_tokens"])

    @property
    def prompts(self) -> Prompts:
        """What is put before a text, a query, a document; empty for most students."""
        return prompts.read(self.shape)

    @property
    def prompt(self) -> str:
        """What is put before a text without a role."""
        return self.prompts.text


@dataclass(eq=False)
class Run(Shaped):
    """An opened run: the student, its tokenizer, its recipe; `shape` is student.json and `info` is run.json.

    `space` is that of its embeddings, where a bundle said so. With `remote_code` Python code that comes with
    a teacher's own model may run.
    """

    folder: Path
    recipe: recipe.Recipe
    shape: Json
    info: Json
    remote_code: bool = False
    space: str | None = None

    def __post_init__(self) -> None:
        self.model_folder = self.folder / "model"  # where the student is a whole model

    @property
    def kind(self) -> str:
        return str(self.shape["kind"])

    @property
    def dims(self) -> int:
        return int(self.info["dims"])

    @property
    def matryoshka_dims(self) -> list[int]:
        """Smaller dimensions that embeddings may be truncated to, descending: those of the last stage's
        Matryoshka objective."""
        stages = [] if self.kind in ("teacher", "reduced") else self.recipe.distilling
        return stages[-1].objective.cuts[-2::-1] if stages else []

    @property
    def labels(self) -> list[str]:
        """The labels of a fine-tuned classifier, in the order of its logits; empty for an encoder."""
        return list(self.head_shape["labels"]) if (self.folder / HEAD_SHAPE).exists() else []

    @property
    def head_shape(self) -> Json:
        """{labels, pair, hidden} of a classifier's run."""
        return dict(files.read_json(self.folder / HEAD_SHAPE))

    @property
    def parameters(self) -> dict[str, int]:
        return dict(self.info["parameters"])

    @property
    def origin(self) -> Json:
        """What a run that starts from this student records of it: {run, sha256 of the weights}."""
        return {"run": self.folder.name, "sha256": files.sha256_file(self.folder / "student.safetensors")}

    @property
    def source(self) -> ModelFolder | None:
        """The files of a student that is a whole model."""
        return model_folder.read(self.model_folder) if self.model_folder.is_dir() else None

    @property
    def tokenizer_folder(self) -> Path:
        return self.folder / "tokenizer"

    def tokenizer(self) -> PreTrainedTokenizerBase:
        with opening(self.tokenizer_folder, "does not open", AGAIN):
            return AutoTokenizer.from_pretrained(self.tokenizer_folder, trust_remote_code=False)

    def student(self) -> nn.Module:
        """The student in eval mode on the CPU, float32; `forward(input_ids, attention_mask) -> (B, d)`, not
        of unit length. Raises UserError for files that are not those of a student."""
        with opening(self.folder, "its student does not open", AGAIN):
            if self.kind in ("teacher", "reduced"):
                source = model_folder.read(self.model_folder)
                pooling = self.shape.get("pooling")
                teacher = sentence_transformer.read(source, pooling, self.remote_code)
                if (self.folder / "student.safetensors").exists():  # fine-tuned
                    _load(teacher, self.folder / "student.safetensors")
                if self.kind == "teacher":
                    return teacher
                return teacher.followed_by(Affine.read(self.folder / "targets"))
            return _load(self.unweighted(), self.folder / "student.safetensors").eval()

    def classifier(self) -> Classifier:
        """The student with its classifier head, in eval mode. Raises UserError for weights that cannot be
        computed with."""
        student = self.student()
        weights = self.folder / HEAD_WEIGHTS
        with opening(weights, "does not open", AGAIN):
            shape = self.head_shape
            labels = len(shape["labels"])
            dims = kinds.dims(student)
            module = Classifier(student, dims, labels, shape["pair"], shape["hidden"])
            module.load_state_dict(load_file(weights), strict=False)
        return finite_weights.checked(module, weights).eval()

    def unweighted(self) -> nn.Module:
        """The student that its shape describes, with weights drawn from torch's generator."""
        return kinds.KINDS[self.kind].build(self.shape)


def _load(module: M, file: Path) -> M:
    """Give a module its weights. Raises UserError for weights that cannot be computed with."""
    module.load_state_dict(load_file(file))
    return finite_weights.checked(module, file)


def open_run(folder: Path | str, place: str = "", remote_code: bool = False) -> Run:
    """Open a finished run, which the recipe's field `place` names, if one does; `remote_code` is as for Run.
    One in an object store is copied here.

    Raises UserError for anything else, an interrupted run included.
    """
    folder = object_store.pull(folder, "run.json")
    at = f"{place}: {folder}" if place else str(folder)
    if not (folder / "run.json").exists():
        if unfinished_run(folder).exists():
            raise UserError(f"{at}: its training has not finished; run edgedistill train again with --resume")
        raise UserError(f"{at}: not a run (no run.json); create one with edgedistill train")
    spec = recipe.read_file(folder / "recipe.yaml", recorded=True)
    shape, info = (files.read_json_object(folder / name, AGAIN) for name in ("student.json", "run.json"))
    opened = Run(folder, spec, shape, info, remote_code)
    with opening(folder, "not a run that train has written", AGAIN):
        if opened.kind not in ("teacher", "reduced"):
            kinds.checked(shape, str(folder / "student.json"))
        _ = opened.max_tokens, opened.prompts, opened.dims, opened.matryoshka_dims, opened.labels
        _ = opened.parameters
    return opened


def write_student(folder: Path, shape: Json, weights: Weights | None) -> None:
    """Write student.json and student.safetensors; their bytes depend on shape and weights alone. Without
    weights only the shape is written."""
    (folder / "student.json").write_text(
        files.json_text(shape, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    if weights is not None:
        save_weights(weights, folder / "student.safetensors")


def save_weights(weights: Weights, file: Path) -> None:
    """Write named tensors as safetensors, whatever device they are on."""
    save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, file)


def provenance() -> Json:
    """{made_at, versions, platform, threads}, recorded in run.json."""
    return {
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": machine.versions(PACKAGES),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }
