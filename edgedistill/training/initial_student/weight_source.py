"""The encoder whose layers a BERT or recurrent student starts from."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from edgedistill import files, recipe, run
from edgedistill.errors import UserError
from edgedistill.students import recurrent
from edgedistill.students.sentence_transformer import layout, load_model
from edgedistill.teacher import assistant as assistants
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import tokenizer_files
from edgedistill.training.load_models import Models, find_model, with_weights


class WeightSource(NamedTuple):
    """An encoder, and the tokenizer that the rows of its embedding table belong to."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    counts_from: str | None = None  # where positions are counted from, if its config does not tell
    head: Any = None  # of a finished run: the layer behind its pooling
    max_tokens: int | None = None  # of a finished run: its maximum input; positions behind it were never trained

    @property
    def position_ids(self) -> str:
        """Where positions are counted from: the padding id (`pad`), or 0 (`zero`)."""
        return self.counts_from or ("pad" if self.model.config.model_type in tokenizer_files.POSITIONS_FROM_PAD else "zero")


class _Accepted(NamedTuple):
    """Classes of transformers that a student's layers can be taken from, by model type; how errors call them, and the way out."""

    model_types: dict[str, str]
    name: str
    way_out: str


BERTS = _Accepted({"BertModel": "bert"}, "BERT", "use `weights: random`")
BERTS_AND_ROBERTAS = _Accepted(recurrent.SOURCES, "BERT or RoBERTa", "give an assistant that is one")


def find(student: recipe.Bert | recipe.Recurrent, models: Models, tokenizer: PreTrainedTokenizerBase) -> WeightSource | None:
    """The encoder that `student.weights` names, or None for `random`.

    tokenizer: the student's. Raises UserError where the encoder is of an architecture or a vocabulary that the student cannot start from.
    """
    accepted = BERTS_AND_ROBERTAS if isinstance(student, recipe.Recurrent) else BERTS
    if student.weights == "random":
        return None
    if run.is_run(student.weights):
        return _of_model(student, assistants.open_assistant(recipe.Teacher(model=student.weights)), accepted)
    if student.weights == "teacher":
        return _of_model(student, with_weights(models.teacher, "student.weights"), accepted)
    if student.weights == "assistant" and models.assistant is not None:
        return _of_model(student, models.assistant, accepted)
    return _of_folder(student, tokenizer, accepted)


def _of_model(student: recipe.Bert | recipe.Recurrent, opened: teachers.TeacherEncoder, accepted: _Accepted) -> WeightSource:
    """The encoder of the teacher, of the assistant or of a finished run."""
    model: Any = getattr(opened.module, "model", None)
    if type(model).__name__ not in accepted.model_types:
        raise UserError(f"student.weights: {opened.spec.name} is {type(model).__name__}, not {accepted.name}; {accepted.way_out}")
    if not isinstance(opened, assistants.RunTeacher):
        return WeightSource(model, opened.tokenizer)
    if isinstance(opened.module, recurrent.RecurrentStudent) and isinstance(student, recipe.Bert):
        fact = "is a recurrent student, whose repeated layers a BERT cannot take"
        raise UserError(f"student.weights: {opened.spec.model} {fact}; use `kind: recurrent`")
    counts_from = "zero" if getattr(opened.module, "pad", None) is None else "pad"
    return WeightSource(model, opened.tokenizer, counts_from, getattr(opened.module, "head", None), opened.run.max_tokens)


def _of_folder(student: recipe.Bert | recipe.Recurrent, tokenizer: PreTrainedTokenizerBase, accepted: _Accepted) -> WeightSource:
    """The encoder of a model folder or hub id."""
    folder = find_model(student.weights, student.revision, "student.weights")
    transformer, _ = layout(folder)
    if files.read_json(transformer / "config.json").get("model_type") not in accepted.model_types.values():
        raise UserError(f"student.weights: {folder} is not a {accepted.name}; choose one, or {accepted.way_out}")
    model = load_model(transformer, dtype=torch.float32, add_pooling_layer=student.pooling == "cls_pooler")
    bare = not any((transformer / name).exists() for name in tokenizer_files.TOKENIZER_FILES)
    if bare and student.tokenizer != "teacher":  # weights without a tokenizer are taken to belong to the tokenizer that is named
        return WeightSource(model, tokenizer_files.load_tokenizer(find_model(student.tokenizer, student.revision, "student.tokenizer")))
    of_weights = tokenizer_files.load_tokenizer(folder)
    if student.tokenizer == "teacher" and not tokenizer.get_vocab().keys() <= of_weights.get_vocab().keys():
        way_out = f"set student.tokenizer: {student.weights}"
        raise UserError(f"student.tokenizer: the weights of {student.weights} belong to another vocabulary; {way_out}")
    return WeightSource(model, of_weights)
