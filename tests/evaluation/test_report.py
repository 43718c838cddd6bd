"""Reports: written and read whole, tables that fit, one page that needs nothing else."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import readme_tables
import report_files

from edgedistill.errors import UserError
from edgedistill.evaluation import bootstrap, page, report, tables

node = pytest.mark.skipif(shutil.which("node") is None, reason="no Node on the path")
chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium on the path")
LONG = "bilstm-128-256-max-readout-with-an-exceptionally-long-name-<&>-that-someone-typed"


def made(
    name: str,
    kind: str,
    precision: str,
    megabytes: float,
    p50: float,
    score: float,
    suites: tuple[str, ...] = ("sts7",),
) -> dict[str, Any]:
    """A report with plausible numbers; its times are drawn around p50."""
    samples = p50 * np.exp(np.random.default_rng(len(name)).normal(0, 0.2, (3, 64)))
    points, intervals = bootstrap.quantiles(samples, 50)
    quality = {
        s: {
            "kind": "sts",
            "average": score,
            "tasks": {t: {"all": score} for t in ("A", "B")},
        }
        for s in suites
    }
    return {
        "schema": 1,
        "made_at": "2025-01-15T10:00:00+00:00",
        "bundle": {"name": name, "kind": kind, "precision": precision, "sha256": "0" * 64},
        "parameters": {"embedding": 3_000_000, "encoder": 1_000_000, "head": 0, "total": 4_000_000},
        "size_bytes": {"graph": int(megabytes * 1e6)},
        "machine": {"cpu": "Some(R) Processor CPU @ 2.00GHz", "flags": ["avx2", "avx512_vnni"], "cores": 2},
        "versions": {"onnxruntime": "1.31.1"},
        "threads": 2,
        "device": "cpu",
        "quality": quality,
        "kept": dict.fromkeys(suites, score / 0.8),
        "single": {
            **points,
            "interval95": intervals,
            "queries": samples.size,
            "warmups": 10,
            "samples_ms": samples.tolist(),
        },
        "offline": {"texts_s": 1234.5, "samples_texts_s": {"1": [1.0, 2.0]}},
        "peak_rss_bytes": 120_000_000,
        "noise": {"between": 0.02},
        "agreement": None,
    }


def reports(count: int, suites: tuple[str, ...] = ("sts7",)) -> list[dict[str, Any]]:
    students = [
        made(f"student-{i}", "bert", "w8", 4 + i, 0.3 + 0.1 * i, 0.75 + 0.005 * i, suites)
        for i in range(count - 2)
    ]
    return [
        made("the-teacher", "teacher", "fp32", 90.4, 3.5, 0.8, suites),
        made(LONG, "bilstm", "int8", 5, 0.5, 0.76, suites),
        *students,
    ][:count]


@pytest.mark.parametrize("count", [1, 3])
def test_written_and_read_again(tmp_path, count: int):
    path = tmp_path / "reports" / "x.json"
    report.write(path, reports(count))
    assert report_files.read(path) == reports(count)
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert raw["schema"] == 1
    assert ("reports" in raw) == (count > 1)
    assert (
        max(map(len, path.read_text(encoding="utf-8").splitlines())) > 500
    )  # samples lie on a line, not a line each
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


def test_every_key_of_the_contract_is_asked_for(tmp_path):
    assert report_files.missing_keys(made("x", "bert", "w8", 4, 1, 0.7)) == []
    for key, parts in report_files.KEYS.items():
        broken = made("x", "bert", "w8", 4, 1, 0.7)
        for part in parts:
            broken[key] = {other: value for other, value in broken[key].items() if other != part}
            assert f"{key}.{part}" in report_files.missing_keys(broken)
        del broken[key]
        assert report_files.missing_keys(broken) == [key]
    (tmp_path / "x.json").write_text(json.dumps(broken), encoding="utf-8")
    with pytest.raises(UserError, match=rf"x.json: reports\[0\]: no `{key}`"):
        report_files.read(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not a report"),
        ('{"schema": "1"}', "not a report"),
        ('{"schema": 2}', "schema 2"),
    ],
)
def test_what_is_no_report(tmp_path, text: str, says: str):
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f"x.json: .*{says}"):
        report_files.read(tmp_path / "x.json")
    with pytest.raises(UserError, match=r"none.json: no such file"):
        report_files.read(tmp_path / "none.json")


def test_nan_is_never_written(tmp_path):
    broken = made("x", "bert", "w8", 4, 1, 0.7)
    broken["peak_rss_bytes"] = float("nan")
    with pytest.raises(ValueError, match="not JSON compliant"):
        report.write(tmp_path / "x.json", [broken])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "suites", [("sts7",), ("sts7", "retrieval"), ("a-suite-with-a-long-name", "b", "c", "d")]
)
@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_table_fits_a_hundred_columns_and_cuts_no_number(count: int, suites: tuple[str, ...]):
    text = tables.terminal(reports(count, suites))
    assert max(map(len, text.splitlines())) <= 100
    first = next(line for line in text.splitlines() if "the-teacher" in line)
    assert "4.00M" in first
    assert "90.4" in first
    assert all(
        "…" not in cell
        for line in text.splitlines()
        if "…" in line and "typed" in line
        for cell in line.split()[1:]
    )
    assert "80.0" in text  # the teacher's average × 100
    if count > 1:
        assert "95.0%" in text  # 0.76 of 0.80


def test_a_noisy_machine_is_marked():
    noisy = made("x", "bert", "w8", 4, 1, 0.7)
    noisy["noise"]["between"] = 0.2
    quiet = made("y", "bert", "w8", 4, 1, 0.7)
    assert tables.terminal([noisy, quiet]).count("~") == 2 * 3 + 1  # p50, p99, texts/s, and why
    assert readme_tables.markdown([noisy, quiet]).count("~") == 3  # rows of several runs
    assert page.data([noisy])["noise"] == "p50 of the same graph differed by more than 10% between rounds"
    assert not page.data([made("x", "bert", "w8", 4, 1, 0.7)])["noise"]


@node
def test_the_page_rounds_as_the_tables_do():
    """In drawing.js stands the same rule as in tables.py."""
    values = [0.0, 0.0009, 0.0804, 0.9996, 1, 7.2223, 9.995, 12.345, 999.5, 1234.5, 52_300, 123_456.7]
    script = (page.TEMPLATES / "drawing.js").read_text(encoding="utf-8")
    script += (
        f"console.log(JSON.stringify({values}.map((each) => [significant(each, 2), significant(each)])))"
    )
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        [tables.significant(each, 2), tables.significant(each)] for each in values
    ]


def test_names_are_shortened_in_the_middle():
    assert tables.shorten("abcdefghij", 10) == "abcdefghij"
    assert tables.shorten("abcdefghijk", 10) == "abcdef…ijk"
    assert all(len(tables.shorten("x" * 50, width)) == width for width in range(3, 50))


def test_a_report_without_samples_and_leaves_the_report_alone():
    whole = made("x", "bert", "w8", 4, 1, 0.7)
    before = copy.deepcopy(whole)
    slim = report.without_samples(whole)
    assert not [key for part in ("single", "offline") for key in slim[part] if "samples" in key]
    assert report_files.missing_keys(slim) == []
    assert whole == before


def test_readme_table_between_the_markers(tmp_path):
    report.write(tmp_path / "a.json", reports(3))
    path = tmp_path / "README.md"
    (begin, end), (other, its_end) = readme_tables.markers("results"), readme_tables.markers("other")
    path.write_text(f"# x\n\n{begin}\nold\n{end}\n\n{other}\nkept\n{its_end}\n\ntail\n", encoding="utf-8")
    table = readme_tables.markdown(report.read(tmp_path / "a.json"))
    assert readme_tables.update(path, table, "results")
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# x\n\n{begin}\n| bundle |")
    assert text.endswith(
        f"{end}\n\n{other}\nkept\n{its_end}\n\ntail\n"
    )  # another table's place is left alone
    assert "old" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3
    assert len({line.count("|") for line in rows}) == 1
    assert "| **the-teacher:fp32** | 4.00M | 90.4 | 80.0 |  |" in text
    assert not readme_tables.update(path, table, "results")  # nothing changes the second time
    path.write_text("# x\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"README.md: the markers"):
        readme_tables.update(path, table, "results")


def test_reports_of_one_graph_are_one_line(tmp_path):
    """Accuracy of all of them, costs of the first; another graph of the same name stays its own line."""
    first, again, other = (copy.deepcopy(reports(1)[0]) for _ in range(3))
    suite = next(iter(first["quality"]))
    again["quality"], again["kept"] = {"more": {**first["quality"][suite], "average": 0.5}}, {"more": 1.0}
    again["single"]["p50_ms"] = 10 * first["single"]["p50_ms"]
    other["bundle"]["sha256"] = "1" * 64
    one, two = report_files.merged([first, again, other])
    assert set(one["quality"]) == {*first["quality"], "more"} and set(one["kept"]) == {*first["kept"], "more"}
    assert one["single"] == first["single"] and two == other
    assert "more" not in first["quality"]


class _Tags(HTMLParser):
    """Every tag is closed in order; attributes that could fetch are kept."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.fetches: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]):
        self.fetches += [
            value or ""
            for name, value in attributes
            if name in ("src", "href", "xlink:href", "srcset", "action")
        ]
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]):
        pass

    def handle_endtag(self, tag: str):
        assert self.open.pop() == tag


@pytest.mark.parametrize("suites", [("sts7",), ("sts7", "<retrieval>")])
@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_the_page_is_whole_and_needs_nothing(tmp_path, count: int, suites: tuple[str, ...]):
    page.write(tmp_path / "x.html", reports(count, suites))
    text = (tmp_path / "x.html").read_text(encoding="utf-8")
    tags = _Tags()
    tags.feed(text)
    assert not tags.open
    assert not tags.fetches
    assert not re.search(r"https?://(?!www.w3.org/2000/svg)|@import|url\(", text)
    assert "<&>" not in text  # no name is markup
    shown = page.data(reports(count, suites))
    embedded = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert embedded and json.loads(embedded[1]) == json.loads(json.dumps(shown)), (
        "the page has other data, or NaN"
    )


def test_the_gpu_is_named_in_the_conditions():
    found: dict[str, Any] = {
        "device": "cuda",
        "machine": {"gpu": {"name": "NVIDIA L4"}, "cpu": "Xeon"},
        "threads": 2,
    }
    found |= {"made_at": "2026-01-02T00:00:00Z", "versions": {"onnxruntime": "1.31.1"}}
    assert tables.conditions(found) == "NVIDIA L4 · Xeon · 2 threads · onnxruntime 1.31.1 · 2026-01-02"
    assert tables.conditions({**found, "machine": {"gpu": None}}).startswith("cuda · 2 threads")
    assert tables.conditions({**found, "device": "cpu"}).startswith("Xeon · 2 threads")


def drawn_page(folder: Path, shown: list[dict[str, Any]], more: str = "") -> str:
    """The page as a browser has drawn it for a desktop, after `more` at its end; no script failed."""
    page.write(folder / "x.html", shown)
    text = (folder / "x.html").read_text(encoding="utf-8").replace("</body>", f"{more}</body>")
    (folder / "x.html").write_text(text, encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    options.append("--window-size=1200,900")
    command = ["chromium", *options, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, str(folder / "x.html")], capture_output=True, text=True, check=True, timeout=120
    )
    assert "CONSOLE" not in done.stderr
    drawn = done.stdout.split("<script")[0]
    return re.sub(r'<div class="narrow[^"]*">.*?</(svg|table)></div>', "", drawn, flags=re.DOTALL)


def sections(text: str) -> list[str]:
    return re.findall(r"<section [^>]*><h2>(.*?)</h2>", text)


@chromium
def test_a_browser_draws_the_page(tmp_path):
    """Every section is drawn, and names are text."""
    text = drawn_page(tmp_path, reports(3, ("sts7", "more")))
    assert sections(text) == [
        "Accuracy against latency",
        "Measurements",
        "Latency distributions",
        "Scores by task",
        "How it was measured",
        "How to reproduce",
    ]
    assert text.count("<tr") == 4 + 2 * 4 and 'd="M' in text and "NaN" not in text
    assert "student-0 · w8\nSpearman 75.0, 93.8% of the teacher's\np50 0." in text
    assert "edgedistill bench the-teacher:fp32 'bilstm-" in text
    assert "--suite sts7 --suite more --data DIR --threads 2</pre>" in text


@chromium
def test_the_page_leads_with_the_smallest_student_that_retains_95_percent(tmp_path):
    agreeing = made("good", "bert", "w8", 4.5, 0.5, 0.77)
    found = {"texts": 10, "spearman": 0.91, "cosine_mean": None, "top10_overlap": 0.5}
    agreeing["agreement"] = {**found, "source": "held-out <texts>"}
    text = drawn_page(
        tmp_path,
        [
            made("t", "teacher", "w8", 25, 1.5, 0.799),  # not in fp32, in which students are compared
            made("t", "teacher", "fp32", 90, 4.0, 0.8),
            made("tiny", "bert", "int8", 2, 0.2, 0.7),
            made("beaten", "bert", "w8", 4.0, 0.9, 0.765),  # the smallest, but another is better and faster
            agreeing,
            made("best", "bert", "w8", 9, 1.0, 0.79),
        ],
    )
    assert heading(text) == "good in w8 retains 96.2% of its teacher’s score on sts7"
    assert tiles(text)[::2] == [
        "good on sts7: 77.0 teacher: 80.0",
        "good graph, 20× smaller: 4.5 MB teacher: 90.0 MB",
    ]
    measured = text.split("Agreement with the teacher</h2>")[1]
    assert "On 10 held-out &lt;texts&gt;." in measured
    row = measured.split("<tbody>")[1].split("</tbody>")[0]
    assert re.findall(r"<td[^>]*><span>(.*?)</span></td>", row) == ["0.910", "–", "0.500"]


@chromium
def test_the_page_tells_what_a_student_loses_elsewhere_and_what_bm25_scores_alone(tmp_path):
    found = [made("t", "teacher", "fp32", 90, 4.0, 0.5, ("sts7", "search", "search + BM25"))]
    found.append(made("x", "bert", "w8", 4, 0.5, 0.49, ("sts7", "search", "search + BM25")))
    for report_, average, joined in zip(found, (0.5, 0.4), (0.55, 0.54), strict=True):
        quality = report_["quality"]
        quality["search"] |= {"kind": "retrieval", "average": average, "tasks": {"A": {"ndcg@10": average}}}
        quality["search + BM25"] |= {**quality["search"], "average": joined, "bm25": 0.515, "weight": 0.5}
    found[1]["kept"] |= {"search": 0.8, "search + BM25": 0.54 / 0.55}
    text = drawn_page(tmp_path, found)
    assert "It retains 80.0% on search, 98.2% on search with BM25." in text
    assert "BM25 alone scores 51.5 on search; joined with it (weight 0.5) x scores 54.0.</p>" in text
    assert text.count(">BM25 alone, 51.5</text>") == 2 and ">teacher, 80.0</text>" not in text


def tiles(text: str) -> list[str]:
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text.split('class="tiles"')[1].split("</dl>")[0])
    plain = [[re.sub(r"<.*?>", "", each.replace("<small>", " ")) for each in tile] for tile in found]
    return [": ".join(tile).replace("&nbsp;", " ") for tile in plain]


def heading(text: str) -> str:
    return re.sub(r"<.*?>", "", re.findall(r"<h1>.*?</h1>", text)[0]).replace("&nbsp;", " ")


@chromium
@pytest.mark.parametrize(
    ("megabytes", "score", "noise", "tie", "says"),
    [
        (12, 0.856, 0.02, False, "a is 6.5× faster and 3× smaller than b, and 15.6 points behind on sts7"),
        (
            0.028844,
            0.656,
            0.2,
            False,
            "a is ~6.5× faster and 140× larger than b, and 4.4 points ahead on sts7",
        ),
        (4, 0.7, 0.02, True, "a is as fast as b within the noise of this run, and level with it on sts7"),
        (
            8,
            0.72,
            0,
            True,
            "a is as fast as b within the noise of this run and 2× smaller, and ~2.0 points behind on sts7",
        ),
    ],
)
def test_the_page_without_a_teacher_leads_with_the_fastest_beside_the_best(
    tmp_path, megabytes: float, score: float, noise: float, tie: bool, says: str
):
    """Ratios to two digits, ~ where the machine was noisy or the intervals of both hold both scores."""
    a, b = made("a", "bert", "w8", 4, 1, 0.7), made("b", "bert", "w8", megabytes, 1, score)
    a["single"]["p50_ms"], b["single"]["p50_ms"], b["noise"]["between"] = 1, 6.5, noise
    for each in (a, b):
        each["quality"]["sts7"]["interval95"] = [
            each["quality"]["sts7"]["average"] + by for by in (-0.03, 0.03)
        ]
    a["against"] = {"b:w8": {"ratio": 0.15, "interval95": [0.1, 0.2], "tie": tie}}
    assert heading(drawn_page(tmp_path, [b, a])) == says


FILTER = """<script>{ const box = document.getElementById('runner node');
const at = () => document.activeElement;
const press = (key) => at().dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
[...document.querySelectorAll('button')].find(({textContent}) => textContent === 'MB').click();
box.focus();
box.click();
const table = document.querySelector('table'), left = document.getElementById('runner python');
const by = table.querySelector('[aria-sort]').textContent;
document.title = `${at().id}, ${table.tBodies[0].rows.length} rows by ${by}, last ${left.disabled}`;
const plot = document.querySelector('.wide svg'), stops = () => plot.querySelectorAll('[tabindex="0"]');
stops()[0].focus();
document.title += `, tip ${tip.style.visibility}`;
for (const key of ['ArrowLeft', 'ArrowLeft', 'ArrowRight']) press(key);
document.title += ` of ${tip.textContent.split(' ')[0]}, ${stops().length} stop`;
press('Escape');
document.title += `, then ${tip.style.visibility}`; }</script>"""


@chromium
def test_the_page_by_keyboard_alone(tmp_path):
    """A filter keeps focus and sorting though the page is redrawn, and the last one stays; a plot is one tab
    stop, arrow keys go from point to point, and Escape hides a point's tip."""
    text = drawn_page(tmp_path, everything(), FILTER)
    says = "runner node, 2 rows by MB, last true, tip visible of nano, 1 stop, then hidden"
    assert says in re.findall("<title>(.*?)</title>", text)
    assert re.findall(r'<g class="dot[^>]*role="img" aria-label="nano · int8\nSpearman 70', text)


@chromium
@pytest.mark.parametrize("width", [1280, 800])
def test_all_of_the_page_is_printed(tmp_path, width: int):
    """From a desktop's window and a tablet's, which shows the plots of phones, the same pages with every
    section, and the plots of all suites."""
    shown = everything()
    for each in shown:
        each["quality"]["other"] = each["quality"]["sts7"]
        each["kept"]["other"] = each["kept"]["sts7"]
    page.write(tmp_path / "x.html", shown)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--generate-pdf-document-outline"]
    options += [f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}"]
    command = ["chromium", *options, f"--print-to-pdf={tmp_path / 'x.pdf'}", str(tmp_path / "x.html")]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    printed = (tmp_path / "x.pdf").read_bytes()
    titles = re.findall(rb"/Title \(([^)]*)\)", printed)
    before = titles[: titles.index(b"Accuracy against latency")]
    assert before[-2:] == [b"sts7", b"other"]  # the outline names what is inside a section first
    assert b"How to reproduce" in titles and b"Measurements" in titles
    assert len(re.findall(rb"/Type /Page\b", printed)) == 4


def whole(name: str, precision: str, runner: str, p50: float) -> dict[str, Any]:
    """A report of everything that bench measures, of a student that is worse than its teacher."""
    found = made(name, "bert", precision, 4, p50, 0.7)
    each, times = {"tokenize_ms": 0.1, "pooling_ms": 0.01}, {n: p50 * n / 8 for n in (8, 16, 32, 64)}
    found["single"]["by_length"] = {
        str(n): {**each, "tokens": n, "graph_ms": ms, "range_ms": [ms + 0.1 - 0.2, ms + 0.1 + 0.2]}
        for n, ms in times.items()
    }
    found["runner"] = {"name": runner, "version": None}
    found["load"] = {"start_ms": [400.0, 500.0, 450.0]}
    found["memory"] = {"loaded_rss_bytes": 60_000_000}
    lost = {"mean": -0.05, "interval95": [-0.07, -0.03]}
    ends = {"interval95": [0.66, 0.74], "difference": lost}
    found["quality"]["sts7"] |= ends
    found["noise"] |= {"resolution": 0.031, "pressure": {"steal": [0.2, 0.0]}}
    return found


def everything() -> list[dict[str, Any]]:
    both = [whole("nano", "int8", "python", 0.5), whole("nano", "int8", "node", 0.51)]
    for a, b in (both, both[::-1]):
        a["against"] = {report.title(b): {"ratio": 1.01, "interval95": [0.99, 1.03], "tie": True}}
    return [made("t", "teacher", "fp32", 90, 4.0, 0.8), *both]


def test_ties_and_what_disturbed_the_machine_stand_below_the_table():
    text = tables.terminal(everything())
    assert max(map(len, text.splitlines())) <= 100
    told = " ".join(text.split())
    assert "below 3.1%; ties: nano:int8 = nano:int8 [node]." in told
    assert (
        "~ noisy machine: other guests of the host took 20% of a processor's time in the worst round." in told
    )
    assert tables.tie_note([made("x", "bert", "w8", 4, 1, 0.7)]) == ""


@chromium
def test_the_page_shows_all_that_was_measured(tmp_path):
    text = drawn_page(tmp_path, everything())
    more = ["Latency by length", "Start and memory"]
    assert {*more, "How to reproduce"} <= set(sections(text))
    cells = re.findall(r'data-head="≤ 64"><span>(.*?)</span> <small>(.*?)</small>', text)
    assert cells == [("~4.1", "(3.9–4.3)"), ("~4.2", "(4.0–4.4)")]
    assert "tied at p50 with nano:int8 [node]" in text and "ties: nano:int8 = nano:int8 [node]" in text
    assert "--runner python --runner node" in text
    (noise,) = re.findall(r'<p class="noise">(.*?)</p>', text)
    assert "other guests of the host" in noise and "3.1%" in noise
    score = '<span>70.0 <small class="share">87.5%</small></span> <small>(66–74)</small>'
    assert text.count(f'<td data-v="0.7" data-head="sts7">{score}') == 2


PHONE = """<script>onload = () => { const page = document.documentElement;
document.title = `wide ${page.scrollWidth} of ${page.clientWidth}` }</script>"""


@chromium
@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_scrolled_sideways_on_a_phone(tmp_path, count: int):
    """In a frame of a phone's width, since a window of a browser without a screen is not as narrow."""
    page.write(tmp_path / "inside.html", everything()[-count:])
    inside = (tmp_path / "inside.html").read_text(encoding="utf-8").replace("</body>", f"{PHONE}</body>")
    (tmp_path / "inside.html").write_text(inside, encoding="utf-8")
    (tmp_path / "frame.html").write_text(
        '<iframe src="inside.html" width="390" height="900"></iframe><script>setInterval(() => {'
        "document.title = frames[0].document.title }, 50)</script>"
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    command = ["chromium", *options, "--virtual-time-budget=3000", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, str(tmp_path / "frame.html")], capture_output=True, text=True, check=True, timeout=120
    )
    assert re.search(r"<title>wide (\d+) of \1</title>", done.stdout), done.stdout[:300]
