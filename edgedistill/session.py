"""What a command works with besides its input: data folder, cache, device, log and progress, as one value;
and the progress bar."""

from __future__ import annotations

import os
import shutil
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from edgedistill import object_store
from edgedistill.errors import UserError, own_cache
from edgedistill.reading import Reading

LOG_INTERVAL_S = 10.0  # at least, between two lines of progress
WIDTH = 100  # columns of output at most
Log = Callable[[str], None]  # one line for the user; the command line writes it to stderr


def silent(line: str) -> None:
    """Log nothing."""


@dataclass(frozen=True)
class Session:
    """Where files are found and cached, what is computed on, and how it is reported.

    Relative data paths start from the folder `data`. Corpora, token ids and teacher embeddings are kept in
    `cache_folder`, by default $EDGEDISTILL_CACHE, else ~/.cache/edgedistill. The device is auto, cpu or cuda.
    Progress bars are shown with `progress`. Python code that comes with a model may run with `remote_code`;
    only the user's own command sets it, no file does. Without `threads`, a measurement takes
    $OMP_NUM_THREADS, else the processors that this process may use. `reading` gathers what became of the
    files that were read.
    """

    data: Path | None = None
    device: str = "cpu"
    log: Log = silent
    progress: bool = False
    cache_folder: Path | None = None
    remote_code: bool = False
    threads: int | None = None
    reading: Reading = field(default_factory=Reading, compare=False)

    @property
    def cache(self) -> Path:
        """The cache's folder."""
        return self.cache_folder or object_store.place_of(os.environ.get("EDGEDISTILL_CACHE") or own_cache())


QUIET = Session()


def width() -> int:
    """The columns that output has: those of the terminal, at most WIDTH, and 80 where there is none."""
    return max(40, min(WIDTH, shutil.get_terminal_size((80, 24)).columns))


def wrapped(text: str, indent: int = 0, lines: int | None = None) -> list[str]:
    """A text in lines as wide as the terminal, those after the first indented; cut after so many `lines`."""
    follow = " " * indent
    return textwrap.wrap(text, width(), subsequent_indent=follow, max_lines=lines, placeholder=" …")


def process() -> tuple[int, int]:
    """The number of this process, from 0, and how many torchrun or accelerate launch has started with it."""
    number, count = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return (int(number), int(count)) if number.isdigit() and count.isdigit() else (0, 1)


def check_one_process(what: str | None) -> None:
    """Raise UserError in one of several processes: each would do all of `what`, into the same folder."""
    if process()[1] > 1:
        raise UserError(
            f"{what}: started as one of {process()[1]} processes (WORLD_SIZE), but it runs in one; "
            "start it without torchrun or accelerate launch"
        )


def at_intervals(log: Log) -> Callable[[str, bool], None]:
    """A log of progress that shows the first line and those marked as last, and of the others at most one in
    LOG_INTERVAL_S."""
    logged_at = float("-inf")

    def throttled(line: str, last: bool) -> None:
        nonlocal logged_at
        if last or time.perf_counter() - logged_at > LOG_INTERVAL_S:
            logged_at = time.perf_counter()
            log(line)

    return throttled


@contextmanager
def progress_bar(
    total: int | None, shown: bool, work: str = "embedding", unit: str = "texts", log: Log = silent
) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances the bar by a number of texts; where the bar is not shown, the log gets
    lines in its place.

    The bar shows the work, how many units of it are done, and the time left.
    """
    done, began = 0, time.perf_counter()
    if not shown:
        throttled = at_intervals(log)

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if total:
                rate = done / (time.perf_counter() - began)
                left = f"{rate:,.0f} {unit}/s, {(total - done) / rate:,.0f} s left"
                throttled(f"{work}: {done:,} of {total:,} {unit}, {left}", done >= total)

        yield advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn()
    with Progress(TextColumn(work), *columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
