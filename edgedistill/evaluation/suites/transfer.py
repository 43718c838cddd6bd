"""Transfer: logistic regression on frozen embeddings, by SentEval's protocol (Conneau and Kiela 2018). Needs
scikit-learn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from edgedistill.data import labelled_tasks
from edgedistill.errors import UserError, require
from edgedistill.evaluation.suites.cosines import Encoder, Floats, Ints, Measures, unit
from edgedistill.evaluation.suites.suite_files import Find, Task, TaskData, columns, either

# C, the inverse of the L2 penalty. SentEval's 2⁻² to 2³ hardly penalise: on our students' embeddings all six
# give the same classifier.
STRENGTHS = tuple(4.0**t for t in range(-5, 1))
SEED = 1111  # of the folds; SentEval's
SPLITS = ("train", "dev", "test")
Labels = npt.NDArray[np.str_]


class TransferFolder(Task):
    """A folder of labelled texts or pairs with train, dev and test, .tsv or .tsv.gz."""

    folder: str = Field(description="next to suite.yaml, else under --data")
    label: str = "label"
    texts: list[str] = Field(
        ["sentence"], min_length=1, max_length=2, description="the column of the text, or the two of a pair"
    )
    folds: int | None = Field(
        None, ge=3, description="cross-validate over all files together, for sets without an official split"
    )
    refit: bool = Field(
        False,
        description="after choosing C on dev, train on train and dev together; for sets whose dev was split "
        "off the official train",
    )

    @model_validator(mode="after")
    def _one_protocol(self) -> TransferFolder:
        if self.folds is not None and self.refit:
            raise ValueError("`refit` goes with a fixed split, `folds` with none; leave one out")
        return self

    def read(self, find: Find) -> Labelled:
        """Read the splits. Raises UserError for a missing file or column, no rows, and labels that no
        classifier can be trained on."""
        require("sklearn", "edgedistill bench on a transfer suite", "train")  # fail before encoding
        folder = find(self.folder)
        cells = []
        split = []
        for number, name in enumerate(SPLITS):
            path = either(folder, f"{name}.tsv")
            table = list(columns(path, [self.label, *self.texts]))
            if not table:
                raise UserError(f"{path}: no rows; give --data DIR with the whole set")
            cells += table
            split += [number] * len(table)
        labels, *sides = map(list, zip(*cells, strict=True))
        trained = labels[: split.count(0)] if self.folds is None else labels
        labelled_tasks.ordered_labels(trained, str(folder))
        counts = Counter(trained)
        rare = min(labels, key=lambda label: counts[label])
        if counts[rare] < (self.folds or 1):
            raise UserError(
                f"{folder}: label {rare!r} has {counts[rare]} rows to train on, {self.folds or 1} are "
                "needed; fix the set, or give fewer folds"
            )
        return Labelled(sides, np.array(labels), np.array(split), self)


@dataclass(frozen=True)
class Labelled(TaskData):
    """One task: the n texts of one column, or of two for pairs, their labels, and the split of each row."""

    sides: list[list[str]]
    labels: Labels  # (n,)
    split: Ints  # (n,) into SPLITS
    protocol: TransferFolder

    @property
    def texts(self) -> list[str]:
        return [text for side in self.sides for text in side]

    def score(self, encoder: Encoder) -> Measures:
        """`accuracy`, the chosen `C`, the number of `rows` and `classes`; with cross-validation also each
        fold's accuracy in `folds`."""
        x = features([encoder.text(side) for side in self.sides])
        labels = self.labels
        folds = self.protocol.folds
        splits: Any = [[np.flatnonzero(self.split == number) for number in range(3)]]
        if folds is not None:
            splits = _folds(labels, folds)
        refit = self.protocol.refit or folds is not None
        fits = [_fit_and_test(x, labels, train, dev, test, refit) for train, dev, test in splits]
        accuracies, strengths = (list(values) for values in zip(*fits, strict=True))
        counts = {"rows": len(labels), "classes": len(np.unique(labels))}
        if folds is None:
            return {"accuracy": accuracies[0], "C": strengths[0], **counts}
        return {"accuracy": float(np.mean(accuracies)), "C": strengths, **counts, "folds": accuracies}


def features(sides: list[Floats]) -> Floats:
    """Return the classifier's input: a text's embedding u (n, d), or for a pair |u − v| and u ⊙ v
    concatenated (n, 2d).

    Unit rows are scaled by √d, so that every dimension has mean square 1 for any encoder: a penalty then has
    the same effect on all, and products weigh as much as differences.
    """
    u, *others = (unit(embeddings) * np.float32(embeddings.shape[1] ** 0.5) for embeddings in sides)
    if not others:
        return u
    return np.concatenate([np.abs(u - others[0]), u * others[0]], axis=1)


def _folds(labels: Labels, count: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (train, dev, test) rows: each fold is tested once, and C is chosen on the fold after it.

    SentEval chooses C by a nested cross-validation of ten folds, a hundred times the work for the same few
    penalties.
    """
    selection = require("sklearn.model_selection", "edgedistill bench on a transfer suite", "train")
    cut = selection.StratifiedKFold(n_splits=count, shuffle=True, random_state=SEED)
    folds = [test for _, test in cut.split(labels, labels)]
    for number, test in enumerate(folds):
        dev = folds[(number + 1) % count]
        yield np.setdiff1d(np.arange(len(labels)), np.concatenate([dev, test])), dev, test


def _fit_and_test(
    x: Floats, labels: Labels, train: Ints, dev: Ints, test: Ints, refit: bool
) -> tuple[float, float]:
    """Return (accuracy on test, the C with the best accuracy on dev). Of equals the smallest C is taken, the
    strongest penalty."""
    models = {strength: _fit(x[train], labels[train], strength) for strength in STRENGTHS}
    best = max(models, key=lambda strength: (models[strength].score(x[dev], labels[dev]), -strength))
    rows = np.concatenate([train, dev])
    model = _fit(x[rows], labels[rows], best) if refit else models[best]
    return float(model.score(x[test], labels[test])), best


def _fit(x: Floats, labels: Labels, strength: float) -> Any:
    linear = require("sklearn.linear_model", "edgedistill bench on a transfer suite", "train")
    return linear.LogisticRegression(C=strength, max_iter=1000).fit(x, labels)
