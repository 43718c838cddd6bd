"""Measure bundles on suites: accuracy, agreement with the teacher, speed and size; write reports and check
the recipes' requirements."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgedistill import files, machine
from edgedistill.data import bm25
from edgedistill.errors import CheckFailed, UserError, require
from edgedistill.evaluation import bootstrap, page, report, scoring, speed, tables, teacher_agreement
from edgedistill.evaluation.suites import FAMILIES, FLOAT32_ALONE, cosines
from edgedistill.evaluation.suites.cosines import Measures
from edgedistill.evaluation.suites.retrieval import Collection
from edgedistill.runtime import bundle as bundles_
from edgedistill.runtime import bundle_location
from edgedistill.runtime.arguments import MOST_THREADS, positive
from edgedistill.runtime.compact import layout
from edgedistill.session import Log, Session, at_intervals

DEFAULT_SUITE = "sts-small"
UNKNOWN_SHARE = 0.01  # share of a suite's texts with unknown tokens above which it is logged
SAME_MODEL = 0.98  # cosine of two runners' embeddings of a text; kernels of int8 differ by 0.01
AGREEMENT_TEXTS = 5000  # on which students are compared with their teacher, at most
SPACE_TEXTS = 64  # queries whose embeddings by two encoders are compared


class Outputs(NamedTuple):
    """The files to write: reports as JSON, and one self-contained HTML page."""

    json: Path | None = None
    html: Path | None = None


NO_FILES = Outputs()
BY_COSINE = scoring.Search()


@dataclass
class Measured(speed.Target):
    """One bundle in one precision, and what has been measured of it so far."""

    manifest: dict[str, Any] = field(default_factory=dict)  # of a pair: that of its encoder of queries
    documents: dict[str, Any] | None = None  # of a pair: what embeds its documents
    quality: dict[str, Measures] = field(default_factory=dict)
    speed: Measures = field(default_factory=dict)
    agreement: Measures | None = None

    @property
    def is_teacher(self) -> bool:
        return bool(self.manifest["kind"] == "teacher") and self.documents is None

    def open(self, session: Session) -> bundles_.Bundle:
        return bundles_.load(
            self.folder, precision=self.precision, threads=session.threads, device=session.device
        )


def bench(
    bundles: list[str],
    suites: list[str],
    session: Session,
    outputs: Outputs = NO_FILES,
    plan: speed.MeasurementPlan = speed.PLAN,
    search: scoring.Search = BY_COSINE,
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
        way_out = "name one, such as nano, or make one: edgedistill export RUN"
        raise UserError(f"edgedistill bench: no bundle; {way_out}")
    _check_outputs(outputs)
    threads = machine.default_threads() if session.threads is None else session.threads
    session = replace(session, threads=positive(threads, "threads", MOST_THREADS))
    programs = [speed.Runner.named(name) for name in dict.fromkeys(runners)]
    measured = distinguishable([target for name in bundles for target in targets(name, session.device)])
    opened = _suites(suites, measured, session.data)
    _check_search(search, opened, measured, session)
    _log_conditions(measured, session.log)
    rounds = plan.rounds * (1 + len(measured) * len(programs))  # that of the A/A test too
    progress = _progress(len(measured) * len(opened) + rounds, session.log)
    _accuracy(measured, opened, session, search, progress)
    _compare_scores(measured, opened, plan)
    measured = [replace(target, runner=program) for target in measured for program in programs]
    texts = opened[0].sample(plan.queries, plan.seed)
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
    checks = []
    for target, made in zip(measured, reports, strict=True):
        checks += report.check_requirements(target.manifest, made)
    slim = [report.without_samples(made) for made in reports]
    for path in filter(None, outputs):
        session.log(f"wrote {path}")
    result = {"schema": report.SCHEMA, "reports": slim, "requirements": checks}
    report.conclude(checks, result, session.log)
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
        size = {key: graph[key] for key in ("sha256", "size_bytes")}
        documents = {"name": " + ".join(names), "precision": encoder.precision, **size}
    precisions = list(query.manifest["precisions"]) if name.endswith(":*") else [opened.precision]
    about: dict[str, Any] = {"timed": query.folder, "manifest": query.manifest, "documents": documents}
    return [Measured(opened.folder, precision, **about) for precision in precisions]


def distinguishable(measured: list[Measured]) -> list[Measured]:
    """Return the same bundles; those in different folders of the same name are named by the folder above
    too."""
    folders = Counter(name for name, _ in {(target.name, target.folder.resolve()) for target in measured})
    named = []
    for target in measured:
        name = "/".join(target.folder.absolute().parts[-2:])
        named.append(replace(target, name=name) if folders[target.name] > 1 else target)
    return named


def reference(measured: list[Measured]) -> Measured | None:
    """Return the teacher that students are compared with, in fp32 where that is measured."""
    teachers = [target for target in measured if target.is_teacher]
    return min(teachers, key=lambda target: target.precision != "fp32", default=None)


def assemble(
    target: Measured, measured: list[Measured], suite_of_texts: str, described: dict[str, Any]
) -> Measures:
    """Return the report of one bundle, with every key of KEYS in evaluation/report.py.

    `suite_of_texts` is the suite whose texts were timed, `described` the machine.
    """
    manifest, graph, spent = target.manifest, target.manifest["precisions"][target.precision], target.speed
    teacher = reference(measured)
    kept = dict[str, float | None]()
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
        **spent,
        "machine": spent["machine"] or described,
        "single": {**spent["single"], "texts_of": suite_of_texts},
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
    runner, option = target.speed["runner"], target.runner.option
    rows = runner.pop("embeddings", None)
    runner["name"] = target.runner.name
    golden = runner.get("golden", {"worst": 1, "least": 1})
    if golden["worst"] < golden["least"]:
        fact = "a golden text is at {worst:.4f} to what it should be, and {least} is asked".format(**golden)
        raise CheckFailed(f"{option}: {fact}; report it with the processor and the compiler")
    if not rows:
        return
    expected = target.open(session).encode_query(texts[: len(rows)])
    if {len(row) for row in rows} != {expected.shape[1]} or len(rows) > len(texts):
        fact = f"embeddings that are not of {expected.shape[1]} dimensions, or of more than its texts"
        raise UserError(f"{option}: {fact}; see bench/README.md")
    least = float(cosines.dot(cosines.unit(np.array(rows)), expected).min())
    runner["cosine_min"] = round(least, 5)
    if least < SAME_MODEL:
        fact = f"an embedding is at a cosine of {least:.3f} to that of {target.title}"
        raise CheckFailed(f"{option}: {fact}, so it did not run this graph; check the command")


def unknown_tokens(opened: bundles_.Bundle, suite: scoring.Suite) -> Measures:
    """Count what the vocabulary lacks of a suite. Returns {texts: with unknown tokens, tokens: their share of
    all, first: text or None}."""
    ids = opened.tokenize(suite.texts, "query" if suite.kind == "retrieval" else "text")
    counts = [int((row == opened.unknown_id).sum()) for row in ids]
    affected = [text for text, lacking in zip(suite.texts, counts, strict=True) if lacking]
    share = round(sum(counts) / max(1, sum(map(len, ids))), 6)
    return {"texts": len(affected), "tokens": share, "first": affected[0] if affected else None}


def _suites(names: list[str], measured: list[Measured], data: Path | None) -> list[scoring.Suite]:
    """Read the suites. `task` and `task:FILE` are the task the bundles were fine-tuned for.

    Raises UserError where suites and bundles do not fit, because one needs or returns labels and the other
    embeddings.
    """
    manifest, suites = measured[0].manifest, list[scoring.Suite]()
    classifies = bool(manifest.get("labels"))
    if any(target.manifest.get("labels", []) != manifest.get("labels", []) for target in measured):
        fact = "some bundles return different labels, or embeddings"
        raise UserError(f"edgedistill bench: {fact}; measure them in separate runs")
    for name in names or ["task" if classifies else DEFAULT_SUITE]:
        kind, _, file = name.partition(":")
        if classifies and kind != "task":
            fact = f"needs embeddings, {measured[0].name} returns labels"
            raise UserError(f"--suite {name}: {fact}; use --suite task for labels")
        if kind == "task" and not classifies:
            fact = f"needs labels, {measured[0].name} returns embeddings"
            raise UserError(f"--suite {name}: {fact}; fine-tune it, or choose another suite")
        suite = scoring.task_suite(manifest, file, data) if classifies else scoring.suite(name, data)
        pairs = [target for target in measured if target.documents is not None]
        if pairs and suite.kind != "retrieval":
            fact = f"its texts are no queries and documents, and {pairs[0].name} is a pair of encoders"
            way_out = f"choose a suite of kind retrieval, or measure {pairs[0].timed} by itself"
            raise UserError(f"--suite {name}: {fact}; {way_out}")
        suites.append(suite)
    return suites


def documents(name: str, session: Session) -> scoring.Documents:
    """Open a bundle to embed the texts of retrieval suites with. Raises UserError as `targets`, and for a
    classifier."""
    opened = bundles_.load(name, threads=session.threads, device=session.device)
    if opened.labels:
        raise UserError(f"--documents {name}: returns labels, and embeddings are needed; name an encoder")
    target = Measured(opened.folder, opened.precision, manifest=opened.manifest)
    encoder = scoring.finite(opened, f"--documents {name}")
    return scoring.Documents(target.title, encoder)


def _check_search(
    search: scoring.Search, suites: list[scoring.Suite], measured: list[Measured], session: Session
) -> None:
    """Raises UserError where no suite is of the kind that an option needs, a package is missing, or the
    embeddings of a bundle are not in the space of the documents' encoder."""
    retrieval = [suite for suite in suites if suite.kind == "retrieval"]
    compact = [suite for suite in suites if suite.kind not in FLOAT32_ALONE]
    for option, is_given, kinds, able in (
        ("--hybrid", search.weight is not None, "retrieval", retrieval),
        ("--documents", search.documents is not None, "retrieval", retrieval),
        ("--embeddings", search.precisions, "retrieval, or another of a suite.yaml,", compact),
    ):
        if is_given and not able:
            names = ", ".join(suite.name for suite in suites)
            way_out = "add --suite retrieval"
            raise UserError(f"{option}: none of the suites ({names}) is of kind {kinds}; {way_out}")
    for precision, target in product(search.precisions, measured):
        layout(precision, target.manifest["dims"][0], "--embeddings")
    if search.weight is not None:
        bm25.checked_weight(search.weight)
        for package in ("bm25s", "Stemmer"):
            require(package, "edgedistill bench --hybrid", "search")
        for suite in retrieval:  # indexed now, so that texts without words are refused before measuring
            _ = [task.bm25 for task in suite.tasks.values() if isinstance(task, Collection)]
    if search.documents is not None:
        _check_space(search.documents, retrieval[0].texts[:SPACE_TEXTS], measured, session)


def _check_space(
    documents: scoring.Documents, queries: list[str], measured: list[Measured], session: Session
) -> None:
    """Raises UserError for each bundle whose embeddings are not in the space of the documents' encoder."""
    expected, problems = documents.encoder.query(queries), []
    for target in measured:
        _, fact = teacher_agreement.space(target.open(session).encode_query(queries), expected)
        if fact is not None:
            place = f"--documents {documents.name}: {target.title}"
            problems.append(f"{place} {fact}; name an encoder of its teacher's space")
    if problems:
        raise UserError(*problems)


def _log_conditions(measured: list[Measured], log: Log) -> None:
    """Log what embeds the documents of a pair and, where no teacher is among the bundles, that the share
    retained is not shown, and how the teacher's bundle is made."""
    for target in measured:
        if target.documents is not None:
            encoder = "{name}:{precision}, {size_bytes:,} bytes".format(**target.documents)
            log(f"{target.title}: a pair; what is timed embeds queries, documents are embedded by {encoder}")
    manifest = measured[0].manifest
    if reference(measured) is not None or manifest.get("labels"):
        return
    teacher = {"model": manifest["teacher"], **((manifest.get("recipe") or {}).get("teacher") or {})}
    source = [teacher["model"], *(["--revision", teacher["revision"]] if teacher.get("revision") else [])]
    log(
        "no teacher among the bundles, so the share retained is not shown; run `edgedistill export "
        f"{shlex.join(source)} --out bundles/teacher` and add bundles/teacher:fp32 to this command"
    )


def _accuracy(
    measured: list[Measured],
    suites: list[scoring.Suite],
    session: Session,
    search: scoring.Search,
    progress: Log,
) -> None:
    """Score every bundle on every suite, and measure every student's agreement with the teacher."""
    teacher = reference(measured)
    texts = list(dict.fromkeys(text for suite in suites for text in suite.texts if text))[:AGREEMENT_TEXTS]
    expected = teacher.open(session).encode(texts) if teacher is not None and texts else None
    source = f"texts of {', '.join(suite.name for suite in suites)}"
    for target in measured:
        opened = target.open(session)
        if opened.fallback:
            session.log(f"{target.title}: {opened.fallback}")
        for suite in suites:
            progress(f"{target.title} on {suite.name}")
            target.quality |= _scores(opened, suite, search)
            unknown = target.quality[suite.name]["unknown"]
            if unknown["texts"] > UNKNOWN_SHARE * len(suite.texts):
                session.log(
                    f"{target.title} on {suite.name}: {unknown['texts']:,} of {len(suite.texts):,} texts "
                    f"have tokens that are not in its vocabulary, {unknown['tokens']:.1%} of all tokens, "
                    f'first "{unknown["first"][:60]}"'
                )
        if expected is not None and target is not teacher:
            embeddings = opened.encoders[0].encode(texts)
            target.agreement = {**teacher_agreement.agreement(embeddings, expected), "source": source}


def _scores(opened: bundles_.Bundle, suite: scoring.Suite, search: scoring.Search) -> dict[str, Measures]:
    """Score a bundle on a suite: {name of a ranking, or of the suite: its quality}."""
    if suite.kind == "retrieval":
        scored = scoring.evaluate_search(suite, opened, search)
    else:
        encode = opened.classify if opened.labels else opened
        scored = {suite.name: scoring.evaluate(suite, encode, search.precisions, samples=True)}
    quality = scored[suite.name]
    if compact := quality.get("embeddings"):
        quality["embeddings"] = {}
        for precision, average in {"float32": quality["average"], **compact}.items():
            stored = [layout(part, opened.embedding_dim()).bytes for part in precision.split("+")]
            quality["embeddings"][precision] = {"average": average, "bytes": sum(stored)}
    unknown = unknown_tokens(opened, suite)
    return {name: {**scores, "unknown": unknown} for name, scores in scored.items()}


def _compare_scores(
    measured: list[Measured], suites: list[scoring.Suite], plan: speed.MeasurementPlan
) -> None:
    """Give each suite and task its `interval95` and its `difference` to the teacher in the same ranking, by
    the bootstrap over pairs or queries, and each student's suites the items on which it is `furthest` from
    the teacher."""
    teacher = reference(measured)
    expected = _resampled(teacher, plan) if teacher is not None else {}
    for target in measured:
        for key, (draws, score, place) in _resampled(target, plan).items():
            place["interval95"] = bootstrap.interval(draws)
            if target is not teacher and key in expected:
                theirs = expected[key]
                interval = bootstrap.interval(draws - theirs.draws)
                place["difference"] = {"mean": round(score - theirs.score, 5), "interval95": interval}
        if teacher is None or target is teacher:
            continue
        for suite in suites:
            quality = target.quality[suite.name]
            if furthest := teacher_agreement.furthest(suite, quality, teacher.quality[suite.name]):
                quality["furthest"] = furthest


class Resampled(NamedTuple):
    """A score, its resamples, and where in the report it stands."""

    draws: bootstrap.Floats
    score: float
    place: Measures


def _resampled(target: Measured, plan: speed.MeasurementPlan) -> dict[tuple[str, str], Resampled]:
    """Resample the scores of a bundle by suite and task, and by suite and "" the average; none of suites
    whose tasks have no samples."""
    resampled = {}
    for suite, quality in target.quality.items():
        for name, draws in bootstrap.of_suite(quality["tasks"], plan.resamples, plan.seed).items():
            place = quality["tasks"][name] if name else quality
            score = place[FAMILIES[quality["kind"]].averaged if name else "average"]
            resampled[suite, name] = Resampled(draws, score, place)
    return resampled


def _progress(steps: int, log: Log) -> Log:
    """Return a log of the steps, with the share that is done. Nothing is drawn while one is measured."""
    numbers, throttled = count(), at_intervals(log)

    def advance(line: str) -> None:
        at = next(numbers)
        throttled(f"{at / steps:.0%} done: {line}", at + 1 == steps)

    return advance
