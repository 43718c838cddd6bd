"""Tuples made from plain documents: sentences of a text are queries that the text answers (the inverse cloze
task, Lee et al. 2019), so that a student meets short texts beside the long ones they belong to."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Set
from pathlib import Path

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import deduplicate
from edgedistill.data.added_texts import MIN_WORDS
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.corpus import Corpus
from edgedistill.data.rows import Rows, write_rows, write_side
from edgedistill.errors import UserError
from edgedistill.runtime.sentences import sentences
from edgedistill.session import Session

FORMAT = 6  # part of every cache key: raise it when what is written changes
CHUNK = 4_096  # texts read at a time


def build(
    spec: recipe.Queries,
    texts: Corpus,
    count: int,
    session: Session,
    place: str,
    seed: int,
    measured: Set[int] = frozenset(),
) -> Rows:
    """Open the tuples made from the first `count` texts of a corpus, whole texts and paragraphs; make them
    first where the cache has none of the same texts, options and seed.

    Texts whose keys are `measured` are no queries. A sentence of several texts is a query of the first. The
    recipe describes the tuples at `place`. Raises UserError where no text
    has a sentence to ask for, or one text has all.
    """
    made_of = {"texts": texts.fingerprint, "count": count, "seed": seed, "measured": sorted(measured)}
    key = files.cache_key(format=FORMAT, **made_of, **spec.model_dump())

    def write(folder: Path) -> None:
        rows = array("q")
        sources = [{"name": "queries made from the rows"}]
        made = _queries(spec, texts, count, {*measured}, rows, np.random.default_rng(seed))
        write_side(folder, 0, sources, made)
        write_side(folder, 1, texts.sources, _whole(texts, count))
        documents = np.array(rows, np.int64)
        if len(np.unique(documents)) < 2:
            raise UserError(
                f"{place}: {len(np.unique(documents))} of {count:,} texts have two sentences or more, "
                "so there is nothing to ask for; add longer texts"
            )
        write_rows(folder, np.stack([np.arange(len(documents)), documents], 1), {"sources": sources})
        session.log(f"{place}: {len(documents):,} queries made from {count:,} texts")

    return Rows.open(cached_folder(session.cache / "rows" / key, write, session.log))


def of_text(text: str) -> list[str]:
    """The sentences of a text that may be its queries; none where it has only one."""
    parts = sentences(text, MIN_WORDS)
    return parts if len(parts) > 1 else []


def _queries(
    spec: recipe.Queries,
    texts: Corpus,
    count: int,
    seen: set[int],
    rows: array[int],
    random: np.random.Generator,
) -> Iterator[str]:
    """The queries of all texts; `rows` gets the number of each query's text, and `seen` its key."""
    for row, text in enumerate(_whole(texts, count)):
        queries = of_text(text)
        for at in np.sort(random.permutation(len(queries))[: spec.per_text]):
            key = deduplicate.key(queries[at])
            if key not in seen:
                seen.add(key)
                rows.append(row)
                yield queries[at]


def _whole(texts: Corpus, count: int) -> Iterator[str]:
    for start in range(0, count, CHUNK):
        yield from texts.texts(range(start, min(start + CHUNK, count)))
