"""Views that a model makes, once for the whole corpus: words refilled by a masked language model, texts
translated there and back. They are kept in the cache as a corpus of their own, row for row."""

from __future__ import annotations

import shutil
from collections import Counter
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
from edgedistill.errors import UserError
from edgedistill.runtime import batching
from edgedistill.session import Session
from edgedistill.students import model_folder
from edgedistill.students.sentence_transformer import quiet
from edgedistill.training.inputs.text_batches import draws_of

FORMAT = 2  # part of every cache key: raise it when what is written changes
SHARD = 4_096  # texts: the most work that a kill can cost
TOKENS_PER_BATCH = 1_024  # on a CPU, padding included

Spec = recipe.Mlm | recipe.BackTranslation
MakeViews = Callable[[list[str], int], list[str]]  # (texts, the row of the first) -> their views


def build(spec: Spec, seed: int, texts: Corpus, session: Session, place: str) -> Corpus:
    """Return the view of every text of a corpus; a model makes them at the first call only.

    Raises UserError, which names the recipe key `place`, where a model is missing or does not open.
    """
    folders = model_folders(spec, place)
    hashes = [files.sha256_folder(folder, resolve.MODEL_FILES) for folder in folders]
    made_of: dict[str, Any] = {"translators": hashes, "beams": 1}  # by greedy search
    if isinstance(spec, recipe.Mlm):
        made_of = {"mlm": hashes[0], "fraction": spec.fraction, "seed": seed}
    key = files.cache_key(format=FORMAT, corpus=texts.fingerprint, **made_of)
    folder = session.cache / "views" / key
    shards = folder.with_name(f"{key}.shards")

    def write(temporary: Path) -> None:
        if isinstance(spec, recipe.Mlm):
            model = MaskedLanguageModel(folders[0], session.device, place)
            make_views: MakeViews = partial(model.refilled, fraction=spec.fraction, seed=seed)
        else:
            make_views = back_translation(folders, session.device, place)
        views = _made_in_shards(make_views, texts, shards, session)
        corpus.write(temporary, views, texts.training_count, texts.sources)

    found = Corpus(cached_folder(folder, write, session.log))
    shutil.rmtree(shards, ignore_errors=True)
    return found


def model_folders(spec: Spec, place: str) -> list[Path]:
    """The local folders of a view's models. Raises UserError where one is missing."""

    def folder(named: recipe.Mlm | recipe.Translator, place: str) -> Path:
        return resolve.model_files(resolve.resolve(named.model), named.revision, f"{place}.model")

    if isinstance(spec, recipe.Mlm):
        return [folder(spec, place)]
    return [folder(spec.forward, f"{place}.forward"), folder(spec.backward, f"{place}.backward")]


def back_translation(folders: list[Path], device: str, place: str) -> MakeViews:
    """Translation by the first folder's model and back by the second's."""
    forward, backward = (Translator("AutoModelForSeq2SeqLM", folder, device, place) for folder in folders)
    return lambda texts, first: backward.translated(forward.translated(texts))


class Pretrained:
    """The model of a folder, with its tokenizer."""

    def __init__(self, kind: str, folder: Path, device: str, place: str) -> None:
        """Open it as one of transformers' auto classes. Raises UserError, which names the recipe key `place`,
        where it is no such model."""
        model_folder.read(folder)
        options = {"trust_remote_code": False, "local_files_only": True}
        what = f"does not open as {kind}"
        way_out = "choose such a model; some tokenizers need pip install 'edgedistill[views]'"
        with model_folder.opening(f"{place}: {folder}", what, way_out, way_out), quiet():
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
            self.model = getattr(transformers, kind).from_pretrained(folder, **options).eval().to(device)
            positions = self.model.config.max_position_embeddings - 2
        self.max_tokens = min(int(self.tokenizer.model_max_length), positions)
        self.device = device

    def tokenized(self, texts: list[str]) -> tuple[list[np.ndarray], Any]:
        """(token ids of each text, the encodings of a fast tokenizer)."""
        found = self.tokenizer(texts, truncation=True, max_length=self.max_tokens)
        return [np.array(row) for row in found["input_ids"]], found.encodings

    def batches(self, ids: list[np.ndarray]) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
        """(rows, their padded inputs on the device), texts of like length together."""
        budget = TOKENS_PER_BATCH if self.device == "cpu" else 32 * TOKENS_PER_BATCH
        for rows in batching.longest_first([max(1, len(row)) for row in ids], budget):
            padded = batching.pad([ids[row] for row in rows], self.tokenizer.pad_token_id)
            on_device = [torch.from_numpy(part).to(self.device) for part in padded]
            yield rows, {"input_ids": on_device[0], "attention_mask": on_device[1]}


class MaskedLanguageModel(Pretrained):
    """Replaces some words by the model's most likely token there.

    Only words that are one token are masked, and only tokens that are whole words replace them; the rest of a
    text is unchanged.
    """

    def __init__(self, folder: Path, device: str, place: str) -> None:
        """Raises UserError, which names the recipe key `place`, where the folder holds no masked language
        model with a fast tokenizer."""
        super().__init__("AutoModelForMaskedLM", folder, device, place)
        if not self.tokenizer.is_fast or self.tokenizer.mask_token_id is None:
            fact = f"{folder} has no fast tokenizer with a mask token"
            raise UserError(f"{place}: {fact}; choose a masked language model")
        tokens = self.tokenizer.convert_ids_to_tokens(list(range(self.model.config.vocab_size)))
        special = set(self.tokenizer.all_special_ids)
        barred = [at in special or token is None or token.startswith("##") for at, token in enumerate(tokens)]
        self.barred = torch.tensor(barred, device=device)

    def refilled(self, texts: list[str], first: int, fraction: float, seed: int) -> list[str]:
        """The texts with a fraction of their tokens refilled. `first` is the row of the first one in the
        corpus; a text's row and the seed decide what is masked."""
        ids, encodings = self.tokenized(texts)
        draws = draws_of(seed, np.arange(first, first + len(texts)), np.zeros(len(texts), int))
        masked = [_chosen(*each, fraction) for each in zip(encodings, draws, strict=True)]
        for row, positions in zip(ids, masked, strict=True):
            row[positions] = self.tokenizer.mask_token_id
        views = list(texts)
        for rows, inputs in self.batches(ids):
            with torch.inference_mode():
                scores = self.model(**inputs).logits.masked_fill(self.barred, -torch.inf)
            for at, tokens in zip(rows, scores.argmax(-1).tolist(), strict=True):
                for position in reversed(masked[at]):  # from the end, so that offsets hold
                    start, end = encodings[at].offsets[position]
                    word = self.tokenizer.decode([tokens[position]]).strip() or texts[at][start:end]
                    views[at] = views[at][:start] + word + views[at][end:]
        return views


def _chosen(encoding: Any, draw: np.random.Generator, fraction: float) -> list[int]:
    """Random positions of words that are one token, in order: a fraction of all tokens, at least one position
    where there are any."""
    tokens_of, tokens = Counter(encoding.word_ids), len(encoding.ids) - sum(encoding.special_tokens_mask)
    possible = [at for at, word in enumerate(encoding.word_ids) if word is not None and tokens_of[word] == 1]
    count = int(fraction * tokens + draw.random())  # rounded so that it holds on average
    found: list[int] = sorted(draw.permutation(np.array(possible, int))[: max(1, count)].tolist())
    return found


class Translator(Pretrained):
    """Translates by greedy search."""

    def translated(self, texts: list[str]) -> list[str]:
        """The most likely translation of each text."""
        ids, _ = self.tokenized(texts)
        out = [""] * len(texts)
        for rows, inputs in self.batches(ids):
            # Output that does not end is cut at a limit by its text's own length; the last token of
            # `generate` is a forced end.
            limits = [min(2 * len(ids[row]) + 8, self.max_tokens) for row in rows]
            options = {"num_beams": 1, "do_sample": False, "max_new_tokens": max(limits)}
            with torch.inference_mode():
                generated = self.model.generate(**inputs, **options)
            for row, tokens, limit in zip(rows, generated, limits, strict=True):
                out[row] = self.tokenizer.decode(tokens[:limit], skip_special_tokens=True)
        return out


def _made_in_shards(make_views: MakeViews, texts: Corpus, shards: Path, session: Session) -> Iterator[str]:
    """The views of all texts in order. They are made in shards, of which a killed run keeps those that are
    finished."""
    folders = [shards / f"{number:05d}" for number in range(-(-len(texts) // SHARD))]
    done = sum(folder.is_dir() for folder in folders)
    session.log(f"views: making {len(texts):,} in {len(folders)} shards, {done} of them done before")
    for number, (folder, chunk) in enumerate(zip(folders, texts.chunks(SHARD), strict=True)):
        write = partial(_write_shard, make_views, chunk, number * SHARD)
        shard = Corpus(cached_folder(folder, write, session.log))
        yield from shard.texts(range(len(shard)))


def _write_shard(make_views: MakeViews, texts: list[str], first: int, folder: Path) -> None:
    """Write the views as a corpus; where a model gives no text, its view is the text itself."""
    views = zip(texts, make_views(texts, first), strict=True)
    corpus.write(folder, (readers.normalize(view) or text for text, view in views), None, [])
