"""The adaptation: the recipe is planned, trained and exported, and what the student knew of the texts before
and after is compared."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from edgedistill import bundle_run, resolve, run
from edgedistill.adapting.plan import Request, planned, resumed
from edgedistill.data.training_sources import TrainingSources
from edgedistill.evaluation import scoring, teacher_agreement
from edgedistill.evaluation.tables import plain
from edgedistill.export import bundle_writer
from edgedistill.fitting import score, search
from edgedistill.precisions import known_precisions
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.teacher.embedder import open_teacher
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training import resume as resuming
from edgedistill.training import student_embeddings, train
from edgedistill.training.initial_student.prepared_student import PreparedStudent

MOST_MEASURED = 3_000  # held-out texts
MEASURES = {
    "top10_overlap": "ten nearest neighbours in common with the teacher",
    "spearman": "rank correlation of pairwise cosines with the teacher's",
    "cosine": "mean cosine to the teacher's embeddings",
    "mini": "mini (STS of general texts)",
}


def adapt(request: Request, session: Session, resume: bool = False) -> dict[str, Any]:
    """Adapt a finished student to texts and export it. Returns {recipe, run, bundle, texts, steps, data,
    seconds, before, after, search, table}.

    With `resume`, an interrupted adaptation goes on. Raises UserError for an unknown student or precision,
    too few texts, a student without its teacher.
    """
    started = time.perf_counter()
    session = replace(session, data=session.data or Path())
    precisions = known_precisions(request.precisions)
    source = bundle_run.open_finished(request.student, "adapt")
    folder, partial = request.run, resolve.unfinished_run(request.run)
    if not (folder.exists() if resume else request.overwrite):
        resuming.check_unfinished(folder, resume, "replace it with --overwrite")
    if resume:
        spec = resumed(request, source, (folder if folder.exists() else partial) / "recipe.yaml", session)
    else:
        spec = planned(request, source, session, started)
        for earlier in (folder, partial) if request.overwrite else ():
            shutil.rmtree(earlier, ignore_errors=True)
    sources = TrainingSources.of_recipe(spec, session)
    built, (pairs, *_) = sources.texts.sides[0], [*map(sources.tuples, sources.tables), None]
    assert spec.corpus is not None
    queries = search.asked(built, spec.corpus.held_out, pairs)
    info = train.train(spec, folder, session, resume)
    session.log(f"{folder}: exporting {', '.join(precisions)}")
    bundle_writer.export(str(folder), precisions, request.out, session.log)
    on_device = replace(session, device=train.accelerator_for(spec, session.device).device.type)
    teacher = open_teacher(spec.teacher, on_device)
    assert isinstance(teacher, TeacherEncoder), "a file of embeddings was refused"
    held_out, embeddings = score.held_out(teacher, built, MOST_MEASURED, session)
    session.log(f"comparing before and after on {len(held_out):,} held-out texts")
    adapted = scoring.Encoder.of(bundle.load(request.out))
    students = {"before": _encoder(request.student, source), "after": adapted}
    measured = {name: _measure(encoder, held_out, embeddings) for name, encoder in students.items()}
    encoders = {"teacher": score.by_roles(teacher, on_device), **students}
    found = search.compared(queries, encoders, "after", session)
    return {
        "recipe": str(folder / "recipe.yaml"),
        "run": str(folder),
        "bundle": str(request.out),
        "texts": info["corpus"]["texts"],
        "steps": spec.distilling[0].steps,
        "data": str(session.data),
        "seconds": round(time.perf_counter() - started, 1),
        **measured,
        "search": found,
        "table": _table(measured, found, len(held_out)),
    }


def usage(found: dict[str, Any]) -> str:
    """What to do with an adapted student, in lines: the result of `adapt` has its bundle and its recipe."""
    again = f"edgedistill train {found['recipe']} --data {found['data']} --out runs/again"
    return (
        f"{found['bundle']}  the bundle:\n"
        "    import edgedistill\n"
        f'    encoder = edgedistill.load("{found["bundle"]}")\n'
        '    embeddings = encoder.encode(["A text.", "Another one."])\n'
        f"{found['recipe']}  its recipe: {again}"
    )


def _encoder(name: str, source: run.Run) -> scoring.Encoder:
    """What embeds texts as the student did before: the bundle, or the run in torch."""
    if isinstance(source, bundle_run.BundleRun):
        return scoring.Encoder.of(bundle.load(name))
    prepared = PreparedStudent.of(source)
    return student_embeddings.encoder(prepared.module, prepared)


def _measure(encoder: scoring.Encoder, held_out: list[str], teacher: np.ndarray) -> dict[str, float | None]:
    """The MEASURES of a student: its agreement with the teacher's embeddings (n, d) of held-out texts, and
    its score on the suite that ships.

    `cosine` is None where student and teacher have different dimensions.
    """
    found = teacher_agreement.agreement(encoder.text(held_out), teacher)
    mini = scoring.evaluate(scoring.suite("mini"), encoder)["average"]
    agreeing = {name: found[name] for name in ("spearman", "top10_overlap")}
    return {"cosine": found["cosine_mean"], **agreeing, "mini": mini}


def _table(measured: dict[str, dict[str, float | None]], found: dict[str, Any], count: int) -> str:
    """Both students side by side, in search beside the teacher."""
    sheet = Table("", title=f"{count:,} held-out texts", title_justify="left")
    for title in ("before", "after", "teacher"):
        sheet.add_column(title, justify="right")
    for key, name in MEASURES.items():
        if measured["after"][key] is not None:
            sheet.add_row(name, *(_shown(measured[each][key]) for each in ("before", "after")))
    for title, values in search.lines(found):
        sheet.add_row(title, *(_shown(values.get(each)) for each in ("before", "after", "teacher")))
    return plain(sheet)


def _shown(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"
