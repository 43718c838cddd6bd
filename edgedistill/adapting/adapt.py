"""`adapt`: texts and a finished student -> a recipe, a run, a bundle, and what the student knew of the texts
before and after."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import bundle_run, recipe, resolve, run
from edgedistill.adapting import before_and_after, own_texts
from edgedistill.adapting.adaptation_recipe import MOST_TOKENS, Choices, adaptation_recipe, tokens_to_read
from edgedistill.adapting.before_and_after import Encode, HeldOutTexts
from edgedistill.adapting.time_limit import TimeLimit, affordable
from edgedistill.data import corpus, file_patterns
from edgedistill.export import bundle_writer
from edgedistill.fitting import language
from edgedistill.planning import preflight
from edgedistill.precisions import known_precisions
from edgedistill.recipe import recorded
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.teacher.embedding_cache import embed_corpus
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training import resume as resuming
from edgedistill.training import student_embeddings, train
from edgedistill.training.load_models import open_teacher, quickest, with_weights

MOST_MEASURED = 3_000  # held-out texts


@dataclass(frozen=True)
class Request:
    """What is asked for. student: a shipped name, a bundle or a run. texts: globs. out: the bundle's folder;
    runs: where runs lie.

    teacher: another than the student's own, or None. minutes: about the most that all of it may take.
        overwrite: replace an earlier
    run and bundle.
    """

    student: str
    texts: list[str]
    out: Path
    runs: Path = Path("runs")
    column: str = "text"
    teacher: recipe.Teacher | None = None
    minutes: float = 10.0
    precisions: tuple[str, ...] = ("int8",)
    overwrite: bool = False

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.runs / self.out.name


def adapt(request: Request, session: Session, resume: bool = False) -> dict[str, Any]:
    """Adapt a finished student to texts and export it. Returns {recipe, run, bundle, texts, steps, seconds,
    before, after, weak, table}.

    resume: continue an interrupted adaptation. Raises UserError: an unknown student or precision, too few
    texts, a student without its teacher.
    """
    started = time.perf_counter()
    precisions = known_precisions(request.precisions)
    source = bundle_run.open_finished(request.student, "adapt")
    folder = request.run
    if not (folder.exists() if resume else request.overwrite):
        resuming.check_unfinished(folder, resume, "replace it with --overwrite")
    if resume:
        spec = _recorded(folder)
    else:
        spec = _planned(request, source, session, TimeLimit(request.minutes, started))
        for earlier in (folder, resolve.unfinished_run(folder)) if request.overwrite else ():
            shutil.rmtree(earlier, ignore_errors=True)
    info = train.train(spec, folder, session, resume)
    session.log(f"{folder}: exporting {', '.join(precisions)}")
    bundle_writer.export(str(folder), precisions, request.out, session.log)
    teacher = open_teacher(spec.teacher, session)
    assert isinstance(teacher, TeacherEncoder), "a file of embeddings was refused"
    held_out = _held_out(spec, teacher, session)
    session.log(f"comparing before and after on {len(held_out.texts):,} held-out texts")
    before = before_and_after.measure(_encoder(request.student, source), held_out)
    after = before_and_after.measure(bundle.load(request.out).encode, held_out)
    weak = _weak(teacher, held_out.texts)
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
        "table": "\n".join(
            each for each in (before_and_after.table(before, after, len(held_out.texts)), weak) if each
        ),
    }


def _recorded(folder: Path) -> recipe.Recipe:
    """The recipe of an adaptation that was begun."""
    return recipe.read(str((folder if folder.exists() else resolve.unfinished_run(folder)) / "recipe.yaml"))


def _planned(request: Request, source: run.Run, session: Session, time_left: TimeLimit) -> recipe.Recipe:
    """The recipe, with as many steps as the texts ask for and there is time for."""
    own = own_texts.examine(request.texts, session.data, request.column)
    wrapped = f"; {own.wrapped:,} of them with wrapped lines, read as paragraphs" if own.wrapped else ""
    session.log(f"{own.texts:,} texts of {own.words:.0f} words on average, in {own.files:,} file(s){wrapped}")
    teacher = recorded.teacher(source.recipe, request.teacher, request.student)
    whole = with_weights(
        open_teacher(teacher.model_copy(update={"max_tokens": MOST_TOKENS}), session), "--teacher"
    )
    if (weak := _weak(whole, own.sample)) is not None:
        session.log(weak)
    tokens = tokens_to_read(own, source.max_tokens, whole.max_tokens)
    if tokens > source.max_tokens:
        session.log(
            f"the texts are long: the student will read up to {tokens} tokens of each ({source.max_tokens} "
            "before)"
        )
    teacher = quickest(teacher.model_copy(update={"max_tokens": max(tokens, teacher.max_tokens)}), session)
    texts = request.texts if session.data not in (None, Path()) else file_patterns.from_here(request.texts)
    choices = Choices(request.out.name, request.student, texts, request.column, teacher, tokens)
    spec = adaptation_recipe(choices, own, source)
    preflight.check_all([spec], session.data)
    chosen = affordable(spec, time_left, session, lambda most: adaptation_recipe(choices, own, source, most))
    assert isinstance(chosen.corpus, recipe.Files)
    general = f"{chosen.corpus.documentation_texts:,} sentences of Python's documentation"
    session.log(f"{general} are trained on too, so that general texts are not forgotten")
    return chosen


def _weak(teacher: TeacherEncoder, texts: list[str]) -> str | None:
    """A warning where the teacher does not seem to know the texts' language."""
    known = language.whole_words(teacher.tokenizer, texts)
    advice = "to agree with such a teacher is worth little; another --teacher may know the language"
    return f"weak: {language.unknown(known)}; {advice}" if known < language.OTHER else None


def _held_out(spec: recipe.Recipe, teacher: TeacherEncoder, session: Session) -> HeldOutTexts:
    """Texts that were held out, evenly drawn, with the teacher's embeddings from the cache."""
    assert isinstance(spec.corpus, recipe.Files)
    built = corpus.build(spec.corpus, session, spec.seed)
    rows = built.held_out[
        np.linspace(0, len(built.held_out) - 1, min(MOST_MEASURED, len(built.held_out))).astype(int)
    ]
    return HeldOutTexts(built.texts(rows), embed_corpus(teacher, built, session)[rows])


def _encoder(name: str, source: run.Run) -> Encode:
    """What embeds texts as the student did before: the bundle, or the run in torch."""
    if isinstance(source, bundle_run.BundleRun):
        return bundle.load(name).encode
    module, tokenizer = source.student(), source.tokenizer()
    return lambda texts: student_embeddings.embed(module, tokenizer, list(texts), source.max_tokens)
