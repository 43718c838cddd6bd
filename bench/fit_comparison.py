"""A finished fit on suites: its winner, the start it had, a shipped student as it is, and its teacher.

python bench/fit_comparison.py FIT --suites sts7,search-test [--beside nano] [--data DIR] --out REPORT

The report has this machine, on which the fit should have run; the fit's budget, minutes, verdict and
candidates with their measures; and each suite's scores by `winner`, `start`, `teacher` and the names of
shipped students. bench/RESULTS.md shows it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from edgedistill import files, machine, recipe, run
from edgedistill.evaluation import scoring
from edgedistill.fitting import judge, record
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.teacher.embedder import open_teacher
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student.prepared_student import PreparedStudent


def encoders(
    folder: Path, done: dict[str, Any], tokens: int | None, beside: list[str], session: Session
) -> dict[str, Any]:
    """What is scored, by name; the teacher reads so many tokens."""
    state = record.read(folder)
    assert state is not None, f"{folder}: not a fit"
    spec = recipe.Teacher(**{**(state.teacher or {}), **({} if tokens is None else {"max_tokens": tokens})})
    teacher = open_teacher(spec, session)
    assert isinstance(teacher, TeacherEncoder), "a fit needs a model"
    scored: dict[str, Any] = {
        "winner": bundle.load(folder / "bundle", precision=done["winner"]["precision"]),
        **{name: bundle.load(name) for name in beside},
    }
    if state.start is not None:
        student = PreparedStudent.of(run.open_run(folder / record.TRIALS / state.start.name))
        scored["start"] = judge.encoder(student, state.start.precision)
    return {**scored, "teacher": judge.by_roles(teacher, session)}


def portable(state: record.State) -> dict[str, Any]:
    """The teacher and the texts of a fit, without folders of this machine."""
    teacher, rows = dict(state.teacher or {}), dict(state.corpus or {})
    teacher["model"] = files.portable(str(teacher["model"]))
    return {"teacher": teacher, "rows": {**rows, "files": list(map(files.portable, rows["files"]))}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fit", type=Path, help="the folder of a finished fit")
    parser.add_argument("--suites", default="sts7", help="separated by commas")
    parser.add_argument("--beside", nargs="*", default=[], help="shipped students to score as well")
    parser.add_argument("--tokens", type=int, help="that the teacher reads of a text; default: as in the fit")
    parser.add_argument("--data", type=Path, default=os.environ.get("EDGEDISTILL_DATA"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    done = record.result(arguments.fit)
    assert done is not None, f"{arguments.fit}: not finished"
    session = Session(arguments.data, "cpu", print)
    scored = encoders(arguments.fit, done, arguments.tokens, arguments.beside, session)
    state = record.read(arguments.fit)
    assert state is not None
    kept = ("budget", "seconds", "winner", "verdict", "teacher", "start", "candidates")
    suites = dict[str, dict[str, float]]()
    report = {
        **{key: done[key] for key in kept},
        "machine": machine.here(),
        "minutes": state.settings["minutes"],
        "recipe": portable(state),
        "suites": suites,
    }
    for who, encoder in scored.items():
        for name in arguments.suites.split(","):
            score = scoring.evaluate(scoring.suite(name, arguments.data), encoder)["average"]
            suites.setdefault(name, {})[who] = round(float(score), 5)
            print(name, who, suites[name][who], flush=True)
            if arguments.out:
                files.write_json(arguments.out, report)


if __name__ == "__main__":
    main()
