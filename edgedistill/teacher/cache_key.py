"""The key of the teacher cache: the folder name under which a teacher's embeddings of a corpus are cached."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from edgedistill import files
from edgedistill.data.corpus import Corpus

FORMAT = 1  # part of every key: raise it when the cached files change


class Identified(Protocol):
    """A teacher, or a file of precomputed embeddings."""

    def identity(self) -> dict[str, Any]: ...


def cache_key(teacher: Identified, corpus: Corpus, unit: bool = True) -> str:
    """The key of a teacher's embeddings of a corpus: the hash of the corpus and of everything that determines
    the embeddings.

    `unit`: embeddings of unit length, otherwise as the model returns them before it normalizes them.
    """
    how = {} if unit else {"unit": False}
    return files.cache_key(format=FORMAT, corpus=corpus.fingerprint, **how, **teacher.identity())


def precomputed_key(embeddings: Identified, corpus: Corpus) -> str:
    """The key of the embeddings of a corpus that were read from a file."""
    return files.cache_key(format=FORMAT, corpus=corpus.fingerprint, given=embeddings.identity())


def encoder_key(teacher: Identified, unit: bool) -> str:
    """The key of a teacher, whatever the corpus: corpora with equal encoder keys share the embeddings of the
    texts they share."""
    return files.cache_key(format=FORMAT, unit=unit, **teacher.identity())


def text_hashes(texts: Iterable[str]) -> np.ndarray:
    """A 64-bit hash of each text, (n,) uint64."""
    hashes = b"".join(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts
    )
    return np.frombuffer(hashes, np.uint64)
