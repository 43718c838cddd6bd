"""The page's tables: measurements, scores by task, agreement with the teacher."""

from __future__ import annotations

from html import escape
from typing import Any

from edgedistill.evaluation.number_format import (
    batch_sensitivity,
    megabytes,
    millions,
    milliseconds,
    p50,
    retained,
    score,
    shorten,
    whole,
)
from edgedistill.evaluation.plots import tradeoff
from edgedistill.evaluation.report import Report, is_teacher
from edgedistill.evaluation.suites import MEASURES

COSTS = ("p50 ms", "p99 ms", "texts/s", "load ms", "RSS MB", "batch sensitivity")


def measurements(reports: list[Report], names: list[str], colours: dict[str, str]) -> str:
    """Sizes, scores and costs, one row per report; sortable."""
    heads = ["bundle", "params", "MB", *[head for name in names for head in (name, "retained")], *COSTS]
    rows = [_measurement(report, names, colours[report["bundle"]["name"]]) for report in reports]
    head = "".join(f'<th scope="col"><button>{escape(each)}</button></th>' for each in heads)
    return f"<section><h2>Measurements</h2>{_table(head, rows, 'sortable')}</section>"


def tasks(reports: list[Report], names: list[str]) -> str:
    """For each suite with several tasks: every task's score, shaded from the column's lowest to its highest."""
    blocks = []
    for name in names:
        measured = [report for report in reports if name in report["quality"]]
        tasks = list(measured[0]["quality"][name]["tasks"])
        if len(tasks) < 2:
            continue
        values = {(at, task): task_score(r["quality"][name], task) for at, r in enumerate(measured) for task in tasks}
        rows = []
        for at, report in enumerate(measured):
            cells = []
            for task in tasks:
                column = [values[i, task] for i in range(len(measured))]
                spread = max(column) - min(column)
                shade = (values[at, task] - min(column)) / spread if spread > 0 else 0.0
                cells.append(f'<td class="shade" style="--s:{100 * shade:.0f}%">{100 * values[at, task]:.2f}</td>')
            rows.append(f'<tr><th scope="row">{_label(report)}</th>{"".join(cells)}<td><b>{score(report, name)}</b></td></tr>')
        head = "".join(f'<th scope="col">{escape(task)}</th>' for task in [*tasks, "average"])
        head = f'<th scope="col">{tradeoff.measure(measured[0], name)}</th>{head}'
        blocks.append(f"<h3>{escape(name)}</h3>{_table(head, rows)}")
    return f"<section><h2>Scores by task</h2>{''.join(blocks)}</section>" if blocks else ""


def task_score(scores: dict[str, Any], task: str) -> float:
    """The measure of a task that its suite averages."""
    return float((scores["tasks"].get(task) or {}).get(MEASURES[scores.get("kind", "sts")][0], 0.0))


def agreement(reports: list[Report]) -> str:
    """Agreement with the teacher, over all texts and by length; empty where it was not measured."""
    measured = [report for report in reports if report.get("agreement")]
    if not measured:
        return ""
    lengths = list(dict.fromkeys(length for report in measured for length in report["agreement"]["by_length"]))
    heads = ["", "Spearman of cosines", "mean cosine", "top-10 overlap", *[f"{length} tokens" for length in lengths]]
    rows = []
    for report in measured:
        found = report["agreement"]
        cells = [_decimals(found["spearman"], 4), _decimals(found["cosine_mean"], 4), _decimals(found["top10_overlap"], 3)]
        cells += [_decimals((found["by_length"].get(length) or {}).get("spearman"), 4) for length in lengths]
        rows.append(f'<tr><th scope="row">{_label(report)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    about = measured[0]["agreement"]
    source = f"On {about['texts']:,} unlabelled texts ({escape(str(about.get('source', '')))}). Columns by length: Spearman of cosines."
    return f"<section><h2>Agreement with the teacher</h2><p>{source}</p>{_table(head, rows)}</section>"


def _measurement(report: Report, names: list[str], colour: str) -> str:
    """One row; cells carry the plain value to sort by."""
    single, sizes, total = report["single"], report["size_bytes"], report["parameters"]["total"]
    cells = [f'<th scope="row" data-v="{escape(report["bundle"]["name"])}"><i style="background:{colour}"></i>{_label(report)}</th>']
    cells += [_cell(millions(total), total), _cell(megabytes(sizes["graph"]), sizes["graph"])]
    for name in names:
        share = report["kept"].get(name) if retained(report, name) else None
        cells.append(_cell(score(report, name), (report["quality"].get(name) or {}).get("average")))
        cells.append(_cell(retained(report, name) or "–", share, min(share or 0.0, 1.0)))
    rate, rss = report["offline"]["texts_s"], report["peak_rss_bytes"]
    cells += [_cell(p50(report), single["p50_ms"]), _cell(milliseconds(single["p99_ms"]), single["p99_ms"]), _cell(whole(rate), rate)]
    cells += [_cell(whole(report["load_ms"]), report["load_ms"]), _cell(whole(rss / 1e6), rss)]
    cells.append(_cell(batch_sensitivity(report), report["drift"]["min"]))
    return f"<tr{' class=teacher' if is_teacher(report) else ''}>{''.join(cells)}</tr>"


def _cell(shown: str, value: float | None, bar: float = 0.0) -> str:
    style = f' style="--bar:{100 * bar:.1f}%"' if bar else ""
    return f'<td data-v="{"" if value is None else value}"{style}{" class=bar" if bar else ""}>{shown}</td>'


def _label(report: Report, width: int = 32) -> str:
    name, precision = report["bundle"]["name"], report["bundle"]["precision"]
    return f'<span title="{escape(name)}">{escape(shorten(name, width))}</span> <span class="prec">{escape(precision)}</span>'


def _table(head: str, rows: list[str], kind: str = "plain") -> str:
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _decimals(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
