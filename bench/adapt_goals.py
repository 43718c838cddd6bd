"""What `edgedistill adapt` gains on collections of documents, and what it costs elsewhere.

python bench/adapt_goals.py --data DIR [--collections scifact] [--minutes 10] --work DIR --out REPORT

Each adaptation is the command itself, in a process of its own, with documents only (title and text on a
line), never queries or judgements; `pairs` gives it all documents and the judged queries of the training
split too, where the collection has one. Then nDCG@10 over all documents with the test queries, alone and
beside BM25 with the weight that `search` has, and sts7, of the student before and after and of its teacher. A
report that exists is added to, so a second call goes on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

TEACHER, SUITE = "packaged:all-MiniLM-L6-v2", "sts7"
TASKS = {  # of suites, by the folder of their data
    "scifact": "search-test:SciFact",
    "cranfield": "search-test:Cranfield",
    "bankfaq": "search-test:Bank FAQ",
    "npl": "search-test:NPL",
    "cacm": "search-dev:CACM",
}


def task_of(collection: str, data: Path) -> Any:
    """The documents and judged queries of a collection."""
    from edgedistill.evaluation import scoring

    (task,) = scoring.suite(TASKS[collection], data).tasks.values()
    return task


def write_documents(data: Path, collection: str, path: Path) -> int:
    """Write the documents of a collection, one a line. Returns how many."""
    chunks = task_of(collection, data).chunks()
    texts = [" ".join(text.split()) for _, chunk in chunks for text in chunk if text.strip()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return len(texts)


def write_pairs(data: Path, collection: str, path: Path) -> bool:
    """Write the judged queries of the training split with their documents, if the collection has one. Returns
    whether it has."""
    folder = data / "ir" / collection
    if not (folder / "qrels_train.tsv").exists():
        return False
    with gzip.open(folder / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        documents = {row["_id"]: f"{row.get('title', '')} {row['text']}" for row in map(json.loads, file)}
    with gzip.open(folder / "queries_train.jsonl.gz", "rt", encoding="utf-8") as file:
        queries = {row["_id"]: row["text"] for row in map(json.loads, file)}
    judged = [
        line.split() for line in (folder / "qrels_train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    ]
    rows = [
        {"query": " ".join(queries[query].split()), "text": " ".join(documents[text].split())}
        for query, text, grade in judged
        if int(grade) > 0
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return True


def scores(name: str, collection: str, data: Path) -> dict[str, float]:
    """The scores of a bundle on the collection, alone and beside BM25, and on sts7."""
    from edgedistill.data.bm25 import WEIGHT
    from edgedistill.evaluation import scoring

    encoder, similarity = opened(name, data)
    ranked = task_of(collection, data).rankings(encoder, scoring.Search(WEIGHT))
    found = {"ndcg10": ranked[""]["ndcg_at_10"], "with_bm25": ranked[" + BM25"]["ndcg_at_10"]}
    return found | {"bm25": ranked[" + BM25"]["bm25"]["ndcg_at_10"], SUITE: similarity}


@cache
def opened(name: str, data: Path) -> tuple[Any, float]:
    """A bundle in int8, and its score on sts7."""
    from edgedistill.evaluation import scoring
    from edgedistill.runtime import bundle

    encoder = scoring.Encoder.of(bundle.load(name, precision="int8"))
    return encoder, scoring.evaluate(scoring.suite(SUITE, data), encoder)["average"]


def adapt(arguments: argparse.Namespace, collection: str, count: str) -> dict[str, Any] | None:
    """Adapt to a collection and measure; None where it has no pairs to adapt to."""
    from edgedistill import machine

    name = f"{collection}-{count}"
    texts = arguments.work / f"{name}.txt"
    documents = write_documents(arguments.data, collection, texts)
    command = [
        sys.executable,
        "-m",
        "edgedistill",
        "adapt",
        arguments.student,
        "--texts",
        str(texts),
        "--out",
        str(arguments.work / name),
    ]
    command += ["--minutes", str(arguments.minutes), "--overwrite", "--json"]
    pairs = arguments.work / f"{name}.jsonl"
    if count == "pairs":
        if not write_pairs(arguments.data, collection, pairs):
            return None
        command += ["--pairs", str(pairs)]
    started = time.perf_counter()
    # nothing that an earlier row's teacher has embedded
    with tempfile.TemporaryDirectory(dir=arguments.work) as empty:
        environment = os.environ | {"EDGEDISTILL_CACHE": empty}
        answer = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, cwd=arguments.work, env=environment
        ).stdout
    row = {"documents": documents, "cpu": machine.here()["cpu"]}
    row["seconds"] = round(time.perf_counter() - started, 1)
    found = json.loads(answer)
    row |= {each: found[each] for each in ("steps", "before", "after", "search")}
    return row | {"scores": scores(str(arguments.work / name), collection, arguments.data)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--student", default="nano")
    parser.add_argument("--collections", default=",".join(TASKS))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("EDGEDISTILL_DATA"),
        required="EDGEDISTILL_DATA" not in os.environ,
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    from edgedistill import files, machine
    from edgedistill.runtime import bundle_location

    arguments.data, arguments.work = Path(arguments.data).resolve(), arguments.work.resolve()
    report = (
        files.read_json(arguments.out)
        if arguments.out.exists()
        else {"machine": machine.here(), "student": arguments.student}
    )
    collections = arguments.collections.split(",")
    teacher = arguments.work / "teacher"
    if bundle_location.find(str(teacher)) is None:
        command = [
            sys.executable,
            "-m",
            "edgedistill",
            "export",
            TEACHER,
            "--out",
            str(teacher),
            "--precision",
            "int8",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for who, name in (("teacher", str(teacher)), ("unadapted", arguments.student)):
        known = report.setdefault(who, {})
        for collection in collections:
            if collection not in known:
                known[collection] = scores(name, collection, arguments.data)
    for collection in collections:
        known = report.setdefault("adapted", {}).setdefault(collection, {})
        for count in ("all", "pairs"):
            if count not in known and (row := adapt(arguments, collection, count)) is not None:
                known[count] = row
                files.write_json(arguments.out, report)
                print(collection, count, row["scores"], flush=True)


if __name__ == "__main__":
    main()
