"""The encoder whose layers a BERT or recurrent student starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from edgedistill import run
from edgedistill.errors import UserError
from edgedistill.recipe import BuiltStudent, Transformer
from edgedistill.students import bert, bert_layers, model_folder, recurrent, sentence_transformer
from edgedistill.students.bert_layers import EncoderLayers
from edgedistill.teacher import assistant as assistants
from edgedistill.teacher import tokenizer_files
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student import student_tokenizer
from edgedistill.training.load_models import Models, with_weights

# that an embedding table may have behind its tokenizer's tokens; some are filled up to a round number
SPARE_ROWS = 1_024


class WeightSource(NamedTuple):
    """An encoder's layers, and the tokenizer that the rows of its embedding table belong to.

    `finished` is the finished run that they come from, if any; its `head` is the layer behind its pooling.
    """

    layers: EncoderLayers
    tokenizer: PreTrainedTokenizerBase
    head: Any = None
    finished: run.Run | None = None

    @property
    def model(self) -> Any:
        return self.layers.model


def find(student: BuiltStudent, models: Models, tokenizer: PreTrainedTokenizerBase) -> WeightSource | None:
    """The encoder that `student.weights` names, or None for `random`. `tokenizer` is the student's.

    Raises UserError where the encoder is of an architecture or a vocabulary that the student cannot start
    from, has no pooler where the student needs one, or an embedding table that is not its tokenizer's.
    """
    if not isinstance(student, Transformer) or student.weights == "random":
        return None
    if student.weights == "teacher":
        opened: TeacherEncoder | Path = with_weights(models.teacher, "student.weights")
    elif models.weights is not None:
        opened = models.weights.opened
    else:
        opened = models.taught
    if isinstance(opened, Path):
        source = _of_folder(student, opened, models, tokenizer)
    else:
        source = _of_model(student, opened)
    rows = int(source.model.config.vocab_size)
    tokens = len(source.tokenizer)
    if not tokens <= rows <= tokens + SPARE_ROWS:
        raise UserError(
            f"student.weights: {student.weights} has an embedding table of {rows:,} rows and a "
            f"tokenizer of {tokens:,} tokens; use the tokenizer that belongs to the model"
        )
    if student.pooling == "cls_pooler" and getattr(source.model, "pooler", None) is None:
        raise UserError(
            f"student.pooling: cls_pooler needs the pooler of `weights`, and {student.weights} "
            "has none or leaves it out; choose another pooling, or weights with a pooler"
        )
    return source


def _of_model(student: Transformer, opened: TeacherEncoder) -> WeightSource:
    """The encoder of the teacher, of the assistant or of a finished run."""
    module = opened.module
    finished = opened.run if isinstance(opened, assistants.RunTeacher) else None
    if not isinstance(module, bert.BertStudent):
        layers = _layers(student, getattr(module, "model", module), str(opened.spec.name))
        return WeightSource(layers, opened.tokenizer, finished=finished)
    if isinstance(module, recurrent.RecurrentStudent) and student.kind == "bert":
        raise UserError(
            f"student.weights: {opened.spec.model} is a recurrent student, whose repeated layers "
            "a BERT cannot take; use `kind: recurrent`"
        )
    return WeightSource(bert_layers.of_student(module), opened.tokenizer, module.head, finished)


def _of_folder(
    student: Transformer,
    folder: Path,
    models: Models,
    tokenizer: PreTrainedTokenizerBase,
) -> WeightSource:
    """The encoder of a model folder or hub id."""
    opened = model_folder.read(folder)
    model_type = str(opened.config.get("model_type"))
    if model_type not in [known for known, _ in bert_layers.ARCHITECTURES.values()]:
        raise _unknown(student, str(folder), model_type)
    model = sentence_transformer.load_model(opened, student.pooling == "cls_pooler")
    layers = _layers(student, model, str(folder))
    bare = not any((opened.transformer / name).exists() for name in tokenizer_files.TOKENIZER_FILES)
    if bare and student.tokenizer != "teacher":
        # Weights without a tokenizer are taken to belong to the tokenizer that is named.
        return WeightSource(layers, student_tokenizer.named(student, models))
    of_weights = tokenizer_files.load_tokenizer(opened)
    if student.tokenizer == "teacher" and not tokenizer.get_vocab().keys() <= of_weights.get_vocab().keys():
        raise UserError(
            f"student.tokenizer: the weights of {student.weights} belong to another vocabulary; "
            f"set student.tokenizer: {student.weights}"
        )
    return WeightSource(layers, of_weights)


def _layers(student: Transformer, model: Any, name: str) -> EncoderLayers:
    """The layers of an encoder, which errors call `name`. Raises UserError for an architecture that the
    student cannot start from."""
    layers = bert_layers.convert(model)
    if layers is None:
        raise _unknown(student, name, type(model).__name__)
    return layers


def _unknown(student: Transformer, name: str, architecture: str) -> UserError:
    known = ", ".join(sorted(name for _, name in bert_layers.ARCHITECTURES.values()))
    way_out = "choose one of these"
    if student.kind == "bert":
        way_out += ", or use `weights: random`"
    return UserError(
        f"student.weights: {name} is {architecture}, and layers can be taken from {known}; {way_out}"
    )
