"""The bundle that ships: opens by its name, says where its texts come from, and keeps what its report says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgedistill.evaluation import scoring
from edgedistill.runtime import bundle, verify
from tests.test_cli import call

ROOT = Path(__file__).resolve().parents[2]
REPORT = json.loads((ROOT / "bench" / "reports" / "export.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def nano() -> bundle.Bundle:
    return bundle.load("nano")


def test_it_opens_by_name_wherever_one_stands(nano: bundle.Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vectors = bundle.load("nano").encode(["hello", "a man plays a guitar", "someone is making music", "the tax is due in May"])
    assert vectors.shape == (4, 384) and np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5
    assert vectors[1] @ vectors[2] > 0.4 > vectors[1] @ vectors[3] + 0.2
    said = call("embed", "nano", folder=tmp_path, text="hello\n")
    assert said.returncode == 0 and len(said.stdout.strip().splitlines()) == 1


def test_it_is_small_and_whole(nano: bundle.Bundle) -> None:
    assert sum(path.stat().st_size for path in nano.folder.rglob("*") if path.is_file()) <= 5e6
    assert list(nano.manifest["precisions"]) == ["int8"]
    assert verify.verify(nano.folder)["precisions"]["int8"]["cosine_min"] > 0.99


def test_it_keeps_what_its_report_says(nano: bundle.Bundle) -> None:
    measured = scoring.evaluate(scoring.suite("mini"), nano.encode)["average"]
    (said,) = [row for row in REPORT["reports"] if (row["bundle"]["name"], row["bundle"]["precision"]) == ("nano", "int8")]
    assert said["bundle"]["sha256"] == nano.manifest["precisions"]["int8"]["sha256"], "a report of this very graph"
    assert measured == pytest.approx(said["quality"]["mini"]["average"], abs=0.005)


def test_every_text_it_learned_from_has_a_licence(nano: bundle.Bundle) -> None:
    corpus = nano.manifest["recipe"]["corpus"]
    assert {Path(name).name for name in corpus["texts"]} == set(corpus["licences"])
    card = (nano.folder / "README.md").read_text(encoding="utf-8")
    assert all(licence in card for licence in corpus["licences"].values())
