"""What the long forms of these tests found, in one file: bench/reports/faults.json, from which
bench/documents.py makes the table of bench/FAULTS.md.

EDGEDISTILL_FAULTS=bench/reports/faults.json python -m pytest -m slow tests/faults
"""

from __future__ import annotations

import datetime
import fcntl
import os
from pathlib import Path
from typing import Any

from edgedistill import files, machine

SCHEMA = 1


def record(section: str, name: str, **found: Any):
    """Put an entry into a section of the file that EDGEDISTILL_FAULTS names, in place of the last one;
    nothing without that variable. Several processes may do so at once."""
    if not (target := os.environ.get("EDGEDISTILL_FAULTS")):
        return
    path = Path(target)
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report = files.read_json(path) if path.exists() else {"schema": SCHEMA}
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        report.setdefault(section, {})[name] = {**found, "date": today}
        report |= {"machine": machine.here(), "versions": machine.versions()}
        files.write_json(path, {key: report[key] for key in sorted(report)})
    finally:
        os.close(lock)
