"""Full disks, folders that cannot be written, caches that vanish, many processes at once, SIGTERM, no memory,
a teacher that changes: each is one clear line, and nothing is lost."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgedistill import files
from edgedistill.errors import UserError
from edgedistill.session import Session, silent
from edgedistill.training import train
from tests.conftest import World
from tests.faults.commands import (
    COMMANDS,
    Contents,
    Started,
    of_a_run,
    run,
    stable,
    timed,
    to_go_on,
)
from tests.faults.record import record

NAMES = ("train", "export", "embed", "search")
TMPFS = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a tmpfs")
Whole = dict[str, Contents | None]


@pytest.fixture(scope="module")
def whole(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """What a command that nothing happens to leaves."""
    found: dict[str, Whole] = {}
    place = tmp_path_factory.mktemp("alone")

    def of(name: str) -> Whole:
        if name not in found:
            found[name] = timed(name, given, place / name)[1]
        return found[name]

    return of


def refused(name: str, place: Path, code: int | None, log: str, expected: int = 2) -> str:
    """The last line of a command that could not go on: no traceback, no output, no temporary file."""
    assert "Traceback" not in log, log
    assert code == expected, log
    for out in COMMANDS[name].outputs:
        assert not (place / out).exists()
        assert not list((place / out).parent.glob(f".{Path(out).name}*")), "temporary files are removed"
    return log.splitlines()[-1]


def repeated(name: str, given: Path, place: Path, whole: Whole):
    """The same command, where nothing is in its way any more."""
    code, log = run(name, given, place, again=to_go_on(name, place))
    assert code == 0, log
    assert stable(name, place) == whole


@pytest.mark.parametrize("name", ["train", "embed"])
def test_no_file_can_be_long(name: str, given: Path, tmp_path, whole: Callable[[str], Whole]):
    """As on a full disk, which takes a mount to try: below, at length."""
    limits = {resource.RLIMIT_FSIZE: 20_000}
    line = refused(name, tmp_path, *run(name, given, tmp_path, limits=limits))
    assert "; free some space, or choose another place" in line
    repeated(name, given, tmp_path, whole(name))


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.slow
@TMPFS
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk(name: str, given: Path, tmp_path, whole: Callable[[str], Whole]):
    """Output, run and cache on a disk of several sizes; with room again, the command ends as ever."""
    full = 0
    for number, pages in enumerate((3, 8, 12, 20, 30, 45, 60, 90)):
        with small_disk(tmp_path / str(number), pages * 4096) as place:
            code, log = run(name, given, place, log=str(tmp_path / "log"))
            if code == 0:
                break
            assert "space" in refused(name, place, code, log)
            full += 1
            subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
            repeated(name, given, place, whole(name))
    record("faults", f"disk full: {name}", tried=full, wrong=0)
    assert full


@pytest.mark.slow
@TMPFS
@pytest.mark.parametrize("name", [*NAMES, "bench", "adapt", "fit"])
def test_a_disk_that_cannot_be_written(name: str, given: Path, tmp_path):
    with small_disk(tmp_path / "disk", 1 << 20) as place:
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        words = COMMANDS[name].arguments.replace("{in}", str(given)).split()
        done = command(words, place, EDGEDISTILL_CACHE=str(place / "cache"))
        line = refused(name, place, done.returncode, done.stderr)
        assert "read-only file system; choose another place" in line
        record("faults", f"read-only disk: {name}", tried=1, wrong=0)


FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
JUMPS = ("-400d", "+400d", "-1h", "+0")


@pytest.mark.slow
@pytest.mark.skipif(FAKETIME is None, reason="needs Debian's libfaketime")
@pytest.mark.parametrize("name", ["train", "export", "cache", "adapt"])
def test_a_clock_that_jumps(name: str, given: Path, tmp_path, whole: Callable[[str], Whole]):
    """Years back and forth, several times a second, as long as a command runs."""
    place, clock = tmp_path / "x", tmp_path / "clock"
    place.mkdir()
    clock.write_text("+0")
    faked = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1"}
    faked |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "EDGEDISTILL_CACHE": str(place / "cache")}
    words = COMMANDS[name].arguments.replace("{in}", str(given)).split()
    with subprocess.Popen(
        [sys.executable, "-m", "edgedistill", *words],
        cwd=place,
        env={**os.environ, **faked},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        jumps = 0
        while process.poll() is None:
            jumps += 1
            files.write_text(clock, JUMPS[jumps % len(JUMPS)])
            time.sleep(0.2)
        assert process.stderr is not None
        log = process.stderr.read()
    assert process.returncode == 0, log
    assert stable(name, place) == whole(name)
    record("faults", f"clock that jumps: {name}", tried=1, wrong=0, jumps=jumps)


def command(words: list[str], place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgedistill", *words],
        cwd=place,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["train", "export"])
def test_sigterm_ends_as_ctrl_c_does(name: str, given: Path, tmp_path, whole: Callable[[str], Whole]):
    whole(name)
    started = Started(name, given, tmp_path)
    while not (started.log.exists() and started.log.stat().st_size) and not started.ended(0.02):
        pass
    started.signal(signal.SIGTERM)
    line = refused(name, tmp_path, *started.result(), 130)
    assert "interrupted" in line
    repeated(name, given, tmp_path, whole(name))
    record("faults", f"SIGTERM: {name}", tried=1, wrong=0)


def at_once(name: str, count: int, given: Path, place: Path, whole: Whole):
    """So many processes of a command, with one cache and one output: each succeeds, or says in a line why
    not, and what is there in the end is whole."""
    started = [Started(name, given, place, log=f"{number}.log") for number in range(count)]
    results = [each.result() for each in started]
    assert 0 in [code for code, _ in results], results
    for code, log in results:
        assert code in (0, 2) and "Traceback" not in log, log
    found = stable(name, place)
    for out in COMMANDS[name].outputs:
        assert found[out] == whole[out]
    assert not [path for path in place.rglob("*") if path.name.startswith(".") and path.is_dir()]
    record("faults", f"{count} processes at once: {name}", tried=count, wrong=0)


@pytest.mark.parametrize("name", ["train"])
def test_two_processes_with_one_cache_and_one_output(
    name: str, given: Path, tmp_path, whole: Callable[[str], Whole]
):
    at_once(name, 2, given, tmp_path, whole(name))


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ["train", "export", "embed"])
def test_several_processes_with_one_cache_and_one_output(
    name: str, count: int, given: Path, tmp_path, whole: Callable[[str], Whole]
):
    for number in range(3):
        at_once(name, count, given, tmp_path / str(number), whole(name))


def damage_deleted(cache: Path):
    shutil.rmtree(cache, ignore_errors=True)


def damage_truncated(cache: Path):
    for path in cache.rglob("*"):
        if path.suffix in (".bin", ".npy"):
            os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("file", "moment"),
    [
        ("corpora/*/texts.bin", "tokens: tokenizing"),
        ("tokens/*/ids.bin", "teacher: embedding"),
        ("teachers/*/*/00000/embeddings.npy", "teacher: 440"),
    ],
)
def test_a_cached_file_that_is_cut_while_a_training_reads_it(file: str, moment: str, world: World, tmp_path):
    """Within its last page of memory it reads as zeros: no run is made of these, and the next one is as
    ever."""

    def log(line: str):
        if line.startswith(moment):
            (path,) = session.cache.glob(file)
            os.truncate(path, path.stat().st_size - 8)

    session = Session(data=world.data, cache_folder=tmp_path / "cache", log=log)
    spec = world.spec()
    with pytest.raises(UserError, match=f"{Path(file).name}: cut while it was used; run the command again"):
        train.train(spec, tmp_path / "run", session)
    assert not (tmp_path / "run").exists()
    train.train(spec, tmp_path / "run", replace(session, log=silent))
    train.train(spec, tmp_path / "alone", Session(data=world.data))
    assert of_a_run(tmp_path / "run") == of_a_run(tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [damage_deleted, damage_truncated])
@pytest.mark.parametrize("moment", ["tokenizing", "teacher: embedding", "distil"])
def test_a_cache_that_vanishes_in_use(
    damage: Callable[[Path], Any], moment: str, given: Path, tmp_path, whole: Callable[[str], Whole]
):
    """What is cut in the moment in which it is read ends the process (SIGBUS), as a kill does; else it is
    noticed in time. The next one makes the file again."""
    started = Started("train", given, tmp_path)
    while moment not in (started.log.read_text() if started.log.exists() else "") and not started.ended(0.01):
        pass
    damage(tmp_path / "cache")
    code, log = started.result()
    assert "Traceback" not in log, log
    assert code in (0, 2, -signal.SIGBUS), log
    repeated("train", given, tmp_path, whole("train"))
    record("faults", f"cache {damage.__name__.removeprefix('damage_')} in use, {moment}", tried=1, wrong=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "export", "embed"])
def test_not_enough_memory(name: str, given: Path, tmp_path, whole: Callable[[str], Whole]):
    """The address space is bounded a little above what the process has when it starts. Some libraries crash
    then (a negative exit code): as after a kill, nothing is lost."""
    ended = []
    for megabytes in (0, 2, 8, 30, 100, 400):
        place = tmp_path / str(megabytes)
        code, log = run(name, given, place, memory_mb=megabytes)
        ended.append(code)
        if code == 0:
            assert stable(name, place) == whole(name)
            continue
        assert not any((place / out).exists() for out in COMMANDS[name].outputs), log
        assert (code == 2 and "not enough memory" in log.splitlines()[-1]) or (code or 0) < 0, log
        repeated(name, given, place, whole(name))
    record("faults", f"out of memory: {name}", tried=len(ended), wrong=0, exit_codes=ended)


def test_a_teacher_that_changes_between_interruption_and_resuming(
    given: Path, tmp_path, whole: Callable[[str], Whole]
):
    """Half of the training with one teacher and half with another would be a run that no recipe describes."""
    import torch
    from safetensors.torch import load_file, save_file

    own = tmp_path / "in"
    shutil.copytree(given, own)
    recipe = own / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace(str(given), str(own)))
    started = Started("train", own, tmp_path / "x")
    while not started.log.exists() or "embedding 440 of 440 texts" not in started.log.read_text():
        time.sleep(0.01)
        assert not started.ended(0), "too fast to be stopped"
    started.signal()
    started.result()
    weights = own / "teacher" / "model.safetensors"
    save_file({name: value + 0.1 * torch.sin(value) for name, value in load_file(weights).items()}, weights)
    code, log = run("train", own, tmp_path / "x", again=to_go_on("train", tmp_path / "x"))
    assert "Traceback" not in log
    if code == 0:
        assert stable("train", tmp_path / "x") == timed("train", own, tmp_path / "y")[1]
    else:
        assert (code, "teacher" in log.splitlines()[-1]) == (2, True), log
    record("faults", "teacher changed half-way: train", tried=1, wrong=0)
