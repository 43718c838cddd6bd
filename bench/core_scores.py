"""The core beside Python on whole suites: sts7, SciFact and, for students of several languages, Tatoeba.

python bench/core_scores.py [BUNDLE …] [--data DIR] [--out bench/reports/core-scores.json]

Each score × 100 by onnxruntime and by export/core, which a C compiler builds here. A report that is there
keeps its rows of other bundles. Ends with 1 where two differ by more than 0.2. No machine has to be quiet for
it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import report_files  # noqa: E402

import edgedistill  # noqa: E402
from edgedistill import files  # noqa: E402
from edgedistill.device import student_file  # noqa: E402
from edgedistill.evaluation import scoring  # noqa: E402
from edgedistill.runtime import bundle_location  # noqa: E402
from tests.runners.core.student import CoreStudent, library  # noqa: E402

SUITES = ("sts7", "retrieval:SciFact", "bitext")
APART = 0.2


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = os.environ.get("EDGEDISTILL_DATA")
    parser.add_argument("bundles", nargs="*", default=sorted(files.shipped("bundle")))
    parser.add_argument("--data", type=Path, default=data, required=data is None)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "reports" / "core-scores.json")
    arguments = parser.parse_args()
    rows, core = [], library(Path(tempfile.mkdtemp()))
    before = files.read_json(arguments.out)["rows"] if arguments.out.exists() else []
    kept = [row for row in before if row["bundle"] not in arguments.bundles]
    for name in arguments.bundles:
        with edgedistill.load(name, threads=1) as bundle:
            student = CoreStudent(core, student_file.content(bundle))
            several = len(bundle_location.languages(bundle.manifest)) > 1
            for suite in map(scoring.suite, SUITES[: 2 + several], [arguments.data] * 3):
                scores = [scoring.evaluate(suite, encode)["average"] for encode in (bundle, student.embed)]
                python, here = (round(100 * score, 3) for score in scores)
                rows.append({"bundle": name, "precision": bundle.precision, "suite": suite.name})
                rows[-1] |= {"python": python, "core": here}
                print(json.dumps(rows[-1]), flush=True)
    report = {"schema": 1, "bench": "core scores", "rows": kept + rows}
    report["instructions"] = core.ed_instructions().decode()
    report_files.write(arguments.out, report)
    return int(any(abs(row["python"] - row["core"]) > APART for row in rows))


if __name__ == "__main__":
    sys.exit(main())
