"""Write what a release consists of into dist/, install each part into an empty place, and embed the golden
texts there.

python bench/release.py [--dist dist]

In dist/ lie the wheel, the source archive and the bill of materials, which `make wheel` writes. Added are
the npm package of the core with nano inside, the core's folder as a zip, the SQLite extension for this
machine, and SHA256SUMS. Needs a C compiler, Node with npm, and a package index for the wheel's dependencies.
What each dependency takes in the environment of the wheel is printed last.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import device, files

STUDENT = "nano"
SIZES = """
import json
from importlib import metadata
sizes = {}
for each in metadata.distributions():
    paths = [path.locate() for path in each.files or () if ".." not in str(path)]
    sizes[each.metadata["Name"]] = sum(path.stat().st_size for path in paths if path.exists())
print(json.dumps(sizes))
"""
EMBED = """
import json, sqlite3, sys
database = sqlite3.connect(":memory:")
database.enable_load_extension(True)
database.load_extension(sys.argv[1])
database.execute("select embed_open(?)", (sys.argv[2],))
texts = json.load(sys.stdin)
print(json.dumps([database.execute("select hex(embed(?))", (text,)).fetchone()[0] for text in texts]))
"""


def run(*command: object, given: str | None = None, folder: Path | None = None) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    arguments: dict[str, Any] = {"input": given, "capture_output": True, "text": True, "env": clean}
    done = subprocess.run([*map(str, command)], check=False, cwd=folder, **arguments)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def write_parts(dist: Path, work: Path, version: str) -> dict[str, Path]:
    """{kind: file} of the parts that are added to dist/."""
    core = work / "core"
    device.write(STUDENT, core)
    packed = json.loads(run("npm", "pack", "--json", "--pack-destination", dist, folder=core))[0]["filename"]
    npm = (dist / packed).rename(dist / f"edgedistill-npm-{version}.tgz")
    archive = shutil.make_archive(str(dist / f"edgedistill-core-{version}"), "zip", core)
    system = f"{platform.system()}-{platform.machine()}".lower()
    extension = work / "sqlite" / "edgedistill.so"  # SQLite finds its entry by this name
    extension.parent.mkdir()
    sources = (core / "sqlite" / "edgedistill_sqlite.c", core / "edgedistill.c")
    run("cc", "-O2", "-shared", "-fPIC", f"-I{core}", *sources, "-o", extension, "-lm")
    packed = shutil.make_archive(
        str(dist / f"edgedistill-sqlite-{version}-{system}"), "zip", extension.parent
    )
    return {"npm": npm, "core": Path(archive), "sqlite": Path(packed)}


def check_python(package: Path, work: Path) -> str:
    """Install a wheel or a source archive into an empty environment, verify what ships there, and return what
    its distributions take, {name: bytes} as JSON."""
    folder = work / package.name
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", package)
    for student in files.shipped("bundle"):
        told = run(folder / "bin" / "edgedistill", "verify", student, folder=work)
        if str(folder) not in told:
            sys.exit(f"{package}: another edgedistill than the installed one answered: {told}")
        print(package.name, told, sep=": ", end="")
    return run(python, "-c", SIZES)


def check_npm(package: Path, work: Path) -> None:
    folder = work / "npm"
    folder.mkdir()
    files.write_json(folder / "package.json", {"private": True})
    run("npm", "install", "--no-audit", "--no-fund", package, folder=folder)
    installed = folder / "node_modules" / "edgedistill"
    print(package.name, run("node", installed / "cli.js", installed, "--check"), sep=": ", end="")


def check_core(package: Path, work: Path) -> Path:
    """Compile the program of the zip, which compares golden texts, and run it; returns its folder."""
    folder = work / "zip"
    shutil.unpack_archive(package, folder)
    run("cc", "-O2", folder / "bench.c", folder / "edgedistill.c", "-o", folder / "bench", "-lm")
    found = json.loads(run(folder / "bench", folder / device.FILE, "0.01"))["golden"]
    print(f"{package.name}: worst {found['worst']}, at least {found['least']}")
    return folder


def check_sqlite(package: Path, work: Path, student: Path) -> None:
    shutil.unpack_archive(package, work / "extension")
    extension = work / "extension" / "edgedistill.so"
    golden = files.read_json(files.find("bundle", STUDENT).parent / "parity.json")
    found = run(
        shutil.which("python3", path="/usr/bin") or sys.executable,
        "-c",
        EMBED,
        extension,
        student,
        given=json.dumps(golden["texts"]),
    )
    rows = np.frombuffer(bytes.fromhex("".join(json.loads(found))), "<f4").reshape(len(golden["texts"]), -1)
    worst, least = (rows * golden["vectors"]).sum(1).min(), golden["cosine_at_least"]["int8"]
    print(f"{package.name}: worst {worst:.5f}, at least {least}")
    if worst < least:
        sys.exit(f"{extension}: a golden text came back at cosine {worst:.5f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dist", type=Path, default=Path("dist"))
    dist = parser.parse_args().dist.resolve()
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        parts = write_parts(dist, work, wheel.name.split("-")[1])
        check_npm(parts["npm"], work)
        folder = check_core(parts["core"], work)
        check_sqlite(parts["sqlite"], work, folder / device.FILE)
        check_python(source, work)
        sizes = json.loads(check_python(wheel, work))
    names = sorted(path for path in dist.iterdir() if path.name != "SHA256SUMS")
    sums = "".join(f"{files.sha256_file(path)}  {path.name}\n" for path in names)
    files.write_text(dist / "SHA256SUMS", sums)
    for path in names:
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path.name}")
    for name, size in sorted(sizes.items(), key=lambda each: -each[1]):
        print(f"{size / 1e6:8.1f} MB  {name}")
    print(f"{sum(sizes.values()) / 1e6:8.1f} MB in all")


if __name__ == "__main__":
    main()
