"""Full-text and vector search in SQLite's shell, with the core's extension: export/core/sqlite."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from edgedistill import device
from tests.runners.core.student import COMPILER, CORE, run

pytestmark = pytest.mark.skipif(
    COMPILER is None or not Path("/usr/include/sqlite3ext.h").exists() or not shutil.which("sqlite3"),
    reason="needs a C compiler, SQLite's headers and shell",
)
NOTES = {
    "money.md": "You get your money back within ten days.\n\nThe invoice 4711 was paid by mistake twice.",
    "sea/ships.txt": "The ferry leaves the harbour at noon.\r\n\r\n\nA storm kept every boat\nat the quay.\n",
    "cook.txt": "Boil the potatoes in salted water.",
    "image.png": "no text",
}
SOURCES = [CORE / "sqlite" / "edgedistill_sqlite.c", CORE / "edgedistill.c"]


def shell(place: Path, script: str, **values: str) -> tuple[str, str]:
    """What SQLite's shell prints of a script, and of what is wrong."""
    bound = [f".parameter set :{name} \"'{value}'\"" for name, value in values.items()]
    command = ["sqlite3", "notes.db", *bound, f".read {CORE / 'sqlite' / script}.sql"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not done.stderr)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the extension, a student and notes."""
    folder = tmp_path_factory.mktemp("sqlite") / "core"
    device.write("nano", folder)
    run(COMPILER, "-O2", "-shared", "-fPIC", f"-I{CORE}", *SOURCES, "-o", folder / "edgedistill.so", "-lm")
    for name, text in NOTES.items():
        (folder / "notes" / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / "notes" / name).write_bytes(text.encode())
    return folder


def test_a_folder_is_found_by_words_and_by_meaning(place: Path):
    for new in (5, 0, 1):  # a text that is there is not embedded again; one that is gone leaves
        assert shell(place, "index", folder="notes")[0] == f"{new} of 5 texts embedded now\n"
        (place / "notes" / "cook.txt").write_text("Boil the potatoes in salted water." + "!" * (new == 0))
    answers = {
        "how are refunds handled": "notes/money.md|You get your money back",
        "4711": "notes/money.md|The invoice 4711",
        "vessels that could not sail": "notes/sea/ships.txt|A storm kept every boat at the quay.",
        "boiled potato AND (": "notes/cook.txt|Boil the potatoes",
    }
    for query, best in answers.items():
        lines = shell(place, "find", query=query)[0].splitlines()
        scores = [float(line.split("|")[0]) for line in lines]
        assert best in lines[0] and len(scores) == 5 and scores == sorted(scores, reverse=True), query
    assert "NOT NULL constraint failed: query.text" in shell(place, "find")[1]


def test_embeddings_of_another_student_are_refused(place: Path):
    shell(place, "index", folder="notes")
    device.write("micro", place / "other")
    shutil.copy(place / "other" / device.FILE, place / device.FILE)
    for script in ("index", "find"):
        assert "embeddings of another space" in shell(place, script, folder="notes", query="a")[1]
