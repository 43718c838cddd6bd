"""What initial weights are fitted to: token frequencies, some texts and the translations of the training
corpus."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.session import Session
from edgedistill.training.initial_student.prepared_student import StudentTokenizer

TEXTS = 512  # texts of the sample

MAX_TOKENS = 32  # tokens of each that are used


class CorpusSample(NamedTuple):
    """token_weights (V,) float64: (count of the token in the training texts + 1)^count_exponent, the weight
    of its row where the embedding table is reduced; None: equal weights. batch: (ids, mask), each (B, T), of
    texts spread over the training texts.
    pairs: those whose translations give initial token embeddings."""

    token_weights: Tensor | None
    batch: tuple[Tensor, Tensor]
    pairs: ParallelCorpus | None = None


def sample(
    spec: recipe.Recipe, tokenizer: PreTrainedTokenizerBase, texts: Corpus | ParallelCorpus, session: Session
) -> CorpusSample | None:
    """The sample of the training texts, or None where the recipe's initial weights need none.

    Of pairs, tokens are counted on the source and the target side, and the batch is of the source side.
    """
    student = spec.student
    if not isinstance(student, recipe.BuiltStudent):
        return None
    weighted, translated = student.embeddings.weighting != "none", student.embeddings.of == "translations"
    if not weighted and not translated and not (isinstance(student, recipe.Bert) and student.reduced):
        return None
    limited = StudentTokenizer(tokenizer, student.max_tokens).limited_to(spec.stages)
    corpora = [texts.source_side, texts.target_side] if isinstance(texts, ParallelCorpus) else [texts]
    tokens = [limited.tokenize(each, session) for each in corpora]
    rows = np.linspace(0, corpora[0].training_count - 1, min(TEXTS, corpora[0].training_count)).astype(
        np.int64
    )
    ids, mask = tokens[0].batch(rows, MAX_TOKENS)
    counts = np.sum(
        [
            each.counts(len(tokenizer), corpus.training_count)
            for each, corpus in zip(tokens, corpora, strict=True)
        ],
        0,
    )
    weights = torch.from_numpy((counts + 1.0) ** student.embeddings.count_exponent) if weighted else None
    pairs = texts if translated and isinstance(texts, ParallelCorpus) else None
    if pairs is not None:
        session.log(
            f"fitting {len(tokenizer):,} token embeddings to {pairs.training_count:,} translation pairs; "
            "minutes for millions of pairs"
        )
    return CorpusSample(weights, (torch.from_numpy(ids), torch.from_numpy(mask)), pairs)
