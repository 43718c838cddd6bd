"""A finished student as the initial one: shape, weights, tokenizer and head come from a run or a bundle.

Its head stays where it gives what the recipe's targets are: embeddings in the space of the same teacher.
Otherwise the student gets a linear head, which `fit_head` then fits to the targets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from edgedistill import bundle_run, objectives, recipe, run
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.runtime.similarity import unit_rows
from edgedistill.session import Session
from edgedistill.students import kinds
from edgedistill.students.output import Affine, own
from edgedistill.teacher.dimension_reduction import ridge
from edgedistill.teacher.targets import EmbeddingRows
from edgedistill.training import student_embeddings
from edgedistill.training.initial_student import earlier_training
from edgedistill.training.initial_student.prepared_student import PreparedStudent

POSITIONS = "position_embeddings.weight"
SAME_SPACE = {
    "model",
    "embeddings",
    "revision",
    "pooling",
    "prompt",
    "prompt_name",
}  # of a teacher: what its embeddings depend on
SAMPLE = 10_000  # texts, some forty for each dimension of a student that is 256 wide
# of them: the regularization is chosen, and the cosine measured, on texts that the head was not fitted on
SET_ASIDE = 0.1
REGULARIZATION = (1e-4, 1e-2, 1.0)  # in units of the sample's sum of squares of a dimension


def find(spec: recipe.Recipe) -> run.Run:
    """The finished student that a recipe starts from.

    Raises UserError as `bundle_run.open_finished`, and where the recipe asks for what this student does not
    have.
    """
    student = spec.student
    assert isinstance(student, recipe.Finished)
    source = bundle_run.open_finished(student.weights, "student.weights")
    if source.kind == "static":
        if student.dropout is not None:
            raise UserError(
                f"student.dropout: {student.weights} is a static student, which has none; leave it out"
            )
        for number, stage in enumerate(spec.distilling):
            if stage.optimizer == "muon":
                fact = (
                    f"muon optimizes the matrices of layers, and {student.weights} is a static student, "
                    "which has none"
                )
                raise UserError(f"stages[{number}].optimizer: {fact}; leave it out")
    blocks = source.shape.get("blocks")
    if blocks and not (
        isinstance(spec.targets, recipe.Split)
        and [list(each) for each in spec.targets.blocks] == list(map(list, blocks))
    ):
        raise UserError(
            f"student.weights: {student.weights} has a block for each of its teachers; give the recipe the "
            "same `targets`"
        )
    return source


def build(
    spec: recipe.Recipe, source: run.Run, tokenizer: PreTrainedTokenizerBase, dims: int
) -> PreparedStudent:
    """The finished student before its first step. source: what `find` has found; tokenizer: its own; dims: of
    the targets.

    A new head starts as the old one where it has the same dimensions. Raises UserError where pairs would need
    a new head.
    """
    shape = _shape(spec, source)
    new_head = _needs_new_head(spec, source, dims)
    if new_head:
        if isinstance(spec.corpus, recipe.Parallel):
            fact = (
                f"{source.folder.name} embeds in another space than the targets, and its head is fitted "
                "on single texts"
            )
            raise UserError(
                f"student.weights: {fact}, not on pairs; give the teacher that it was trained with, or a "
                "corpus of texts"
            )
        shape |= {"head": {"dims": dims, "bias": True}, "tanh": False}
    torch.manual_seed(spec.seed)
    module: Any = kinds.KINDS[source.kind].build(shape)
    weights = own(source.student()).state_dict()
    if new_head:
        weights = {name: value for name, value in weights.items() if not name.startswith("head.")} | _head(
            module, weights
        )
    module.load_state_dict(_longer(weights, module))
    earlier = tuple(earlier_training.record(source))
    return PreparedStudent(module.eval(), shape, tokenizer, source.origin, new_head, earlier=earlier)


def _shape(spec: recipe.Recipe, source: run.Run) -> dict[str, Any]:
    """The source's shape with the recipe's own values."""
    student = spec.student
    assert isinstance(student, recipe.Finished)
    shape = {name: value for name, value in source.shape.items() if name != "blocks"}
    if student.max_tokens is not None:
        shape["max_tokens"] = student.max_tokens
        if "config" in shape:
            first = shape.get("pad", 0) + 1 if shape.get("positions") == "pad" else 0
            rows = max(shape["config"]["max_position_embeddings"], first + student.max_tokens)
            shape["config"] = {**shape["config"], "max_position_embeddings": rows}
    if student.dropout is not None and "config" in shape:
        names = ["hidden_dropout_prob", "attention_probs_dropout_prob"]
        shape["config"] = {**shape["config"], **dict.fromkeys(names, student.dropout)}
    elif student.dropout is not None:
        shape["dropout"] = student.dropout
    return shape


def _longer(weights: dict[str, torch.Tensor], module: Any) -> dict[str, torch.Tensor]:
    """The weights with as many position embeddings as the module has: further ones repeat the second half of
    those there are.

    Far positions resemble each other: `nano` stretched so to 256 tokens is nearer to its teacher on long
        texts before it has learned
    anything of them (bench/LOG.md).
    """
    found, wanted = dict(weights), module.state_dict()
    for name in (each for each in weights if each.endswith(POSITIONS)):
        table, rows = weights[name], len(wanted[name])
        if rows > len(table):
            half = table[len(table) // 2 :]
            found[name] = torch.cat([table, half.repeat(-(-rows // len(half)), 1)[: rows - len(table)]])
    return found


def _head(module: Any, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A new head's first weights: the old one's, the identity behind none, or where dimensions differ those
    that it has."""
    old, new = weights.get("head.weight"), module.head.weight.detach()
    if old is None and new.shape[0] == new.shape[1]:
        old = torch.eye(len(new))
    if old is None or old.shape != new.shape:
        return {f"head.{name}": value for name, value in module.head.state_dict().items()}
    return {"head.weight": old, "head.bias": weights.get("head.bias", torch.zeros(len(old)))}


def _needs_new_head(spec: recipe.Recipe, source: run.Run, dims: int) -> bool:
    """Whether the recipe's targets are in another space than the finished student's embeddings, and are not
    fitted to these."""
    if not any(
        objectives.reads_teacher(stage.objective) for stage in spec.distilling if stage.triples is None
    ):
        return False
    if isinstance(spec.targets, recipe.SingleTeacher) and spec.targets.fits_student:
        return False
    mine, theirs = _space(spec), _space(source.recipe)
    return mine is None or mine != theirs or dims != source.dims


def _space(spec: recipe.Recipe) -> dict[str, Any] | None:
    """What identifies the teacher whose own embeddings a recipe's targets are; None where `targets` map them
    to another space."""
    targets, teacher = spec.targets, spec.teacher
    if targets is not None:
        if not isinstance(targets, recipe.SingleTeacher) or targets.align != "none":
            return None
        rebuilt = isinstance(targets.reduce, recipe.Pca) and targets.reduce.rank is not None
        if not rebuilt and targets.reduce.kind != "none":
            return None
        teacher = targets.teacher or teacher
    return teacher.model_dump(include=SAME_SPACE)


def fit_head(
    student: PreparedStudent, targets: EmbeddingRows, texts: Corpus, seed: int, session: Session
) -> None:
    """Set the head in place by ridge regression of the targets on the student's pooled output, on a sample of
    the training texts."""
    head: Any = own(student.module).head
    rows = np.random.default_rng([seed, 1]).permutation(texts.training_count)[:SAMPLE]
    pooled, wanted = _pooled(student, texts.texts(rows)), targets[rows].astype(np.float64)
    count = max(1, round(SET_ASIDE * len(rows)))
    measured = slice(0, count)
    fitted = slice(count, None) if len(rows) > count else measured
    before = Affine(head.weight.detach().double().numpy().T, head.bias.detach().double().numpy())
    squares = float(((pooled[fitted] - pooled[fitted].mean(0)) ** 2).sum(0).mean())
    tried = [ridge(pooled[fitted], wanted[fitted], max(share * squares, 1e-9)) for share in REGULARIZATION]
    cosines = [_cosine(each(pooled[measured]), wanted[measured]) for each in tried]
    best = tried[int(np.argmax(cosines))]
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(best.weight.T))
        head.bias.copy_(torch.from_numpy(best.bias))
    first = _cosine(before(pooled[measured]), wanted[measured])
    session.log(
        f"head: fitted to the targets' {head.out_features} dimensions on {len(rows):,} texts; "
        f"mean cosine to them {first:.4f} before, {max(cosines):.4f} after"
    )


def _pooled(student: PreparedStudent, texts: list[str]) -> np.ndarray:
    """(n, H) float64: the student's output in front of its head."""
    bare: Any = own(student.module)
    head, bare.head = bare.head, None
    try:
        return student_embeddings.embed(
            bare.eval(), student.tokenizer, texts, student.max_tokens, unit=False
        ).astype(np.float64)
    finally:
        bare.head = head


def _cosine(rows: np.ndarray, wanted: np.ndarray) -> float:
    return float((unit_rows(rows) * unit_rows(wanted)).sum(1).mean())
