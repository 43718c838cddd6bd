"""What is decided before any training: the texts, the shapes that keep to the budget, the starts.

Everything is recorded as it is found, so that a fit that is killed here goes on where it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from edgedistill import recipe, resolve, run
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.fitting import queries, record, shapes, texts
from edgedistill.fitting.judge import Judge, encoder, weaker_teacher
from edgedistill.fitting.record import Budget, Candidate, Costed, FitRequest, State
from edgedistill.fitting.shapes import Shape, Source, estimated_mb
from edgedistill.planning import training_time
from edgedistill.planning.cost import duration, medians_ms, size_and_latency
from edgedistill.quantization.sample_texts import Reader, samples
from edgedistill.session import Session, silent
from edgedistill.teacher.embedder import open_teacher
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training import load_models, train
from edgedistill.training.initial_student import finished_student
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.open_recipe import open_recipe
from edgedistill.training.training_sources import TrainingSources

NAME = "mine"  # of every candidate's recipe
TIMED_TEXTS = 48  # short ones: those whose latency is measured
PAIRS = "--pairs"
TEACHER_S = 3.0  # for measuring the teacher's speed, which decides how many texts it embeds
TEACHER_SHARE = 0.25  # of the minutes, at most
TRIALS, STARTS = 3, 2  # candidates that are trained for a first measurement; starts among them
LEAST_TRIAL_S = 20.0  # of one, for it to have learned anything
SLACK = 0.08  # an estimated size above the budget by more than this is believed
TRIES = 4  # shapes that are measured of each family, at most
FINISH_S, FINISH_SHARE = 30.0, 0.05  # of the minutes, for export and measurement


@dataclass(frozen=True)
class Fit:
    """A fit at work: what it was asked for, its folder and state, when it began by time.monotonic() had it
    never lain dead, and what all candidates share, each opened when it is first needed."""

    request: FitRequest
    folder: Path
    state: State
    session: Session
    began: float

    def record(self, **facts: Any) -> None:
        """Set what was found or decided in the state, and write it."""
        for name, value in {**facts, "spent_s": self.spent_s}.items():
            setattr(self.state, name, value)
        self.state.write(self.folder)

    @property
    def spent_s(self) -> float:
        """The seconds of the fit, without the time that it lay dead."""
        return time.monotonic() - self.began

    @cached_property
    def teacher(self) -> TeacherEncoder:
        """A model or a finished run, in the dtype that was chosen when the fit began."""
        if self.state.teacher is None:
            chosen = load_models.quickest(self.request.teacher, self.session)
            self.record(teacher=chosen.model_dump(exclude_defaults=True))
        opened = open_teacher(recipe.Teacher(**self.state.teacher or {}), self.session)
        return load_models.with_weights(opened, "--teacher")

    @cached_property
    def sources(self) -> TrainingSources:
        """What all candidates train on."""
        pairs = {} if self.state.pairs is None else {PAIRS: self.state.pairs.table}
        rows = texts.parsed(self.state.corpus or {})
        return TrainingSources(rows, pairs, self.session, self.request.seed)

    @property
    def corpus(self) -> Corpus:
        """The corpus that all candidates train on."""
        return self.sources.texts.sides[0]

    @cached_property
    def queries(self) -> dict[str, queries.Queries]:
        """The user's queries that search is measured with. Raises UserError where BM25 finds no words."""
        return queries.asked(self.sources)

    @cached_property
    def judge(self) -> Judge:
        """What measures the candidates. It embeds all texts."""
        return Judge(self.teacher, self.corpus, self.session, self.queries)

    @cached_property
    def timed_texts(self) -> list[str]:
        """Short texts whose latency is measured."""
        return [str(text) for text in scoring.suite("sts-small").sample(TIMED_TEXTS)]

    @cached_property
    def source(self) -> Source:
        """What candidates start from."""
        budget, own_space = self.request.budget, self.request.space == "own"
        return shapes.find(self.teacher, self.corpus, budget.max_mb, own_space, self.session)

    @property
    def weak(self) -> str:
        """What is to be said of a teacher that is worse than the best start; "" of another."""
        start, teacher = self.state.start, self.state.teacher_measures
        return weaker_teacher(teacher or {}, start.measures) if start is not None else ""

    def is_start(self, costed: Costed) -> bool:
        """Whether a shape is worth measuring untrained."""
        return self.source.is_start(costed.shape)

    def recipe(self, shape: Shape, minutes: float) -> dict[str, Any]:
        """The recipe of a candidate that is trained for so long, as data; without minutes a start that keeps
        its own space has no stage, and reads nothing of the teacher."""
        stage = shapes.stage(shape, self.source, self.corpus.training_count)
        most = math.ceil(texts.MOST_EPOCHS * self.corpus.training_count / stage["batch"])
        stages = queries.stages({**stage, "steps": most if minutes else 0}, self.state.pairs)
        whole = {
            "name": shape.name,
            "seed": self.request.seed,
            "teacher": self.state.teacher,
            "rows": self.state.corpus,
            "student": shapes.section(shape, self.source),
            "stages": queries.timed(stages, minutes) if minutes else stages,
        }
        own, dims = self.source.own_dims(shape), self.teacher.dims
        if own is None:
            return whole
        spec, student = recipe.parse(whole, shape.name), self.source.finished.get(shape.student)
        if student is not None and not finished_student.needs_new_head(spec, student, dims):
            return whole
        kept = shapes.in_own_space(whole, own, dims)
        return kept if minutes else {**kept, "stages": [], "targets": None}

    def cost(self, shape: Shape) -> Costed | None:
        """Build, export and measure a shape; None where it cannot be built."""
        began = self.spent_s
        try:
            spec = recipe.parse(self.recipe(shape, 0), shape.name)
            student = open_recipe(spec, replace(self.session, log=silent)).student
        except UserError as error:
            self.session.log(f"  {shape.name}: cannot be built: {error.problems[0]}")
            return None
        costed = measured(shape, student, self.timed_texts)
        self.record(setup_s=max(self.state.setup_s, self.spent_s - began))
        over = ", over the budget" if costed.excess(self.request.budget) > 0 else ""
        self.session.log(f"  {costed}{over}")
        return costed

    def measure(self, name: str, costed: Costed, minutes: float) -> None:
        """Train a candidate, measure it and record it; one that was measured is left as it is, one that was
        killed goes on. What cannot be trained is recorded with its problem."""
        candidate = self.state.candidate(name)
        if candidate is None:
            described = {**self.recipe(costed.shape, minutes), "name": NAME}
            candidate = Candidate(costed.shape, costed.size_mb, costed.p50_ms, name=name, recipe=described)
            self.record(candidates=[*self.state.candidates, candidate])
        elif candidate.done:
            return
        started = time.monotonic()
        try:
            student = self._trained(candidate)
            candidate.measures = self.judge.measures(encoder(student, candidate.precision))
        except UserError as error:
            candidate.problem = error.problems[0]
        outcome = candidate.problem or f"score {100 * candidate.measures['score']:.1f}"
        self.session.log(f"{name}: {outcome} after {candidate.steps:,} steps")
        candidate.seconds = round(time.monotonic() - started, 2)
        self.record()

    def _trained(self, candidate: Candidate) -> PreparedStudent:
        """The student of a candidate, trained in the folder of its trial."""
        out = self.folder / record.TRIALS / candidate.name
        resume = out.exists() or (resolve.unfinished_run(out) / "recipe.yaml").exists()
        spec = recipe.parse(candidate.recipe, candidate.name)
        info = train.train(spec, out, replace(self.session, log=silent), resume)
        candidate.taken = [stage["steps"] for stage in info["stages"]]
        return PreparedStudent.of(run.open_run(out))


def make(fit: Fit) -> None:
    """Decide everything that is not decided yet, and measure the teacher and the starts. Raises UserError as
    its parts do."""
    if fit.state.corpus is None:
        _choose_texts(fit)
    if fit.state.fits is None:
        fit.session.log(f"measuring the shapes that may keep to {fit.request.budget}")
        fit.record(fits=survey(fit.source, fit.request.budget, fit.cost))
    if fit.state.teacher_measures is None:  # embeds all texts: after the survey, which refuses a budget
        judge, began = fit.judge, fit.spent_s
        measures = judge.teacher
        fit.record(teacher_measures=measures, setup_s=fit.state.setup_s + fit.spent_s - began)
    for costed in filter(fit.is_start, fit.state.fits or []):
        if costed.shape.student or not fit.weak:  # a weak teacher's layers are no better
            fit.measure(costed.shape.untrained, costed, 0)
    if fit.weak:
        fit.session.log(f"weak: {fit.weak}")
    fit.session.log(f"{duration(fit.spent_s)} for all that comes before training")


def _choose_texts(fit: Fit) -> None:
    """Check the texts, and limit them to what the teacher can embed in its share of the time."""
    request, session = fit.request, fit.session
    embedded = 0  # of pairs
    if request.pairs is not None:
        fit.state.pairs = queries.counted(request.pairs, session)
        embedded = sum(map(len, fit.state.pairs.read(session).sides))
    whole = texts.section(request.texts, request.column, request.data)
    read = texts.read({**whole, "limit": texts.MOST_TEXTS}, texts.LEAST_TEXTS, session, request.seed)
    session.log(f"texts: {texts.described(read, fit.teacher)}")
    sample = training_time.sample(read)
    rate = training_time.seconds_per_text(fit.teacher, sample, session.device, TEACHER_S)
    section = texts.training_section(whole, read, _most_texts(request.minutes, rate, embedded))
    if section.get("limit", len(read)) < len(read):
        fact = "spread evenly: what the teacher can embed in its share of the time"
        session.log(f"texts: {section['limit']:,} of them, {fact}")
    fit.record(corpus=section)
    _ = fit.queries  # raises where BM25 finds no words


def _most_texts(minutes: float, rate: float, embedded: int) -> int:
    """How many texts the teacher can embed in its share of the minutes, at `rate` seconds each, beside those
    of pairs. Raises UserError where these are too few, or too little is left for training."""
    trials = TRIALS * LEAST_TRIAL_S + FINISH_S
    needed = texts.LEAST_TEXTS + texts.LEAST_GENERAL + embedded
    least = max(needed * rate / TEACHER_SHARE, trials / (1 - TEACHER_SHARE)) / 60
    if minutes >= least:
        return int(60 * minutes * TEACHER_SHARE / rate) - embedded
    fact = f"the teacher embeds {1 / rate:.0f} texts/s here, and has to embed {needed:,}"
    trained = f"{TRIALS} candidates train for {LEAST_TRIAL_S:.0f} s each"
    raise UserError(f"--minutes {minutes:g}: too few: {fact}; {trained}; give {math.ceil(least)}")


# ---- which shapes keep to the budget


def measured(shape: Shape, student: PreparedStudent, timed: list[str]) -> Costed:
    """What a student of a shape costs. The texts `timed` are timed."""
    reader = Reader(student.tokenizer, "", student.max_tokens)
    drawn, ids = samples(reader, []), reader.token_ids(timed)
    sizes, rounds = size_and_latency(student.module, [shape.precision], drawn, ids, threads=1)
    size = sizes[shape.precision] + shapes.tokenizer_bytes(student.tokenizer, student.max_tokens)
    backend: Any = student.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(student.max_tokens)
    ms = min(rounds[shape.precision]) + min(medians_ms(backend.encode, timed))
    return Costed(shape, size / 1e6, round(ms, 4))


def survey(source: Source, budget: Budget, cost: Callable[[Shape], Costed | None]) -> list[Costed]:
    """What keeps to the budget, the most promising first: of each family the first shape that does, all
    starts, and as many others as are trained beside them.

    `cost` builds a shape and measures it. Raises UserError where none fits.
    """
    starts, others, over = list[Costed](), list[Costed](), list[Costed]()
    for family in shapes.families(source):
        is_start = source.is_start(family[0])
        if not is_start and len(others) + min(len(starts), STARTS) >= TRIALS:
            break
        for costed in _tried(family, source, budget, cost):
            fits = starts if is_start else others
            (fits if costed.excess(budget) <= 0 else over).append(costed)
    fits = starts + others
    if not fits and not over:
        smallest = min(chain.from_iterable(shapes.families(source)), key=partial(estimated_mb, source=source))
        over += filter(None, [cost(smallest)])
    if not fits:
        raise UserError(_nothing_fits(budget, over))
    return fits


def _tried(
    family: list[Shape], source: Source, budget: Budget, cost: Callable[[Shape], Costed | None]
) -> Iterator[Costed]:
    """What was measured of a family, up to the first shape that keeps to the budget. What is too large by a
    share shows how much smaller the next one must be."""
    most = budget.max_mb * (1 + SLACK)
    for _ in range(TRIES):
        family = [shape for shape in family if estimated_mb(shape, source) <= most]
        costed = cost(family.pop(0)) if family else None
        if costed is None:
            continue
        yield costed
        excess = costed.excess(budget)
        if excess <= 0 or costed.p50_ms > budget.max_p50_ms:  # as slow are all of the family
            return
        most = estimated_mb(costed.shape, source) / (1 + excess)


def _nothing_fits(budget: Budget, over: list[Costed]) -> str:
    if not over:
        fact = f"nothing that this teacher allows can be built within {budget}"
        return f"no candidate: {fact}; give a larger budget or another teacher"
    nearest = min(over, key=lambda costed: costed.excess(budget))
    need = [f"--max-mb {1.05 * nearest.size_mb:.2g}"] if nearest.size_mb > budget.max_mb else []
    need += [f"--max-p50-ms {1.05 * nearest.p50_ms:.2g}"] if nearest.p50_ms > budget.max_p50_ms else []
    return (
        f"budget: nothing fits {budget}; the nearest is {nearest}, graph and tokenizer together; "
        f"give {' '.join(need)}"
    )
