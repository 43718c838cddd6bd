"""The page of a fit, drawn by a browser from its template and the scripts it shares with the report."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import edgedistill
from edgedistill.evaluation import page

chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium on the path")
TEMPLATE = Path(edgedistill.__file__).parent / "fitting" / "fit.html"


def candidate(name: str, score: float | None, p50_ms: float, fate: str, on_front: bool) -> dict[str, Any]:
    details = {} if score is None else {"neighbours": score, "cosines": score}
    found = {"name": name, "precision": "w8", "size_mb": 4.0, "p50_ms": p50_ms, "rung": 1, "step": 10}
    return {**found, "steps": 1800, "score": score, "details": details, "fate": fate, "on_front": on_front}


def drawn_page(folder: Path, candidates: list[dict[str, Any]]) -> str:
    """The page as a browser has drawn it; no script failed."""
    found = {
        "budget": {"max_mb": 5, "max_p50_ms": 1.5},
        "texts": {"facts": ["20 texts"], "weak": ["short <b>texts</b>"]},
        "candidates": candidates,
        "not_raced": [{"name": "large", "why": "over the budget"}],
        "winner": None,
        "recipe": "",
    }
    (folder / "fit.html").write_text(page.filled(TEMPLATE, found), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command = ["chromium", *options, f"--user-data-dir={folder / 'profile'}", str(folder / "fit.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    return done.stdout.split("<script")[0]


@chromium
def test_one_candidate_has_no_plot(tmp_path: Path) -> None:
    text = drawn_page(tmp_path, [candidate("best", 0.8, 0.5, "trained to the end", True)])
    assert '<section id="plot" hidden="">' in text and 'data-v="best"' in text


@chromium
def test_a_browser_draws_the_page(tmp_path: Path) -> None:
    raced = [
        candidate("best", 0.8, 0.5, "trained to the end", True),
        candidate("second", 0.7, 0.9, "fell at rung 1", False),
        candidate("third", None, 0.7, "in the race", False),
    ]
    text = drawn_page(tmp_path, raced)
    assert "1 of 3 candidates in the race</h1>" in text and "Weak: short &lt;b&gt;texts" in text
    names = re.findall(r'<th scope="row" data-v="(\w+)">', text)
    assert names == ["best", "second", "third"] and "over the budget" in text
    assert text.count("data-tip") == 2  # those with a score
    labels = [re.sub(r"<.*?>", "", each) for each in re.findall(r'<text class="label".*?</text>', text)]
    assert labels == ["best w8"] and "the budget</text>" in text and "NaN" not in text
