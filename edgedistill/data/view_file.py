"""A corpus and a file of views go in; a corpus of the views comes out, row for row, kept in the cache."""

from __future__ import annotations

from pathlib import Path

from edgedistill import files, recipe
from edgedistill.data import corpus, deduplicate, file_patterns, readers
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.session import Session

FORMAT = 1  # part of every cache key: raise it when what is written changes


def build(spec: recipe.ViewFile, texts: Corpus, session: Session, place: str) -> Corpus:
    """Return the view of every text of a corpus, found by the text itself.

    Raises UserError, which names the recipe key `place`, where the file is missing, lacks texts or has empty
    views.
    """
    paths = file_patterns.matching_files(spec.files, session.data, f"{place}.files")
    key = files.cache_key(
        format=FORMAT,
        corpus=texts.fingerprint,
        files=[files.sha256_file(path) for path in paths],
        columns=[spec.text_column, spec.view_column],
    )

    def write(temporary: Path) -> None:
        corpus.write(temporary, _views(spec, paths, texts, place), texts.training_count, texts.sources)

    return Corpus(cached_folder(session.cache / "views" / key, write, session.log))


def _views(spec: recipe.ViewFile, paths: list[Path], texts: Corpus, place: str) -> list[str]:
    """The view of each text; where the files have several, the first. All are held in memory."""
    views = dict[bytes, str]()
    for path in paths:
        columns = (spec.text_column, spec.view_column)
        for text, view in readers.columns_in(path, columns, f"{place}.text_column and .view_column"):
            views.setdefault(deduplicate.digest(text), view)
    names = ", ".join(path.name for path in paths)
    found = [(text, views.get(deduplicate.digest(text))) for text in texts]
    for lacking, what in ((None, "are not in"), ("", "have an empty view in")):
        missing = [text for text, view in found if view == lacking]
        if missing:
            fact = (
                f"{len(missing):,} of the corpus' {len(texts):,} texts {what} {names}, the first of them "
                f"{missing[0][:60]!r}"
            )
            raise UserError(f"{place}: {fact}; add their views, or take the texts out")
    return [view for _, view in found if view]
