"""Nothing phones home: onnxruntime's telemetry is off in every program of ours, so no file appears in a home
but those of our cache, and no address is looked up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgedistill import files

ROOT = Path(__file__).parents[1]
NANO = files.shipped_folder("bundle") / "nano"
CLI = [sys.executable, "-m", "edgedistill.cli"]
LOAD = "import edgedistill; edgedistill.load('nano').encode('A text.')"
PROGRAMS = {
    "embed": [*CLI, "embed", "nano"],
    "search": [*CLI, "search", "how small is it?", str(ROOT / "README.md")],
    "verify": [*CLI, "verify", "nano"],
    "load": [sys.executable, "-c", LOAD],
    "embed.py": [sys.executable, str(ROOT / "export/python/embed.py"), str(NANO)],
}
NETWORK = "trace=connect,sendto,sendmsg,sendmmsg"


def started(name: str, home: Path | str, tracer: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """A program with another home, run to its end."""
    hidden = ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "EDGEDISTILL_CACHE")
    env = {key: value for key, value in os.environ.items() if key not in hidden} | {"HOME": str(home)}
    command = [*(tracer or []), *PROGRAMS[name]]
    return subprocess.run(command, input="A text.\n", capture_output=True, text=True, env=env, cwd=ROOT)


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_our_cache_appears_in_a_home(name: str, tmp_path):
    done = started(name, tmp_path)
    assert done.returncode == 0, done.stderr
    written = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in written if not path.startswith(".cache/edgedistill/")] == []


@pytest.mark.parametrize("name", ["embed", "embed.py"])
def test_a_home_that_cannot_be_written_is_no_matter(name: str):
    done = started(name, "/proc/1/nowhere")
    assert done.returncode == 0 and done.stderr in ("", "read 1 file\n")


def looked_up(trace: Path) -> list[str]:
    """The calls in a trace that reach for another machine, or for a resolver on this one."""
    return re.findall(r".*(?:AF_INET|nscd|resolve).*", trace.read_text())


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_no_address_is_looked_up(tmp_path):
    tracer = ["strace", "-f", "-e", NETWORK, "-o", str(tmp_path / "trace")]
    for name in ("load", "embed.py"):
        assert started(name, tmp_path, tracer).returncode == 0
        assert looked_up(tmp_path / "trace") == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_no_address_is_looked_up_in_half_a_minute(tmp_path, monkeypatch):
    """onnxruntime sends what it has gathered only after a while."""
    tracer = ["strace", "-f", "-e", NETWORK, "-o", str(tmp_path / "trace")]
    monkeypatch.setitem(PROGRAMS, "load", [sys.executable, "-c", f"{LOAD}; import time; time.sleep(30)"])
    assert started("load", tmp_path, tracer).returncode == 0
    assert looked_up(tmp_path / "trace") == []
