"""Texts as long as paragraphs, made by joining lines that follow each other in a source."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgedistill import recipe
from edgedistill.data.disk_spool import BUFFER, RowSet, Spool, row_blocks, sample_evenly


def joined_lines(spec: recipe.Paragraphs, spool: Spool, kept: RowSet, usable: RowSet, seed: int) -> Iterator[bytes]:
    """Join usable lines until they have as many words as were drawn, about `spec.texts` times.

    A paragraph begins at a kept line, so that limits per source hold for paragraphs too, and continues with any usable line
    of the same source. Where the source ends first, two lines or more still make a paragraph.
    """
    random = np.random.default_rng([seed, 1])
    starts = sample_evenly(kept, [(0, len(kept), spec.texts)])
    with spool.path.open("rb", BUFFER) as lines:
        for start, end in spool.spans():
            growing: list[tuple[int, list[bytes]]] = []  # (words to reach, lines so far)
            for block in row_blocks(start, end):
                rows = np.arange(block.start, block.stop)
                for good, first, line in zip(usable.contains(rows), starts.contains(rows), lines, strict=False):  # more lines follow
                    if not good:
                        continue
                    if first:
                        growing.append((int(random.integers(*spec.words, endpoint=True)), []))
                    for _, parts in growing:
                        parts.append(line[:-1])
                    done = [sum(part.count(b" ") + 1 for part in parts) >= wanted for wanted, parts in growing]
                    yield from (b" ".join(parts) for (_, parts), full in zip(growing, done, strict=True) if full and len(parts) > 1)
                    growing = [each for each, full in zip(growing, done, strict=True) if not full]
            yield from (b" ".join(parts) for _, parts in growing if len(parts) > 1)
