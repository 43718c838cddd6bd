"""One text -> another view of it.

Edits are made a step at a time and are a pure function of (seed, row, pass over the corpus); what needs a model or a file is made
once for the whole corpus, kept in the cache under the hash of what made it, and is then a corpus of its own, row beside row.
"""

from __future__ import annotations

import shutil
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import corpus, readers
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError, require
from edgedistill.session import Session
from edgedistill.teacher import encoder as teachers

SHARD = 4_096  # texts: what a kill can cost
TOKENS_A_BATCH = 1_024
FORMAT = 1  # part of every cache key: raise it when what is written changes
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
Edit = recipe.WordDeletion | recipe.Crop | recipe.DeleteOne
Make = Callable[[list[str], int], list[str]]  # (texts, the row of the first) -> their views


def kept(spec: Edit, seed: int, rows: np.ndarray, passes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Which words of the texts stay in the view: a bool for every word, one text after the other; at least one stays.

    rows, passes, counts (n,): the text, the pass over the corpus, how many words it has. A fraction of words that is not whole is
    rounded up or down at random, so that it holds on average. SimCSE, Table 1 (Gao et al. 2021); ConGen, Table 6.
    """
    key = _keys(seed, rows, passes)
    gone = np.minimum(_some(spec.fraction, counts, key) if not isinstance(spec, recipe.DeleteOne) else 1, counts - 1)
    text = np.repeat(np.arange(len(rows)), counts)
    within = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts)
    if isinstance(spec, recipe.Crop):
        start = np.floor(_unit(_mixed(key ^ np.uint64(2))) * (gone + 1)).astype(np.int64)
        return np.asarray((within >= start[text]) & (within < (start + counts - gone)[text]))
    rank = np.empty(len(text), np.int64)
    rank[np.lexsort((_mixed(key[text] + (within.astype(np.uint64) + np.uint64(3)) * GOLDEN), text))] = within
    return np.asarray(rank >= gone[text])


def edited(spec: Edit, seed: int, rows: np.ndarray, passes: np.ndarray, texts: list[str]) -> list[str]:
    """The texts without the words that `kept` leaves out."""
    words = [text.split() for text in texts]
    stays = iter(kept(spec, seed, rows, passes, np.array([len(row) for row in words])).tolist())
    return [" ".join(compress(row, stays)) for row in words]


def _mixed(keys: np.ndarray) -> np.ndarray:
    """64 bits -> 64 bits, each of which depends on all (the finalizer of splitmix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(keys ^ (keys >> np.uint64(31)))


def _keys(seed: int, rows: np.ndarray, passes: np.ndarray) -> np.ndarray:
    """A random key for every (seed, row, pass), (n,) uint64."""
    start = np.random.SeedSequence([seed, 20_221]).generate_state(1, np.uint64)
    with np.errstate(over="ignore"):
        once = _mixed(start + (rows.astype(np.uint64) + np.uint64(1)) * GOLDEN)
        return _mixed(once + (passes.astype(np.uint64) + np.uint64(1)) * GOLDEN)


def _unit(keys: np.ndarray) -> np.ndarray:
    """Random bits -> numbers in [0, 1)."""
    return np.asarray((keys >> np.uint64(11)) * 2.0**-53)


def _some(fraction: float, counts: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """A fraction of counts, rounded up or down at random, (n,) int64."""
    return np.floor(fraction * counts + _unit(_mixed(keys ^ np.uint64(1)))).astype(np.int64)


class Synonyms:
    """Texts -> the same with some words replaced by a synonym of their commonest sense; where no word has one, the text itself.

    Words of three letters and fewer stay: WordNet takes most of them for symbols (in: indium, he: helium, a: ampere).
    """

    def __init__(self, spec: recipe.Synonym, seed: int, place: str) -> None:
        self.fraction, self.seed = spec.fraction, seed
        wordnet = require("nltk.corpus", "train", "views").wordnet
        try:
            wordnet.synsets("word")  # loads the data, which is not safe in two threads
        except (LookupError, OSError):  # not there, or not whole
            way_out = "python -m nltk.downloader wordnet, or point NLTK_DATA at it"
            raise UserError(f"{place}: synonym reads WordNet through nltk, which does not find it; {way_out}") from None
        self.of = lru_cache(1 << 16)(lambda word: _synonyms(wordnet, word))

    def __call__(self, rows: np.ndarray, passes: np.ndarray, texts: list[str]) -> list[str]:
        keys = _keys(self.seed, rows, passes)
        words = [text.split() for text in texts]
        wanted = _some(self.fraction, np.array([len(row) for row in words]), keys)
        return [self._one(row, int(number), key) for row, number, key in zip(words, wanted, keys, strict=True)]

    def _one(self, words: list[str], number: int, key: np.uint64) -> str:
        able = [at for at, word in enumerate(words) if self.of(word.strip(corpus.PUNCTUATION).lower())]
        draws = _mixed(key + np.arange(3, 3 + 2 * len(able), dtype=np.uint64) * GOLDEN)
        for rank in np.argsort(draws[: len(able)], kind="stable")[: max(1, number)]:
            word = words[able[rank]]
            core = word.strip(corpus.PUNCTUATION)
            choices = self.of(core.lower())
            choice = choices[int(draws[len(able) + rank] % np.uint64(len(choices)))]
            words[able[rank]] = word.replace(core, choice.capitalize() if core[0].isupper() else choice, 1)
        return " ".join(words)


def _synonyms(wordnet: Any, word: str) -> list[str]:
    senses = wordnet.synsets(word)[:1] if len(word) > 3 else []  # in order of frequency
    names = {name.replace("_", " ") for sense in senses for name in sense.lemma_names()}
    return sorted(name for name in names if name.lower() != word)


def check(spec: recipe.View, seed: int, texts: Corpus, session: Session, place: str) -> None:
    """Raise UserError where views cannot be had. A file's are read, and kept; a model is fetched, and not opened."""
    if isinstance(spec, recipe.Synonym):
        Synonyms(spec, seed, place)
    elif isinstance(spec, recipe.ViewFile):
        remade(spec, seed, texts, replace(session, device="cpu"), place)
    elif isinstance(spec, recipe.Mlm):
        teachers.folder(spec.model, spec.revision, place)
    elif isinstance(spec, recipe.BackTranslation):
        _translators(spec, place)


def remade(spec: Any, seed: int, texts: Corpus, session: Session, place: str) -> Corpus:
    """The views of every text, row beside row: those of a file, or a model's, which are made at the first call.

    Raises UserError: a model that does not open, a view file that lacks texts or has empty views.
    """
    if isinstance(spec, recipe.ViewFile):
        found = readers.matching(spec.files, session.data, f"{place}.files")
        made_of: dict[str, Any] = {"files": [files.sha256_file(path) for path in found], "columns": [spec.text, spec.view]}
        return _stored(texts, made_of, lambda parts: _Table(spec, found, texts, place, parts), session)
    if isinstance(spec, recipe.Mlm):
        folder = teachers.folder(spec.model, spec.revision, place)
        made_of = {"mlm": files.sha256_folder(folder, teachers.MODEL_FILES), "fraction": spec.fraction, "seed": seed}
        return _stored(texts, made_of, lambda _: _Refill(folder, spec.fraction, seed, session.device, place), session)
    both = _translators(spec, place)
    made_of = {"translators": [files.sha256_folder(folder, _TRANSLATORS_FILES) for folder in both], "beams": spec.beams}
    return _stored(
        texts, made_of, lambda _: _there_and_back([_Translator(folder, spec.beams, session.device, place) for folder in both]), session
    )


def _translators(spec: recipe.BackTranslation, place: str) -> list[Path]:
    return [teachers.folder(each.model, each.revision, f"{place}.{way}") for way, each in (("there", spec.there), ("back", spec.back))]


_TRANSLATORS_FILES = (*teachers.MODEL_FILES, ".spm")


def _stored(texts: Corpus, made_of: dict[str, Any], maker: Callable[[Path], Make], session: Session) -> Corpus:
    """Views from the cache; else made in shards that outlive a kill, then put together. The maker gets the shards' folder."""
    folder = session.cache / "views" / files.key(format=FORMAT, corpus=texts.fingerprint, **made_of)
    if not (folder / "corpus.json").exists():
        parts = folder.with_name(f"{folder.name}.shards")
        names = [parts / f"{number:05d}.txt" for number in range(-(-len(texts) // SHARD))]
        session.log(f"views: making {len(texts):,} in {len(names)} shards, {sum(name.exists() for name in names)} of them done before")
        parts.mkdir(parents=True, exist_ok=True)
        try:
            make = maker(parts)
        except BaseException:
            if not any(name.exists() for name in names):
                shutil.rmtree(parts)
            raise
        for number, (name, chunk) in enumerate(zip(names, texts.chunks(SHARD), strict=True)):
            if not name.exists():
                views = [readers.normalise(view) or text for text, view in zip(chunk, make(chunk, number * SHARD), strict=True)]
                files.write_text(name, "".join(f"{view}\n" for view in views))
        with files.new_folder(folder) as temporary:
            lines = (line for name in names for line in name.read_text(encoding="utf-8").split("\n")[:-1])
            corpus.store(temporary, lines, texts.trained, texts.sources)
        shutil.rmtree(parts)
    return Corpus(folder)


class _Table:
    """Views from files: 16 bytes of memory a row, the views themselves in a spool beside the shards."""

    def __init__(self, spec: recipe.ViewFile, found: list[Path], texts: Corpus, place: str, parts: Path) -> None:
        self.spool = parts / "spool"
        marks, ends = array("Q"), array("q", [0])
        with self.spool.open("wb") as spool:
            for path in found:
                for text, view in readers.columns_in(path, (spec.text, spec.view), f"{place}.text and .view"):
                    marks.append(_mark(text))
                    ends.append(ends[-1] + spool.write(view.encode("utf-8", "replace")))
        self.marks, self.first = np.unique(np.array(marks, np.uint64), return_index=True)
        self.ends = np.array(ends, np.int64)
        at = np.concatenate([self._find(chunk) for chunk in texts.chunks(SHARD)])
        empty = (at >= 0) & np.append(np.diff(self.ends) == 0, False)[at]
        for lacking, what in ((np.flatnonzero(at < 0), "are not in"), (np.flatnonzero(empty), "have an empty view in")):
            if len(lacking):
                fact = f"{len(lacking):,} of the corpus' {len(texts):,} texts {what} {', '.join(path.name for path in found)}"
                first = texts.texts(lacking[:1])[0][:60]
                raise UserError(f"{place}: {fact}, the first of them {first!r}; add their views, or take the texts out")

    def _find(self, texts: list[str]) -> np.ndarray:
        """Where each text's view is, −1 where it has none, (n,)."""
        wanted = np.array([_mark(text) for text in texts], np.uint64)
        near = np.minimum(np.searchsorted(self.marks, wanted), len(self.marks) - 1)
        return np.where(self.marks[near] == wanted, self.first[near], -1) if len(self.marks) else np.full(len(texts), -1)

    def __call__(self, texts: list[str], first: int) -> list[str]:
        views = []
        with self.spool.open("rb") as spool:
            for place in self._find(texts):
                spool.seek(int(self.ends[place]))
                views.append(spool.read(int(self.ends[place + 1] - self.ends[place])).decode("utf-8"))
        return views


def _mark(text: str) -> int:
    return int.from_bytes(corpus.digest(text), "little")


def _pretrained(kind: str, folder: Path, device: str, place: str) -> tuple[Any, Any]:
    """(tokenizer, model in eval mode) of a folder."""
    import transformers

    from edgedistill.students.sentence_transformer import quiet

    try:
        with quiet():
            words = transformers.AutoTokenizer.from_pretrained(folder)
            return words, getattr(transformers, kind).from_pretrained(folder).eval().to(device)
    except (OSError, ValueError, KeyError, ImportError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        way_out = "it must be such a model; some tokenizers need pip install 'edgedistill[views]'"
        raise UserError(f"{place}: {folder} does not open as {kind} ({first}); {way_out}") from error


class _Refill:
    """Texts -> the same with some words masked and refilled by what the model finds most likely there.

    Only words of one piece are masked, and only whole words come in their place; the rest of the text stays letter for letter.
    """

    def __init__(self, folder: Path, fraction: float, seed: int, device: str, place: str) -> None:
        import torch

        self.words, self.model = _pretrained("AutoModelForMaskedLM", folder, device, place)
        if not self.words.is_fast or self.words.mask_token_id is None:
            raise UserError(f"{place}: {folder} has no fast tokenizer with a mask token; choose a masked language model")
        self.fraction, self.seed, self.device = fraction, seed, device
        self.limit = min(int(self.words.model_max_length), self.model.config.max_position_embeddings - 2)
        pieces = self.words.convert_ids_to_tokens(list(range(self.model.config.vocab_size)))
        special = set(self.words.all_special_ids)
        barred = [at in special or piece is None or piece.startswith("##") for at, piece in enumerate(pieces)]
        self.barred = torch.tensor(barred, device=device)

    def __call__(self, texts: list[str], first: int) -> list[str]:
        self.words.backend_tokenizer.no_padding()
        self.words.backend_tokenizer.enable_truncation(self.limit)
        encodings = self.words.backend_tokenizer.encode_batch(texts)
        keys = _keys(self.seed, np.arange(first, first + len(texts)), np.zeros(len(texts), np.int64))
        wanted = _some(self.fraction, np.array([len(e.ids) - sum(e.special_tokens_mask) for e in encodings]), keys)
        chosen = [_choice(e, int(number), key) for e, number, key in zip(encodings, wanted, keys, strict=True)]
        filled = self._filled([np.array(encoding.ids) for encoding in encodings], chosen)
        out = []
        for text, encoding, places, pieces in zip(texts, encodings, chosen, filled, strict=True):
            for place, piece in sorted(zip(places, pieces, strict=True), reverse=True):  # from the end, so that offsets hold
                start, end = encoding.offsets[place]
                text = text[:start] + (self.words.decode([piece]).strip() or text[start:end]) + text[end:]
            out.append(text)
        return out

    def _filled(self, ids: list[np.ndarray], chosen: list[list[int]]) -> list[list[int]]:
        """The most likely piece at every chosen place."""
        import torch

        for row, places in zip(ids, chosen, strict=True):
            row[places] = self.words.mask_token_id
        filled: list[list[int]] = [[] for _ in ids]
        order = sorted((row for row in range(len(ids)) if chosen[row]), key=lambda row: len(ids[row]))
        tokens = TOKENS_A_BATCH if self.device == "cpu" else 32 * TOKENS_A_BATCH
        for rows in teachers.budget_batches(order, ids, tokens):
            inputs = [torch.from_numpy(part).to(self.device) for part in teachers.pad([ids[row] for row in rows], self.words.pad_token_id)]
            with torch.inference_mode():
                scores = self.model(input_ids=inputs[0], attention_mask=inputs[1]).logits.masked_fill(self.barred, -torch.inf)
            best = scores.argmax(-1).tolist()
            for number, pieces in zip(rows, best, strict=True):
                filled[number] = [pieces[place] for place in chosen[number]]
        return filled


def _choice(encoding: Any, number: int, key: np.uint64) -> list[int]:
    """Places of words of one piece, drawn by the key: `number` of them, one at least, where there are any."""
    pieces = Counter(encoding.word_ids)
    able = [at for at, word in enumerate(encoding.word_ids) if word is not None and pieces[word] == 1]
    draws = _mixed(key + np.arange(3, 3 + len(able), dtype=np.uint64) * GOLDEN)
    return [able[rank] for rank in np.argsort(draws, kind="stable")[: max(1, number)]]


class _Translator:
    """Texts -> their translations, most likely first: greedy, or a beam."""

    def __init__(self, folder: Path, beams: int, device: str, place: str) -> None:
        self.words, self.model = _pretrained("AutoModelForSeq2SeqLM", folder, device, place)
        self.beams, self.device = beams, device
        self.limit = min(int(self.words.model_max_length), self.model.config.max_position_embeddings - 2)

    def __call__(self, texts: list[str]) -> list[str]:
        import torch

        ids = [np.array(row) for row in self.words(texts, truncation=True, max_length=self.limit)["input_ids"]]
        out = [""] * len(texts)
        tokens = TOKENS_A_BATCH if self.device == "cpu" else 32 * TOKENS_A_BATCH
        for rows in teachers.budget_batches(sorted(range(len(ids)), key=lambda row: len(ids[row])), ids, tokens):
            inputs = [torch.from_numpy(part).to(self.device) for part in teachers.pad([ids[row] for row in rows], self.words.pad_token_id)]
            longest = [min(2 * len(ids[row]) + 8, self.limit) for row in rows]  # what does not end is cut, by its own length
            with torch.inference_mode():
                made = self.model.generate(
                    input_ids=inputs[0], attention_mask=inputs[1], num_beams=self.beams, do_sample=False, max_new_tokens=max(longest)
                )
            for row, pieces, most in zip(rows, made, longest, strict=True):
                out[row] = self.words.decode(pieces[:most], skip_special_tokens=True)  # the last possible one is a forced end
        return out


def _there_and_back(translators: list[_Translator]) -> Make:
    there, back = translators
    return lambda texts, first: back(there(texts))
