"""Triples: a text, one that means the same, one that does not; distinct, without leaks, memory-mapped column by column."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgedistill import files, recipe
from edgedistill.data import corpus, readers
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError, unknown
from edgedistill.session import Session

FORMAT = 1  # part of every cache key: raise it when what is written changes
COLUMNS = ("anchor", "entailment", "contradiction")


class Triples:
    """Three corpora of equal length: row i of each is triple i."""

    def __init__(self, folder: Path) -> None:
        self.columns = [Corpus(folder / name) for name in COLUMNS]
        meta = files.read_json(folder / "triples.json")
        self.read: int = meta["read"]
        self.leaked: int = meta["leaked"]

    def __len__(self) -> int:
        return len(self.columns[0])


def build(spec: recipe.TripleFiles | recipe.TripleHub, exclude: list[str], session: Session, place: str) -> Triples:
    """Open the triples a stage names; build them first where the cache has none made of the same bytes and options.

    `exclude`: globs of files whose texts must not be trained on; a triple with one of them goes whole. `place`: where the recipe
    names the triples. Raises UserError: no file matches, a missing column, nothing left.
    """
    tables = readers.matching(spec.files, session.data, f"{place}.files") if isinstance(spec, recipe.TripleFiles) else []
    leaks = readers.matching(exclude, session.data, "corpus.exclude")
    made_of = [[files.sha256_file(path) for path in paths] for paths in (tables, leaks)]
    folder = session.cache / "triples" / files.key(format=FORMAT, spec=spec.model_dump(mode="json"), made_of=made_of)
    if not (folder / "triples.json").exists():
        with files.new_folder(folder) as temporary:
            meta = _write(spec, tables, leaks, place, temporary)
        session.log(f"triples: {meta['kept']:,} of {meta['read']:,} read, {meta['leaked']:,} held a text that must not be trained on")
    return Triples(folder)


def _write(spec: recipe.TripleFiles | recipe.TripleHub, tables: list[Path], leaks: list[Path], place: str, folder: Path) -> dict[str, Any]:
    forbidden = corpus.leaked(leaks)
    seen: set[bytes] = set()
    read = leaked = 0
    with (folder / "spool").open("w", encoding="utf-8", errors="replace", newline="\n") as spool:
        for row in _rows(spec, tables, place):
            read += 1
            if any(corpus.digest(text) in forbidden for text in row):
                leaked += 1
            elif all(row) and (mark := corpus.digest("\t".join(row))) not in seen:
                seen.add(mark)
                spool.write("\t".join(row) + "\n")
    kept = min(len(seen), spec.limit or len(seen))
    if kept == 0:
        raise UserError(f"{place}: no triple is left of {read:,} read, {leaked:,} of them leaks; add files, or look at corpus.exclude")
    source = [path.name for path in tables] or [getattr(spec, "dataset", "")]
    for at, name in enumerate(COLUMNS):
        (folder / name).mkdir()
        corpus.store(folder / name, _column(folder / "spool", at, len(seen), kept), None, [{"name": each} for each in source])
    (folder / "spool").unlink()
    meta = {"format": FORMAT, "read": read, "leaked": leaked, "kept": kept}
    files.write_json(folder / "triples.json", meta)
    return meta


def _column(spool: Path, at: int, rows: int, kept: int) -> Iterator[str]:
    """One column of `kept` of the spooled rows, spread evenly over them."""
    with spool.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines):
            if number * kept % rows < kept:
                yield line.rstrip("\n").split("\t")[at]


def _rows(spec: recipe.TripleFiles | recipe.TripleHub, tables: list[Path], place: str) -> Iterator[tuple[str, ...]]:
    if isinstance(spec, recipe.TripleFiles):
        for path in tables:
            yield from readers.columns_in(path, spec.columns, f"{place}.columns")
        return
    for row in readers.hub_rows(spec, spec.split, f"{place}.dataset"):
        for column in spec.columns:
            if not isinstance(row.get(column), str):
                known = [name for name, value in row.items() if isinstance(value, str)]
                raise UserError(f"{spec.dataset}: {unknown('text column', column, known)}; say which with {place}.columns")
        yield tuple(readers.normalise(row[column]) for column in spec.columns)
