"""What the optimizer sees: a student behind which stands the objective of a stage, and what it rehearses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from edgedistill import objectives, recipe
from edgedistill.runtime import batching
from edgedistill.students import kinds
from edgedistill.students.bert import BertStudent
from edgedistill.students.head import without_lexical_channel
from edgedistill.students.sentence_transformer import PretrainedEncoder
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.processes import ALONE, Processes

# A further pass costs about as much as so many tokens (bench/LOG.md, "Unsorted batches in parts").
PASS_TOKENS = 256

SHARE = 4  # texts of a batch for each sequence
WORDS = 5, 13  # of a sequence
# Tokenizers list common tokens first: the i-th word is drawn with 1 / (i + RANKS), as frequencies fall.
RANKS = 50

Embed = Callable[..., Tensor]  # (ids, mask), or (ids, mask, rows of the embedding table) -> (B, d)


class Accelerator(NamedTuple):
    """What a run computes on, whether in bf16, and in which of several processes."""

    device: torch.device
    bf16: bool
    processes: Processes = ALONE

    def autocast(self) -> torch.autocast:
        """The context in which a student and what stands behind it are computed."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)


class TrainedModule(nn.Module):
    """A student, a projection onto the teacher's dimensions where the student's head serves training only,
    and the objective of a stage."""

    def __init__(
        self,
        stage: recipe.Stage,
        student: PreparedStudent,
        target_dims: int | None,
        unit: bool,
        processes: Processes = ALONE,
    ) -> None:
        """`target_dims` is None where nothing in the stage depends on them; `unit` says whether the targets
        are of unit length."""
        super().__init__()
        self.student = student.module
        self.only_embeddings = stage.only_embeddings
        self.processes = processes
        width = kinds.dims(student.module)
        dims = width if target_dims is None else target_dims
        projected = student.drops_head and stage.reads_teacher
        self.projection = nn.Linear(width, dims) if projected and not self.only_embeddings else None
        self.rehearsal = Rehearsal(stage, student) if stage.rehearsal else None
        self.objective = objectives.build(stage.objective, dims, unit)

    def forward(self, views: list[tuple[Tensor, Tensor]], targets: objectives.Targets, step: int) -> Tensor:
        """views: (ids, mask) of each view, (B, T) each. `step` decides what is rehearsed. Returns the loss
        ()."""
        student: Any = self.student
        embed = student.embedded if self.only_embeddings else student
        # Other students hardly compute padding.
        if views[0][0].device.type == "cpu" and isinstance(student, BertStudent):
            embed = partial(embed_by_length, embed, student.model.get_input_embeddings())
        # One pass over all views padded alike was 7% slower.
        with without_lexical_channel(student):
            embeddings = [self.processes.embedded(embed, ids, mask) for ids, mask in views]
            kept = self._forgotten(embed, step, views[0][0].device)
        if self.projection is not None:
            embeddings = [self.projection(view) for view in embeddings]
        with torch.autocast(views[0][0].device.type, enabled=False):
            return self.objective([view.float() for view in embeddings], targets) + kept

    def _forgotten(self, embed: Embed, step: int, device: torch.device) -> Tensor | float:
        """The weighted loss of what the student does not embed as it did before the stage."""
        if self.rehearsal is None:
            return 0.0
        ids, mask, before = self.rehearsal.at(step, device)
        now = self.processes.embedded(embed, ids, mask).float()
        return self.rehearsal.weight * objectives.cosine(now, before)


def use_plain_attention(student: nn.Module, accelerator: Accelerator) -> None:
    """Let a transformer compute attention as plain matrix products where it is trained in bf16 on a CPU.

    There the gradients of torch's fused kernel take up to twice a step's time; the results are the same but
    for rounding.
    """
    slow = accelerator.device.type == "cpu" and accelerator.bf16
    if slow and isinstance(student, BertStudent | PretrainedEncoder):
        model: Any = student.model
        model.set_attn_implementation("eager")


def parts(lengths: ndarray) -> list[int]:
    """The ends of the parts of rows sorted by length (n,): from the longest on, a part goes as far as its
    padding costs no more than a further pass."""
    ends = []
    end = len(lengths)
    while end:
        ends.append(end)
        padding = np.cumsum(lengths[end - 1] - lengths[:end][::-1])
        end -= int(np.searchsorted(padding, PASS_TOKENS, side="right"))
    return ends[::-1]


def embed_by_length(embed: Embed, table: Callable[[Tensor], Tensor], ids: Tensor, mask: Tensor) -> Tensor:
    """What `embed(ids, mask)` returns, (B, d), computed in parts of like length, each padded to its longest
    text, so that little padding is computed.

    ids, mask: (B, T) int64, right-padded, on the CPU. The result is exact but for rounding, since no text's
    embedding depends on another's or on padding. `table`, ids (n,) -> (n, H), is the student's embedding
    table. It is read once for all parts, because each reading has a gradient of the whole table's size.
    """
    lengths, order = mask.sum(1).sort()
    ends = parts(lengths.numpy())
    if len(ends) == 1:
        return embed(ids, mask)
    cuts = [(order[start:end], max(1, int(lengths[end - 1]))) for start, end in pairwise([0, *ends])]
    inputs = [ids[rows, :longest] for rows, longest in cuts]
    tokens = table(torch.cat([part_ids.flatten() for part_ids in inputs])).split(
        [part_ids.numel() for part_ids in inputs]
    )
    embeddings = [
        embed(part_ids, mask[rows, :longest], of_part.unflatten(0, part_ids.shape))
        for (rows, longest), part_ids, of_part in zip(cuts, inputs, tokens, strict=True)
    ]
    return torch.cat(embeddings)[order.argsort()]


class Rehearsal:
    """Pseudorehearsal (Robins 1995, Catastrophic forgetting, rehearsal and pseudorehearsal): random words of
    a student's own vocabulary, and the embeddings that it gave them before the stage.

    Matching these in every step keeps what a finished student knows of texts other than those it is trained
    on, without any such text and in whatever languages it knows.
    """

    def __init__(self, stage: recipe.Stage, student: PreparedStudent) -> None:
        """What `student` embeds when the stage begins."""
        self.weight = stage.rehearsal
        self.count = max(1, stage.batch // SHARE)
        self.before = copy.deepcopy(student.module).eval().requires_grad_(False)
        tokenizer = student.limited_tokenizer.limited(stage.max_tokens)
        self.encode = tokenizer.encoder()
        self.pad_id = tokenizer.pad_id
        self.words = words(student.tokenizer)
        shares = 1 / (np.arange(len(self.words)) + RANKS)
        self.shares = shares / shares.sum()

    def at(self, step: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """(ids, mask, embeddings before): (R, T), (R, T) and (R, d), a function of the step alone."""
        random = np.random.default_rng(step)
        lengths = random.integers(*WORDS, self.count, endpoint=True)
        drawn = random.choice(self.words, lengths.sum(), p=self.shares)
        ends = np.cumsum(lengths)[:-1]
        texts = [" ".join(words) for words in np.split(drawn, ends)]
        padded = batching.pad(self.encode(texts), self.pad_id)
        ids, mask = (torch.from_numpy(array).to(device) for array in padded)
        before = self.before.to(device)
        with torch.no_grad(), without_lexical_channel(before):
            embeddings = before(ids, mask)
        return ids, mask, embeddings.float()


def words(tokenizer: PreTrainedTokenizerBase) -> ndarray:
    """The words in a vocabulary, (n,) strings in its order."""
    backend = tokenizer.backend_tokenizer  # transformers' own batch_decode takes 15 times as long
    listed = map(str.strip, backend.decode_batch([[token] for token in range(len(tokenizer))]))
    return np.array([text for text in listed if text.isalpha()])
