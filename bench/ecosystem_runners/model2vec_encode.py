"""A static student in model2vec: python model2vec_encode.py BUNDLE < request.json. See
bench/ecosystems.py."""

import json
import sys
from importlib import metadata

from model2vec import StaticModel

request = json.load(sys.stdin)
vectors = StaticModel.from_pretrained(sys.argv[1]).encode(request["texts"]).tolist()
print(
    json.dumps(
        {"version": metadata.version("model2vec"), "vectors": dict.fromkeys(request["files"], vectors)}
    )
)
