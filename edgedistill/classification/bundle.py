"""The opened bundle of a classifier: items in, predicted labels and probabilities out, without torch; and the
measure that compares its logits with torch's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from edgedistill.errors import UserError, border
from edgedistill.runtime import bundle
from edgedistill.runtime.arguments import listed, our_names
from edgedistill.runtime.bundle import Bundle
from edgedistill.runtime.similarity import Measure
from edgedistill.session import progress_bar

Item = str | Sequence[str]  # what a classifier labels: a text, or a pair of texts


class Classification(NamedTuple):
    """The predicted labels of n items: the most probable label of each, and the probabilities of all labels,
    (n, C) float32, in the order of `Bundle.labels`. The rows of these sum to 1."""

    labels: list[str]
    probabilities: np.ndarray


def softmax(logits: np.ndarray) -> np.ndarray:
    """(n, C) logits -> (n, C) probabilities, rows summing to 1."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def probability_difference(logits: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n, C) and (n, C) logits -> (n,): the largest absolute difference between the probabilities of a label,
    for each item."""
    return np.asarray(np.abs(softmax(logits.astype(np.float64)) - softmax(others.astype(np.float64))).max(1))


PROBABILITY = Measure(
    rows="logits",
    limits="probability_within",
    item="item",
    name="apart",
    worst="max",
    explained="item i (a text, or a pair) -> ids i of each of its texts (unpadded, truncated to {} tokens) "
    "-> logits i by torch in float32",
    about="difference of probabilities",
    fact="has a probability that differs by {value:.{digits}f} from torch's{where}, {precision} must stay "
    "within {threshold}",
    best=0,
    sign=-1,
    between=probability_difference,
    required=lambda precision: precision.probability_difference,
    required_drift=lambda precision: 0,
)


class ClassifierBundle(Bundle):
    """An opened bundle that labels texts or, where `pair` is true, pairs of texts, with one of `labels`."""

    measure = PROBABILITY

    def __repr__(self) -> str:
        items = "pair" if self.pair else "text"
        return f"<Bundle {self.manifest['name']}:{self.precision}, {len(self.labels)} labels per {items}>"

    @border()
    def encode(self, *arguments: Any, **options: Any) -> np.ndarray:
        """Raises UserError: a classifier has no embeddings."""
        raise UserError(
            f"{self.manifest['name']}: a classifier ({', '.join(self.labels)}), which has no embeddings; "
            "call classify"
        )

    @border()
    def classify(
        self, items: Iterable[Item], batch_tokens: int | None = None, progress: bool = False, **others: Any
    ) -> Classification:
        """Label n items: (labels, probabilities), a list of n and (n, C) float32.

        items: any iterable, as for `encode`, of strings or of pairs such as ("A text.", "Another one."). The
        columns of the probabilities are in the order of `labels`. batch_tokens:, progress:, others: as for
        `encode`.

        Raises UserError for an item that is neither, and names its index.
        """
        given = {"batch_tokens": batch_tokens, "progress": progress}
        probabilities = softmax(self.logits(items, **our_names("classify", others, given)))
        return Classification([self.labels[at] for at in probabilities.argmax(1).tolist()], probabilities)

    def logits(
        self, items: Iterable[Item], batch_tokens: int | None = None, progress: bool = False
    ) -> np.ndarray:
        """(n, C) float32, the classifier head's outputs before softmax. Raises as `classify`."""
        items = listed(items, "items", 1 + self.pair)
        logits = np.zeros((len(items), len(self.labels)), np.float32)
        with progress_bar(len(items), progress, "classifying", "items") as advance:
            for start in range(0, len(items), bundle.WINDOW):
                texts = self._columns(items[start : start + bundle.WINDOW], start)
                ids = [self._tokenize(each, start) for each in texts]
                self._run([*ids], logits[start : start + len(ids[0])], batch_tokens, advance)
        return logits

    def tokenize_items(self, items: Sequence[Item], first: int = 0) -> list[list[np.ndarray]]:
        """Return the token ids of each item: those of its text, or of its two texts. Errors count from
        `first`, the index of items[0]."""
        columns = self._columns(listed(items, "items", 1 + self.pair), first)
        return [list(row) for row in zip(*(self._tokenize(each, first) for each in columns), strict=True)]

    def _columns(self, items: list[Item], first: int) -> list[list[str]]:
        """The first texts of all items and, for pairs, the second ones."""
        rows = []
        for at, item in enumerate(items):
            texts = list(item) if isinstance(item, Iterable) and not isinstance(item, str) else [item]
            if len(texts) != 1 + self.pair or not all(isinstance(text, str) for text in texts):
                wanted, kind = ("a pair of strings", "pairs") if self.pair else ("a string", "texts")
                raise UserError(
                    f"items[{first + at}]: not {wanted}; {self.manifest['name']} classifies {kind}"
                )
            rows.append(texts)
        return [[texts[column] for texts in rows] for column in range(1 + self.pair)]

    def logits_ids(self, ids: Sequence[Sequence[np.ndarray]], batch_tokens: int | None = None) -> np.ndarray:
        """(n, C) float32 of items given as token ids, as `tokenize_items` returns them."""
        columns: list[Sequence[np.ndarray]] = [
            [item[column] for item in ids] for column in range(1 + self.pair)
        ]
        return self._rows(columns, len(self.labels), batch_tokens)

    def golden_ids(self, texts: list[Any], roles: list[str]) -> list[Any]:
        return [[row.tolist() for row in item] for item in self.tokenize_items(texts)]

    def golden_rows(self, ids: list[Any], batch_tokens: int | None) -> np.ndarray:
        items = [[np.array(row, np.int64) for row in item] for item in ids]
        return self.logits_ids(items, None if batch_tokens is None else 2 * batch_tokens)
