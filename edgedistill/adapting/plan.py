"""Somebody's texts, pairs and minutes -> the recipe that adapts a student to them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files, recipe, run
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.fitting import queries, shapes, texts
from edgedistill.planning import training_time
from edgedistill.planning.cost import duration
from edgedistill.recipe import recorded
from edgedistill.session import Session
from edgedistill.teacher.embedder import open_teacher
from edgedistill.training.initial_student import finished_student
from edgedistill.training.load_models import quickest, with_weights

BATCH = 64
LONGEST = 24  # mean words from which on texts are cut into sentences, too
PASSAGES_PER_WORD = 1 / 16  # about how many sentences and runs of them a text has for each of its words
WORDS_OF_A_PASSAGE = 24
EPOCHS, FEWEST_EPOCHS = 8.0, 1.5  # over few texts; over so many that not all are taken
FEWEST_STEPS, MOST_STEPS = 200, 2_000
TEACHER_S = 2.0  # for measuring the teacher's speed
BESIDE_S = 25.0  # of a processor, for all that is neither its work nor training
MOST_BUSY = 4.0  # times as long as with a processor of its own; more is a machine that slept
LEAST_S = 20.0  # of training, after which a student may be better
TEACHER_SHARE = 0.45  # of the minutes that are left, at most, that it embeds
WHOLE_SHARE = 0.3  # of the texts trained on that are whole, where not all are taken
# So that nine texts in ten are read to their end; longer ones take too long to learn from.
TOKENS_PER_WORD, MOST_TOKENS = 1.4, 256


@dataclass(frozen=True)
class Request:
    """What is asked for.

    `student` is a shipped name, a bundle or a run, `texts` are globs, `out` is the bundle's folder, and runs
    lie in `runs`. `pairs` are a table of queries and the texts that answer them. `teacher` is another than
    the student's own, `also` a second one beside it. All of it may take about `minutes` from when it `began`,
    by time.perf_counter; with `steps` these end the training, not the clock. With `overwrite`, an earlier run
    and bundle are replaced.
    """

    student: str
    texts: list[str]
    out: Path
    runs: Path = Path("runs")
    column: str | None = None
    teacher: recipe.Teacher | None = None
    minutes: float = 10.0
    steps: int | None = None
    precisions: tuple[str, ...] = ("int8",)
    overwrite: bool = False
    pairs: queries.Pairs | None = None
    also: recipe.Teacher | None = None
    began: float = field(default_factory=time.perf_counter)

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.runs / self.out.name

    @property
    def suite(self) -> Path:
        """The folder of the suite of held-out queries."""
        return self.out.with_name(f"{self.out.name}-suite")


def planned(request: Request, source: run.Run, session: Session) -> recipe.Recipe:
    """The recipe, with as many texts as the teacher embeds in its share of the minutes. It says how many
    steps there are at most; `timed` gives it the minutes that are left. Raises UserError where there is time
    for too few texts."""
    section = texts.files_section(request.texts, request.column, session.data)
    corpus = texts.read(section, texts.FEWEST, session)
    if request.pairs is not None:
        request = replace(request, pairs=queries.counted(request.pairs, session))
    words = texts.word_counts(corpus.texts(range(len(corpus))))
    teacher = recorded.teacher(source.recipe, request.teacher, request.student)
    longest = teacher.model_copy(update={"max_tokens": MOST_TOKENS})
    whole = with_weights(open_teacher(longest, session), "--teacher")
    known = texts.whole_words(whole.tokenizer, texts.sample(corpus))
    if known < texts.OTHER:
        session.log(
            f"weak: {texts.unknown_language(known)}; a student learns little from such a teacher; another "
            "--teacher may know the language"
        )
    tokens = tokens_to_read(words, source.max_tokens, whole.max_tokens)
    if tokens > source.max_tokens:
        session.log(
            f"the texts are long: the student will read up to {tokens} tokens of each ({source.max_tokens} "
            "before)"
        )
    teacher = quickest(teacher.model_copy(update={"max_tokens": max(tokens, teacher.max_tokens)}), session)
    teachers = [teacher]
    if request.also is not None:
        teachers.append(quickest(request.also.model_copy(update={"max_tokens": teacher.max_tokens}), session))
    most = math.inf if request.steps is not None else _most_rows(request, teachers, corpus, words, session)
    described = adaptation_recipe(request, source, teacher, section, words, tokens, most)
    needs_general = False  # texts that a map to the student's space is fitted on
    if finished_student.needs_new_head(recipe.parse(described, "adapt"), source, whole.dims):
        session.log(f"{request.student} keeps its own space: the teacher's embeddings are rotated to it")
        needs_general = True
        described = shapes.in_own_space(described, source.dims, whole.dims)
    if others := [second.model_dump(exclude_defaults=True) for second in teachers[1:]]:
        described["targets"] = {**shapes.targets(source.dims, math.inf), "teachers": others}
        needs_general |= min(len(corpus), described["rows"].get("limit", len(corpus))) < 2 * source.dims
    if needs_general:
        described["rows"]["documentation_texts"] = texts.LEAST_GENERAL
    return recipe.parse(described, "adapt")


def _most_rows(
    request: Request, teachers: list[recipe.Teacher], corpus: Corpus, words: np.ndarray, session: Session
) -> float:
    """How many whole texts and passages the teachers can embed in their share of the minutes. Raises
    UserError for fewer than FEWEST."""
    session.log("measuring how fast the teacher is here")
    since, worked = time.perf_counter(), time.process_time()
    opened, sample = [open_teacher(teacher, session) for teacher in teachers], training_time.sample(corpus)
    seconds = sum(
        training_time.seconds_per_text(teacher, sample, session.device, TEACHER_S) for teacher in opened
    )
    busy = (time.perf_counter() - since) / max(0.01, time.process_time() - worked)
    beside = BESIDE_S * min(MOST_BUSY, max(1.0, busy))
    mean = float(words.mean())
    if mean >= LONGEST:
        seconds *= WHOLE_SHARE + (1 - WHOLE_SHARE) * WORDS_OF_A_PASSAGE / mean
    left = 60 * request.minutes - beside - (time.perf_counter() - request.began)
    rows = left * TEACHER_SHARE / seconds
    if request.pairs is not None:
        rows -= 2 * request.pairs.rows
    if rows >= texts.FEWEST:
        return rows
    needed = request.minutes + (texts.FEWEST - rows) * seconds / 60 / TEACHER_SHARE
    fact = f"the teacher embeds {1 / seconds:.0f} texts/s here and the rest takes {beside:.0f} s, so there is"
    way_out = f"time for fewer than {texts.FEWEST} texts; give --minutes {math.ceil(10 * needed) / 10:g}"
    raise UserError(f"--minutes {request.minutes:g}: {fact} {way_out}")


def timed(spec: recipe.Recipe, minutes: float, seconds: float, session: Session) -> recipe.Recipe:
    """The recipe with the seconds that are left of the `minutes` for training. Raises UserError for fewer
    than LEAST_S."""
    if seconds < LEAST_S:
        enough = math.ceil(minutes + (2 * LEAST_S - seconds) / 60)
        raise UserError(f"--minutes {minutes:g}: too few, they leave no time for training; give {enough}")
    described = spec.model_dump(by_alias=True, exclude_defaults=True)
    described["stages"] = queries.timed(described["stages"], seconds / 60)
    session.log(f"{duration(seconds)} for training")
    return recipe.parse(described, "adapt")


def resumed(request: Request, source: run.Run, file: Path, session: Session) -> recipe.Recipe:
    """The recipe of an adaptation that was interrupted, with all that the request decides as it asks now: a
    run's recipe records no folders, and `train` goes on with the same recipe only. Raises UserError where
    pairs were asked for and are not now, or the other way round."""
    planned = recipe.read(file).model_dump(mode="json", by_alias=True)
    texts_stage, *behind = planned["stages"]
    others = (planned["targets"] or {}).get("teachers", [])
    for option, before, asked in (("pairs", behind, request.pairs), ("also", others, request.also)):
        if bool(before) != (asked is not None):
            fact = f"planned {'with' if before else 'without'} --{option}"
            raise UserError(f"{file.parent}: {fact}; resume it likewise, change --out, or add --overwrite")
    if request.also is not None:
        others[0]["model"] = request.also.model
    if request.pairs is not None:
        pairs = queries.relative(request.pairs, session).section
        behind[0]["rows"] |= {key: pairs[key] for key in ("files", "columns")}
    if request.steps is not None:
        texts_stage["steps"] = min(texts_stage["steps"], request.steps)
    planned["teacher"]["model"] = recorded.teacher(source.recipe, request.teacher, request.student).model
    section = texts.files_section(request.texts, request.column, session.data)
    planned["rows"] |= {"column": None, **section}
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
    most: float = math.inf,
) -> dict[str, Any]:
    """The recipe that adapts a finished student (`source`) to texts, as data. It is an ordinary one: `train`
    runs it too.

    `section` is the corpus of all the texts, each of which has so many `words` (n,). The student reads so
    many `tokens` of a text. Of very many texts so many are drawn that the steps see each of them
    FEWEST_EPOCHS times, and at most so many rows that they are no more than `most`.
    """
    mean_words, count = float(words.mean()), len(words)
    cut = mean_words >= LONGEST
    held_out = queries.held_out(count, 10)
    whole, corpus = count - held_out, {**section, "held_out": held_out}
    rows = int(whole * (1 + (mean_words * PASSAGES_PER_WORD if cut else 0)))
    if cut:
        corpus["passages"] = {}
    most_steps = request.steps or MOST_STEPS
    most_rows = int(min(most, most_steps * BATCH / FEWEST_EPOCHS))
    if rows > most_rows:
        rows = most_rows
        whole = min(whole, int(WHOLE_SHARE * rows) if cut else rows)
        corpus["limit"] = whole + held_out
        if cut:
            corpus["passages"] = {"texts": rows - whole}
    stage: dict[str, Any] = {
        "name": "adapt",
        "objective": {"kind": "cosine"},
        "max_tokens": tokens,
        "steps": round(min(most_steps, max(FEWEST_STEPS, EPOCHS * rows / BATCH))),
        **shapes.finished_stage(source.kind),
    }
    stage["batch"] = min(stage["batch"], rows)
    return {
        "name": request.out.name,
        "about": f"{files.portable(request.student)}, adapted to its user's texts.",
        "teacher": teacher.model_dump(exclude_defaults=True),
        "rows": corpus,
        "student": {"weights": request.student, "max_tokens": tokens},
        "stages": queries.stages(stage, request.pairs),
    }
