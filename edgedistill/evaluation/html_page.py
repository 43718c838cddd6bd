"""Reports as one HTML file that needs nothing else: what is kept at which cost, plotted and in tables; light and dark."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from edgedistill import files
from edgedistill.evaluation import plots
from edgedistill.evaluation.report import (
    NOISY,
    Report,
    drift,
    is_teacher,
    kept,
    megabytes,
    millions,
    milliseconds,
    noisy,
    reference,
    score,
    shorten,
    suites,
    where,
    whole,
)
from edgedistill.evaluation.suites import MEASURES

COLOURS = 9  # --c0 is the teacher's, --c1 to --c8 the students'; then from the start again


def write(path: Path, reports: list[Report]) -> None:
    """Write the page; whole or not at all."""
    files.write_text(path, html(reports))


def html(reports: list[Report]) -> str:
    """The whole page."""
    colours = _colours(reports)
    names = suites(reports)
    body = [_header(reports, names, colours)]
    if names:
        body.append(plots.tradeoff(reports, names, colours))
    body += [_table(reports, names, colours), plots.latencies(reports, colours)]
    body += [plots.keeping(reports, names, colours), _tasks(reports, names), _agreement(reports), _notes(reports)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>edgedistill · {escape(_subject(reports))}</title><style>{CSS}</style></head>\n<body><main>\n"
        + "\n".join(part for part in body if part)
        + f'\n</main><div id="tip" role="status"></div><script>{JS}</script></body></html>\n'
    )


def _subject(reports: list[Report]) -> str:
    names = list(dict.fromkeys(report["bundle"]["name"] for report in reports))
    return shorten(names[0], 40) if len(names) == 1 else f"{len(names)} bundles"


def _colours(reports: list[Report]) -> dict[str, str]:
    """A bundle's name -> its colour; all teachers share one."""
    students = list(dict.fromkeys(report["bundle"]["name"] for report in reports if not is_teacher(report)))
    found = {name: f"var(--c{1 + at % (COLOURS - 1)})" for at, name in enumerate(students)}
    return {report["bundle"]["name"]: found.get(report["bundle"]["name"], "var(--c0)") for report in reports}


# ---- words ----


def _header(reports: list[Report], names: list[str], colours: dict[str, str]) -> str:
    places = "<br>".join(escape(line) for line in dict.fromkeys(where(report) for report in reports))
    lead, tiles = _lead(reports, names, colours)
    noise = f"A noisy machine: the same bundle's p50 differed by more than {NOISY:.0%} between rounds; read times with care."
    noise = f'<p class="noise">{noise}</p>' if any(noisy(report) for report in reports) else ""
    return f'<header><p class="brand">edgedistill bench</p><h1>{lead}</h1>{tiles}<p class="where">{places}</p>{noise}</header>'


def _lead(reports: list[Report], names: list[str], colours: dict[str, str]) -> tuple[str, str]:
    """The page's first sentence, and its figures: the smallest student that keeps 95%, or the one that keeps most."""
    teacher = reference(reports)
    students = [report for report in reports if not is_teacher(report) and names and report["kept"].get(names[0])]
    if teacher is None or not students:
        return f"{escape(_subject(reports))}, measured", ""
    good = [report for report in students if report["kept"][names[0]] >= 0.95]
    best = min(good, key=lambda r: r["size_bytes"]["graph"]) if good else max(students, key=lambda r: r["kept"][names[0]])
    smaller = teacher["size_bytes"]["graph"] / best["size_bytes"]["graph"]
    faster = teacher["single"]["p50_ms"] / best["single"]["p50_ms"]
    name = escape(shorten(best["bundle"]["name"], 44))
    name = f'<span style="color:{colours[best["bundle"]["name"]]}">{name}</span> in {best["bundle"]["precision"]}'
    lead = f"{name} keeps {kept(best, names[0])} of its teacher on {escape(names[0])}"
    figures = [
        (megabytes(best["size_bytes"]["graph"]) + " MB", f"graph, {_times(smaller, 'smaller', 'larger')}"),
        (milliseconds(best["single"]["p50_ms"]) + " ms", f"a text at p50, {_times(faster, 'faster', 'slower')}"),
        (whole(best["offline"]["texts_s"]), f"texts/s, the teacher {whole(teacher['offline']['texts_s'])}"),
    ]
    return lead, '<dl class="tiles">' + "".join(f"<div><dt>{small}</dt><dd>{big}</dd></div>" for big, small in figures) + "</dl>"


def _times(ratio: float, more: str, less: str) -> str:
    return f"{ratio:.1f}× {more}" if ratio >= 1 else f"{1 / ratio:.1f}× {less}"


def _notes(reports: list[Report]) -> str:
    first = reports[0]
    machine = ", ".join(f"{escape(str(key))} {escape(_plain(value))}" for key, value in first["machine"].items() if value not in (None, []))
    versions = ", ".join(f"{escape(key)} {escape(str(value))}" for key, value in first["versions"].items())
    single = first["single"]
    counted = f"{single['queries']:,} single texts after {single['warmups']} warm-ups" if "queries" in single else "single texts"
    return (
        "<section><h2>How it was measured</h2><p>Every measurement ran in a fresh process, bundles taking turns; times include "
        f"tokenization. {counted} a bundle, with 95% bootstrap intervals over rounds and texts; memory in a pass of its own, after "
        "texts of many lengths. Throughput: all texts at once, sorted into batches by length. Kept: a score as a share of the teacher's. "
        "Drift: 1 − cosine of a text's vectors alone and in a batch, at worst."
        f"</p><p><b>Machine</b> {machine}</p><p><b>Versions</b> {versions}</p></section>"
    )


def _plain(value: Any) -> str:
    return " ".join(str(part) for part in value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)


# ---- tables ----


def _label(report: Report, width: int = 32) -> str:
    name, precision = report["bundle"]["name"], report["bundle"]["precision"]
    return f'<span title="{escape(name)}">{escape(shorten(name, width))}</span> <span class="prec">{escape(precision)}</span>'


def _table(reports: list[Report], names: list[str], colours: dict[str, str]) -> str:
    def cell(shown: str, value: float | None, bar: float = 0.0) -> str:
        style = f' style="--bar:{100 * bar:.1f}%"' if bar else ""
        return f'<td data-v="{"" if value is None else value}"{style}{" class=bar" if bar else ""}>{shown}</td>'

    heads = ["bundle", "params", "MB", *[h for n in names for h in (n, "kept")]]
    heads += ["p50 ms", "p99 ms", "texts/s", "load ms", "RSS MB", "drift"]
    rows = []
    for report in reports:
        single, sizes = report["single"], report["size_bytes"]
        colour = colours[report["bundle"]["name"]]
        cells = [f'<th scope="row" data-v="{escape(report["bundle"]["name"])}"><i style="background:{colour}"></i>{_label(report)}</th>']
        cells += [
            cell(millions(report["parameters"]["total"]), report["parameters"]["total"]),
            cell(megabytes(sizes["graph"]), sizes["graph"]),
        ]
        for name in names:
            share = report["kept"].get(name) if kept(report, name) else None
            cells.append(cell(score(report, name), (report["quality"].get(name) or {}).get("average")))
            cells.append(cell(kept(report, name) or "–", share, min(share or 0.0, 1.0)))
        cells += [cell(("~" if noisy(report) else "") + milliseconds(single["p50_ms"]), single["p50_ms"])]
        cells += [cell(milliseconds(single["p99_ms"]), single["p99_ms"])]
        cells += [
            cell(whole(report["offline"]["texts_s"]), report["offline"]["texts_s"]),
            cell(whole(report["load_ms"]), report["load_ms"]),
        ]
        cells += [cell(whole(report["peak_rss_bytes"] / 1e6), report["peak_rss_bytes"]), cell(drift(report), report["drift"]["min"])]
        rows.append(f"<tr{' class=teacher' if is_teacher(report) else ''}>{''.join(cells)}</tr>")
    head = "".join(f'<th scope="col"><button>{escape(h)}</button></th>' for h in heads)
    return f"<section><h2>In numbers</h2>{_grid_of(head, rows, 'sortable')}</section>"


def _tasks(reports: list[Report], names: list[str]) -> str:
    """Per suite with several tasks: every task's score, shaded from its lowest to its highest."""
    blocks = []
    for name in names:
        measured = [report for report in reports if name in report["quality"]]
        tasks = list(measured[0]["quality"][name]["tasks"])
        if len(tasks) < 2:
            continue
        values = {(at, task): _headline(r["quality"][name], task) for at, r in enumerate(measured) for task in tasks}
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
        head = f'<th scope="col">{plots.measure(measured[0], name)}</th>{head}'
        blocks.append(f"<h3>{escape(name)}</h3>{_grid_of(head, rows)}")
    return f"<section><h2>Task by task</h2>{''.join(blocks)}</section>" if blocks else ""


def _headline(found: dict[str, Any], task: str) -> float:
    """The number of a task that its suite averages."""
    return float((found["tasks"].get(task) or {}).get(MEASURES[found.get("kind", "sts")][0], 0.0))


def _agreement(reports: list[Report]) -> str:
    """Agreement with the teacher, over all texts and by length."""
    having = [report for report in reports if report.get("agreement")]
    if not having:
        return ""
    lengths = list(dict.fromkeys(length for report in having for length in report["agreement"]["by_length"]))
    heads = ["", "Spearman of cosines", "mean cosine", "top-10 in common", *[f"{length} tokens" for length in lengths]]
    rows = []
    for report in having:
        found = report["agreement"]
        cells = [_share(found["spearman"], 4), _share(found["cosine_mean"], 4), _share(found["top10_overlap"], 3)]
        cells += [_share((found["by_length"].get(length) or {}).get("spearman"), 4) for length in lengths]
        rows.append(f'<tr><th scope="row">{_label(report)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    about = having[0]["agreement"]
    source = f"On {about['texts']:,} texts without labels ({escape(str(about.get('source', '')))}). By length: Spearman of cosines."
    return f"<section><h2>Agreement with the teacher</h2><p>{source}</p>{_grid_of(head, rows)}</section>"


def _grid_of(head: str, rows: list[str], kind: str = "plain") -> str:
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _share(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


# ---- plots ----


CSS = """
:root{--bg:#fbfaf6;--card:#fff;--ink:#1d2126;--soft:#5d6670;--line:#e4e1d8;--shade:#2f6fed;--c0:#3a3f46;--c1:#2f6fed;--c2:#d9480f;
--c3:#0c8f7d;--c4:#a61e8f;--c5:#b07d00;--c6:#6741d9;--c7:#3f8f1f;--c8:#d0306b;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--card:#1b1f25;--ink:#eceae4;--soft:#9aa4af;--line:#2c323a;--shade:#5b93ff;
--c0:#cfd5dc;--c1:#6b9dff;--c2:#ff8552;--c3:#35c9b2;--c4:#e56fd0;--c5:#e3b341;--c6:#a78bfa;--c7:#86cf5f;--c8:#ff7aa8}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}main{max-width:1240px;margin:0 auto;
padding:44px 28px 60px}header{margin-bottom:8px}.brand{margin:0;color:var(--soft);font-size:13px;letter-spacing:.08em;
text-transform:uppercase}h1{font-size:clamp(24px,3.4vw,36px);line-height:1.2;font-weight:650;letter-spacing:-.015em;margin:6px 0 18px;
max-width:26em;overflow-wrap:anywhere;text-wrap:balance}h2{font-size:19px;font-weight:650;margin:0 0 10px}h3{font-size:15px;
margin:18px 0 6px}section{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:22px 24px;margin:20px 0}
.where{color:var(--soft);font-size:14px;margin:14px 0 0}.noise{color:var(--c2);font-size:14px;margin:6px 0 0}.tiles{display:flex;
flex-wrap:wrap;gap:12px 44px;margin:0}.tiles div{display:flex;flex-direction:column-reverse}.tiles dt{color:var(--soft);font-size:14px}
.tiles dd{margin:0;font-size:27px;font-weight:600;letter-spacing:-.01em;font-variant-numeric:tabular-nums}.scroll{overflow-x:auto}
svg{display:block;width:100%;height:auto;font-family:inherit;overflow:visible}.scroll>svg{min-width:760px}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums;white-space:nowrap}th,td{padding:7px 7px;
text-align:right;border-bottom:1px solid var(--line);font-weight:400}th:first-child{text-align:left;padding-left:0}
thead th{color:var(--soft);font-size:13px}tbody tr:last-child>*{border-bottom:0}
tbody tr:hover>*{background:color-mix(in srgb,var(--ink) 4%,transparent)}tr.teacher>*{font-weight:650}th i{display:inline-block;
width:10px;height:10px;border-radius:50%;margin-right:8px}th button{all:unset;cursor:pointer}
th button:hover,th button:focus-visible{color:var(--ink);text-decoration:underline}th[aria-sort] button{color:var(--ink)}
th[aria-sort=ascending] button::after{content:" ↑"}th[aria-sort=descending] button::after{content:" ↓"}.prec{color:var(--soft);
font-weight:400}
td.bar{background:linear-gradient(90deg,color-mix(in srgb,var(--shade) 18%,transparent) var(--bar),
transparent var(--bar)) no-repeat 0 50%/100% 64%}
td.shade{background:color-mix(in srgb,var(--shade) calc(var(--s)*.3),transparent)}.tabs input{position:absolute;opacity:0}
.tabs label{display:inline-block;padding:3px 13px;margin:0 6px 10px 0;border:1px solid var(--line);border-radius:99px;font-size:14px;
color:var(--soft);cursor:pointer}.tabs input:checked+label{background:var(--ink);color:var(--bg);border-color:var(--ink)}
.tabs input:focus-visible+label{outline:2px solid var(--shade);outline-offset:2px}.one input,.one label{display:none}
.panel{display:none}.grid{stroke:var(--line)}.base{stroke:var(--soft);stroke-opacity:.5}.tick,.note,.hint,.axis{fill:var(--soft);
font-size:12px}.hint{font-style:italic}.note{font-size:11.5px;font-variant-numeric:tabular-nums}.label{font-size:12px;fill:var(--soft)}
.label .name{font-weight:600;fill:var(--ink)}.panel .label,.panel .note{paint-order:stroke;stroke:var(--card);stroke-width:3px;
stroke-linejoin:round}.teacher-line{stroke:var(--c0);stroke-dasharray:2 5;stroke-opacity:.75}.frontier{fill:none;stroke:var(--soft);
stroke-opacity:.35;stroke-width:1.5;stroke-linejoin:round}.dot{outline:none;color:var(--c)}.dot circle{fill:var(--c);fill-opacity:.28;
stroke:var(--c);stroke-width:1.5}.dot .core{fill-opacity:1;stroke:none}.dot line{stroke:var(--c);stroke-width:1.5}
.dot:hover circle,.dot:focus-visible circle{fill-opacity:.55}.dot.teacher circle{fill-opacity:.12;stroke-dasharray:4 3}
.dot.teacher .core{fill-opacity:1}.leader{stroke:var(--soft);stroke-opacity:.6}.key{fill:none;stroke:var(--soft)}
.hill path{fill:var(--c);fill-opacity:.35;stroke:var(--c);stroke-width:1.2}.mark{stroke:var(--ink);stroke-width:1.5}
.multiples{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:14px 36px}figure{margin:0;
max-width:640px}figcaption{font-size:14px;font-weight:600;margin-bottom:4px}section p{font-size:14px;color:var(--soft);margin:6px 0;
overflow-wrap:anywhere}section p b{color:var(--ink)}#tip{position:fixed;display:none;white-space:pre;pointer-events:none;
background:var(--ink);color:var(--bg);font-size:13px;line-height:1.45;padding:8px 12px;border-radius:8px;max-width:90vw;z-index:9}
@media(max-width:640px){main{padding:24px 12px}section{padding:16px 14px;border-radius:10px}}@media print{section{break-inside:avoid}
body{background:#fff}}
"""

JS = """
const tip=document.getElementById('tip');const show=(e,x,y)=>{tip.textContent=e.dataset.tip;tip.style.display='block';
tip.style.left=Math.min(x+14,innerWidth-tip.offsetWidth-8)+'px';tip.style.top=Math.max(8,Math.min(y+14,
innerHeight-tip.offsetHeight-8))+'px'};document.querySelectorAll('[data-tip]').forEach(e=>{e.onmousemove=v=>show(e,v.clientX,v.clientY);
e.onfocus=()=>{const b=e.getBoundingClientRect();show(e,b.right,b.top)};e.onmouseleave=e.onblur=()=>tip.style.display='none'});
document.querySelectorAll('.sortable thead th').forEach((th,i)=>th.firstChild.onclick=()=>{
const up=th.getAttribute('aria-sort')==='descending'||(i===0&&!th.hasAttribute('aria-sort')),body=th.closest('table').tBodies[0];
th.parentNode.querySelectorAll('th').forEach(o=>o.removeAttribute('aria-sort'));th.setAttribute('aria-sort',
up?'ascending':'descending');const key=r=>r.cells[i].dataset.v,empty=v=>v==='';[...body.rows].sort((a,b)=>{const x=key(a),y=key(b);
if(empty(x)||empty(y))return empty(x)-empty(y);return(i===0?x.localeCompare(y):x-y)*(up?1:-1)}).forEach(r=>body.append(r))});
"""
