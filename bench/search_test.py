"""What the bundles that ship and a teacher find on the collections of a suite, by cosine and with BM25: a row
for each encoder of queries and each way of embedding documents. Of each collection also by the length of
queries and documents, by the words that they share, and for queries without stop words. It takes no times, so
no machine has to be quiet for it.

python bench/search_test.py BUNDLE_OF_TEACHER [STUDENT …] [--suite search-test] [--data DIR] [--out REPORT]
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import report_files

import edgedistill
from edgedistill.data.bm25 import WEIGHT, words
from edgedistill.evaluation import bootstrap, scoring
from edgedistill.evaluation.suites.cosines import Encode, Floats, Ints, Remembered, unit
from edgedistill.evaluation.suites.retrieval import Collection
from edgedistill.evaluation.teacher_agreement import space

REPORTS = Path(__file__).resolve().parent / "reports"
SUITE, PAIRS = "search-test", "sts-small"
PROPERTIES = ("words in the query", "words in its documents", "of the query's words in its documents")
TEACHER, MEAN = "teacher", "mean"
Thirds = dict[str, list[tuple[float, Ints]]]


def mean(student: Encode, teacher: Encode, texts: list[str]) -> Floats:
    """The documents of a pair: the mean of both embeddings."""
    return unit(student(texts) + teacher(texts))


def thirds(task: Collection) -> Thirds:
    """By property: the third of the queries that have least of it, the middle one, and that with most, each
    with the mean of the property. Of a query's judged documents the mean counts. Words are shared that have
    one stem; stop words do not count there."""
    texts = {name: words(text) for chunk in task.chunks() for name, text in zip(*chunk, strict=True)}
    rows, stems = list[tuple[Any, ...]](), task.bm25.stems
    for query, relevance in zip(map(words, task.queries), task.relevance, strict=True):
        asked, documents = {*stems(query)} - {""}, [texts[name] for name in relevance]
        shares = [len(asked.intersection(stems(each))) / max(1, len(asked)) for each in documents]
        rows.append((len(query), np.mean([len(each) for each in documents]), np.mean(shares)))
    return {
        name: [(values[part].mean(), part) for part in np.array_split(np.argsort(values, kind="stable"), 3)]
        for name, values in zip(PROPERTIES, np.array(rows).T, strict=True)
    }


def in_thirds(measured: Any, cut: Thirds) -> Any:
    """Measures with the means of thirds in place of every query's score."""
    if not isinstance(measured, dict):
        return measured
    found = {key: in_thirds(value, cut) for key, value in measured.items() if key != "samples"}
    if cut and "samples" in measured:
        scores = np.array(measured["samples"]["scores"])
        found["thirds"] = {name: [scores[part].mean() for _, part in parts] for name, parts in cut.items()}
    return found


def keywords(suite: scoring.Suite) -> scoring.Suite:
    """A suite of the same collections, whose queries have lost their stop words."""
    tasks = dict[str, Any](suite.tasks)
    for name, task in tasks.items():
        asked = map(words, task.queries)
        kept = [" ".join(word for word in query if task.bm25.stems([word])[0]) for query in asked]
        tasks[name] = replace(task, queries=kept)
    return replace(suite, name=f"{suite.name}, keywords", tasks=tasks)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = os.environ.get("EDGEDISTILL_DATA")
    parser.add_argument("teacher", help="a bundle of all-MiniLM-L6-v2, such as bundles/teacher:int8")
    parser.add_argument("students", nargs="*", default=[each["name"] for each in edgedistill.shipped()])
    parser.add_argument("--suite", default=SUITE)
    parser.add_argument("--data", type=Path, default=data, required=data is None)
    parser.add_argument("--out", type=Path, help="default: bench/reports/SUITE.json")
    arguments = parser.parse_args()
    suite, pairs = (scoring.suite(name, Path(arguments.data)) for name in (arguments.suite, PAIRS))
    tasks: dict[str, Any] = suite.tasks
    cuts = {name: thirds(task) for name, task in tasks.items()}
    suites = suite, keywords(suite)
    rows = list[dict[str, Any]]()
    teacher: Encode | None = None
    places = {TEACHER: arguments.teacher, **{name: name for name in arguments.students}}
    for name, place in places.items():
        bundle = edgedistill.load(place)
        documents = Remembered(bundle.encode_document)
        teacher = teacher or documents
        ways: dict[str, Encode] = {name: documents}
        if name != TEACHER and space(documents(pairs.texts), teacher(pairs.texts))[1] is None:
            ways |= {MEAN: partial(mean, documents, teacher), TEACHER: teacher}
        graph = bundle.manifest["precisions"][bundle.precision]
        about = {"name": name, "precision": bundle.precision, "sha256": graph["sha256"]}
        for by, embed in ways.items():
            encoder, found = scoring.Encoder.of(bundle)._replace(document=embed), dict[str, Any]()
            for each in suites:
                cut = cuts if each is suite and embed is documents else {}
                for title, quality in scoring.rankings(each, encoder, scoring.Search(WEIGHT)).items():
                    drawn = bootstrap.of_suite(quality["tasks"])
                    spread = {task: {"interval95": bootstrap.interval(of)} for task, of in drawn.items()}
                    measured = {
                        task: in_thirds(of, cut.get(task, {})) | spread[task]
                        for task, of in quality["tasks"].items()
                    }
                    found[title] = {**quality, **spread[""], "tasks": measured}
            if embed is documents:
                found[PAIRS] = scoring.evaluate(pairs, bundle)
            rows.append({"bundle": about, "documents": by, "quality": found})
            print(name, by, {title: each["average"] for title, each in found.items()}, flush=True)
    sizes = {
        task: {name: [each for each, _ in parts] for name, parts in cut.items()} for task, cut in cuts.items()
    }
    report = {"schema": 1, "bench": arguments.suite, "rows": rows, "thirds": sizes}
    report_files.write(arguments.out or REPORTS / f"{arguments.suite}.json", report)


if __name__ == "__main__":
    main()
