"""A bundle in edgedistill's own runner: python edgedistill_encode.py BUNDLE < request.json. See
bench/ecosystems.py."""

import json
import sys

import edgedistill

request = json.load(sys.stdin)
vectors = {
    name: edgedistill.load(sys.argv[1], precision=name).encode(request["texts"]).tolist()
    for name in request["files"]
}
print(json.dumps({"version": edgedistill.__version__, "vectors": vectors}))
