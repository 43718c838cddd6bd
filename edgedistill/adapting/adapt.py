"""`adapt`: texts and a finished student -> a recipe, a run, a bundle, and what the student knew of the texts
before and after."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from edgedistill import bundle_run, recipe, resolve, run
from edgedistill.adapting.adaptation_recipe import MOST_TOKENS, Adaptation, affordable, tokens_to_read
from edgedistill.data import corpus
from edgedistill.evaluation import scoring, teacher_agreement
from edgedistill.evaluation.tables import plain
from edgedistill.export import bundle_writer
from edgedistill.fitting import score, texts
from edgedistill.planning import preflight
from edgedistill.precisions import known_precisions
from edgedistill.recipe import recorded
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training import resume as resuming
from edgedistill.training import student_embeddings, train
from edgedistill.training.load_models import open_teacher, quickest, with_weights

FEWEST = 50  # texts that a student can be adapted to, and measured on
MOST_MEASURED = 3_000  # held-out texts
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
    lie in `runs`. `teacher` is another than the student's own. All of it may take about `minutes`. With
    `overwrite`, an earlier run and bundle are replaced.
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
    folder, partial = request.run, resolve.unfinished_run(request.run)
    if not (folder.exists() if resume else request.overwrite):
        resuming.check_unfinished(folder, resume, "replace it with --overwrite")
    if resume:
        spec = recipe.read(str((folder if folder.exists() else partial) / "recipe.yaml"))
    else:
        spec = _planned(request, source, session, started)
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


def _planned(request: Request, source: run.Run, session: Session, started: float) -> recipe.Recipe:
    """The recipe, with as many steps as the texts ask for and there is time for."""
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
    adaptation = Adaptation(request.out.name, request.student, source, teacher, section, words, tokens)
    preflight.check_all([adaptation.recipe()], session.data)
    chosen = affordable(adaptation, request.minutes, started, session)
    assert isinstance(chosen.corpus, recipe.Files)
    general = f"{chosen.corpus.documentation_texts:,} sentences of Python's documentation"
    session.log(f"{general} are trained on too, so that general texts are not forgotten")
    return chosen


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
