"""Token ids of a corpus: tokenized once, memory-mapped, cached under the corpus and the tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy import ndarray
from tokenizers import Tokenizer

from edgedistill import files
from edgedistill.data.cached_folder import cached_folder, mapped
from edgedistill.data.corpus import Corpus, CorpusPass
from edgedistill.session import QUIET, Session

FORMAT = 2  # part of every cache key: raise it when what is written changes
CHUNK = 8_192  # texts tokenized at a time
COUNT_BLOCK = 1 << 24  # tokens counted at a time


# ids of texts in one row, the length of each, and how many were cut, with how many tokens lost in all
Tokens = tuple[ndarray, ndarray, tuple[int, int]]


@dataclass(frozen=True, eq=False)
class TokenCache:
    """Token ids of every text, special tokens included: those of row i are ids[offsets[i] : offsets[i + 1]].
    `cut`: how many texts were truncated, and how many tokens they lost."""

    ids: ndarray
    offsets: ndarray
    pad_id: int
    cut: tuple[int, int] = (0, 0)

    @classmethod
    def open(cls, folder: Path, pad_id: int) -> TokenCache:
        """The ids in a folder."""
        about = files.read_json(folder / "tokens.json")
        ids = mapped(folder / "ids.bin", np.dtype(about["dtype"]))
        return cls(ids, mapped(folder / "offsets.bin", np.int64), pad_id, tuple(about["cut"]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, rows: ndarray) -> ndarray:
        """Tokens in each of the rows, (n,)."""
        return np.asarray(self.offsets[rows + 1] - self.offsets[rows])

    def counts(self, vocabulary_size: int, among: int) -> ndarray:
        """How often each token occurs in the first `among` rows, (vocabulary_size,) int64."""
        total = np.zeros(vocabulary_size, np.int64)
        end = int(self.offsets[among])
        for start in range(0, end, COUNT_BLOCK):
            total += np.bincount(self.ids[start : min(start + COUNT_BLOCK, end)], minlength=vocabulary_size)
        return total

    def batch(self, rows: ndarray, max_tokens: int) -> tuple[ndarray, ndarray]:
        """Right-padded (ids, mask), each (n, T) int64, T ≤ max_tokens; a truncated text keeps its last token,
        the closing special one."""
        starts = np.asarray(self.offsets[rows])
        lengths = self.lengths(rows)
        truncated = np.minimum(lengths, max_tokens)
        positions = np.arange(max(1, truncated.max()))
        mask = positions < truncated[:, None]
        where = np.where(mask, starts[:, None] + positions, 0)
        ids = np.where(mask, self.ids[where], self.pad_id).astype(np.int64)
        cut = lengths > truncated
        last = starts + lengths - 1
        ids[cut, truncated[cut] - 1] = self.ids[last[cut]]
        return ids, mask.astype(np.int64)


class TokenPass(CorpusPass):
    """The token ids of a corpus, each text behind the prompt and truncated to max_tokens.

    A shard is a folder like that of the whole, which is joined from all of them.
    """

    work = "tokenizing"

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        max_tokens: int,
        pad_id: int,
        session: Session = QUIET,
        prompt: str = "",
    ) -> None:
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.pad_id = pad_id
        self.prompt = prompt
        sha256 = hashlib.sha256(self._limited().to_str().encode()).hexdigest()
        key = files.cache_key(format=FORMAT, corpus=corpus.fingerprint, tokenizer=sha256, prompt=prompt)
        self.whole = session.cache / "tokens" / key
        super().__init__("tokens", corpus, session, self.whole.with_suffix(".shards"))

    def _limited(self) -> Tokenizer:
        """The tokenizer, which other passes limit in other ways."""
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_tokens)
        return self.tokenizer

    def open(self) -> TokenCache:
        """The token ids, from the cache where it has them. The session's reading is told what was cut."""

        def write(folder: Path) -> None:
            self.run()
            shards = (TokenCache.open(self.shard(number), self.pad_id) for number in range(self.shards))
            self._write(folder, ((shard.ids, np.diff(shard.offsets), shard.cut) for shard in shards))

        tokens = TokenCache.open(cached_folder(self.whole, write, self.session.log), self.pad_id)
        cut = zip(("texts_cut", "tokens_cut"), tokens.cut, strict=True)
        self.session.reading.add(str(self.whole), dict(cut))
        return tokens

    def computed(self, number: int) -> Callable[[Path], None]:
        return partial(self._write, chunks=list(self._tokenized(number)))

    def _tokenized(self, number: int) -> Iterator[Tokens]:
        tokenizer = self._limited()
        texts = self.texts(number)
        around = tokenizer.num_special_tokens_to_add(False)
        for start in range(0, len(texts), CHUNK):
            chunk = [self.prompt + text for text in texts[start : start + CHUNK]]
            encodings = tokenizer.encode_batch_fast(chunk)
            rows = [encoding.ids for encoding in encodings]
            behind = [encoding.overflowing for encoding in encodings if encoding.overflowing]
            lost = sum(len(part.ids) - around for parts in behind for part in parts)
            ids = np.array([token for row in rows for token in row])
            yield ids, np.array([*map(len, rows)]), (len(behind), lost)

    def _write(self, folder: Path, chunks: Iterable[Tokens]) -> None:
        # ids may have gaps, so that their count is less
        cut = np.zeros(2, np.int64)
        largest = max(self.tokenizer.get_vocab().values(), default=0)
        end = 0
        dtype = np.dtype(np.uint16 if largest < 1 << 16 else np.uint32)
        with (folder / "ids.bin").open("wb") as ids, (folder / "offsets.bin").open("wb") as offsets:
            offsets.write(np.int64(0).tobytes())
            for tokens, lengths, (texts, lost) in chunks:
                cut += [texts, lost]
                ids.write(tokens.astype(dtype).tobytes())
                ends = end + np.cumsum(lengths, dtype=np.int64)
                offsets.write(ends.tobytes())
                end = int(ends[-1])
        files.write_json(folder / "tokens.json", {"format": FORMAT, "dtype": dtype.name, "cut": cut.tolist()})
