"""First vectors for pieces of other languages, from the teacher's pieces in their translations.

Two steps. A piece s of the second side and a teacher's piece t of the first belong together as far as they keep to the same pairs: φ² =
n(s, t)² / (n(s) n(t)) (Gale and Church 1991), n counting pairs; s starts as the mean of those it belongs to. What first sides hold too
(names, digits, the teacher's language) keeps to its own text by the share it has there. Then all rows are fitted together, so that the
mean of a text's rows is the mean of the teacher's rows of what it translates, by ridge regression towards that start: a piece that is
always beside another no longer takes the other's share.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags, vstack
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel import Pairs
from edgedistill.data.token_cache import tokenize
from edgedistill.session import QUIET

BEST = 8  # teacher's pieces a vector is made of
ROWS = 1_024  # pieces looked at in one go
SEEN = 2  # pairs a piece must be in to be led by them
LONGEST = 128  # tokens of a text that are read
RIDGE = 1.0  # how much a row's start weighs, in texts that hold nothing but it
STEPS = 15  # of conjugate gradients
COLUMNS = 64  # of the table fitted in one go: bounds the memory


def start(own: Tensor, mine: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase, table: Tensor, pairs: Pairs) -> Tensor:
    """First vectors of my pieces, (V, w) float32. own (V, w): what their texts give; table (T, w): the teacher's word table."""
    rows, index = table.float().numpy(), pairs.index[: pairs.trained]
    english = counts(pairs.first, theirs, len(rows))
    first, second = (counts(side, mine, len(own)) for side in (pairs.first, pairs.second))
    said, translated = english[index[:, 0]], second[index[:, 1]]
    begun = led(own.float().numpy(), rows, said, first[index[:, 0]], translated)
    texts = vstack([first[: pairs.first.trained], translated], format="csr")
    return torch.from_numpy(fitted(begun, rows, texts, vstack([english[: pairs.first.trained], said], format="csr")))


def counts(texts: Corpus, words: PreTrainedTokenizerBase, pieces: int) -> csr_matrix:
    """(n, pieces) float32: how often each text holds each piece; special tokens are in none."""
    tokens = tokenize(texts, words.backend_tokenizer, LONGEST, words.pad_token_id or 0, QUIET)
    offsets = np.asarray(tokens.offsets)
    ids = np.asarray(tokens.ids[: offsets[-1]], np.int32)
    found = csr_matrix((np.ones(len(ids), np.float32), ids, offsets), (len(offsets) - 1, pieces))
    found.sum_duplicates()
    found.data[np.isin(found.indices, words.all_special_ids)] = 0
    found.eliminate_zeros()
    return found


def led(own: np.ndarray, rows: np.ndarray, english: csr_matrix, first: csr_matrix, second: csr_matrix) -> np.ndarray:
    """(V, w): the mean of the BEST teacher's rows of each piece, weighed by φ². own (V, w), rows (T, w).

    english (n, T), first, second (n, V): how often each pair's texts hold each piece. A mean is as long as the rows it is of on
    average, as a layer's norm over sums with positions heeds length.
    """
    english, first, second = (each.sign() for each in (english, first, second))
    together, seen, theirs_seen = second.T.tocsr() @ english, _pairs_with(second), _pairs_with(english)
    share = seen / np.maximum(seen + _pairs_with(first), 1)
    share[seen < SEEN] = 0
    out, lengths = own.copy(), np.linalg.norm(rows, axis=1)
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
            out[piece] = share[piece] * mean + (1 - share[piece]) * own[piece]
    return out


def fitted(begun: np.ndarray, rows: np.ndarray, texts: csr_matrix, english: csr_matrix) -> np.ndarray:
    """The table X (V, w) nearest to min Σ_t n_t ‖mean_t X − mean_t rows‖² + RIDGE ‖X − begun‖², after STEPS of conjugate gradients.

    texts (n, V), english (n, T): how often text t, and what it translates, hold each piece; n_t: how many pieces text t has. rows (T, w).
    """
    lengths, theirs = (np.maximum(np.asarray(each.sum(1), np.float32).ravel(), 1) for each in (texts, english))
    weighed = (diags(lengths**-0.5) @ texts).tocsr()
    turned, wanted = weighed.T.tocsr(), (diags(lengths**0.5 / theirs) @ english).tocsr()
    scale = (np.asarray(weighed.power(2).sum(0)).ravel() + RIDGE).astype(np.float32)[:, None]
    out = begun.copy()
    for begin in range(0, rows.shape[1], COLUMNS):
        part = np.ascontiguousarray(begun[:, begin : begin + COLUMNS])
        left = turned @ (wanted @ np.ascontiguousarray(rows[:, begin : begin + COLUMNS]) - weighed @ part)
        way, power = left / scale, (left**2 / scale).sum(0)
        for _ in range(STEPS):
            pull = turned @ (weighed @ way) + RIDGE * way
            step = power / np.maximum((way * pull).sum(0), 1e-30)
            part += step * way
            left -= step * pull
            before, power = power, (left**2 / scale).sum(0)
            way = left / scale + power / np.maximum(before, 1e-30) * way
        out[:, begin : begin + COLUMNS] = part
    return out


def _pairs_with(holds: csr_matrix) -> np.ndarray:
    """How many pairs have each piece, (pieces,)."""
    return np.bincount(holds.indices, minlength=holds.shape[1]).astype(np.float64)
