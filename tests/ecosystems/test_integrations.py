"""The snippets of export/python/INTEGRATIONS.md, run with the packages that are installed: here,
or in the environment of `make integrations`."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIRST, *SECTIONS = (ROOT / "export" / "python" / "INTEGRATIONS.md").read_text(encoding="utf-8").split("\n## ")
LIBRARIES = "LangChain LlamaIndex Haystack Chroma sqlite-vec usearch faiss pandas polars".split()
LONGEST = 10  # lines behind the imports
ABILITY = "import sqlite3; sqlite3.Connection.enable_load_extension"
MISSING = "import importlib.util as i, sys; print(*[each for each in sys.argv[1:] if not i.find_spec(each)])"


def are_short(snippets: dict[str, str]):
    for snippet in snippets.values():
        lines = [line for line in snippet.splitlines() if line.strip()]
        assert len([line for line in lines if not line.startswith(("import ", "from "))]) <= LONGEST


def python_of_sqlite() -> str | None:
    """A Python of this version whose sqlite3 loads extensions: this one, or the system's."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for found in (sys.executable, shutil.which(name, path=os.defpath)):
        if found and not subprocess.run([found, "-c", ABILITY], capture_output=True, check=False).returncode:
            return found
    return None


PYTHON = python_of_sqlite()


def code(section: str) -> str:
    (found,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(found)


SNIPPETS = {section.splitlines()[0]: code(section) for section in SECTIONS if "```python" in section}


def run(python: str | Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: some packages begin threads, and this Python's sqlite3 may load no
    extension."""
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    if str(python) == PYTHON:
        environment["PYTHONPATH"] += f"{os.pathsep}{sysconfig.get_path('purelib')}"
    command = [str(python), "-c", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def test_every_library_has_its_snippet():
    assert set(SNIPPETS) == {"With edgedistill alone", "By meaning and by words", *LIBRARIES}
    are_short(SNIPPETS)


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_finds_the_text(name: str, tmp_path):
    imported = set[str]()
    for node in ast.walk(ast.parse(SNIPPETS[name])):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            imported |= {each.split(".")[0] for each in names}
    environments = Path(os.environ.get("EDGEDISTILL_ENVIRONMENTS") or ROOT / ".environments")
    pythons = [sys.executable, environments / "integrations" / "bin" / "python"]
    if name == "sqlite-vec":
        pythons = [PYTHON or pytest.skip("needs a Python whose sqlite3 loads extensions")]
    missing = ""
    for python in filter(os.path.exists, pythons):
        missing = run(python, MISSING, *sorted(imported), folder=tmp_path).stdout.strip()
        if not missing:
            done = run(python, f"{code(FIRST)}\n{SNIPPETS[name]}\nprint(found)", folder=tmp_path)
            assert done.returncode == 0, done.stderr
            assert done.stdout.splitlines()[-1] == "['The train leaves at nine.']"
            return
    pytest.skip(f"needs {missing}; make integrations installs it")
