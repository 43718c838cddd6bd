"""The encoder whose layers a BERT or recurrent student starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe, resolve, run
from edgedistill.errors import UserError
from edgedistill.students import bert, bert_layers, model_folder, recurrent, sentence_transformer
from edgedistill.students.bert_layers import EncoderLayers
from edgedistill.students.output import own
from edgedistill.teacher import assistant as assistants
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import tokenizer_files
from edgedistill.training.initial_student import student_tokenizer
from edgedistill.training.load_models import Models, model_files, with_weights

# that an embedding table may have behind its tokenizer's tokens; some are filled up to a round number
SPARE_ROWS = 1_024


class WeightSource(NamedTuple):
    """An encoder's layers, and the tokenizer that the rows of its embedding table belong to."""

    layers: EncoderLayers
    tokenizer: PreTrainedTokenizerBase
    head: Any = None  # of a finished run: the layer behind its pooling
    finished: run.Run | None = None  # the finished run that they come from, if any

    @property
    def max_tokens(self) -> int | None:
        """Of a finished run: its maximum input; positions behind it were never trained."""
        return None if self.finished is None else self.finished.max_tokens

    @property
    def model(self) -> Any:
        return self.layers.model


def find(
    student: recipe.Bert | recipe.Recurrent, models: Models, tokenizer: PreTrainedTokenizerBase
) -> WeightSource | None:
    """The encoder that `student.weights` names, or None for `random`.

    tokenizer: the student's. Raises UserError where the encoder is of an architecture or a vocabulary that
        the student cannot start
    from, has no pooler where the student needs one, or an embedding table that is not its tokenizer's.
    """
    if student.weights == "random":
        return None
    if student.weights == "teacher":
        source = _of_model(student, with_weights(models.teacher, "student.weights"))
    elif student.weights == "assistant" and models.assistant is not None:
        source = _of_model(student, models.assistant)
    elif isinstance(found := resolve.resolve(student.weights), resolve.RunFolder):
        source = _of_model(student, assistants.open_assistant(recipe.Teacher(model=student.weights)))
    else:
        source = _of_folder(student, model_files(found, student.revision, "student.weights"), tokenizer)
    _check_table(student, source)
    if student.pooling == "cls_pooler" and getattr(source.model, "pooler", None) is None:
        fact = f"cls_pooler needs the pooler of `weights`, and {student.weights} has none or leaves it out"
        raise UserError(f"student.pooling: {fact}; choose another pooling, or weights with a pooler")
    return source


def _of_model(student: recipe.Bert | recipe.Recurrent, opened: teachers.TeacherEncoder) -> WeightSource:
    """The encoder of the teacher, of the assistant or of a finished run."""
    module: Any = own(opened.module)
    name = str(opened.spec.name)
    finished = opened.run if isinstance(opened, assistants.RunTeacher) else None
    if not isinstance(module, bert.BertStudent):
        return WeightSource(
            _layers(student, getattr(module, "model", module), name), opened.tokenizer, finished=finished
        )
    if isinstance(module, recurrent.RecurrentStudent) and isinstance(student, recipe.Bert):
        fact = "is a recurrent student, whose repeated layers a BERT cannot take"
        raise UserError(f"student.weights: {opened.spec.model} {fact}; use `kind: recurrent`")
    layers = _layers(student, module.model, name)._replace(pad=module.pad, relative_bias=module.relative_bias)
    return WeightSource(layers, opened.tokenizer, module.head, finished)


def _of_folder(
    student: recipe.Bert | recipe.Recurrent, folder: Path, tokenizer: PreTrainedTokenizerBase
) -> WeightSource:
    """The encoder of a model folder or hub id."""
    opened = model_folder.read(folder)
    model_type = str(opened.config.get("model_type"))
    if model_type not in [known for known, _ in bert_layers.ARCHITECTURES.values()]:
        raise _unknown(student, str(folder), model_type)
    options = {} if student.pooling == "cls_pooler" else sentence_transformer.without_pooler(opened)
    model = sentence_transformer.load_model(opened, dtype=torch.float32, **options)
    layers = _layers(student, model, str(folder))
    bare = not any((opened.transformer / name).exists() for name in tokenizer_files.TOKENIZER_FILES)
    if (
        bare and student.tokenizer != "teacher"
    ):  # weights without a tokenizer are taken to belong to the tokenizer that is named
        return WeightSource(
            layers, student_tokenizer.load_named(resolve.resolve(student.tokenizer), student.revision)
        )
    of_weights = tokenizer_files.load_tokenizer(folder)
    if student.tokenizer == "teacher" and not tokenizer.get_vocab().keys() <= of_weights.get_vocab().keys():
        way_out = f"set student.tokenizer: {student.weights}"
        raise UserError(
            f"student.tokenizer: the weights of {student.weights} belong to another vocabulary; {way_out}"
        )
    return WeightSource(layers, of_weights)


def _layers(student: recipe.Bert | recipe.Recurrent, model: Any, name: str) -> EncoderLayers:
    """The layers of an encoder. Raises UserError for an architecture that the student cannot start from;
    name: what errors call it."""
    layers = bert_layers.convert(model)
    if layers is None:
        raise _unknown(student, name, type(model).__name__)
    return layers


def _unknown(student: recipe.Bert | recipe.Recurrent, name: str, found: str) -> UserError:
    known = ", ".join(sorted(name for _, name in bert_layers.ARCHITECTURES.values()))
    way_out = "choose one of these" + (
        ", or use `weights: random`" if isinstance(student, recipe.Bert) else ""
    )
    return UserError(f"student.weights: {name} is {found}, and layers can be taken from {known}; {way_out}")


def _check_table(student: recipe.Bert | recipe.Recurrent, source: WeightSource) -> None:
    """Raise UserError where the rows of the source's embedding table cannot be its tokenizer's tokens."""
    rows, tokens = int(source.model.config.vocab_size), len(source.tokenizer)
    if not tokens <= rows <= tokens + SPARE_ROWS:
        fact = (
            f"{student.weights} has an embedding table of {rows:,} rows and a tokenizer of {tokens:,} tokens"
        )
        raise UserError(f"student.weights: {fact}; use the tokenizer that belongs to the model")
