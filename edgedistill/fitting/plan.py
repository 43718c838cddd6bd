"""What is decided before any training: the texts, the shapes that keep to the budget, the starts.

Everything is recorded as it is found, so that a fit that is killed here goes on where it was.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from edgedistill import recipe, resolve, run
from edgedistill.data.corpus import Corpus
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.fitting import queries, record, shapes, texts
from edgedistill.fitting.judge import Judge, encoder, weaker_teacher
from edgedistill.fitting.record import Budget, Candidate, Cost, FitRequest, State
from edgedistill.fitting.shapes import PRECISIONS, Shape, Source
from edgedistill.planning import training_time
from edgedistill.planning.cost import duration, medians_ms, size_and_latency
from edgedistill.precisions import PRECISIONS as ROWS
from edgedistill.quantization.sample_texts import Reader, samples
from edgedistill.session import Session, silent
from edgedistill.teacher.embedder import open_teacher
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training import checks, load_models, train
from edgedistill.training.initial_student import finished_student, initial_weights, student_tokenizer
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.load_models import Models
from edgedistill.training.open_recipe import Opened
from edgedistill.training.training_sources import TrainingSources

TIMED_TEXTS = 48  # short ones: those whose latency is measured
PAIRS = "--pairs"
TEACHER_S = 3.0  # for measuring the teacher's speed, which decides how many texts it embeds
TEACHER_SHARE, SURVEY_SHARE = 0.25, 0.1  # of the minutes, at most
TRIALS = 3  # candidates that are trained for a first measurement
LEAST_TRIAL_S = 20.0  # of one, for it to have learned anything
SLACK = 0.08  # an estimated size above the budget by more than this is believed
TRIES = 4  # shapes that are measured of each family, at most
USUAL = "kept 3"  # the vocabulary of the best hand-made recipes
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

    def record(self, **found: Any) -> None:
        """Set what was found or decided in the state, and write it."""
        for name, value in found.items():
            setattr(self.state, name, value)
        self.state.write(self.folder)

    @property
    def spent_s(self) -> float:
        """The seconds of the fit, without the time that it lay dead."""
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        """The seconds of its minutes that are left for training."""
        total = 60 * self.request.minutes
        return total - self.spent_s - FINISH_S - FINISH_SHARE * total

    @cached_property
    def teacher(self) -> TeacherEncoder:
        """A model or a finished run, in the dtype that was chosen when the fit began."""
        session = replace(self.session, data=self.request.data)
        if self.state.teacher is None:
            chosen = load_models.quickest(self.request.teacher, session)
            self.record(teacher=chosen.model_dump(exclude_defaults=True))
        opened = open_teacher(recipe.Teacher(**self.state.teacher or {}), session)
        return load_models.with_weights(opened, "--teacher")

    @cached_property
    def sources(self) -> TrainingSources:
        """What all candidates train on."""
        assert self.state.corpus is not None, "texts were chosen"
        pairs = {} if self.state.pairs is None else {PAIRS: self.state.pairs.table}
        return TrainingSources(texts.parsed(self.state.corpus), pairs, self.session, self.request.seed)

    @property
    def corpus(self) -> Corpus:
        """The corpus that all candidates train on."""
        return self.sources.texts.sides[0]

    @cached_property
    def pairs(self) -> Rows | None:
        """The user's pairs of queries and texts."""
        return self.sources.of_stage(PAIRS) if self.sources.tables else None

    @cached_property
    def queries(self) -> dict[str, queries.Queries]:
        """The user's queries that search is measured with."""
        assert self.state.corpus is not None, "texts were chosen"
        asked = queries.asked(self.corpus, self.state.corpus["held_out"], self.pairs)
        enough = (
            name for name, of in asked.items() if name == "own" or len(of.queries) >= queries.FEW_QUERIES
        )
        return {name: asked[name] for name in enough}

    @cached_property
    def judge(self) -> Judge:
        """What measures the candidates. It embeds all texts."""
        return Judge(self.teacher, self.corpus, self.session, self.queries)

    @cached_property
    def timed_texts(self) -> list[str]:
        """Short texts whose latency is measured."""
        sample = scoring.suite("sts-small").sample(TIMED_TEXTS)
        return [text for text in sample if isinstance(text, str)]

    @cached_property
    def source(self) -> Source:
        """What candidates start from."""
        self.session.log("layers and vocabularies that students can have")
        own_space, folder = self.request.space == "own", self.folder / record.VOCABULARIES
        most = 1e6 * self.request.budget.max_mb if own_space else math.inf
        found = shapes.find(self.teacher, self.corpus, folder, self.session, most)
        return replace(found, own_space=own_space)

    def recipe(self, shape: Shape, **length: Any) -> dict[str, Any]:
        """The recipe of a candidate, as data; `length` has the steps or minutes of its training."""
        stage = shapes.stage(shape, self.source, self.corpus.training_count)
        most = math.ceil(texts.MOST_EPOCHS * self.corpus.training_count / stage["batch"])
        steps = min(most, length.get("steps", most))
        stages = queries.stages({**stage, "steps": steps}, self.state.pairs)
        if "minutes" in length:
            stages = queries.timed(stages, length["minutes"])
        whole = {
            "name": shape.name,
            "seed": self.request.seed,
            "teacher": self.state.teacher,
            "rows": self.state.corpus,
            "student": shapes.section(shape, self.source),
            "stages": stages,
        }
        if (own := self.source.own_dims(shape)) is None:
            return whole
        student = self.source.finished.get(shape.vocabulary)
        spec, dims = recipe.parse(whole, shape.name), self.teacher.dims
        if student is not None and not finished_student.needs_new_head(spec, student, dims):
            return whole
        return shapes.in_own_space(whole, own, dims)

    def opened(self, shape: Shape) -> Opened:
        """A candidate before training, with weights that nothing was fitted to. Raises UserError where it
        cannot be built."""
        spec = recipe.parse(self.recipe(shape), shape.name)
        student = self.source.finished[shape.vocabulary] if shape.kind == "finished" else None
        models = Models(self.teacher, weights=load_models.open_weights(spec.student), finished=student)
        kept = shapes.tokenizer_folder(self.folder / record.VOCABULARIES, shape.vocabulary)
        tokenizer = student_tokenizer.build(spec, models, self.sources.texts, Session(), kept)
        prepared = initial_weights.build(spec, models, tokenizer, Session(), fitted=False)
        rows = [checks.StageRows(self.sources.texts, self.corpus.training_count)]
        return Opened(spec, models, self.sources.texts, rows, prepared)

    def cost(self, shape: Shape) -> Cost | str:
        """Build, export and measure a candidate; or why it cannot be built. Known costs are not measured
        again."""
        known = dict(self.state.costs)
        if shape in known:
            return known[shape]
        try:
            cost: Cost | str = measured(self.opened(shape).student, self.timed_texts)
        except UserError as error:
            cost = error.problems[0]
        if isinstance(cost, str):
            self.session.log(f"  {shape.name}: cannot be built: {cost}")
        else:
            over = "" if cost.fitting(self.request.budget) else ", over the budget"
            self.session.log(f"  {shape.name}: {cost.described(cost.best(self.request.budget))}{over}")
        self.state.costs.append((shape, cost))
        self.record()
        return cost

    def trained(self, name: str, recipe_: dict[str, Any]) -> tuple[PreparedStudent, list[int]]:
        """The student of a recipe, trained in the folder of its trial, and the steps of each stage. One that
        was killed goes on."""
        out = self.folder / record.TRIALS / name
        spec = recipe.parse({**recipe_, "name": name}, name)
        partial = resolve.unfinished_run(out)
        if out.exists() or not (partial / "recipe.yaml").exists():  # killed before the first file
            shutil.rmtree(partial, ignore_errors=True)
        resume = out.exists() or partial.exists()
        info = train.train(spec, out, replace(self.session, log=silent), resume)
        return PreparedStudent.of(run.open_run(out)), [stage["steps"] for stage in info["stages"]]

    def measure(self, candidate: Candidate) -> None:
        """Train a candidate, measure it and record it. What cannot be trained is recorded with its
        problem."""
        started = time.monotonic()
        try:
            student, candidate.taken = self.trained(candidate.name, candidate.recipe)
            candidate.measures = self.judge.measures(encoder(student, candidate.precision))
        except UserError as error:
            candidate.problem = error.problems[0]
            self.session.log(f"{candidate.name}: {candidate.problem}")
        else:
            score = f"score {100 * candidate.measures['score']:.1f}"
            self.session.log(f"{candidate.name}: {score} after {candidate.steps:,} steps")
        candidate.seconds = round(time.monotonic() - started, 2)
        planned = sum(60 * stage.get("minutes", 0) for stage in candidate.recipe["stages"])
        candidate.setup_s = max(0.0, candidate.seconds - planned)
        self.state.candidates.append(candidate)
        self.record(spent_s=self.spent_s)


def make(fit: Fit) -> None:
    """Decide everything that is not decided yet, and measure the teacher and the starts. Raises UserError as
    its parts do."""
    if fit.state.corpus is None:
        _choose_texts(fit)
    if fit.state.fits is None:
        fit.session.log(f"measuring the shapes that may keep to {fit.request.budget}")
        seconds = 60 * fit.request.minutes * SURVEY_SHARE
        fits = survey(fit.source, fit.request.budget, fit.cost, TRIALS, seconds)
        fit.record(fits=fits)
    if fit.state.teacher_measures is None:  # embeds all texts: after the survey, which refuses a budget
        fit.record(teacher_measures=fit.judge.teacher, spent_s=fit.spent_s)
    _measure_starts(fit)


def _choose_texts(fit: Fit) -> None:
    """Check the texts, and limit them to what the teacher can embed in its share of the time."""
    request, session = fit.request, fit.session
    pairs = None if request.pairs is None else queries.counted(request.pairs, session)
    fit.state.pairs = pairs
    taken = 0 if pairs is None else sum(map(len, pairs.read(session).sides))  # texts that are embedded, too
    whole = texts.section(request.texts, request.column, request.data)
    found = texts.read({**whole, "limit": texts.MOST_TEXTS}, texts.LEAST_TEXTS, session, request.seed)
    facts = texts.check(found, fit.teacher)
    for fact in facts:
        session.log(f"texts: {fact}")
    sample = training_time.sample(found)
    rate = training_time.seconds_per_text(fit.teacher, sample, fit.session.device, TEACHER_S)
    most = _most_texts(request, rate, taken)
    section = texts.training_section(whole, found, most)
    if section.get("limit", len(found)) < len(found):
        fact = "spread evenly: what the teacher can embed in its share of the time"
        session.log(f"texts: {section['limit']:,} of them, {fact}")
    fit.record(texts=facts, corpus=section)
    _ = fit.queries  # raises where BM25 finds no words


def _most_texts(request: FitRequest, rate: float, taken: int) -> int:
    """How many texts the teacher can embed in its share of the time, at `rate` seconds each, beside those
    `taken`. Raises UserError where these are too few, or too little is left for training."""
    if request.steps is not None:
        return texts.MOST_TEXTS
    most = int(60 * request.minutes * TEACHER_SHARE / rate) - taken
    trials = TRIALS * LEAST_TRIAL_S + FINISH_S
    needed = texts.LEAST_TEXTS + texts.LEAST_GENERAL + taken
    least = max(needed * rate / TEACHER_SHARE, trials / (1 - TEACHER_SHARE)) / 60
    if request.minutes >= least:
        return most
    fact = f"the teacher embeds {1 / rate:.0f} texts/s here, and has to embed {needed:,}"
    trained = f"{TRIALS} candidates train for {LEAST_TRIAL_S:.0f} s each"
    raise UserError(f"--minutes {request.minutes:g}: too few: {fact}; {trained}; give {math.ceil(least)}")


def _measure_starts(fit: Fit) -> None:
    """Measure what fits and knows something, untrained: shipped students as they are, in a space of their
    own, or with a linear map to the teacher's; then whole encoders. The winner is no worse than any of
    them."""
    known, weak = {each.name for each in fit.state.candidates}, ""
    starts = [shape for shape in fit.state.fits or [] if fit.source.is_start(shape)]
    for shape in sorted(starts, key=lambda shape: shape.kind != "finished"):
        if shape.kind != "finished" and (weak := _weak(fit)):
            break  # the teacher's layers are no better
        if shape.untrained not in known:
            whole = fit.recipe(shape, steps=0)
            precision = fit.state.cost(shape).best(fit.request.budget)
            fit.measure(Candidate(shape.untrained, shape, whole, precision))
    if weak := weak or _weak(fit):
        fit.session.log(f"weak: {weak}")
    fit.session.log(f"{duration(fit.spent_s)} for all that comes before training")


def _weak(fit: Fit) -> str:
    """What is to be said of a teacher that is worse than the best start; "" of another."""
    start, teacher = fit.state.start, fit.state.teacher_measures
    return weaker_teacher(teacher, start.measures) if start is not None and teacher is not None else ""


# ---- which shapes keep to the budget


def measured(student: PreparedStudent, timed: list[str]) -> Cost:
    """The cost of a student in every precision. The texts `timed` are timed."""
    reader = Reader(student.tokenizer, "", student.max_tokens)
    drawn, ids = samples(reader, []), reader.token_ids(timed)
    sizes, rounds = size_and_latency(student.module, PRECISIONS, drawn, ids, threads=1)
    backend: Any = student.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(student.max_tokens)
    size = texts.tokenizer_bytes(student.tokenizer, student.max_tokens)
    ms = min(medians_ms(backend.encode, timed))
    return Cost(
        {name: graph + size for name, graph in sizes.items()},
        {name: round(min(medians) + ms, 4) for name, medians in rounds.items()},
    )


def survey(
    source: Source,
    budget: Budget,
    measure: Callable[[Shape], Cost | str],
    wanted: int = 1,
    seconds: float = math.inf,
) -> list[Shape]:
    """The shapes that keep to the budget, the most promising first: of each family the largest.

    `measure` builds a shape and measures it, or says why it cannot be built; after about so many seconds no
    further one is begun, once `wanted` fit. Raises UserError where none fits.
    """
    started, fits, costs = time.monotonic(), list[Shape](), dict[Shape, Cost]()
    families, known = dict[tuple[int, Any], list[Shape]](), shapes.all_shapes(source)
    for shape in known:
        if _least(shape, source) <= _most(budget):
            families.setdefault(source.family(shape), []).append(shape)
    for (kind, _), family in sorted(families.items()):
        if len(fits) >= wanted and kind and time.monotonic() - started > seconds:
            break
        fits += _largest(family, source, budget, measure, costs)
    if not fits:
        smallest = min(known, key=lambda each: _least(each, source))
        fits = _largest([smallest], source, budget, measure, costs)
    if not fits:
        raise UserError(_nothing_fits(budget, costs))
    return sorted(fits, key=lambda shape: _rank(shape, source, costs[shape].best(budget)))


def _least(shape: Shape, source: Source) -> float:
    """The estimated bytes in the smallest precision."""
    return min(shapes.estimated_bytes(shape, source, name) for name in PRECISIONS)


def _most(budget: Budget) -> float:
    return 1e6 * budget.max_mb * (1 + SLACK)


def _rank(shape: Shape, source: Source, precision: str) -> tuple[bool, bool, float]:
    """Starts come first, then shapes in 8 bits, then those with the most products."""
    return not source.is_start(shape), ROWS[precision].bits < 8, -shapes.products(shape, source)


def _largest(
    family: list[Shape],
    source: Source,
    budget: Budget,
    measure: Callable[[Shape], Cost | str],
    costs: dict[Shape, Cost],
) -> list[Shape]:
    """The largest shape of a family that keeps to the budget, or none: in 8 bits if any does, but of a start
    the one of most tokens. What is too large by a share shows how much smaller the next one must be."""

    def fits_in_8(shape: Shape) -> bool:
        return shapes.estimated_bytes(shape, source, "int8") <= _most(budget)

    def size(shape: Shape) -> tuple[float, float, float]:
        if source.is_start(shape):  # as many tokens as can be: no training makes up for those that lack
            return source.tokens(shape), fits_in_8(shape), shape.table
        usual = shape.vocabulary == USUAL
        return fits_in_8(shape), shapes.products(shape, source) * (1 + usual), shape.table

    left, in_fewer_bits = sorted(family, key=size, reverse=True), list[Shape]()
    for _ in range(TRIES):
        if not left:
            break
        shape, *left = left
        cost = measure(shape)
        if isinstance(cost, str):
            continue
        costs[shape] = cost
        excess, precision = cost.nearest(budget)
        may_fit_in_8 = ROWS[cost.best(budget)].bits < 8 and fits_in_8(shape)
        if excess <= 0 and may_fit_in_8 and not source.is_start(shape):
            in_fewer_bits = in_fewer_bits or [shape]  # a smaller one may fit in 8
            continue
        if excess <= 0:
            return [shape]
        of_time = cost.p50_ms[precision] > budget.max_p50_ms
        estimate = shapes.products if of_time else partial(shapes.estimated_bytes, precision=precision)
        most = estimate(shape, source) / (1 + excess)
        left = [other for other in left if estimate(other, source) <= most]
    return in_fewer_bits


def _nothing_fits(budget: Budget, costs: dict[Shape, Cost]) -> str:
    if not costs:
        fact = f"nothing that this teacher allows can be built within {budget}"
        return f"no candidate: {fact}; give a larger budget or another teacher"
    shape, cost = min(costs.items(), key=lambda item: item[1].nearest(budget))
    _, precision = cost.nearest(budget)
    size, p50 = cost.size_bytes[precision] / 1e6, cost.p50_ms[precision]
    need = [f"--max-mb {1.05 * size:.2g}"] if size > budget.max_mb else []
    need += [f"--max-p50-ms {1.05 * p50:.2g}"] if p50 > budget.max_p50_ms else []
    return (
        f"budget: nothing fits {budget} ({len(costs)} candidates measured); the nearest is "
        f"{shape.name}: {cost.described(precision)}, graph and tokenizer together; give {' '.join(need)}"
    )
