"""What the bundles that ship and a teacher find on test collections, by cosine and with
BM25: a row for each encoder of queries and each way of embedding documents. It takes no times, so no machine
has to be quiet for it.

python bench/search_test.py BUNDLE_OF_TEACHER [STUDENT …] [--suite search-test] [--data DIR] [--out REPORT]
"""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import edgedistill
from edgedistill import files, machine
from edgedistill.data.bm25 import WEIGHT
from edgedistill.evaluation import scoring
from edgedistill.evaluation.report import without_samples
from edgedistill.evaluation.suites.cosines import Encode, Floats, Remembered, unit

REPORTS = Path(__file__).resolve().parent / "reports"
SUITE, PAIRS = "search-test", "sts-small"
OF_TEACHER = ("nano", "micro")  # students in the teacher's space
TEACHER, MEAN = "teacher", "mean"


def mean(student: Encode, teacher: Encode, texts: list[str]) -> Floats:
    """The documents of a pair: the mean of both embeddings."""
    return unit(student(texts) + teacher(texts))


def row(suite: scoring.Suite, bundle: edgedistill.Bundle, name: str, embed: Encode) -> dict[str, Any]:
    """The scores of queries by a bundle among documents that are embedded so."""
    encoder = scoring.Encoder.of(bundle)._replace(document=embed)
    found = scoring.rankings(suite, encoder, scoring.Search(WEIGHT))
    return {"documents": name, "quality": without_samples(found)}


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
    rows = list[dict[str, Any]]()
    teacher: Encode | None = None
    places = {TEACHER: arguments.teacher, **{name: name for name in arguments.students}}
    for name, place in places.items():
        bundle = edgedistill.load(place)
        documents = Remembered(bundle.encode_document)
        teacher = teacher or documents
        ways: dict[str, Encode] = {name: documents}
        if name in OF_TEACHER:
            ways |= {MEAN: partial(mean, documents, teacher), TEACHER: teacher}
        own, *others = (row(suite, bundle, by, embed) for by, embed in ways.items())
        own["quality"][PAIRS] = without_samples(scoring.evaluate(pairs, bundle))
        graph = bundle.manifest["precisions"][bundle.precision]
        about = {"name": name, "precision": bundle.precision, "sha256": graph["sha256"]}
        rows += [{"bundle": about, **each} for each in (own, *others)]
        print(name, {suite: each["average"] for suite, each in own["quality"].items()}, flush=True)
    report = {"schema": 1, "bench": arguments.suite, "rows": rows}
    report |= {"machine": machine.here(), "versions": machine.versions()}
    report["made_at"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    files.write_json(arguments.out or REPORTS / f"{arguments.suite}.json", report)


if __name__ == "__main__":
    main()
