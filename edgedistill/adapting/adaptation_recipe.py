"""The recipe of an adaptation: how many steps, which other texts, chosen by the number of texts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from edgedistill import recipe, run
from edgedistill.adapting.own_texts import OwnTexts

BATCH = 64
LONGEST = 24  # mean words from which on texts are cut into sentences, too
PASSAGES_PER_WORD = 1 / 16  # about how many sentences and runs of them a text has for each of its words
EPOCHS, FEWEST_EPOCHS = 8.0, 1.5  # over few texts; over so many that time decides
FEWEST_STEPS, MOST_STEPS = 200, 2_000
WHOLE_SHARE = 0.3  # of the texts trained on that are whole, where there is no time for all
DOCUMENTATION_SHARE = 0.15  # of the texts trained on
INITIAL_SHARE = 0.45  # of the weights, so that little is forgotten: see bench/LOG.md
TOKENS_PER_WORD, MOST_TOKENS = (
    1.4,
    256,
)  # so that nine texts in ten are read to their end; longer ones take too long to learn from
HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 150


class Choices(NamedTuple):
    """What the user chose. name: of the run; weights, texts, column: as the recipe takes them; teacher: of
    the texts; max_tokens: of the student.
    """

    name: str
    weights: str
    texts: list[str]
    column: str
    teacher: recipe.Teacher
    max_tokens: int


class Limits(NamedTuple):
    """What there is time for. rows: texts to train on, with passages and documentation; steps."""

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


def tokens_to_read(own: OwnTexts, student: int, teacher: int) -> int:
    """How many tokens of a text the adapted student reads: more than before where the texts are longer and
    the teacher reads them.

    student, teacher: how many they read.
    """
    needed = math.ceil(own.long_words * TOKENS_PER_WORD / 32) * 32
    return max(student, min(needed, teacher, MOST_TOKENS))


def adaptation_recipe(
    choices: Choices, own: OwnTexts, source: run.Run, most: Limits | None = None
) -> recipe.Recipe:
    """The recipe that adapts a finished student (`source`) to texts like `own`. It is an ordinary one:
    `train` runs it too."""
    cut = own.words >= LONGEST
    held_out = max(10, min(MOST_HELD_OUT, int(HELD_OUT_SHARE * own.texts)))
    whole = own.texts - held_out
    rows = int(whole * (1 + (own.words * PASSAGES_PER_WORD if cut else 0)))
    corpus: dict[str, Any] = {
        "texts": choices.texts,
        "column": choices.column,
        "unit": own.unit,
        "held_out": held_out,
    }
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
        "max_tokens": choices.max_tokens,
    }
    stage["steps"] = steps if most is None else min(steps, most.steps)
    stage["initial_share"] = INITIAL_SHARE
    stage |= (
        {"learning_rate": 1e-3} if source.kind == "static" else {"optimizer": "muon", "learning_rate": 2e-3}
    )
    described = {
        "name": choices.name,
        "about": f"{choices.weights}, adapted to its user's texts.",
        "teacher": choices.teacher.model_dump(exclude_defaults=True),
        "corpus": corpus,
        "student": {"weights": choices.weights}
        | ({} if choices.max_tokens == source.max_tokens else {"max_tokens": choices.max_tokens}),
        "stages": [stage],
    }
    return recipe.parse(described, "adapt")
