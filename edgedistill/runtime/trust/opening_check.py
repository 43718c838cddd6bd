"""A bundle's tokenizer and graph are checked before their libraries open them, and what tokenizers still
refuses is a CheckFailed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgedistill.errors import CheckFailed, first_line
from edgedistill.runtime.trust import GET_AGAIN, graph_check, tokenizer_check


def check(folder: Path, manifest: dict[str, Any], precision: str) -> None:
    """Raises UserError for a tokenizer, CheckFailed for a graph that may not be opened, or has other
    operators than its manifest lists."""
    largest = max(tokenizer_check.check(folder / "tokenizer.json"), manifest.get("pad_id", 0))
    entry = manifest["precisions"][precision]
    found = graph_check.check(folder / entry["file"], manifest)
    if entry.get("operators", found.operators) != found.operators:
        raise CheckFailed(
            f"{folder / entry['file']}: has other operators than manifest.json lists; {GET_AGAIN}"
        )
    if found.rows is not None and largest >= found.rows:
        raise CheckFailed(
            f"{folder}: token id {largest}, and its graph has embeddings of {found.rows} tokens; {GET_AGAIN}"
        )


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise CheckFailed where tokenizers fails on a bundle's tokenizer.json in the block."""
    try:
        yield
    except BaseException as error:
        # tokenizers raises Exception itself, and a panic of Rust is a BaseException that no module exports
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise CheckFailed(
            f"{folder / 'tokenizer.json'}: tokenizers fails on it ({first_line(error)}); copy the bundle "
            "again"
        ) from error
