"""A first-in, first-out queue of embeddings, as in MoCo."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize


class Queue(nn.Module):
    """The last `length` embeddings that were pushed, scaled to unit length and detached.

    MoCo's queue (He et al. 2020), filled with teacher embeddings as in DistilCSE §3.2 and ConGen §3.2. It is
    a ring buffer, so that a
    step writes only the new rows. State: ring (length, dims); at, the row that is written next; filled, the
        rows in use.

    The rows are the teacher's, not the student's: they do not age while the student learns, so no second,
    slowly moving encoder is kept as MoCo does. They are pushed after a step's loss, so that a text is never
    its own negative. The counters are buffers, because a resumed run must find the queue as it was.
    """

    ring: Tensor
    at: Tensor
    filled: Tensor

    def __init__(self, length: int, dims: int) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(length, dims))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def __len__(self) -> int:
        return int(self.filled)

    @property
    def vectors(self) -> Tensor:
        """The rows in use (n, d), in no particular order; a view of the buffer."""
        return self.ring[: int(self.filled)]

    @torch.no_grad()
    def push(self, vectors: Tensor) -> None:
        """Append embeddings (n, d), the last row newest, scaled to unit length; the oldest rows are
        overwritten."""
        length = len(self.ring)
        new = normalize(vectors.detach(), dim=-1)[-length:] if length else vectors[:0]
        if len(new) == 0:
            return
        places = (self.at + torch.arange(len(new), device=self.ring.device)) % length
        self.ring[places] = new.to(self.ring.dtype)
        self.at.fill_((self.at + len(new)) % length)
        self.filled.clamp_(min=min(length, int(self.filled) + len(new)))
