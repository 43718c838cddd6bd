"""The batches of the stages over a parallel corpus: token ids of the source and the target side, and the
embeddings that both match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.data.token_cache import TokenCache
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.teacher import assistant
from edgedistill.teacher.embedding_cache import TeacherPass
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.teacher.targets import EmbeddingRows
from edgedistill.training.inputs.text_batches import Batches, ColumnTokens
from edgedistill.training.load_models import Models


class PairTargets:
    """What the two sides of each pair are to match, (n, 2, d) float32: each its own embedding, or both the
    source side's."""

    def __init__(self, index: np.ndarray, source: EmbeddingRows, target: EmbeddingRows | None) -> None:
        """`index` (pairs, 2) holds the texts of each pair; `target` is None where both sides match the source
        side's embedding."""
        self.index, self.source, self.target = index, source, target
        self.dims = source.dims

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, pairs: np.ndarray) -> np.ndarray:
        rows = self.index[pairs]
        source = self.source[rows[:, 0]]
        return np.stack([source, source if self.target is None else self.target[rows[:, 1]]], 1)


def of_pairs(
    stage: recipe.Stage, pairs: ParallelCorpus, sides: Sequence[TokenCache], max_tokens: int
) -> Batches:
    """Two views, the source and the target side, whose tokens are `sides`; without targets. `max_tokens` is
    the student's own limit."""
    index = pairs.training_pairs(stage.pairs)
    tokens, most = ColumnTokens(sides, index), min(stage.max_tokens, max_tokens)
    return Batches([tokens.view(0, most), tokens.view(1, most)], tokens, len(index))


def targets_of(
    pairs: ParallelCorpus, models: Models, session: Session
) -> Callable[[recipe.Stage], PairTargets]:
    """What the pairs of a stage are to match.

    The embeddings of a side by the teacher, by the assistant or by its embedding layer are computed when a
    stage first needs them. They are as the model gives them, not of unit length, as in the paper.
    """

    @cache
    def embeddings(whose: recipe.Match, side: str) -> EmbeddingRows:
        texts, model = pairs.side(side), embedding_model(whose, models)
        if model is None:
            return TeacherPass(models.teacher, texts, session).open()
        layer = "" if whose.layer == "output" else "'s embedding layer"
        return TeacherPass(model, texts, session, unit=False, name=f"{whose.of}{layer}, {side} side").open()

    def of_stage(stage: recipe.Stage) -> PairTargets:
        whose, sides = embeddings_of(stage)
        target = embeddings(whose, "target") if "target" in sides else None
        return PairTargets(pairs.training_pairs(stage.pairs), embeddings(whose, "source"), target)

    return of_stage


def embedding_model(whose: recipe.Match, models: Models) -> TeacherEncoder | None:
    """The model whose embeddings a stage matches; None where they are read from a file."""
    if whose.of == "teacher":
        return models.teacher if isinstance(models.teacher, TeacherEncoder) else None
    assert models.assistant is not None, "the recipe's own checks guarantee it"
    return models.assistant if whose.layer == "output" else assistant.embedding_layer(models.assistant)


def embeddings_needed(spec: recipe.Recipe) -> list[tuple[recipe.Match, str]]:
    """Which embeddings of which side (`source`, `target`) the stages need, each once."""
    found = dict[tuple[recipe.Match, str], None]()
    for stage in spec.distilling:
        if stage.tuples is None:
            whose, sides = embeddings_of(stage)
            found.update(dict.fromkeys((whose, side) for side in sides))
    return list(found)


def embeddings_of(stage: recipe.Stage) -> tuple[recipe.Match, list[str]]:
    """Whose embeddings a stage matches, and of which sides."""
    match = stage.match or recipe.Match()
    sides = ["source", "target"] if match.language == "own" else ["source"]
    return match.model_copy(update={"language": "source"}), sides


def check_tokenizers(spec: recipe.Recipe, models: Models, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError where student and assistant must share their tokens and do not.

    They must where the student starts from the assistant's layers, and where embedding layers are matched:
    these are means over tokens.
    """
    if models.assistant is None:
        return
    other = models.assistant.tokenizer
    if not tokenizer.get_vocab().keys() <= other.get_vocab().keys():
        fact = "cut texts into other tokens"
    elif other("")["input_ids"] and len(tokenizer("")["input_ids"]) != len(other("")["input_ids"]):
        fact = "put other special tokens around them"
    else:
        return
    way_out = f"student and assistant {fact}; set student.tokenizer: assistant"
    if getattr(spec.student, "weights", None) == "assistant":
        raise UserError(f"student.weights: the assistant's layers read the assistant's own tokens, {way_out}")
    for number, stage in enumerate(spec.distilling):
        if stage.only_embeddings:
            raise UserError(
                f"stages[{number}].match: embedding layers are compared over the same tokens, {way_out}"
            )
