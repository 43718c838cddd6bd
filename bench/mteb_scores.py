"""mteb's own evaluator on bundles, on the tasks whose data are at hand: those of the suites sts7 and
retrieval, in mteb's layout.

python bench/mteb_scores.py [BUNDLE[:PRECISION] …] [--data DIR] [--out bench/reports/mteb.json]

Runs in an environment with edgedistill[mteb] (`make mteb`). A report that is there keeps the rows of other
bundles. It asks for what `edgedistill bench NAME --suite mteb:TASK` asks for, without its timings.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import report_files

import edgedistill
from edgedistill import files
from edgedistill.evaluation import scoring
from edgedistill.evaluation.bench import targets

REPORT = Path(__file__).resolve().parent / "reports" / "mteb.json"
STS = {f"STS{year}": f"sts/sts{year}.test.tsv.gz" for year in (12, 13, 14, 15, 16)}
STS |= {"STSBenchmark": "sts/stsb.test.tsv.gz", "SICK-R": "sts/sickr.test.tsv.gz"}
COLLECTIONS = {"SciFact": "ir/scifact"}
CONFIGS = {"corpus": "corpus", "queries": "queries", "default": "test"}  # of a repository, and their splits


def rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a table, which has no quoting."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def write(path: Path, objects: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in objects), encoding="utf-8")


def write_tasks(data: Path, out: Path) -> list[str]:
    """Write the data at hand as the repositories of mteb's tasks have them. Returns the tasks."""
    for name, file in STS.items():
        pairs = [row for row in rows(data / file) if row["score"]]
        kept = [{key: row[key] for key in ("sentence1", "sentence2")} for row in pairs]
        scored = ({**each, "score": float(row["score"])} for each, row in zip(kept, pairs, strict=True))
        write(out / "mteb" / name / "test.jsonl", scored)
    for name, given in COLLECTIONS.items():
        folder = out / "mteb" / name
        for config in ("corpus", "queries"):
            with gzip.open(data / given / f"{config}.jsonl.gz", "rt", encoding="utf-8") as file:
                write(folder / f"{config}.jsonl", map(json.loads, file))
        with (data / given / "qrels.tsv").open(encoding="utf-8") as file:
            judged = list(csv.DictReader(file, delimiter="\t"))
        write(folder / "default.jsonl", ({**row, "score": int(row["score"])} for row in judged))
        parts = [
            f"- config_name: {config}\n  data_files: [{{split: {split}, path: {config}.jsonl}}]\n"
            for config, split in CONFIGS.items()
        ]
        (folder / "README.md").write_text(f"---\nconfigs:\n{''.join(parts)}---\n", encoding="utf-8")
    return [*STS, *COLLECTIONS]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = os.environ.get("EDGEDISTILL_DATA")
    parser.add_argument("bundles", nargs="*", default=["nano"])
    parser.add_argument("--data", type=Path, default=data, required=data is None)
    parser.add_argument("--out", type=Path, default=REPORT)
    arguments = parser.parse_args()
    before = files.read_json(arguments.out)["rows"] if arguments.out.exists() else []
    found = {row["bundle"]: row for row in before}
    with tempfile.TemporaryDirectory() as folder:
        names = write_tasks(Path(arguments.data), Path(folder))
        suite = scoring.suite(f"mteb:{','.join(names)}", Path(folder))
        for target in [each for name in arguments.bundles for each in targets(name)]:
            with edgedistill.load(target.folder, target.precision) as opened:
                scores = scoring.evaluate(suite, opened)["tasks"]
            graph = target.manifest["precisions"][target.precision]
            found[target.title] = {"bundle": target.title, "sha256": graph["sha256"], "tasks": scores}
            print(json.dumps(found[target.title]), flush=True)
    report = {"schema": 1, "bench": "mteb", "mteb": importlib.metadata.version("mteb")}
    report["rows"] = list(found.values())
    report_files.write(arguments.out, report)


if __name__ == "__main__":
    main()
