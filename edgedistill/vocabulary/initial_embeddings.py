"""Initial token embeddings for a tokenizer: from another model's embedding table, or from translations."""

from __future__ import annotations

import numpy as np
import torch
from numpy import ndarray
from scipy.sparse import csr_matrix, diags, vstack
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from edgedistill.data.bm25 import language_of, stemmer
from edgedistill.data.corpus import Corpus
from edgedistill.data.rows import Rows
from edgedistill.data.token_cache import TokenPass

MARKERS = ("##", "▁", "Ġ")  # how WordPiece, SentencePiece and byte-level BPE mark a token's place in a word
ASSOCIATES = 8  # teacher's tokens that an embedding starts from
ROWS = 1_024  # tokens processed at a time
MIN_PAIRS = 2  # pairs a token must occur in to be associated
MAX_TOKENS = 128  # of a text
RIDGE = 1.0  # the weight of a row's start, in texts that hold only its token
STEPS = 15  # of conjugate gradients


def tokens_by_id(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The tokens of a vocabulary in the order of their ids."""
    return [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]


def without_marker(token: str) -> str:
    """A token without the marker of its place in a word."""
    for marker in MARKERS:
        token = token.removeprefix(marker)
    return token


def stems(tokenizer: PreTrainedTokenizerBase, counts: ndarray) -> tuple[list[str], Tensor]:
    """What each token of a vocabulary is as a word, and which of them continue a word (V,).

    A token that begins a word is its stem, in the language that the tokens' counts (V,) are of; any other is
    itself.
    """
    tokens = tokens_by_id(tokenizer)
    texts = [without_marker(token) for token in tokens]
    marks = [token != text for token, text in zip(tokens, texts, strict=True)]
    first = not any(token.startswith("##") for token in tokens)  # the other two mark where a word begins
    begins = [mark == first or not text.isalnum() for mark, text in zip(marks, texts, strict=True)]
    whole = [(text, int(n)) for text, n, begin in zip(texts, counts, begins, strict=True) if begin]
    stem_words = stemmer(language_of({text.lower(): n for text, n in whole if text.isalnum()}))
    stemmed = iter(stem_words([text.lower() for text, _ in whole]))
    words = [next(stemmed) if begin else token for token, begin in zip(tokens, begins, strict=True)]
    return words, ~torch.tensor(begins)


def from_model(tokenizer: PreTrainedTokenizerBase, source: PreTrainedTokenizerBase, table: Tensor) -> Tensor:
    """Initial embeddings (V, w) for the tokenizer's tokens from the embedding table (T, w) behind the
    tokenizer `source`.

    A token that both have keeps its row; any other gets the mean row of the tokens that `source` splits it
    into.
    """
    if tokenizer.get_vocab() == source.get_vocab():
        return table[: len(tokenizer)]
    return torch.stack(
        [table[ids].mean(0) if ids else table.mean(0) for ids in source_ids(tokenizer, source)]
    )


def source_ids(tokenizer: PreTrainedTokenizerBase, source: PreTrainedTokenizerBase) -> list[list[int]]:
    """Each token of the tokenizer as ids of `source`: the same token where it has it, else those it splits
    the token's text into."""
    known = source.get_vocab()
    return [
        [known[token]]
        if token in known
        else source(without_marker(token), add_special_tokens=False)["input_ids"]
        for token in tokens_by_id(tokenizer)
    ]


def tokens_as_texts(tokenizer: PreTrainedTokenizerBase, source: PreTrainedTokenizerBase) -> list[ndarray]:
    """Each token of the tokenizer as a text of its own in ids of `source`, between its special tokens; (n_i,)
    int32 each."""
    first, *last = source("")["input_ids"]
    return [np.array([first, *ids, *last], np.int32) for ids in source_ids(tokenizer, source)]


def from_translations(
    initial: Tensor,
    tokenizer: PreTrainedTokenizerBase,
    teacher_tokenizer: PreTrainedTokenizerBase,
    table: Tensor,
    pairs: Rows,
) -> Tensor:
    """Initial embeddings (V, w) float32 for tokens of other languages, from the teacher's tokens in their
    translations. `initial` (V, w) are embeddings from the texts of the tokens themselves, and `table` (T, w)
    is the teacher's embedding table.

    First, a token s of the target side is associated with a teacher's token t of the source side as far as
    both occur in the same pairs: φ² = n(s, t)² / (n(s) n(t)) (Gale and Church 1991), n counting pairs; s
    starts as the mean of its best associates. A token that occurs on the source side too (names, digits, the
    teacher's language) keeps its own embedding by the share of pairs it has there. Second, all rows are
    fitted together, so that the mean row of a text equals the mean teacher row of its translation, by ridge
    regression towards that start: a token that always occurs next to another no longer takes the other's
    share.
    """
    rows = table.float().numpy()
    index = pairs.index[: pairs.training_count]
    teacher_counts = token_counts(pairs.sides[0], teacher_tokenizer, len(rows))
    source_counts, target_counts = (
        token_counts(side, tokenizer, len(initial)) for side in (pairs.sides[0], pairs.sides[1])
    )
    teacher_pairs = teacher_counts[index[:, 0]]
    target_pairs = target_counts[index[:, 1]]
    start = associated_rows(
        initial.float().numpy(), rows, teacher_pairs, source_counts[index[:, 0]], target_pairs
    )
    trained = pairs.sides[0].training_count
    texts = vstack([source_counts[:trained], target_pairs], format="csr")
    return torch.from_numpy(
        fitted_rows(start, rows, texts, vstack([teacher_counts[:trained], teacher_pairs], format="csr"))
    )


def token_counts(texts: Corpus, tokenizer: PreTrainedTokenizerBase, vocabulary_size: int) -> csr_matrix:
    """(n, vocabulary_size) float32: how often each token occurs in each text; special tokens count 0."""
    tokens = TokenPass(texts, tokenizer.backend_tokenizer, MAX_TOKENS, tokenizer.pad_token_id or 0).open()
    offsets = np.asarray(tokens.offsets)
    ids = np.asarray(tokens.ids[: offsets[-1]], np.int32)
    counts = csr_matrix((np.ones(len(ids), np.float32), ids, offsets), (len(offsets) - 1, vocabulary_size))
    counts.sum_duplicates()
    counts.data[np.isin(counts.indices, tokenizer.all_special_ids)] = 0
    counts.eliminate_zeros()
    return counts


def associated_rows(
    initial: ndarray, rows: ndarray, teacher: csr_matrix, source: csr_matrix, target: csr_matrix
) -> ndarray:
    """(V, w): for each token the mean of its ASSOCIATES best teacher rows, weighted by φ². initial (V, w),
    rows (T, w).

    `teacher` (n, T), `source` and `target` (n, V) count each token in each pair's texts. A mean is scaled
    to the average length of the rows it is made of, because a layer norm over sums with position embeddings
    depends on length.
    """
    teacher, source, target = (counts.sign() for counts in (teacher, source, target))
    together = target.T.tocsr() @ teacher
    seen = _pairs_with(target)
    teacher_seen = _pairs_with(teacher)
    share = seen / np.maximum(seen + _pairs_with(source), 1)
    share[seen < MIN_PAIRS] = 0
    out = initial.copy()
    lengths = np.linalg.norm(rows, axis=1)
    for begin in range(0, len(initial), ROWS):
        chunk = slice(begin, begin + ROWS)
        part = together[chunk]
        sizes = np.diff(part.indptr)
        expected = np.repeat(seen[chunk], sizes) * teacher_seen[part.indices]
        associations = part.data**2 / np.maximum(expected, 1)
        for row in np.flatnonzero(sizes * share[chunk]):
            span = slice(part.indptr[row], part.indptr[row + 1])
            best = np.argsort(-associations[span], kind="stable")[:ASSOCIATES]
            weights = associations[span][best]
            ids = part.indices[span][best]
            mean = weights @ rows[ids]
            length = (weights @ lengths[ids]) / weights.sum()
            mean *= length / max(float(np.linalg.norm(mean)), 1e-12)
            token = begin + int(row)
            out[token] = share[token] * mean + (1 - share[token]) * initial[token]
    return out


def fitted_rows(start: ndarray, rows: ndarray, texts: csr_matrix, teacher: csr_matrix) -> ndarray:
    """The table X (V, w) that minimizes Σ_t n_t ‖mean_t X − mean_t rows‖² + RIDGE ‖X − start‖², after STEPS
    of conjugate gradients.

    `texts` (n, V) and `teacher` (n, T) count each token in text t and in its translation, and n_t is the
    number of tokens in text t; `rows` are (T, w), and each of their columns is fitted by itself.
    """
    lengths = np.maximum(np.asarray(texts.sum(1), np.float32).ravel(), 1)
    teacher_lengths = np.maximum(np.asarray(teacher.sum(1), np.float32).ravel(), 1)
    weighted = (diags(lengths**-0.5) @ texts).tocsr()
    transposed = weighted.T.tocsr()
    wanted = (diags(lengths**0.5 / teacher_lengths) @ teacher).tocsr()
    squares = np.asarray(weighted.power(2).sum(0)).ravel()
    gram = LinearOperator(
        2 * (len(start),), lambda column: transposed @ (weighted @ column) + RIDGE * column, dtype=np.float32
    )
    inverse_diagonal = diags(1 / (squares + RIDGE).astype(np.float32))
    out = start.copy()
    for column in range(rows.shape[1]):
        error = wanted @ rows[:, column] - weighted @ start[:, column]
        out[:, column] += cg(gram, transposed @ error, M=inverse_diagonal, maxiter=STEPS)[0]
    return out


def _pairs_with(counts: csr_matrix) -> ndarray:
    """In how many pairs each token occurs, (vocabulary size,)."""
    return np.bincount(counts.indices, minlength=counts.shape[1]).astype(np.float64)
