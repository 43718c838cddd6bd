"""Pseudorehearsal (Robins 1995, Catastrophic forgetting, rehearsal and pseudorehearsal): random words of a
student's own vocabulary, and the embeddings that it gave them before the stage.

Matching these in every step keeps what a finished student knows of texts other than those it is trained on,
without any such text and in whatever languages it knows.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.runtime import batching
from edgedistill.students.head import without_lexical_channel
from edgedistill.training.initial_student.prepared_student import PreparedStudent

SHARE = 4  # texts of a batch for each sequence
WORDS = 5, 13  # of a sequence
# Tokenizers list common tokens first: the i-th word is drawn with 1 / (i + RANKS), as frequencies fall.
RANKS = 50


class Rehearsal:
    """The sequences of each step, and their embeddings by the student as it is now."""

    def __init__(self, stage: recipe.Stage, student: PreparedStudent) -> None:
        """What `student` embeds when the stage begins."""
        self.weight, self.count = stage.rehearsal, max(1, stage.batch // SHARE)
        self.before = copy.deepcopy(student.module).eval().requires_grad_(False)
        tokenizer = student.limited_tokenizer.limited(stage.max_tokens)
        self.encode, self.pad_id = tokenizer.encoder(), tokenizer.pad_id
        self.words = words(student.tokenizer)
        shares = 1 / (np.arange(len(self.words)) + RANKS)
        self.shares = shares / shares.sum()

    def at(self, step: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """(ids, mask, embeddings before): (R, T), (R, T) and (R, d), a function of the step alone."""
        random = np.random.default_rng(step)
        lengths = random.integers(*WORDS, self.count, endpoint=True)
        drawn = random.choice(self.words, lengths.sum(), p=self.shares)
        texts = [" ".join(each) for each in np.split(drawn, np.cumsum(lengths)[:-1])]
        padded = batching.pad(self.encode(texts), self.pad_id)
        ids, mask = (torch.from_numpy(each).to(device) for each in padded)
        with torch.no_grad(), without_lexical_channel(self.before):
            return ids, mask, self.before.to(device)(ids, mask).float()


def words(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """The words in a vocabulary, (n,) strings in its order."""
    backend: Any = tokenizer.backend_tokenizer  # transformers' own batch_decode takes 15 times as long
    listed = map(str.strip, backend.decode_batch([[each] for each in range(len(tokenizer))]))
    return np.array([text for text in listed if text.isalpha()])
