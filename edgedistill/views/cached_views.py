"""Views that a model or a file gives: made once for the whole corpus, and cached as a corpus of their own,
row for row."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgedistill import files, recipe, resolve
from edgedistill.data import cached_folder, corpus, deduplicate, file_patterns, readers
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.views import models
from edgedistill.views.synonyms import Synonyms

SHARD = 4_096  # texts: the most work that a kill can cost
FORMAT = 1  # part of every cache key: raise it when what is written changes
MakeViews = Callable[[list[str], int], list[str]]  # (texts, the row of the first) -> their views
_TRANSLATOR_FILES = (*resolve.MODEL_FILES, ".spm")


def check(spec: recipe.View, seed: int, texts: Corpus, session: Session, place: str) -> None:
    """Raise UserError where a view's file, model or data is missing. Views from files are read and cached; a
    model is not opened."""
    if isinstance(spec, recipe.Synonym):
        Synonyms(spec, seed, place)
    elif isinstance(spec, recipe.ViewFile):
        build(spec, seed, texts, replace(session, device="cpu"), place)
    elif isinstance(spec, recipe.Mlm | recipe.BackTranslation):
        _model_folders(spec, place)


def build(
    spec: recipe.ViewFile | recipe.Mlm | recipe.BackTranslation,
    seed: int,
    texts: Corpus,
    session: Session,
    place: str,
) -> Corpus:
    """The views of every text of a corpus, row for row; a model makes them at the first call only.

    Raises UserError: a model that does not open, a view file that lacks texts or has empty views. `place`:
        the recipe key.
    """
    made_of: dict[str, Any]
    if isinstance(spec, recipe.ViewFile):
        paths = file_patterns.matching_files(spec.files, session.data, f"{place}.files")
        made_of = {
            "files": [files.sha256_file(path) for path in paths],
            "columns": [spec.text_column, spec.view_column],
        }
        return _cached(texts, made_of, lambda: _from_files(spec, paths, texts, place), session)
    folders = _model_folders(spec, place)
    if isinstance(spec, recipe.Mlm):
        made_of = {
            "mlm": files.sha256_folder(folders[0], resolve.MODEL_FILES),
            "fraction": spec.fraction,
            "seed": seed,
        }
        return _cached(
            texts,
            made_of,
            lambda: models.MaskedRefill(folders[0], spec.fraction, seed, session.device, place),
            session,
        )
    made_of = {
        "translators": [files.sha256_folder(folder, _TRANSLATOR_FILES) for folder in folders],
        "beams": spec.beams,
    }
    return _cached(
        texts, made_of, lambda: back_translation(folders, spec.beams, session.device, place), session
    )


def back_translation(folders: list[Path], beams: int, device: str, place: str) -> MakeViews:
    """Translation by the first folder's model and back by the second's."""
    forward, backward = (models.TranslationModel(folder, beams, device, place) for folder in folders)
    return lambda texts, first: backward(forward(texts))


def _model_folders(spec: recipe.Mlm | recipe.BackTranslation, place: str) -> list[Path]:
    named = (
        {"": spec} if isinstance(spec, recipe.Mlm) else {".forward": spec.forward, ".backward": spec.backward}
    )
    return [
        resolve.model_files(resolve.resolve(each.model), each.revision, f"{place}{key}.model")
        for key, each in named.items()
    ]


def _from_files(spec: recipe.ViewFile, paths: list[Path], texts: Corpus, place: str) -> MakeViews:
    """Views looked up by their text, the first of each; all are held in memory. Raises UserError where a text
    has none, or an empty one."""
    views = dict[bytes, str]()
    for path in paths:
        columns = (spec.text_column, spec.view_column)
        for text, view in readers.columns_in(path, columns, f"{place}.text_column and .view_column"):
            views.setdefault(deduplicate.digest(text), view)
    names = ", ".join(path.name for path in paths)
    found = {text: views.get(deduplicate.digest(text)) for chunk in texts.chunks(SHARD) for text in chunk}
    for lacking, what in ((None, "are not in"), ("", "have an empty view in")):
        if missing := [text for text, view in found.items() if view == lacking]:
            fact = (
                f"{len(missing):,} of the corpus' {len(texts):,} texts {what} {names}, the first of them "
                f"{missing[0][:60]!r}"
            )
            raise UserError(f"{place}: {fact}; add their views, or take the texts out")
    return lambda chunk, first: [views[deduplicate.digest(text)] for text in chunk]


def _cached(
    texts: Corpus, made_of: dict[str, Any], open_views: Callable[[], MakeViews], session: Session
) -> Corpus:
    """Views from the cache; otherwise made in shards, which a killed run keeps, and joined."""
    folder = session.cache / "views" / files.cache_key(format=FORMAT, corpus=texts.fingerprint, **made_of)
    shards = folder.with_name(f"{folder.name}.shards")

    def write(temporary: Path) -> None:
        names = _written_shards(texts, open_views, shards, session)
        lines = (line for name in names for line in name.read_text(encoding="utf-8").split("\n")[:-1])
        corpus.write(temporary, lines, texts.training_count, texts.sources)

    found = Corpus(cached_folder.cached_folder(folder, write, session.log))
    shutil.rmtree(shards, ignore_errors=True)
    return found


def _written_shards(
    texts: Corpus, open_views: Callable[[], MakeViews], shards: Path, session: Session
) -> list[Path]:
    """The files of the shards; those that a killed run left are kept where they have not changed."""
    names = [shards / f"{number:05d}.txt" for number in range(-(-len(texts) // SHARD))]
    record = shards / cached_folder.RECORD
    hashes = cached_folder.recorded(record)
    done = {name for name in names if cached_folder.is_unchanged(name, hashes.get(name.name, ""))}
    session.log(f"views: making {len(texts):,} in {len(names)} shards, {len(done)} of them done before")
    make_views = open_views()
    shards.mkdir(parents=True, exist_ok=True)
    for number, (name, chunk) in enumerate(zip(names, texts.chunks(SHARD), strict=True)):
        if name not in done:
            views = zip(chunk, make_views(chunk, number * SHARD), strict=True)
            files.write_text(name, "".join(f"{readers.normalize(view) or text}\n" for text, view in views))
            hashes[name.name] = files.sha256_file(name)
            files.write_json(record, hashes)
    return names
