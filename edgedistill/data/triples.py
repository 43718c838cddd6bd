"""Triples of texts (anchor, entailment, contradiction): distinct, without excluded texts, each column kept on
disk as a corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgedistill import files, recipe
from edgedistill.data import corpus, file_patterns, readers
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.corpus import Corpus
from edgedistill.data.deduplicate import digest, excluded_digests
from edgedistill.errors import UserError, unknown_name
from edgedistill.session import Session

FORMAT = 1  # part of every cache key: raise it when what is written changes
COLUMNS = ("anchor", "entailment", "contradiction")


class Triples:
    """Three corpora of equal length, in the order of COLUMNS: row i of each belongs to triple i.

    `read`: triples read. `leaked`: those left out because of an excluded text.
    """

    def __init__(self, folder: Path) -> None:
        self.columns = [Corpus(folder / name) for name in COLUMNS]
        meta = files.read_json(folder / "triples.json")
        self.read: int = meta["read"]
        self.leaked: int = meta["leaked"]

    def __len__(self) -> int:
        return len(self.columns[0])


def build(
    spec: recipe.TripleFiles | recipe.TripleHub, exclude: list[str], session: Session, place: str
) -> Triples:
    """Open the triples that a stage names; build them first where the cache has none of the same content and
    options.

    `exclude`: globs of files whose texts must not be trained on; a triple with one of them is left out.
        `place`: where the recipe
    names the triples, for errors. Raises UserError: no file matches, a missing column, nothing left.
    """
    tables = (
        file_patterns.matching_files(spec.files, session.data, f"{place}.files")
        if isinstance(spec, recipe.TripleFiles)
        else []
    )
    excluded = file_patterns.matching_files(exclude, session.data, "corpus.exclude")
    content = [[files.sha256_file(path) for path in paths] for paths in (tables, excluded)]
    folder = (
        session.cache
        / "triples"
        / files.cache_key(format=FORMAT, spec=spec.model_dump(mode="json"), made_of=content)
    )

    def write(temporary: Path) -> None:
        meta = _build(spec, tables, excluded_digests(excluded), place, temporary)
        session.log(
            f"triples: {meta['kept']:,} of {meta['read']:,} kept, {meta['leaked']:,} with an excluded text"
        )

    return Triples(cached_folder(folder, write, session.log))


def _build(
    spec: recipe.TripleFiles | recipe.TripleHub,
    tables: list[Path],
    excluded: set[bytes],
    place: str,
    folder: Path,
) -> dict[str, Any]:
    seen: set[bytes] = set()
    read = leaked = 0
    with (folder / "spool").open("w", encoding="utf-8", errors="replace", newline="\n") as spool:
        for row in _rows(spec, tables, place):
            read += 1
            if any(digest(text) in excluded for text in row):
                leaked += 1
            elif all(row) and (own := digest("\t".join(row))) not in seen:
                seen.add(own)
                spool.write("\t".join(row) + "\n")
    kept = min(len(seen), spec.limit or len(seen))
    if kept == 0:
        fact = f"no triple is left of {read:,} read, {leaked:,} of them with an excluded text"
        raise UserError(f"{place}: {fact}; add files, or check corpus.exclude")
    sources = [path.name for path in tables] or [getattr(spec, "dataset", "")]
    for number, name in enumerate(COLUMNS):
        (folder / name).mkdir()
        texts = _column(folder / "spool", number, len(seen), kept)
        corpus.write(folder / name, texts, None, [{"name": source} for source in sources])
    (folder / "spool").unlink()
    meta = {"format": FORMAT, "read": read, "leaked": leaked, "kept": kept}
    files.write_json(folder / "triples.json", meta)
    return meta


def _column(spool: Path, column: int, rows: int, kept: int) -> Iterator[str]:
    """One column of `kept` of the spooled rows, drawn evenly."""
    with spool.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines):
            if number * kept % rows < kept:
                yield line.rstrip("\n").split("\t")[column]


def _rows(
    spec: recipe.TripleFiles | recipe.TripleHub, tables: list[Path], place: str
) -> Iterator[tuple[str, ...]]:
    if isinstance(spec, recipe.TripleFiles):
        for path in tables:
            yield from readers.columns_in(path, spec.columns, f"{place}.columns")
        return
    for row in readers.hub_rows(spec, spec.split, f"{place}.dataset"):
        for column in spec.columns:
            if not isinstance(row.get(column), str):
                known = [name for name, value in row.items() if isinstance(value, str)]
                raise UserError(
                    f"{spec.dataset}: {unknown_name('text column', column, known)}; set {place}.columns"
                )
        yield tuple(readers.normalize(row[column]) for column in spec.columns)
