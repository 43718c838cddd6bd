"""One peer, made and opened in its own environment, which needs numpy alone.

python harness.py make|serve LIBRARY VARIANT TASK

LIBRARY is a file of libraries/, which has make_VARIANT(task), where there is something to make, and
open_VARIANT(task) -> Opened. TASK is JSON, the fields of `Task`. `serve` prints a line of JSON about the
opened peer, then answers requests, one line of JSON each:

{"do": "encode", "texts": FILE, "role": "text", "alone": false, "out": FILE}   (n, d), as .npy
{"do": "time", "texts": FILE, "seconds": 1.0}    p50 of single texts, texts/s of one call, peak memory
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
VERSIONS = ("torch", "transformers", "onnxruntime", "openvino", "optimum-onnx", "optimum-intel", "numpy")
FEWEST = 8  # single texts of a timing, however slow they are


class Task(NamedTuple):
    """What a peer is made from: the same for all."""

    folder: Path  # of this peer, to write to
    teacher: Path  # a sentence-transformers folder
    bundle: Path  # the teacher's, as `edgedistill export` wrote it
    texts: Path  # general texts, one a line
    documents: Path  # a collection to learn, one document a line
    minutes: float  # of a processor, for whatever trains
    threads: int

    @classmethod
    def parse(cls, text: str) -> Task:
        given = json.loads(text)
        paths = ("folder", "teacher", "bundle", "texts", "documents")
        return cls(**{key: Path(value) if key in paths else value for key, value in given.items()})


Encode = Callable[[list[str]], Any]


@dataclass(frozen=True)
class Opened:
    """A peer that embeds: texts -> (n, d), of any length; queries and documents where it embeds them
    otherwise."""

    library: str  # its distribution, whose version the report names
    encode: Encode
    files: list[Path]  # that hold the weights
    parameters: int | None = None
    query: Encode | None = None
    document: Encode | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # what else the report should have

    def about(self) -> dict[str, Any]:
        """What the report says of the opened peer."""
        return {
            "version": f"{self.library} {metadata.version(self.library)}",
            "versions": dict(_versions()),
            "size_bytes": sum(path.stat().st_size for path in self.files),
            "parameters": self.parameters,
            **self.facts,
        }


def _versions() -> list[tuple[str, str]]:
    found = []
    for name in VERSIONS:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return found


def lines(path: Path) -> list[str]:
    """The texts of a file, one a line."""
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def processor_seconds() -> float:
    """Processor time of this process and of the children that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def texts_for(seconds: float, texts: list[str], train: Callable[[list[str]], Any], trial: int) -> list[str]:
    """As many texts, from the first on, as `train` should take these processor seconds for, judged by a trial
    on `trial` of them; at most all."""
    started = processor_seconds()
    train(texts[:trial])
    spent = processor_seconds() - started
    return texts[: max(trial, int(trial * (seconds - spent) / spent))]


def encode(opened: Opened, request: dict[str, Any]) -> dict[str, Any]:
    """Embed the texts of a request, and write them as .npy."""
    texts = json.loads(Path(request["texts"]).read_text(encoding="utf-8"))
    role = {"query": opened.query, "document": opened.document}.get(request["role"]) or opened.encode
    if request.get("alone"):
        rows = np.concatenate([np.asarray(role([text])).reshape(1, -1) for text in texts])
    else:
        rows = np.asarray(role(texts))
    np.save(request["out"], np.asarray(rows, np.float32))
    return {"dims": int(rows.shape[1])}


def timed(opened: Opened, request: dict[str, Any]) -> dict[str, Any]:
    """Time single texts one by one, then all texts in one call, for `seconds` each."""
    texts, seconds = json.loads(Path(request["texts"]).read_text(encoding="utf-8")), request["seconds"]
    single = opened.query or opened.encode
    opened.encode(texts[:8])
    spent_ms, began = list[float](), time.perf_counter()
    while len(spent_ms) < FEWEST or time.perf_counter() - began < seconds:
        start = time.perf_counter_ns()
        single([texts[len(spent_ms) % len(texts)]])
        spent_ms.append((time.perf_counter_ns() - start) / 1e6)
    done, began = 0, time.perf_counter()
    while not done or time.perf_counter() - began < seconds:
        opened.encode(texts)
        done += len(texts)
    rate = done / (time.perf_counter() - began)
    return {
        "p50_ms": float(np.median(spent_ms)),
        "singles": len(spent_ms),
        "texts_s": rate,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def peak_rss_bytes() -> int:
    """Peak resident memory of this process. Not ru_maxrss on Linux, which starts at the parent's."""
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def serve(opened: Opened, answer: Any) -> None:
    """Answer the requests on stdin until it closes."""
    print(json.dumps(opened.about()), file=answer, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        found = encode(opened, request) if request["do"] == "encode" else timed(opened, request)
        print(json.dumps(found), file=answer, flush=True)


def main() -> None:
    what, library, variant, given = sys.argv[1:]
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    sys.modules["harness"] = sys.modules["__main__"]
    sys.path.insert(0, str(HERE / "libraries"))
    module, task = importlib.import_module(library), Task.parse(given)
    if what == "make":
        make, began = getattr(module, f"make_{variant}", None), processor_seconds()
        facts = {} if make is None else make(task) or {}
        made = {"processor_minutes": (processor_seconds() - began) / 60, **facts}
        print(json.dumps(made), file=answer, flush=True)
    else:
        serve(getattr(module, f"open_{variant}")(task), answer)


if __name__ == "__main__":
    main()
