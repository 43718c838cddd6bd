"""First vectors for pieces of other languages: the mean of the teacher's pieces that stand in their translations.

A piece s of the second side and a teacher's piece t of the first belong together as far as they keep to the same pairs: φ² =
n(s, t)² / (n(s) n(t)) (Gale and Church 1991), n counting pairs. What first sides hold too (names, digits, the teacher's language) keeps
to its own text by the share it has there.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgedistill.corpus import Corpus
from edgedistill.parallel import Pairs
from edgedistill.tokens import Tokens, tokenize

BEST = 8  # teacher's pieces a vector is made of
ROWS = 1_024  # pieces looked at in one go
SEEN = 2  # pairs a piece must be in to be led by them
LONGEST = 128  # tokens of a text that are read


def start(own: Tensor, mine: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase, table: Tensor, pairs: Pairs) -> Tensor:
    """First vectors (V, w) of my pieces. own (V, w): what their texts give; table (T, w): the teacher's word table.

    A mean is as long as the rows it is of on average, as a layer's norm over sums with positions heeds length.
    """
    index = pairs.index[: pairs.trained]
    cut = [_cut(texts, words) for texts, words in ((pairs.first, theirs), (pairs.first, mine), (pairs.second, mine))]
    english = _holds(cut[0], index[:, 0], len(table), theirs.all_special_ids)
    first, second = (_holds(each, index[:, side], len(own), mine.all_special_ids) for side, each in enumerate(cut[1:]))
    together, seen, theirs_seen = second.T.tocsr() @ english, _pairs_with(second), _pairs_with(english)
    share = seen / np.maximum(seen + _pairs_with(first), 1)
    share[seen < SEEN] = 0
    out, rows = own.clone(), table.float().numpy()
    lengths = np.linalg.norm(rows, axis=1)
    for begin in range(0, len(own), ROWS):
        part = together[begin : begin + ROWS]
        part.data = part.data**2 / np.maximum(np.repeat(seen[begin : begin + ROWS], np.diff(part.indptr)) * theirs_seen[part.indices], 1)
        for row in np.flatnonzero(np.diff(part.indptr) * share[begin : begin + ROWS]):
            found = slice(part.indptr[row], part.indptr[row + 1])
            best = np.argsort(-part.data[found], kind="stable")[:BEST]
            weights, ids = part.data[found][best], part.indices[found][best]
            mean = weights @ rows[ids]
            mean *= (weights @ lengths[ids]) / weights.sum() / max(float(np.linalg.norm(mean)), 1e-12)
            piece = begin + int(row)
            out[piece] = share[piece] * torch.from_numpy(mean) + (1 - share[piece]) * own[piece]
    return out


def _cut(texts: Corpus, words: PreTrainedTokenizerBase) -> Tokens:
    return tokenize(texts, words.backend_tokenizer, LONGEST, words.pad_token_id or 0)


def _holds(tokens: Tokens, rows: np.ndarray, pieces: int, special: list[int]) -> csr_matrix:
    """(n, pieces): 1 where a pair's text has the piece; special tokens are in none."""
    offsets = np.asarray(tokens.offsets)
    texts = csr_matrix(
        (np.ones(offsets[-1], np.float32), np.asarray(tokens.ids[: offsets[-1]], np.int32), offsets), (len(offsets) - 1, pieces)
    )
    texts.sum_duplicates()
    texts.data[:] = ~np.isin(texts.indices, special)
    texts.eliminate_zeros()
    return texts[rows]


def _pairs_with(holds: csr_matrix) -> np.ndarray:
    """How many pairs have each piece, (pieces,)."""
    return np.bincount(holds.indices, minlength=holds.shape[1]).astype(np.float64)
