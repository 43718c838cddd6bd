"""The border: what the user can fix leaves edgedistill as one line and exit code 2, what is our bug with its
traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

import edgedistill
from edgedistill import cli, errors
from edgedistill.errors import UserError, border, user_error
from edgedistill.students.model_folder import opening
from tests.test_cli import call, last


def _loop(folder: Path) -> Path:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    return folder / "a"


def _file(folder: Path) -> Path:
    (folder / "file").write_text("x", encoding="utf-8")
    return folder / "file"


# What a path can be that no file can be read from, for root too: how it is made.
UNREADABLE: dict[str, Callable[[Path], Path]] = {
    "missing": lambda folder: folder / "missing",
    "a folder": lambda folder: folder,
    "below a file": lambda folder: _file(folder) / "x",
    "too long": lambda folder: folder / ("x" * 300),
    "a circle of links": _loop,
}
READERS: dict[str, Callable[[Path], object]] = {
    "python": Path.read_bytes,
    "numpy": lambda path: np.load(path),
    "safetensors": lambda path: safe_open(path, "numpy"),
    "tokenizers": lambda path: Tokenizer.from_file(str(path)),
    "torch": lambda path: torch.load(path, weights_only=True),
    "folder": lambda path: os.listdir(path / "x"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("reader", READERS)
def test_whatever_cannot_be_read_is_the_users_in_every_library(reader: str, kind: str, tmp_path):
    path = UNREADABLE[kind](tmp_path)
    with pytest.raises(UserError) as caught, border():
        READERS[reader](path)
    [line] = caught.value.problems
    assert "; " in line
    assert "\n" not in line
    assert caught.value.__cause__ is not None
    if reader in ("python", "numpy", "torch"):
        assert line.startswith(f"{path}: ")


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: np.empty(1 << 60, np.uint8),
        lambda: torch.empty(1 << 60, dtype=torch.uint8),
        lambda: bytearray(1 << 62),
        lambda: raises(RuntimeError("could not create a primitive")),  # oneDNN's
        lambda: raises(RuntimeError("unable to mmap 92376 bytes from file <x>: Cannot allocate memory (12)")),
        lambda: raises(ImportError("x.so: failed to map segment from shared object")),
    ],
)
def test_want_of_memory_is_named_with_its_size(allocate: Callable[[], object], tmp_path):
    """Also where a library opens a file: it is not the file's fault."""
    for place in (nullcontext(), opening(tmp_path, "its weights do not open")):
        with pytest.raises(UserError, match="^not enough memory.*take a smaller batch"), border(), place:
            allocate()


def raises(error: Exception):
    raise error


def test_text_that_cannot_be_written():
    with pytest.raises(UserError) as caught, border():
        "a \ud83d b".encode()
    fact = r"'a \ud83d b': holds half a surrogate pair ('\ud83d'), which is not text; correct it"
    assert caught.value.problems == (fact,)


def test_an_error_in_the_cache_names_its_variable(tmp_path, monkeypatch):
    for place, count in (("elsewhere", 0), ("cache", 1)):
        monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / place))
        error = user_error(PermissionError(13, "", str(tmp_path / "cache" / "search")))
        assert str(error).count("(EDGEDISTILL_CACHE names one)") == count


@pytest.mark.parametrize(
    "bug",
    [
        TypeError("a"),
        KeyError("a"),
        AssertionError("a"),
        ValueError("a"),
        RuntimeError("a"),
        OSError(22, "Invalid argument", "x"),
    ],
    ids=lambda bug: type(bug).__name__,
)
def test_a_bug_stays_what_it_is(bug: Exception):
    assert user_error(bug) is None
    with pytest.raises(type(bug)), border():
        raise bug


@pytest.mark.parametrize("kind", ["below a file", "too long", "a circle of links"])
def test_a_bundle_whose_path_cannot_be_read(kind: str, tmp_path):
    with pytest.raises(UserError):
        edgedistill.load(UNREADABLE[kind](tmp_path))


OUT = {
    "below a file": "file/x.npy",
    "too long": f"{'x' * 300}.npy",
    "in /proc": "/proc/x.npy",
    "a folder": "taken.npy",
}


@pytest.mark.parametrize("kind", OUT)
def test_a_command_that_cannot_write_its_output(kind: str, tmp_path):
    _file(tmp_path)
    (tmp_path / "taken.npy").mkdir()
    done = call("embed", "nano", "--out", OUT[kind], "--overwrite", "--json", folder=tmp_path, text="a\n")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "; " in done.stderr
    assert last(done)["error"] == done.stderr.strip()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "taken.npy"]


@pytest.mark.parametrize(
    "command", ["recipes", "recipes demo-bert2 --json", "--help", "embed nano", "check nope --json"]
)
def test_a_full_stdout(command: str, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["edgedistill", *command.split()])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n"), encoding="utf-8"))
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "; " in line
    assert "no recipe 'nope'" in line if "nope" in command else "o space left on" in line


@pytest.mark.parametrize(
    ("arguments", "code"), [(["nope.txt", "--json"], 2), (["-", "--out", "o.npy", "--json"], 0)]
)
def test_a_full_stderr_changes_neither_the_result_nor_the_exit_code(
    arguments: list[str], code: int, tmp_path
):
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "edgedistill", "embed", "micro", *arguments]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=full, text=True, cwd=tmp_path, input="a\n", check=False
        )
    assert done.returncode == code
    assert ("error" in json.loads(done.stdout.splitlines()[-1])) == (code != 0)
    assert (tmp_path / "o.npy").exists() == (code == 0)


def test_the_traceback_of_an_error_on_demand(tmp_path, monkeypatch):
    monkeypatch.setenv(cli.DEBUG, "1")
    done = call("embed", "nano", "--out", "/proc/x.npy", folder=tmp_path, text="a\n")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "mkdtemp" in done.stderr


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read and write everything")
@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_folders_without_permission(mode: int, tmp_path):
    (tmp_path / "shut").mkdir(mode=mode)
    done = call("embed", "nano", "--out", "shut/x.npy", folder=tmp_path, text="a\n")
    (tmp_path / "shut").chmod(0o755)
    assert done.returncode == 2
    assert done.stderr == (
        "shut/x.npy was not written: permission denied; change its permissions, or choose another place\n"
    )


def test_what_a_terminal_would_obey_is_escaped_in_every_error():
    """Found by a fuzzer in modules.json: names in others' files are quoted in messages."""
    error = errors.UserError("x: no module '\x1b[2J\U000f2d2a'; choose another", "y: 'é' is fine")
    assert error.problems == (r"x: no module '\x1b[2J\U000f2d2a'; choose another", "y: 'é' is fine")
    assert str(error) == "\n".join(error.problems)
    assert errors.first_line("a\x07b\nc") == r"a\x07b"
