"""What is decided before the race: the corpus, the candidates that keep to the budget, how many of them race
and for how long.

Everything is recorded as it is found, so that a fit that is killed here goes on where it was.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.rows import Rows
from edgedistill.data.training_sources import TrainingSources
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.fitting import candidates, pace, record, search, starts, texts
from edgedistill.fitting import cost as costs
from edgedistill.fitting.candidates import Choice, StartingPoint, Vocabulary
from edgedistill.fitting.cost import Cost, Survey
from edgedistill.fitting.pace import Pace, Schedule
from edgedistill.fitting.record import Candidate, FitRequest, State
from edgedistill.fitting.score import Judge
from edgedistill.planning import training_time
from edgedistill.session import Session, silent
from edgedistill.teacher.embedder import open_teacher
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training import checks, load_models, teacher_cache, train, training_data
from edgedistill.training.initial_student import finished_student, initial_weights, student_tokenizer
from edgedistill.training.load_models import Models
from edgedistill.training.open_recipe import Opened, open_recipe

TIMED_TEXTS = 48  # of the suite: those whose latency is measured
PAIRS = "--pairs"
TEACHER_SECONDS = 3.0  # for measuring the teacher's speed, which decides how many texts it embeds


@dataclass(frozen=True)
class Fit:
    """A fit at work: what it was asked for, its folder and state, and what all candidates share, each opened
    when it is first needed."""

    request: FitRequest
    folder: Path
    state: State
    session: Session
    pace: Pace

    def record(self, **found: Any) -> None:
        """Set what was found or decided in the state, and write it."""
        for name, value in found.items():
            setattr(self.state, name, value)
        self.state.write(self.folder)

    def write_page(self, winner: dict[str, Any] | None = None) -> None:
        """Write fit.html as things stand. `winner` is the entry of fit.json, once there is one."""
        record.write_page(self.state, self.request.budget, self.folder, winner)

    @cached_property
    def teacher(self) -> TeacherEncoder:
        """A model or a finished run, in the dtype that was chosen when the fit began."""
        session = replace(self.session, data=self.request.data)
        if self.state.teacher is None:
            chosen = load_models.quickest(self.request.teacher, session)
            self.record(teacher=chosen.model_dump(mode="json", exclude_defaults=True))
        opened = open_teacher(recipe.Teacher(**self.state.teacher or {}), session)
        return load_models.with_weights(opened, "--teacher")

    @property
    def schedule(self) -> Schedule:
        assert self.state.schedule is not None, "it was planned"
        return self.state.schedule

    @property
    def racing_seconds(self) -> float:
        """The seconds of its minutes that are not kept for the end."""
        total = 60 * self.request.minutes
        return total - self.pace.finish_s - self.pace.finish_share * total

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
        return self.sources.tuples(PAIRS) if self.sources.tables else None

    @cached_property
    def queries(self) -> dict[str, search.Queries]:
        """The queries that search is measured with."""
        assert self.state.corpus is not None, "texts were chosen"
        return search.asked(self.corpus, self.state.corpus["held_out"], self.pairs)

    @cached_property
    def judge(self) -> Judge:
        """What scores the candidates. It embeds all texts."""
        return Judge(self.teacher, self.corpus, self.session, self.queries.get("own"))

    @cached_property
    def timed_texts(self) -> list[str]:
        """Short texts whose latency is measured: those that `bench` takes too."""
        sample = scoring.suite(self.request.suite, self.request.data).sample(TIMED_TEXTS)
        return [text for text in sample if isinstance(text, str)]

    @cached_property
    def start(self) -> StartingPoint:
        """What candidates start from."""
        sample = self.corpus.texts(range(min(texts.SAMPLE, len(self.corpus))))
        return starts.find(self.teacher, sample, self.session)

    @cached_property
    def vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabularies that candidates share."""
        self.session.log("vocabularies that students can have")
        return starts.vocabularies(self.start, self.teacher, self.corpus, self.folder / record.VOCABULARIES)

    @cached_property
    def survey(self) -> Survey:
        """What has been measured, of all shapes."""
        given = self.start, self.vocabularies, self.request.budget
        return Survey(*given, self.cost, self.state.survey, self._record_cost)

    def recipe(self, choice: Choice, steps: int = 1_000) -> dict[str, Any]:
        """The recipe of a candidate, as data."""
        stage = candidates.stage(choice, self.start, self.corpus.training_count)
        return {
            "name": choice.name,
            "seed": self.request.seed,
            "teacher": self.state.teacher,
            "corpus": self.state.corpus,
            "student": candidates.section(choice, self.start, self.vocabularies),
            "stages": search.stages({**stage, "steps": steps}, self.state.pairs),
        }

    def opened(self, choice: Choice) -> Opened:
        """A candidate before training, with weights that nothing was fitted to. Raises UserError where it
        cannot be built."""
        spec = recipe.parse(self.recipe(choice), choice.name)
        finished = finished_student.find(spec, spec.finished) if spec.finished is not None else None
        models = Models(self.teacher, weights=load_models.open_weights(spec.student), finished=finished)
        folder = self.folder / record.VOCABULARIES
        kept = starts.tokenizer_folder(folder, choice.vocabulary)
        tokenizer = student_tokenizer.build(spec, models, self.sources.texts, Session(), kept)
        student = initial_weights.build(spec, models, tokenizer, Session(), fitted=False)
        all_rows = [self.sources.texts, *([] if self.pairs is None else [self.pairs])]
        rows = [checks.StageRows(each, each.training_count) for each in all_rows]
        return Opened(spec, models, self.sources.texts, rows, student)

    def cost(self, choice: Choice) -> Cost:
        """Build, export and measure a candidate. Raises UserError where it cannot be built."""
        return costs.measured(self.opened(choice).student, self.timed_texts)

    def _record_cost(self) -> None:
        """Log what the last shape costs, or the first time why it cannot be built, and keep it."""
        known, budget = self.state.survey, self.request.budget
        choice, cost = known[-1]
        if not isinstance(cost, str):
            over = "" if cost.fitting(budget) else ", over the budget"
            self.session.log(f"  {choice.name}: {cost.described(cost.best(budget))}{over}")
        elif cost not in [reason for _, reason in known[:-1]]:
            self.session.log(f"  {choice.name}, and others that are not listed: cannot be built: {cost}")
        self.record()


def make(fit: Fit, started: float) -> None:
    """Decide everything that is not decided yet. The fit began at `started`, by time.monotonic().

    Raises UserError as its parts do.
    """
    if fit.state.corpus is None:
        _choose_texts(fit)
    if not fit.state.surveyed:
        count = len(fit.survey.choices)
        fit.session.log(f"{count:,} shapes; measuring those that may fit {fit.request.budget}")
        fit.survey.run(fit.pace.wanted, 60 * fit.request.minutes * fit.pace.survey_share)
        fit.record(surveyed=True)
    _ = fit.judge  # embeds all texts: after the survey, which refuses a budget that nothing meets
    if fit.state.schedule is None:
        _schedule(fit, started)


def _choose_texts(fit: Fit) -> None:
    """Check the texts, and limit them to what the teacher can embed in its share of the time."""
    request, session, device = fit.request, fit.session, fit.session.device
    pairs = None if request.pairs is None else search.counted(request.pairs, session)
    fit.state.pairs = pairs
    taken = 0 if pairs is None else sum(map(len, pairs.read(session).sides))  # texts that are embedded, too
    whole = texts.section(request.texts, request.column, request.data)
    found = texts.read({**whole, "limit": texts.MOST_TEXTS}, texts.LEAST_TEXTS, session, request.seed)
    report = texts.check(found, fit.teacher)
    for name, lines in (("texts", report["facts"]), ("weak", report["weak"])):
        for each in lines:
            session.log(f"{name}: {each}")
    sample = training_time.sample(found)
    rate = training_time.seconds_per_text(fit.teacher, sample, device, TEACHER_SECONDS)
    most = int(60 * request.minutes * fit.pace.teacher_share / rate) - taken
    if most < texts.LEAST_TEXTS:
        least = math.ceil((texts.LEAST_TEXTS + taken) * rate / fit.pace.teacher_share / 60)
        fact = f"the teacher embeds {1 / rate:.0f} texts/s here, {most + taken:,} in its share of the time"
        needed = f"{texts.LEAST_TEXTS + taken:,} are needed"
        raise UserError(f"--minutes: too few for the teacher's pass: {fact}, and {needed}; give {least}")
    section = texts.training_section(whole, found, most)
    if section.get("limit", len(found)) < len(found):
        fact = "spread evenly: what the teacher can embed in its share of the time"
        session.log(f"texts: {section['limit']:,} of them, {fact}")
    fit.record(texts=report, corpus=section)
    _ = fit.queries


def first_choices(survey: Survey) -> list[Choice]:
    """The shapes that fit, in the order in which they race.

    Kinds and depths take turns; of each, those in the precision that costs least accuracy come first, then
    those with the most products.
    """

    def rank(choice: Choice) -> tuple[int, float]:
        """(0 where a shape keeps to the budget with 8 bits for a weight, 1 where only with 4; minus its
        products)."""
        bits = candidates.PRECISIONS.index(survey.costs[choice].best(survey.budget)) // 2
        return bits, -candidates.products(choice, survey.start)

    turns, found = Counter[tuple[str, int]](), list[tuple[int, int, float, Choice]]()
    for choice in sorted(survey.fitting, key=rank):
        family = (choice.kind, choice.layers)
        found.append((turns[family], candidates.KINDS.index(choice.kind), rank(choice)[1], choice))
        turns[family] += 1
    return [choice for *_, choice in sorted(found, key=lambda each: each[:3])]


def _schedule(fit: Fit, started: float) -> None:
    """Choose the race, and enter its first candidates with their steps."""
    ranked = first_choices(fit.survey)
    # a transformer takes longest: its layers and its table are fitted
    slowest = next((choice for choice in ranked if choice.kind == "bert"), ranked[0])
    setup, step = _setup_seconds(fit, slowest), _step_seconds(fit, slowest)
    left = fit.racing_seconds - (time.monotonic() - started) - fit.pace.timing_s * len(ranked)
    found = pace.schedule(len(ranked), fit.request.minutes, left, setup, step, fit.pace)
    minutes = f"{found.seconds / 60:.1f} minutes of training for one that gets to the end"
    fit.session.log(
        f"race: {found.counts[0]} candidates, about {found.counts[-1]} of them to the end; {minutes}"
    )
    raced = {each.name for each in fit.state.candidates}
    for choice in ranked[: found.counts[0]]:
        if choice.name not in raced:  # it may have been killed in this loop
            enter(fit, choice, found)
    if found.enough is not None:
        steps = f"there is time for {int(found.seconds / step):,} steps of {slowest.name}"
        weak = f"{steps}, and a student hardly learns in fewer than {pace.FEW_STEPS}"
        weak += f"; give --minutes {found.enough}, or adapt a shipped student: `edgedistill adapt`"
        fit.session.log(f"weak: {weak}")
        fit.state.texts["weak"].append(weak)
    fit.record(planned_s=time.monotonic() - started, schedule=found)


def enter(fit: Fit, choice: Choice, schedule: Schedule) -> None:
    """Add a candidate to the race. Its steps are timed here."""
    epoch_steps = fit.corpus.training_count / fit.recipe(choice)["stages"][0]["batch"]
    steps = pace.steps(schedule, _step_seconds(fit, choice), epoch_steps, fit.pace)
    add(fit, choice, choice.name, fit.recipe(choice, steps), [])


def add(fit: Fit, choice: Choice, name: str, made: dict[str, Any], scores: list[dict[str, Any]]) -> None:
    """Record a candidate of a shape: its name, its recipe, what it costs."""
    cost = fit.survey.costs[choice]
    precision = cost.best(fit.request.budget)
    fit.state.candidates.append(Candidate(name, choice.kind, made, cost, precision, scores))
    fit.record()


def _step_seconds(fit: Fit, choice: Choice) -> float:
    """Seconds of a candidate's training step on texts, measured, with its share of the steps on pairs."""
    opened = fit.opened(choice)
    accelerator = train.accelerator_for(opened.spec, fit.session.device)
    seconds = training_time.student_seconds(opened, accelerator, fit.pace.timing_s)
    return seconds / fit.recipe(choice)["stages"][0]["steps"]


def _setup_seconds(fit: Fit, choice: Choice) -> float:
    """Seconds from the start of a run to its first step, measured on one candidate."""
    opened = fit.opened(choice)
    for each in teacher_cache.passes(opened, fit.session):
        each.run()  # once for all candidates
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        session = replace(fit.session, log=silent)
        training_data.build(open_recipe(opened.spec, session, Path(folder)), session, Path(folder))
    return time.perf_counter() - started
