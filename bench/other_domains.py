"""Retrieval on texts that no recipe trains on: docstrings of installed packages, each to be found by its own
first paragraph.

python bench/other_domains.py TEACHER_BUNDLE BUNDLE... [--development] [--out
bench/reports/other-domains.json]

One collection per package. A query is the first paragraph of a docstring (4 to 40 words), the text to find is
the rest of the same docstring, 30 words or more, without code, signatures and titles. Scores are nDCG@10, and
each one's share of the first bundle's. Needs no data folder. Recipes with `documentation_texts` train on
Python's own documentation (general_corpus.py), so none of these packages is measured here. --development
reads other packages in their place, to choose between students by; install those first.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import general_corpus
import numpy as np

from edgedistill import files, machine, run
from edgedistill.data import document_text
from edgedistill.evaluation import scoring
from edgedistill.evaluation.suites.cosines import Encoder
from edgedistill.evaluation.suites.retrieval import Search, rankings
from edgedistill.runtime import bundle

PACKAGES = {  # distribution: the package that is read
    "pandas": "pandas",
    "scikit-learn": "sklearn",
    "sympy": "sympy",
    "networkx": "networkx",
    "SQLAlchemy": "sqlalchemy",
    "transformers": "transformers",
}
DEVELOPMENT = {
    "statsmodels": "statsmodels",
    "astropy": "astropy",
    "Django": "django",
    "nltk": "nltk",
}  # none of PACKAGES
QUERY_WORDS, TEXT_WORDS = (4, 40), (30, 2_000)
LONG_WORDS = 120  # texts from here on are counted as long
MOST_TEXTS = 2_500  # of a package, drawn evenly


def docstrings(package: str) -> Iterator[tuple[str, str]]:
    """(first paragraph, the other paragraphs in one text) of a package's docstrings, each query and each text
    once."""
    seen = set[str]()
    for string in general_corpus.package_docstrings(package):
        first, *rest = [paragraph for _, paragraph in document_text.restructured(string, prose=True)] or [""]
        text = " ".join(rest)
        fits = (
            QUERY_WORDS[0] <= len(first.split()) <= QUERY_WORDS[1]
            and TEXT_WORDS[0] <= len(text.split()) <= TEXT_WORDS[1]
        )
        if fits and not seen & {first, text[:200]}:
            seen |= {first, text[:200]}
            yield first, text


def write_collection(folder: Path, pairs: list[tuple[str, str]]) -> None:
    """A folder in BEIR's layout: text n is the one relevant to query n."""
    folder.mkdir()
    for name, column in (("queries", 0), ("corpus", 1)):
        rows = (json.dumps({"_id": str(n), "text": pair[column]}) + "\n" for n, pair in enumerate(pairs))
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    judgements = "".join(f"{n}\t{n}\t1\n" for n in range(len(pairs)))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgements, encoding="utf-8")


def make_suite(
    folder: Path, packages: dict[str, str]
) -> tuple[scoring.Suite, dict[str, np.ndarray], dict[str, dict[str, Any]]]:
    """The suite in `folder`; of each collection which texts are long; what the report says of each."""
    long, about = dict[str, np.ndarray](), dict[str, dict[str, Any]]()
    for name, package in packages.items():
        found = list(docstrings(package))
        if not found:
            raise SystemExit(f"{package}: no docstrings found; install {name}")
        pairs = [found[int(at)] for at in np.linspace(0, len(found) - 1, min(len(found), MOST_TEXTS))]
        words = np.array([len(text.split()) for _, text in pairs])
        long[name] = words >= LONG_WORDS
        numbers = {"texts": len(pairs), "long": int(long[name].sum()), "median_words": int(np.median(words))}
        about[name] = {"version": version(name), **numbers}
        write_collection(folder / name, pairs)
    tasks = "".join(f"  - {{name: {name}, folder: {name}}}\n" for name in packages)
    (folder / "suite.yaml").write_text(
        f"name: other-domains\nkind: retrieval\ntasks:\n{tasks}", encoding="utf-8"
    )
    return scoring.suite(folder / "suite.yaml"), long, about


def scores(encoder: Any, suite: scoring.Suite, long: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """nDCG@10 per collection: of all queries, and of those whose text is long."""
    found = {}
    for name, collection in suite.tasks.items():
        values = np.array(rankings(collection, Encoder.of(encoder), Search())[""]["samples"]["scores"])
        found[name] = {
            "ndcg_at_10": round(float(values.mean()), 4),
            "long": round(float(values[long[name]].mean()), 4),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE[:PRECISION]", help="the first is the teacher's")
    parser.add_argument(
        "--development",
        action="store_true",
        help=f"read {', '.join(DEVELOPMENT)} in place of the reported packages",
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        suite, long, about = make_suite(Path(temporary), DEVELOPMENT if arguments.development else PACKAGES)
        rows: list[dict[str, Any]] = []
        for place in arguments.bundles:
            found = scores(bundle.load(place), suite, long)
            teacher = rows[0]["collections"] if rows else found
            kept = {
                key: {name: round(each[key] / teacher[name][key], 4) for name, each in found.items()}
                for key in ("ndcg_at_10", "long")
            }
            rows.append({"bundle": place.rstrip("/").rpartition("/")[2], "collections": found, "kept": kept})
            shown = {
                name: f"{100 * each['ndcg_at_10']:.1f} ({kept['ndcg_at_10'][name]:.1%})"
                for name, each in found.items()
            }
            print(rows[-1]["bundle"], shown, flush=True)
    if arguments.out:
        report = {"schema": 1, "bench": "other-domains", "collections": about, "bundles": rows}
        files.write_json(arguments.out, {**report, "machine": machine.here(), **run.provenance()})


if __name__ == "__main__":
    main()
