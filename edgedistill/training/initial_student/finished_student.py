"""A finished student as the initial one: shape, weights, tokenizer and head come from a run or a bundle.

Its head stays where it gives what the recipe's targets are: embeddings in the space of the same teacher.
Otherwise the student gets a linear head, which `fit_head` then fits to the targets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy import ndarray
from pydantic import AliasChoices, AliasPath, BaseModel, Field, ValidationError
from transformers import PreTrainedTokenizerBase

from edgedistill import bundle_run, files, recipe
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.files import Json
from edgedistill.recipe import Finished, Recipe
from edgedistill.run import Run, Weights
from edgedistill.runtime import prompts
from edgedistill.runtime.similarity import unit_rows
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.session import Session
from edgedistill.students import embedding_tables, kinds
from edgedistill.students.head import LEXICAL_CODES, without_lexical_channel
from edgedistill.students.sentence_transformer import Affine
from edgedistill.teacher.targets import EmbeddingRows, ridge
from edgedistill.training.initial_student.prepared_student import PreparedStudent

# What the embeddings of a teacher depend on.
SAME_SPACE = {"model", "embeddings", "revision", "pooling", "prompt"}
SAMPLE = 10_000  # texts, some forty for each dimension of a student that is 256 wide
# of them: the regularization is chosen, and the cosine measured, on texts that the head was not fitted on
SET_ASIDE = 0.1
REGULARIZATION = (1e-4, 1e-2, 1.0)  # in units of the sample's sum of squares of a dimension


def find(student: Finished) -> Run:
    """The finished student that a recipe starts from.

    Raises UserError as `bundle_run.open_finished`, and where the recipe asks for what this student does not
    have.
    """
    source = bundle_run.open_finished(student.weights, "student.weights")
    name = student.weights
    if source.kind == "static" and student.dropout is not None:
        raise UserError(f"student.dropout: {name} is a static student, which has none; leave it out")
    if student.pq_bytes is not None and (source.kind != "static" or source.shape.get("pq_bytes")):
        raise UserError(
            f"student.pq_bytes: {name} is no static student with a full table; leave it out, or "
            "give the run whose table is whole"
        )
    if student.lexical is not None and source.dims < LEXICAL_CODES:
        raise UserError(
            f"student.lexical: {name} has {source.dims} dimensions, a projection of words needs "
            f"{LEXICAL_CODES}; leave it out"
        )
    return source


def build(
    spec: Recipe,
    student: Finished,
    source: Run,
    tokenizer: PreTrainedTokenizerBase,
    dims: int,
    fitted: bool,
) -> PreparedStudent:
    """The finished student before its first step: `source` is what `find` has found, `tokenizer` is its own,
    and `dims` are those of the targets. Without `fitted` its table is not quantized, where it is to be.

    A new head starts as the old one where it has the same dimensions. Raises UserError where pairs would need
    a new head.
    """
    shape = _shape(student, source)
    new_head = needs_new_head(spec, source, dims)
    if new_head and spec.rows is not None and spec.rows.translated:
        raise UserError(
            f"student.weights: {source.folder.name} embeds in another space than the targets, and "
            "its head is fitted on single texts, not on pairs; give the teacher that it was "
            "trained with, or rows of one text"
        )
    if new_head:
        shape |= {"head": {"dims": dims, "bias": True}, "tanh": False}
        if student.lexical is None:  # its directions are those of the old head
            shape.pop("lexical", None)
    torch.manual_seed(spec.seed)
    module: Any = kinds.KINDS[source.kind].build(shape)
    finished: Any = source.student()
    weights = finished.state_dict()
    if student.pq_bytes is not None:
        if fitted:
            module.embedding.fit(weights["embedding.weight"])
        weights = {**module.state_dict(), **_without("embedding.", weights)}
    if new_head or student.lexical is not None:
        weights = _without("lexical_channel.", weights)
        if student.lexical is not None:
            module.lexical_channel.initialize(None if new_head else finished.head, student.lexical)
            weights |= module.lexical_channel.state_dict(prefix="lexical_channel.")
    if new_head:
        weights = _without("head.", weights) | _head(module, weights)
    module.load_state_dict(_with_longer_positions(weights, module))
    return PreparedStudent(module.eval(), shape, tokenizer, source.origin, new_head, earlier=earlier(source))


def _without(part: str, weights: Weights) -> Weights:
    """The weights but for those of a part of the student."""
    return {name: value for name, value in weights.items() if not name.startswith(part)}


def _shape(student: Finished, source: Run) -> Json:
    """The source's shape with the recipe's own values."""
    shape = dict(source.shape)
    config = dict(shape.get("config", {}))
    if student.max_tokens is not None:
        shape["max_tokens"] = student.max_tokens
        first = shape.get("pad", 0) + 1 if shape.get("position_ids") == "pad" else 0
        rows = max(config.get("max_position_embeddings", 0), first + student.max_tokens)
        config["max_position_embeddings"] = rows
    if student.dropout is not None:
        config |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), student.dropout)
    if "config" in shape:
        shape["config"] = config
    elif student.dropout is not None:
        shape["dropout"] = student.dropout
    if student.pq_bytes is not None:
        embedding_tables.check(None, student.pq_bytes, shape["width"])
        shape["pq_bytes"] = student.pq_bytes
    shape |= {} if student.lexical is None else {"lexical": student.lexical}
    shape |= student.model_dump(include=set(prompts.OF_ROLES), exclude_none=True)
    roles = prompts.read(shape).own
    return {name: value for name, value in shape.items() if name not in prompts.OF_ROLES} | roles


def _with_longer_positions(weights: Weights, module: Any) -> Weights:
    """The weights with as many position embeddings as the module has: further ones repeat the second half of
    those there are.

    Far positions resemble each other: `nano` stretched so to 256 tokens is nearer to its teacher on long
    texts before it has learned anything of them (bench/LOG.md).
    """
    longer = dict(weights)
    wanted = module.state_dict()
    for name, table in weights.items():
        if not name.endswith("position_embeddings.weight"):
            continue
        missing = max(0, len(wanted[name]) - len(table))
        half = table[len(table) // 2 :]
        repeats = -(-missing // len(half))
        longer[name] = torch.cat([table, half.repeat(repeats, 1)[:missing]])
    return longer


def _head(module: Any, weights: Weights) -> Weights:
    """A new head's first weights: the old one's, the identity behind none, or where dimensions differ those
    that it has."""
    old = weights.get("head.weight")
    new = module.head.weight.detach()
    if old is None and new.shape[0] == new.shape[1]:
        old = torch.eye(len(new))
    if old is None or old.shape != new.shape:
        return {f"head.{name}": value for name, value in module.head.state_dict().items()}
    return {"head.weight": old, "head.bias": weights.get("head.bias", torch.zeros(len(old)))}


def needs_new_head(spec: Recipe, source: Run, dims: int) -> bool:
    """Whether the recipe's targets are in another space than the finished student's embeddings, and are not
    fitted to these."""
    if not any(stage.reads_teacher for stage in spec.distilling):
        return False
    if spec.targets is not None and spec.targets.fits_student:
        return False
    mine = _space(spec)
    theirs = _space(source.recipe)
    return mine is None or mine != theirs or dims != source.dims


def _space(spec: Recipe) -> Json | None:
    """What identifies the teacher whose own embeddings a recipe's targets are; None where `targets` map them
    to another space."""
    if spec.targets is not None and not spec.targets.keeps_space:
        return None
    return spec.teacher.model_dump(mode="json", include=SAME_SPACE)


def fit_head(
    student: PreparedStudent, targets: EmbeddingRows, texts: Corpus, seed: int, session: Session
) -> None:
    """Set the head in place by ridge regression of the targets on the student's pooled output, on a sample of
    the training texts."""
    head: Any = student.module.head
    rows = np.random.default_rng([seed, 1]).permutation(texts.training_count)[:SAMPLE]
    pooled = _pooled(student, texts.texts(rows))
    wanted = targets[rows].astype(np.float64)
    count = max(1, round(SET_ASIDE * len(rows)))
    measured = pooled[:count], wanted[:count]
    fitted = (pooled[count:], wanted[count:]) if len(rows) > count else measured
    before = Affine(head.weight.detach().double().numpy().T, head.bias.detach().double().numpy())
    centred = fitted[0] - fitted[0].mean(0)
    squares = float((centred**2).sum(0).mean())
    tried = [ridge(*fitted, max(share * squares, 1e-9)) for share in REGULARIZATION]
    cosines = [_cosine(fit, *measured) for fit in tried]
    best = tried[int(np.argmax(cosines))]
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(best.weight.T))
        head.bias.copy_(torch.from_numpy(best.bias))
    first = _cosine(before, *measured)
    session.log(
        f"head: fitted to the targets' {head.out_features} dimensions on {len(rows):,} texts; "
        f"mean cosine to them {first:.4f} before, {max(cosines):.4f} after"
    )


def _pooled(student: PreparedStudent, texts: list[str]) -> ndarray:
    """(n, H) float64: the student's output in front of its head."""
    bare: Any = student.module
    head = bare.head
    bare.head = None
    try:
        with without_lexical_channel(bare):
            bare.eval()
            return student.embed(texts, unit=False).astype(np.float64)
    finally:
        bare.head = head


def _cosine(fit: Affine, pooled: ndarray, wanted: ndarray) -> float:
    """The mean cosine of what a head makes of the pooled output with the targets."""
    return float((unit_rows(fit(pooled)) * unit_rows(wanted)).sum(1).mean())


class _Teacher(BaseModel):
    """A teacher as a run has recorded it. `use` is what else it was there for, such as the initial
    weights."""

    name: str
    revision: str | None = None
    licence: str | None = None
    use: str | None = None


class _Source(BaseModel):
    """A file of a corpus, and how many texts, or pairs of texts, it gave."""

    name: str
    texts: int = Field(validation_alias=AliasChoices("texts", "pairs"))
    licence: str | None = None


class _Tuples(BaseModel):
    """A stage's table of tuples; their number is not recorded."""

    name: str
    licence: str | None = None


class _Training(BaseModel):
    """One training: the name of its recipe, its teachers, its text files, and its stages' tuples."""

    recipe: str
    teachers: list[_Teacher]
    sources: list[_Source]
    tuples: list[_Tuples]


class _Recorded(BaseModel):
    """What is read of a run.json; that of a bundle may come from a stranger."""

    sources: list[_Source] = Field([], validation_alias=AliasPath("corpus", "sources"))
    teachers: list[_Teacher] | None = None
    earlier: list[_Training] = Field([], max_length=100)


def earlier(source: Run) -> list[Json]:
    """The trainings of a finished student for run.json and the model card, the first one first: its run may
    have continued another. Each has the entries of `_Training`.

    Raises UserError for a record that no training writes.
    """
    try:
        read = _Recorded.model_validate(source.info)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(
            f"{source.folder}: its record of what it was trained on cannot be read ({place!a}); {GET_AGAIN}"
        ) from None
    spec = source.recipe
    named = spec.teacher
    licences = getattr(spec.rows, "licences", {})
    model = files.portable(str(named.embeddings or named.model))
    teacher = _Teacher(name=model, revision=named.revision, licence=named.licence)
    stages = [stage.model_dump(mode="json") for stage in spec.stages]
    last = _Training(
        recipe=spec.name,
        teachers=read.teachers or [teacher],
        sources=[record.model_copy(update={"licence": licences.get(record.name)}) for record in read.sources],
        tuples=[_Tuples(**record) for record in recipe.row_sources(stages)],
    )
    return [record.model_dump() for record in [*read.earlier, last]]
