"""The same file on other processors: golden texts of students of every kind, in every precision, and of those
that ship, on aarch64 and on x86-64 without VNNI, really run, under QEMU's user mode.

python bench/processors.py [--bundles DIR] [--only NAME …] [--kinds NAME …] [--root DIR] [--out FILE]

Needs qemu-user-static, and apt-get and dpkg-deb, which fill --root (.environments/aarch64) with Debian's
python3 for arm64, and pip, which adds the wheels of numpy, onnxruntime and tokenizers for it, in the versions
that are installed here. A processor that cannot be run here is in the report with the reason. export/python
runs the bundles, each text by itself; on this machine too, to compare with. The students are those of
bench/ecosystems.py, before their first step: what is compared is arithmetic, not quality.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import ecosystems
from measured_tables import HERE

from edgedistill import files, machine, run

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "bench" / "reports" / "processors.json"
SCRIPT = ecosystems.SCRIPTS / "plain_python.py"
PATIENCE_S = 3_600  # for an emulated processor's answer
SHIPPED = ROOT / "edgedistill" / "shipped" / "bundles"
DEBIAN, WHEELS = ("python3", "libstdc++6"), ("numpy", "onnxruntime", "tokenizers")
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64")
CORE = """processor\t: 0
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

"""


class Processor(NamedTuple):
    """A processor that QEMU emulates: its architecture, its name there, and what it lacks or has."""

    architecture: str
    cpu: str
    about: str


PROCESSORS = {
    "x86-64-v2": Processor("x86_64", "Nehalem", "SSE4.2, no AVX"),
    "x86-64-v3": Processor("x86_64", "Haswell", "AVX2, neither AVX512 nor VNNI"),
    "Cortex-A72": Processor("aarch64", "cortex-a72", "NEON, without dot products"),
    "Neoverse-N1": Processor("aarch64", "neoverse-n1", "NEON, dot products of int8"),
    "Armv9": Processor("aarch64", "max", "all that QEMU knows: int8 and bf16 matrices, SVE"),
}


class CannotRun(Exception):
    """A processor cannot be run here; the message is the reason."""


def command(processor: Processor, root: Path) -> list[str]:
    """What starts SCRIPT on a processor. Raises CannotRun."""
    emulator = shutil.which(f"qemu-{processor.architecture}-static")
    if emulator is None:
        raise CannotRun(f"no qemu-{processor.architecture}-static; install qemu-user-static")
    started = [emulator, "-cpu", processor.cpu]
    if processor.architecture == "x86_64":
        if machine.here()["architecture"] != "x86_64":
            raise CannotRun("the Python that runs here is not of x86-64")
        # where set, numpy's products are those of the processor it names, which this one is not
        return [*started, "-U", "OPENBLAS_CORETYPE", sys.executable, str(SCRIPT)]
    python = make_root(root)
    return [*started, "-L", str(root), "-E", f"PYTHONPATH={root / 'site'}", str(python), str(SCRIPT)]


def make_root(root: Path) -> Path:
    """Fill a folder with Python for arm64 and the wheels a bundle needs, unless it is there. Returns the
    interpreter. Raises CannotRun."""
    if not (root / "installed").exists():
        shutil.rmtree(root, ignore_errors=True)
        for folder in (
            "state/lists/partial",
            "cache/archives/partial",
            "site",
            "proc",
            "sys/devices/system/cpu",
        ):
            (root / folder).mkdir(parents=True)
        (root / "state" / "status").touch()  # nothing of that architecture is installed
        where = {"Dir::State": root / "state", "Dir::State::status": root / "state" / "status"}
        given = {"APT::Architecture": "arm64", "APT::Architectures": "arm64", "Dir::Cache": root / "cache"}
        apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in {**where, **given}.items())]
        _done([*apt, "update"])
        _done([*apt, "--yes", "--no-install-recommends", "--download-only", "install", *DEBIAN])
        for package in sorted((root / "cache" / "archives").glob("*.deb")):
            _done(["dpkg-deb", "-x", str(package), str(root)])
        version = next((root / "usr" / "bin").glob("python3.*")).name.removeprefix("python")
        wheels = [f"{name}=={importlib.metadata.version(name)}" for name in WHEELS]
        platforms = [f"--platform={name}" for name in PLATFORMS]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--target"]
        _done([*pip, str(root / "site"), f"--python-version={version}", *platforms, *wheels])
        # cpuinfo, in onnxruntime, reads these, and QEMU would show those of this machine
        (root / "proc" / "cpuinfo").write_text(CORE, encoding="utf-8")
        for name in ("possible", "present"):
            (root / "sys" / "devices" / "system" / "cpu" / name).write_text("0\n", encoding="utf-8")
        (root / "installed").touch()
    return next(path for path in (root / "usr" / "bin").glob("python3.*") if path.suffix[1:].isdecimal())


def _done(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotRun(f"no {command[0]}, which fetches Debian's packages") from None
    if done.returncode:
        raise CannotRun(
            f"{Path(command[0]).name}: {(done.stderr.strip().splitlines() or ['failed'])[-1][:200]}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundles", type=Path, help="made there, and kept; otherwise made again every time")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=PROCESSORS, default=list(PROCESSORS))
    shipped = sorted(files.shipped("bundle"))
    kinds = [*shipped, *ecosystems.STUDENTS]
    parser.add_argument("--kinds", nargs="+", metavar="NAME", choices=kinds, default=kinds)
    parser.add_argument("--root", type=Path, default=ROOT / ".environments" / "aarch64")
    parser.add_argument("--out", type=Path, default=REPORT)
    arguments = parser.parse_args()
    ecosystems.TIMEOUT_S = PATIENCE_S
    with tempfile.TemporaryDirectory() as temporary:
        made = (arguments.bundles or Path(temporary)).absolute()
        ecosystems.export_students(made, [name for name in arguments.kinds if name in ecosystems.STUDENTS])
        bundles = [(SHIPPED if name in shipped else made) / name for name in arguments.kinds]
        for name in [HERE, *arguments.only]:
            for folder in bundles:
                add(arguments.out, measured(name, folder, arguments.root.absolute()))


def measured(name: str, folder: Path, root: Path) -> list[dict[str, Any]]:
    """A row for each precision of a bundle on a processor; one with the reason where that cannot be run."""
    shared: dict[str, Any] = {"runner": name, "kind": folder.name}
    try:
        started = [sys.executable, str(SCRIPT)] if name == HERE else command(PROCESSORS[name], root)
    except CannotRun as error:
        return [{**shared, "precision": None, "not_run": str(error)}]
    precisions = files.read_json(folder / "manifest.json")["precisions"]
    wanted = {each: entry["file"] for each, entry in precisions.items()}
    return ecosystems.answered([*started, str(folder)], ROOT, folder, wanted, shared)


def add(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows into the report, in place of those of the same processor and bundle."""
    print(*(json.dumps(row) for row in rows), sep="\n", flush=True)
    before = files.read_json(path)["rows"] if path.exists() else []
    report = {"schema": 1, "bench": "processors", "rows": ecosystems.merged(before, rows)}
    report["processors"] = {name: each.about for name, each in PROCESSORS.items()}
    files.write_json(path, {**report, "machine": machine.here(), **run.provenance()})


if __name__ == "__main__":
    main()
