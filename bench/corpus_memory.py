"""Peak memory of building a corpus of 1 and of 10 million short lines, each in its own process.

python bench/corpus_memory.py [--out bench/reports/corpus-memory.json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from edgedistill import files
from edgedistill.session import Session

SIZES = (1_000_000, 10_000_000)


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


def measure(folder: Path) -> None:
    """Build the corpus, read it once, and print {texts, build_s, read_s, peak_rss_bytes} as JSON."""
    from edgedistill import recipe
    from edgedistill.data import corpus

    started = time.perf_counter()
    lines = corpus.build(recipe.Files(texts=["lines.txt"], held_out=5000), Session(data=folder), 0)
    built = time.perf_counter()
    read = sum(len(chunk) for chunk in lines.chunks(8192))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(
        json.dumps(
            {
                "texts": read,
                "build_s": round(built - started, 1),
                "read_s": round(time.perf_counter() - built, 1),
                "peak_rss_bytes": peak,
            }
        )
    )


def main() -> None:
    """Measure each size in a child process; print and write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    options = parser.parse_args()
    if options.child:
        return measure(options.child)
    found = []
    for lines in options.sizes:
        with tempfile.TemporaryDirectory() as name:
            write(Path(name) / "lines.txt", lines)
            environment = {**os.environ, "EDGEDISTILL_CACHE": f"{name}/cache"}
            done = subprocess.run(
                [sys.executable, __file__, "--child", name],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
        found.append({"lines": lines, **json.loads(done.stdout.splitlines()[-1])})
        texts, peak, seconds = (found[-1][key] for key in ("texts", "peak_rss_bytes", "build_s"))
        print(
            f"{lines:>12,} lines: {texts:,} texts, peak {peak / 1e6:.0f} MB, built in {seconds:.0f} s",
            flush=True,
        )
    report = {
        "schema": 1,
        "bench": "corpus-memory",
        "sizes": found,
        "ratio": found[-1]["peak_rss_bytes"] / found[0]["peak_rss_bytes"],
    }
    if options.out:
        files.write_json(options.out, report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
