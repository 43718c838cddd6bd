"""A bundle in sentence-transformers: python sentence_transformers_encode.py BUNDLE < request.json. See
bench/ecosystems.py."""

import json
import sys
from pathlib import Path

import sentence_transformers

folder, request = sys.argv[1], json.load(sys.stdin)
static = "StaticEmbedding" in (Path(folder) / "modules.json").read_text(encoding="utf-8")
vectors = {}
for precision, file in request["files"].items():
    options = {} if static else {"backend": "onnx", "model_kwargs": {"file_name": file}}
    model = sentence_transformers.SentenceTransformer(folder, **options)
    vectors[precision] = model.encode(request["texts"]).tolist()
print(json.dumps({"version": sentence_transformers.__version__, "vectors": vectors}))
