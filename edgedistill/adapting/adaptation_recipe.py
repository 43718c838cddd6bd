"""The recipe of an adaptation: how many steps, over how many texts, chosen by their number and by what the
minutes allow on this machine."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from edgedistill import recipe, run
from edgedistill.errors import UserError
from edgedistill.planning import training_time
from edgedistill.planning.cost import duration
from edgedistill.session import Session
from edgedistill.training.open_recipe import Opened, open_recipe

BATCH = 64
LONGEST = 24  # mean words from which on texts are cut into sentences, too
PASSAGES_PER_WORD = 1 / 16  # about how many sentences and runs of them a text has for each of its words
EPOCHS, FEWEST_EPOCHS = 8.0, 1.5  # over few texts; over so many that time decides
FEWEST_STEPS, MOST_STEPS = 200, 2_000
LEAST_STEPS = 20  # for which there must be time
WHOLE_SHARE = 0.3  # of the texts trained on that are whole, where there is no time for all
DOCUMENTATION_SHARE = 0.15  # of the texts trained on
INITIAL_SHARE = 0.45  # of the weights, so that little is forgotten: see bench/LOG.md
# So that nine texts in ten are read to their end; longer ones take too long to learn from.
TOKENS_PER_WORD, MOST_TOKENS = 1.4, 256
HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 150
# Of the minutes, for export and comparison, and for steps that take longer than those that were timed.
AFTER_TRAINING = 0.12


@dataclass(frozen=True)
class Adaptation:
    """What is adapted, and to what.

    `corpus` is the recipe's section of the texts, `words` their numbers of words (n,). The student reads
    `max_tokens` of a text.
    """

    name: str
    weights: str
    source: run.Run
    teacher: recipe.Teacher
    corpus: dict[str, Any]
    words: np.ndarray
    max_tokens: int

    def recipe(self, most: Limits | None = None) -> recipe.Recipe:
        """The recipe, within limits. It is an ordinary one: `train` runs it too."""
        count, mean_words = len(self.words), float(self.words.mean())
        cut = mean_words >= LONGEST
        held_out = max(10, min(MOST_HELD_OUT, int(HELD_OUT_SHARE * count)))
        whole = count - held_out
        rows = int(whole * (1 + (mean_words * PASSAGES_PER_WORD if cut else 0)))
        corpus = {**self.corpus, "held_out": held_out}
        if cut:
            corpus["passages"] = {}
        if most is not None and rows * (1 + DOCUMENTATION_SHARE) > most.rows:
            rows = int(most.rows / (1 + DOCUMENTATION_SHARE))
            whole = min(whole, int(WHOLE_SHARE * rows) if cut else rows)
            corpus["limit"] = whole + held_out
            if cut:
                corpus["passages"] = {"texts": rows - whole}
        corpus["documentation_texts"] = max(500, int(DOCUMENTATION_SHARE * rows))
        steps = round(min(MOST_STEPS, max(FEWEST_STEPS, EPOCHS * rows / BATCH)))
        stage: dict[str, Any] = {
            "name": "adapt",
            "objective": {"kind": "cosine"},
            "batch": min(BATCH, rows),
            "max_tokens": self.max_tokens,
            "steps": steps if most is None else min(steps, most.steps),
            "initial_share": INITIAL_SHARE,
            "learning_rate": 1e-3 if self.source.kind == "static" else 2e-3,
        }
        if self.source.kind != "static":
            stage["optimizer"] = "muon"
        student: dict[str, Any] = {"weights": self.weights}
        if self.max_tokens != self.source.max_tokens:
            student["max_tokens"] = self.max_tokens
        described = {
            "name": self.name,
            "about": f"{self.weights}, adapted to its user's texts.",
            "teacher": self.teacher.model_dump(exclude_defaults=True),
            "corpus": corpus,
            "student": student,
            "stages": [stage],
        }
        return recipe.parse(described, "adapt")


class Limits(NamedTuple):
    """What there is time for: texts to train on, with passages and documentation; steps."""

    rows: int
    steps: int


def limits(seconds: float, per_text: float, per_sample: float) -> Limits:
    """What fits into so many seconds. per_text: the teacher's seconds for a text; per_sample: a training
    step's for one of its texts.

    Every text is embedded once and trained on FEWEST_EPOCHS times or more.
    """
    rows = int(seconds / (per_text + FEWEST_EPOCHS * per_sample))
    return Limits(rows, max(0, int((seconds - rows * per_text) / (BATCH * per_sample))))


def seconds_for(steps: int, per_text: float, per_sample: float) -> float:
    """The fewest seconds into which so many steps fit, by `limits`."""
    return steps * BATCH * (per_text + FEWEST_EPOCHS * per_sample) / FEWEST_EPOCHS


def tokens_to_read(words: np.ndarray, student: int, teacher: int) -> int:
    """How many tokens of a text the adapted student reads: more than before where the texts are longer and
    the teacher reads them.

    words (n,): of the texts. student, teacher: how many tokens they read.
    """
    needed = math.ceil(float(np.quantile(words, 0.9)) * TOKENS_PER_WORD / 32) * 32
    return max(student, min(needed, teacher, MOST_TOKENS))


def affordable(adaptation: Adaptation, minutes: float, started: float, session: Session) -> recipe.Recipe:
    """The recipe that the minutes allow on this machine, by the speed of teacher and student on samples of
    the texts.

    started: when the adaptation began, by time.perf_counter(). Raises UserError where there is time for next
    to nothing.
    """

    def left() -> float:
        """The seconds that are left for teacher and training."""
        return max(0.0, 60 * (1 - AFTER_TRAINING) * minutes - (time.perf_counter() - started))

    session.log("measuring how fast teacher and student are here")
    opened = open_recipe(adaptation.recipe(), session)
    for warning in opened.warnings:
        session.log(f"warning: {warning}")
    missing, per_text, per_sample = _speed(opened, session)
    wanted = opened.spec.distilling[0].steps or 0
    most = limits(left(), per_text, per_sample)
    if most.steps < LEAST_STEPS:
        fact = f"only {most.steps} training steps fit on this machine, at least {LEAST_STEPS} are needed"
        needed = 1.2 * seconds_for(LEAST_STEPS, per_text, per_sample) + time.perf_counter() - started
        more = math.ceil(needed / (6 * (1 - AFTER_TRAINING))) / 10
        raise UserError(f"--minutes {minutes:g}: {fact}; give --minutes {more:g}")
    if most.steps >= wanted:
        return adaptation.recipe(most)
    # The texts that are drawn are other ones, more of them whole and long, so their steps are timed again.
    drawn, again, sample = _speed(open_recipe(adaptation.recipe(most), session), session)
    most = Limits(most.rows, max(LEAST_STEPS, int((left() - drawn * again) / (BATCH * sample))))
    whole = opened.texts.training_count if opened.texts is not None else 0
    would = duration(missing * per_text + wanted * BATCH * per_sample)
    fewer = f"{most.rows:,} of {whole:,} texts and parts of texts, and " if most.rows < whole else ""
    allowed = f"there is time for {fewer}{most.steps:,} steps"
    session.log(f"{wanted:,} steps over all texts would take about {would}; {allowed}")
    return adaptation.recipe(most)


def _speed(opened: Opened, session: Session) -> tuple[int, float, float]:
    """(texts that the teacher has still to embed, its seconds for one, the student's for one in training)."""
    missing = training_time.texts_to_embed(opened, session)
    seconds = training_time.estimate_seconds(opened, missing, session)
    count = sum(each.missing for each in missing)
    per_sample = seconds["student"] / training_time.training_samples(opened)
    return count, seconds["teacher"] / max(1, count), per_sample
