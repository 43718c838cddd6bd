"""Views that models make, once for the whole corpus: texts translated there and back. They are kept in the
cache as a corpus of their own, row for row."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from edgedistill import files, recipe, resolve
from edgedistill.data import corpus, readers
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.corpus import Corpus
from edgedistill.runtime import batching
from edgedistill.session import Session
from edgedistill.students import model_folder
from edgedistill.students.sentence_transformer import quiet

FORMAT = 1  # part of every cache key: raise it when what is written changes
SHARD = 4_096  # texts: the most work that a kill can cost
TOKENS_PER_BATCH = 1_024  # on a CPU, padding included

MakeViews = Callable[[list[str]], list[str]]  # texts -> their views


def build(spec: recipe.BackTranslation, texts: Corpus, session: Session, place: str) -> Corpus:
    """Return the view of every text of a corpus; the models make them at the first call only.

    Raises UserError, which names the recipe key `place`, where a model is missing or does not open.
    """
    folders = model_folders(spec, place)
    hashes = [files.sha256_folder(folder, resolve.MODEL_FILES) for folder in folders]
    # beams: 1 is greedy search
    key = files.cache_key(format=FORMAT, corpus=texts.fingerprint, translators=hashes, beams=1)
    folder = session.cache / "views" / key
    shards = folder.with_name(f"{key}.shards")

    def write(temporary: Path) -> None:
        make_views = back_translation(folders, session.device, place)
        views = _made_in_shards(make_views, texts, shards, session)
        corpus.write(temporary, views, texts.training_count, texts.sources)

    found = Corpus(cached_folder(folder, write, session.log))
    shutil.rmtree(shards, ignore_errors=True)
    return found


def model_folders(spec: recipe.BackTranslation, place: str) -> list[Path]:
    """The local folders of a view's models. Raises UserError where one is missing."""
    return [
        resolve.model_files(resolve.resolve(named.model), named.revision, f"{place}.{key}.model")
        for key, named in (("forward", spec.forward), ("backward", spec.backward))
    ]


def back_translation(folders: list[Path], device: str, place: str) -> MakeViews:
    """Translation by the first folder's model and back by the second's."""
    forward, backward = (Translator(folder, device, place) for folder in folders)
    return lambda texts: backward.translated(forward.translated(texts))


class Translator:
    """The translation model of a folder, which translates by greedy search."""

    def __init__(self, folder: Path, device: str, place: str) -> None:
        """Raises UserError, which names the recipe key `place`, where the folder holds no such model."""
        model_folder.read(folder)
        options = {"trust_remote_code": False, "local_files_only": True}
        way_out = "choose such a model; some tokenizers need pip install 'edgedistill[views]'"
        what = "does not open as AutoModelForSeq2SeqLM"
        with model_folder.opening(f"{place}: {folder}", what, way_out, way_out), quiet():
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
            model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, **options)
            self.model = model.eval().to(device)
            positions = self.model.config.max_position_embeddings - 2
        self.max_tokens = min(int(self.tokenizer.model_max_length), positions)
        self.device = device

    def translated(self, texts: list[str]) -> list[str]:
        """The most likely translation of each text."""
        found = self.tokenizer(texts, truncation=True, max_length=self.max_tokens)
        ids, out = [np.array(row) for row in found["input_ids"]], [""] * len(texts)
        budget = TOKENS_PER_BATCH if self.device == "cpu" else 32 * TOKENS_PER_BATCH
        for rows in batching.longest_first([max(1, len(row)) for row in ids], budget):
            padded = batching.pad([ids[row] for row in rows], self.tokenizer.pad_token_id)
            tokens, mask = (torch.from_numpy(part).to(self.device) for part in padded)
            # Output that does not end is cut at a limit by its text's own length; the last token of
            # `generate` is a forced end.
            limits = [min(2 * len(ids[row]) + 8, self.max_tokens) for row in rows]
            options = {"num_beams": 1, "do_sample": False, "max_new_tokens": max(limits)}
            with torch.inference_mode():
                generated = self.model.generate(input_ids=tokens, attention_mask=mask, **options)
            for row, words, limit in zip(rows, generated, limits, strict=True):
                out[row] = self.tokenizer.decode(words[:limit], skip_special_tokens=True)
        return out


def _made_in_shards(make_views: MakeViews, texts: Corpus, shards: Path, session: Session) -> Iterator[str]:
    """The views of all texts in order. They are made in shards, of which a killed run keeps those that are
    finished."""
    folders = [shards / f"{number:05d}" for number in range(-(-len(texts) // SHARD))]
    done = sum(folder.is_dir() for folder in folders)
    session.log(f"views: making {len(texts):,} in {len(folders)} shards, {done} of them done before")
    for folder, chunk in zip(folders, texts.chunks(SHARD), strict=True):
        write = partial(_write_shard, make_views, chunk)
        shard = Corpus(cached_folder(folder, write, session.log))
        yield from shard.texts(range(len(shard)))


def _write_shard(make_views: MakeViews, texts: list[str], folder: Path) -> None:
    """Write the views as a corpus; where a model gives no text, its view is the text itself."""
    views = zip(texts, make_views(texts), strict=True)
    corpus.write(folder, (readers.normalize(view) or text for text, view in views), None, [])
