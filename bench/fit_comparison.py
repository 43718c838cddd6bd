"""A finished fit on suites: its winner, the start it had, a shipped student as it is, and its teacher.

python bench/fit_comparison.py FIT --suites sts7,search-test [--data DIR] --out REPORT

The report has the fit's budget, minutes, verdict and candidates with their measures, and each suite's scores
by `winner`, `start` and `teacher`; bench/RESULTS.md shows it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from edgedistill import files, recipe, run
from edgedistill.evaluation import scoring
from edgedistill.fitting import judge, record
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.teacher.embedder import open_teacher
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student.prepared_student import PreparedStudent


def encoders(folder: Path, done: dict[str, Any], session: Session) -> dict[str, Any]:
    """What is scored, by name."""
    state = record.read(folder)
    assert state is not None, f"{folder}: not a fit"
    teacher = open_teacher(recipe.Teacher(**state.teacher or {}), session)
    assert isinstance(teacher, TeacherEncoder), "a fit needs a model"
    scored: dict[str, Any] = {
        "winner": bundle.load(folder / "bundle", precision=done["winner"]["precision"]),
        "teacher": judge.by_roles(teacher, session),
    }
    if state.start is not None:
        student = PreparedStudent.of(run.open_run(folder / record.TRIALS / state.start.name))
        scored["start"] = judge.encoder(student, state.start.precision)
    return scored


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fit", type=Path, help="the folder of a finished fit")
    parser.add_argument("--suites", default="sts7", help="separated by commas")
    parser.add_argument("--data", type=Path, default=os.environ.get("EDGEDISTILL_DATA"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    done = record.result(arguments.fit)
    assert done is not None, f"{arguments.fit}: not finished"
    scored = encoders(arguments.fit, done, Session(arguments.data, "cpu", print))
    suites = dict[str, dict[str, float]]()
    for name in arguments.suites.split(","):
        suite = scoring.suite(name, arguments.data)
        suites[name] = {
            who: round(float(scoring.evaluate(suite, each)["average"]), 5) for who, each in scored.items()
        }
        print(name, suites[name], flush=True)
    kept = ("budget", "seconds", "winner", "verdict", "teacher", "start", "candidates", "texts")
    state = record.read(arguments.fit)
    assert state is not None
    report = {
        **{key: done[key] for key in kept},
        "minutes": state.settings["minutes"],
        "recipe": {"teacher": state.teacher, "corpus": state.corpus},
        "suites": suites,
    }
    if arguments.out:
        files.write_json(arguments.out, report)


if __name__ == "__main__":
    main()
