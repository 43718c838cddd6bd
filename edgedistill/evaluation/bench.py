"""Bundles × suites -> reports: accuracy, agreement, speed and size side by side, and whether the recipes' promises are kept."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from edgedistill import machine, recipe
from edgedistill.data import corpus, parallel
from edgedistill.errors import AnswerIsNo, UserError
from edgedistill.evaluation import html_page, report, scoring, speed
from edgedistill.runtime import bundle as bundles_
from edgedistill.session import Log, Session

DEFAULT_SUITE = "mini"
AGREEMENT_TEXTS = 5000  # at most, drawn evenly from the held-out ones: the teacher has to encode them
UNREAD = 0.01  # the share of a suite's texts with unknown pieces from which on it is said
LINE_SECONDS = 30.0  # between two lines of progress where there is no terminal


@dataclass
class Measured:
    """One bundle in one precision, while it is being measured."""

    folder: Path
    precision: str
    manifest: dict[str, Any]
    quality: dict[str, dict[str, Any]] = field(default_factory=dict)
    speed: dict[str, Any] = field(default_factory=dict)
    agreement: dict[str, Any] | None = None

    @property
    def title(self) -> str:
        return f"{self.folder}:{self.precision}"

    @property
    def is_teacher(self) -> bool:
        return bool(self.manifest["kind"] == "teacher")


Open = Callable[[Measured], bundles_.Bundle]


def bench(
    bundles: list[str],
    suites: list[str],
    session: Session,
    threads: int | None,
    out: Path | None,
    html: Path | None,
    plan: speed.Plan = speed.PLAN,
) -> dict[str, Any]:
    """Measure bundles ("path", "path:w8", "path:*") on suites; write the reports, print the table, judge the promises.

    Returns {schema, reports (without raw samples), promises}. Raises UserError before anything is measured where it can, and
    AnswerIsNo with the numbers, after the files are written, when a promise is broken.
    """
    if not bundles:
        raise UserError("edgedistill bench: no bundle; name one, or make one with edgedistill export RUN")
    for path in (out, html):
        if path is not None and path.is_dir():
            raise UserError(f"{path}: a folder; give the name of a file")
    speed.check_device(session.device)
    if session.data is None and os.environ.get("EDGEDISTILL_DATA"):
        session = replace(session, data=Path(os.environ["EDGEDISTILL_DATA"]))
    measured = [target for name in bundles for target in targets(name)]
    opened = _suites(suites, measured, session.data)
    steps = len(measured) * (len(opened) + plan.rounds + 1)
    with _progress(steps, session.log) as tell:
        _accuracy(measured, opened, session, _opener(threads, session.device), tell)
        texts = opened[0].sample(plan.queries, plan.seed)
        pairs = [speed.Target(target.folder, target.precision) for target in measured]
        for target, found in zip(measured, speed.measure(pairs, texts, threads, replace(session, log=tell), plan), strict=True):
            target.speed = found
    reports = [assemble(target, measured, opened[0].name) for target in measured]
    if out is not None:
        report.write(out, reports)
    if html is not None:
        html_page.write(html, reports)
    session.log(report.text(reports))
    promises = [judged for target, made in zip(measured, reports, strict=True) for judged in judge(target.manifest, made)]
    result = {"schema": report.SCHEMA, "reports": [report.slim(made) for made in reports], "promises": promises}
    _conclude(promises, result, session.log)
    return result


def targets(name: str) -> list[Measured]:
    """A bundle as the user names it -> what to measure. Raises UserError: no such bundle, no such precision."""
    every = name.endswith(":*")
    opened = bundles_.load(name.removesuffix(":*"))
    chosen = list(opened.manifest["precisions"]) if every else [opened.precision]
    return [Measured(opened.folder, one, opened.manifest) for one in chosen]


def _suites(names: list[str], measured: list[Measured], data: Path | None) -> list[scoring.Suite]:
    """The suites by name; `task` and `task:FILE` are what the bundles were fine-tuned for. Raises UserError where bundles cannot answer."""
    labels = {tuple(target.manifest.get("labels", ())) for target in measured}
    if len(labels) > 1:
        raise UserError("edgedistill bench: bundles that give different labels, or labels and vectors; measure them apart")
    classes = list(next(iter(labels)))
    found = []
    for name in names or ["task" if classes else DEFAULT_SUITE]:
        own, _, file = name.partition(":")
        suite = scoring.task_suite(measured[0].manifest, file, data) if own == "task" and classes else None
        if suite is None and own == "task" and not Path(name).exists():
            raise UserError(
                f"--suite {name}: asks for labels, {measured[0].manifest['name']} gives vectors; fine-tune it, or choose another suite"
            )
        suite = suite or scoring.suite(name, data)
        if (suite.kind == "task") != bool(classes):
            asked, given = ("labels", "vectors") if suite.kind == "task" else ("vectors", "labels")
            raise UserError(f"--suite {name}: asks for {asked}, {measured[0].manifest['name']} gives {given}; use --suite task for labels")
        found.append(suite)
    return found


def reference(measured: list[Measured]) -> Measured | None:
    """The teacher that others are measured by: in fp32, where that is measured."""
    return min((target for target in measured if target.is_teacher), key=lambda target: target.precision != "fp32", default=None)


def assemble(target: Measured, measured: list[Measured], suite_of_texts: str) -> dict[str, Any]:
    """The report of one bundle."""
    manifest, graph = target.manifest, target.manifest["precisions"][target.precision]
    teacher = reference(measured)
    kept = {name: _share(found, teacher.quality.get(name) if teacher else None) for name, found in target.quality.items()}
    return {
        "schema": report.SCHEMA,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "bundle": {
            "name": manifest["name"],
            "kind": manifest["kind"],
            "precision": target.precision,
            "sha256": graph["sha256"],
            **{key: manifest.get(key) for key in ("teacher", "dims", "max_tokens", "prompt")},
        },
        "parameters": {key: manifest["parameters"][key] for key in ("embedding", "encoder", "head", "total")},
        "size_bytes": {"graph": graph["size_bytes"], "bundle": _size_bytes(target)},
        "machine": machine.here(),
        "versions": machine.versions(),
        "threads": target.speed["threads"],
        "device": target.speed["device"],
        "quality": target.quality,
        "kept": kept,
        "single": {**target.speed["single"], "texts_of": suite_of_texts},
        **{key: target.speed[key] for key in ("offline", "load_ms", "load", "peak_rss_bytes", "memory", "noise")},
        "drift": {key: (graph.get("drift") or {}).get(key) for key in ("mean", "min")},
        "agreement": target.agreement,
    }


def judge(manifest: dict[str, Any], made: dict[str, Any]) -> list[dict[str, Any]]:
    """A recipe's promises against a report: each {bundle, promise, asked, found, kept}; kept None where it could not be judged."""
    promise = (manifest.get("recipe") or {}).get("promise") or {}
    name, precision = report.title(made), made["bundle"]["precision"]
    judged = []

    def add(what: str, asked: float, found: float | None, good: bool) -> None:
        judged.append({"bundle": name, "promise": what, "asked": asked, "found": found, "kept": None if found is None else good})

    suites = [promise["suite"]] if promise.get("suite") else [n for n, found in made["quality"].items() if found["kind"] == "sts"]
    for suite in suites:
        if (asked := promise.get("sts")) is not None:
            found = (made["quality"].get(suite) or {}).get("average")
            add(f"sts on {suite}", asked, found, found is not None and found >= asked)
        if (asked := promise.get("sts_kept")) is not None:
            found = made["kept"].get(suite)
            add(f"sts_kept on {suite}", asked, found, found is not None and found >= asked)
    if (asked := (promise.get("size_mb") or {}).get(precision)) is not None:
        found = made["size_bytes"]["graph"] / 1e6
        add(f"size_mb in {precision}", asked, found, found <= asked)
    return judged


def _opener(threads: int | None, device: str) -> Open:
    return lambda target: bundles_.load(target.folder, precision=target.precision, threads=threads, device=device)


def _accuracy(measured: list[Measured], suites: list[scoring.Suite], session: Session, load: Open, tell: Log) -> None:
    """Score every bundle on every suite, and against the teacher; the teacher first, its vectors are the measure."""
    teacher = reference(measured)
    held = _HeldOut(teacher, suites, session, load)
    for target in measured:
        opened = load(target)
        for suite in suites:
            tell(f"{target.title} on {suite.name}")
            unread = unreadable(opened, suite)
            found = scoring.evaluate(suite, opened.classify if opened.labels else opened.encode)
            target.quality[suite.name] = {**found, "unknown": unread}
            if unread["texts"] > UNREAD * len(suite.texts):
                fact = f"{unread['texts']:,} of {len(suite.texts):,} texts hold what its vocabulary has no piece for"
                session.log(f'{target.title} on {suite.name}: {fact}, {unread["tokens"]:.1%} of all tokens, first "{unread["first"][:60]}"')
        if teacher is not None and target is not teacher and not opened.labels:
            texts, vectors, lengths, source = held.of(target)
            target.agreement = {**scoring.agreement(opened.encode(texts), vectors, lengths), "source": source}


def unreadable(opened: bundles_.Bundle, suite: scoring.Suite) -> dict[str, Any]:
    """What a vocabulary lost of a suite's texts: {texts with unknown pieces, tokens: their share of all, first such text or None}."""
    unknown = opened.unknown_id
    if unknown is None:
        return {"texts": 0, "tokens": 0.0, "first": None}
    read = opened.tokenize(suite.texts)
    found, total = [int((ids == unknown).sum()) for ids in read], sum(len(ids) for ids in read)
    rows = [text for text, count in zip(suite.texts, found, strict=True) if count]
    return {"texts": len(rows), "tokens": round(sum(found) / max(1, total), 6), "first": rows[0] if rows else None}


class _HeldOut:
    """Texts without labels for each recipe's bundles, and the teacher's vectors of them, each made once."""

    def __init__(self, teacher: Measured | None, suites: list[scoring.Suite], session: Session, load: Open) -> None:
        self.teacher, self.suites, self.data, self.load, self.log = teacher, suites, session.data, load, session.log
        self.made: dict[str, tuple[list[str], np.ndarray, np.ndarray, str]] = {}

    def of(self, target: Measured) -> tuple[list[str], np.ndarray, np.ndarray, str]:
        """(texts, the teacher's vectors, their lengths in the teacher's tokens, where they come from)."""
        described = target.manifest.get("recipe") or {}
        key = json.dumps([described.get("corpus"), described.get("seed")], sort_keys=True)
        if key not in self.made:
            assert self.teacher is not None
            texts, source = self._texts(described, target.manifest["name"])
            self.log(f"agreement of {target.manifest['name']} with the teacher: {len(texts):,} {source}")
            opened = self.load(self.teacher)
            lengths = np.array([len(ids) for ids in opened.tokenize(texts)])
            self.made[key] = (texts, opened.encode(texts), lengths, source)
        return self.made[key]

    def _texts(self, described: dict[str, Any], name: str) -> tuple[list[str], str]:
        """The held-out texts of a recipe's corpus, where its files are here; else the suites' own."""
        try:
            spec = recipe.parse(described, "manifest.json: recipe")
            if spec.corpus is not None and not _of_hub(spec.corpus) and spec.corpus.held_out:
                if isinstance(spec.corpus, recipe.Parallel):  # the side that the teacher reads
                    built = parallel.build(spec.corpus, Session(data=self.data, log=self.log), spec.seed).first
                else:
                    built = corpus.build(spec.corpus, Session(data=self.data, log=self.log), spec.seed)
                at = built.held_out[np.linspace(0, len(built.held_out) - 1, min(AGREEMENT_TEXTS, len(built.held_out))).astype(int)]
                return built.texts(at), "held-out texts of its recipe's corpus"
        except UserError as problem:
            said = f"its recipe's held-out texts cannot be read ({problem.problems[0]}); the suite's texts serve instead"
            self.log(f"{name}: {said}")
        texts = list(dict.fromkeys(text for suite in self.suites for text in suite.texts if text))
        return texts[:AGREEMENT_TEXTS], f"texts of {', '.join(suite.name for suite in self.suites)}"


def _of_hub(spec: recipe.Corpus) -> bool:
    """Whether reading the corpus again would fetch data sets."""
    return spec.kind == "hub" or (isinstance(spec, recipe.Parallel) and any(part.dataset for part in spec.pairs))


def _share(found: dict[str, Any], teachers: dict[str, Any] | None) -> float | None:
    return found["average"] / teachers["average"] if teachers and teachers["average"] > 0 else None


def _size_bytes(target: Measured) -> int:
    """What a device needs for this precision: the whole folder but the other graphs."""
    others = {target.folder / graph["file"] for name, graph in target.manifest["precisions"].items() if name != target.precision}
    return sum(path.stat().st_size for path in target.folder.rglob("*") if path.is_file() and path not in others)


def _conclude(promises: list[dict[str, Any]], result: dict[str, Any], log: Log) -> None:
    """Log which promises hold; AnswerIsNo when one does not."""
    for judged in promises:
        verdict = {True: "kept", False: "BROKEN", None: f"not judged, {_missing(judged)}"}[judged["kept"]]
        log(f"promise {judged['bundle']}: {judged['promise']}: {_figure(judged['found'])}, promised {judged['asked']:g}: {verdict}")
    broken = [judged for judged in promises if judged["kept"] is False]
    if broken:
        lines = [f"{j['bundle']} broke its promise: {j['promise']} is {_figure(j['found'])}, promised {j['asked']:g}" for j in broken]
        raise AnswerIsNo("\n".join(lines), result)


def _missing(judged: dict[str, Any]) -> str:
    if judged["promise"].startswith("sts_kept"):
        return "the teacher was not measured beside it; bench its bundle in the same run"
    return "it was not measured; name the suite with --suite"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


class _progress:
    """A bar on a terminal, elsewhere a line every half minute at most; drawn between measurements only, never during one."""

    def __init__(self, steps: int, log: Log) -> None:
        self.log, self.said, self.steps = log, time.perf_counter(), steps
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True, disable=not sys.stderr.isatty())
        self.task = self.bar.add_task("", total=steps)
        self.done = -1

    def __enter__(self) -> Log:
        self.bar.start()
        return self._tell

    def _tell(self, line: str) -> None:
        self.done += 1
        self.bar.update(self.task, description=line, completed=self.done)
        self.bar.refresh()
        if self.bar.disable and time.perf_counter() - self.said > LINE_SECONDS:
            self.said = time.perf_counter()
            self.log(f"{self.done} of {self.steps} done; {line}")

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
