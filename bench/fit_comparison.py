"""A finished fit beside a hand-made recipe that had as many seconds, and beside all of its candidates trained
to the end.

python bench/fit_comparison.py FIT --recipe recipes/flagship/nano.yaml [--all] [--suites sts7,retrieval]
[--data DIR] --out REPORT

The hand-made recipe keeps its student, targets, objective and optimizer, and takes the fit's teacher and
corpus; of its stages only the first, as the others need labels that a fit has not. `--set KEY=VALUE` changes
in it what another teacher does not allow. Its steps are as many as fit into the seconds that the winner
trained, by short runs of it. Every student is scored as in the race, by its agreement with the teacher on the
fit's held-out texts, in its own precision. `--all`: candidates that fell train on from their checkpoints; the
report then has the rank correlation of every rung's scores with the final ones. Each training is a process of
one thread, and writes what it found into FIT/comparison, so a second call goes on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from scipy.stats import spearmanr

HAND_MADE = "hand-made"
PILOT_S = 15.0  # that a short run takes longer than one of a single step


def at_work(arguments: argparse.Namespace) -> Any:
    """The fit, opened."""
    from edgedistill.fitting import record
    from edgedistill.fitting.pace import PACE
    from edgedistill.fitting.plan import Fit
    from edgedistill.session import Session

    state = record.read(arguments.fit) or sys.exit(f"{arguments.fit}: not a fit")
    asked = TypeAdapter(record.FitRequest).validate_python({**state.settings, "data": arguments.data})
    return Fit(asked, arguments.fit, state, Session(arguments.data, "cpu", print), PACE)


def candidates(fit: Any) -> dict[str, Any]:
    """All candidates, by name."""
    return {each.name: each for each in fit.state.candidates}


def finished(fit: Any) -> dict[str, Any]:
    """The fit's result."""
    from edgedistill.fitting import record

    return record.result(fit.folder) or sys.exit(f"{fit.folder}: not finished")


def winner(fit: Any) -> Any:
    """The candidate that won."""
    return candidates(fit)[finished(fit)["winner"]["candidate"]]


def trained_seconds(scores: list[dict[str, Any]]) -> float:
    """Of training and setting up, without scoring."""
    before = [0, *(score["step"] for score in scores)]
    return float(
        sum(
            (score["step"] - done) * score["step_seconds"]
            for score, done in zip(scores, before, strict=False)
        )
    )


def train_hand_made(fit: Any, path: str, changes: list[str]) -> dict[str, Any]:
    """Train the hand-made recipe, with changes, for the winner's seconds."""
    import shutil

    import yaml

    from edgedistill import recipe, resolve, run
    from edgedistill.fitting import cost as costs
    from edgedistill.fitting.score import encoder
    from edgedistill.training import train
    from edgedistill.training.initial_student.prepared_student import PreparedStudent

    given, seconds = (
        yaml.safe_load(recipe.dump(recipe.read(path, changes))),
        trained_seconds(winner(fit).scores),
    )
    stage = {name: value for name, value in given["stages"][0].items() if name not in ("epochs", "steps")}
    shared = {
        "name": HAND_MADE,
        "seed": fit.request.seed,
        "teacher": fit.state.teacher,
        "corpus": fit.state.corpus,
    }
    kept = {name: given[name] for name in ("student", "targets") if name in given}

    def run_for(steps: int, folder: Path) -> float:
        for each in (folder, resolve.unfinished_run(folder)):
            shutil.rmtree(each, ignore_errors=True)
        started = time.perf_counter()
        train.train(
            recipe.parse({**shared, **kept, "stages": [{**stage, "steps": steps}]}, path), folder, fit.session
        )
        return time.perf_counter() - started

    folder = fit.folder / "comparison"
    run_for(1, folder / "pilot")  # fills the caches
    setup, pilot = run_for(1, folder / "pilot"), 30
    while (spent := run_for(pilot, folder / "pilot") - setup) < PILOT_S:
        pilot *= 3
    steps = max(1, int((seconds - setup) * (pilot - 1) / spent))
    spent = run_for(steps, folder / HAND_MADE)
    student = PreparedStudent.of(run.open_run(folder / HAND_MADE))
    cost = costs.measured(student, fit.timed_texts)
    precision = cost.best(fit.request.budget)
    score = fit.judge.score(encoder(student, precision))
    size, p50 = cost.size_bytes[precision] / 1e6, cost.p50_ms[precision]
    made = {"recipe": path, **({"changes": changes} if changes else {})}
    return {
        **made,
        "precision": precision,
        "size_mb": size,
        "p50_ms": p50,
        "steps": steps,
        "seconds": round(spent, 1),
        **score,
    }


def train_to_end(fit: Any, name: str) -> dict[str, Any]:
    """Train a candidate that fell to its last step, from its checkpoint."""
    from edgedistill.fitting import pace, race

    return race.train_to_rung(fit, candidates(fit)[name], len(pace.SHARES) - 1)


def suites(fit: Any, names: list[str], hand_made: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The scores of the winner's bundle and of the hand-made student on suites, by suite."""
    from edgedistill import run
    from edgedistill.evaluation import scoring
    from edgedistill.fitting.score import encoder
    from edgedistill.runtime import bundle
    from edgedistill.training.initial_student.prepared_student import PreparedStudent

    won = finished(fit)["winner"]
    encoders = {
        "winner": bundle.load(fit.folder / "bundle", precision=won["precision"], threads=1).encode,
        HAND_MADE: encoder(
            PreparedStudent.of(run.open_run(fit.folder / "comparison" / HAND_MADE)), hand_made["precision"]
        ),
    }
    found = {}
    for name in names:
        suite = scoring.suite(name, fit.request.data)
        found[name] = {
            who: round(float(scoring.evaluate(suite, encode)["average"]), 5)
            for who, encode in encoders.items()
        }
    return found


def report(fit: Any, folder: Path, names: list[str]) -> dict[str, Any]:
    """Everything that was found, as one object."""
    from edgedistill import files
    from edgedistill.fitting import pace

    done, won = finished(fit), winner(fit)
    hand_made = (
        files.read_json(folder / f"{HAND_MADE}.json") if (folder / f"{HAND_MADE}.json").exists() else None
    )
    best = {**done["winner"], "trained_seconds": round(trained_seconds(won.scores), 1)}
    parts = {
        "budget": done["budget"],
        "seconds": done["seconds"],
        "schedule": done["schedule"],
        "winner": best,
        "recipe": won.recipe,
    }
    scores = {
        name: [score["score"] for score in each.scores]
        for name, each in candidates(fit).items()
        if each.is_trained
    }
    ends = {}
    for name, found in scores.items():
        if len(found) == len(pace.SHARES):
            ends[name] = found[-1]
        elif (folder / f"{name}.json").exists():
            ends[name] = files.read_json(folder / f"{name}.json")["score"]
    rungs: list[dict[str, Any]] = [
        {"share": share, "scores": {name: found[at] for name, found in scores.items() if at < len(found)}}
        for at, share in enumerate(pace.SHARES[:-1])
    ]
    for rung in rungs:
        both = [name for name in rung["scores"] if name in ends]
        if len(both) > 2:
            rung["rank_correlation"] = round(
                float(spearmanr([rung["scores"][n] for n in both], [ends[n] for n in both]).statistic), 4
            )
            rung["candidates"] = len(both)
    compared = suites(fit, names, hand_made) if hand_made and names else {}
    return {
        **parts,
        "hand_made": hand_made,
        "suites": compared,
        "rungs": rungs,
        "trained_to_the_end": ends,
        "texts": done["texts"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fit", type=Path, help="the folder of a finished fit")
    parser.add_argument("--recipe", help="a hand-made recipe to compare with")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a value of that recipe; repeatable",
    )
    parser.add_argument("--all", action="store_true", help="train the candidates that fell, too")
    parser.add_argument("--suites", default="", help="also scored on these, separated by commas")
    parser.add_argument("--data", type=Path, default=os.environ.get("EDGEDISTILL_DATA"))
    parser.add_argument("--workers", type=int, default=2, help="trainings side by side")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help="train this one only, in this process")
    arguments = parser.parse_args()
    from edgedistill import files

    folder = arguments.fit / "comparison"
    folder.mkdir(exist_ok=True)
    fit = at_work(arguments)
    if arguments.one:
        import torch

        from edgedistill.teacher.encoder import flush_denormals

        flush_denormals()
        torch.set_num_threads(1)
        hand_made = arguments.one == HAND_MADE
        found = (
            train_hand_made(fit, arguments.recipe, arguments.set)
            if hand_made
            else train_to_end(fit, arguments.one)
        )
        files.write_json(folder / f"{arguments.one}.json", found)
        return
    wanted = [HAND_MADE] if arguments.recipe else []
    if arguments.all:
        wanted += [name for name, each in candidates(fit).items() if each.fell and each.scores]

    def train_one(name: str) -> None:
        command = [sys.executable, __file__, str(arguments.fit), "--one", name]
        command += ["--recipe", arguments.recipe] if arguments.recipe else []
        command += [f"--set={change}" for change in arguments.set]
        command += ["--data", str(arguments.data)] if arguments.data else []
        with (folder / f"{name}.log").open("wb") as log:
            subprocess.run(
                command, check=True, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
        print(f"{name}: {files.read_json(folder / f'{name}.json')['score']:.4f}", flush=True)

    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(train_one, [name for name in wanted if not (folder / f"{name}.json").exists()]))
    found = report(fit, folder, [name for name in arguments.suites.split(",") if name])
    if arguments.out:
        files.write_json(arguments.out, found)
    print({name: found[name] for name in ("winner", "hand_made", "suites")})


if __name__ == "__main__":
    main()
