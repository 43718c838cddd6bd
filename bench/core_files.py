"""The size of the core's file of each student that ships, and the memory of a process that opens it and
embeds texts of up to 256 tokens: what export/core/bench.c reports. Needs a C compiler.

python bench/core_files.py [--out bench/reports/core-files.json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import report_files

from edgedistill import device, files

REPORT = Path(__file__).resolve().parent / "reports" / "core-files.json"
# Without measurements of time, of which the report has none; by a shell, since the peak of a process that
# Python starts begins with that of Python.
MEASURE = '"$0" "$1" 0 0; exit $?'
KEYS = ("loaded_rss_bytes", "peak_rss_bytes", "version")


def measured(name: str) -> dict[str, Any]:
    """The row of a student."""
    with tempfile.TemporaryDirectory() as folder:
        core, program = Path(folder) / "core", Path(folder) / "bench"
        written = device.write(name, core)
        sources = [str(core / name) for name in ("bench.c", "edgedistill.c")]
        subprocess.run(["cc", "-O2", *sources, "-o", str(program), "-lm"], check=True)
        command = ["sh", "-c", MEASURE, str(program), str(core / device.FILE)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {"student": name, "file_bytes": written["size_bytes"], **{key: found[key] for key in KEYS}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=REPORT)
    rows = [measured(name) for name in sorted(files.shipped("bundle"))]
    report_files.write(parser.parse_args().out, {"schema": 1, "bench": "core files", "rows": rows})
