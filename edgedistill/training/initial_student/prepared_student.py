"""A student as it is handed from one part of training to the next: module, shape, tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.token_cache import TokenCache, tokenize
from edgedistill.session import Session


@dataclass(frozen=True)
class StudentTokenizer:
    """The student's tokenizer and the most tokens of a text that the student is given; longer texts are
    truncated."""

    tokenizer: PreTrainedTokenizerBase
    max_tokens: int

    @property
    def backend(self) -> Tokenizer:
        """The tokenizer of the `tokenizers` library."""
        return self.tokenizer.backend_tokenizer

    @property
    def pad_id(self) -> int:
        """The padding id, 0 where the tokenizer names none."""
        return self.tokenizer.pad_token_id or 0

    def limited(self, max_tokens: int) -> StudentTokenizer:
        """The same with a lower limit, or as it is where the limit is not lower."""
        return replace(self, max_tokens=min(self.max_tokens, max_tokens))

    def limited_to(
        self, stages: list[recipe.Stage] | list[recipe.Stage | recipe.Finetune]
    ) -> StudentTokenizer:
        """The same with the highest limit of these stages, or as it is where there are none."""
        return self.limited(max((stage.max_tokens for stage in stages), default=self.max_tokens))

    def tokenize(self, texts: Corpus, session: Session) -> TokenCache:
        """Token ids of a whole corpus, from the cache where it has them."""
        return tokenize(texts, self.backend, self.max_tokens, self.pad_id, session)


@dataclass(frozen=True)
class PreparedStudent:
    """A student's module, its shape (the content of student.json) and its tokenizer.

    origin: of a finished student, which run or bundle it comes from, for run.json. earlier: what the run was
        trained on that the student
    or its layers come from, see `earlier_training`. new_head: its head is still to be fitted to the targets.
    drops_head: a projection onto the targets' dimensions serves training only.
    """

    module: nn.Module
    shape: dict[str, Any]
    tokenizer: PreTrainedTokenizerBase
    origin: dict[str, Any] | None = None
    new_head: bool = False
    drops_head: bool = False
    earlier: tuple[dict[str, Any], ...] = ()

    @property
    def max_tokens(self) -> int:
        """Its maximum number of input tokens."""
        return int(self.shape["max_tokens"])

    @property
    def prompt(self) -> str:
        """What is put before every text; empty for most students."""
        return str(self.shape.get("prompt", ""))

    @property
    def limited_tokenizer(self) -> StudentTokenizer:
        """The tokenizer with the student's limit."""
        return StudentTokenizer(self.tokenizer, self.max_tokens)
