"""The example of full-text and vector search in one SQLite file: what it finds, and its scores by hand."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEARCH = ROOT / "export" / "sqlite" / "search.py"
ABILITY = "import sqlite3; sqlite3.Connection.enable_load_extension"

NOTES = {
    "money.md": "You get your money back within ten days.\n\nThe invoice 4711 was paid by mistake twice.",
    "sea/ships.txt": "The ferry leaves the harbour at noon.\n \n\nA storm kept every boat at the quay.\n",
    "cook.txt": "Boil the potatoes in salted water.",
    "image.png": "no text",
}


def python() -> str | None:
    """A Python of this version whose sqlite3 loads extensions: this one, or the system's."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for found in (sys.executable, shutil.which(name, path=os.defpath)):
        if found and not subprocess.run([found, "-c", ABILITY], capture_output=True, check=False).returncode:
            return found
    return None


PYTHON = python()
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("sqlite_vec") is None, reason="needs sqlite-vec"),
    pytest.mark.skipif(PYTHON is None, reason="needs a Python whose sqlite3 loads extensions"),
]


def run(*arguments: str, code: int = 0) -> str:
    places = [str(ROOT), str(SEARCH.parent), sysconfig.get_path("purelib")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(
        [str(PYTHON), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_a_folder_is_found_by_words_and_by_meaning(tmp_path):
    for name, text in NOTES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))  # is named and skipped
    database = str(tmp_path / "notes.db")
    for new in (5, 0, 1):  # the next index takes the place of the one before, and embeds what is new
        assert run(str(SEARCH), database, "index", str(tmp_path)) == f"5 texts, {new} of them embedded now\n"
        (tmp_path / "cook.txt").write_text("Boil the potatoes in salted water." + "!" * (new == 0))
    answers = {
        "how are refunds handled": "money.md: You get your money back",
        "4711": "money.md: The invoice 4711",
        "vessels that could not sail": "ships.txt: A storm kept every boat",
        'boiled "potato" AND (': "cook.txt: Boil the potatoes",
        "?!": "",
    }
    for query, best in answers.items():
        lines = run(str(SEARCH), database, "find", query).splitlines()
        assert len(lines) == 5 and best in lines[0], (query, lines)
    other = f"import sqlite3; d = sqlite3.connect({database!r}); d.execute(\"UPDATE spaces SET space = 'x'\")"
    run("-c", f"{other}; d.commit()")
    assert "space x" in run(str(SEARCH), database, "find", "money", code=1)


def test_it_is_as_short_as_promised():
    assert len(SEARCH.read_text(encoding="utf-8").splitlines()) <= 92
