"""A student as it is handed from one part of training to the next: module, shape, tokenizer; and the
embeddings that it gives while it is a torch module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy import ndarray
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.token_cache import TokenCache, TokenPass
from edgedistill.evaluation.scoring import Encode, Encoder
from edgedistill.files import Json
from edgedistill.run import Run, Shaped
from edgedistill.runtime.prompts import Prompts
from edgedistill.session import Session
from edgedistill.students import kinds
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import tokenizer_files

NO_PROMPTS = Prompts()
TOKENS_PER_BATCH = 8_192  # padding included, where nothing is trained


@dataclass(frozen=True)
class StudentTokenizer:
    """The student's tokenizer, the most tokens of a text that the student is given, and what is put before
    it; longer texts are truncated."""

    tokenizer: PreTrainedTokenizerBase
    max_tokens: int
    prompts: Prompts = NO_PROMPTS

    @property
    def backend(self) -> Tokenizer:
        """The tokenizer of the `tokenizers` library."""
        return self.tokenizer.backend_tokenizer

    @property
    def pad_id(self) -> int:
        """The padding id, 0 where the tokenizer names none."""
        return self.tokenizer.pad_token_id or 0

    def encoder(self) -> Callable[[list[str]], list[ndarray]]:
        """Texts -> the ids of each, (T,), with special tokens and at most `max_tokens`; no prompt is put
        before them."""
        copied = Tokenizer.from_str(self.backend.to_str())  # others change the shared one's limit meanwhile
        copied.no_padding()
        copied.enable_truncation(self.max_tokens)
        return lambda texts: [np.array(encoding.ids) for encoding in copied.encode_batch_fast(texts)]

    def limited(self, max_tokens: int) -> StudentTokenizer:
        """The same with a lower limit, or as it is where the limit is not lower."""
        return replace(self, max_tokens=min(self.max_tokens, max_tokens))

    def limited_to(self, stages: list[recipe.Stage]) -> StudentTokenizer:
        """The same with the highest limit of these stages, or as it is where there are none."""
        return self.limited(max((stage.max_tokens for stage in stages), default=self.max_tokens))

    def tokens(self, texts: Corpus, session: Session, role: str = "text") -> TokenPass:
        """The token ids of a whole corpus of texts in one role: with the role's prompt."""
        return TokenPass(texts, self.backend, self.max_tokens, self.pad_id, session, self.prompts.of(role))


@dataclass(frozen=True)
class PreparedStudent(Shaped):
    """A student's module, its shape (the content of student.json) and its tokenizer.

    `origin` says which run or bundle a finished student comes from, for run.json; `earlier` what the run was
    trained on that the student or its layers come from, see `finished_student.earlier`. With `new_head` its
    head is still to be fitted to the targets, with `drops_head` a projection onto the targets' dimensions
    serves training only. A student that is a whole model has its files in `model_folder`.
    """

    module: nn.Module
    shape: Json
    tokenizer: PreTrainedTokenizerBase
    origin: Json | None = None
    new_head: bool = False
    drops_head: bool = False
    earlier: Sequence[Json] = ()
    model_folder: Path | None = None

    @classmethod
    def of(cls, finished: Run) -> PreparedStudent:
        """The student of a finished run."""
        return cls(finished.student(), finished.shape, finished.tokenizer())

    @property
    def limited_tokenizer(self) -> StudentTokenizer:
        """The tokenizer with the student's limit and prompts."""
        return StudentTokenizer(self.tokenizer, self.max_tokens, self.prompts)

    @property
    def encoder(self) -> Encoder:
        """What embeds texts by their roles with the module as it is then."""

        def in_role(role: str) -> Encode:
            prompt = self.prompts.of(role)
            return lambda texts: self.embed([prompt + text for text in texts])

        return Encoder.by_role(in_role)

    def embed(self, texts: list[str], unit: bool = True) -> ndarray:
        """Embeddings (n, d) float32 of texts, without prompts, by the module as it is, on its own device.

        With `unit` they are scaled to unit length, otherwise they are as the module returns them.
        """
        forward = teachers.torch_forward(self.module, next(self.module.parameters()).device)
        ids = tokenizer_files.encode_ids(self.tokenizer, texts, self.max_tokens)
        pad_id = self.limited_tokenizer.pad_id
        dims = kinds.dims(self.module)
        return teachers.embed_in_batches(forward, ids, pad_id, dims, TOKENS_PER_BATCH, unit)


def token_counts(tokens: Sequence[TokenCache], corpora: Sequence[Corpus], vocabulary: int) -> ndarray:
    """How often each token occurs in the training texts, (vocabulary,)."""
    pairs = zip(tokens, corpora, strict=True)
    return np.sum([cache.counts(vocabulary, texts.training_count) for cache, texts in pairs], 0)
