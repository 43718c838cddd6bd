"""How the stages ahead of training grow with the corpus: processor seconds and peak memory of each, and bytes
a text on disk.

python bench/scale.py --lines 1000000,10000000 [--dims 384] [--folder DIR] [--out bench/reports/scale.json]

Every stage runs in a process of its own, over synthetic lines. Seconds are those of the processor, user and
system: what else runs on the machine disturbs these least. Of the memory, that of mapped files, which the
system takes back when it needs it, is told apart: `peak_anonymous_bytes` is the rest. In place of a teacher
stand pseudo-random vectors of `--dims` dimensions, so `embed` is what the cache itself costs: a teacher's
time is added by its texts/s, see `teacher_speed.py`. Tokens are made in shards, as by `cache --only`, and
joined. Sizes that were measured before stay in the report.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill import files, machine, recipe
from edgedistill.data import corpus, token_cache
from edgedistill.data.corpus import Corpus
from edgedistill.session import Session

DIMS = int(os.environ.get("SCALE_DIMS", "384"))  # of the stages' processes
REPORT = Path(__file__).parent / "reports" / "scale.json"
STEPS, BATCH, WINDOW = 200, 256, 16
STAGES = ("read", "tokenize", "join", "embed", "open", "batches")
SAMPLE_SECONDS = 0.02  # between two looks at the memory


class Vectors:
    """What stands in for a teacher: unit vectors (n, DIMS), other ones for every text of a window."""

    dims = DIMS

    def __init__(self) -> None:
        rows = np.random.default_rng(0).standard_normal((1_024, DIMS)).astype(np.float32)
        self.rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def in_role(self, role: str) -> Vectors:
        return self

    def identity(self) -> dict[str, Any]:
        return {"vectors": "pseudo-random"}

    def prepare(self, session: Session) -> None:
        """Nothing."""

    def embed(self, texts: list[str], device: str, unit: bool) -> np.ndarray:
        return self.rows[: len(texts)]


def write(path: Path, lines: int) -> None:
    """Write short lines; every tenth repeats an earlier one, the others are distinct."""
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, lines, 100_000):
            numbers = (n if n % 10 else n // 7 for n in range(start, min(start + 100_000, lines)))
            file.write(
                "".join(
                    f"a short line of plain text about item {n * 2654435761 % 4294967296:x} of the list\n"
                    for n in numbers
                )
            )


def opened(folder: Path) -> tuple[Corpus, Session]:
    """The corpus, built where it is not cached."""
    session = Session(data=folder, cache_folder=folder / "cache")
    return corpus.build(recipe.Rows(files=["lines.txt"], held_out=5_000), session, 0), session


def tokens(texts: Corpus, session: Session) -> token_cache.TokenPass:
    """The pass of all-MiniLM-L6-v2's tokenizer."""
    from tokenizers import Tokenizer

    from edgedistill import resolve

    found = resolve.model_files(resolve.resolve("packaged:all-MiniLM-L6-v2"), None, "teacher")
    tokenizer = Tokenizer.from_file(str(found / "tokenizer.json"))
    return token_cache.TokenPass(texts, tokenizer, 128, 0, session)


def tokenize(texts: Corpus, session: Session) -> None:
    """Every shard of tokens, as two jobs of `cache --only` make them."""
    for number in range(2):
        tokens(texts, session).run((number, 2))


def embeddings(texts: Corpus, session: Session) -> Any:
    from edgedistill.teacher.embedding_cache import TeacherPass

    return TeacherPass(Vectors(), texts, session).open()


def batches(texts: Corpus, session: Session) -> None:
    """The tokens and targets of the batches of 200 steps."""
    from edgedistill.training.inputs.batch_order import BatchOrder

    ids, targets = tokens(texts, session).open(), embeddings(texts, session)
    stage = recipe.Stage.model_validate(
        {"name": "x", "objective": {"kind": "cosine"}, "steps": STEPS, "batch": BATCH, "bucket": WINDOW}
    )
    order = BatchOrder(stage, ids, np.arange(texts.training_count), 0)
    for step in range(STEPS):
        rows, _ = order.at(step)
        ids.batch(rows, 128), targets[rows]


# `open` is what a training does first: the hashes of all files are compared.
WORK: dict[str, Callable[[Corpus, Session], Any]] = {
    "read": lambda texts, session: None,
    "tokenize": tokenize,
    "join": lambda texts, session: tokens(texts, session).open(),
    "embed": embeddings,
    "open": lambda texts, session: (tokens(texts, session).open(), embeddings(texts, session)),
    "batches": batches,
}


def run_stage(stage: str, folder: Path) -> None:
    """Run a stage in this process, and print {seconds, wall_seconds, peak_rss_bytes, peak_anonymous_bytes,
    texts}."""
    if stage == "batches":
        import edgedistill.training.inputs.batch_order  # noqa: F401 - its import is not counted
    anonymous = [0]
    threading.Thread(target=watch, args=(anonymous,), daemon=True).start()
    started, before = time.perf_counter(), time.process_time()
    texts, session = opened(folder)
    WORK[stage](texts, session)
    peak = machine.peak_rss_bytes()
    seconds = {"seconds": time.process_time() - before, "wall_seconds": time.perf_counter() - started}
    found = {name: round(value, 2) for name, value in seconds.items()}
    print(
        json.dumps(
            {**found, "peak_rss_bytes": peak, "peak_anonymous_bytes": max(anonymous), "texts": len(texts)}
        )
    )


def watch(found: list[int]) -> None:
    """Add this process' anonymous memory to a list, in bytes, again and again, where that is larger."""
    while True:
        lines = Path("/proc/self/status").read_text().splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
        found[0] = max(found[0], 1024 * kilobytes)
        time.sleep(SAMPLE_SECONDS)


def _lines(found: dict[str, Any]) -> int:
    return int(found["lines"])


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(lines: int, folder: Path, dims: int) -> dict[str, Any]:
    """Every stage in a process of its own, and the bytes a text of what they leave."""
    write(folder / "lines.txt", lines)
    environment, stages, texts = (
        {**os.environ, "OMP_NUM_THREADS": "1", "SCALE_DIMS": str(dims)},
        dict[str, Any](),
        0,
    )
    for stage in STAGES:
        command = [sys.executable, __file__, "--folder", str(folder), "--stage", stage]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        found = json.loads(done.stdout.splitlines()[-1])
        texts, stages[stage] = found.pop("texts"), found
        print(f"{lines:,} lines: {stage} {found}", file=sys.stderr, flush=True)
    cache = folder / "cache"
    sizes = {name: size(cache / name) for name in ("corpora", "tokens", "teachers")}
    sizes["lines"] = (folder / "lines.txt").stat().st_size
    per_text = {name: round(each / texts, 1) for name, each in sizes.items()}
    return {"lines": lines, "texts": texts, "dims": dims, "stages": stages, "bytes_per_text": per_text}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", default="1000000")
    parser.add_argument("--dims", type=int, default=384, help="of the embeddings")
    parser.add_argument("--folder", type=Path, help="for what is measured, deleted then; default: a new one")
    parser.add_argument("--out", type=Path, default=REPORT)
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stage is not None:
        run_stage(given.stage, given.folder)
        return
    before = files.read_json(given.out)["sizes"] if given.out.exists() else []
    for lines in map(int, given.lines.split(",")):
        folder = Path(tempfile.mkdtemp(prefix="scale-", dir=given.folder))
        try:
            found = measure(lines, folder, given.dims)
        finally:
            shutil.rmtree(folder)
        before = sorted(
            [*(each for each in before if _lines(each) != lines), found], key=lambda e: e["lines"]
        )
        made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        report = {"schema": 1, "bench": "scale", "sizes": before, "threads": 1}
        files.write_json(given.out, {**report, "machine": machine.here(), "made_at": made_at})


if __name__ == "__main__":
    main()
