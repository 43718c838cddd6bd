"""What embeddings in fewer bytes lose of the accuracy of the bundles that ship: int8, bits, and both.

python bench/embedding_bytes.py [BUNDLE[:PRECISION] …] [--data DIR] [--out bench/reports/embedding-bytes.json]

The scores are those of `edgedistill bench NAME --embeddings int8,binary`, without its timings: no machine has
to be quiet for them.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import report_files

import edgedistill
from edgedistill import files
from edgedistill.evaluation import scoring
from edgedistill.evaluation.bench import targets
from edgedistill.runtime.compact import layout

REPORT = Path(__file__).resolve().parent / "reports" / "embedding-bytes.json"
PARTS = ("Bank FAQ", "Belebele", "TREC-QA test", "TyDi QA")  # small ones, on which nothing was chosen
SUITES = {"sts7": "sts7", ", ".join(PARTS): f"search-test:{','.join(PARTS)}"}
PRECISIONS = ("int8", "binary")


def measured(bundle: edgedistill.Bundle, data: Path) -> dict[str, dict[str, Any]]:
    """{precision of embeddings: {bytes: of one, scores: {suite: its average}}} of a bundle."""
    found = dict[str, dict[str, Any]]()
    for title, name in SUITES.items():
        suite = scoring.suite(name, data)
        scores = scoring.evaluate(suite, bundle, PRECISIONS)
        for precision, average in {"float32": scores["average"], **scores["embeddings"]}.items():
            stored = sum(layout(each, bundle.embedding_dim()).bytes for each in precision.split("+"))
            found.setdefault(precision, {"bytes": stored, "scores": {}})["scores"][title] = average
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = os.environ.get("EDGEDISTILL_DATA")
    parser.add_argument("bundles", nargs="*", default=sorted(files.shipped("bundle")))
    parser.add_argument("--data", type=Path, default=data, required=data is None)
    parser.add_argument("--out", type=Path, default=REPORT)
    arguments = parser.parse_args()
    rows = []
    for target in [each for name in arguments.bundles for each in targets(name)]:
        graph = target.manifest["precisions"][target.precision]
        with edgedistill.load(target.folder, target.precision) as bundle:
            found = measured(bundle, Path(arguments.data))
        rows.append({"bundle": target.title, "sha256": graph["sha256"], "embeddings": found})
        print(json.dumps(rows[-1]), flush=True)
    report = {"schema": 1, "bench": "embedding bytes", "rows": rows}
    report_files.write(arguments.out, report)


if __name__ == "__main__":
    main()
