"""Tables of bench/RESULTS.md from the reports of processors.py, mteb_scores.py, search_test.py,
overlap.py, train_speed.py and teacher_speed.py; those of export/ from embedding_bytes.py,
of FAULTS.md from tests/faults."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from statistics import fmean
from typing import Any

import report_files

from edgedistill import files
from edgedistill.runtime.bundle_location import SEARCH

Report = dict[str, Any]
HERE = "here"  # the processor of processors.py that nothing emulates


def lines(heads: list[str], rows: list[list[str]], words: int, below: list[str]) -> str:
    """A Markdown table whose first columns hold words, the others numbers, and what stands below it."""
    marks = ["---"] * words + ["---:"] * (len(heads) - words)
    table = [f"| {' | '.join(each)} |" for each in (heads, marks, *rows)]
    notes = ["", f"<sub>{'<br>'.join(dict.fromkeys(below))}</sub>"] if below else []
    return "\n".join([*table, *notes, ""])


def processors(report: Report) -> str:
    """The worst cosine of golden texts: a row for each bundle and precision, a column for each processor."""
    cells, about = dict[tuple[str, str], dict[str, str]](), report["processors"]
    run = [row for row in report["rows"] if row["precision"] is not None]
    for row in run:
        found = cells.setdefault((row["kind"], row["precision"]), {})
        found[row["runner"]] = "fails" if "error" in row else f"{row['cosine_min']:.5f}"
    shown = [name for name in (HERE, *about) if any(name in found for found in cells.values())]
    emulated = [row for row in run if row["runner"] != HERE]
    texts, below = (sum(row.get(key, 0) for row in emulated) for key in ("texts", "below_threshold"))
    facts = [f"{name}: {about[name]}" for name in shown if name != HERE]
    facts.append(f"{below:,} of {texts:,} embeddings are below what `verify` asks of their precision")
    facts += [f"{row['runner']} was not run: {row['not_run']}" for row in report["rows"] if "not_run" in row]
    facts += [f"{row['runner']}, {row['kind']}: {row['error']}" for row in run if "error" in row]
    shipped, rows = files.shipped("bundle"), list[list[str]]()
    for (kind, precision), found in cells.items():
        name = f"`{kind}`" if kind in shipped else kind
        rows.append([name, precision, *(found.get(each, "") for each in shown)])
    heads = ["bundle", "precision", *(report["machine"]["cpu"] if each == HERE else each for each in shown)]
    return lines(heads, rows, 2, facts)


def mteb(report: Report) -> str:
    """mteb's main score × 100, and the share of the teacher's: a row for each bundle, a column for each
    task."""
    names, rows = list(report["rows"][0]["tasks"]), list[list[str]]()
    scores = {
        row["bundle"]: {name: row["tasks"][name]["main_score"] for name in names} for row in report["rows"]
    }
    teacher = next(each for name, each in scores.items() if name.startswith("teacher:"))
    for bundle, found in scores.items():
        shares = {name: "" if found is teacher else f" ({found[name] / teacher[name]:.1%})" for name in names}
        title = f"**{bundle}**" if found is teacher else bundle
        rows.append([title, *(f"{100 * found[name]:.1f}{shares[name]}" for name in names)])
    measures = dict.fromkeys(each["measure"] for each in report["rows"][0]["tasks"].values())
    note = f"mteb {report['mteb']} · {', '.join(measures)} · in brackets the share of the teacher's"
    return lines(["bundle", *names], rows, 1, [note])


STORED = {
    "binary": "binary, the 100 nearest by Hamming distance ranked by query and bits",
    "binary+int8": "the same, ranked by query and int8",
}


def embedding_bytes(report: Report) -> str:
    """Scores × 100 of embeddings in fewer bytes: a row for each bundle and precision."""
    suites, rows = list(report["rows"][0]["embeddings"]["float32"]["scores"]), list[list[str]]()
    for row in report["rows"]:
        name = f"`{row['bundle'].partition(':')[0]}`"
        for precision, found in row["embeddings"].items():
            scores = [found["scores"].get(suite) for suite in suites]
            shown = ["" if score is None else f"{100 * score:.1f}" for score in scores]
            rows.append([name, STORED.get(precision, precision), f"{found['bytes']:,}", *shown])
            name = ""
    return lines(["", "embeddings", "bytes", *suites], rows, 2, [])


CORE_FILE = {
    "file_bytes": "`student.bin`, MB",
    "loaded_rss_bytes": "memory once open, MB",
    "peak_rss_bytes": "at most, MB",
}


def core_files(report: Report) -> str:
    """The core's file of each shipped student, and the memory that bench.c reports with it."""
    rows = [
        [f"`{row['student']}`", *(f"{row[key] / 1e6:.1f}" for key in CORE_FILE)] for row in report["rows"]
    ]
    return lines(["student", *CORE_FILE.values()], rows, 1, [])


PAGE = {
    "alone_ms": "from navigation to the first embedding, by the core alone",
    "results_ms": "from navigation to the page's first results",
    "12_tokens_ms": "to embed 12 tokens",
    "128_tokens_ms": "to embed 128 tokens",
}


def page(report: Report) -> str:
    """The times of a page in ms."""
    rows = [[title, f"{report['page'][key]:.3g}"] for key, title in PAGE.items()]
    note = f"Chromium {report['versions']['chromium']} · {report['machine']['cpu']}"
    return lines([f"`{report['student']}`, on localhost", "ms"], rows, 1, [note])


def own_documents(report: Report) -> dict[str, dict[str, Any]]:
    """The scores by suite of each encoder, among the documents that it embedded itself."""
    return {
        row["bundle"]["name"]: row["quality"]
        for row in report["rows"]
        if row["documents"] == row["bundle"]["name"]
    }


def shares(own: dict[str, dict[str, Any]], name: str, suite: str = SEARCH) -> dict[str, float]:
    """The share of the teacher's nDCG@10 of each collection, both by cosine."""
    of_teacher = own["teacher"][suite]["tasks"]
    return {
        task: each["ndcg_at_10"] / of_teacher[task]["ndcg_at_10"]
        for task, each in own[name][suite]["tasks"].items()
    }


def gains_of_both(report: Report) -> dict[str, dict[str, float]]:
    """By encoder and collection: the nDCG@10 of the ranking with BM25 less the better of cosines and BM25."""
    found, suite = dict[str, dict[str, float]](), report["bench"]
    for name, quality in own_documents(report).items():
        alone, joined = (quality[each]["tasks"] for each in (suite, f"{suite} + BM25"))
        found[name] = {
            task: each["ndcg_at_10"] - max(each["bm25"]["ndcg_at_10"], alone[task]["ndcg_at_10"])
            for task, each in joined.items()
        }
    return found


def joined(test: Report, dev: Report) -> str:
    """A sentence on the ranking with BM25 over the collections of two suites, of the students in both."""
    gains, others = map(gains_of_both, (test, dev))
    said = list[str]()
    for name in others.keys() - {"teacher"}:
        of = gains[name] | others[name]
        worst, better = min(of, key=lambda task: of[task]), sum(gain > 0 for gain in of.values())
        said.append(f"`{name}` on {better} of {len(of)}, at worst {100 * of[worst]:.1f} ({worst})")
    suites = f"`{test['bench']}` and `{dev['bench']}`"
    listed = "; ".join(sorted(said))
    return f"On the collections of {suites}, both together are better than each alone: {listed}.\n"


def beside_both(report: Report) -> list[str]:
    """A line for each encoder: where its ranking with BM25 is better than its cosines and than BM25, and by
    how much it is worse than the better of both elsewhere."""
    notes = list[str]()
    for name, gains in gains_of_both(report).items():
        below = [f"{task} ({100 * gain:.1f})" for task, gain in gains.items() if gain <= 0]
        better = f"{len(gains) - len(below)} of {len(gains)}"
        notes.append(
            f"{name} + BM25 is better than both alone on {better}; less: {', '.join(below) or 'none'}"
        )
    return notes


SAME_SOURCE = {  # a test collection -> training texts from the same data set or web site
    "LiveQA medical": {"pairs/medquad.en.tsv.gz", "code/pairs.txt.gz"},
    "TyDi QA": {"pairs/tydi_train.en.tsv.gz", "code/pairs.txt.gz"},
    "tydi ko": {"multilingual/ko.qa.txt.gz"},
    "arcd ar": {"multilingual/ar.qa.txt.gz"},
    "jaquad ja": {"multilingual/ja.qa.txt.gz"},
    "squad it": {"parallel/xquad_questions.en-es.tsv.gz"},
}
OVERLAP = Path(__file__).parent / "reports/overlap.json"
_once = cache(files.read_json)
MARKED = "† trained on other texts of the same source"


def mark(task: str, student: str) -> str:
    """What stands behind the score of a student, or of one + BM25, on a collection from whose source it read
    texts."""
    read = _once(OVERLAP)["files"].get(student.partition(" ")[0], [])
    return "†" if SAME_SOURCE.get(task, set()).intersection(read) else ""


def search_test(report: Report) -> str:
    """nDCG@10 × 100: a row for each collection, columns by cosine and with BM25; below them the mean, and the
    share of the teacher's by cosine, of the mean and at worst. † marks students that were trained on texts
    of the collection's source."""
    own, rows, suite = own_documents(report), list[list[str]](), report["bench"]
    columns = {name: quality[suite] for name, quality in own.items()}
    beside = {f"{name} + BM25": quality[f"{suite} + BM25"] for name, quality in own.items()}
    words = beside["teacher + BM25"]
    for task, each in words["tasks"].items():
        row = [task]
        for name, column in {**columns, "BM25": None, **beside}.items():
            of = each["bm25"] if column is None else column["tasks"][task]
            row.append(f"{100 * of['ndcg_at_10']:.1f}{mark(task, name)}")
        rows.append(row)
    means = [
        column["average"] for column in (*columns.values(), {"average": words["bm25"]}, *beside.values())
    ]
    rows.append(["**mean**", *(f"**{100 * score:.1f}**" for score in means)])
    left = [""] * (1 + len(beside))
    share = [f"{columns[name]['average'] / columns['teacher']['average']:.0%}" for name in columns]
    worst = [f"{min(shares(own, name, suite).values()):.0%}" for name in columns]
    rows += [["share of the teacher's mean", *share, *left], ["lowest share", *worst, *left]]
    heads = ["", *columns, "BM25", *beside]
    notes = [f"{MARKED} ([which](#training-texts-in-the-test-sets))", *beside_both(report)]
    for name in [name for name in columns if "interval95" in columns[name]][:1]:
        halves = {**columns[name]["tasks"], "mean": columns[name]}.items()
        spread = ", ".join(f"{task} ± {report_files.half(each):.1f}" for task, each in halves)
        notes.append(f"95% interval over the queries, {name} by cosine: {spread}")
    notes.append(
        f"BM25's weight: {words['weight']:g}, of which source code has an eighth · "
        f"{report['machine']['cpu']} · {report['made_at'][:10]}"
    )
    return lines(heads, rows, 1, notes)


KINDS = {  # of the collections of search-dev: what asks for what
    "questions → answers": ("COVID FAQ", "SQuAD-shift wiki", "TREC-QA dev"),
    "titles → texts": ("PubMedQA", "Quantum Stack Exchange"),
    "descriptions → abstracts": ("CACM", "MED"),
    "descriptions → code, commands": ("CoSQA dev", "tldr"),
}


def slices(report: Report) -> str:
    """nDCG@10 × 100, in brackets the share of the teacher's: rows for kinds of collections and for the thirds
    of each collection's queries. All collections count alike."""
    own, about, rows = own_documents(report), report["thirds"], list[list[str]]()

    def add(title: str, tasks: Iterable[str], *keys: Any, suite: str = report["bench"]) -> None:
        found = [quality[suite]["tasks"] for quality in own.values()]
        beside = [quality[f"{suite} + BM25"]["tasks"] for quality in own.values()]
        found += [{task: each["bm25"] for task, each in beside[0].items()}, *beside]
        scores = [fmean(reduce(getitem, keys, each[task]) for task in tasks) for each in found]
        rows.append([title, *(f"{100 * score:.1f} ({score / scores[0]:.0%})" for score in scores)])

    add("all queries", about, "ndcg_at_10")
    add("all, without stop words", about, "ndcg_at_10", suite=f"{report['bench']}, keywords")
    for kind, tasks in KINDS.items():
        add(f"{kind}: {', '.join(tasks)}", tasks, "ndcg_at_10")
    for name in next(iter(about.values())):
        for at, title in enumerate(("fewest", "medium", "most")):
            size = fmean(cut[name][at] for cut in about.values())
            add(f"{title} {name} ({size:.3g})", about, "thirds", name, at)
    heads = ["", *own, "BM25", *(f"{name} + BM25" for name in own)]
    return lines(heads, rows, 1, [*beside_both(report), report["made_at"][:10]])


def overlap(report: Report) -> str:
    """How many texts of test sets are in the training files of each student: a row for each kind of text of a
    test set that has any."""
    students, found = list(report["files"]), dict[tuple[str, str, str], list[Report]]()
    for each in report["found"]:
        found.setdefault((each["suite"], each["task"], each["kind"]), []).append(each)
    rows = [
        [f"`{suite}`", task, kind, f"{of[0]['texts']:,}", *(f"{each['common']:,}" for each in of)]
        for (suite, task, kind), of in found.items()
        if any(each["common"] for each in of)
    ]
    tested = sum(of[0]["texts"] for of in found.values())
    notes = [f"compared with {tested:,} texts of the test sets", report["made_at"][:10]]
    heads = ["suite", "test set", "texts", "how many", *(f"seen by {name}" for name in students)]
    return lines(heads, rows, 3, [" · ".join(notes)])


def collections(reports: list[Report]) -> str:
    """How many documents and queries each collection of the search suites has."""
    rows = [
        [f"`{report['bench']}`", task, f"{of['texts']:,}", f"{of['queries']:,}"]
        for report in reports
        for task, of in report["rows"][0]["quality"][report["bench"]]["tasks"].items()
    ]
    return lines(["suite", "task", "documents", "queries"], rows, 2, [])


def training(train: Report, teacher: Report) -> str:
    """Texts/s of training and of the teacher's pass, beside sentence-transformers."""
    peer = "sentence-transformers"
    rates = train["texts_s"]
    rows = [
        [f"training, batches of {train['batch']}: {peer}", f"{rates[peer]:,.0f}", "1"],
        ["edgedistill", f"{rates['edgedistill']:,.0f}", f"{train['ratio']:.2f}"],
    ]
    for name, rate in teacher["texts_s"].items():
        title = f"edgedistill, {name}"
        if name.startswith(peer):
            title = f"the teacher's pass: `encode` of {name}"
        rows.append([title, f"{rate:,.0f}", f"{teacher['ratio'][name]:.2f}"])
    facts = [
        f"{title}: {each['machine']['cpu']} · threads: {each['threads']} · {each['made_at'][:10]}"
        for title, each in (("training", train), ("the teacher's pass", teacher))
    ]
    return lines(["", "texts/s", "times as fast"], rows, 1, facts)


def faults(found: Report) -> str:
    """The table of FAULTS.md: kills, runs made twice, faults, fuzzed inputs and soaks, each with what came
    of it."""
    rows = list[list[str]]()
    for name, each in found["kills"].items():
        left = ", ".join(
            f"{each[state]} {state}" for state in ("absent", "resumable", "whole") if state in each
        )
        rows.append([f"kill -9, `{name}`", f"{each['kills']}", left, each["date"]])
    for name, each in found["determinism"].items():
        rows.append([name, f"{each['tried']}", f"{each['wrong']} with other bytes", each["date"]])
    kinds = dict[str, dict[str, Report]]()
    for name, each in sorted(found["faults"].items()):
        kind, *of = re.split(": |, ", name)
        kinds.setdefault(kind, {})[" ".join(of)] = each
    for kind, of in kinds.items():
        tried, wrong = (sum(each[key] for each in of.values()) for key in ("tried", "wrong"))
        date = max(each["date"] for each in of.values())
        rows.append([f"{kind}: {', '.join(of)}", f"{tried}", f"{wrong} wrong", date])
    for name, each in found["fuzz"].items():
        accepted = each["inputs"] - each["refused"]
        came = f"{each['refused']:,} refused, {accepted:,} read, {each['failures']} failures"
        rows.append([f"fuzzed: {name}", f"{each['inputs']:,}", came, each["date"]])
    for name, each in found["soak"].items():
        came = f"{each['rss_mb']:.0f} MB, {each['growth_mb']:+.1f} MB after the warm-up; "
        came += f"worst cosine {each['cosine_min']:.7f}" if "cosine_min" in each else "no embedding changed"
        how = f"{each['minutes']:g} min" + (f", {each['clients']} clients" if "clients" in each else "")
        rows.append([f"`{name}` for {how}", f"{each['texts']:,} texts", came, each["date"]])
    return lines(["tried", "how often", "result", "date"], rows, 4, [])
