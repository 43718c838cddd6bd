"""The processes that work on one fit, here and on other machines that share its folder: who is alive, and what each is doing."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Any

BEAT_S = 1.0  # between two signs of life
SILENT_S = 180.0  # a process on another machine that was silent for so long is gone
HERE = socket.gethostname()


class Presence:
    """This process's sign of life: a file that a thread touches. name: unique; doing: what others are shown of it."""

    def __init__(self, folder: Path, parent: int | None = None) -> None:
        """parent: a process whose end ends this one too."""
        self.folder, self.parent, self.doing = folder / "processes", parent, "starting"
        self.name = f"{HERE}-{os.getpid()}-{secrets.token_hex(2)}"
        self.file = self.folder / f"{self.name}.json"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Presence:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=10)
        self.file.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            if self.parent is not None and os.getppid() != self.parent:
                os._exit(1)  # killed by nobody else: its checkpoint is at most a minute old
            try:
                self._write()
            except OSError:
                continue  # a full disk or a network's pause, which the work itself meets too

    def _write(self) -> None:
        temporary = self.file.with_suffix(".new")
        temporary.write_text(
            json.dumps({"host": HERE, "pid": os.getpid(), "born": born(os.getpid()), "doing": self.doing}), encoding="utf-8"
        )
        os.replace(temporary, self.file)

    def alive(self, name: str | None) -> bool:
        """Whether the process of this name is at work."""
        return name is not None and (name == self.name or alive(self.folder.parent, name, self.file))

    def all(self) -> list[dict[str, Any]]:
        """{name, host, pid, doing} of the processes at work."""
        found = [(path.stem, _read(path)) for path in sorted(self.folder.glob("*.json"))]
        return [{"name": name, **facts} for name, facts in found if facts and self.alive(name)]


def alive(folder: Path, name: str, clock: Path | None = None) -> bool:
    """Whether a process of a fit's folder is at work; clock: a file just written there, as that machine's clock may differ from ours."""
    path = folder / "processes" / f"{name}.json"
    facts = _read(path)
    if facts is None:
        return False
    if facts["host"] == HERE:  # a process here may be silent for long, as while a tokenizer learns
        return _exists(facts["pid"]) and born(facts["pid"]) == facts["born"]
    try:
        now = clock.stat().st_mtime if clock is not None and clock.exists() else time.time()
        return now - path.stat().st_mtime < SILENT_S
    except OSError:
        return False


def any_alive(folder: Path) -> bool:
    """Whether a process is at work on the fit of this folder."""
    return any(alive(folder, path.stem) for path in (folder / "processes").glob("*.json"))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return (_stat(pid) or ["S"])[0] != "Z"  # one that has ended and whose parent has not noticed yet


def born(pid: int) -> str | None:
    """What tells a process from a later one of the same number: when it was started, where the system says so."""
    found = _stat(pid)
    return found[19] if found else None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on, None where there is no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # gone, or being written
        return None


def environment() -> dict[str, str]:
    """Of a process that is started here, so that it finds the same package."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
