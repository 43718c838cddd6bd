"""What was measured: JSON reports with raw samples, units and machine, and the tables made from them (never typed)."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgedistill import files
from edgedistill.errors import UserError

SCHEMA = 1
KEYS: dict[str, tuple[str, ...]] = {  # every report has at least these
    "schema": (),
    "made_at": (),
    "bundle": ("name", "kind", "precision", "sha256"),
    "parameters": ("embedding", "encoder", "head", "total"),
    "size_bytes": ("graph", "bundle"),
    "machine": (),
    "versions": (),
    "quality": (),
    "kept": (),
    "single": ("p50_ms", "p90_ms", "p99_ms"),
    "offline": ("texts_s",),
    "load_ms": (),
    "peak_rss_bytes": (),
    "drift": ("mean", "min"),
}
NOISY = 0.10  # p50 of the same bundle differed by more than this between rounds: say so beside the numbers
WIDTH = 100  # columns of the terminal that the tables keep within
Report = dict[str, Any]


def read(path: Path) -> list[Report]:
    """The reports of a file, of one bundle or several. Raises UserError: not a report, or from a newer schema."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; make one with edgedistill bench … --out {path.name}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error}); make it anew with edgedistill bench") from None
    reports = value["reports"] if isinstance(value, dict) and isinstance(value.get("reports"), list) else [value]
    for part in [value, *reports]:
        schema = part.get("schema") if isinstance(part, dict) else None
        if not isinstance(schema, int):
            raise UserError(f"{path}: not a report, it has no `schema`; make one with edgedistill bench")
        if schema > SCHEMA:
            raise UserError(f"{path}: schema {schema}, this edgedistill reads up to {SCHEMA}; upgrade edgedistill")
    problems = [
        f"{path}: reports[{at}]: no `{key}`; make it anew with edgedistill bench" for at, r in enumerate(reports) for key in missing(r)
    ]
    if problems:
        raise UserError(*problems)
    return reports


def write(path: Path, reports: list[Report]) -> None:
    """Write one report as itself, several as {schema, reports}; whole or not at all."""
    files.write_text(path, dumps(reports))


def dumps(reports: list[Report]) -> str:
    """The JSON of a report file, indented; a list of plain numbers stays on one line."""
    value = reports[0] if len(reports) == 1 else {"schema": SCHEMA, "reports": reports}
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[\n\s+([-+.\deE,\s]+?)\s+\]", lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text) + "\n"


def missing(report: Report) -> list[str]:
    """The keys of the contract that a report lacks, dotted."""
    lost = [key for key in KEYS if key not in report]
    return lost + [f"{key}.{part}" for key, parts in KEYS.items() if key not in lost for part in parts if part not in (report[key] or {})]


def title(report: Report, width: int = 1000) -> str:
    """`name:precision`, its name shortened in the middle where it must."""
    precision = report["bundle"]["precision"]
    return f"{shorten(report['bundle']['name'], width - len(precision) - 1)}:{precision}"


def shorten(text: str, width: int) -> str:
    """At most `width` characters, the middle left out: ends tell names apart."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def is_teacher(report: Report) -> bool:
    return bool(report["bundle"]["kind"] == "teacher")


def reference(reports: list[Report]) -> Report | None:
    """The teacher that others are measured by: in fp32, where that was measured."""
    teachers = [report for report in reports if is_teacher(report)]
    return min(teachers, key=lambda report: report["bundle"]["precision"] != "fp32", default=None)


def suites(reports: list[Report]) -> list[str]:
    """Names of all suites, in the order met."""
    return list(dict.fromkeys(name for report in reports for name in report["quality"]))


def noisy(report: Report) -> bool:
    return bool((report.get("noise") or {}).get("between", 0) > NOISY)


def score(report: Report, suite: str) -> str:
    """The suite's average × 100."""
    found = report["quality"].get(suite)
    return f"{100 * found['average']:.2f}" if found else "–"


def kept(report: Report, suite: str) -> str:
    """How much of the teacher's average is left, in percent; empty without a teacher, and for the teacher it is measured by."""
    share = report["kept"].get(suite)
    return "" if share is None or (is_teacher(report) and share == 1) else f"{100 * share:.1f}%"


def millions(count: int | None) -> str:
    return "–" if count is None else f"{count / 1e6:.2f}M"


def megabytes(count: int | None) -> str:
    """10⁶ bytes, two figures after the point below 100."""
    return "–" if count is None else f"{count / 1e6:.2f}" if count < 1e8 else f"{count / 1e6:.0f}"


def milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def drift(report: Report) -> str:
    """Largest difference between a text alone and in a batch, as 1 − cosine."""
    low = report["drift"]["min"]
    return "–" if low is None else "0" if low > 1 - 5e-5 else f"{1 - low:.4f}"


def table(reports: list[Report]) -> RenderableType:
    """The reports for the terminal, within 100 columns: cost, accuracy and what is kept, a line a bundle."""
    names = suites(reports)
    shared = names if len(names) == 1 else []
    parts: list[RenderableType] = [_costs(reports, shared)]
    if not shared and names:
        parts.append(_scores(reports, names))
    parts.append(Text("\n".join(_notes(reports)), style="dim"))
    return Group(*parts)


def text(reports: list[Report]) -> str:
    """The table as plain text."""
    console = Console(width=WIDTH, file=io.StringIO(), record=True)
    console.print(table(reports))
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def slim(report: Report) -> Report:
    """The report without its raw samples."""
    parts = {key: {k: v for k, v in report[key].items() if "samples" not in k} for key in ("single", "offline")}
    return {**report, **parts}


def _costs(reports: list[Report], names: list[str]) -> Table:
    heads = ["params", "MB", *[part for name in names for part in (shorten(name, 9), "kept")]]
    heads += ["p50 ms", "p99 ms", "texts/s", "load ms", "RSS MB", "drift"]
    lines = []
    for report in reports:
        single = report["single"]
        cells = [millions(report["parameters"]["total"]), megabytes(report["size_bytes"]["graph"])]
        cells += [part for name in names for part in (score(report, name), kept(report, name))]
        cells += [("~" if noisy(report) else "") + milliseconds(single["p50_ms"]), milliseconds(single["p99_ms"])]
        cells += [whole(report["offline"]["texts_s"]), whole(report["load_ms"]), whole(report["peak_rss_bytes"] / 1e6), drift(report)]
        lines.append(cells)
    return _grid(reports, heads, lines)


def _scores(reports: list[Report], names: list[str]) -> Table:
    width = max(5, 60 // len(names) - 8)
    heads = [part for name in names for part in (shorten(name, width), "kept")]
    return _grid(reports, heads, [[part for name in names for part in (score(report, name), kept(report, name))] for report in reports])


def _grid(reports: list[Report], heads: list[str], lines: list[list[str]]) -> Table:
    """A table whose first column takes what the others leave of WIDTH."""
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    rest = sum(max(len(line[at]) for line in [heads, *lines]) + 2 for at in range(len(heads)))
    grid.add_column("bundle", no_wrap=True)
    for head in heads:
        grid.add_column(head, justify="right", no_wrap=True)
    for report, line in zip(reports, lines, strict=True):
        grid.add_row(title(report, max(12, WIDTH - 3 - rest)), *line, style="bold" if is_teacher(report) else "")
    return grid


def _notes(reports: list[Report]) -> list[str]:
    """Machine and reading aids, a line each, at most 100 characters."""
    notes = [shorten(line, 100) for line in dict.fromkeys(where(report) for report in reports)]
    notes.append("kept: share of the teacher's score. drift: 1 − cosine of a text alone and in a batch, at worst.")
    if any(noisy(report) for report in reports):
        notes.append(f"~ a noisy machine: the same bundle's p50 differed by more than {NOISY:.0%} between rounds.")
    return notes


def where(report: Report) -> str:
    """Processor, threads, the instructions that matter, and the day: what a time means nothing without."""
    machine, flags = report["machine"], report["machine"].get("flags") or []
    telling = [flag for flag in ("amx_int8", "avx512_vnni", "avx_vnni", "avx512f", "avx2", "i8mm", "asimddp") if flag in flags][:2]
    threads = report.get("threads")
    cpu = re.sub(r"\((?:R|TM|C)\)|\bCPU\b|@.*", "", machine.get("cpu") or "")
    parts = [
        " ".join(cpu.split()) or None,
        f"{threads} thread{'' if threads == 1 else 's'}" if threads else None,
        " ".join(telling) or None,
    ]
    runtime = report["versions"].get("onnxruntime")
    parts += ["cuda" if report.get("device") == "cuda" else None, f"onnxruntime {runtime}" if runtime else None, report["made_at"][:10]]
    return " · ".join(str(part) for part in parts if part)


def markdown(reports: list[Report]) -> str:
    """The README's table, one line a bundle, and below it where and when; what is kept only where a teacher was measured beside."""
    compared = any(kept(report, name) for report in reports for name in suites(reports))
    columns = [(name, show) for name in suites(reports) for show in ([score, kept] if compared else [score])]
    heads = ["bundle", "params", "MB", *[name if show is score else "kept" for name, show in columns]]
    heads += ["p50 ms", "p99 ms", "texts/s", "RSS MB"]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for report in reports:
        single, mark = report["single"], "~" if noisy(report) else ""
        cells = [f"**{title(report)}**" if is_teacher(report) else title(report), millions(report["parameters"]["total"])]
        cells += [megabytes(report["size_bytes"]["graph"]), *[show(report, name) for name, show in columns]]
        cells += [mark + milliseconds(single["p50_ms"]), milliseconds(single["p99_ms"]), whole(report["offline"]["texts_s"])]
        lines.append([cell.replace("|", "\\|") for cell in [*cells, whole(report["peak_rss_bytes"] / 1e6)]])
    places = "<br>\n".join(dict.fromkeys(where(report) for report in reports))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n<sub>{places}</sub>\n"


def merged(reports: list[Report]) -> list[Report]:
    """One report a graph file: accuracy is the file's, so that of all its reports is put together; costs are of the first."""
    found: dict[tuple[str, str], Report] = {}
    for report in reports:
        key = (title(report), report["bundle"]["sha256"])
        first = found.setdefault(key, report)
        found[key] = {**first, **{part: {**report[part], **first[part]} for part in ("quality", "kept")}}
    return list(found.values())


def markers(name: str) -> tuple[str, str]:
    """What stands before and behind the table of this name in a README."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def update_readme(path: Path, sources: list[Path], name: str = "results") -> bool:
    """Write the table of some report files between a README's markers of that name, a line a bundle; says whether anything changed."""
    text = path.read_text(encoding="utf-8")
    begin, end = markers(name)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise UserError(f"{path}: the markers {begin} and {end} must be there once each, in this order; add them where the table goes")
    made = markdown(merged([report for source in sources for report in read(source)]))
    head, tail = text.split(begin)[0], text.split(end)[1]
    fresh = f"{head}{begin}\n{made}{end}{tail}"
    if fresh != text:
        files.write_text(path, fresh)
    return fresh != text
