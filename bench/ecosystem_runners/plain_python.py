"""A bundle in export/python/embed.py: python plain_python.py BUNDLE < request.json. See
bench/ecosystems.py."""

import json
import runpy
import sys
from pathlib import Path

import onnxruntime

runner = runpy.run_path(str(Path(__file__).resolve().parents[2] / "export" / "python" / "embed.py"))
folder, request = Path(sys.argv[1]), json.load(sys.stdin)
vectors = {}
for precision in request["files"]:
    embed = runner["Bundle"](folder, precision)
    vectors[precision] = [embed(text).tolist() for text in request["texts"]]
print(json.dumps({"version": f"onnxruntime {onnxruntime.__version__}", "vectors": vectors}))
