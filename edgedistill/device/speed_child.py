"""The measuring process of the core in Node (`node`) and in a browser (`web`): read a request as JSON on
stdin, write its bundle as a student's file, and hand both to the program in export/, which answers."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from edgedistill import files
from edgedistill.device.student_file import FILE, content
from edgedistill.errors import CheckFailed, UserError
from edgedistill.runtime import bundle

PROGRAMS = {"node": ("core/cli.js", "--bench"), "web": ("web/bench.mjs",)}  # in export/


def main(runner: str, request: dict[str, Any]) -> int:
    """The program's exit code; 2 for a bundle that the core has no place for."""
    path, *options = PROGRAMS[runner]
    command = ["node", str(files.shipped_folder("runner") / path), *options]
    with tempfile.TemporaryDirectory() as folder:
        student = Path(folder) / FILE
        try:
            with bundle.load(f"{request['bundle']}:{request['precision']}", threads=1) as opened:
                student.write_bytes(content(opened))
        except (UserError, CheckFailed) as error:
            sys.stderr.write(f"{error}\n")
            return 2
        asked = json.dumps({**request, "student": str(student)})
        return subprocess.run(command, input=asked, encoding="utf-8", check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.stdin.read())))
