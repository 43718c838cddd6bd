"""Which candidate to try next: Optuna's TPE, taught by the scores of those already raced, among the shapes that probably fit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from edgedistill.fitting.candidates import Choice
from edgedistill.fitting.storage import Entry

ASKED = 400  # proposals at most, until one is among those allowed


def axes(choices: Sequence[Choice]) -> dict[str, list[Any]]:
    """All values of each parameter of the shapes, in order."""
    return {name: sorted({getattr(choice, name) for choice in choices}) for name in Choice.__dataclass_fields__}


def propose(entries: Sequence[Entry], choices: Sequence[Choice], allowed: Collection[Choice], seed: int) -> Choice | None:
    """A shape among those allowed, by TPE over the scores so far; the first allowed where it finds none, None where there is none.

    entries: those raced. choices: all shapes.
    """
    import optuna
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import create_trial

    if not allowed:
        return None
    values = axes(choices)
    distributions = {name: CategoricalDistribution(tuple(each)) for name, each in values.items()}
    sampler = optuna.samplers.TPESampler(seed=seed + len(entries), n_startup_trials=4, multivariate=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for entry in entries:
        if entry.last_score is not None:
            study.add_trial(create_trial(params=entry.params, distributions=distributions, value=entry.last_score))
    wanted = set(allowed)
    for _ in range(ASKED):
        choice = Choice(**study.ask(distributions).params)
        if choice in wanted:
            return choice
    return next(iter(allowed))
