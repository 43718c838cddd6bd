"""The batches of the stages over a parallel corpus: token ids of the source and the target side, and the
embeddings that both match."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.data.token_cache import TokenCache
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.teacher import assistant
from edgedistill.teacher.embedding_cache import embed_corpus
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.teacher.targets import EmbeddingRows
from edgedistill.training.initial_student.prepared_student import StudentTokenizer
from edgedistill.training.inputs.text_batches import Batches, SideTokens, View
from edgedistill.training.load_models import Models


class PairBatches(Batches):
    """Two views, the source and the target side; the target embeddings of a batch are (n, 2, d)."""

    def __init__(self, sides: list[SideTokens], max_tokens: int, targets: EmbeddingRows) -> None:
        views: list[View] = [_view(side, max_tokens) for side in sides]
        super().__init__(views, list(sides), len(sides[0].rows), targets)

    def short(self, max_tokens: int) -> np.ndarray:
        """The pairs of which both sides have at most `max_tokens` tokens, (n,) int64."""
        return np.flatnonzero(self.lengths(np.arange(self.texts)) <= max_tokens)


def _view(side: SideTokens, max_tokens: int) -> View:
    return lambda pairs, passes: side.batch(pairs, max_tokens)


class PairTargets:
    """What the two sides of each pair are to match, (n, 2, d) float32: each its own embedding, or both the
    source side's."""

    def __init__(self, index: np.ndarray, source: EmbeddingRows, target: EmbeddingRows | None) -> None:
        """index (pairs, 2): the texts of each pair. target: None where both sides match the source side's
        embedding."""
        self.index, self.source, self.target = index, source, target
        self.dims = source.dims

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, pairs: np.ndarray) -> np.ndarray:
        rows = self.index[pairs]
        source = self.source[rows[:, 0]]
        return np.stack([source, source if self.target is None else self.target[rows[:, 1]]], 1)


class TokenizedPairs(NamedTuple):
    """A parallel corpus and the token ids of its source and target texts."""

    pairs: ParallelCorpus
    source: TokenCache
    target: TokenCache


def tokenize(
    spec: recipe.Recipe, pairs: ParallelCorpus, tokenizer: StudentTokenizer, session: Session
) -> TokenizedPairs:
    """Tokenize both sides, up to the highest limit of the stages. tokenizer: with the student's own limit."""
    limited = tokenizer.limited_to(spec.distilling)
    return TokenizedPairs(
        pairs, limited.tokenize(pairs.source_side, session), limited.tokenize(pairs.target_side, session)
    )


class EmbeddedSides:
    """The embeddings of each side by the teacher, by the assistant or by its embedding layer; each computed
    when it is first needed."""

    def __init__(self, pairs: ParallelCorpus, models: Models, session: Session) -> None:
        self.pairs, self.models, self.session = pairs, models, session
        self.found: dict[tuple[str, str, str], EmbeddingRows] = {}

    def rows(self, match: recipe.Match, side: str) -> EmbeddingRows:
        """The embeddings of a side, `source` or `target`, as the model gives them: not of unit length, as in
        the paper."""
        key = (match.of, match.layer, side)
        if key not in self.found:
            self.found[key] = self._embed(match, self.pairs.side(side), side)
        return self.found[key]

    def _embed(self, match: recipe.Match, texts: Corpus, side: str) -> EmbeddingRows:
        model = embedding_model(match, self.models)
        if model is None:
            return embed_corpus(self.models.teacher, texts, self.session)
        layer = "" if match.layer == "output" else "'s embedding layer"
        return embed_corpus(model, texts, self.session, unit=False, name=f"{match.of}{layer}, {side} side")

    def targets(self, stage: recipe.Stage) -> PairTargets:
        """What the pairs of a stage are to match."""
        match = stage.match or recipe.Match()
        source = self.rows(match, "source")
        return PairTargets(
            self.pairs.training_pairs(stage.pairs),
            source,
            self.rows(match, "target") if match.language == "own" else None,
        )


def of_pairs(
    stage: recipe.Stage, tokenized: TokenizedPairs, embedded: EmbeddedSides, max_tokens: int
) -> PairBatches:
    """The batches of one stage over pairs. max_tokens: the student's own limit."""
    targets = embedded.targets(stage)
    sides = [
        SideTokens(each, targets.index[:, at]) for at, each in enumerate((tokenized.source, tokenized.target))
    ]
    return PairBatches(sides, min(stage.max_tokens, max_tokens), targets)


def embedding_model(match: recipe.Match, models: Models) -> TeacherEncoder | None:
    """The model whose embeddings a stage matches; None where they are read from a file."""
    if match.of == "teacher":
        return models.teacher if isinstance(models.teacher, TeacherEncoder) else None
    assert models.assistant is not None, "the recipe's own checks guarantee it"
    return models.assistant if match.layer == "output" else assistant.EmbeddingLayer(models.assistant)


def embeddings_needed(spec: recipe.Recipe) -> list[tuple[recipe.Match, str]]:
    """Which embeddings of which side (`source`, `target`) the stages need, each once."""
    found: dict[tuple[str, str, str], tuple[recipe.Match, str]] = {}
    for stage in spec.distilling:
        match = stage.match or recipe.Match()
        for side in ("source", "target") if match.language == "own" else ("source",):
            if stage.triples is None:
                found.setdefault((match.of, match.layer, side), (match, side))
    return list(found.values())


def check_tokenizers(spec: recipe.Recipe, models: Models, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError where student and assistant must share their tokens and do not.

    They must where the student starts from the assistant's layers, and where embedding layers are matched:
    these are means over tokens.
    """
    if models.assistant is None:
        return
    of_assistant = models.assistant.tokenizer
    fact = (
        "cut texts into other tokens"
        if not tokenizer.get_vocab().keys() <= of_assistant.get_vocab().keys()
        else ""
    )
    if (
        not fact
        and of_assistant("")["input_ids"]
        and len(tokenizer("")["input_ids"]) != len(of_assistant("")["input_ids"])
    ):
        fact = "put other special tokens around them"
    if not fact:
        return
    way_out = f"student and assistant {fact}; set student.tokenizer: assistant"
    if getattr(spec.student, "weights", None) == "assistant":
        raise UserError(f"student.weights: the assistant's layers read the assistant's own tokens, {way_out}")
    for number, stage in enumerate(spec.distilling):
        if stage.match is not None and stage.match.layer == "embeddings":
            raise UserError(
                f"stages[{number}].match: embedding layers are compared over the same tokens, {way_out}"
            )
