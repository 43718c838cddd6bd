"""What `export` is given: a run, or any sentence encoder's model folder, opened as the run of a recipe
without stages."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, get_args

from torch import nn
from transformers.models.auto import modeling_auto as auto

from edgedistill import bundle_run, recipe, resolve, run
from edgedistill.errors import UserError, unknown_name
from edgedistill.recipe import Pooling, Recipe
from edgedistill.resolve import BundleFolder, RunFolder
from edgedistill.students import kinds, model_folder
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import tokenizer_files
from edgedistill.training import record
from edgedistill.training.load_models import Models

MASKED = set(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)  # architectures that encode, some of them also generate


class ModelRun(run.Run):
    """A model folder as the run of its own recipe: nothing trained, nothing copied; `folder` holds only its
    tokenizer."""

    def __init__(self, folder: Path, spec: Recipe, teacher: teachers.TeacherEncoder) -> None:
        counts = {"dims": teacher.dims, "parameters": kinds.parameters(teacher.module)}
        info = {
            **run.provenance(),
            "seconds": 0.0,
            "stages": [],
            "selected": None,
            "rows": None,
            **counts,
        }
        info["teachers"] = record.teachers(spec, Models(teacher))
        super().__init__(folder, spec, teachers.teacher_shape(spec.student, teacher), info)
        self._teacher = teacher
        self.model_folder = teacher.folder
        tokenizer_files.save_tokenizer(teacher.tokenizer, self.tokenizer_folder)

    def student(self) -> nn.Module:
        return self._teacher.module


class Source(NamedTuple):
    """The name of a run's folder, a student's bundle, or a model: a folder (sentence-transformers, or plain
    transformers), packaged:NAME, or a hub id.

    A plain transformers model does not name its own `pooling`; a hub id needs a `revision`. `remote_code`
    lets Python code that comes with the model run.
    """

    name: str
    pooling: str | None = None
    revision: str | None = None
    remote_code: bool = False


@contextmanager
def opened(source_of: str | Path | Source) -> Iterator[run.Run]:
    """The run of a source. Raises UserError: neither a run nor a model, the bundle of a classifier, a pair or
    a teacher, a decoder, no tokenizer, no weights, an unknown module or pooling."""
    source, pooling, revision, remote_code = (
        source_of if isinstance(source_of, Source) else Source(str(source_of))
    )
    if pooling is not None and pooling not in get_args(Pooling):
        raise UserError(f"--pooling: {unknown_name('pooling', pooling, get_args(Pooling))}")
    resolved = resolve.exported(source, revision)
    if isinstance(resolved, BundleFolder):
        yield bundle_run.open_finished(source, "export")
        return
    if isinstance(resolved, RunFolder):
        yield run.open_run(source, remote_code=remote_code)
        return
    teacher = {"model": source, "pooling": pooling, "revision": revision, "dtype": "fp32"}
    teacher = {key: value for key, value in teacher.items() if value is not None}
    content = {"name": name_of(source), "teacher": teacher, "student": {"kind": "teacher"}}
    spec = recipe.parse(content, f"export {source}")
    folder = resolve.model_files(resolved, revision, "export")
    check_encoder(folder, source, pooling)
    with tempfile.TemporaryDirectory() as temporary:
        yield ModelRun(Path(temporary), spec, teachers.TeacherEncoder(spec.teacher, remote_code=remote_code))


def name_of(source: str) -> str:
    """What a bundle of this model is called: the last part of its name, in the letters of a recipe's
    name."""
    last = Path(source).resolve().name if Path(source).is_dir() else re.split("[/:]", source)[-1]
    return re.sub(r"[^a-z0-9._-]+", "-", last.lower()).lstrip("._-") or "model"


def check_encoder(folder: Path, source: str, pooling: str | None) -> None:
    """Raise UserError for a model that is no encoder, and for a plain model without a pooling."""
    opened = model_folder.read(folder)
    kind = opened.config.get("model_type")
    generating = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - MASKED
    generating |= auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.keys()
    if kind in generating or opened.config.get("is_decoder"):
        raise UserError(
            f"{source}: model_type {kind}: models whose family generates texts cannot be exported; "
            "fit it, as a teacher (edgedistill fit --teacher)"
        )
    model_folder.check_pooling(opened, pooling, source, "--pooling")
