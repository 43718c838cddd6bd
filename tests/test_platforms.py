"""Other systems than Linux: commands run without what only some have, and with the streams of Windows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# what macOS or Windows lack, and the file cache, memory limits and processes that are built on it
WITHOUT = """
import os, sys
for name in ("posix_fadvise", "sysconf", "fork", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
sys.modules["resource"] = None
from edgedistill import cli
sys.argv = ["edgedistill", *sys.argv[1:]]
cli.main()
"""
TEXT = "The caf\u00e9 opens \u2192 nine \U0001f600 \u041f\u0440\u0438\u0432\u0435\u0442.\n"


def run(folder: Path, *arguments: str, code: str = WITHOUT, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        check=False,
        cwd=folder,
        env={**os.environ, "EDGEDISTILL_CACHE": str(folder / "cache"), **env},
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["embed", "micro", "texts.txt", "--out", "x.npy"],
        ["search", "when does it open?", "micro", "texts.txt"],
        ["bench", "micro", "--quick", "--threads", "1", "--suite", "sts-small"],
    ],
)
def test_commands_run_without_what_some_systems_lack(tmp_path, arguments: list[str]):
    """Those without torch, which asks Linux for some of it."""
    (tmp_path / "texts.txt").write_text(TEXT, encoding="utf-8")
    done = run(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr.decode()


def test_a_measurement_asks_the_system_for_nothing_that_it_lacks(tmp_path):
    ask = "from edgedistill import machine; machine.here(); machine.pressure(); machine.peak_rss_bytes()"
    server = "from edgedistill.serving import server; server.allow_many_connections()"
    code = WITHOUT.partition("from edgedistill")[0] + f"{ask}\n{server}"
    done = run(tmp_path, code=code)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("arguments", ["embed", "search when?", "search when? --json"])
def test_what_is_redirected_is_utf8_whatever_the_console(tmp_path, arguments: str):
    (tmp_path / "texts.txt").write_text(TEXT, encoding="utf-8")
    code = "import sys; from edgedistill import cli; cli.main()"
    done = run(
        tmp_path,
        *arguments.split(),
        "micro",
        "texts.txt",
        code=code,
        PYTHONUTF8="0",
        PYTHONIOENCODING="cp1252",
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("utf-8")
    assert TEXT.strip() in text
    if arguments != "search when?":
        json.loads(text)
