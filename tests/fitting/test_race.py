"""The race by itself: who trains next, who falls, how many fit into the minutes."""

from __future__ import annotations

import math

import pytest

from edgedistill.errors import UserError
from edgedistill.fitting import pace, race
from edgedistill.fitting.pace import Means, Pace, Schedule
from edgedistill.fitting.storage import Entry

SCHEDULE = Schedule((4, 2, 1), (1 / 16, 1 / 4, 1.0), 160.0)


def entry(number: int, scores: list[float], goal: int, worker: str | None = None, state: str = "running", kind: str = "bert") -> Entry:
    details = {rung: {"score": score, "step": 10 * 4**rung, "steps": 160, "step_seconds": 1.0} for rung, score in enumerate(scores)}
    return Entry(number, f"c{number}", {"kind": kind}, {}, "int8", {}, goal, details, worker, None, state)


def nobody(name: str | None) -> bool:
    return False


def everybody(name: str | None) -> bool:
    return name is not None


def test_candidates_train_in_turn_and_a_dead_process_is_replaced() -> None:
    entries = [entry(0, [], 0, "gone"), entry(1, [], 0), entry(2, [], 0), entry(3, [], 0)]
    assert race.next_step(entries, SCHEDULE, False, nobody) == race.Train(entries[0])
    assert race.next_step(entries, SCHEDULE, False, everybody) == race.Train(entries[1])
    busy = [entry(number, [], 0, "other") for number in range(4)]
    assert race.next_step(busy, SCHEDULE, False, everybody) == race.Wait()


def test_the_sampler_is_asked_only_in_the_first_rung() -> None:
    entries = [entry(0, [0.5], 0), entry(1, [0.4], 0), entry(2, [], 0, "other")]
    assert race.next_step(entries, SCHEDULE, False, everybody) == race.Propose()
    assert race.next_step(entries, SCHEDULE, True, everybody) == race.Wait()  # it has no more
    later = [entry(0, [0.5], 1, "other"), entry(1, [0.4], 0, state="pruned")]
    assert race.next_step(later, SCHEDULE, False, everybody) == race.Wait()


def test_the_best_of_a_rung_go_on() -> None:
    entries = [entry(0, [0.5], 0), entry(1, [0.7], 0), entry(2, [math.nan], 0), entry(3, [0.6], 0)]
    step = race.next_step(entries, SCHEDULE, False, nobody)
    assert isinstance(step, race.Promote)
    assert ([each.number for each in step.best], [each.number for each in step.others]) == ([1, 3], [0, 2])
    why = race.why_it_fell(entries[0], 3, step, SCHEDULE)
    assert why == "at rung 1 of 3, after 10 of 160 steps: 0.500, place 3 of 4; the best 2 went on"
    finished = [entry(0, [0.5], 0, state="pruned"), entry(1, [0.7, 0.8, 0.9], 2)]
    last = race.next_step(finished, SCHEDULE, True, nobody)
    assert isinstance(last, race.Promote) and (last.rung, len(last.best), last.others) == (2, 1, [])
    assert race.next_step([entry(0, [0.9], 2, state="complete")], SCHEDULE, True, nobody) == race.Over()


def test_the_best_of_each_kind_leaves_the_first_rung() -> None:
    entries = [entry(0, [0.9], 0), entry(1, [0.8], 0), entry(2, [0.5], 0, kind="bilstm"), entry(3, [0.6], 0, kind="bilstm")]
    step = race.next_step(entries, SCHEDULE, False, nobody)
    assert isinstance(step, race.Promote)
    assert ([each.number for each in step.best], [each.number for each in step.others]) == ([0, 3], [1, 2])
    why = race.why_it_fell(entries[1], 2, step, SCHEDULE)
    assert why == "at rung 1 of 3, after 10 of 160 steps: 0.800, place 2 of 4; the best 2, with one of each kind, went on"


def test_what_still_grows_is_preferred_to_what_does_not() -> None:
    entries = [entry(0, [0.7, 0.71], 1), entry(1, [0.5, 0.65], 1)]
    assert race.expected_score(entries[0], 1, SCHEDULE.shares) == pytest.approx(0.72)
    assert race.expected_score(entries[1], 1, SCHEDULE.shares) == pytest.approx(0.80)
    step = race.next_step(entries, SCHEDULE, True, nobody)
    assert isinstance(step, race.Promote) and [each.number for each in step.best] == [1]
    why = race.why_it_fell(entries[0], 2, step, SCHEDULE)
    assert why == (
        "at rung 2 of 3, after 40 of 160 steps: 0.710, 0.720 to be expected at the end, place 2 of 2; the best 1 went on, from 0.800"
    )
    ended = [entry(0, [0.7, 0.71, 0.9], 2), entry(1, [0.5, 0.65, 0.8], 2)]
    assert [race.expected_score(each, 2, SCHEDULE.shares) for each in ended] == [0.9, 0.8]  # nothing is left to expect


def test_fewer_finalists_where_time_is_short() -> None:
    schedule = Schedule((4, 2, 2), (1 / 16, 1 / 4, 1.0), 160.0)
    entries = [entry(0, [0.5, 0.6], 1), entry(1, [0.7, 0.8], 1)]
    step = race.next_step(entries, schedule, True, nobody)
    assert isinstance(step, race.Promote) and len(step.best) == 2
    assert len(race.finalists(step, schedule, 241.0, 1).best) == 2  # 2 × (160 − 40) steps of a second
    assert [each.number for each in race.finalists(step, schedule, 239.0, 1).best] == [1]
    assert len(race.finalists(step, schedule, 239.0, 2).best) == 2  # side by side
    assert len(race.finalists(step, schedule, -10.0, 1).best) == 1
    assert len(race.finalists(step, schedule, -10.0, 2).best) == 2  # the second one costs no time
    first = race.Promote(0, entries, [], step.expected)
    assert race.finalists(first, schedule, -10.0, 1) == first


def test_the_minutes_decide_how_many_race() -> None:
    rich = pace.schedule(Means(3_000, 2, 20, 7), 30)
    assert rich.counts == (16, 4, 2) and rich.proposed == 4
    # 8 turns of 1/16, 2 of 3/16, 1 of 3/4, side by side; setups of 8 × 20 + 3 × 7
    assert rich.seconds == pytest.approx((0.9 * 3_000 - 181) / (8 / 16 + 2 * 3 / 16 + 3 / 4))
    assert pace.schedule(Means(3_000, 2, 20, 7), 5).counts == (4, 1)  # no more keep to the budget
    assert pace.schedule(Means(3_000, 2, 20, 7), 1).counts == (1,)
    poor = pace.schedule(Means(150, 1, 5, 2), 30)
    assert len(poor.counts) == 2 and poor.counts[0] < 6 and poor.seconds * poor.shares[0] >= Pace().shortest_rung_s


def test_minutes_too_few_for_one_rung() -> None:
    with pytest.raises(UserError) as caught:
        pace.schedule(Means(60, 1, 30, 10), 10)
    assert str(caught.value) == (
        "--minutes: too few for one rung: 60 s are left for training, and the race of 2 candidates needs 161 s; give 2 minutes more"
    )
    assert pace.schedule(Means(60 + 120, 1, 30, 10), 10).counts == (2, 1)


def test_steps_follow_the_time_and_the_texts() -> None:
    assert pace.steps(SCHEDULE, 0.5, 100, Pace()) == 320
    assert pace.steps(SCHEDULE, 0.001, 100, Pace(most_epochs=3)) == 300  # more passes bring nothing
    assert pace.steps(SCHEDULE, 1_000, 100, Pace()) == 3  # a step a rung at least
    assert [pace.rung_steps(101, share) for share in SCHEDULE.shares] == [7, 26, 101]
