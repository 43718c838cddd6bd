"""Corpora of distinct texts, kept on disk.

Usable texts of all sources are written as lines of a temporary file; the distinct ones are sampled and
split, and written with their offsets. Held-out texts are the last rows.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from edgedistill import files, object_store, recipe
from edgedistill.data import added_texts, deduplicate, file_patterns, input_file, readers
from edgedistill.data.cached_folder import RECORD, cached_folder, check_uncut, intact, mapped, written
from edgedistill.data.deduplicate import Row, Spool
from edgedistill.errors import UserError, counted
from edgedistill.files import Json
from edgedistill.reading import Reading
from edgedistill.runtime.bundle_location import DOCUMENTATION
from edgedistill.session import Session, progress_bar

FORMAT = 9  # part of every cache key: raise it when what is written changes
CHUNK_TEXTS = 4096  # read at a time by a loop over all texts
SHARD = 32_768  # texts of a `CorpusPass`
# Names of added texts in `Corpus.sources`.
PARAGRAPHS = "paragraphs of their lines"
PASSAGES = "passages of their texts"
ADDED = (PARAGRAPHS, PASSAGES, DOCUMENTATION)


class Corpus:
    """Distinct texts on disk. Rows 0 … training_count − 1 are for training, the rest are held out.

    `fingerprint` is the sha256 of the texts and the split; whatever is derived from a corpus is cached under
    it. `sources` holds the name of each source and how many texts came from it.
    """

    def __init__(self, folder: Path) -> None:
        meta = files.read_json(folder / "corpus.json")
        self.folder = folder
        self.fingerprint: str = meta["fingerprint"]
        self.sources: list[Json] = meta["sources"]
        self.training_count: int = meta["trained"]
        self.reading: Json = meta.get("reading", Reading().report)
        self.offsets = mapped(folder / "offsets.bin", np.int64)
        self.bytes = mapped(folder / "texts.bin", np.uint8)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def own(self) -> int:
        """How many are texts of its sources, held-out ones included, and not added to them."""
        return sum(source["texts"] for source in self.sources if source["name"] not in ADDED)

    @property
    def paragraphs(self) -> int:
        """How many paragraphs were joined from its lines; they follow the training texts of its sources."""
        return sum(source["texts"] for source in self.sources if source["name"] == PARAGRAPHS)

    def __getitem__(self, row: int) -> str:
        return self.bytes[self.offsets[row] : self.offsets[row + 1]].tobytes().decode("utf-8")

    def __iter__(self) -> Iterator[str]:
        for chunk in self.chunks(CHUNK_TEXTS):
            yield from chunk

    def texts(self, rows: Iterable[int]) -> list[str]:
        return [self[int(row)] for row in rows]

    @property
    def held_out(self) -> ndarray:
        """The held-out rows, (n,) int64."""
        return np.arange(self.training_count, len(self))

    def spread(self, most: int, start: int = 0, end: int | None = None) -> ndarray:
        """At most so many of the rows from `start` up to `end`, spread evenly, (n,) int64."""
        end = len(self) if end is None else end
        return np.linspace(start, end - 1, max(0, min(most, end - start))).astype(np.int64)

    def chunks(self, size: int) -> Iterator[list[str]]:
        """All texts in order, `size` at a time."""
        return (self.between(start, start + size) for start in range(0, len(self), size))

    def between(self, start: int, end: int) -> list[str]:
        """The texts of the rows from `start` up to `end`, as far as there are any."""
        check_uncut()
        offsets = np.asarray(self.offsets[start : end + 1])
        data = self.bytes[offsets[0] : offsets[-1]].tobytes()
        spans = pairwise((offsets - offsets[0]).tolist())
        return [data[first:last].decode("utf-8") for first, last in spans]


# of a pass: (number, count), which of so many processes makes the shards number, number + count, …
Share = tuple[int, int]
ALL: Share = (0, 1)


class CorpusPass(ABC):
    """Something that is made of every text of a corpus, in shards: ranges of its rows, of the same length
    whoever makes them, each a cached folder in `folder`.

    What a shard holds depends on its texts alone. So processes that share a folder share the work, and leave
    the same bytes as one. `name` is the label of log and progress bar, `work` what is done.
    """

    work: str

    def __init__(self, name: str, corpus: Corpus, session: Session, folder: Path) -> None:
        self.name = name
        self.corpus = corpus
        self.session = session
        self.folder = folder
        self.shards = -(-len(corpus) // SHARD)

    @abstractmethod
    def computed(self, number: int) -> Callable[[Path], None]:
        """Compute a shard. Returns what writes its files into an empty folder."""

    def shard(self, number: int) -> Path:
        """The folder of a shard."""
        return self.folder / f"{number:05d}"

    def texts(self, number: int) -> list[str]:
        """The texts of a shard."""
        return self.corpus.between(number * SHARD, (number + 1) * SHARD)

    def rows(self, numbers: Iterable[int]) -> int:
        """How many rows of the corpus these shards have; the last shard is shorter than SHARD."""
        return sum(min(SHARD, len(self.corpus) - number * SHARD) for number in numbers)

    def make(self, number: int) -> int:
        """Make a shard. Returns how many texts it has. Raises UserError when the disk is full."""
        written(self.shard(number), self.computed(number))
        return len(self.texts(number))

    @property
    def made(self) -> set[int]:
        """The shards that are there, by their marks, here or in the cache's object store."""
        marks = {path.relative_to(self.folder).as_posix() for path in self.folder.glob(f"*/{RECORD}")}
        names = (name.partition("/") for name in marks | object_store.names(self.folder))
        return {int(shard) for shard, _, name in names if name == RECORD and shard.isdecimal()}

    def lacking(self, share: Share = ALL) -> list[int]:
        """The share's shards that are not there as they were written; what the cache's object store has is
        fetched."""
        wanted = range(share[0], self.shards, share[1])
        for folder in map(self.shard, wanted):
            if not folder.exists():
                object_store.pull(folder, RECORD)
        missing = [shard for shard in wanted if not intact(self.shard(shard), self.session.log)]
        if missing:
            self.session.log(f"{self.name}: {self.work} {self.rows(missing):,} of {len(self.corpus):,} texts")
        return missing

    def run(self, share: Share = ALL) -> None:
        """Make what is lacking of a share."""
        if lacking := self.lacking(share):
            started = time.perf_counter()
            with progress_bar(self.rows(lacking), self.session.progress, self.name) as advance:
                for number in lacking:
                    advance(self.make(number))
            self.session.log(f"{self.name}: {self.done} in {time.perf_counter() - started:.0f} s")

    @property
    def done(self) -> str:
        """What was made, for the log."""
        return f"{len(self.corpus):,} texts"


def write(folder: Path, training: Iterable[bytes], held_out: Iterable[bytes] = ()) -> Json:
    """Write texts one by one in the layout that Corpus opens. Returns the content of corpus.json but for the
    sources."""
    sha256 = hashlib.sha256()
    rows = offset = trained = 0
    with (folder / "texts.bin").open("wb") as together, (folder / "offsets.bin").open("wb") as offsets:
        offsets.write(bytes(8))
        for texts in (training, held_out):
            for text in texts:
                rows += 1
                offset += len(text)
                together.write(text)
                offsets.write(offset.to_bytes(8, "little"))
                sha256.update(text + b"\n")
            if texts is training:
                trained = rows
                sha256.update(b"\0held out\0")
    return {"format": FORMAT, "fingerprint": sha256.hexdigest(), "texts": rows, "trained": trained}


class Table(NamedTuple):
    """A file or a hub data set of rows. `part` is the one of the recipe's tables that it belongs to,
    `content_id` identifies the content."""

    name: str
    content_id: Any
    rows: Iterable[Row]
    part: recipe.Table


@dataclass(frozen=True)
class Making:
    """Rows that are made of `tables`, as a recipe with this seed describes them at `place`. Nothing in the
    files that its globs or those of `exclude` name, or with a key that is `measured` elsewhere, is trained
    on."""

    spec: recipe.Rows
    session: Session
    recipe_seed: int
    measured: Set[int]
    exclude: Sequence[str]
    place: str
    tables: list[Table]

    @property
    def seed(self) -> int:
        """The recipe's, where the rows have none."""
        return self.recipe_seed if self.spec.seed is None else self.spec.seed

    @cached_property
    def excluded(self) -> list[Path]:
        """The files of texts that must not be trained on."""
        patterns = [*self.spec.exclude, *self.exclude]
        session = self.session
        return file_patterns.matching_files(patterns, session.data, f"{self.place}.exclude", session.reading)

    def folder(self, folder: Path, write: Callable[[Spool, Path], str], whole: bool = False) -> Path:
        """The cached folder of the rows. `write` writes the usable lines into a new one, or with `whole` all
        of them, and returns what the log says of these: how many were kept, and how many of them are held
        out."""

        def fill(new: Path) -> None:
            self.session.log(f"{self.place}: reading {counted(len(self.tables), 'source')}")
            spool = self.gathered(new, whole)
            self.session.log(f"{self.place}: {spool.read:,} read, {write(spool, new)} held out")
            spool.path.unlink()

        return cached_folder(folder, fill, self.session.log)

    def key(self, unread: set[str], *more: object) -> str:
        """The key of what is made of the same content, seed and options but for those that are `unread`."""
        return files.cache_key(
            format=FORMAT,
            spec=self.spec.model_dump(mode="json", exclude=unread, exclude_defaults=True),
            seed=self.seed,
            tables=[table.content_id for table in self.tables],
            excluded=[input_file.content_id(path) for path in self.excluded],
            measured=sorted(self.measured),
            more=more,
        )

    @property
    def files(self) -> str:
        """The key of the files that are read, and of which columns."""
        read = [(table.content_id, table.part.columns) for table in self.tables]
        return files.cache_key(read=read, column=self.spec.column, label=self.spec.label)

    @cached_property
    def excluded_keys(self) -> set[int]:
        """Of the texts that must not be trained on."""
        return deduplicate.excluded_keys(self.excluded)

    def fits(self, text: str, longest: int = readers.MAX_TEXT_CHARACTERS) -> bool:
        """Whether a text is neither too short nor too long."""
        spec = self.spec
        words = text.count(" ") + 1
        most = spec.max_words or readers.MAX_TEXT_CHARACTERS
        return spec.min_words <= words <= most and len(text) <= (spec.max_chars or longest)

    def flaw(self, row: Row) -> str | None:
        """Why a row of texts cannot be trained on; None where it can."""
        spec = self.spec
        excluded = self.excluded_keys
        longest = recipe.LONGEST_TRANSLATION if spec.translated else readers.MAX_TEXT_CHARACTERS
        if not all(row):
            return deduplicate.EMPTY
        if not all(self.fits(text, longest) for text in row):
            return deduplicate.LENGTH
        if excluded and any(deduplicate.key(text) in excluded for text in row):
            return deduplicate.EXCLUDED
        if spec.label is not None and deduplicate.key(" ".join(row)) in self.measured:
            return deduplicate.MEASURED
        return _ranks_nothing(row) if spec.ranked else None

    def gathered(self, folder: Path, whole: bool = False) -> Spool:
        """The rows of all tables that can be trained on, or all where they are `whole`, in a file of the
        folder."""
        rows = (table.rows for table in self.tables)
        texts = self.spec.text_columns
        with progress_bar(None, self.session.progress, "reading") as advance:
            return deduplicate.gather(
                rows, lambda row: None if whole else self.flaw(row[:texts]), folder / "spool", advance
            )

    def sampled(self, spool: Spool) -> ndarray:
        """The distinct rows within the limits per file and in all. Raises UserError for a limit of a file
        that is none of them."""
        spec = self.spec
        names = [table.name for table in self.tables]
        for unknown in sorted(set(spec.limits) - set(names)):
            raise UserError(
                f"{self.place}.limits: {unknown} is none of the files that are read "
                f"({', '.join(names[:8])}); correct the name, or leave it out"
            )
        most = [table.part.limit_per_file or spec.limit_per_file for table in self.tables]
        limits = [spec.limits.get(name, limit) for name, limit in zip(names, most, strict=True)]
        return spool.sample(limits, spec.limit)


def _ranks_nothing(row: Row) -> str | None:
    """What is wrong with a query and its documents."""
    query, positive, *others = map(str.casefold, row)
    if query in (positive, *others):
        return "whose query is one of its documents"
    return "whose positive is one of its negatives" if positive in others else None


def build(
    spec: recipe.Rows,
    session: Session,
    seed: int,
    measured: Set[int] = frozenset(),
    exclude: Sequence[str] = (),
    place: str = "rows",
) -> Corpus:
    """Open the rows of one text that a recipe describes at `place`; build them first where the cache has none
    of the same content, options and seed.

    `measured` are the keys of what other sources hold out, `exclude` globs of files beside those of the rows:
    nothing of either is trained on.

    Raises UserError: no file matches, unknown file type, missing column, bytes that are not UTF-8, a text
    over 100,000 characters, nothing left to train on.
    """
    reading = Reading()
    tables = _tables(spec, session, reading, place)
    making = Making(spec, session, seed, measured, exclude, place, list(tables))
    general = files.sha256_file(files.GENERAL_CORPUS) if spec.documentation_texts else ""

    def write(spool: Spool, folder: Path) -> str:
        if reading.skipped and not reading.files:
            raise UserError(*(f"{name}: {reason}" for name, reason in islice(reading.skipped.items(), 3)))
        meta = {**_write_split(making, spool, folder), "read": spool.read}
        reading.rows_left_out.update(+spool.left_out)
        files.write_json(folder / "corpus.json", meta | {"reading": reading.report})
        of_each = (f"{each['texts']:,} {each['name']}, " for each in meta["sources"][len(making.tables) :])
        held_out = meta["texts"] - meta["trained"]
        return f"{meta['texts']:,} texts kept, of these {''.join(of_each)}{held_out:,}"

    folder = session.cache / "corpora" / making.key({"seed", "licences"}, general)
    built = Corpus(making.folder(folder, write))
    session.reading.add(making.files, built.reading)
    return built


def _tables(spec: recipe.Rows, session: Session, reading: Reading, place: str) -> Iterator[Table]:
    """The streams of texts of rows. `reading` is told of their files, as often as these are read; the session
    of what lies beside them."""
    for name, content_id, texts in _streams(spec, session, reading, place):
        yield Table(name, content_id, ((readers.normalize(text),) for text in texts), spec)


def _streams(
    spec: recipe.Rows, session: Session, reading: Reading, place: str
) -> Iterator[tuple[str, Any, Iterator[str]]]:
    """(name, what identifies the content, texts) of each."""
    if spec.dataset is not None:
        column = spec.column if isinstance(spec.column, str) else "text"
        rows = readers.hub_columns(spec, [column], place, "column")
        content_id = [spec.dataset, spec.config, spec.split, spec.revision]
        yield f"{spec.dataset}@{spec.revision}", content_id, (text for (text,) in rows)
        return
    if spec.files == [recipe.DOCUMENTATION]:
        yield "documentation", files.sha256_file(files.GENERAL_CORPUS), added_texts.documentation()
        return
    paths = file_patterns.matching_files(spec.files, session.data, f"{place}.files", session.reading)
    columns = _columns(paths, spec.column if isinstance(spec.column, list) else [spec.column])
    named = file_patterns.named(spec.files, session.data)
    for path in paths:
        folder = None if str(path) in named else session.data or Path()
        texts = _texts(path, columns[path], spec.unit, folder, reading, f"{place}.column")
        yield path.name, input_file.content_id(path), texts


def _columns(paths: list[Path], columns: Sequence[str | None]) -> dict[Path, Sequence[str | None]]:
    """The columns that are read of each file: of several those that it has. What no file has, or a file none
    of, is left in, so that the reader names it."""

    def known(path: Path) -> set[str | None]:
        try:
            return set(readers.column_names(path))
        except (UserError, OSError):  # its reader says so again
            return set()

    names = {path: known(path) if len(columns) > 1 else set(columns) for path in paths}
    somewhere = set().union(*names.values())
    return {
        path: [column for column in columns if column in names[path] or column not in somewhere] or columns
        for path in paths
    }


def _texts(
    path: Path,
    columns: Sequence[str | None],
    unit: str,
    folder: Path | None,
    reading: Reading,
    field: str,
) -> Iterator[str]:
    """The texts of a file, those of one column after the other. One that cannot be read is skipped, all of
    it, where a pattern below the `folder` found it; one that the recipe names itself has none."""

    def texts(reading: Reading) -> Iterator[str]:
        for column in columns[:1] if readers.is_text_file(path) else columns:
            yield from readers.texts_in(path, column, field, unit, reading=reading)

    if folder is not None:
        try:
            if not sum(1 for text in texts(Reading()) if text.strip()):
                raise UserError(f"{path}: no text in it; leave it out")
        except (UserError, OSError) as problem:
            inside = path.is_relative_to(folder)
            reading.skip(str(path), problem, str(path.relative_to(folder) if inside else path))
            return
    yield from texts(reading)
    reading.files += 1


def _kept(making: Making, spool: Spool) -> ndarray:
    """The distinct texts within the limits. Raises UserError where none is left to train on."""
    kept = making.sampled(spool)
    held_out = making.spec.held_out
    if len(kept) <= held_out:
        fact = f"{len(kept):,} of {spool.read:,} texts are left after cleaning"
        if held_out:
            fact += f", and {making.place}.held_out is {held_out:,}"
        raise UserError(f"{making.place}: nothing to train on: {fact}; add texts")
    return kept


def _write_split(making: Making, spool: Spool, folder: Path) -> Json:
    """Write the lines to train on and what is added to them, then the held-out lines. Both are followed by
    their passages. Returns the content of corpus.json.

    Nothing that is trained on has the key of a held-out text, of a sentence of one, or of a text that is
    measured elsewhere.
    """
    spec = making.spec
    begins = _kept(making, spool)
    usable = spool.distinct
    random = np.random.default_rng(making.seed)
    drawn = np.sort(random.choice(len(begins), spec.held_out, replace=False, shuffle=False))
    held_out = begins[drawn]
    trained = np.delete(begins, drawn)
    measured = added_texts.measured(line.decode("utf-8") for line in spool.lines(held_out)) | making.measured
    if measured:
        usable = usable[~deduplicate.among(spool.keys(usable), measured)]
        trained = np.intersect1d(trained, usable, assume_unique=True)
        if len(trained) == 0:
            raise UserError(
                f"{making.place}: nothing to train on: all texts are measured; lower {making.place}.held_out"
            )
    kept = np.union1d(trained, held_out)
    counts = Counter[str]()

    def noted(name: str, texts: Iterable[bytes]) -> Iterator[bytes]:
        for text in texts:
            counts[name] += 1
            yield text

    to_train = [spool.lines(trained)]
    to_hold_out = [spool.lines(held_out)]
    if spec.paragraphs:
        paragraphs = added_texts.joined_lines(spec.paragraphs, spool, begins, usable, making.seed)
        to_train.append(noted(PARAGRAPHS, paragraphs))
    if spec.documentation_texts:
        general = added_texts.general_sentences(spec.documentation_texts)
        unmeasured = (text for text in general if deduplicate.key(text.decode("utf-8")) not in measured)
        to_train.append(noted(DOCUMENTATION, unmeasured))
    if spec.passages:
        passages = added_texts.PassageCutter(spec.passages, making.seed)
        excluded = making.excluded_keys
        known = excluded | set(spool.keys(trained).tolist())
        to_train.append(noted(PASSAGES, passages.of(spool.lines(trained), excluded | measured)))
        to_hold_out.append(noted(PASSAGES, passages.of(spool.lines(held_out), known)))
    meta = write(folder, chain.from_iterable(to_train), chain.from_iterable(to_hold_out))
    names = [table.name for table in making.tables]
    listed = [*zip(names, spool.counts(kept), strict=True), *counts.items()]
    spool.left_out[deduplicate.MEASURED] += len(begins) - len(kept)
    return {**meta, "sources": [{"name": name, "texts": count} for name, count in listed]}
