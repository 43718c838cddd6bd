"""Search the texts of files by meaning and, with BM25, by words; embeddings are kept between calls."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files, object_store
from edgedistill.data import bm25, cached_folder, deduplicate, file_patterns, input_file, readers
from edgedistill.embed_file import LONGEST_TEXT
from edgedistill.errors import UserError, as_options, counted, escaped
from edgedistill.reading import Reading
from edgedistill.runtime import bundle_location, manifest
from edgedistill.runtime.arguments import positive
from edgedistill.runtime.bundle import Bundle
from edgedistill.runtime.similarity import similarity
from edgedistill.session import QUIET, Session, progress_bar, wrapped

STUDENT = "nano"  # unless another is named
EXAMPLE = 'edgedistill search "how do I reset it?" docs'
CHUNK = 256  # texts that are embedded between two reports of progress; fewer texts or files have none
MANY = 5_000  # texts, which take a minute or more
OF_TOKENS = [("cut", "i4"), ("unknown", "i4"), ("alone", "?")]  # see Bundle.not_read
FORMAT = 4  # part of every cache key: raise it when what is kept changes
SHORTEST = 100  # characters of a passage of a document with markup that stands alone
BEGUN = 6  # words by which a part of a paragraph is found in its file, and what may stand between two
BETWEEN = r"(?:<[^<>]*>|[^\w<])+"
MOST_LINES = 10_000  # of a paragraph
SHOWN = 2  # of equal texts, that are printed too
INDENT, LINES = 5, 3  # of a text that is printed
KEPT = 64  # folders in the cache: of so many sets of paths, or bundles, the last
RANKED_BY = "cosine above the mean + {:g} × BM25"
PRECISION = "int8"  # in which embeddings are kept: a quarter of float32's bytes, for nearly the same ranking

Places = dict[str, list[tuple[Path, int]]]  # text -> where it stands: file, and line, row or item


@dataclass(frozen=True)
class Search:
    """A question to the texts of files: `paths` are files, globs, and folders, which stand for the texts
    and tables in them but those that hide behind a dot.

    `column` is that of the texts in tables, by default as `readers.numbered_texts` chooses. `weight` is that
    of words beside the cosines, see `bm25.joined`; with 0, cosines decide alone.
    """

    paths: list[str]
    question: str
    top: int = 10
    column: str | None = None
    weight: float = bm25.WEIGHT


def arguments(question: str, words: list[str]) -> tuple[str, list[str]]:
    """The student and the paths of a command line behind the question: one of the words may be a student, the
    others are paths; without paths this folder is searched. Raises UserError for several students, where the
    question seems to be missing, and where it seems to be among the words."""
    students = [word for word in words if bundle_location.find(word)]
    if students[1:]:
        raise UserError(f"edgedistill search: {' and '.join(students)} are students; give one")
    paths = [word for word in words if word not in students]
    if not paths and os.path.exists(question):
        raise UserError(
            f"edgedistill search: {question!r} is a file or a folder; put a question before it: edgedistill "
            f'search "your question" {question}'
        )
    unknown = [
        word
        for word in paths
        if not (files.is_glob(word) or os.path.exists(word) or object_store.is_address(word))
    ]
    if unknown[1:] or " " in "".join(unknown):
        fact = f"{', '.join(map(repr, unknown))}: no files, folders or students"
        raise UserError(f"edgedistill search: {fact}; put the question first and in quotes: {EXAMPLE}")
    return (*students, STUDENT)[0], paths or ["."]


def search(opened: Bundle, request: Search, session: Session = QUIET) -> dict[str, Any]:
    """The texts that answer a question best: {read, texts, embedded, ranked_by, close, results}.

    A result is {file, line (or row, item), text, also, score, cosine, bm25}; `also` has the other places of
    an equal text, {file, line} each. `score` ranks them, `bm25` is the share of the question's words that a
    text has, None where cosines rank alone. `close` is False where even the best score says that no text
    answers, None of few texts. `read` is a `Reading.report`; `embedded` says how many texts were not in the
    cache.
    Raises UserError for an empty question, where no file is found, none has text, or a named one is damaged.
    """
    question = readers.normalize(request.question)
    top = positive(request.top, "top")
    weight = bm25.checked_weight(request.weight)
    if not question:
        raise UserError("the question is empty; give one, in quotes")
    reading = Reading()  # of this question alone
    places = _read(request, opened, session, reading)
    texts = list(places)
    asked = opened.tokenize([question], "query")
    reading.tokens(opened.not_read([question], asked, "query"))
    rows, embedded = _kept_embeddings(opened, places, request, session, reading)
    cosines = similarity(opened.of("query").encode_ids(asked), rows)
    words = np.zeros_like(cosines)
    numbers = {"cosine": cosines}
    ranked_by = "cosine"
    least = bm25.CLOSE_BY_COSINE
    if weight:
        try:
            index = bm25.BM25(texts, "BM25")
            numbers["bm25"] = words = index.shares([question])
            weight *= index.weight
            ranked_by = RANKED_BY.format(weight) + ", in source code" * (index.weight < 1)
            least = bm25.CLOSE
        except UserError as missing:  # the extra, or words in these texts
            ranked_by = f"cosine alone ({missing})"
    scores = numbers["score"] = bm25.joined(cosines, words, weight)
    best = bm25.joined(cosines, words).max()
    results = []
    for at in np.argsort(-scores[0], kind="stable")[:top].tolist():
        place, *also = (
            {"file": str(path), input_file.numbered(path): line} for path, line in places[texts[at]]
        )
        place |= {"text": texts[at], "also": also, "bm25": None}
        results.append(place | {name: round(float(values[0, at]), 4) for name, values in numbers.items()})
    return {
        "read": reading.report,
        "texts": len(texts),
        "embedded": embedded,
        "ranked_by": ranked_by,
        "close": None if len(texts) < bm25.FEW else bool(best >= least),
        "results": results,
    }


def _read(request: Search, encoder: Bundle, session: Session, reading: Reading) -> Places:
    """The distinct texts of all files, with the files and the lines or rows of each. What a folder or a glob
    stands for and cannot be read is skipped."""
    located = Places()
    named = file_patterns.named(request.paths, None)
    paths = file_patterns.matching_files(request.paths, Path(), "search", reading)
    shown = session if len(paths) > CHUNK else QUIET
    with progress_bar(len(paths), shown.progress, "reading", "files", shown.log) as advance:
        for path in paths:
            advance(1)
            try:
                passages = list(_passages(path, request, encoder, reading))
                if not passages:
                    raise UserError(f"{path}: no text found; give other files")
            except (UserError, OSError) as problem:
                if str(path) in named:
                    raise
                reading.skip(str(path), problem)
                continue
            reading.files += 1
            for number, text in passages:
                located.setdefault(text, []).append((path, number))
    if not located:
        problems = [f"{path}: {reason}" for path, reason in list(reading.skipped.items())[:3]]
        raise UserError(*problems, f"{' '.join(request.paths)}: no text found; give other files")
    files_of = {path for places in located.values() for path, _ in places}
    if request.column is not None and all(map(readers.is_text_file, files_of)):
        raise UserError(f"--column {request.column}: no table in {' '.join(request.paths)}; leave it out")
    return located


def _passages(path: Path, request: Search, encoder: Bundle, reading: Reading) -> Iterator[tuple[int, str]]:
    """The texts of a file, each of no more tokens than the encoder reads: a longer one is divided; a heading
    or a cell of a document stands in a line of its own before what follows it. None spans pages."""
    pages = input_file.numbered(path) == "page"
    least = SHORTEST if readers.is_text_file(path) and input_file.kind(path) != ".txt" else 1
    run = ""
    first = 0
    numbered = readers.numbered_texts(path, request.column, "--column", "auto", LONGEST_TEXT, reading)
    for number, text in numbered:
        if run and pages and number != first:
            yield first, run
            run = ""
        first = first if run else number
        if not text.strip() and not readers.is_text_file(path):
            reading.rows_left_out[deduplicate.EMPTY] += 1
        before = -len(run) - 1
        *whole, run = encoder.passages(f"{run}\n{readers.normalize(text)}".strip())
        for passage, after in pairwise([*whole, run]):
            yield first, passage
            before += len(passage)
            first = _line_of(after, reading.source, number, max(0, before))
        if len(run) >= least:
            yield first, run
            run = ""
    if run:
        yield first, run


def _line_of(part: str, lines: list[str], number: int, before: int) -> int:
    """The line of a part of the paragraph that begins in line `number`, behind `before` characters of it:
    where its first words stand, or `number` if they are written otherwise."""
    paragraph = "\n".join(lines[number - 1 : number + MOST_LINES])
    begun = re.compile(BETWEEN.join(re.findall(r"\w+", part)[:BEGUN])).search(paragraph, before)
    return number + paragraph.count("\n", 0, begun.start()) if begun else number


def _kept_embeddings(
    opened: Bundle, places: Places, request: Search, session: Session, reading: Reading
) -> tuple[np.ndarray, int]:
    """The embeddings of distinct texts as documents, (n, d) int8, and how many of them were computed now: an
    earlier call with the same bundle and paths left the others in the cache, with the hashes of their
    texts and the counts of their unknown tokens, of which `reading` is told. The bundle's digest
    stands for more than its space, which a stranger's manifest may claim."""
    bundle = [manifest.digest(opened.manifest), *(encoder.precision for encoder in opened.encoders)]
    paths = [os.path.abspath(path) for path in request.paths]
    key = files.cache_key(format=FORMAT, paths=paths, column=request.column, bundle=bundle)
    folder = session.cache / "search" / key
    known = dict[bytes, Any]()
    encoder = opened.of("document")
    hashed = {hashlib.sha256(text.encode()).digest(): text for text in places}
    if cached_folder.intact(folder, session.log):
        known = {bytes(entry["text"]): entry for entry in np.load(folder / "embeddings.npy")}
    new = sorted(hashed.keys() - known.keys())  # in no order of files, so that the time left is a fair guess
    shown = session if len(new) > CHUNK else QUIET
    if len(new) > MANY:
        session.log(f"{len(new):,} new texts; name a folder to search less; Ctrl-C keeps what is embedded")
    try:
        with progress_bar(len(new), shown.progress, "embedding", "new texts", shown.log) as advance:
            for start in range(0, len(new), CHUNK):
                chunk = new[start : start + CHUNK]
                chosen = [hashed[key] for key in chunk]
                ids = encoder.tokenize(chosen, "document")
                with as_options({"^precision: ": f"{encoder.manifest['name']}: "}):
                    rows = encoder.encode_ids(ids, precision=PRECISION)
                of_text = [("text", "V32"), ("row", "i1", rows.shape[1]), *OF_TOKENS]
                not_read = encoder.not_read(chosen, ids, "document", readers.MARK)
                of_each = zip(chunk, rows, not_read, strict=True)
                entries = np.array([(key, row, *counts) for key, row, counts in of_each], of_text)
                known.update(zip(chunk, entries, strict=True))
                advance(len(chunk))
    finally:  # what was embedded before an interruption is kept too
        kept = np.array([known[key] for key in hashed if key in known])
        if len(kept) and (new or len(known) > len(kept)):
            cached_folder.written(folder, lambda place: np.save(place / "embeddings.npy", kept))
    reading.tokens(kept[[name for name, _ in OF_TOKENS]].tolist())
    _forget(folder.parent)
    return kept["row"], len(new)


def _forget(cache: Path) -> None:
    """Delete the folders of the cache that were written before the last KEPT."""
    folders = sorted((path for path in cache.iterdir() if path.is_dir()), key=os.path.getmtime)
    for folder in folders[:-KEPT]:
        shutil.rmtree(folder, ignore_errors=True)


def table(answer: dict[str, Any]) -> str:
    """The results for reading: the scores that rank them, cosines and, where it was joined, BM25, file and
    line, and the text, cut to LINES of the terminal's width."""
    results = answer["results"]
    titles = ["score", "cosine", *["BM25"] * (results[0]["bm25"] is not None)]
    lines = ["Nothing close. The nearest anyway:"] if answer["close"] is False else []
    lines += [f"  #{''.join(f'{title:>8}' for title in titles)}  where"]
    for rank, result in enumerate(results, 1):
        file, number, text, also, *_ = result.values()
        numbers = "".join(f"{result[title.lower()]:8.2f}" for title in titles)
        if result["bm25"] and numbers.endswith(" 0.00"):  # a word of the question is there
            numbers = f"{numbers[:-4]}<.01"
        lines.append(f"{rank:3}{numbers}  {file}:{number}")
        lines += [f"{'':{INDENT}}also {':'.join(map(str, place.values()))}" for place in also[:SHOWN]]
        lines += [f"{'':{INDENT}}and {counted(len(also) - SHOWN, 'place')} more"] if also[SHOWN:] else []
        lines += wrapped(" " * INDENT + escaped(text.replace("\n", " · ")), INDENT, LINES)
    return "\n".join(lines)


def summary(answer: dict[str, Any]) -> str:
    """What was searched, how much was not read, and what is unusual about the ranking; the JSON has all."""
    read = answer["read"]
    others = sum(count.total() for count in read["other_types"].values())
    left = others + len(read["skipped"]) + len(read["not_read"])
    line = f"{counted(read['files'], 'file')}, {counted(answer['texts'], 'text')}"
    line += f" ({left:,} not read, or in part: --json)" * (left > 0)
    line += f"; {counted(read['unknown_texts'], 'text')} unknown to the student" * (read["unknown_texts"] > 0)
    line += "; too few texts to tell whether any is close" * (answer["close"] is None)
    return line + f"; ranked by {answer['ranked_by']}" * (
        answer["ranked_by"] != RANKED_BY.format(bm25.WEIGHT)
    )
