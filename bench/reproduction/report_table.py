"""The reports of a paper: one table that ships, PAPER.parquet, and beside it the files that a queue has
written since.

A row of the table is a part of a report: its JSON, or the values of a suite's test items as bytes of float32.
    Equal parts, such as the
gold values of all reports, are stored once. `python bench/reproduction/report_table.py --help` joins files
into their table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from arm_recipe import settings_now
from ranking_claims import FOLDER

from edgedistill import files

JSON = "report"  # the part that is a report itself; the others are suite/task/found and suite/task/gold
ALL_IN_ONE_PAGE = 1 << 28  # bytes: a dictionary that runs full would store equal parts twice

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Report(NamedTuple):
    """A report by its name, such as kd-s0, or kd-s0.older for one of other settings; items: the values of
    each test item by key."""

    name: str
    content: dict[str, Any]
    items: dict[str, np.ndarray]


def read(folder: Path, paper: str) -> Iterator[Report]:
    """All reports of a paper by name; a file stands for the row of the same name."""
    own = {path.stem: path for path in (folder / paper).glob("*.json")}
    stored = _stored(folder / f"{paper}.parquet")
    for name in sorted(own.keys() | stored):
        yield Report(name, *(_of_files(own[name]) if name in own else _of_parts(stored[name])))


def read_one(folder: Path, paper: str, name: str) -> dict[str, Any] | None:
    """The content of one report, None where there is none."""
    path = folder / paper / f"{name}.json"
    if path.exists():
        return content(path.read_bytes())
    stored = _stored(folder / f"{paper}.parquet")
    return content(stored[name][JSON]) if name in stored else None


def content(written: bytes) -> dict[str, Any]:
    """A report, whatever keys recipes had when it was written."""
    found: dict[str, Any] = json.loads(written)
    return found | ({"settings": settings_now(found["settings"])} if "settings" in found else {})


def write(path: Path, report: dict[str, Any], items: dict[str, np.ndarray]) -> None:
    """Write a report beside the table: `path` and, with the values of its items, the .npz of the same
    name."""
    with files.new_file(path.with_suffix(".npz")) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **items)  # type: ignore[arg-type]
    files.write_json(path, report)


def join(folder: Path, paper: str) -> int:
    """Join a paper's files into its table, and delete them. Returns how many reports they were.

    A row of other settings stays as NAME.older, in place of an earlier one of that name.
    """
    path = folder / f"{paper}.parquet"
    own, parts = sorted((folder / paper).glob("*.json")), dict(_stored(path))
    for each in own:
        report, items = _of_files(each)
        before = parts.get(each.stem)
        if before is not None and content(before[JSON]).get("settings") != report.get("settings"):
            parts[f"{each.stem}.older"] = before
        parts[each.stem] = {JSON: each.read_bytes(), **{key: value.tobytes() for key, value in items.items()}}
    rows = [(name, key, value) for name in sorted(parts) for key, value in parts[name].items()]
    names, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
    table = pa.table({"report": names, "part": keys, "bytes": pa.array(values, pa.binary())})
    limits = {"dictionary_pagesize_limit": ALL_IN_ONE_PAGE, "data_page_size": ALL_IN_ONE_PAGE}
    with files.new_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", compression_level=9, **limits)
    _stored.cache_clear()
    for each in own:
        each.with_suffix(".npz").unlink(missing_ok=True)
        each.unlink()
    return len(own)


@cache
def _stored(path: Path) -> dict[str, dict[str, bytes]]:
    """The parts of each report in a table, by name; none where there is no table."""
    found: dict[str, dict[str, bytes]] = {}
    if path.exists():
        columns = pq.read_table(path).to_pydict()
        for name, key, value in zip(columns["report"], columns["part"], columns["bytes"], strict=True):
            found.setdefault(name, {})[key] = value
    return found


def _of_parts(parts: dict[str, bytes]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    items = {key: np.frombuffer(value, np.float32) for key, value in parts.items() if key != JSON}
    return content(parts[JSON]), items


def _of_files(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    items: dict[str, np.ndarray] = {}
    if path.with_suffix(".npz").exists():
        with np.load(path.with_suffix(".npz")) as stored:
            items = {key: stored[key] for key in stored.files}
    return content(path.read_bytes()), items


@app.command(epilog="Example: python bench/reproduction/report_table.py sra")
def main(
    papers: Annotated[list[str], typer.Argument(metavar="PAPER")],
    reports: Annotated[Path, typer.Option("--reports", help="Folder of the reports.")] = FOLDER / "reports",
) -> None:
    """Join the report files of papers into their tables."""
    for paper in papers:
        typer.echo(f"{reports / paper}.parquet: {join(reports, paper)} reports joined")


if __name__ == "__main__":
    app()
