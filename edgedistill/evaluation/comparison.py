"""What changed between two report files, and whether it is beyond noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from edgedistill.errors import UserError, raise_failed
from edgedistill.evaluation import bootstrap, page, tables
from edgedistill.evaluation.report import Report, read, resolution, title
from edgedistill.session import Log

UNSAMPLED = 0.005  # a difference of scores that counts where a report lacks the scores of single items
SIZE = 0.005  # relative: below it lie names and versions inside the graph
CONDITIONS = {  # under which times can be compared
    "processor": lambda report: [report["machine"].get(key) for key in ("cpu", "flags")],
    "number of threads": lambda report: report.get("threads"),
    "device": lambda report: report.get("device"),
    "runner": lambda report: (report.get("runner") or {}).get("name", "python"),
    "suite of texts": lambda report: report["single"].get("texts_of"),
    # as many before it was recorded
    "number of texts": lambda report: report["single"].get("distinct", 1024),
}
WORSE, BETTER, SAME, NOISE = "worse", "better", "no difference", "within noise"
UNRESOLVED, UNKNOWN = "not resolved", "not comparable"


class Change(NamedTuple):
    """One measure of a bundle in two reports.

    `change` is the difference of scores, otherwise relative; `interval95` is null where nothing was sampled.
    The verdict is worse or better; within noise, where the interval holds 0; not resolved, where times differ
    by more within one of the runs; no difference, of sizes and where there is no interval; not comparable.
    `because` is what decided.
    """

    bundle: str
    kind: str  # accuracy, size, speed
    measure: str
    before: float
    after: float
    change: float
    interval95: list[float] | None
    verdict: str
    because: str = ""


def compare(
    before: Path, after: Path, show: Log, html: Path | None = None, png: Path | None = None
) -> dict[str, Any]:
    """Compare the reports of two files bundle by bundle, show the table, and draw both on a page.

    Reports are matched by title, and two that are alone in their files whatever their names. Returns
    {before, after, changes, only_before, only_after}. Raises UserError where a file is no report or the two
    have no bundle in common; CheckFailed with the result where accuracy, size or speed fell.
    """
    ours, theirs = ({title(each): each for each in read(path)} for path in (before, after))
    if len(ours) == len(theirs) == 1:
        theirs = dict(zip(ours, theirs.values(), strict=True))
    shared = [(name, each, theirs[name]) for name, each in ours.items() if name in theirs]
    if not shared:
        names = [f"{path} has {', '.join(each)}" for path, each in ((before, ours), (after, theirs))]
        raise UserError(f"--compare: no bundle in both: {', '.join(names)}; name reports of the same bundles")
    found = [change for name, a, b in shared for change in changes(name, a, b)]
    missing = {
        "only_before": [name for name in ours if name not in theirs],
        "only_after": [name for name in theirs if name not in ours],
    }
    changed = [each._asdict() for each in found]
    result = {"before": str(before), "after": str(after), "changes": changed, **missing}
    show(table(found))
    for verdict in (UNRESOLVED, UNKNOWN):
        for reason in dict.fromkeys(each.because for each in found if each.verdict == verdict):
            show(f"{verdict}: {reason}")
    for key, names in missing.items():
        if names:
            show(f"{key.replace('_', ' ')}: {', '.join(names)}")
    both = [*_named(before, "before"), *_named(after, "after")]
    page.draw(both, html, png, [_cells(each) for each in found])
    fell = [
        f"{each.bundle}: {each.measure}: {_value(each, each.before)} to {_value(each, each.after)}, "
        f"{_change(each)} ({each.because})"
        for each in found
        if each.verdict == WORSE
    ]
    raise_failed(fell, **result)
    return result


def _named(path: Path, when: str) -> list[Report]:
    """The reports of a file, with bundles named after when they were measured."""
    return [
        {**each, "bundle": {**each["bundle"], "name": f"{each['bundle']['name']} {when}"}}
        for each in read(path)
    ]


def changes(name: str, before: Report, after: Report) -> list[Change]:
    """Compare what both reports of a bundle have."""
    found = [
        _score(name, suite, before["quality"][suite], after["quality"][suite])
        for suite in before["quality"]
        if suite in after["quality"]
    ]
    sizes = before["size_bytes"]["graph"], after["size_bytes"]["graph"]
    change, because = sizes[1] / sizes[0] - 1, f"up to {SIZE:.1%} is none"
    found.append(Change(name, "size", "graph", *sizes, change, None, _verdict(-change, SIZE), because))
    return found + (_speed(name, before, after) if "single" in after else [])


def _score(name: str, suite: str, before: dict[str, Any], after: dict[str, Any]) -> Change:
    """Compare the averages on a suite: by the paired bootstrap where both reports have the scores of the same
    items, otherwise by UNSAMPLED."""
    scores = before["average"], after["average"]
    change, interval = scores[1] - scores[0], None
    because = f"no scores of single items in both; {100 * UNSAMPLED:g} points count"
    verdict = _verdict(change, UNSAMPLED)
    if _same_items(before["tasks"], after["tasks"]):
        now, then = (bootstrap.of_suite(each["tasks"])[""] for each in (after, before))
        interval = bootstrap.difference(now, then, change)["interval95"]
        verdict = NOISE if interval[0] <= 0 <= interval[1] else _verdict(change, 0)
        because = "paired bootstrap over items"
    return Change(name, "accuracy", suite, *scores, change, interval, verdict, because)


def _same_items(before: dict[str, Any], after: dict[str, Any]) -> bool:
    def items(tasks: dict[str, Any]) -> Any:
        samples = {name: each.get("samples", {}) for name, each in tasks.items()}
        return {name: each.get("gold", len(each.get("scores", ()))) for name, each in samples.items()}

    return items(before) == items(after) and all(items(before).values())


def _verdict(rise: float, tolerance: float) -> str:
    """Judge a rise of what should be high."""
    if abs(rise) <= tolerance:
        return SAME
    return BETTER if rise > 0 else WORSE


def _speed(name: str, before: Report, after: Report) -> list[Change]:
    """Compare latency and throughput, where both were measured under the same conditions."""
    both = before, after
    batch = before["offline"].get("batch", "budget")
    rates = [each["offline"].get("by_batch", {}).get(batch, each["offline"]["texts_s"]) for each in both]
    samples = [each["offline"].get("samples_texts_s", {}).get(batch, ()) for each in both]
    latencies = [each["single"].get("samples_ms", ()) for each in both]
    found = [
        _sampled(name, "p50 ms", [each["single"]["p50_ms"] for each in both], latencies, both),
        _sampled(name, "texts/s", rates, [[[rate] for rate in each] for each in samples], both),
    ]
    if other := [what for what, of in CONDITIONS.items() if of(before) != of(after)]:
        because = f"measured with another {', '.join(other)}"
        return [each._replace(verdict=UNKNOWN, because=because) for each in found]
    return found


def _sampled(
    name: str, measure: str, values: list[float], rounds: list[Any], reports: tuple[Report, Report]
) -> Change:
    """Compare two values by their rounds: a change counts whose interval does not hold 0 and which is larger
    than what the runs can resolve."""
    change = values[1] / values[0] - 1
    rise = change if measure == "texts/s" else -change
    if not all(rounds):
        because = "no samples in the reports"
        return Change(name, "speed", measure, values[0], values[1], change, None, SAME, because)
    before, after = ([np.asarray(each, np.float64) for each in side] for side in rounds)
    interval = [end - 1 for end in bootstrap.ratio_between_runs(after, before)["interval95"]]
    resolved = max(map(resolution, reports))
    if measure == "texts/s":  # whose rounds are few, and may differ more than those of p50
        resolved = max(resolved, *(float(np.max(side) / np.min(side)) - 1 for side in (before, after)))
    if interval[0] <= 0 <= interval[1]:
        verdict, because = NOISE, "the interval holds 0"
    elif abs(change) <= resolved:
        verdict, because = UNRESOLVED, f"{measure} differs by up to {resolved:.1%} within one of the runs"
    else:
        verdict, because = _verdict(rise, 0), f"these runs resolve {resolved:.1%}"
    return Change(name, "speed", measure, values[0], values[1], change, interval, verdict, because)


def table(found: list[Change]) -> str:
    """Return the changes as text that fits the terminal."""
    sheet = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for head in ("bundle", "measure", "before", "after", "change", "95% interval", ""):
        right = head in ("before", "after", "change", "95% interval")
        sheet.add_column(
            head, justify="right" if right else "left", no_wrap=head not in ("bundle", "measure")
        )
    for each in found:
        sheet.add_row(*_cells(each), style="bold" if each.verdict == WORSE else "")
    return tables.plain(sheet)


def _cells(each: Change) -> list[str]:
    ends = ", ".join(_change(each._replace(change=end)).rstrip("%") for end in each.interval95 or ())
    names = tables.shorten(each.bundle, 22), tables.shorten(each.measure, 16)
    return [*names, _value(each, each.before), _value(each, each.after), _change(each), ends, each.verdict]


def _value(change: Change, value: float) -> str:
    if change.kind == "accuracy":
        return f"{100 * value:.2f}"
    return tables.significant(value) if change.kind == "speed" else f"{value / 1e6:,.2f} MB"


def _change(change: Change) -> str:
    """Show a difference of scores in points, × 100, anything else in per cent."""
    return f"{100 * change.change:+.2f}" if change.kind == "accuracy" else f"{change.change:+.1%}"
