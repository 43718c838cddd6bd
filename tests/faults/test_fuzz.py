"""Files that nobody wrote: read or refused in words, by every reader, with no crash, no code that runs, no
input that takes minutes.

export EDGEDISTILL_FUZZ_MINUTES=10 EDGEDISTILL_FAULTS=bench/reports/faults.json
python -m pytest -m slow tests/faults/test_fuzz.py
    so long for each target; an input that fails is kept below FAILED, in the folder from which it is run
"""

from __future__ import annotations

import json
import os
import shutil
import time
import traceback
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from edgedistill.export import bundle_writer
from tests.conftest import World
from tests.export.test_export import make_run
from tests.faults.commands import PROCESSES
from tests.faults.fuzz import LONGEST_S, TARGETS, attempt, source
from tests.faults.record import record

FAILED = "fuzz-failures"
MINUTES = float(os.environ.get("EDGEDISTILL_FUZZ_MINUTES", 1))
BATCH = 20  # inputs that one hypothesis test draws


@pytest.fixture(scope="module")
def good(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A bundle, a run and a model's folder."""
    root = tmp_path_factory.mktemp("fuzz")
    make_run(root / "run")
    bundle_writer.export(root / "run", ["fp32", "int8"], root / "bundle", lambda line: None)
    return root / "bundle", root / "run", world.teacher


def fuzz(name: str, good: tuple[Path, Path, Path], scratch: Path, seconds: float, kept: Path | None = None):
    """Try inputs for so many seconds. Found so far: `counts.json` beside the scratch folder. kept: where the
    inputs go that fail; without it the first failure is raised."""
    until, counts, folder = time.monotonic() + seconds, Counter[str](), source(name, *good)
    os.chdir(scratch.parent)

    def one(data: st.DataObject):
        try:
            counts["refused"] += attempt(TARGETS[name], folder, scratch, data.draw)
        except Exception as error:
            if kept is None:
                raise
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = (
                kept
                / name.replace(" ", "-")
                / f"{type(error).__name__}-{Path(last.filename).stem}-{last.lineno}"
            )
            if not place.exists():
                shutil.copytree(scratch, place)
                (place / "traceback.txt").write_text(traceback.format_exc())
                counts["failures"] += 1
        counts["inputs"] += 1
        (scratch.parent / "counts.json").write_text(json.dumps(counts))

    number = 0
    while time.monotonic() < until:
        checked = settings(max_examples=BATCH, phases=[Phase.generate], database=None, deadline=None)
        checked = settings(checked, suppress_health_check=list(HealthCheck))
        seed(number)(checked(given(st.data())(one)))()
        number += 1


@pytest.mark.parametrize("name", TARGETS)
def test_any_file_is_read_or_refused(name: str, good: tuple[Path, Path, Path], tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = set()
    quick = settings(max_examples=20, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
    quick = settings(quick, suppress_health_check=list(HealthCheck))
    one = given(st.data())(
        lambda data: found.add(attempt(TARGETS[name], source(name, *good), tmp_path / "x", data.draw))
    )
    quick(one)()
    assert True in found, "what is damaged is refused now and then"


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_files_of_some_minutes(name: str, good: tuple[Path, Path, Path], tmp_path):
    kept = Path(FAILED).absolute()
    scratch, ended = tmp_path / "x", ""
    worker = PROCESSES.Process(target=fuzz, args=(name, good, scratch, 60 * MINUTES, kept))
    worker.start()
    while not ended and worker.exitcode is None:
        worker.join(1)
        state = tmp_path / "counts.json"
        if state.exists() and time.time() - state.stat().st_mtime > LONGEST_S and worker.exitcode is None:
            ended = "hung"
            worker.kill()
    if ended or worker.exitcode:
        ended = ended or f"exit-{worker.exitcode}"
        shutil.copytree(scratch, kept / name.replace(" ", "-") / ended, dirs_exist_ok=True)
    counts = json.loads((tmp_path / "counts.json").read_text())
    failures = counts.pop("failures", 0) + bool(ended)
    record("fuzz", name, minutes=MINUTES, failures=failures, **counts)
    assert not failures, f"{failures} kinds of failures: see {kept}"
