"""`adapt`: a finished student and somebody's own texts -> a recipe, a run, a bundle, and what the student
knew of the texts before and after."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from edgedistill import bundle_run, recipe, resolve, run
from edgedistill.data import corpus
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring, teacher_agreement
from edgedistill.evaluation.tables import plain
from edgedistill.export import bundle_writer
from edgedistill.fitting import score, texts
from edgedistill.planning import preflight, training_time
from edgedistill.planning.cost import duration
from edgedistill.precisions import known_precisions
from edgedistill.recipe import recorded
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training import resume as resuming
from edgedistill.training import student_embeddings, train
from edgedistill.training.load_models import open_teacher, quickest, with_weights
from edgedistill.training.open_recipe import open_recipe

FEWEST = 50  # texts that a student can be adapted to, and measured on
MOST_MEASURED = 3_000  # held-out texts
BATCH = 64
LONGEST = 24  # mean words from which on texts are cut into sentences, too
PASSAGES_PER_WORD = 1 / 16  # about how many sentences and runs of them a text has for each of its words
EPOCHS, FEWEST_EPOCHS = 8.0, 1.5  # over few texts; over so many that not all are taken
FEWEST_STEPS, MOST_STEPS = 200, 2_000
LEAST_STEPS = 20  # for which there must be time
AFTER_TRAINING = 0.12  # of the minutes: export, comparison, and steps that take longer than those timed
WHOLE_SHARE = 0.3  # of the texts trained on that are whole, where not all are taken
DOCUMENTATION_SHARE = 0.15  # of the texts trained on
INITIAL_SHARE = 0.45  # of the weights, so that little is forgotten: see bench/LOG.md
# So that nine texts in ten are read to their end; longer ones take too long to learn from.
TOKENS_PER_WORD, MOST_TOKENS = 1.4, 256
HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 150
MEASURES = {
    "top10_overlap": "ten nearest neighbours in common with the teacher",
    "spearman": "rank correlation of pairwise cosines with the teacher's",
    "cosine": "mean cosine to the teacher's embeddings",
    "mini": "mini (STS of general texts)",
}


@dataclass(frozen=True)
class Request:
    """What is asked for.

    `student` is a shipped name, a bundle or a run, `texts` are globs, `out` is the bundle's folder, and runs
    lie in `runs`. `teacher` is another than the student's own. All of it may take about `minutes`, and
    training at most so many `steps`. With `overwrite`, an earlier run and bundle are replaced.
    """

    student: str
    texts: list[str]
    out: Path
    runs: Path = Path("runs")
    column: str = "text"
    teacher: recipe.Teacher | None = None
    minutes: float = 10.0
    steps: int = MOST_STEPS
    precisions: tuple[str, ...] = ("int8",)
    overwrite: bool = False

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.runs / self.out.name


def adapt(request: Request, session: Session, resume: bool = False) -> dict[str, Any]:
    """Adapt a finished student to texts and export it. Returns {recipe, run, bundle, texts, steps, seconds,
    before, after, weak, table}.

    With `resume`, an interrupted adaptation goes on. Raises UserError for an unknown student or precision,
    too few texts, a student without its teacher.
    """
    started = time.perf_counter()
    precisions = known_precisions(request.precisions)
    source = bundle_run.open_finished(request.student, "adapt")
    folder, partial = request.run, resolve.unfinished_run(request.run)
    if not (folder.exists() if resume else request.overwrite):
        resuming.check_unfinished(folder, resume, "replace it with --overwrite")
    if resume:
        spec = recipe.read(str((folder if folder.exists() else partial) / "recipe.yaml"))
    else:
        spec = planned(request, source, session, started)
        for earlier in (folder, partial) if request.overwrite else ():
            shutil.rmtree(earlier, ignore_errors=True)
    info = train.train(spec, folder, session, resume)
    session.log(f"{folder}: exporting {', '.join(precisions)}")
    bundle_writer.export(str(folder), precisions, request.out, session.log)
    teacher = open_teacher(spec.teacher, session)
    assert isinstance(teacher, TeacherEncoder), "a file of embeddings was refused"
    assert isinstance(spec.corpus, recipe.Files)
    built = corpus.build(spec.corpus, session, spec.seed)
    held_out, embeddings = score.held_out(teacher, built, MOST_MEASURED, session)
    session.log(f"comparing before and after on {len(held_out):,} held-out texts")
    before = _measure(_encoder(request.student, source), held_out, embeddings)
    after = _measure(bundle.load(request.out).encode, held_out, embeddings)
    weak = _weak(teacher, held_out)
    shown = [_table(before, after, len(held_out)), *([weak] if weak else [])]
    return {
        "recipe": str(folder / "recipe.yaml"),
        "run": str(folder),
        "bundle": str(request.out),
        "texts": info["corpus"]["texts"],
        "steps": spec.distilling[0].steps,
        "seconds": round(time.perf_counter() - started, 1),
        "before": before,
        "after": after,
        "weak": weak,
        "table": "\n".join(shown),
    }


def planned(request: Request, source: run.Run, session: Session, started: float) -> recipe.Recipe:
    """The recipe, with as many steps as the texts ask for and there is time for. Raises UserError where there
    is time for next to nothing."""
    section = texts.files_section(request.texts, request.column, session.data)
    own = texts.read(section, FEWEST, session)
    words = texts.word_counts(own.texts(range(len(own))))
    wrapped = "; lines that are wrapped are read as paragraphs" if "unit" in section else ""
    session.log(f"{len(own):,} texts of {words.mean():.0f} words on average{wrapped}")
    teacher = recorded.teacher(source.recipe, request.teacher, request.student)
    longest = teacher.model_copy(update={"max_tokens": MOST_TOKENS})
    whole = with_weights(open_teacher(longest, session), "--teacher")
    weak = _weak(whole, texts.sample(own))
    if weak is not None:
        session.log(weak)
    tokens = tokens_to_read(words, source.max_tokens, whole.max_tokens)
    if tokens > source.max_tokens:
        fact = f"the student will read up to {tokens} tokens of each ({source.max_tokens} before)"
        session.log(f"the texts are long: {fact}")
    teacher = quickest(teacher.model_copy(update={"max_tokens": max(tokens, teacher.max_tokens)}), session)

    warned = set[str]()

    def timed(steps: int) -> tuple[recipe.Recipe, float]:
        """The recipe of at most so many steps, and about how many seconds it takes here."""
        spec = adaptation_recipe(replace(request, steps=steps), source, teacher, section, words, tokens)
        if steps == request.steps:  # a shorter recipe reads the same files
            preflight.check_all([spec], session.data)
        opened = open_recipe(spec, session)
        for warning in opened.warnings:
            if warning not in warned:
                session.log(f"warning: {warning}")
        warned.update(opened.warnings)
        missing = training_time.texts_to_embed(opened, session)
        return spec, sum(training_time.estimate_seconds(opened, missing, session).values())

    session.log("measuring how fast teacher and student are here")
    spec, seconds = timed(request.steps)
    for _ in range(2):  # of fewer texts, more are whole and long: their steps are timed again
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
    assert isinstance(spec.corpus, recipe.Files)
    general = f"{spec.corpus.documentation_texts:,} sentences of Python's documentation"
    session.log(f"{general} are trained on too, so that general texts are not forgotten")
    return spec


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
    held_out = max(10, min(MOST_HELD_OUT, int(HELD_OUT_SHARE * count)))
    whole, corpus = count - held_out, {**section, "held_out": held_out}
    rows = int(whole * (1 + (mean_words * PASSAGES_PER_WORD if cut else 0)))
    if cut:
        corpus["passages"] = {}
    most_rows = int(request.steps * BATCH / FEWEST_EPOCHS / (1 + DOCUMENTATION_SHARE))
    if rows > most_rows:
        rows = most_rows
        whole = min(whole, int(WHOLE_SHARE * rows) if cut else rows)
        corpus["limit"] = whole + held_out
        if cut:
            corpus["passages"] = {"texts": rows - whole}
    corpus["documentation_texts"] = max(500, int(DOCUMENTATION_SHARE * rows))
    stage: dict[str, Any] = {
        "name": "adapt",
        "objective": {"kind": "cosine"},
        "batch": min(BATCH, rows),
        "max_tokens": tokens,
        "steps": round(min(request.steps, max(FEWEST_STEPS, EPOCHS * rows / BATCH))),
        "initial_share": INITIAL_SHARE,
        "learning_rate": 1e-3 if source.kind == "static" else 2e-3,
    }
    if source.kind != "static":
        stage["optimizer"] = "muon"
    student: dict[str, Any] = {"weights": request.student}
    if tokens != source.max_tokens:
        student["max_tokens"] = tokens
    described = {
        "name": request.out.name,
        "about": f"{request.student}, adapted to its user's texts.",
        "teacher": teacher.model_dump(exclude_defaults=True),
        "corpus": corpus,
        "student": student,
        "stages": [stage],
    }
    return recipe.parse(described, "adapt")


def _weak(teacher: TeacherEncoder, own: list[str]) -> str | None:
    """A warning where the teacher does not seem to know the texts' language."""
    known = texts.whole_words(teacher.tokenizer, own)
    advice = "to agree with such a teacher is worth little; another --teacher may know the language"
    return f"weak: {texts.unknown_language(known)}; {advice}" if known < texts.OTHER else None


def _encoder(name: str, source: run.Run) -> Callable[[Sequence[str]], np.ndarray]:
    """What embeds texts as the student did before: the bundle, or the run in torch."""
    if isinstance(source, bundle_run.BundleRun):
        return bundle.load(name).encode
    module, tokenizer = source.student(), source.tokenizer()
    return lambda given: student_embeddings.embed(module, tokenizer, list(given), source.max_tokens)


def _measure(
    encode: Callable[[Sequence[str]], np.ndarray], held_out: list[str], teacher: np.ndarray
) -> dict[str, float | None]:
    """The MEASURES of a student: its agreement with the teacher's embeddings (n, d) of held-out texts, and
    its score on the suite that ships.

    `cosine` is None where student and teacher have different dimensions.
    """
    found = teacher_agreement.agreement(encode(held_out), teacher, np.ones(len(held_out), int))
    mini = scoring.evaluate(scoring.suite("mini"), encode)["average"]
    agreeing = {name: found[name] for name in ("spearman", "top10_overlap")}
    return {"cosine": found["cosine_mean"], **agreeing, "mini": mini}


def _table(before: dict[str, float | None], after: dict[str, float | None], count: int) -> str:
    """Both measurements side by side."""
    sheet = Table("", title=f"{count:,} held-out texts", title_justify="left")
    for title in ("before", "after"):
        sheet.add_column(title, justify="right")
    for key, name in MEASURES.items():
        old, new = before[key], after[key]
        if new is not None:
            sheet.add_row(name, "" if old is None else f"{100 * old:.1f}", f"{100 * new:.1f}")
    return plain(sheet)
