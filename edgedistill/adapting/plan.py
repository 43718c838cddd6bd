"""Somebody's texts, pairs and minutes -> the recipe that adapts a student to them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files, recipe, run
from edgedistill.errors import UserError
from edgedistill.fitting import search, texts
from edgedistill.planning import training_time
from edgedistill.planning.cost import duration
from edgedistill.recipe import recorded
from edgedistill.session import Session
from edgedistill.teacher.embedder import open_teacher
from edgedistill.training import teacher_cache
from edgedistill.training.load_models import quickest, with_weights
from edgedistill.training.open_recipe import open_recipe

FEWEST = 50  # texts that a student can be adapted to, and measured on
BATCH = 64
LONGEST = 24  # mean words from which on texts are cut into sentences, too
PASSAGES_PER_WORD = 1 / 16  # about how many sentences and runs of them a text has for each of its words
EPOCHS, FEWEST_EPOCHS = 8.0, 1.5  # over few texts; over so many that not all are taken
FEWEST_STEPS, MOST_STEPS = 200, 2_000
LEAST_STEPS = 20  # for which there must be time
AFTER_TRAINING = 0.12  # of the minutes: export, comparison, and steps that take longer than those timed
WHOLE_SHARE = 0.3  # of the texts trained on that are whole, where not all are taken
# The weight of what the student is to embed as before, and its initial weights' share of the result, so that
# little is forgotten: see bench/LOG.md.
REHEARSAL, INITIAL_SHARE = 0.5, 0.3
# So that nine texts in ten are read to their end; longer ones take too long to learn from.
TOKENS_PER_WORD, MOST_TOKENS = 1.4, 256


@dataclass(frozen=True)
class Request:
    """What is asked for.

    `student` is a shipped name, a bundle or a run, `texts` are globs, `out` is the bundle's folder, and runs
    lie in `runs`. `pairs` are a table of queries and the texts that answer them. `teacher` is another than
    the student's own. All of it may take about `minutes`, and training at most so many `steps`. With
    `overwrite`, an earlier run and bundle are replaced.
    """

    student: str
    texts: list[str]
    out: Path
    runs: Path = Path("runs")
    column: str | None = None
    teacher: recipe.Teacher | None = None
    minutes: float = 10.0
    steps: int = MOST_STEPS
    precisions: tuple[str, ...] = ("int8",)
    overwrite: bool = False
    pairs: search.Pairs | None = None

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.runs / self.out.name


def planned(request: Request, source: run.Run, session: Session, started: float) -> recipe.Recipe:
    """The recipe, with as many steps as the texts ask for and there is time for. Raises UserError where there
    is time for next to nothing."""
    section = texts.files_section(request.texts, request.column, session.data)
    own = texts.read(section, FEWEST, session)
    if request.pairs is not None:
        request = replace(request, pairs=search.counted(request.pairs, session))
    words = texts.word_counts(own.texts(range(len(own))))
    wrapped = "; lines that are wrapped are read as paragraphs" if "unit" in section else ""
    session.log(f"{len(own):,} texts of {words.mean():.0f} words on average{wrapped}")
    teacher = recorded.teacher(source.recipe, request.teacher, request.student)
    longest = teacher.model_copy(update={"max_tokens": MOST_TOKENS})
    whole = with_weights(open_teacher(longest, session), "--teacher")
    known = texts.whole_words(whole.tokenizer, texts.sample(own))
    if known < texts.OTHER:
        advice = "to agree with such a teacher is worth little; another --teacher may know the language"
        session.log(f"weak: {texts.unknown_language(known)}; {advice}")
    tokens = tokens_to_read(words, source.max_tokens, whole.max_tokens)
    if tokens > source.max_tokens:
        fact = f"the student will read up to {tokens} tokens of each ({source.max_tokens} before)"
        session.log(f"the texts are long: {fact}")
    teacher = quickest(teacher.model_copy(update={"max_tokens": max(tokens, teacher.max_tokens)}), session)

    def timed(steps: int) -> tuple[recipe.Recipe, float]:
        """The recipe of at most so many steps, and about how many seconds it takes here."""
        spec = adaptation_recipe(replace(request, steps=steps), source, teacher, section, words, tokens)
        opened = open_recipe(spec, session)
        missing = teacher_cache.passes(opened, session)
        return spec, sum(training_time.estimate_seconds(opened, missing, session).values())

    session.log("measuring how fast teacher and student are here")
    spec, seconds = timed(request.steps)
    # Of fewer texts, more are whole and long: their steps are timed again; and those on pairs stay as many.
    for _ in range(2 if request.pairs is None else 3):
        left = 60 * (1 - AFTER_TRAINING) * request.minutes - (time.perf_counter() - started)
        if seconds <= left:
            break
        wanted = spec.distilling[0].steps or 0
        steps = int(wanted * max(0.0, left) / seconds)
        if steps < LEAST_STEPS:
            needed = 1.2 * seconds * LEAST_STEPS / wanted + time.perf_counter() - started
            more = math.ceil(needed / (6 * (1 - AFTER_TRAINING))) / 10
            fact = f"only {steps} training steps fit on this machine, at least {LEAST_STEPS} are needed"
            raise UserError(f"--minutes {request.minutes:g}: {fact}; give --minutes {more:g}")
        session.log(f"{wanted:,} steps would take about {duration(seconds)}; there is time for {steps:,}")
        spec, seconds = timed(steps)
    session.log(f"{spec.distilling[0].steps:,} steps, about {duration(seconds)}")
    return spec


def resumed(request: Request, source: run.Run, file: Path, session: Session) -> recipe.Recipe:
    """The recipe of an adaptation that was interrupted, with all that the request decides as it asks now: a
    run's recipe records no folders, and `train` goes on with the same recipe only. Raises UserError where
    pairs were asked for and are not now, or the other way round."""
    planned = recipe.read(file).model_dump(mode="json", by_alias=True)
    texts_stage, *behind = planned["stages"]
    if bool(behind) != (request.pairs is not None):
        fact = f"planned {'with' if behind else 'without'} --pairs"
        raise UserError(f"{file.parent}: {fact}; resume it so, give another --out, or add --overwrite")
    if request.pairs is not None:
        pairs = search.relative(request.pairs, session).section
        behind[0]["tuples"] |= {key: pairs[key] for key in ("files", "columns")}
    texts_stage["steps"] = min(texts_stage["steps"], request.steps)
    planned["teacher"]["model"] = recorded.teacher(source.recipe, request.teacher, request.student).model
    section = texts.files_section(request.texts, request.column, session.data)
    planned["corpus"] |= {"column": None, **section}
    planned["student"]["weights"] = request.student
    return recipe.parse(planned, str(file))


def tokens_to_read(words: np.ndarray, student: int, teacher: int) -> int:
    """How many tokens of a text the adapted student reads: more than before where the texts are longer and
    the teacher reads them.

    `words` (n,) are those of the texts; `student` and `teacher` read so many tokens.
    """
    needed = math.ceil(float(np.quantile(words, 0.9)) * TOKENS_PER_WORD / 32) * 32
    return max(student, min(needed, teacher, MOST_TOKENS))


def adaptation_recipe(
    request: Request,
    source: run.Run,
    teacher: recipe.Teacher,
    section: dict[str, Any],
    words: np.ndarray,
    tokens: int,
) -> recipe.Recipe:
    """The recipe that adapts a finished student (`source`) to texts. It is an ordinary one: `train` runs it
    too.

    `section` is the corpus of all the texts, each of which has so many `words` (n,). The student reads so
    many `tokens` of a text. Of very many texts so many are drawn that the request's steps see each of them
    FEWEST_EPOCHS times.
    """
    mean_words, count = float(words.mean()), len(words)
    cut = mean_words >= LONGEST
    held_out = search.held_out(count, 10)
    whole, corpus = count - held_out, {**section, "held_out": held_out}
    rows = int(whole * (1 + (mean_words * PASSAGES_PER_WORD if cut else 0)))
    if cut:
        corpus["passages"] = {}
    most_rows = int(request.steps * BATCH / FEWEST_EPOCHS)
    if rows > most_rows:
        rows = most_rows
        whole = min(whole, int(WHOLE_SHARE * rows) if cut else rows)
        corpus["limit"] = whole + held_out
        if cut:
            corpus["passages"] = {"texts": rows - whole}
    stage: dict[str, Any] = {
        "name": "adapt",
        "objective": {"kind": "cosine"},
        "batch": min(BATCH, rows),
        "max_tokens": tokens,
        "steps": round(min(request.steps, max(FEWEST_STEPS, EPOCHS * rows / BATCH))),
        "initial_share": INITIAL_SHARE,
        "rehearsal": REHEARSAL,
        "learning_rate": 1e-3 if source.kind == "static" else 2e-3,
    }
    if source.kind != "static":
        stage["optimizer"] = "muon"
    student: dict[str, Any] = {"weights": request.student}
    if tokens != source.max_tokens:
        student["max_tokens"] = tokens
    described = {
        "name": request.out.name,
        "about": f"{files.portable(request.student)}, adapted to its user's texts.",
        "teacher": teacher.model_dump(exclude_defaults=True),
        "corpus": corpus,
        "student": student,
        "stages": search.stages(stage, request.pairs),
    }
    return recipe.parse(described, "adapt")
