"""Timing as it will be in the race: with the threads of one of its processes, and the other processes at work beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from edgedistill.fitting import processes
from edgedistill.teacher.encoder import flush_denormals

WIDTH = 512  # of the matrices that stand for the others' work


def threads(workers: int) -> int:
    """Of each process, where so many share this process's threads."""
    return max(1, torch.get_num_threads() // workers)


@contextmanager
def as_in_the_race(workers: int) -> Iterator[None]:
    """Time a body while `workers` - 1 other processes multiply matrices. Two of them on one core with hyper-threading are each slower."""
    before, share = torch.get_num_threads(), threads(workers)
    command = [sys.executable, "-m", __name__, str(share), str(os.getpid())]
    others: list[subprocess.Popen[bytes]] = []
    try:
        others.extend(_started(command) for _ in range(1, workers))
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()  # it is at work
        torch.set_num_threads(share)
        yield
    finally:
        torch.set_num_threads(before)
        for other in others:
            other.kill()
            other.communicate()


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=processes.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def main() -> None:
    """Multiply until the process that asked for it is gone."""
    share, parent = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(share)
    flush_denormals()
    matrix = torch.randn(WIDTH, WIDTH)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while os.getppid() == parent:
        torch.mm(matrix, matrix)


if __name__ == "__main__":
    main()
