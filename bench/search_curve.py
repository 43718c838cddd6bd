"""How far dense embeddings of an adapted student go in search: nDCG@10 on SciFact, by the minutes that
`adapt` has and by the embeddings' dimensions, beside its teacher and BM25.

python bench/search_curve.py --data DIR [--student nano] [--minutes 2,5,10,20] [--dims 64,128,256,384]
--work DIR --out REPORT

Each adaptation is the command itself, in a process of its own, with SciFact's documents and nothing else.
Fewer dimensions are the first ones of its embeddings, for which it was not trained. Scores are those of the
test queries and, for whoever chooses, of the training queries; beside BM25 it has the same weight in all
rows. A report that exists is added to, so a second call goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from adapt_goals import TEACHER, write_documents

from edgedistill.data.bm25 import WEIGHT

COLLECTION = "scifact"
QUERIES = {"test": "retrieval:SciFact", "train": "retrieval-dev"}  # suites, by split


def run(*arguments: str) -> str:
    """Run a command of edgedistill; what it logs is shown. Returns what it prints."""
    command = [sys.executable, "-m", "edgedistill", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def scores(name: str, dims: list[int], data: Path) -> dict[str, Any]:
    """nDCG@10 of a bundle by split and by dimensions, {"ndcg10", "with_bm25"}; and of BM25 alone."""
    from edgedistill.evaluation import scoring
    from edgedistill.evaluation.suites import retrieval, suite_files
    from edgedistill.evaluation.suites.cosines import encoded, unit
    from edgedistill.runtime import bundle

    encoder, found = scoring.Encoder.of(bundle.load(name, precision="int8")), dict[str, Any]()
    whole: suite_files.Index | None = None
    for split, suite in QUERIES.items():
        (task,) = scoring.suite(suite, data).tasks.values()
        if whole is None:  # both splits have the same documents
            whole = retrieval.indexed(task, encoder.document)
        queries, row = encoded(encoder.query, task.queries), dict[str, Any]()

        def ndcg(ranking: list[retrieval.Ranking], task: Any = task) -> float:
            return float(retrieval.measures(ranking, task)["ndcg_at_10"])

        for count in dims:
            index, asked = whole._replace(embeddings=unit(whole.embeddings[:, :count])), queries[:, :count]
            alone, beside = (
                ndcg(retrieval.ranked(task, unit(asked), index, weight)) for weight in (None, WEIGHT)
            )
            row[str(count)] = {"ndcg10": alone, "with_bm25": beside}
        found[split] = {"dims": row, "bm25": ndcg(retrieval.ranked_by_bm25(task, whole))}
    return found


def adapted(arguments: argparse.Namespace, texts: Path, minutes: str, out: Path) -> dict[str, Any]:
    """Adapt for so many minutes."""
    command = ["adapt", arguments.student, "--texts", str(texts), "--out", str(out), "--minutes", minutes]
    answer = json.loads(run(*command, "--overwrite", "--json"))
    return {"steps": answer["steps"], "seconds": answer["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--student", default="nano")
    parser.add_argument("--minutes", default="2,5,10,20")
    parser.add_argument("--dims", default="64,128,256,384", help="ascending; the last is all of them")
    given = os.environ.get("EDGEDISTILL_DATA")
    parser.add_argument("--data", type=Path, default=given, required=given is None)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    from edgedistill import files, machine

    arguments.data, arguments.out = Path(arguments.data).resolve(), arguments.out.resolve()
    arguments.dims = [int(each) for each in arguments.dims.split(",")]
    arguments.work.mkdir(parents=True, exist_ok=True)
    os.chdir(arguments.work)  # where `adapt` writes runs
    arguments.work = Path.cwd()
    new = {"machine": machine.here(), "student": arguments.student, "weight": WEIGHT, "rows": {}}
    report = files.read_json(arguments.out) if arguments.out.exists() else new
    texts = arguments.work / f"{COLLECTION}.txt"
    write_documents(arguments.data, COLLECTION, "all", texts)
    if not (arguments.work / "teacher").exists():
        run("export", TEACHER, "--out", "teacher", "--precision", "int8")
    for name in ("teacher", "0", *filter(None, arguments.minutes.split(","))):
        if name in report["rows"]:
            continue
        made, row = arguments.work / (f"minutes-{name}" if name.isdecimal() else name), dict[str, Any]()
        if name not in ("teacher", "0"):
            row = adapted(arguments, texts, name, made)
        bundle = arguments.student if name == "0" else str(made)
        report["rows"][name] = {**row, **scores(bundle, arguments.dims, arguments.data)}
        files.write_json(arguments.out, report)
        print(f"{name}: {report['rows'][name]['test']['dims']}", flush=True)


if __name__ == "__main__":
    main()
