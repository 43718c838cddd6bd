"""The embeddings that a student gives while it is a torch module."""

from __future__ import annotations

from numpy import ndarray
from torch import nn
from transformers import PreTrainedTokenizerBase

from edgedistill.evaluation.scoring import Encode, Encoder
from edgedistill.runtime.prompts import ROLES
from edgedistill.students import kinds
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import tokenizer_files
from edgedistill.training.initial_student.prepared_student import PreparedStudent

TOKENS_PER_BATCH = 8_192  # padding included


def encoder(student: nn.Module, prepared: PreparedStudent) -> Encoder:
    """The module, as it is when it embeds, by the roles of texts; `prepared` says how it reads them."""

    def in_role(role: str) -> Encode:
        prompt = prepared.prompts.of(role)
        return lambda texts: embed(
            student, prepared.tokenizer, [prompt + text for text in texts], prepared.max_tokens
        )

    text, query, document = map(in_role, ROLES)
    return Encoder(text, query, document)


def embed(
    student: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    max_tokens: int,
    unit: bool = True,
) -> ndarray:
    """Texts -> (n, d) float32 rows, by the module as it is, on its own device; texts are truncated to
    `max_tokens`.

    With `unit` they are scaled to unit length, otherwise they are as the module returns them.
    """
    forward = teachers.torch_forward(student, next(student.parameters()).device)
    ids = tokenizer_files.encode_ids(tokenizer, texts, max_tokens)
    return teachers.embed_in_batches(
        forward, ids, tokenizer.pad_token_id or 0, kinds.dims(student), TOKENS_PER_BATCH, unit
    )
