"""What changed between two report files, and whether it is beyond noise."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from edgedistill.errors import UserError, raise_failed
from edgedistill.evaluation import bootstrap, page, tables
from edgedistill.evaluation.report import Report, read, resolution, title
from edgedistill.evaluation.suites.cosines import Measures
from edgedistill.session import Log

TOLERANCE = (
    0.005  # relative; of a size, where below it lie names inside the graph, and of a score without samples
)
WORSE = "worse"
BETTER = "better"
NOISE = "within noise"
LESS_IS_BETTER = ("graph MB", "p50 ms")
HEADS = ("bundle", "measure", "before", "after", "change", "95% interval", "")


class Change(NamedTuple):
    """One measure of a bundle in two reports: a score × 100, the graph's MB, p50 in ms, or texts/s.

    `change` is relative, and so is its `interval95`, null where nothing was sampled. The verdict is worse or
    better; or within noise, where the interval holds 0 or the change is no larger than `resolved`.
    """

    bundle: str
    measure: str
    before: float
    after: float
    interval95: list[float] | None
    resolved: float = TOLERANCE

    @property
    def change(self) -> float:
        return (self.after - self.before) / (abs(self.before) or 1)

    @property
    def verdict(self) -> str:
        low, high = self.interval95 or (self.change, self.change)
        if low <= 0 <= high or abs(self.change) <= self.resolved:
            return NOISE
        return BETTER if (self.change < 0) == (self.measure in LESS_IS_BETTER) else WORSE

    @property
    def cells(self) -> list[str]:
        """The row of a table."""
        name = tables.shorten(self.bundle, 22)
        measure = tables.shorten(self.measure, 16)
        before, after = (tables.significant(value, 4) for value in (self.before, self.after))
        interval = ", ".join(f"{end:+.1%}" for end in self.interval95 or ())
        return [name, measure, before, after, f"{self.change:+.1%}", interval, self.verdict]


def compare(before: Path, after: Path, show: Log, html: Path | None = None) -> Measures:
    """Compare the reports of two files bundle by bundle, show the table, and draw both on a page.

    Reports are matched by title, and two that are alone in their files whatever theirs: both titles are
    shown. Returns {before, after, changes, only_before, only_after, not_compared}: the last has the suites
    that not both have, with the same tasks. Raises UserError where a file is no report or the two have no
    bundle in common; CheckFailed with the result where accuracy, size or speed fell, or where no accuracy
    was compared.
    """
    olds, news = (_by_title(path) for path in (before, after))
    both = []
    for when, reports in (("before", olds), ("after", news)):
        for report in reports.values():
            name = f"{report['bundle']['name']} {when}"
            both.append({**report, "bundle": {**report["bundle"], "name": name}})
    if len(olds) == len(news) == 1:
        name = " to ".join(dict.fromkeys([*olds, *news]))
        olds, news = ({name: report} for report in (*olds.values(), *news.values()))
    shared = [name for name in olds if name in news]
    if not shared:
        raise UserError(
            f"--compare: no bundle in both: {before} has {', '.join(olds)}, {after} has {', '.join(news)}; "
            "name reports of the same bundles"
        )
    compared = []
    not_compared = {}
    for name in shared:
        suites = _not_shared(olds[name], news[name])
        compared += changes(name, olds[name], news[name], suites)
        if others := _other_conditions(olds[name], news[name]):
            show(f"{name}: times are not compared: measured with another {', '.join(others)}")
        if suites:
            show(f"{name}: not compared, since the reports do not have the same tasks: {', '.join(suites)}")
            not_compared[name] = suites
    rows = [change.cells for change in compared]
    show(tables.of_cells(HEADS, rows))
    missing = {
        "only_before": [name for name in olds if name not in news],
        "only_after": [name for name in news if name not in olds],
    }
    for key, alone in missing.items():
        if alone:
            show(f"{key.replace('_', ' ')}: {', '.join(alone)}")
    if html is not None:
        page.write(html, both, rows)
    fell = ["{}: {}: {} to {}, {}".format(*change.cells) for change in compared if change.verdict == WORSE]
    fell += [
        f"{name}: no suite with the same tasks in both; measure both with the same --suite"
        for name, suites in not_compared.items()
        if set(suites) >= set(olds[name]["quality"])
    ]
    listed = [{**change._asdict(), "change": change.change, "verdict": change.verdict} for change in compared]
    files_named = {"before": str(before), "after": str(after)}
    result: Measures = {**files_named, "changes": listed, **missing, "not_compared": not_compared}
    raise_failed(fell, **result)
    return result


def _by_title(path: Path) -> dict[str, Report]:
    """The reports of a file. Raises UserError for two of the same bundle."""
    reports = read(path)
    titled = {title(report): report for report in reports}
    if len(titled) < len(reports):
        fact = f"{len(reports)} reports of {', '.join(titled)}"
        raise UserError(f"--compare: {path}: {fact}; leave one of each")
    return titled


def changes(name: str, before: Report, after: Report, apart: list[str]) -> list[Change]:
    """Compare what both reports of a bundle have, but for the suites `apart`; times only of the same
    conditions."""
    compared = []
    for suite, quality in before["quality"].items():
        if suite not in apart:
            compared.append(_score(name, suite, quality, after["quality"][suite]))
    was, now = (report["size_bytes"]["graph"] / 1e6 for report in (before, after))
    compared.append(Change(name, "graph MB", was, now, None))
    if _other_conditions(before, after):
        return compared
    resolved = max(resolution(before), resolution(after))
    for measure, times in (("p50 ms", _latency), ("texts/s", _rate)):
        was, low, high = times(before)
        now, lower, higher = times(after)
        compared.append(Change(name, measure, was, now, [lower / high - 1, higher / low - 1], resolved))
    return compared


def _not_shared(before: Report, after: Report) -> list[str]:
    """The suites that only one of two reports has, or that have other tasks in each."""
    tasks = [
        {suite: [*quality.get("tasks", {})] for suite, quality in report["quality"].items()}
        for report in (before, after)
    ]
    return [suite for suite in {**tasks[0], **tasks[1]} if tasks[0].get(suite) != tasks[1].get(suite)]


def _score(name: str, suite: str, before: Measures, after: Measures) -> Change:
    """Compare the averages on a suite: by the paired bootstrap where both reports have the scores of the same
    items, otherwise by TOLERANCE."""
    items = []  # of each task what tells whether two reports have the same: gold scores, or how many
    for quality in (before, after):
        samples = [task.get("samples", {}) for task in quality["tasks"].values()]
        items.append([sample.get("gold", len(sample.get("scores", ()))) for sample in samples])
    interval = None
    resolved = TOLERANCE
    if items[0] == items[1] and all(items[0]):
        was, now = (bootstrap.of_suite(quality["tasks"])[""] for quality in (before, after))
        interval = bootstrap.interval((now - was) / (abs(before["average"]) or 0.01))
        resolved = 0.0
    return Change(name, suite, 100 * before["average"], 100 * after["average"], interval, resolved)


def _latency(report: Report) -> tuple[float, float, float]:
    """p50 of a report and its 95% interval."""
    p50 = report["single"]["p50_ms"]
    return p50, *report["single"].get("interval95", {}).get("p50_ms", (p50, p50))


def _rate(report: Report) -> tuple[float, float, float]:
    """Texts per second of a report, of its slowest and of its fastest round."""
    offline = report["offline"]
    rounds = offline.get("samples_texts_s", {}).get(offline.get("batch")) or [offline["texts_s"]]
    return offline["texts_s"], min(rounds), max(rounds)


def _other_conditions(before: Report, after: Report) -> list[str]:
    """The conditions in which two reports differ, so that their times are not compared."""
    was, now = (_conditions(report) for report in (before, after))
    return [name for name, value in was.items() if value != now[name]]


def _conditions(report: Report) -> Measures:
    machine = report.get("machine", {})
    single = report.get("single", {})
    return {
        "processor": [machine.get(key) for key in ("cpu", "flags")],
        "number of threads": report.get("threads"),
        "device": report.get("device"),
        "runner": (report.get("runner") or {}).get("name", "python"),
        "suite of texts": single.get("texts_of"),
        "number of texts": single.get("distinct", 1024),  # as many before it was recorded
    }
