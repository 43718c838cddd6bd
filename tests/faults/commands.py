"""The commands that write something, on the tiny world, each in a process of its own that may be killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from transformers import conversion_mapping

from edgedistill import cli, files
from edgedistill.adapting import adapt  # noqa: F401 - what is imported here, forked processes do not wait for
from edgedistill.evaluation import bench  # noqa: F401
from edgedistill.export import bundle_writer
from edgedistill.fitting import fit  # noqa: F401
from edgedistill.runtime import verify
from edgedistill.training import cache_passes, train  # noqa: F401
from tests.conftest import World, sentences
from tests.export.test_export import make_run

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
conversion_mapping.get_checkpoint_conversion_mapping("bert")  # half a second, for all of them
Contents = dict[str, bytes]
STAGE = {"name": "distil", "objective": {"kind": "cosine"}, "steps": 60, "batch": 16, "bucket": 4}


@dataclass(frozen=True)
class Command:
    """arguments: where `{in}` is the folder of what a command reads. outputs: what it writes, below the
    folder in which it runs. again: what is added to go on or to repeat it. stable: of an output's files what
    does not depend on the time. unfinished: what is there while it can be resumed. prints: where that is its
    result. keeps: a folder that it fills file by file, the same whoever interrupted it."""

    arguments: str
    outputs: tuple[str, ...] = ()
    again: str = ""
    stable: Callable[[Path], Contents] = field(default=lambda path: contents(path))
    unfinished: tuple[str, ...] = ()
    prints: bool = False
    keeps: str = ""


def contents(path: Path, leave: tuple[str, ...] = ()) -> Contents:
    """The bytes of a file, or of each file of a folder."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    found = sorted(each for each in path.rglob("*") if each.is_file() and each.name not in leave)
    return {each.relative_to(path).as_posix(): each.read_bytes() for each in found}


def of_a_run(path: Path) -> Contents:
    return contents(path, ("run.json", "metrics.jsonl"))


def of_a_bundle(path: Path) -> Contents:
    found = contents(path, ("README.md",))
    described = json.loads(found["manifest.json"])
    for key in ("made_at", "digest"):
        described.pop(key)
    described["files"].pop("README.md")
    return {**found, "manifest.json": json.dumps(described).encode()}


def of_any_bundle(path: Path) -> Contents:
    """What was trained for some minutes is not the same twice: that it is whole is all that can be asked."""
    verify.verify(path)
    return {}


def of_a_report(path: Path) -> Contents:
    return {"quality": json.dumps(files.read_json(path)["quality"]).encode()}


DATA = "--data {in}/data"
TEACHER = f"--teacher {{in}}/teacher --texts texts.txt {DATA}"
COMMANDS: dict[str, Command] = {
    "train": Command(
        f"train {{in}}/tiny.yaml {DATA} --out run",
        ("run",),
        "--resume",
        of_a_run,
        unfinished=("run.partial/recipe.yaml",),
    ),
    "export": Command("export {in}/run --out bundle", ("bundle",), "--overwrite", of_a_bundle),
    "embed": Command("embed {in}/bundle {in}/data/many.txt --out out.npy", ("out.npy",), "--overwrite"),
    "bench": Command(
        "bench {in}/bundle:int8 --suite mini --quick --out report.json",
        ("report.json",),
        "--overwrite",
        of_a_report,
    ),
    "cache": Command(
        f"cache {{in}}/long.yaml {DATA} --parquet vectors",
        ("vectors",),
        unfinished=("cache/teachers",),
        keeps="cache",
    ),
    "search": Command("search an-apple {in}/bundle {in}/data/texts.txt --top 3", prints=True),
    "adapt": Command(
        f"adapt {{in}}/run {TEACHER} --steps 20 --minutes 9 --out adapted",
        ("adapted",),
        "--resume",
        of_any_bundle,
        unfinished=("runs/adapted.partial/recipe.yaml", "runs/adapted"),
    ),
    "fit": Command(
        f"fit {TEACHER} --max-mb 1 --max-p50-ms 9 --minutes 8 --out fit",
        ("fit/bundle",),
        "--resume",
        of_any_bundle,
        unfinished=("fit/state.json",),
    ),
}


def prepare(world: World, folder: Path) -> Path:
    """What the commands read: teacher, texts, a recipe, a run and its bundle."""
    folder.mkdir(parents=True)
    shutil.copytree(world.teacher, folder / "teacher")
    shutil.copytree(world.data, folder / "data")
    texts = (folder / "data" / "texts.txt").read_text().splitlines()
    (folder / "data" / "few.txt").write_text("\n".join(texts[:9]))
    (folder / "data" / "many.txt").write_text("\n".join(texts * 30))
    recipe = world.recipe(stages=[STAGE], teacher={"model": str(folder / "teacher"), "max_tokens": 32})
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "data" / "distinct.txt").write_text("\n".join(sentences(2_000, seed=7)))
    recipe["rows"]["files"] = ["distinct.txt"]
    (folder / "long.yaml").write_text(yaml.safe_dump(recipe))
    make_run(folder / "run")
    bundle_writer.export(folder / "run", ["fp32", "int8"], folder / "bundle", lambda line: None)
    return folder


def to_go_on(name: str, place: Path) -> bool:
    """Whether a command is to be repeated with what goes on or replaces, so where there is something."""
    command = COMMANDS[name]
    return any((place / each).exists() for each in (*command.outputs, *command.unfinished))


class Started:
    """A command in a process of its own, in `place`, with the cache there; `log` is what it printed."""

    def __init__(self, name: str, given: Path, place: Path, again: bool = False, **options: Any):
        command = COMMANDS[name]
        words = command.arguments.replace("{in}", str(given)).split()
        place.mkdir(parents=True, exist_ok=True)
        self.log = place / str(options.pop("log", f"{name}.log"))
        arguments = (words + (command.again.split() if again else []), place, self.log, options)
        self.process = PROCESSES.Process(target=_run, args=arguments)
        self.process.start()

    def ended(self, within_s: float) -> bool:
        self.process.join(within_s)
        return self.process.exitcode is not None

    def signal(self, number: int = signal.SIGKILL):
        """To the command and all that it started."""
        try:
            os.killpg(self.process.pid or 0, number)
        except ProcessLookupError:  # it has no group of its own yet
            self.process.kill()

    def result(self, within_s: float = 300) -> tuple[int | None, str]:
        """Its exit code and what it printed."""
        if not self.ended(within_s):
            self.signal()
            self.process.join()
        return self.process.exitcode, self.log.read_text(errors="replace") if self.log.exists() else ""


def _run(words: list[str], place: Path, log: Path, options: dict[str, Any]):
    os.setsid()
    os.chdir(place)
    os.environ.update(EDGEDISTILL_CACHE=str(place / "cache"), **options.get("environment", {}))
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    limits = options.get("limits", {})
    if "memory_mb" in options:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limits = {resource.RLIMIT_AS: taken + 1_000_000 * options["memory_mb"]}
    for number, size in limits.items():
        resource.setrlimit(number, (size, size))
    sys.argv = ["edgedistill", *words]
    cli.main()


def run(name: str, given: Path, place: Path, again: bool = False, **options: Any) -> tuple[int | None, str]:
    return Started(name, given, place, again, **options).result()


def stable(name: str, place: Path) -> dict[str, Contents | None]:
    """What does not depend on the time: of each output that is there, and of what was printed without one."""
    command = COMMANDS[name]
    found = {out: command.stable(place / out) if (place / out).exists() else None for out in command.outputs}
    if command.keeps:  # but for the hidden folder that a killed process was writing
        kept = contents(place / command.keeps)
        found[command.keeps] = {each: kept[each] for each in kept if "/." not in f"/{each}"}
    if command.prints:  # below the lines that count what was embedded now
        found["stdout"] = {"": (place / f"{name}.log").read_bytes().partition(b"  #")[2]}
    return found


def timed(name: str, given: Path, place: Path) -> tuple[float, dict[str, Contents | None]]:
    """How many seconds a command takes that is left alone, and its outputs."""
    first = PROCESSES.Process(target=int)  # which starts the process that has imported everything
    first.start()
    first.join()
    started = time.perf_counter()
    code, log = run(name, given, place)
    assert code == 0, log
    return time.perf_counter() - started, stable(name, place)
