"""A bundle as a custom model of fastembed: python fastembed_embed.py BUNDLE < request.json. See
bench/ecosystems.py."""

import json
import sys
from importlib import metadata
from pathlib import Path

from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

folder, request = sys.argv[1], json.load(sys.stdin)
dims = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))["dims"][0]
source, vectors = ModelSource(url="file://"), {}
for precision, file in request["files"].items():
    # the graph's first output is the embedding itself: pooled, behind its head, of unit length
    TextEmbedding.add_custom_model(
        precision,
        pooling=PoolingType.DISABLED,
        normalization=False,
        sources=source,
        dim=dims,
        model_file=file,
    )
    model = TextEmbedding(precision, specific_model_path=folder)
    vectors[precision] = [vector.tolist() for vector in model.embed(request["texts"])]
print(json.dumps({"version": metadata.version("fastembed"), "vectors": vectors}))
