"""The student before its first optimizer step: its module, its shape, its initial weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from edgedistill import machine, recipe
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.students import bert, bilstm, kinds, narrow_bert, recurrent, static
from edgedistill.students.output import Output
from edgedistill.training.initial_student import earlier_training, finished_student, weight_source
from edgedistill.training.initial_student.corpus_sample import CorpusSample
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.initial_student.token_embeddings import initial_token_embeddings
from edgedistill.training.initial_student.weight_source import WeightSource
from edgedistill.training.load_models import Models

TRAINED_BYTES = 16  # a parameter, its gradient, and AdamW's two moments


@dataclass(frozen=True)
class Start:
    """What a student of any kind is built and initialized from.

    dims: of the embeddings it is to give. embeddings (V, w): rows for its tokens, or None for random ones. source: where its layers come
    from, None for random ones. sample: of the training texts, None where it is not needed or not at hand.
    """

    tokenizer: PreTrainedTokenizerBase
    dims: int
    embeddings: Tensor | None
    source: WeightSource | None
    sample: CorpusSample | None

    @property
    def vocabulary_size(self) -> int:
        return len(self.tokenizer)

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_token_id or 0

    @property
    def token_weights(self) -> Tensor | None:
        return self.sample.token_weights if self.sample else None


def build(
    spec: recipe.Recipe,
    models: Models,
    tokenizer: PreTrainedTokenizerBase,
    session: Session,
    sample: CorpusSample | None = None,
    fitted: bool = True,
) -> PreparedStudent:
    """The recipe's student before its first step; the same recipe gives the same weights.

    session: its data folder and its cache are used. sample: `corpus_sample.sample` of the recipe; not needed for the shape alone.
    fitted: whether its token embeddings and narrow layers are fitted, which takes most of the time; without, only its shape is right.
    Raises UserError where the recipe's student does not fit its models or its targets.
    """
    if isinstance(spec.student, recipe.Finished):
        assert models.finished is not None
        student = finished_student.build(spec, models.finished, tokenizer, _target_dims(spec, models))
    else:
        student = _initialized(spec, models, tokenizer, session, sample, fitted)
    if isinstance(spec.targets, recipe.Split):
        if kinds.dims(student.module) != spec.targets.width:
            blocks = " + ".join(str(size) for size, _ in spec.targets.blocks)
            fact = f"{blocks} dimensions for a student of {kinds.dims(student.module)}"
            raise UserError(f"targets.parts: {fact}; the dims must add up to its width")
        module, shape = Output(student.module, None, spec.targets.blocks), {**student.shape, "blocks": spec.targets.blocks}
        student = replace(student, module=module, shape=shape)
    return student


def _target_dims(spec: recipe.Recipe, models: Models) -> int:
    return spec.targets.width if spec.targets else models.teacher.dims


def _initialized(
    spec: recipe.Recipe,
    models: Models,
    tokenizer: PreTrainedTokenizerBase,
    session: Session,
    sample: CorpusSample | None,
    fitted: bool,
) -> PreparedStudent:
    torch.manual_seed(spec.seed)
    student = spec.student
    dims = _target_dims(spec, models)
    source = weight_source.find(student, models, tokenizer) if isinstance(student, recipe.Bert | recipe.Recurrent) else None
    limited = _limited_to_trained_positions(spec, source)
    pairs = sample.pairs if sample else None
    embeddings = initial_token_embeddings(spec, models, tokenizer, source, session, pairs, fitted)
    module, shape = INITIALISE[limited.kind](limited, Start(tokenizer, dims, embeddings, source, sample))
    earlier = earlier_training.record(source.finished) if source and source.finished else []
    return PreparedStudent(module, shape, tokenizer, drops_head=recipe.drops_head(student), earlier=tuple(earlier))


def _module(kind: str, shape: dict[str, Any]) -> Any:
    """A module of this shape. Raises UserError where this machine has not the memory that training it takes."""
    build = kinds.KINDS[kind].build
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        count = sum(parameter.numel() for parameter in build(shape).parameters())
    memory = machine.memory_bytes()
    if memory is not None and count * TRAINED_BYTES > memory:
        fact = f"{count:,} parameters take {count * TRAINED_BYTES / 1e9:,.0f} GB to train, and this machine has {memory / 1e9:,.0f}"
        raise UserError(f"student: {fact}; give it fewer layers, or a smaller width or vocabulary")
    return build(shape)


def _bilstm(student: recipe.BiLSTM, start: Start) -> tuple[nn.Module, dict[str, Any]]:
    shape = bilstm.shape(student, start.vocabulary_size, start.pad_id, start.dims)
    module: nn.Module = _module("bilstm", shape)
    bilstm.initialize(module, start.embeddings, start.token_weights)  # type: ignore[arg-type]
    return module, shape


def _static(student: recipe.Static, start: Start) -> tuple[nn.Module, dict[str, Any]]:
    shape = static.shape(student, start.vocabulary_size, start.pad_id, start.dims)
    module = _module("static", shape)
    static.initialize(module, start.embeddings, student.embeddings.of == "outputs", start.token_weights)
    return module, shape


def _recurrent(student: recipe.Recurrent, start: Start) -> tuple[nn.Module, dict[str, Any]]:
    source = start.source
    assert source is not None  # a recurrent student always has a source
    shape = recurrent.shape(student, start.vocabulary_size, start.pad_id, start.dims, source.shape_source)
    if shape["positions"] == "pad" and start.tokenizer.pad_token_id is None:
        fact = "positions are counted from padding, and the tokenizer names no padding token"
        raise UserError(f"student.position_ids: {fact}; set position_ids: zero")
    module = _module("recurrent", shape)
    layers = recurrent.source_layers(student, source.model.config)
    recurrent.initialize(module, layers, source.layers, start.embeddings, start.token_weights)
    _start_head(module, source)
    return module, shape


def _bert(student: recipe.Bert, start: Start) -> tuple[nn.Module, dict[str, Any]]:
    source = start.source
    taken = source.shape_source if source else None
    if taken is not None and start.tokenizer.pad_token_id is None:
        taken = taken._replace(position_ids="zero")  # without a padding token to count from, which texts would hold too
    narrow = narrow_bert.shape(student, taken) if taken and student.reduced else {}
    shape = bert.shape(student, start.vocabulary_size, start.pad_id, start.dims, taken, narrow)
    module = _module("bert", shape)
    layers = bert.source_layers(student, taken.config) if taken else None
    if not student.reduced:
        given = source.layers if source else None
        bert.initialize(module, layers, given, start.embeddings, student.embeddings.of == "outputs", start.token_weights)
        _start_head(module, source)
        return module, shape
    if start.sample is not None and start.embeddings is not None:
        assert source is not None and layers is not None
        narrow_bert.initialize(module, source.layers, layers, start.embeddings, start.sample.batch, start.token_weights)
    return module, shape


# From the student's kind to the function that builds and initializes it.
INITIALISE: dict[str, Callable[[Any, Start], tuple[nn.Module, dict[str, Any]]]] = {
    "bert": _bert,
    "bilstm": _bilstm,
    "recurrent": _recurrent,
    "static": _static,
}


def _limited_to_trained_positions(spec: recipe.Recipe, source: WeightSource | None) -> recipe.BuiltStudent:
    """The recipe's student with the `max_tokens` that its position table is trained for.

    Where the table is randomly initialized, that is what the stages train; where it comes from a run, what that run or the stages train.
    """
    student = spec.student
    assert isinstance(student, recipe.BuiltStudent)
    random = isinstance(student, recipe.Bert) and student.weights == "random"
    random = random or (isinstance(student, recipe.Recurrent) and student.embeddings.source == "random")
    known = [] if random else [source.max_tokens] if source is not None and source.max_tokens is not None else [student.max_tokens]
    trained = [*known, *(stage.max_tokens for stage in spec.distilling)]
    if not trained or spec.finetuning is not None:
        return student
    return student.model_copy(update={"max_tokens": min(student.max_tokens, max(trained))})


def _start_head(module: Any, source: WeightSource | None) -> None:
    """Copy the head of the source where the student's has the same shape."""
    head = source.head if source else None
    if head is not None and module.head is not None and module.head.weight.shape == head.weight.shape:
        module.head.load_state_dict(head.state_dict())
