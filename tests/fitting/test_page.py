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


def candidate(name: str, score: float | None, p50_ms: float, problem: str = "") -> dict[str, Any]:
    measures = {} if score is None else {"agreement": score, "similarity": score, "score": score}
    found = {"name": name, "precision": "w8", "size_mb": 4.0, "p50_ms": p50_ms, "steps": 10, "seconds": 3.0}
    return {**found, "measures": measures, "problem": problem}


def drawn_page(folder: Path, candidates: list[dict[str, Any]]) -> str:
    """The page as a browser has drawn it; no script failed."""
    found = {
        "budget": {"max_mb": 5, "max_p50_ms": 1.5},
        "texts": ["20 texts", "short <b>texts</b>"],
        "teacher": {},
        "verdict": "",
        "candidates": candidates,
        "not_trained": [{"name": "large", "why": "over the budget"}],
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
    text = drawn_page(tmp_path, [candidate("best", 0.8, 0.5)])
    assert '<section id="plot" hidden="">' in text and 'data-v="best"' in text


@chromium
def test_a_browser_draws_the_page(tmp_path: Path) -> None:
    rows = [candidate("best", 0.8, 0.5), candidate("second", 0.7, 0.9), candidate("third", None, 0.7, "wide")]
    text = drawn_page(tmp_path, rows)
    assert "3 candidates so far</h1>" in text and "short &lt;b&gt;texts" in text
    names = re.findall(r'<th scope="row" data-v="(\w+)">', text)
    assert names == ["best", "second", "third"] and "over the budget" in text and "wide" in text
    assert text.count("data-tip") == 2  # those with a score
    assert "the budget</text>" in text and "NaN" not in text
