"""What is decided before the race: the corpus, the candidates that keep to the budget, how many of them race and for how long.

Everything is recorded in the storage as it is found, so that a fit that is killed here goes on where it was.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.fitting import candidates, contention, latency, pace, sampler, starts, texts
from edgedistill.fitting.agreement_score import Judge
from edgedistill.fitting.candidates import Choice, FinishedStudent, StartingPoint, Vocabulary
from edgedistill.fitting.pace import Pace, Schedule
from edgedistill.fitting.request import FitRequest
from edgedistill.fitting.storage import Storage
from edgedistill.fitting.student_cost import Cost, Workshop
from edgedistill.fitting.survey import Survey
from edgedistill.planning import training_time
from edgedistill.planning.training_time import ToEmbed
from edgedistill.session import Session, silent
from edgedistill.teacher.encoder import TeacherEncoder, flush_denormals
from edgedistill.training import checks, load_models, train, training_data
from edgedistill.training.load_models import Models, with_weights
from edgedistill.training.open_recipe import Opened, open_recipe

TIMED_TEXTS = 48  # of the suite: those whose latency is measured
VOCABULARIES = "vocabularies"  # the folder of their tokenizers
FEW_STEPS = 200  # of a candidate's whole training: below, a student has hardly begun to learn
SUITE = "mini"  # measured on where no other is named


@dataclass
class Fit:
    """A fit at work: what it was asked for, its folder, its storage, and what all candidates share."""

    request: FitRequest
    folder: Path
    storage: Storage
    session: Session
    pace: Pace
    workers: int
    teacher: TeacherEncoder

    @property
    def suite(self) -> scoring.Suite | None:
        return scoring.suite(self.request.suite, self.request.data) if self.request.suite is not None else None

    @property
    def schedule(self) -> Schedule:
        known = self.storage.get("schedule")
        return Schedule(**{**known, "counts": tuple(known["counts"]), "shares": tuple(known["shares"])})

    def corpus(self) -> Corpus:
        """The corpus that all candidates train on."""
        return texts.build(self.storage.get("corpus"), self.session, self.request.seed)

    def judge(self) -> Judge:
        return Judge(self.teacher, self.corpus(), self.suite, self.session)

    def timed_texts(self) -> list[str]:
        """Short texts whose latency is measured: those that `bench` takes too."""
        sample = scoring.suite(self.request.suite or SUITE, self.request.data).sample(TIMED_TEXTS)
        return [text for text in sample if isinstance(text, str)]

    def workshop(self) -> Workshop:
        """What candidates are built from, as the plan found it."""
        known = self.storage.get("start")
        start = StartingPoint(**{**known, "finished": tuple(FinishedStudent(**each) for each in known["finished"])})
        vocabularies = {name: Vocabulary(**each) for name, each in self.storage.get("vocabularies").items()}
        return Workshop(
            self.teacher, self.corpus(), start, vocabularies, self.folder / VOCABULARIES, self.timed_texts(), self.request.budget.target
        )

    def survey(self, workshop: Workshop) -> Survey:
        """What has been measured, of all shapes."""
        choices = candidates.choices(workshop.start, workshop.vocabularies)
        found = Survey(choices, workshop.start, workshop.vocabularies, self.request.budget)
        for params, cost, reason in self.storage.get("survey") or []:
            if cost is not None:
                found.costs[Choice(**params)] = Cost(**cost)
            else:
                found.impossible[Choice(**params)] = reason
        return found

    def recipe(self, choice: Choice, workshop: Workshop, steps: int) -> dict[str, Any]:
        """The recipe of a candidate, as data."""
        stage = candidates.stage(choice, workshop.start, workshop.corpus.training_count) | {"steps": steps}
        return {
            "name": choice.name,
            "seed": self.request.seed,
            "teacher": self.storage.get("teacher"),
            "corpus": self.storage.get("corpus"),
            **candidates.sections(choice, workshop.start, workshop.vocabularies),
            "stages": [stage],
        }


def open_teacher(request: FitRequest, storage: Storage, session: Session) -> TeacherEncoder:
    """The teacher of a request, a model or a finished run, in the dtype that the fit's first process chose."""
    session = replace(session, data=request.data)
    if storage.get("teacher") is None:
        chosen = load_models.quickest(request.teacher, session)
        storage.set("teacher", chosen.model_dump(mode="json", exclude_defaults=True))
    return with_weights(load_models.open_teacher(recipe.Teacher(**storage.get("teacher")), session), "--teacher")


def make(fit: Fit, started: float) -> None:
    """Decide everything that is not decided yet. started: when the fit began, by time.time(). Raises UserError as its parts do."""
    storage, session = fit.storage, fit.session
    if storage.get("corpus") is None:
        _choose_texts(fit)
    corpus = fit.corpus()
    if storage.get("vocabularies") is None:
        start = starts.find(fit.teacher, corpus.texts(range(min(texts.SAMPLE, len(corpus)))), session)
        session.log("vocabularies that students can have")
        found = starts.vocabularies(start, fit.teacher, corpus, replace(session, log=silent), fit.folder / VOCABULARIES)
        storage.set("start", asdict(start))
        storage.set("vocabularies", {name: {**asdict(each), "section": dict(each.section)} for name, each in found.items()})
    workshop = fit.workshop()
    survey = fit.survey(workshop)
    if storage.get("surveyed") is None:
        _measure(fit, workshop, survey)
        storage.set("surveyed", True)
    Judge(fit.teacher, corpus, None, session)  # embeds all texts: after the survey, which refuses a budget that nothing meets
    if storage.get("schedule") is None:
        _schedule(fit, workshop, survey, started)


def _choose_texts(fit: Fit) -> None:
    """Check the texts, and limit them to what the teacher can embed in its share of the time."""
    request, session = fit.request, fit.session
    found = texts.read(request, session)
    report = texts.check(found, fit.teacher)
    for line in [*(f"texts: {fact}" for fact in report.facts), *(f"weak: {each}" for each in report.weak)]:
        session.log(line)
    rate = training_time.seconds_per_text(ToEmbed(fit.teacher, found, len(found)), session.device, training_time.TEACHER_SECONDS)
    most = int(60 * request.minutes * fit.pace.teacher_share / rate)
    if most < texts.LEAST_TEXTS:
        least = math.ceil(texts.LEAST_TEXTS * rate / fit.pace.teacher_share / 60)
        fact = f"the teacher embeds {1 / rate:.0f} texts/s here, {most:,} in its share of the time, and {texts.LEAST_TEXTS} are needed"
        raise UserError(f"--minutes: too few for the teacher's pass: {fact}; give {least}")
    joined, cost = texts.paragraphs(found), 1.0
    if joined:
        cost = training_time.seconds_per_given(fit.teacher, joined, session.device, training_time.TEACHER_SECONDS) / rate
    section = texts.training_section(request, found, most, cost)
    if section.get("limit", len(found)) < len(found):
        session.log(f"texts: {section['limit']:,} of them, spread evenly: what the teacher can embed in its share of the time")
    fit.storage.set("texts", {"facts": report.facts, "weak": report.weak})
    fit.storage.set("corpus", section)


def _measure(fit: Fit, workshop: Workshop, survey: Survey) -> None:
    """Survey the shapes until enough of them keep to the budget."""
    budget = fit.request.budget
    fit.session.log(f"{len(survey.choices):,} shapes; measuring those that may fit {budget}")

    latency.check_target(budget.target)
    seconds = 60 * fit.request.minutes * fit.pace.survey_share
    survey.run(workshop.cost, fit.pace.wanted, seconds, lambda choice: _record(fit, survey, choice))


def measure(fit: Fit, workshop: Workshop, survey: Survey, choice: Choice) -> None:
    """Measure one more shape, and record it."""
    survey.measure(choice, workshop.cost, lambda each: _record(fit, survey, each))


def _record(fit: Fit, survey: Survey, choice: Choice) -> None:
    """Log what a shape costs, or the first time why it cannot be built, and keep it."""
    cost, budget = survey.costs.get(choice), fit.request.budget
    if cost is None:
        reason = survey.impossible[choice]
        if list(survey.impossible.values()).count(reason) == 1:
            fit.session.log(f"  {choice.name}, and others that are not listed: cannot be built: {reason}")
    else:
        fits = cost.fitting(budget)
        shown = cost.described(fits[0] if fits else cost.nearest(budget)[1])
        fit.session.log(f"  {choice.name}: {shown}{'' if fits else ', over the budget'}")
    known = [*survey.costs, *survey.impossible]
    fit.storage.set("survey", [[x.params, asdict(survey.costs[x]) if x in survey.costs else None, survey.impossible.get(x)] for x in known])


def first_choices(survey: Survey) -> list[Choice]:
    """The shapes that fit, in the order in which they race: kinds and depths take turns, those with the most products first."""
    families: dict[tuple[str, int], list[Choice]] = {}
    for choice in survey.fitting:
        families.setdefault((choice.kind, choice.layers), []).append(choice)
    for members in families.values():
        members.sort(key=lambda each: (_preference(each, survey), -candidates.products(each, survey.start)))

    def order(family: tuple[str, int]) -> tuple[int, float]:
        return candidates.KIND_ORDER[family[0]], -max(candidates.products(each, survey.start) for each in families[family])

    ranked = sorted(families, key=order)
    return [families[family][turn] for turn in range(max(map(len, families.values()))) for family in ranked if turn < len(families[family])]


def _preference(choice: Choice, survey: Survey) -> int:
    """0 for the precision that costs an embedding least."""
    return candidates.PRECISIONS.index(survey.costs[choice].fitting(survey.budget)[0]) // 2


def _schedule(fit: Fit, workshop: Workshop, survey: Survey, started: float) -> None:
    """Choose the race, and enter its first candidates with their steps."""
    total = 60 * fit.request.minutes
    finish = fit.pace.finish_s + fit.pace.finish_share * total
    ranked = first_choices(survey)
    slowest = next((choice for choice in ranked if choice.kind == "bert"), ranked[0])  # to set up: its layers and its table are fitted
    with contention.as_in_the_race(fit.workers):
        setup = _setup_seconds(fit, workshop, slowest)
        left = total - (time.time() - started) - finish
        means = pace.Means(left - fit.pace.timing_s * len(ranked), fit.workers, setup, setup / 3)
        found = pace.schedule(means, len(ranked), fit.pace)
        fit.session.log(described(found, fit.workers))
        entered = [entry_attributes(fit, workshop, survey, choice, found) for choice in ranked[: found.counts[0] - found.proposed]]
    _warn_of_few_steps(fit, [attributes for _, attributes in entered])
    values = sampler.axes(survey.choices)
    with fit.storage.turn():
        if not fit.storage.entries():
            for choice, attributes in entered:
                fit.storage.add(choice.params, values, attributes)
        fit.storage.set("planned_s", time.time() - started)
        fit.storage.set("schedule", found.as_data())


def _warn_of_few_steps(fit: Fit, entered: list[dict[str, Any]]) -> None:
    """Record that there is little time to train."""
    fewest = min(int(each["recipe"]["stages"][0]["steps"]) for each in entered)
    if fewest < FEW_STEPS:
        weak = f"there is time for {fewest:,} training steps of the slowest candidate; give more --minutes for a surer choice"
        fit.session.log(f"weak: {weak}")
        found = fit.storage.get("texts")
        fit.storage.set("texts", {**found, "weak": [*found["weak"], weak]})


def described(schedule: Schedule, workers: int) -> str:
    """The race in a line."""
    counts = ", then ".join(str(count) for count in schedule.counts)
    side = f", {workers} at a time" if workers > 1 else ""
    return f"race: {counts} candidates; {schedule.seconds / 60:.1f} minutes of training for one that gets to the end{side}"


def entry_attributes(fit: Fit, workshop: Workshop, survey: Survey, choice: Choice, schedule: Schedule) -> tuple[Choice, dict[str, Any]]:
    """A candidate with the attributes of its trial: its steps are timed here."""
    cost = survey.costs[choice]
    per_step = step_seconds(fit, workshop, choice)
    batch = candidates.stage(choice, workshop.start, workshop.corpus.training_count)["batch"]
    steps = pace.steps(schedule, per_step, workshop.corpus.training_count / batch, fit.pace)
    return choice, {
        "name": choice.name,
        "recipe": fit.recipe(choice, workshop, steps),
        "precision": cost.fitting(fit.request.budget)[0],
        "cost": asdict(cost),
        "goal": 0,
    }


def step_seconds(fit: Fit, workshop: Workshop, choice: Choice) -> float:
    """Seconds of an optimizer step of a candidate, by a few steps of one with random weights."""
    spec = recipe.parse(fit.recipe(choice, workshop, 1_000), choice.name)
    rows = [checks.StageRows(None, workshop.corpus.training_count)]
    opened = Opened(spec, Models(fit.teacher), workshop.corpus, rows, None, workshop.student(choice))
    flush_denormals()
    with torch.random.fork_rng(devices=[]):
        return training_time.step_seconds(opened, 0, train.accelerator_for(spec, fit.session.device), fit.pace.timing_s)


def _setup_seconds(fit: Fit, workshop: Workshop, choice: Choice) -> float:
    """Seconds from the start of a run to its first step, measured on one candidate."""
    spec = recipe.parse(fit.recipe(choice, workshop, 1_000), choice.name)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        session = replace(fit.session, log=silent)
        training_data.build(open_recipe(spec, session, Path(folder)), session, Path(folder))
    return time.perf_counter() - started
