"""A corpus as token ids: cut once, memory-mapped, cached under the corpus and the tokenizer that made them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from edgedistill import files
from edgedistill.data.corpus import Corpus
from edgedistill.session import QUIET, Session

FORMAT = 1
CHUNK = 8_192  # texts tokenized at a time
COUNTED = 1 << 24  # tokens counted at a time


class Tokens:
    """Token ids of every text, special tokens included: row i is ids[offsets[i] : offsets[i + 1]]."""

    def __init__(self, folder: Path, pad: int) -> None:
        self.ids = np.memmap(folder / "ids.bin", dtype=np.dtype(files.read_json(folder / "tokens.json")["dtype"]), mode="r")
        self.offsets = np.memmap(folder / "offsets.bin", dtype=np.int64, mode="r")
        self.pad = pad

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens in each of the rows, (n,)."""
        return np.asarray(self.offsets[rows + 1] - self.offsets[rows])

    def short(self, longest: int, among: int) -> np.ndarray:
        """Those of the first `among` rows that have at most `longest` tokens, (n,) int64."""
        return np.flatnonzero(np.diff(self.offsets[: among + 1]) <= longest)

    def counts(self, pieces: int, among: int) -> np.ndarray:
        """How often each of `pieces` occurs in the first `among` rows, (pieces,) int64."""
        total, end = np.zeros(pieces, np.int64), int(self.offsets[among])
        for start in range(0, end, COUNTED):
            total += np.bincount(self.ids[start : min(start + COUNTED, end)], minlength=pieces)
        return total

    def batch(self, rows: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Right-padded (ids, mask), each (n, T) int64; a longer text keeps its last token, the closing special one."""
        starts, lengths = np.asarray(self.offsets[rows]), self.lengths(rows)
        cut = np.minimum(lengths, max_tokens)
        at = np.arange(cut.max())
        mask = at < cut[:, None]
        where = np.where(mask, starts[:, None] + at, 0)
        ids = np.where(mask, self.ids[where], self.pad).astype(np.int64)
        long = np.flatnonzero(lengths > cut)
        ids[long, cut[long] - 1] = self.ids[starts[long] + lengths[long] - 1]
        return ids, mask.astype(np.int64)


def tokenize(corpus: Corpus, tokenizer: Tokenizer, max_tokens: int, pad: int, session: Session = QUIET) -> Tokens:
    """Tokenize a whole corpus, cut at max_tokens, or open what the same corpus and tokenizer gave before."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    made_by = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    folder = session.cache / "tokens" / files.key(format=FORMAT, corpus=corpus.fingerprint, tokenizer=made_by)
    if not (folder / "tokens.json").exists():
        session.log(f"tokenizing {len(corpus):,} texts")
        dtype = np.dtype(np.uint16 if tokenizer.get_vocab_size() < 1 << 16 else np.uint32)
        with files.new_folder(folder) as temporary:
            end = 0
            with (temporary / "ids.bin").open("wb") as ids, (temporary / "offsets.bin").open("wb") as offsets:
                offsets.write(np.int64(0).tobytes())
                for texts in corpus.chunks(CHUNK):
                    rows = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
                    ids.write(np.array([piece for row in rows for piece in row], dtype).tobytes())
                    ends = end + np.cumsum([len(row) for row in rows], dtype=np.int64)
                    offsets.write(ends.tobytes())
                    end = int(ends[-1])
            files.write_json(temporary / "tokens.json", {"format": FORMAT, "dtype": dtype.name})
    return Tokens(folder, pad)


class Words:
    """Token ids of every text, whole and without special tokens, and how many of them each word has.

    So that words can be taken out of a batch of texts without tokenizing it again. A word is what spaces separate.
    """

    def __init__(self, folder: Path, pad: int) -> None:
        meta = files.read_json(folder / "words.json")
        self.ids = np.memmap(folder / "ids.bin", dtype=np.dtype(meta["dtype"]), mode="r")
        self.offsets = np.memmap(folder / "offsets.bin", dtype=np.int64, mode="r")
        self.sizes = np.memmap(folder / "sizes.bin", dtype=np.uint32, mode="r")
        self.word_offsets = np.memmap(folder / "word_offsets.bin", dtype=np.int64, mode="r")
        self.before, self.after, self.pad = meta["before"], meta["after"], pad

    def counts(self, rows: np.ndarray) -> np.ndarray:
        """Words in each of the rows, (n,)."""
        return np.asarray(self.word_offsets[rows + 1] - self.word_offsets[rows])

    def batch(self, rows: np.ndarray, kept: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Right-padded (ids, mask), each (n, T) int64, of the kept words, between the special tokens, cut at max_tokens.

        `kept`: a bool for every word of the rows, one row after the other.
        """
        tokens = np.asarray(self.offsets[rows + 1] - self.offsets[rows])
        stays = np.repeat(kept, self.sizes[_spans(self.word_offsets[rows], self.counts(rows))])
        ids = self.ids[_spans(self.offsets[rows], tokens)][stays]
        text = np.repeat(np.arange(len(rows)), tokens)[stays]
        lengths = np.bincount(text, minlength=len(rows))
        at = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        room = max_tokens - len(self.before) - len(self.after)
        lengths, fits = np.minimum(lengths, room), at < room
        ends = len(self.before) + lengths
        out = np.full((len(rows), int(ends.max()) + len(self.after)), self.pad, np.int64)
        out[:, : len(self.before)] = self.before
        out[text[fits], len(self.before) + at[fits]] = ids[fits]
        for place, special in enumerate(self.after):
            out[np.arange(len(rows)), ends + place] = special
        mask = np.arange(out.shape[1]) < (ends + len(self.after))[:, None]
        return out, mask.astype(np.int64)


def _spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The numbers start … start + length − 1 of every span, one span after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1])


def words_stand_alone(tokenizer: Tokenizer) -> bool:
    """Whether a text's ids are those of its words one after the other, whatever stands beside them: so with BERT's WordPiece."""
    said = json.loads(tokenizer.to_str())
    kinds = [(said[part] or {}).get("type") for part in ("model", "pre_tokenizer", "normalizer")]
    spaced = any(" " in token["content"] for token in said["added_tokens"])
    return kinds[:2] == ["WordPiece", "BertPreTokenizer"] and kinds[2] in ("BertNormalizer", None) and not spaced


def by_word(corpus: Corpus, tokenizer: Tokenizer, pad: int, session: Session = QUIET) -> Words:
    """Tokenize a whole corpus word by word, or open what the same corpus and tokenizer gave before. Needs `words_stand_alone`."""
    raw = Tokenizer.from_str(tokenizer.to_str())
    raw.no_padding()
    raw.no_truncation()
    made_by = hashlib.sha256(raw.to_str().encode()).hexdigest()
    folder = session.cache / "words" / files.key(format=FORMAT, corpus=corpus.fingerprint, tokenizer=made_by)
    if not (folder / "words.json").exists():
        session.log(f"tokenizing the words of {len(corpus):,} texts")
        with files.new_folder(folder) as temporary:
            _write_words(corpus, raw, temporary)
    return Words(folder, pad)


def _write_words(corpus: Corpus, raw: Tokenizer, folder: Path) -> None:
    dtype = np.dtype(np.uint16 if raw.get_vocab_size() < 1 << 16 else np.uint32)
    known: dict[str, int] = {}
    ends = [0, 0]  # tokens, words
    parts = ("ids", "sizes", "offsets", "word_offsets")
    for name in parts[2:]:
        (folder / f"{name}.bin").write_bytes(np.int64(0).tobytes())
    for texts in corpus.chunks(CHUNK):
        words = [text.split(" ") for text in texts]
        known = known if len(known) < 1 << 18 else {}
        new = list({word for row in words for word in row} - known.keys())
        known.update((word, len(e.ids)) for word, e in zip(new, raw.encode_batch_fast(new, add_special_tokens=False), strict=True))
        rows = [encoding.ids for encoding in raw.encode_batch_fast(texts, add_special_tokens=False)]
        sizes = [[known[word] for word in row] for row in words]
        assert [sum(row) for row in sizes] == [len(row) for row in rows], "a word's pieces depend on its neighbours"
        flat: list[np.ndarray] = [
            np.array([piece for row in rows for piece in row], dtype),
            np.array([n for row in sizes for n in row], np.uint32),
        ]
        more = [end + np.cumsum([len(row) for row in each], dtype=np.int64) for end, each in zip(ends, (rows, sizes), strict=True)]
        ends = [int(each[-1]) for each in more]
        for name, values in zip(parts, (*flat, *more), strict=True):
            with (folder / f"{name}.bin").open("ab") as file:
                file.write(values.tobytes())
    alone, whole = (raw.encode("a", add_special_tokens=special).ids for special in (False, True))
    start = next(at for at in range(len(whole)) if whole[at : at + len(alone)] == alone)
    specials = {"before": whole[:start], "after": whole[start + len(alone) :]}
    files.write_json(folder / "words.json", {"format": FORMAT, "dtype": dtype.name, **specials})
