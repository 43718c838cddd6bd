"""Texts per second of training on unsorted batches: padded to their longest text, and embedded in parts of
like length.

Teacher embeddings are precomputed; the two alternate, and each round gives a ratio.
python bench/unsorted_speed.py [--recipe congen-2x128-seed] [--set K=V] [--data DIR] [--rounds 3] [--out
REPORT]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy as np
from train_speed import our_speed

from edgedistill import files, machine, recipe, run
from edgedistill.training import trained_module

STEPS, EVERY = 60, 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="congen-2x128-seed")
    parser.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="K=V",
        help="change the recipe; repeatable",
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("EDGEDISTILL_DATA"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    changes = [
        f"stages.0.steps={STEPS}",
        "stages.0.bucket=1",
        f"select={{suite: mini, every: {EVERY}}}",
        *arguments.changes,
    ]
    spec = recipe.read(arguments.recipe, changes)
    tried, rates = trained_module.CUTS, dict[str, list[float]](whole=[], parts=[])
    for number in range(arguments.rounds + 1):  # the first one embeds with the teacher and is not counted
        for name, cuts in (("whole", 1), ("parts", tried)):
            trained_module.CUTS = cuts
            with tempfile.TemporaryDirectory() as folder:
                rate = our_speed(spec, arguments.data, Path(folder) / "run")
            if number:
                rates[name].append(rate)
        if number:
            print(
                f"round {number}: "
                + ", ".join(f"{name} {each[-1]:,.0f} texts/s" for name, each in rates.items()),
                flush=True,
            )
    report = {
        "schema": 1,
        "bench": "unsorted-speed",
        "recipe": arguments.recipe,
        "changes": arguments.changes,
        "batch": spec.stages[0].batch,
        "texts_s": {name: float(np.median(each)) for name, each in rates.items()},
        "rounds": rates,
        "ratio": float(np.median(np.array(rates["parts"]) / np.array(rates["whole"]))),
        "machine": machine.here(),
        **run.provenance(),
    }
    if arguments.out:
        files.write_json(arguments.out, report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
