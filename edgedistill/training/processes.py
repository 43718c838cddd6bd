"""The processes that torchrun or accelerate launch has started, training as one.

Each holds the whole student and reads the whole batch of a step, embeds its own rows of it, and receives the
embeddings of the others; so each computes the loss of the whole batch, with all its negatives, relations and
targets, and pushes all targets into its queues. The student's gradients are summed. N processes take the
steps of one, but for rounding and the draws of dropout. Only the first writes; the others have a copy of the
unfinished run's folder, which is deleted in the end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from edgedistill.errors import UserError
from edgedistill.session import process

# The first process may fit targets for hours; one that died ends the others' waiting at once.
PATIENCE = timedelta(days=30)


@dataclass(frozen=True)
class Processes:
    """One of `count` processes, its number counted from 0."""

    number: int = 0
    count: int = 1
    device: str = "cpu"

    def embedded(self, embed: Callable[[Tensor, Tensor], Tensor], ids: Tensor, mask: Tensor) -> Tensor:
        """What `embed(ids, mask)` returns, (B, d), of which each process computes every `count`-th row."""
        if self.count == 1:
            return embed(ids, mask)
        if len(ids) < self.count:  # the first alone learns from them
            embeddings = embed(ids, mask)
            return embeddings if self.number == 0 else embeddings.detach()
        rows = slice(self.number, None, self.count)
        return _Gathered.apply(embed(ids[rows], mask[rows]), rows, len(ids))

    def sum_gradients(self, module: nn.Module, part: nn.Module) -> None:
        """Give every process the gradients of a module: of its part `of` their sum, of other parameters,
        whose gradients are whole in each process, those of the first."""
        if self.count == 1:
            return
        summed = {id(parameter) for parameter in part.parameters()}
        works = []
        for parameter in module.parameters():
            if parameter.grad is not None:
                if self.number and id(parameter) not in summed:
                    parameter.grad.zero_()
                works.append(distributed.all_reduce(parameter.grad, async_op=True))
        for work in works:
            work.wait()

    def copy_first(self, module: nn.Module) -> None:
        """Give a module the parameters and buffers that it has in the first process."""
        if self.count > 1:
            for tensor in module.state_dict().values():
                raw = tensor.contiguous()
                distributed.broadcast(raw.flatten().view(torch.uint8), 0)  # gloo knows few types
                tensor.copy_(raw)

    def of_first(self, value: float) -> float:
        """The value that the first process has; waits for it."""
        if self.count == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=self.device)
        distributed.broadcast(shared, 0)
        return shared.item()

    def seed_step(self, seed: int, step: int) -> None:
        """Let each process make other random draws in a step, the same whenever it is trained."""
        if self.count > 1:
            torch.manual_seed(((seed * 1_000_003 + step) * self.count + self.number) % 2**63)

    @contextmanager
    def first_alone(self, folder: Path, of_first: Path) -> Iterator[None]:
        """Run the block in the first process, then in the others, where `folder` holds a copy of `of_first`.

        Raises UserError in the others where the first has raised, or where they do not see its folder.
        """
        if self.number:
            if not self.of_first(0.0):
                raise UserError("train: the first process has stopped; what it printed says why")
            if not of_first.exists():
                raise UserError(
                    f"train: process {self.number} does not see {of_first}; on several machines, --out "
                    "must be on a shared file system"
                )
            shutil.copytree(of_first, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
            distributed.barrier()
        done = False
        try:
            yield
            done = True
        finally:
            if self.number == 0:
                self.of_first(float(done))
                if done and self.count > 1:
                    distributed.barrier()  # until all have their copy: the folder may go


class _Gathered(torch.autograd.Function):
    """Rows that each process has computed a part of, (B, d); a part receives its own rows' gradient."""

    @staticmethod
    def forward(ctx: Any, rows_here: Tensor, rows: slice, count: int) -> Tensor:
        ctx.rows = rows
        whole = rows_here.new_zeros((count, rows_here.shape[1]), dtype=torch.float32)
        whole[rows] = rows_here.float()
        distributed.all_reduce(whole)  # what the others add is zero
        return whole.to(rows_here.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient[ctx.rows], None, None


ALONE = Processes()


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """This process among those that were started, which meet here; on cpu or cuda, one GPU each."""
    number, count = process()
    if count == 1:
        yield ALONE
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if device == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Processes(number, count, device)
    except RuntimeError as error:
        if "peer" not in str(error) and not isinstance(error, distributed.DistError):
            raise
        raise UserError(
            f"train: process {number} of {count} has lost another, which was killed or failed; "
            "continue with --resume"
        ) from error
    finally:
        distributed.destroy_process_group()
