"""Measure bundles on suites: accuracy, agreement with the teacher, speed and size; write reports and check
the recipes' requirements."""

from __future__ import annotations

import os
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
from edgedistill.evaluation import bootstrap, furthest, page, report, scoring, speed, tables
from edgedistill.evaluation import teacher_agreement as agreements
from edgedistill.evaluation.suites import FAMILIES, cosines
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
    """The files to write: reports as JSON, one self-contained HTML page, and a picture of it."""

    json: Path | None = None
    html: Path | None = None
    png: Path | None = None


NO_FILES = Outputs()
BY_COSINE = scoring.Search()


@dataclass
class Measured(speed.Target):
    """One bundle in one precision, and what has been measured of it so far."""

    manifest: dict[str, Any] = field(default_factory=dict)  # of a pair: that of its encoder of queries
    documents: dict[str, Any] | None = None  # of a pair: what embeds its documents
    quality: dict[str, dict[str, Any]] = field(default_factory=dict)
    speed: dict[str, Any] = field(default_factory=dict)
    agreement: dict[str, Any] | None = None

    @property
    def is_teacher(self) -> bool:
        return bool(self.manifest["kind"] == "teacher") and self.documents is None

    @property
    def graph(self) -> tuple[Path, str]:
        """What one graph is known by: its folder and precision."""
        return self.folder.resolve(), self.precision

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
) -> dict[str, Any]:
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
    for file in filter(None, outputs):
        if file.is_dir():
            raise UserError(f"{file}: a folder; give the name of a file")
        with files.folder_beside(file):  # so that what cannot be written is known now
            pass
    if outputs.png is not None:
        page.browser()
    threads = machine.default_threads() if session.threads is None else session.threads
    session = replace(session, threads=positive(threads, "threads", MOST_THREADS))
    programs = [speed.Runner.named(name) for name in dict.fromkeys(runners)]
    measured = distinguishable([target for name in bundles for target in targets(name, session.device)])
    opened = _suites(suites, measured, session.data)
    for target in measured:
        if target.documents is not None:
            of = "{name}:{precision}, {size_bytes:,} bytes".format(**target.documents)
            session.log(
                f"{target.title}: a pair; what is timed embeds queries, documents are embedded by {of}"
            )
    _check_search(search, opened, measured, session)
    _log_missing_teacher(measured, session.log)
    of_each = len(opened) + sum(plan.rounds + (program.name == speed.OWN) for program in programs)
    steps = len(measured) * of_each + plan.rounds  # the A/A test's
    progress = _progress(steps, session.log)
    _accuracy(measured, opened, session, search, progress)
    _compare_scores(measured, plan)
    teacher = reference(measured)
    for suite in opened:
        expected = teacher.quality[suite.name] if teacher is not None else None
        found = [target.quality[suite.name] for target in measured]
        furthest.add(suite, found, expected)
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
    page.draw(reports, outputs.html, outputs.png)
    (show or session.log)(tables.terminal(reports))
    checks = []
    for target, each in zip(measured, reports, strict=True):
        checks += report.check_requirements(target.manifest, each)
    result = {
        "schema": report.SCHEMA,
        "reports": [report.without_samples(each) for each in reports],
        "requirements": checks,
    }
    try:
        report.conclude(checks, result, session.log)
    finally:
        for path in filter(None, outputs):
            session.log(f"wrote {path}")
    return result


def targets(name: str, device: str = "cpu") -> list[Measured]:
    """Resolve a bundle as named on the command line, by default in the fastest precision on the device.

    Raises UserError where there is no such bundle or precision.
    """
    every = name.endswith(":*")
    opened = bundles_.load(name.removesuffix(":*"), device=device)
    query, *others = opened.encoders
    chosen = list(query.manifest["precisions"]) if every else [opened.precision]
    about: dict[str, Any] = {"timed": query.folder, "manifest": query.manifest}
    for other in others:
        graph = other.manifest["precisions"][other.precision]
        size = {key: graph[key] for key in ("sha256", "size_bytes")}
        both = [query.manifest["name"]] if "documents" in opened.manifest else []
        name = " + ".join([other.manifest["name"], *both])
        about["documents"] = {"name": name, "precision": other.precision, **size}
    return [Measured(opened.folder, precision, **about) for precision in chosen]


def distinguishable(measured: list[Measured]) -> list[Measured]:
    """Return the same bundles; those in different folders of the same name are named by their paths below a
    folder that all are in."""
    folders = Counter(name for name, _ in {(target.name, target.folder.resolve()) for target in measured})
    above = os.path.commonpath([target.folder.absolute().parent for target in measured])
    return [
        replace(target, name=Path(os.path.relpath(target.folder, above)).as_posix())
        if folders[target.name] > 1
        else target
        for target in measured
    ]


def reference(measured: list[Measured]) -> Measured | None:
    """Return the teacher that students are compared with, in fp32 where that is measured."""
    return min(
        (target for target in measured if target.is_teacher),
        key=lambda target: target.precision != "fp32",
        default=None,
    )


def assemble(
    target: Measured, measured: list[Measured], suite_of_texts: str, described: dict[str, Any]
) -> dict[str, Any]:
    """Return the report of one bundle, with every key of KEYS in bench/report_files.py.

    `suite_of_texts` is the suite whose texts were timed, `described` the machine.
    """
    manifest, graph, spent = target.manifest, target.manifest["precisions"][target.precision], target.speed
    teacher = reference(measured)
    kept = {
        name: _share(found, teacher.quality.get(name) if teacher else None)
        for name, found in target.quality.items()
    }
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
        "machine": described,
        "versions": machine.versions(),
        "quality": target.quality,
        "kept": kept,
        **spent,
        "single": {**spent["single"], "texts_of": suite_of_texts},
        "agreement": target.agreement,
    }


def _check_embeddings(target: Measured, texts: list[Any], session: Session) -> None:
    """Compare the embeddings that another's runner returned with edgedistill's own. Raises CheckFailed where
    they are of another model, so that no report has its times."""
    found = target.speed["runner"]
    rows = found.pop("embeddings", None)
    found["name"] = target.runner.name
    if not rows:
        return
    place, expected = f"--runner {target.runner.name}", target.open(session).encode_query(texts[: len(rows)])
    given = np.array(rows, np.float32) if len({len(row) for row in rows}) == 1 else np.zeros((1, 0))
    if given.shape != expected.shape:
        raise UserError(
            f"{place}: embeddings of shape {given.shape}, {expected.shape} expected; see bench/README.md"
        )
    found["cosine_min"] = round(float(cosines.dot(cosines.unit(given), expected).min()), 5)
    if found["cosine_min"] < SAME_MODEL:
        fact = f"an embedding is at a cosine of {found['cosine_min']:.3f} to that of {target.title}"
        raise CheckFailed(f"{place}: {fact}, so it did not run this graph; check the command")


def unknown_tokens(opened: bundles_.Bundle, suite: scoring.Suite) -> dict[str, Any]:
    """Count what the vocabulary lacks of a suite. Returns {texts: with unknown tokens, tokens: their share of
    all, first: text or None}."""
    unknown = opened.unknown_id
    if unknown is None:
        return {"texts": 0, "tokens": 0.0, "first": None}
    tokenized = opened.tokenize(suite.texts, "query" if suite.kind == "retrieval" else "text")
    counts, total = [int((ids == unknown).sum()) for ids in tokenized], sum(map(len, tokenized))
    affected = [text for text, count in zip(suite.texts, counts, strict=True) if count]
    share = round(sum(counts) / max(1, total), 6)
    return {"texts": len(affected), "tokens": share, "first": next(iter(affected), None)}


def _suites(names: list[str], measured: list[Measured], data: Path | None) -> list[scoring.Suite]:
    """Read the suites. `task` and `task:FILE` are the task the bundles were fine-tuned for.

    Raises UserError where suites and bundles do not fit, because one needs or returns labels and the other
    embeddings.
    """
    label_sets = {tuple(target.manifest.get("labels", ())) for target in measured}
    if len(label_sets) > 1:
        raise UserError(
            "edgedistill bench: some bundles return different labels, or embeddings; measure them in "
            "separate runs"
        )
    classifies, found = bool(next(iter(label_sets))), []
    for name in names or ["task" if classifies else DEFAULT_SUITE]:
        own, _, file = name.partition(":")
        if classifies != (own == "task"):
            needed = ["labels", "embeddings; fine-tune it, or choose another suite"]
            if classifies:
                needed = ["embeddings", "labels; use --suite task for labels"]
            raise UserError(f"--suite {name}: needs {needed[0]}, {measured[0].name} returns {needed[1]}")
        of_task = scoring.task_suite(measured[0].manifest, file, data) if classifies else None
        suite = of_task or scoring.suite(name, data)
        for target in measured:
            if target.documents is not None and suite.kind != "retrieval":
                fact = f"its texts are no queries and documents, and {target.name} is a pair of encoders"
                way_out = f"choose a suite of kind retrieval, or measure {target.timed} by itself"
                raise UserError(f"--suite {name}: {fact}; {way_out}")
        found.append(suite)
    return found


def documents(name: str, session: Session) -> scoring.Documents:
    """Open a bundle to embed the texts of retrieval suites with. Raises UserError as `targets`, and for a
    classifier."""
    opened = bundles_.load(name, threads=session.threads, device=session.device)
    if opened.labels:
        raise UserError(f"--documents {name}: returns labels, and embeddings are needed; name an encoder")
    target = Measured(opened.folder, opened.precision, manifest=opened.manifest)
    encoder = scoring.finite(opened, f"--documents {name}")
    return scoring.Documents(target.title, encoder, target.graph)


def _check_search(
    search: scoring.Search, suites: list[scoring.Suite], measured: list[Measured], session: Session
) -> None:
    """Raises UserError where no suite is of kind retrieval, a package is missing, the embeddings of a bundle
    are not in the space of the documents' encoder, or a suite is scored in float32 alone."""
    for precision, target in product(search.precisions, measured):
        layout(precision, target.manifest["dims"][0], "--embeddings")
    for suite in suites if search.precisions else ():
        if suite.kind != "retrieval" and not FAMILIES[suite.kind].shares_embeddings:
            raise UserError(
                f"--embeddings: suite {suite.name} of kind {suite.kind} is scored in float32 alone; leave it "
                "out, or choose suites of kinds sts, pair_classification and retrieval"
            )
    given, documents = {"--hybrid": search.weight, "--documents": search.documents}, search.documents
    retrieval = [suite for suite in suites if suite.kind == "retrieval"]
    for option, value in given.items():
        if value is not None and not retrieval:
            names = ", ".join(suite.name for suite in suites)
            raise UserError(
                f"{option}: none of the suites ({names}) is of kind retrieval; add --suite retrieval"
            )
    if search.weight is not None:
        bm25.checked_weight(search.weight)
        for package in ("bm25s", "Stemmer"):
            require(package, "edgedistill bench --hybrid", "search")
        # indexed now, so that texts without words are refused before anything is measured
        _ = [task.bm25 for suite in retrieval for task in suite.tasks.values()]
    if documents is None:
        return
    texts = retrieval[0].texts[:SPACE_TEXTS]
    expected, problems = documents.encoder.query(texts), []
    for target in measured:
        opened, place = target.open(session), f"--documents {documents.name}: {target.title}"
        _, fact = agreements.space(opened.encode_query(texts), expected)
        if fact is not None:
            problems.append(f"{place} {fact}; name an encoder of its teacher's space")
    if problems:
        raise UserError(*problems)


def _log_missing_teacher(measured: list[Measured], log: Log) -> None:
    """Log, where no teacher is among the bundles, that the share retained is not shown, and how the teacher's
    bundle is made."""
    if reference(measured) is not None or measured[0].manifest.get("labels"):
        return
    manifest = measured[0].manifest
    teacher = (manifest.get("recipe") or {}).get("teacher") or {}
    model, revision = teacher.get("model", manifest["teacher"]), teacher.get("revision")
    source = shlex.join([model, *(["--revision", revision] if revision else [])])
    log(
        "no teacher among the bundles, so the share retained is not shown; run `edgedistill export "
        f"{source} --out bundles/teacher` and add bundles/teacher:fp32 to this command"
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
    for target in measured:
        opened = target.open(session)
        if opened.fallback:
            session.log(f"{target.title}: {opened.fallback}")
        for suite in suites:
            progress(f"{target.title} on {suite.name}")
            unknown = unknown_tokens(opened, suite)
            encode = opened.classify if opened.labels else opened
            if suite.kind == "retrieval":
                same = search.documents is not None and search.documents.bundle == target.graph
                found = scoring.evaluate_search(suite, encode, search._replace(same=same))
            else:
                found = {suite.name: scoring.evaluate(suite, encode, search.precisions, samples=True)}
            if search.precisions:
                scored, dim = found[suite.name], opened.embedding_dim()
                averages = {"float32": scored["average"], **scored["embeddings"]}
                scored["embeddings"] = {}
                for name, average in averages.items():  # of binary+int8 both are stored
                    size = sum(layout(each, dim).bytes for each in name.split("+"))
                    scored["embeddings"][name] = {"average": average, "bytes": size}
            target.quality.update({name: {**each, "unknown": unknown} for name, each in found.items()})
            if unknown["texts"] > UNKNOWN_SHARE * len(suite.texts):
                session.log(
                    f"{target.title} on {suite.name}: {unknown['texts']:,} of {len(suite.texts):,} texts "
                    f"have tokens that are not in its vocabulary, {unknown['tokens']:.1%} of all tokens, "
                    f'first "{unknown["first"][:60]}"'
                )
        if expected is not None and target is not teacher:
            found = agreements.agreement(opened.encoders[0].encode(texts), expected)
            target.agreement = {**found, "source": f"texts of {', '.join(suite.name for suite in suites)}"}


def _compare_scores(measured: list[Measured], plan: speed.MeasurementPlan) -> None:
    """Give each suite and task its `interval95` and its `difference` to the teacher in the same ranking, by
    the bootstrap over pairs or queries."""
    teacher = reference(measured)
    drawn = {target.title: _resampled(target, plan) for target in measured}
    expected = drawn[teacher.title] if teacher is not None else {}
    for target in measured:
        for key, (draws, score, place) in drawn[target.title].items():
            place["interval95"] = bootstrap.interval(draws)
            if target is not teacher and (other := expected.get(key)):
                place["difference"] = bootstrap.difference(draws, other.draws, score - other.score)


class Resampled(NamedTuple):
    """A score, its resamples, and where in the report it stands."""

    draws: bootstrap.Floats
    score: float
    place: dict[str, Any]


def _resampled(target: Measured, plan: speed.MeasurementPlan) -> dict[tuple[str, str], Resampled]:
    """Resample the scores of a bundle by suite and task, and by suite and "" the average; none of suites
    whose tasks have no samples."""
    found = dict[tuple[str, str], Resampled]()
    for suite, quality in target.quality.items():
        measure = FAMILIES[quality["kind"]].averaged
        for name, draws in bootstrap.of_suite(quality["tasks"], plan.resamples, plan.seed).items():
            place = quality["tasks"][name] if name else quality
            found[suite, name] = Resampled(draws, place[measure if name else "average"], place)
    return found


def _share(found: dict[str, Any], teachers: dict[str, Any] | None) -> float | None:
    return found["average"] / teachers["average"] if teachers and teachers["average"] > 0 else None


def _progress(steps: int, log: Log) -> Log:
    """Return a log of the steps, with the share that is done. Nothing is drawn while one is measured."""
    numbers, throttled = count(), at_intervals(log)

    def advance(line: str) -> None:
        at = next(numbers)
        throttled(f"{at / steps:.0%} done: {line}", at + 1 == steps)

    return advance
