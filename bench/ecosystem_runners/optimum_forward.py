"""A bundle in optimum's ORTModel, pooled by the mean: python optimum_forward.py BUNDLE < request.json. See
bench/ecosystems.py."""

import json
import sys
from importlib import metadata
from pathlib import PurePosixPath

import torch
from optimum.onnxruntime import ORTModelForFeatureExtraction
from transformers import AutoTokenizer

folder, request = sys.argv[1], json.load(sys.stdin)
inputs = AutoTokenizer.from_pretrained(folder)(
    request["texts"], padding=True, truncation=True, return_tensors="pt"
)
given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
weights, vectors = given["attention_mask"].unsqueeze(-1).float(), {}
for precision, file in request["files"].items():
    path = PurePosixPath(file)
    model = ORTModelForFeatureExtraction.from_pretrained(
        folder, file_name=path.name, subfolder=str(path.parent)
    )
    pooled = (model(**given).last_hidden_state * weights).sum(1) / weights.sum(1)
    vectors[precision] = torch.nn.functional.normalize(pooled, dim=-1).tolist()
print(json.dumps({"version": metadata.version("optimum-onnx"), "vectors": vectors}))
