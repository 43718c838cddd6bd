"""What changed between two report files, and whether it is beyond noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from edgedistill.errors import UserError, raise_failed
from edgedistill.evaluation import bootstrap, page, tables
from edgedistill.evaluation.report import Report, read, resolution, title
from edgedistill.evaluation.suites.cosines import Measures
from edgedistill.session import Log

TOLERANCE = (
    0.005  # relative; of a size, where below it lie names inside the graph, and of a score without samples
)
WORSE, BETTER, NOISE = "worse", "better", "within noise"
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
        return self.after / self.before - 1 if self.before else 0.0

    @property
    def verdict(self) -> str:
        low, high = self.interval95 or (self.change, self.change)
        if low <= 0 <= high or abs(self.change) <= self.resolved:
            return NOISE
        return BETTER if (self.change < 0) == (self.measure in LESS_IS_BETTER) else WORSE

    @property
    def cells(self) -> list[str]:
        """The row of a table."""
        values = [tables.significant(value, 4) for value in (self.before, self.after)]
        interval = ", ".join(f"{end:+.1%}" for end in self.interval95 or ())
        names = [tables.shorten(self.bundle, 22), tables.shorten(self.measure, 16)]
        return [*names, *values, f"{self.change:+.1%}", interval, self.verdict]


def compare(before: Path, after: Path, show: Log, html: Path | None = None) -> Measures:
    """Compare the reports of two files bundle by bundle, show the table, and draw both on a page.

    Reports are matched by title, and two that are alone in their files whatever their names. Returns
    {before, after, changes, only_before, only_after}. Raises UserError where a file is no report or the two
    have no bundle in common; CheckFailed with the result where accuracy, size or speed fell.
    """
    old, new = read(before), read(after)
    olds, news = ({title(report): report for report in reports} for reports in (old, new))
    if len(olds) == len(news) == 1:
        news = dict(zip(olds, news.values(), strict=True))
    shared = [name for name in olds if name in news]
    if not shared:
        names = f"{before} has {', '.join(olds)}, {after} has {', '.join(news)}"
        raise UserError(f"--compare: no bundle in both: {names}; name reports of the same bundles")
    compared = list[Change]()
    for name in shared:
        compared += changes(name, olds[name], news[name])
        if others := _other_conditions(olds[name], news[name]):
            show(f"{name}: times are not compared: measured with another {', '.join(others)}")
    missing = {
        "only_before": [name for name in olds if name not in news],
        "only_after": [name for name in news if name not in olds],
    }
    show(tables.of_cells(HEADS, [change.cells for change in compared]))
    for key, alone in missing.items():
        if alone:
            show(f"{key.replace('_', ' ')}: {', '.join(alone)}")
    both = [*_renamed(old, "before"), *_renamed(new, "after")]
    if html is not None:
        page.write(html, both, [change.cells for change in compared])
    worse = [change for change in compared if change.verdict == WORSE]
    fell = ["{}: {}: {} to {}, {}".format(*change.cells) for change in worse]
    listed = [{**change._asdict(), "change": change.change, "verdict": change.verdict} for change in compared]
    result = {"before": str(before), "after": str(after), "changes": listed, **missing}
    raise_failed(fell, **result)
    return result


def changes(name: str, before: Report, after: Report) -> list[Change]:
    """Compare what both reports of a bundle have; times only of the same conditions."""
    compared = []
    for suite, quality in before["quality"].items():
        if suite in after["quality"]:
            compared.append(_score(name, suite, quality, after["quality"][suite]))
    was, now = (report["size_bytes"]["graph"] / 1e6 for report in (before, after))
    compared.append(Change(name, "graph MB", was, now, None))
    if _other_conditions(before, after):
        return compared
    resolved = max(resolution(before), resolution(after))
    for measure, times in (("p50 ms", _latency), ("texts/s", _rate)):
        (was, low, high), (now, lower, higher) = times(before), times(after)
        compared.append(Change(name, measure, was, now, [lower / high - 1, higher / low - 1], resolved))
    return compared


def _score(name: str, suite: str, before: Measures, after: Measures) -> Change:
    """Compare the averages on a suite: by the paired bootstrap where both reports have the scores of the same
    items, otherwise by TOLERANCE."""
    averages = 100 * before["average"], 100 * after["average"]
    items = _items(before)
    if items != _items(after) or not all(items):
        return Change(name, suite, *averages, None)
    was, now = (bootstrap.of_suite(quality["tasks"])[""] for quality in (before, after))
    interval = bootstrap.interval((now - was) / before["average"])
    return Change(name, suite, *averages, interval, 0.0)


def _items(quality: Measures) -> list[Any]:
    """Of each task what tells whether two reports have the same items: gold scores, or how many there are."""
    samples = [task.get("samples", {}) for task in quality["tasks"].values()]
    return [sample.get("gold", len(sample.get("scores", ()))) for sample in samples]


def _latency(report: Report) -> tuple[float, float, float]:
    """p50 of a report and its 95% interval."""
    p50 = report["single"]["p50_ms"]
    low, high = report["single"].get("interval95", {}).get("p50_ms", (p50, p50))
    return p50, low, high


def _rate(report: Report) -> tuple[float, float, float]:
    """Texts per second of a report, of its slowest and of its fastest round."""
    offline = report["offline"]
    rounds = offline.get("samples_texts_s", {}).get(offline.get("batch")) or [offline["texts_s"]]
    return offline["texts_s"], min(rounds), max(rounds)


def _other_conditions(before: Report, after: Report) -> list[str]:
    """The conditions in which two reports differ, so that their times are not compared."""
    reports = before, after
    conditions: dict[str, list[Any]] = {
        "processor": [[report.get("machine", {}).get(key) for key in ("cpu", "flags")] for report in reports],
        "number of threads": [report.get("threads") for report in reports],
        "device": [report.get("device") for report in reports],
        "runner": [(report.get("runner") or {}).get("name", "python") for report in reports],
        "suite of texts": [report.get("single", {}).get("texts_of") for report in reports],
        # as many before it was recorded
        "number of texts": [report.get("single", {}).get("distinct", 1024) for report in reports],
    }
    return [name for name, (was, now) in conditions.items() if was != now]


def _renamed(reports: list[Report], when: str) -> list[Report]:
    """The reports of a file, with bundles named after when they were measured."""
    return [
        {**report, "bundle": {**report["bundle"], "name": f"{report['bundle']['name']} {when}"}}
        for report in reports
    ]
