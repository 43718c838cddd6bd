"""Views that a model or a file gives: made once for the whole corpus, and cached as a corpus of their own, row for row."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files, recipe, resolve
from edgedistill.data import cached_folder, corpus, deduplicate, file_patterns, readers
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.training.inputs.model_views import BackTranslator, MaskedRefill, TranslationModel
from edgedistill.training.inputs.synonyms import Synonyms

SHARD = 4_096  # texts: the most work that a kill can cost
TEXTS = 4_096  # looked up in view files at a time
FORMAT = 1  # part of every cache key: raise it when what is written changes
MakeViews = Callable[[list[str], int], list[str]]  # (texts, the row of the first) -> their views
_TRANSLATOR_FILES = (*resolve.MODEL_FILES, ".spm")


def check(spec: recipe.View, seed: int, texts: Corpus, session: Session, place: str) -> None:
    """Raise UserError where a view's file, model or data is missing. Views from files are read and cached; a model is not opened."""
    if isinstance(spec, recipe.Synonym):
        Synonyms(spec, seed, place)
    elif isinstance(spec, recipe.ViewFile):
        build(spec, seed, texts, replace(session, device="cpu"), place)
    elif isinstance(spec, recipe.Mlm):
        _folder(spec, place)
    elif isinstance(spec, recipe.BackTranslation):
        _translators(spec, place)


def build(spec: recipe.ViewFile | recipe.Mlm | recipe.BackTranslation, seed: int, texts: Corpus, session: Session, place: str) -> Corpus:
    """The views of every text of a corpus, row for row; a model makes them at the first call only.

    Raises UserError: a model that does not open, a view file that lacks texts or has empty views. `place`: the recipe key.
    """
    if isinstance(spec, recipe.ViewFile):
        paths = file_patterns.matching_files(spec.files, session.data, f"{place}.files")
        made_of: dict[str, Any] = {"files": [files.sha256_file(path) for path in paths], "columns": [spec.text_column, spec.view_column]}

        def from_files(shards: Path) -> MakeViews:
            views = ViewFiles(spec, paths, place, shards)
            views.check(texts)
            return views

        return _cached(texts, made_of, from_files, session)
    if isinstance(spec, recipe.Mlm):
        folder = _folder(spec, place)
        made_of = {"mlm": files.sha256_folder(folder, resolve.MODEL_FILES), "fraction": spec.fraction, "seed": seed}
        return _cached(texts, made_of, lambda _: MaskedRefill(folder, spec.fraction, seed, session.device, place), session)
    folders = _translators(spec, place)
    made_of = {"translators": [files.sha256_folder(folder, _TRANSLATOR_FILES) for folder in folders], "beams": spec.beams}
    return _cached(texts, made_of, lambda _: back_translation(folders, spec.beams, session.device, place), session)


def back_translation(folders: list[Path], beams: int, device: str, place: str) -> MakeViews:
    """Translation by the first folder's model and back by the second's."""
    forward, backward = (TranslationModel(folder, beams, device, place) for folder in folders)
    return BackTranslator(forward, backward)


def _translators(spec: recipe.BackTranslation, place: str) -> list[Path]:
    pair = (("forward", spec.forward), ("backward", spec.backward))
    return [_folder(each, f"{place}.{way}") for way, each in pair]


def _folder(spec: recipe.Mlm | recipe.Translator, place: str) -> Path:
    return resolve.model_files(resolve.resolve(spec.model), spec.revision, f"{place}.model")


def _cached(texts: Corpus, made_of: dict[str, Any], open_views: Callable[[Path], MakeViews], session: Session) -> Corpus:
    """Views from the cache; otherwise made in shards, which a killed run keeps, and joined. `open_views` is given the shards' folder."""
    folder = session.cache / "views" / files.cache_key(format=FORMAT, corpus=texts.fingerprint, **made_of)
    shards = folder.with_name(f"{folder.name}.shards")

    def write(temporary: Path) -> None:
        names = _written_shards(texts, open_views, shards, session)
        lines = (line for name in names for line in name.read_text(encoding="utf-8").split("\n")[:-1])
        corpus.write(temporary, lines, texts.training_count, texts.sources)

    found = Corpus(cached_folder.cached_folder(folder, write, session.log))
    shutil.rmtree(shards, ignore_errors=True)
    return found


def _written_shards(texts: Corpus, open_views: Callable[[Path], MakeViews], shards: Path, session: Session) -> list[Path]:
    """The files of the shards; those that a killed run left are kept where they have not changed."""
    names = [shards / f"{number:05d}.txt" for number in range(-(-len(texts) // SHARD))]
    record = shards / cached_folder.RECORD
    hashes = cached_folder.recorded(record)
    done = {name for name in names if cached_folder.is_unchanged(name, hashes.get(name.name, ""))}
    session.log(f"views: making {len(texts):,} in {len(names)} shards, {len(done)} of them done before")
    shards.mkdir(parents=True, exist_ok=True)
    try:
        make_views = open_views(shards)
    except BaseException:
        if not done:
            shutil.rmtree(shards)
        raise
    for number, (name, chunk) in enumerate(zip(names, texts.chunks(SHARD), strict=True)):
        if name not in done:
            views = zip(chunk, make_views(chunk, number * SHARD), strict=True)
            files.write_text(name, "".join(f"{readers.normalize(view) or text}\n" for text, view in views))
            hashes[name.name] = files.sha256_file(name)
            files.write_json(record, hashes)
    return names


class ViewFiles:
    """Texts -> their views from the files of a recipe: 16 bytes of memory per row, the views themselves in one file on disk."""

    def __init__(self, spec: recipe.ViewFile, paths: list[Path], place: str, folder: Path) -> None:
        """folder: where the file on disk is written. Raises UserError where the files lack a column; `place`: the recipe key."""
        self.names, self.place, self.spool = ", ".join(path.name for path in paths), place, folder / "spool"
        digests, ends = array("Q"), array("q", [0])
        with self.spool.open("wb") as spool:
            for path in paths:
                columns = (spec.text_column, spec.view_column)
                for text, view in readers.columns_in(path, columns, f"{place}.text_column and .view_column"):
                    digests.append(_digest(text))
                    ends.append(ends[-1] + spool.write(view.encode("utf-8", "replace")))
        self.digests, self.first = np.unique(np.array(digests, np.uint64), return_index=True)
        self.ends = np.array(ends, np.int64)

    def check(self, texts: Corpus) -> None:
        """Raise UserError where a text of the corpus has no view, or an empty one."""
        at = np.concatenate([self._find(chunk) for chunk in texts.chunks(TEXTS)])
        empty = (at >= 0) & np.append(np.diff(self.ends) == 0, False)[at]
        for lacking, what in ((np.flatnonzero(at < 0), "are not in"), (np.flatnonzero(empty), "have an empty view in")):
            if len(lacking):
                fact = f"{len(lacking):,} of the corpus' {len(texts):,} texts {what} {self.names}"
                first = texts.texts(lacking[:1])[0][:60]
                raise UserError(f"{self.place}: {fact}, the first of them {first!r}; add their views, or take the texts out")

    def _find(self, texts: list[str]) -> np.ndarray:
        """The row of each text's view, −1 where it has none, (n,)."""
        wanted = np.array([_digest(text) for text in texts], np.uint64)
        near = np.minimum(np.searchsorted(self.digests, wanted), len(self.digests) - 1)
        return np.where(self.digests[near] == wanted, self.first[near], -1) if len(self.digests) else np.full(len(texts), -1)

    def __call__(self, texts: list[str], first: int) -> list[str]:
        views = []
        with self.spool.open("rb") as spool:
            for row in self._find(texts):
                spool.seek(int(self.ends[row]))
                views.append(spool.read(int(self.ends[row + 1] - self.ends[row])).decode("utf-8"))
        return views


def _digest(text: str) -> int:
    return int.from_bytes(deduplicate.digest(text), "little")
