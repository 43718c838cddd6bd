"""How near to this processor's limits bundles run, as `edgedistill bench` measures it, and its peak in bf16.

python bench/roofline.py [BUNDLE[:PRECISION] …] [--threads 1] [--out bench/reports/roofline.json]

`_products` of edgedistill/evaluation/speed_child.py says what is measured. bf16 is torch's, where it is
installed: onnxruntime has no such product on a CPU, and no bundle computes in it. About ten seconds a bundle,
on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from edgedistill import files, machine, run
from edgedistill.evaluation import speed, speed_child
from edgedistill.evaluation.bench import targets

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "bench" / "reports" / "roofline.json"
BUNDLES = ("nano", "micro", "multi")
SECONDS = 2.0  # of what is measured of each bundle, see speed_child
TEXTS = ["A text of a few words, again and again until it is long enough."]


def bf16_peak(threads: int) -> float | None:
    """Multiply-adds per second of torch's fastest product in bf16; None without torch."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    torch.set_num_threads(threads)
    count, width = speed_child.ROWS, speed_child.WIDTH
    rows, weights = (torch.ones(each, width, dtype=torch.bfloat16) for each in (count, width))
    return count * width**2 / speed_child.fastest(lambda: rows @ weights, SECONDS / 2)[0]


def measured(target: speed.Target, threads: int) -> dict[str, Any]:
    """What `bench` measures of a graph's products, in a process of its own."""
    return speed.ask(
        speed.PYTHON,
        {
            "what": "products",
            "bundle": str(target.folder.resolve()),
            "precision": target.precision,
            "threads": threads,
            "device": "cpu",
            "texts": TEXTS,
            "seconds": SECONDS,
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", nargs="*", default=BUNDLES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=REPORT)
    arguments = parser.parse_args()
    peaks, rows = list[dict[str, float]](), list[dict[str, Any]]()
    for target in [each for name in arguments.bundles for each in targets(name)]:
        found = measured(target, arguments.threads)
        peaks.append(found["peak_multiply_adds_s"])
        for title, batch in found["batches"].items():
            rows.append({"bundle": target.title, "batch": title, **batch})
            print(json.dumps(rows[-1]), flush=True)
    peak = {dtype: max(each[dtype] for each in peaks) for dtype in peaks[0]}
    report = {
        "schema": 1,
        "bench": "roofline",
        "threads": arguments.threads,
        "peak_multiply_adds_s": {**peak, "bf16": bf16_peak(arguments.threads)},
        "energy": "not readable" if machine.joules() is None else "read",
        "rows": rows,
        "machine": machine.here(),
        **run.provenance(),
        "onnxruntime": machine.versions()["onnxruntime"],
    }
    files.write_json(arguments.out, report)


if __name__ == "__main__":
    main()
