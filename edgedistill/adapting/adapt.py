"""The adaptation: the recipe is planned, the student measured, trained, measured again, and the better of
both exported, with the held-out queries as a suite beside it."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgedistill import bundle_run, files, recipe, resolve, run
from edgedistill.adapting.plan import Request, planned, resumed, timed
from edgedistill.evaluation import scoring
from edgedistill.export import bundle_writer
from edgedistill.fitting import judge, queries
from edgedistill.fitting.judge import Judge
from edgedistill.fitting.queries import Queries
from edgedistill.precisions import known_precisions
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.teacher.embedder import open_teacher
from edgedistill.teacher.encoder import TeacherEncoder, device_of, flush_denormals
from edgedistill.training import cache_passes, train
from edgedistill.training import resume as resuming
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.open_recipe import open_recipe
from edgedistill.training.training_sources import TrainingSources

EXPORT_S = 15.0  # that are kept for export


def adapt(request: Request, session: Session, resume: bool = False) -> dict[str, Any]:
    """Adapt a finished student to texts and export it. Returns {recipe, run, bundle, suite, texts, steps,
    data, seconds, before, after, teacher, better, verdict, search, report}.

    Where training has brought nothing, the student as it was is exported. With `resume`, an interrupted
    adaptation goes on. Raises UserError for an unknown student or precision, too few texts, a student without
    its teacher.
    """
    flush_denormals()
    session = replace(session, data=session.data or Path(), device=device_of(session.device))
    precisions = known_precisions(request.precisions)
    source = bundle_run.open_finished(request.student, "adapt")
    folder, partial = request.run, resolve.unfinished_run(request.run)
    if not (folder.exists() if resume else request.overwrite):
        resuming.check_unfinished(folder, resume, "replace it with --overwrite")
    if resume:
        spec = resumed(request, source, (folder if folder.exists() else partial) / "recipe.yaml", session)
    else:
        spec = planned(request, source, session)
        for earlier in (folder, partial) if request.overwrite else ():
            shutil.rmtree(earlier, ignore_errors=True)
    before_s = time.perf_counter()
    passes = cache_passes.passes(open_recipe(spec, session), session)
    opened_s = time.perf_counter() - before_s
    for each in passes:
        each.run()  # before the minutes for training are counted
    measuring = _judge(spec, session)
    before_s = time.perf_counter()
    session.log(f"measuring {request.student} on {len(measuring.texts):,} held-out texts")
    if isinstance(source, bundle_run.BundleRun):
        student = scoring.Encoder.of(bundle.load(request.student))
    else:
        student = judge.encoder(PreparedStudent.of(source), precisions[0])
    before = measuring.measures(student)
    measured_s, teacher = time.perf_counter() - before_s, measuring.teacher
    if weak := judge.weaker_teacher(teacher, before):
        session.log(f"weak: {weak}")
    if not resume and request.steps is None:
        kept = EXPORT_S + 2 * measured_s + opened_s
        spec = timed(spec, 60 * request.minutes - kept - (time.perf_counter() - request.began), session)
    info = train.train(spec, folder, session, resume)
    trained = PreparedStudent.of(run.open_run(folder))
    after = measuring.measures(judge.encoder(trained, precisions[0]))
    better = judge.is_better(after, before, teacher)
    if not better:
        _keep_start(request, spec, session)
    asked = {name: each for name, each in measuring.asked.items() if name in queries.TITLES}
    if asked:
        _write_suite(request.suite, asked)
    session.log(f"{folder}: exporting {', '.join(precisions)}")
    bundle_writer.export(str(folder), precisions, request.out, session.log)
    encoders = {
        "before": student,
        "after": scoring.Encoder.of(bundle.load(request.out)),
        "teacher": measuring.by_teacher,
    }
    found = queries.compared(asked, encoders, "after", session)
    measured = {"before": before, "after": after, "teacher": teacher}
    result = {
        "recipe": str(folder / "recipe.yaml"),
        "run": str(folder),
        "bundle": str(request.out),
        "suite": str(request.suite / "suite.yaml") if asked else None,
        "texts": info["corpus"]["texts"],
        "steps": sum(stage["steps"] for stage in info["stages"]),
        "data": str(session.data),
        "seconds": round(time.perf_counter() - request.began, 1),
        **measured,
        "better": better,
        "verdict": judge.verdict(before, after, teacher),
        "search": found,
    }
    compared = [request.student] if isinstance(source, bundle_run.BundleRun) else []
    table = judge.table(measured, found, len(measuring.texts))
    return {**result, "report": "\n".join([table, *_next(request, result, compared)])}


def _judge(spec: recipe.Recipe, session: Session) -> Judge:
    """What measures students on what the recipe holds out."""
    sources = TrainingSources.of_recipe(spec, session)
    built, (pairs, *_) = sources.texts.sides[0], [*map(sources.of_stage, sources.tables), None]
    assert spec.rows is not None
    teacher = open_teacher(spec.teacher, session)
    assert isinstance(teacher, TeacherEncoder), "a file of embeddings was refused"
    return Judge(teacher, built, session, queries.asked(built, spec.rows.held_out, pairs))


def _keep_start(request: Request, spec: recipe.Recipe, session: Session) -> None:
    """Put the student as it was in the place of the run that has brought nothing."""
    stage = spec.stages[0].model_copy(update={"minutes": None, "steps": 0})
    shutil.rmtree(request.run)
    train.train(spec.model_copy(update={"stages": [stage]}), request.run, session)


def _write_suite(folder: Path, asked: Mapping[str, Queries]) -> None:
    """Write the held-out queries as a suite, with the texts among which each is to find its own."""
    with files.new_folder(folder) as temporary:
        for name, each in asked.items():
            lines = {
                f"{file}.jsonl": [files.json_text({"_id": at, "text": text}) for at, text in enumerate(texts)]
                for file, texts in (("corpus", each.documents), ("queries", each.queries))
            }
            lines["qrels.tsv"] = ["query-id\tcorpus-id\tscore"]
            for query, graded in enumerate(each.relevance):
                lines["qrels.tsv"] += [f"{query}\t{text}\t{grade}" for text, grade in graded.items()]
            (temporary / name).mkdir()
            for file, content in lines.items():
                files.write_text(temporary / name / file, "\n".join([*content, ""]))
        tasks = [{"name": name, "folder": name} for name in asked]
        suite = {"name": folder.name, "kind": "retrieval", "about": "Held out by adapt.", "tasks": tasks}
        files.write_json(temporary / "suite.yaml", suite)  # JSON is YAML


def _next(request: Request, found: dict[str, Any], compared: list[str]) -> list[str]:
    """How to measure again, the verdict, and how to search with the bundle."""
    data, bundle, suite = found["data"], found["bundle"], found["suite"]
    places = request.texts if data == "." else [os.path.join(data, text) for text in request.texts]
    commands = [["bench", *compared, bundle, "--suite", suite]] if suite else []
    commands.append(["search", "your question", *places, bundle])
    *others, search = (shlex.join(["edgedistill", *command]) for command in commands)
    return [*others, "", found["verdict"], search]
