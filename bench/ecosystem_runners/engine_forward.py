"""A bundle's graphs in engines that read ONNX: python engine_forward.py BUNDLE ENGINE < request.json. See
bench/ecosystems.py.

The token ids are those of parity.json. Texts are run one by one; the rate is that of the graph alone.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

OUTPUT = "sentence_embedding"


def reference(path):
    import onnx
    from onnx.reference import ReferenceEvaluator

    engine = ReferenceEvaluator(str(path))
    return lambda inputs: engine.run([OUTPUT], inputs)[0], onnx.__version__


def openvino(path):
    import openvino

    exact = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    engine = openvino.compile_model(path, "CPU", exact)
    return lambda inputs: engine(inputs)[OUTPUT], openvino.__version__.split("-")[0]


def tract(path):
    import tract

    graph = tract.onnx().load(str(path))
    at = [graph.output_name(number) for number in range(graph.output_count())].index(OUTPUT)
    engine = graph.into_model().into_runnable()
    return lambda inputs: engine.run(list(inputs.values()))[at].to_numpy(), tract.version()


def onnxruntime(path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    engine = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: engine.run([OUTPUT], inputs)[0], onnxruntime.__version__


ENGINES = {"reference": reference, "openvino": openvino, "tract": tract, "onnxruntime": onnxruntime}


def main():
    folder, request = Path(sys.argv[1]), json.load(sys.stdin)
    golden = json.loads((folder / "parity.json").read_text(encoding="utf-8"))
    ids_of = dict(zip(golden["texts"], golden["ids"], strict=True))
    vectors, rates = {}, {}
    for precision, name in request["files"].items():
        run, version = ENGINES[sys.argv[2]](folder / name)
        rows = [np.array([ids_of[text]], np.int64) for text in request["texts"]]
        tokens = json.loads((folder / "manifest.json").read_text()).get("shape", [1, 0])[1]
        pads = [((0, 0), (0, max(tokens - row.shape[1], 0))) for row in rows]
        feeds = [
            {"input_ids": np.pad(row, pad), "attention_mask": np.pad(np.ones_like(row), pad)}
            for row, pad in zip(rows, pads, strict=True)
        ]
        vectors[precision] = [np.asarray(run(feed))[0].tolist() for feed in feeds]
        started = time.perf_counter()
        for feed in feeds:
            run(feed)
        rates[precision] = len(feeds) / (time.perf_counter() - started)
    print(json.dumps({"version": version, "vectors": vectors, "rate_texts_s": rates}))


main()
