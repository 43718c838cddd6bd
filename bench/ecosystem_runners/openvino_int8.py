"""qdq in OpenVINO beside OpenVINO's own int8 of the same graph, by NNCF, in one run of one thread.

python openvino_int8.py BUNDLE < texts.txt    where openvino, nncf and tokenizers are installed; prints JSON

BUNDLE has fp32 and qdq. NNCF is calibrated on the first 200 texts as its documentation shows, for a
transformer; the rest is timed, in rounds that alternate, one text at a time, at fixed shapes (128 tokens,
padded) and at each text's own length. `ratio` is the time of qdq over that of NNCF's int8, below 1 where qdq
is faster: the median of the rounds'.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import nncf
import numpy as np
import openvino
from tokenizers import Tokenizer

CALIBRATION, TIMED, ROUNDS, TOKENS = 200, 64, 7, 128
EXACT = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}


def columns(ids, tokens=None):
    width = tokens or len(ids)
    row = np.zeros((2, 1, width), np.int64)
    row[0, 0, : len(ids)], row[1, 0, : len(ids)] = ids, 1
    return dict(zip(("input_ids", "attention_mask"), row, strict=True))


def opened(core, model, tokens):
    if tokens:
        model.reshape({name: [1, tokens] for name in ("input_ids", "attention_mask")})
    engine = core.compile_model(model, "CPU", EXACT)
    return lambda feeds: np.stack([engine(feed)["sentence_embedding"][0] for feed in feeds])


def main():
    folder, texts = Path(sys.argv[1]), [line.strip() for line in sys.stdin if line.strip()]
    tokenizer, core = Tokenizer.from_file(str(folder / "tokenizer.json")), openvino.Core()
    tokenizer.enable_truncation(TOKENS)
    ids = [each.ids for each in tokenizer.encode_batch(texts)]
    files = {name: folder / "onnx" / f"model{end}.onnx" for name, end in (("fp32", ""), ("qdq", "_qdq"))}
    report = {"openvino": openvino.__version__, "nncf": nncf.__version__, "shapes": {}}
    for name, tokens in (("1x128", TOKENS), ("own length", None)):
        model = core.read_model(files["fp32"])
        calibration = nncf.Dataset([columns(row, tokens) for row in ids[:CALIBRATION]])
        quantized = nncf.quantize(
            model,
            calibration,
            subset_size=CALIBRATION,
            model_type=nncf.ModelType.TRANSFORMER,
        )
        models = {
            "fp32": core.read_model(files["fp32"]),
            "qdq": core.read_model(files["qdq"]),
            "nncf": quantized,
        }
        engines = {each: opened(core, model, tokens) for each, model in models.items()}
        feeds = [columns(row, tokens) for row in ids[CALIBRATION : CALIBRATION + TIMED]]
        rows = {each: engine(feeds) for each, engine in engines.items()}
        seconds = {each: [] for each in engines}
        for _ in range(ROUNDS):
            for each, engine in engines.items():
                started = time.perf_counter()
                engine(feeds)
                seconds[each].append(time.perf_counter() - started)
        ratios = [mine / other for mine, other in zip(seconds["qdq"], seconds["nncf"], strict=True)]
        worst = {each: float((rows[each] * rows["fp32"]).sum(1).min()) for each in ("qdq", "nncf")}
        mean = {each: float((rows[each] * rows["fp32"]).sum(1).mean()) for each in ("qdq", "nncf")}
        report["shapes"][name] = {
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "ms": {each: 1_000 * statistics.median(spent) / TIMED for each, spent in seconds.items()},
            "cosine_min": worst,
            "cosine_mean": mean,
        }
    print(json.dumps(report))


main()
