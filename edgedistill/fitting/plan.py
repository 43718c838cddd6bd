"""What is decided before the race: the corpus, the candidates that keep to the budget, how many of them race
and for how long.

Everything is recorded in the study as it is found, so that a fit that is killed here goes on where it was.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.fitting import candidates, pace, starts, texts
from edgedistill.fitting.agreement_score import Judge
from edgedistill.fitting.candidates import Choice, FinishedStudent, StartingPoint, Vocabulary
from edgedistill.fitting.pace import Pace, Schedule
from edgedistill.fitting.request import FitRequest
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
TEACHER_SECONDS = 3.0  # for measuring the teacher's speed, which decides how many texts it embeds
FEW_STEPS = 200  # of a candidate's whole training: below, a student has hardly begun to learn
SUITE = "mini"  # measured on where no other is named


@dataclass(frozen=True)
class Fit:
    """A fit at work: what it was asked for, its folder, its study, and the teacher that all candidates
    share."""

    request: FitRequest
    folder: Path
    study: optuna.Study
    session: Session
    pace: Pace
    teacher: TeacherEncoder

    def known(self, name: str) -> Any:
        """What was recorded under a name, None where nothing was."""
        return self.study.user_attrs.get(name)

    @property
    def suite(self) -> scoring.Suite | None:
        return (
            scoring.suite(self.request.suite, self.request.data) if self.request.suite is not None else None
        )

    @property
    def schedule(self) -> Schedule:
        return Schedule(**self.known("schedule"))

    @property
    def racing_seconds(self) -> float:
        """The seconds of its minutes that are not kept for the end."""
        total = 60 * self.request.minutes
        return total - self.pace.finish_s - self.pace.finish_share * total

    def corpus(self) -> Corpus:
        """The corpus that all candidates train on."""
        return texts.build(self.known("corpus"), self.session, self.request.seed)

    def judge(self) -> Judge:
        return Judge(self.teacher, self.corpus(), self.suite, self.session)

    def timed_texts(self) -> list[str]:
        """Short texts whose latency is measured: those that `bench` takes too."""
        sample = scoring.suite(self.request.suite or SUITE, self.request.data).sample(TIMED_TEXTS)
        return [text for text in sample if isinstance(text, str)]

    def workshop(self) -> Workshop:
        """What candidates are built from, as the plan found it."""
        known = self.known("start")
        start = StartingPoint(
            **{**known, "finished": tuple(FinishedStudent(**each) for each in known["finished"])}
        )
        vocabularies = {name: Vocabulary(**each) for name, each in self.known("vocabularies").items()}
        folder, target = self.folder / VOCABULARIES, self.request.budget.target
        return Workshop(self.teacher, self.corpus(), start, vocabularies, folder, self.timed_texts(), target)

    def survey(self, workshop: Workshop) -> Survey:
        """What has been measured, of all shapes."""
        choices = candidates.choices(workshop.start, workshop.vocabularies)
        found = Survey(choices, workshop.start, workshop.vocabularies, self.request.budget)
        for params, cost, reason in self.known("survey") or []:
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
            "teacher": self.known("teacher"),
            "corpus": self.known("corpus"),
            **candidates.sections(choice, workshop.start, workshop.vocabularies),
            "stages": [stage],
        }


def open_teacher(request: FitRequest, study: optuna.Study, session: Session) -> TeacherEncoder:
    """The teacher of a request, a model or a finished run, in the dtype that was chosen when the fit
    began."""
    session = replace(session, data=request.data)
    if "teacher" not in study.user_attrs:
        chosen = load_models.quickest(request.teacher, session)
        study.set_user_attr("teacher", chosen.model_dump(mode="json", exclude_defaults=True))
    known = recipe.Teacher(**study.user_attrs["teacher"])
    return with_weights(load_models.open_teacher(known, session), "--teacher")


def make(fit: Fit, started: float) -> None:
    """Decide everything that is not decided yet. started: when the fit began, by time.time().

    Raises UserError as its parts do.
    """
    if fit.known("corpus") is None:
        _choose_texts(fit)
    corpus = fit.corpus()
    if fit.known("vocabularies") is None:
        sample = corpus.texts(range(min(texts.SAMPLE, len(corpus))))
        start = starts.find(fit.teacher, sample, fit.session)
        fit.session.log("vocabularies that students can have")
        quiet = replace(fit.session, log=silent)
        found = starts.vocabularies(start, fit.teacher, corpus, quiet, fit.folder / VOCABULARIES)
        fit.study.set_user_attr("start", asdict(start))
        sections = {name: {**asdict(each), "section": dict(each.section)} for name, each in found.items()}
        fit.study.set_user_attr("vocabularies", sections)
    workshop = fit.workshop()
    survey = fit.survey(workshop)
    if fit.known("surveyed") is None:
        _measure(fit, workshop, survey)
        fit.study.set_user_attr("surveyed", True)
    fit.judge()  # embeds all texts: after the survey, which refuses a budget that nothing meets
    if fit.known("schedule") is None:
        _schedule(fit, workshop, survey, started)


def _choose_texts(fit: Fit) -> None:
    """Check the texts, and limit them to what the teacher can embed in its share of the time."""
    request, session = fit.request, fit.session
    found = texts.read(request, session)
    report = texts.check(found, fit.teacher)
    for line in [*(f"texts: {fact}" for fact in report.facts), *(f"weak: {each}" for each in report.weak)]:
        session.log(line)
    every = ToEmbed(fit.teacher, found, len(found))
    rate = training_time.seconds_per_text(every, session.device, TEACHER_SECONDS)
    most = int(60 * request.minutes * fit.pace.teacher_share / rate)
    if most < texts.LEAST_TEXTS:
        least = math.ceil(texts.LEAST_TEXTS * rate / fit.pace.teacher_share / 60)
        fact = f"the teacher embeds {1 / rate:.0f} texts/s here, {most:,} in its share of the time"
        needed = f"{texts.LEAST_TEXTS} are needed"
        raise UserError(f"--minutes: too few for the teacher's pass: {fact}, and {needed}; give {least}")
    joined, cost = texts.paragraphs(found), 1.0
    if joined:
        seconds = TEACHER_SECONDS
        cost = training_time.seconds_per_given(fit.teacher, joined, session.device, seconds) / rate
    section = texts.training_section(request, found, most, cost)
    if section.get("limit", len(found)) < len(found):
        session.log(
            f"texts: {section['limit']:,} of them, spread evenly: what the teacher can embed in its share of "
            "the time"
        )
    fit.study.set_user_attr("texts", {"facts": report.facts, "weak": report.weak})
    fit.study.set_user_attr("corpus", section)


def _measure(fit: Fit, workshop: Workshop, survey: Survey) -> None:
    """Survey the shapes until enough of them keep to the budget."""
    fit.session.log(f"{len(survey.choices):,} shapes; measuring those that may fit {fit.request.budget}")
    seconds = 60 * fit.request.minutes * fit.pace.survey_share
    survey.run(workshop.cost, fit.pace.wanted, seconds, lambda choice: record_cost(fit, survey, choice))


def record_cost(fit: Fit, survey: Survey, choice: Choice) -> None:
    """Log what a shape costs, or the first time why it cannot be built, and keep it."""
    cost, budget = survey.costs.get(choice), fit.request.budget
    if cost is None:
        reason = survey.impossible[choice]
        if list(survey.impossible.values()).count(reason) == 1:
            fit.session.log(f"  {choice.name}, and others that are not listed: cannot be built: {reason}")
    else:
        over = "" if cost.fitting(budget) else ", over the budget"
        fit.session.log(f"  {choice.name}: {cost.described(cost.best(budget))}{over}")
    measured = [[each.params, asdict(cost), None] for each, cost in survey.costs.items()]
    impossible = [[each.params, None, reason] for each, reason in survey.impossible.items()]
    fit.study.set_user_attr("survey", [*measured, *impossible])


def first_choices(survey: Survey) -> list[Choice]:
    """The shapes that fit, in the order in which they race.

    Kinds and depths take turns; of each, those in the precision that costs least accuracy come first, then
    those with the most products.
    """
    families: dict[tuple[str, int], list[Choice]] = {}
    for choice in survey.fitting:
        families.setdefault((choice.kind, choice.layers), []).append(choice)
    for members in families.values():
        members.sort(key=lambda each: (_bits_rank(each, survey), -candidates.products(each, survey.start)))

    def order(family: tuple[str, int]) -> tuple[int, float]:
        most = max(candidates.products(each, survey.start) for each in families[family])
        return candidates.KIND_ORDER[family[0]], -most

    ranked = [families[family] for family in sorted(families, key=order)]
    return [
        members[turn] for turn in range(max(map(len, ranked))) for members in ranked if turn < len(members)
    ]


def _bits_rank(choice: Choice, survey: Survey) -> int:
    """0 where a shape keeps to the budget with 8 bits for a weight, 1 where only with 4."""
    return candidates.PRECISIONS.index(survey.costs[choice].best(survey.budget)) // 2


def _schedule(fit: Fit, workshop: Workshop, survey: Survey, started: float) -> None:
    """Choose the race, and enter its first candidates with their steps."""
    ranked = first_choices(survey)
    slowest = next(
        (choice for choice in ranked if choice.kind == "bert"), ranked[0]
    )  # its layers and its table are fitted
    setup = _setup_seconds(fit, workshop, slowest)
    left = fit.racing_seconds - (time.time() - started) - fit.pace.timing_s * len(ranked)
    found = pace.schedule(len(ranked), fit.request.minutes, left, setup, fit.pace)
    minutes = f"{found.seconds / 60:.1f} minutes of training for one that gets to the end"
    fit.session.log(
        f"race: {found.counts[0]} candidates, about {found.counts[-1]} of them to the end; {minutes}"
    )
    chosen = ranked[: found.counts[0] - found.proposed]
    entered = [attributes(fit, workshop, survey, choice, found) for choice in chosen]
    _warn_of_few_steps(
        fit, [each["recipe"]["stages"][0] for each in entered], workshop.corpus.training_count, left
    )
    raced = {
        trial.user_attrs["name"] for trial in fit.study.get_trials(deepcopy=False)
    }  # where it was killed in this loop
    for choice, each in zip(chosen, entered, strict=True):
        if choice.name not in raced:
            enter(fit, survey, choice, each)
    fit.study.set_user_attr("planned_s", time.time() - started)
    fit.study.set_user_attr("schedule", asdict(found))


def _warn_of_few_steps(fit: Fit, stages: list[dict[str, Any]], texts: int, left: float) -> None:
    """Record that there is little time to train, and how much would do. left: seconds for the race; texts: to
    train on.
    """
    slowest = min(stages, key=lambda stage: stage["steps"])
    steps = int(slowest["steps"])
    if steps >= min(FEW_STEPS, fit.pace.most_epochs * texts / slowest["batch"]):
        return
    more = math.ceil(fit.request.minutes + left / 60 * (FEW_STEPS / steps - 1))
    fact = (
        f"there is time for {steps:,} training steps of the slowest candidate, and it has hardly learned "
        f"before {FEW_STEPS}"
    )
    weak = f"{fact}; give --minutes {more}, or use `edgedistill adapt`, which needs fewer"
    fit.session.log(f"weak: {weak}")
    known = fit.known("texts")
    fit.study.set_user_attr("texts", {**known, "weak": [*known["weak"], weak]})


def enter(fit: Fit, survey: Survey, choice: Choice, known: dict[str, Any]) -> None:
    """Add a candidate to the race."""
    state, values = TrialState.RUNNING, distributions(survey.choices)
    fit.study.add_trial(
        create_trial(state=state, params=choice.params, distributions=values, user_attrs=known)
    )


def distributions(choices: Iterable[Choice]) -> dict[str, CategoricalDistribution]:
    """All values of each parameter of the shapes, in order."""
    values = {
        name: sorted({getattr(choice, name) for choice in choices}) for name in Choice.__dataclass_fields__
    }
    return {name: CategoricalDistribution(tuple(each)) for name, each in values.items()}


def attributes(
    fit: Fit, workshop: Workshop, survey: Survey, choice: Choice, schedule: Schedule
) -> dict[str, Any]:
    """The attributes of a candidate's trial; its steps are timed here."""
    cost = survey.costs[choice]
    batch = candidates.stage(choice, workshop.start, workshop.corpus.training_count)["batch"]
    epoch_steps = workshop.corpus.training_count / batch
    steps = pace.steps(schedule, _step_seconds(fit, workshop, choice), epoch_steps, fit.pace)
    precision = cost.best(fit.request.budget)
    made = fit.recipe(choice, workshop, steps)
    return {"name": choice.name, "recipe": made, "precision": precision, "cost": asdict(cost), "scores": []}


def _step_seconds(fit: Fit, workshop: Workshop, choice: Choice) -> float:
    """Seconds of an optimizer step of a candidate, by a few steps of one with random weights."""
    spec = recipe.parse(fit.recipe(choice, workshop, 1_000), choice.name)
    rows = [checks.StageRows(None, workshop.corpus.training_count)]
    opened = Opened(spec, Models(fit.teacher), workshop.corpus, rows, workshop.student(choice))
    flush_denormals()
    with torch.random.fork_rng(devices=[]):
        return training_time.step_seconds(
            opened, 0, train.accelerator_for(spec, fit.session.device), fit.pace.timing_s
        )


def _setup_seconds(fit: Fit, workshop: Workshop, choice: Choice) -> float:
    """Seconds from the start of a run to its first step, measured on one candidate."""
    spec = recipe.parse(fit.recipe(choice, workshop, 1_000), choice.name)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        session = replace(fit.session, log=silent)
        training_data.build(open_recipe(spec, session, Path(folder)), session, Path(folder))
    return time.perf_counter() - started
