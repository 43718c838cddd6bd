"""Token ids of a corpus: tokenized once, memory-mapped, cached under the corpus and the tokenizer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from edgedistill import files
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.corpus import Corpus
from edgedistill.session import QUIET, Session

FORMAT = 1  # part of every cache key: raise it when what is written changes
CHUNK = 8_192  # texts tokenized at a time
COUNT_BLOCK = 1 << 24  # tokens counted at a time


class TokenCache:
    """Token ids of every text, special tokens included: those of row i are ids[offsets[i] : offsets[i +
    1]]."""

    def __init__(self, folder: Path, pad_id: int) -> None:
        self.ids = np.memmap(
            folder / "ids.bin", dtype=np.dtype(files.read_json(folder / "tokens.json")["dtype"]), mode="r"
        )
        self.offsets = np.memmap(folder / "offsets.bin", dtype=np.int64, mode="r")
        self.pad_id = pad_id

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens in each of the rows, (n,)."""
        return np.asarray(self.offsets[rows + 1] - self.offsets[rows])

    def rows_up_to(self, max_tokens: int, among: int) -> np.ndarray:
        """Those of the first `among` rows that have at most `max_tokens` tokens, (n,) int64."""
        return np.flatnonzero(np.diff(self.offsets[: among + 1]) <= max_tokens)

    def counts(self, vocabulary_size: int, among: int) -> np.ndarray:
        """How often each token occurs in the first `among` rows, (vocabulary_size,) int64."""
        total, end = np.zeros(vocabulary_size, np.int64), int(self.offsets[among])
        for start in range(0, end, COUNT_BLOCK):
            total += np.bincount(self.ids[start : min(start + COUNT_BLOCK, end)], minlength=vocabulary_size)
        return total

    def batch(self, rows: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Right-padded (ids, mask), each (n, T) int64, T ≤ max_tokens; a truncated text keeps its last token,
        the closing special one."""
        starts, lengths = np.asarray(self.offsets[rows]), self.lengths(rows)
        truncated = np.minimum(lengths, max_tokens)
        positions = np.arange(truncated.max())
        mask = positions < truncated[:, None]
        where = np.where(mask, starts[:, None] + positions, 0)
        ids = np.where(mask, self.ids[where], self.pad_id).astype(np.int64)
        long = np.flatnonzero(lengths > truncated)
        ids[long, truncated[long] - 1] = self.ids[starts[long] + lengths[long] - 1]
        return ids, mask.astype(np.int64)


def tokenize(
    corpus: Corpus, tokenizer: Tokenizer, max_tokens: int, pad_id: int, session: Session = QUIET
) -> TokenCache:
    """Tokenize a whole corpus, truncated to max_tokens, or open the cache of the same corpus and
    tokenizer."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    folder = session.cache / "tokens" / _cache_key(corpus, tokenizer)

    def write(temporary: Path) -> None:
        session.log(f"tokenizing {len(corpus):,} texts")
        _write_tokens(corpus, tokenizer, temporary)

    return TokenCache(cached_folder(folder, write, session.log), pad_id)


def _write_tokens(corpus: Corpus, tokenizer: Tokenizer, folder: Path) -> None:
    dtype, end = _dtype(tokenizer), 0
    with (folder / "ids.bin").open("wb") as ids, (folder / "offsets.bin").open("wb") as offsets:
        offsets.write(np.int64(0).tobytes())
        for texts in corpus.chunks(CHUNK):
            rows = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
            ids.write(np.array([token for row in rows for token in row], dtype).tobytes())
            ends = end + np.cumsum([len(row) for row in rows], dtype=np.int64)
            offsets.write(ends.tobytes())
            end = int(ends[-1])
    files.write_json(folder / "tokens.json", {"format": FORMAT, "dtype": dtype.name})


def _cache_key(corpus: Corpus, tokenizer: Tokenizer) -> str:
    sha256 = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    return files.cache_key(format=FORMAT, corpus=corpus.fingerprint, tokenizer=sha256)


def _dtype(tokenizer: Tokenizer) -> np.dtype:
    largest = max(tokenizer.get_vocab().values(), default=0)  # ids may have gaps, so that their count is less
    return np.dtype(np.uint16 if largest < 1 << 16 else np.uint32)


class WordTokenCache:
    """Token ids of every text, not truncated and without special tokens, and the number of tokens in each
    word.

    Lets words be removed from a batch of texts without tokenizing it again. Words are separated by single
    spaces.
    """

    def __init__(self, folder: Path, pad_id: int) -> None:
        meta = files.read_json(folder / "words.json")
        self.ids = np.memmap(folder / "ids.bin", dtype=np.dtype(meta["dtype"]), mode="r")
        self.offsets = np.memmap(folder / "offsets.bin", dtype=np.int64, mode="r")
        self.sizes = np.memmap(folder / "sizes.bin", dtype=np.uint32, mode="r")
        self.word_offsets = np.memmap(folder / "word_offsets.bin", dtype=np.int64, mode="r")
        self.before, self.after, self.pad_id = meta["before"], meta["after"], pad_id

    def counts(self, rows: np.ndarray) -> np.ndarray:
        """Words in each of the rows, (n,)."""
        return np.asarray(self.word_offsets[rows + 1] - self.word_offsets[rows])

    def batch(self, rows: np.ndarray, kept: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Right-padded (ids, mask), each (n, T) int64, of the kept words between the special tokens,
        truncated to max_tokens.

        `kept`: one bool per word, for the words of all the rows, concatenated.
        """
        tokens = np.asarray(self.offsets[rows + 1] - self.offsets[rows])
        stays = np.repeat(kept, self.sizes[_ranges(self.word_offsets[rows], self.counts(rows))])
        ids = self.ids[_ranges(self.offsets[rows], tokens)][stays]
        text = np.repeat(np.arange(len(rows)), tokens)[stays]
        lengths = np.bincount(text, minlength=len(rows))
        at = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        room = max_tokens - len(self.before) - len(self.after)
        lengths, fits = np.minimum(lengths, room), at < room
        ends = len(self.before) + lengths
        out = np.full((len(rows), int(ends.max()) + len(self.after)), self.pad_id, np.int64)
        out[:, : len(self.before)] = self.before
        out[text[fits], len(self.before) + at[fits]] = ids[fits]
        for place, special in enumerate(self.after):
            out[np.arange(len(rows)), ends + place] = special
        mask = np.arange(out.shape[1]) < (ends + len(self.after))[:, None]
        return out, mask.astype(np.int64)


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The integers start … start + length − 1 of every range, concatenated."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1])


def tokenizes_words_independently(tokenizer: Tokenizer) -> bool:
    """Whether a text's ids are those of its words, concatenated, whatever their neighbours: true for BERT's
    WordPiece."""
    spec = json.loads(tokenizer.to_str())
    kinds = [(spec[part] or {}).get("type") for part in ("model", "pre_tokenizer", "normalizer")]
    spaced = any(" " in token["content"] for token in spec["added_tokens"])
    return (
        kinds[:2] == ["WordPiece", "BertPreTokenizer"] and kinds[2] in ("BertNormalizer", None) and not spaced
    )


def tokenize_by_word(
    corpus: Corpus, tokenizer: Tokenizer, pad_id: int, session: Session = QUIET
) -> WordTokenCache:
    """Tokenize a whole corpus word by word, or open the cache of the same corpus and tokenizer.

    Correct only for a tokenizer of which `tokenizes_words_independently` is true.
    """
    raw = Tokenizer.from_str(tokenizer.to_str())
    raw.no_padding()
    raw.no_truncation()
    folder = session.cache / "words" / _cache_key(corpus, raw)

    def write(temporary: Path) -> None:
        session.log(f"tokenizing {len(corpus):,} texts word by word")
        _write_words(corpus, raw, temporary)

    return WordTokenCache(cached_folder(folder, write, session.log), pad_id)


def _write_words(corpus: Corpus, raw: Tokenizer, folder: Path) -> None:
    dtype = _dtype(raw)
    known: dict[str, int] = {}  # word: its number of tokens
    ends = [0, 0]  # tokens, words
    parts = ("ids", "sizes", "offsets", "word_offsets")
    for name in parts[2:]:
        (folder / f"{name}.bin").write_bytes(np.int64(0).tobytes())
    for texts in corpus.chunks(CHUNK):
        words = [text.split(" ") for text in texts]
        known = known if len(known) < 1 << 18 else {}
        new = list({word for row in words for word in row} - known.keys())
        known.update(
            (word, len(e.ids))
            for word, e in zip(new, raw.encode_batch_fast(new, add_special_tokens=False), strict=True)
        )
        rows = [encoding.ids for encoding in raw.encode_batch_fast(texts, add_special_tokens=False)]
        sizes = [[known[word] for word in row] for row in words]
        assert [sum(row) for row in sizes] == [len(row) for row in rows], (
            "a word's tokens depend on its neighbours"
        )
        flat: list[np.ndarray] = [
            np.array([token for row in rows for token in row], dtype),
            np.array([size for row in sizes for size in row], np.uint32),
        ]
        offsets = [
            end + np.cumsum([len(row) for row in each], dtype=np.int64)
            for end, each in zip(ends, (rows, sizes), strict=True)
        ]
        ends = [int(each[-1]) for each in offsets]
        for name, values in zip(parts, (*flat, *offsets), strict=True):
            with (folder / f"{name}.bin").open("ab") as file:
                file.write(values.tobytes())
    content, whole = (raw.encode("a", add_special_tokens=special).ids for special in (False, True))
    start = next(at for at in range(len(whole)) if whole[at : at + len(content)] == content)
    specials = {"before": whole[:start], "after": whole[start + len(content) :]}
    files.write_json(folder / "words.json", {"format": FORMAT, "dtype": dtype.name, **specials})
