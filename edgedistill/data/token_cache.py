"""Token ids of a corpus: tokenized once, memory-mapped, cached under the corpus and the tokenizer."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from edgedistill import files
from edgedistill.data.cached_folder import cached_folder, mapped
from edgedistill.data.corpus import Corpus
from edgedistill.session import QUIET, Session

FORMAT = 1  # part of every cache key: raise it when what is written changes
CHUNK = 8_192  # texts tokenized at a time
COUNT_BLOCK = 1 << 24  # tokens counted at a time


class TokenCache:
    """Token ids of every text, special tokens included: those of row i are ids[offsets[i] : offsets[i +
    1]]."""

    def __init__(self, folder: Path, pad_id: int) -> None:
        self.ids = mapped(folder / "ids.bin", np.dtype(files.read_json(folder / "tokens.json")["dtype"]))
        self.offsets = mapped(folder / "offsets.bin", np.int64)
        self.pad_id = pad_id

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens in each of the rows, (n,)."""
        return np.asarray(self.offsets[rows + 1] - self.offsets[rows])

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
    corpus: Corpus,
    tokenizer: Tokenizer,
    max_tokens: int,
    pad_id: int,
    session: Session = QUIET,
    prompt: str = "",
) -> TokenCache:
    """Tokenize a whole corpus, each text behind the prompt and truncated to max_tokens, or open the cache of
    the same corpus, tokenizer and prompt."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    sha256 = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    before = {"prompt": prompt} if prompt else {}
    key = files.cache_key(format=FORMAT, corpus=corpus.fingerprint, tokenizer=sha256, **before)
    folder = session.cache / "tokens" / key

    def write(temporary: Path) -> None:
        session.log(f"tokenizing {len(corpus):,} texts")
        _write_tokens(corpus, tokenizer, temporary, prompt)

    return TokenCache(cached_folder(folder, write, session.log), pad_id)


def _write_tokens(corpus: Corpus, tokenizer: Tokenizer, folder: Path, prompt: str) -> None:
    dtype, end = _dtype(tokenizer), 0
    with (folder / "ids.bin").open("wb") as ids, (folder / "offsets.bin").open("wb") as offsets:
        offsets.write(np.int64(0).tobytes())
        for texts in corpus.chunks(CHUNK):
            rows = [each.ids for each in tokenizer.encode_batch_fast([prompt + text for text in texts])]
            ids.write(np.array([token for row in rows for token in row], dtype).tobytes())
            ends = end + np.cumsum([len(row) for row in rows], dtype=np.int64)
            offsets.write(ends.tobytes())
            end = int(ends[-1])
    files.write_json(folder / "tokens.json", {"format": FORMAT, "dtype": dtype.name})


def _dtype(tokenizer: Tokenizer) -> np.dtype:
    largest = max(tokenizer.get_vocab().values(), default=0)  # ids may have gaps, so that their count is less
    return np.dtype(np.uint16 if largest < 1 << 16 else np.uint32)
