"""`bench --on`: the real program is built, copied and run where a stub of ssh or adb reaches."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from edgedistill.errors import CheckFailed, UserError
from edgedistill.evaluation import speed
from tests.runners.core.student import COMPILER
from tests.runners.measuring import measured

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
TEXTS = ["first", "a second\n\ttext", "", "\0 ☕"]
LAST = '#!/bin/sh\nfor script; do :; done\ncd "$(dirname "$0")/home"\n'
EMULATED = r"s/uname -sm/echo Linux aarch64/; s#\./bench#qemu-aarch64-static ./bench#"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def stub(tmp_path, cache: Path, monkeypatch):  # type: ignore[no-untyped-def]
    """Write what is called ssh and adb here: it gets the script to run as its last argument."""

    def write(body: str = 'exec sh -c "$script"'):
        for name in ("ssh", "adb"):
            (tmp_path / name).write_text(f"{LAST}{body}\n")
            (tmp_path / name).chmod(0o700)

    (tmp_path / "home").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(cache))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "home"))
    write()
    return write


def test_a_place_has_a_row_of_its_own(stub, tmp_path):  # type: ignore[no-untyped-def]
    place = f"adb://serial{tmp_path}/home"
    row = measured("micro", place, TEXTS).speed
    golden, runner = row["runner"]["golden"], row["runner"]
    assert golden["worst"] >= golden["least"] and runner["cosine_min"] > 0.999
    assert (runner["name"], row["single"]["queries"]) == (place, 4)
    counts = {int(most): timing["tokens"] for most, timing in row["single"]["by_length"].items()}
    assert list(counts) == [8, 16, 32, 64, 128, 256]
    assert all(most - 8 < counts[most] <= most for most in counts)
    assert row["memory"]["loaded_rss_bytes"] <= row["peak_rss_bytes"] < 50e6
    assert row["load"]["start_ms"][0] > 0 and row["machine"]["architecture"] == os.uname().machine
    assert not list((tmp_path / "home").iterdir())


@pytest.mark.skipif(
    not shutil.which("qemu-aarch64-static") or not shutil.which("aarch64-linux-gnu-gcc"),
    reason="needs aarch64-linux-gnu-gcc and QEMU",
)
def test_the_program_is_built_for_the_processor_there(stub):  # type: ignore[no-untyped-def]
    stub(f'exec sh -c "$(printf %s "$script" | sed \'{EMULATED}\')"')
    row = measured("micro", "ssh://board", TEXTS).speed
    assert row["machine"]["architecture"] == "aarch64" and row["runner"]["version"].endswith("dotprod")


@pytest.mark.parametrize(
    ("place", "body", "problem"),
    [
        ("ssh://board", "echo Linux mips", "Linux on mips"),
        ("ssh://board", "echo Darwin arm64", "Darwin on arm64"),
        (
            "ssh://board",
            "echo 'ssh: connect: No route to host' >&2; exit 255",
            "No route to host.*ssh .* board true",
        ),
        ("adb", "echo 'error: no devices/emulators found' >&2; exit 1", "no devices.*adb shell -T true"),
        ("ssh://-oProxyCommand=x", "", "no place"),
        ("ssh:///tmp", "", "no place"),
    ],
)
def test_a_place_that_does_not_take_it_is_refused_before_measuring(
    place: str,
    body: str,
    problem: str,
    stub,  # type: ignore[no-untyped-def]
):
    stub(body)
    with pytest.raises(UserError, match=f"^--on {place}.*: .*{problem}"):
        speed.Runner.named(place)


def test_what_goes_wrong_there_is_named(stub, tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    run = 'sh -c "$script"'
    full = "case $script in *uname*) exec " + run + ";; esac\necho 'tar: No space left on device' >&2; exit 2"
    for body, error, problem in (
        (full, UserError, r"No space left on device.* MB in \S+TMPDIR"),
        (f'{run} | sed \'s/"worst": [0-9.]*/"worst": 0.5/\'', CheckFailed, "a golden text is at 0.5"),
    ):
        stub(body)
        with pytest.raises(error, match=f"--on ssh://pi@board:22: .*{problem}"):
            measured("micro", "ssh://pi@board:22", TEXTS)
    monkeypatch.setenv("PATH", str(tmp_path / "home"))
    with pytest.raises(UserError, match="--on ssh://board: no ssh on the path"):
        speed.Runner.named("ssh://board")
