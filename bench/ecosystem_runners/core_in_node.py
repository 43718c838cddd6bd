"""A bundle in the core, in Node: python core_in_node.py BUNDLE < request.json. See bench/ecosystems.py."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from edgedistill import device, load

EMBED = """
import { readFileSync } from "node:fs";
const { core, student, texts } = JSON.parse(readFileSync(0, "utf8"));
const { Student } = await import(core);
const opened = await Student.open(readFileSync(student));
console.log(JSON.stringify(texts.map((text) => [...opened.embed(text)])));
"""
folder, request = Path(sys.argv[1]), json.load(sys.stdin)
core = (Path(__file__).resolve().parents[2] / "export/core/edgedistill.js").as_uri()
vectors = {}
with tempfile.TemporaryDirectory() as temporary:
    for precision in request["files"]:
        student = Path(temporary) / f"{precision}.bin"
        with load(f"{folder}:{precision}", threads=1) as opened:
            student.write_bytes(device.content(opened))
        asked = json.dumps({"core": core, "student": str(student), "texts": request["texts"]})
        command = ["node", "--input-type=module", "-e", EMBED]
        vectors[precision] = json.loads(subprocess.check_output(command, input=asked, text=True))
print(json.dumps({"version": "edgedistill.wasm", "vectors": vectors}))
