"""Measure bundles on suites: accuracy, agreement with the teacher, speed and size; write reports and check
the recipes' requirements."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import files, machine
from edgedistill.data import bm25
from edgedistill.errors import CheckFailed, UserError, raise_failed, require
from edgedistill.evaluation import bootstrap, page, report, scoring, speed, tables, teacher_agreement
from edgedistill.evaluation.scoring import Search, Suite
from edgedistill.evaluation.speed import MeasurementPlan, Runner, Target
from edgedistill.evaluation.suites import FAMILIES, FLOAT32_ALONE, cosines
from edgedistill.evaluation.suites.cosines import Measures
from edgedistill.evaluation.suites.retrieval import Collection
from edgedistill.runtime import bundle as bundles_
from edgedistill.runtime import bundle_location
from edgedistill.runtime.arguments import MOST_THREADS, positive
from edgedistill.runtime.bundle import Bundle
from edgedistill.runtime.compact import layout
from edgedistill.session import Log, Session, at_intervals

DEFAULT_SUITE = "sts-small"
UNKNOWN_SHARE = 0.01  # share of a suite's texts with unknown tokens above which it is logged
SAME_MODEL = 0.98  # cosine of two runners' embeddings of a text; kernels of int8 differ by 0.01
AGREEMENT_TEXTS = 5000  # on which students are compared with their teacher, at most


class Outputs(NamedTuple):
    """The files to write: reports as JSON, and one self-contained HTML page."""

    json: Path | None = None
    html: Path | None = None


NO_FILES = Outputs()
BY_COSINE = Search()


@dataclass
class Measured(Target):
    """One bundle in one precision, and what has been measured of it so far."""

    manifest: Measures = field(default_factory=dict)  # of a pair: that of its encoder of queries
    documents: Measures | None = None  # of a pair: what embeds its documents
    quality: dict[str, Measures] = field(default_factory=dict)
    speed: Measures = field(default_factory=dict)
    agreement: Measures | None = None

    @property
    def is_teacher(self) -> bool:
        return bool(self.manifest["kind"] == "teacher") and self.documents is None

    def open(self, session: Session) -> Bundle:
        return bundles_.load(
            self.folder, precision=self.precision, threads=session.threads, device=session.device
        )


def bench(
    bundles: list[str],
    suites: list[str],
    session: Session,
    outputs: Outputs = NO_FILES,
    plan: MeasurementPlan = speed.PLAN,
    search: Search = BY_COSINE,
    runners: Sequence[str] = (speed.OWN,),
    show: Log | None = None,
) -> Measures:
    """Measure bundles ("path", "path:w8", "path:*") on suites, show the table (by default in the log), write
    the outputs, check the recipes' requirements. `search` adds to suites of kind retrieval; `runners` are
    timed, and accuracy is that of the graph in edgedistill's own.

    Returns {schema, reports (without raw samples), requirements}. Raises UserError, before measuring where
    possible, and CheckFailed with the result, after the files are written, when a requirement is not met.
    """
    if not bundles:
        raise UserError(
            "edgedistill bench: no bundle; name one, such as nano, or make one: edgedistill export RUN"
        )
    _check_outputs(outputs)
    threads = machine.default_threads() if session.threads is None else session.threads
    session = replace(session, threads=positive(threads, "threads", MOST_THREADS))
    programs = [Runner.named(name) for name in dict.fromkeys(runners)]
    measured = distinguishable([target for name in bundles for target in targets(name, session.device)])
    opened = _suites(suites, measured, session.data)
    _check_search(search, opened, measured)
    rounds = plan.rounds * (1 + len(measured) * len(programs))  # that of the A/A test too
    progress = _progress(len(measured) * len(opened) + rounds, session.log)
    _accuracy(measured, opened, session, search, progress)
    _compare_scores(measured, plan)
    measured = [replace(target, runner=program) for target in measured for program in programs]
    texts = opened[0].sample(plan.queries)
    timings = speed.measure(measured, texts, replace(session, log=progress), plan)
    for target, timing in zip(measured, timings, strict=True):
        target.speed = timing
        _check_embeddings(target, texts, session)
    described = machine.here(session.device)
    reports = [assemble(target, measured, opened[0].name, described) for target in measured]
    if outputs.json is not None:
        report.write(outputs.json, reports)
    if outputs.html is not None:
        page.write(outputs.html, reports)
    (show or session.log)(tables.terminal(reports))
    _log_conditions(measured, session.log)
    for path in filter(None, outputs):
        session.log(f"wrote {path}")
    result = {"schema": report.SCHEMA, "reports": list(map(report.without_samples, reports))}
    result["requirements"] = checks = []
    for target, made in zip(measured, reports, strict=True):
        checks += report.check_requirements(target.manifest, made)
    unmet = []
    for check in checks:
        what = "{bundle}: {requirement}".format(**check)
        if check["met"] is None:
            session.log(
                f"requirement of {what}: not checked, its suite or its teacher was not measured; add "
                "--suite, the teacher's bundle"
            )
        elif not check["met"]:
            unmet.append(f"{what} is {check['found']:.4f}, its recipe requires {check['required']:g}")
    raise_failed(unmet, **result)
    return result


def targets(name: str, device: str = "cpu") -> list[Measured]:
    """Resolve a bundle as named on the command line, by default in the fastest precision on the device.

    Raises UserError where there is no such bundle or precision.
    """
    opened = bundles_.load(name.removesuffix(":*"), device=device)
    query, *others = opened.encoders
    documents = None
    for encoder in others:
        graph = encoder.manifest["precisions"][encoder.precision]
        names = [encoder.manifest["name"]]
        if "documents" in opened.manifest:  # by both, as the mean
            names.append(query.manifest["name"])
        documents = {"name": " + ".join(names), "precision": encoder.precision}
        documents |= {key: graph[key] for key in ("sha256", "size_bytes")}
    precisions = list(query.manifest["precisions"]) if name.endswith(":*") else [opened.precision]
    about: Measures = {"timed": query.folder, "manifest": query.manifest, "documents": documents}
    return [Measured(opened.folder, precision, **about) for precision in precisions]


def distinguishable(measured: list[Measured]) -> list[Measured]:
    """Return the same bundles; those in different folders of the same name are named by the folder above
    too."""
    folders = Counter(name for name, _ in {(target.name, target.folder.resolve()) for target in measured})
    return [
        replace(target, name="/".join(target.folder.absolute().parts[-2:]))
        if folders[target.name] > 1
        else target
        for target in measured
    ]


def reference(measured: list[Measured]) -> Measured | None:
    """Return the teacher that students are compared with, in fp32 where that is measured."""
    teachers = [target for target in measured if target.is_teacher]
    return min(teachers, key=lambda target: target.precision != "fp32", default=None)


def assemble(
    target: Measured, measured: list[Measured], suite_of_texts: str, described: Measures
) -> Measures:
    """Return the report of one bundle, with every key of KEYS in evaluation/report.py.

    `suite_of_texts` is the suite whose texts were timed, `described` the machine.
    """
    manifest = target.manifest
    graph = target.manifest["precisions"][target.precision]
    teacher = reference(measured)
    kept = {}
    for name, quality in target.quality.items():
        best = teacher.quality.get(name, {}).get("average", 0) if teacher else 0
        kept[name] = quality["average"] / best if best > 0 else None
    return {
        "schema": report.SCHEMA,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "bundle": {
            "name": target.name,
            "kind": manifest["kind"],
            "precision": target.precision,
            "sha256": graph["sha256"],
            **({"documents": target.documents} if target.documents else {}),
            **{key: manifest.get(key) for key in ("teacher", "dims", "max_tokens", "prompt")},
            "languages": bundle_location.languages(manifest),
        },
        "parameters": manifest["parameters"],
        "size_bytes": {"graph": graph["size_bytes"]},
        "versions": machine.versions(),
        "quality": target.quality,
        "kept": kept,
        **target.speed,
        "machine": target.speed["machine"] or described,
        "single": {**target.speed["single"], "texts_of": suite_of_texts},
        "agreement": target.agreement,
    }


def _check_outputs(outputs: Outputs) -> None:
    """Raises UserError for files that cannot be written, so that this is known now."""
    for file in filter(None, outputs):
        if file.is_dir():
            raise UserError(f"{file}: a folder; give the name of a file")
        with files.folder_beside(file):
            pass


def _check_embeddings(target: Measured, texts: list[Any], session: Session) -> None:
    """Compare the embeddings that another's runner returned with edgedistill's own. Raises CheckFailed where
    they are of another model or its golden texts fail, so that no report has its times."""
    runner = target.speed["runner"]
    option = target.runner.option
    rows = runner.pop("embeddings", None)
    runner["name"] = target.runner.name
    golden = runner.get("golden", {"worst": 1, "least": 1})
    if golden["worst"] < golden["least"]:
        fact = "a golden text is at {worst:.4f} to what it should be, and {least} is asked".format(**golden)
        raise CheckFailed(f"{option}: {fact}; report it with the processor and the compiler")
    if not rows:
        return
    opened = target.open(session)
    expected = getattr(opened, "logits", opened.encode_query)(texts[: len(rows)])
    if {len(row) for row in rows} != {expected.shape[1]} or len(rows) > len(texts):
        raise UserError(
            f"{option}: embeddings that are not of {expected.shape[1]} dimensions, or of more than its "
            "texts; see bench/README.md"
        )
    least = float(cosines.dot(cosines.unit(np.array(rows)), cosines.unit(expected)).min())
    runner["cosine_min"] = round(least, 5)
    if least < SAME_MODEL:
        raise CheckFailed(
            f"{option}: an embedding is at a cosine of {least:.3f} to that of {target.title}, so it did not "
            "run this graph; check the command"
        )


def unknown_tokens(opened: Bundle, suite: Suite) -> Measures:
    """Count what the vocabulary lacks of a suite. Returns {texts: with unknown tokens, tokens: their share of
    all, first: text or None}."""
    role = "query" if suite.kind == "retrieval" else "text"
    ids = opened.tokenize(suite.texts, role)
    counts = np.array([(row == opened.unknown_id).sum() for row in ids])
    first = next(itertools.compress(suite.texts, counts), None)
    share = round(float(counts.sum()) / max(1, sum(map(len, ids))), 6)
    return {"texts": int((counts > 0).sum()), "tokens": share, "first": first}


def _suites(names: list[str], measured: list[Measured], data: Path | None) -> list[Suite]:
    """Read the suites. `task` and `task:FILE` are the task the bundles were fine-tuned for.

    Raises UserError where suites and bundles do not fit, because one needs or returns labels and the other
    embeddings.
    """
    manifest = measured[0].manifest
    suites = []
    labels = manifest.get("labels", [])
    if any(target.manifest.get("labels", []) != labels for target in measured):
        raise UserError(
            "edgedistill bench: some bundles return different labels, or embeddings; measure them apart"
        )
    pair = next((target for target in measured if target.documents is not None), None)
    for name in names or ["task" if labels else DEFAULT_SUITE]:
        place = f"--suite {name}"
        task = name.partition(":")
        if bool(labels) != (task[0] == "task"):
            fact = f"{measured[0].name} returns {'labels' if labels else 'embeddings'}"
            raise UserError(f"{place}: {fact}; give --suite task for labels, another suite for embeddings")
        suite = scoring.task_suite(manifest, task[2], data) if labels else scoring.suite(name, data)
        if pair is not None and suite.kind != "retrieval":
            raise UserError(
                f"{place}: its texts are no queries and documents, and {pair.name} is a pair of encoders; "
                f"choose a suite of kind retrieval, or measure {pair.timed} by itself"
            )
        suites.append(suite)
    return suites


def _check_search(search: Search, suites: list[Suite], measured: list[Measured]) -> None:
    """Raises UserError where no suite is of the kind that an option needs, or a package is missing."""
    retrieval = [suite for suite in suites if suite.kind == "retrieval"]
    compact = [suite for suite in suites if suite.kind not in FLOAT32_ALONE]
    for option, is_given, able in (
        ("--hybrid", search.weight is not None, retrieval),
        ("--embeddings", search.precisions, compact),
    ):
        if is_given and not able:
            names = ", ".join(suite.name for suite in suites)
            raise UserError(
                f"{option}: none of the suites ({names}) is of kind retrieval; add --suite retrieval"
            )
    for precision, target in itertools.product(search.precisions, measured):
        layout(precision, target.manifest["dims"][0], "--embeddings")
    if search.weight is not None:
        bm25.checked_weight(search.weight)
        for package in ("bm25s", "Stemmer"):
            require(package, "edgedistill bench --hybrid", "search")
        for suite in retrieval:  # indexed now, so that texts without words are refused before measuring
            _ = [task.bm25 for task in suite.tasks.values() if isinstance(task, Collection)]


def _log_conditions(measured: list[Measured], log: Log) -> None:
    """Log what embeds the documents of a pair and, where no teacher is among the bundles, that the share
    retained is not shown, and how the teacher's bundle is made."""
    for target in measured:
        if target.documents is not None:
            encoder = "{name}:{precision}, {size_bytes:,} bytes".format(**target.documents)
            log(f"{target.title}: a pair: its encoder of queries is timed; {encoder} embeds documents")
    manifest = measured[0].manifest
    if reference(measured) is not None or manifest.get("labels"):
        return
    teacher = {"model": manifest["teacher"], **((manifest.get("recipe") or {}).get("teacher") or {})}
    revision = ["--revision", teacher["revision"]] if teacher.get("revision") else []
    log(
        "no teacher among the bundles, so the share retained is not shown; run `edgedistill export "
        f"{shlex.join([teacher['model'], *revision])} --out bundles/teacher` and add bundles/teacher:fp32 to "
        "this command"
    )


def _accuracy(
    measured: list[Measured],
    suites: list[Suite],
    session: Session,
    search: Search,
    progress: Log,
) -> None:
    """Score every bundle on every suite, and measure every student's agreement with the teacher."""
    teacher = reference(measured)
    texts = list(dict.fromkeys(text for suite in suites for text in suite.texts if text))[:AGREEMENT_TEXTS]
    expected = teacher.open(session).encode(texts) if teacher is not None and texts else None
    for target in measured:
        opened = target.open(session)
        if opened.fallback:
            session.log(f"{target.title}: {opened.fallback}")
        for suite in suites:
            progress(f"{target.title} on {suite.name}")
            target.quality |= _scores(opened, suite, search)
            unknown = target.quality[suite.name]["unknown"]
            whole = len(suite.texts)
            if unknown["texts"] > UNKNOWN_SHARE * whole:
                session.log(
                    f"{target.title} on {suite.name}: {unknown['texts']:,} of {whole:,} texts have tokens "
                    f"that are not in its vocabulary, {unknown['tokens']:.1%} of all tokens, first "
                    f'"{unknown["first"][:60]}"'
                )
        if expected is not None and target is not teacher:
            target.agreement = teacher_agreement.agreement(opened.encoders[0].encode(texts), expected)
            target.agreement["source"] = f"texts of {', '.join(suite.name for suite in suites)}"


def _scores(opened: Bundle, suite: Suite, search: Search) -> dict[str, Measures]:
    """Score a bundle on a suite: {name of a ranking, or of the suite: its quality}."""
    scored = scoring.rankings(suite, opened.classify if opened.labels else opened, search)
    quality = scored[suite.name]
    if compact := quality.get("embeddings"):
        quality["embeddings"] = {}
        for precision, average in {"float32": quality["average"], **compact}.items():
            stored = [layout(part, opened.embedding_dim()).bytes for part in precision.split("+")]
            quality["embeddings"][precision] = {"average": average, "bytes": sum(stored)}
    unknown = unknown_tokens(opened, suite)
    return {name: {**scores, "unknown": unknown} for name, scores in scored.items()}


def _compare_scores(measured: list[Measured], plan: MeasurementPlan) -> None:
    """Give each suite and task its `interval95` and its `difference` to the teacher in the same ranking, by
    the bootstrap over pairs or queries."""
    teacher = reference(measured)
    expected = {}
    for target in sorted(measured, key=lambda target: target is not teacher):  # the teacher first
        for suite, quality in target.quality.items():
            resampled = bootstrap.of_suite(quality["tasks"], plan.resamples)
            for name, draws in resampled.items():
                part = quality["tasks"][name] if name else quality
                score = part[FAMILIES[quality["kind"]].averaged if name else "average"]
                part["interval95"] = bootstrap.interval(draws)
                if target is teacher:
                    expected[suite, name] = draws, score
                elif theirs := expected.get((suite, name)):
                    interval = bootstrap.interval(draws - theirs[0])
                    part["difference"] = {"mean": round(score - theirs[1], 5), "interval95": interval}


def _progress(steps: int, log: Log) -> Log:
    """Return a log of the steps, with the share that is done. Nothing is drawn while one is measured."""
    numbers = itertools.count()
    throttled = at_intervals(log)

    def advance(line: str) -> None:
        at = next(numbers)
        throttled(f"{at / steps:.0%} done: {line}", at + 1 == steps)

    return advance
