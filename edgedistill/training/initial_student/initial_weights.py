"""The student before its first optimizer step: its module, its shape, its initial weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.students import kinds
from edgedistill.students.kind import Start
from edgedistill.students.output import Output
from edgedistill.training.initial_student import earlier_training, finished_student, weight_source
from edgedistill.training.initial_student.corpus_sample import CorpusSample
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.initial_student.token_embeddings import initial_token_embeddings
from edgedistill.training.initial_student.weight_source import WeightSource
from edgedistill.training.load_models import Models


def build(
    spec: recipe.Recipe,
    models: Models,
    tokenizer: PreTrainedTokenizerBase,
    session: Session,
    sample: CorpusSample | None = None,
    fitted: bool = True,
) -> PreparedStudent:
    """The recipe's student before its first step; the same recipe gives the same weights.

    session: its data folder and its cache are used. sample: `corpus_sample.sample` of the recipe; not needed
        for the shape alone.
    fitted: whether its token embeddings and narrow layers are fitted, which takes most of the time; without,
        only its shape is right.
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
        module, shape = (
            Output(student.module, None, spec.targets.blocks),
            {**student.shape, "blocks": spec.targets.blocks},
        )
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
    source = (
        weight_source.find(student, models, tokenizer)
        if isinstance(student, recipe.Bert | recipe.Recurrent)
        else None
    )
    limited = _limited_to_trained_positions(spec, source)
    pairs = sample.pairs if sample else None
    embeddings = initial_token_embeddings(spec, models, tokenizer, source, session, pairs, fitted)
    start = Start(tokenizer, dims, embeddings, shape_only=not fitted)
    if source is not None:
        start = replace(start, layers=source.layers, head=source.head)
    if sample is not None:
        start = replace(start, token_weights=sample.token_weights, batch=sample.batch)
    module, shape = kinds.KINDS[limited.kind].initial(limited, start)
    earlier = earlier_training.record(source.finished) if source and source.finished else []
    return PreparedStudent(
        module, shape, tokenizer, drops_head=recipe.drops_head(student), earlier=tuple(earlier)
    )


def _limited_to_trained_positions(spec: recipe.Recipe, source: WeightSource | None) -> recipe.BuiltStudent:
    """The recipe's student with the `max_tokens` that its position table is trained for.

    Where the table is randomly initialized, that is what the stages train; where it comes from a run, what
    that run or the stages train.
    """
    student = spec.student
    assert isinstance(student, recipe.BuiltStudent)
    random = isinstance(student, recipe.Bert) and student.weights == "random"
    random = random or (isinstance(student, recipe.Recurrent) and student.embeddings.source == "random")
    known = (
        []
        if random
        else [source.max_tokens]
        if source is not None and source.max_tokens is not None
        else [student.max_tokens]
    )
    trained = [*known, *(stage.max_tokens for stage in spec.distilling)]
    if not trained:
        return student
    return student.model_copy(update={"max_tokens": min(student.max_tokens, max(trained))})
