"""The measuring process of the core: read a request as JSON on stdin, write its bundle as a student's file,
and have it timed by a program of export/: `node`, `web` (a browser), or bench.c where ssh or adb reach."""

from __future__ import annotations

import importlib.util
import io
import json
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from edgedistill import files, machine
from edgedistill.device.student_file import FILE, content
from edgedistill.errors import CheckFailed, UserError, own_cache
from edgedistill.files import Json
from edgedistill.runtime import bundle

PROGRAMS = {"node": ("core/cli.js", "--bench"), "web": ("web/bench.mjs",)}  # in export/
CHECKED = 8  # texts whose embeddings are compared with edgedistill's own
TARGETS = {  # of `uname -m`: whom compilers build for
    "x86_64": "x86_64-linux-gnu",
    "aarch64": "aarch64-linux-gnu",
    "armv7l": "arm-linux-gnueabihf",
    "riscv64": "riscv64-linux-gnu",
}
MEASURE = (  # in a folder that is removed in any case; what arrives on stdin is unpacked there
    "d=$(mktemp -d {folder}/edgedistill.XXXXXX) && trap 'rm -rf \"$d\"' EXIT HUP INT TERM && "
    'cd "$d" && tar xf - && ./bench {arguments} < texts'
)


PACKAGES = {"ssh": "an OpenSSH client", "adb": "Android's platform tools"}


class Place(NamedTuple):
    """Another machine: a command line that runs a script there, and where programs may be written and run."""

    shell: list[str]
    folder: str

    @classmethod
    def named(cls, name: str) -> Place:
        """Read ssh://[USER@]HOST[:PORT][/FOLDER] or adb[://SERIAL][/FOLDER]. Raises UserError for a client
        that is not installed."""
        match = re.fullmatch(r"(ssh|adb)(?:://([^-:/][^:/]*)?(?::(\d+))?(/.+)?)?", name)
        client, host, port, folder = match.groups() if match else ("", "", "", "")
        if not client or (client == "ssh" and not host):
            raise UserError(f"{name}: no place; write ssh://USER@HOST, adb or adb://SERIAL")
        if shutil.which(client) is None:
            raise UserError(f"no {client} on the path; install {PACKAGES[client]}")
        options = [part for flag, value in (("-p", port), ("-s", host)) if value for part in (flag, value)]
        if client == "adb":
            return cls(["adb", *options, "shell", "-T"], shlex.quote(folder or "/data/local/tmp"))
        shell = [
            "ssh",
            "-o",
            "BatchMode=yes",
            "-o",
            "ConnectTimeout=20",
            *options[: 2 * bool(port)],
            str(host),
        ]
        return cls(shell, shlex.quote(folder) if folder else "${TMPDIR:-/tmp}")

    def run(self, script: str, sent: bytes = b"") -> str:
        """The output of a script. Raises UserError where it fails without any."""
        command = [*self.shell, f"sh -c {shlex.quote(script)}"]
        done = subprocess.run(command, input=sent, capture_output=True, check=False)
        if done.returncode and not done.stdout.strip():
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it wrote nothing"]
            way_out = f"mend it until this asks nothing: {shlex.join(self.shell)} true"
            if sent:
                way_out = (
                    f"free {len(sent) / 1e6:.1f} MB in {self.folder}, where programs may run, or add /FOLDER"
                )
            raise UserError(f"{lines[-1]} (exit code {done.returncode}); {way_out}")
        return done.stdout.decode(errors="replace").strip()

    def described(self) -> Json:
        """The machine, as `machine.here` describes this one. Raises UserError for another system."""
        told = self.run("uname -sm; cat /proc/cpuinfo")
        system, _, architecture = told.partition("\n")[0].partition(" ")
        if system != "Linux" or architecture not in TARGETS:
            raise UserError(
                f"runs {system} on {architecture}; bench.c is built for Linux on {', '.join(TARGETS)}; "
                "see export/core/README.md to build and run it there"
            )
        known = {"flags": machine.flags(told), "architecture": architecture, "system": system}
        return {"cpu": machine.cpu_model(told) or architecture, **known}


def program(architecture: str) -> Path:
    """bench.c built for a processor, kept in the cache. Raises UserError where no compiler is there."""
    core = files.shipped_folder("runner") / "core"
    target = TARGETS[architecture]
    sources = [core / name for name in ("bench.c", "edgedistill.c", "edgedistill.h")]
    key = files.cache_key(sources=[files.sha256_file(source) for source in sources])
    built = own_cache() / "bench" / f"{architecture}-{key}"
    if built.exists():
        return built
    compiler = next(_compilers(architecture, target), None)
    if compiler is None:
        raise UserError(
            f"no compiler on this machine for {architecture}, to build bench.c with; pip install "
            f"ziglang, or install {target}-gcc (Debian: apt install gcc-{architecture})"
        )
    built.parent.mkdir(parents=True, exist_ok=True)
    with files.new_file(built) as new:
        command = [*compiler, "-O2", "-static", "-s", *map(str, sources[:2]), "-o", str(new), "-lm"]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
        if done.returncode:
            raise UserError(f"{shlex.join(compiler)}: {done.stderr.strip()[-300:]}; mend it, or remove it")
    return built


def _compilers(architecture: str, target: str) -> Iterator[list[str]]:
    """Those that are here; zig's programs are small and need nothing of their machine."""
    zig = ["cc", "-target", target.replace("gnu", "musl")]
    if program_file := shutil.which("zig"):
        yield [program_file, *zig]
    if importlib.util.find_spec("ziglang"):
        yield [sys.executable, "-m", "ziglang", *zig]
    for name in (f"{target}-gcc", "cc"):
        here = (platform.system(), platform.machine()) == ("Linux", architecture)
        if shutil.which(name) and (here or name != "cc"):
            yield [name]


def elsewhere(place: Place, request: Json) -> int:
    """Print what bench.c answers at a place to a request to measure. Raises UserError as `program`, and for a
    place that does not take it."""
    described = place.described()
    parts = {"bench": program(described["architecture"]).read_bytes()}
    if request["what"] == "check":  # before anything is measured
        return 0
    texts = request["texts"]
    sent = [text.encode() for text in [*texts[:CHECKED], *(texts[at] for at in request["queries"])]]
    parts |= {FILE: _student(request), "texts": b"".join(b"%d\n%s" % (len(text), text) for text in sent)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o700
            tar.addfile(entry, io.BytesIO(data))
    options = [request[key] for key in ("seconds", "query_seconds", "warmups")]
    arguments = [FILE, *options, min(CHECKED, len(texts)), len(request["queries"])]
    script = MEASURE.format(folder=place.folder, arguments=" ".join(map(str, arguments)))
    told = json.loads(place.run(script, packed.getvalue()).splitlines()[-1])
    sys.stdout.write(json.dumps({**told, "machine": described}))
    return 0


def here(runner: str, request: Json) -> int:
    """Have a program on Node answer a request to measure. Returns its exit code."""
    path, *options = PROGRAMS[runner]
    command = ["node", str(files.shipped_folder("runner") / path), *options]
    with tempfile.TemporaryDirectory() as folder:
        student = Path(folder) / FILE
        student.write_bytes(_student(request))
        asked = json.dumps({**request, "student": str(student)})
        return subprocess.run(command, input=asked, encoding="utf-8", check=False).returncode


def _student(request: Json) -> bytes:
    if request["device"] != "cpu":
        raise UserError("--device: the core runs on cpu alone; leave the option out")
    with bundle.load(f"{request['bundle']}:{request['precision']}", threads=1) as opened:
        return content(opened)


def main(runner: str, request: Json) -> int:
    """The exit code; 2 for a bundle that the core has no place for, and a place that does not take it."""
    try:
        return here(runner, request) if runner in PROGRAMS else elsewhere(Place.named(runner), request)
    except (UserError, CheckFailed) as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.stdin.read())))
