"""A corpus as token ids: cut once, memory-mapped, cached under the corpus and the tokenizer that made them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from edgedistill import files
from edgedistill.corpus import Corpus, Say

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


def tokenize(corpus: Corpus, tokenizer: Tokenizer, max_tokens: int, pad: int, say: Say = lambda line: None) -> Tokens:
    """Tokenize a whole corpus, cut at max_tokens, or open what the same corpus and tokenizer gave before."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    made_by = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    folder = files.cache_folder() / "tokens" / files.key(format=FORMAT, corpus=corpus.fingerprint, tokenizer=made_by)
    if not (folder / "tokens.json").exists():
        say(f"tokenizing {len(corpus):,} texts")
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
