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
from edgedistill.session import Log, Session, wrapped
from edgedistill.teacher.embedder import open_teacher
from edgedistill.teacher.encoder import device_of, flush_denormals
from edgedistill.training import cache_passes, train
from edgedistill.training import resume as resuming
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.load_models import with_weights
from edgedistill.training.open_recipe import open_recipe
from edgedistill.training.training_sources import TrainingSources

EXPORT_S = 15.0  # that are kept for export


def adapt(request: Request, session: Session, resume: bool = False) -> dict[str, Any]:
    """Adapt a finished student to texts and export it. Returns {recipe, run, bundle, suite, texts, steps,
    data, seconds, before, after, teacher, better, verdict, search, report}.

    Where training has brought nothing, the student is exported as it was, and the run has what was trained.
    With `resume`, an interrupted adaptation goes on. Raises UserError for an unknown student or precision,
    too few texts or minutes, a student without its teacher.
    """
    flush_denormals()
    session = replace(session, data=session.data or Path(), device=device_of(session.device))
    precisions = known_precisions(request.precisions)
    source = bundle_run.open_finished(request.student, "adapt")
    spec = _recipe(request, source, session, resume)
    before_s = time.perf_counter()
    passes = cache_passes.passes(open_recipe(spec, session), session)
    opened_s = time.perf_counter() - before_s
    for embedding in passes:
        embedding.run()  # before the minutes for training are counted
    sources = TrainingSources.of_recipe(spec, session)
    taught = with_weights(open_teacher(spec.teacher, session), "--teacher")
    measuring = Judge(taught, sources.texts.sides[0], session, queries.asked(sources))
    before_s = time.perf_counter()
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
        left = 60 * request.minutes - kept - (time.perf_counter() - request.began)
        spec = timed(spec, request.minutes, left, session)
    info = train.train(spec, request.run, session, resume)
    trained = PreparedStudent.of(run.open_run(request.run))
    adapted = judge.encoder(trained, precisions[0])
    after = measuring.measures(adapted)
    better = judge.is_better(after, before, teacher)
    asked = {name: measuring.asked[name] for name in queries.TITLES if name in measuring.asked}
    if asked:
        _write_suite(request.suite, asked)
    if better:
        bundle_writer.export(str(request.run), precisions, request.out, session.log)
    else:
        _export_start(request, source, session.log)
    encoders = {"before": student, "after": adapted, "teacher": measuring.by_teacher}
    searched = queries.compared(asked, encoders)
    measured = {"before": before, "after": after, "teacher": teacher}
    steps = sum(stage["steps"] for stage in info["stages"])
    result = {
        "recipe": str(request.run / "recipe.yaml"),
        "run": str(request.run),
        "bundle": str(request.out),
        "suite": str(request.suite / "suite.yaml") if asked else None,
        "texts": info["corpus"]["texts"],
        "steps": steps,
        "data": str(session.data),
        "seconds": round(time.perf_counter() - request.began, 1),
        **measured,
        "better": better,
        "verdict": judge.verdict(before, after, teacher, steps),
        "search": searched,
    }
    compared = [request.student] if isinstance(source, bundle_run.BundleRun) else []
    table = judge.table(measured, searched, len(measuring.texts))
    return {**result, "report": "\n".join([table, *_next(request, result, compared)])}


def _recipe(request: Request, source: run.Run, session: Session, resume: bool) -> recipe.Recipe:
    """A new recipe, or that of the adaptation which goes on. Raises UserError as both, and for an earlier run
    that is neither to go on nor to be replaced."""
    folder, partial = request.run, resolve.unfinished_run(request.run)
    if not (folder.exists() if resume else request.overwrite):
        resuming.check_unfinished(folder, resume, "replace it with --overwrite")
    if resume:
        return resumed(request, source, (folder if folder.exists() else partial) / "recipe.yaml", session)
    spec = planned(request, source, session)
    for earlier in (folder, partial) if request.overwrite else ():
        shutil.rmtree(earlier, ignore_errors=True)
    return spec


def _export_start(request: Request, source: run.Run, log: Log) -> None:
    """Export the student as it was: a bundle is copied, since converting it again gives other embeddings."""
    if isinstance(source, bundle_run.BundleRun):
        with files.new_folder(request.out) as folder:
            bundle_writer.copy(source.folder, folder)
    else:
        bundle_writer.export(request.student, list(request.precisions), request.out, log)


def _write_suite(folder: Path, asked: Mapping[str, Queries]) -> None:
    """Write the held-out queries as a suite, with the texts among which each is to find its own."""
    with files.new_folder(folder) as temporary:
        for name, collection in asked.items():
            (temporary / name).mkdir()
            for file, texts in (("corpus", collection.documents), ("queries", collection.queries)):
                rows = [files.json_text({"_id": at, "text": text}) + "\n" for at, text in enumerate(texts)]
                files.write_text(temporary / name / f"{file}.jsonl", "".join(rows))
            grades = ["query-id\tcorpus-id\tscore\n"]
            for query, graded in enumerate(collection.relevance):
                grades += [f"{query}\t{text}\t{grade}\n" for text, grade in graded.items()]
            files.write_text(temporary / name / "qrels.tsv", "".join(grades))
        tasks = [{"name": name, "folder": name} for name in asked]
        suite = {"name": folder.name, "kind": "retrieval", "about": "Held out by adapt.", "tasks": tasks}
        files.write_json(temporary / "suite.yaml", suite)  # JSON is YAML


def _next(request: Request, result: dict[str, Any], compared: list[str]) -> list[str]:
    """The verdict, and how to search with the bundle and to measure one again that is better."""
    data, bundle, suite = result["data"], result["bundle"], result["suite"]
    places = request.texts if data == "." else [os.path.join(data, text) for text in request.texts]
    commands = [["search", "your question", *places, bundle]]
    commands += [["bench", *compared, bundle, "--suite", suite]] if suite and result["better"] else []
    return [
        "",
        *wrapped(result["verdict"]),
        "",
        *(shlex.join(["edgedistill", *command]) for command in commands),
    ]
