"""The bundles that ship: each opens by its name, says where its texts come from, and keeps what its report says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgedistill import files
from edgedistill.evaluation import scoring
from edgedistill.runtime import bundle, verify
from tests.test_cli import call

ROOT = Path(__file__).resolve().parents[2]
REPORT = json.loads((ROOT / "bench" / "reports" / "export.json").read_text(encoding="utf-8"))
LARGEST = {"nano": 5e6}  # bytes of the whole folder


@pytest.fixture(scope="module", params=sorted(LARGEST))
def shipped(request: pytest.FixtureRequest) -> bundle.Bundle:
    return bundle.load(request.param)


def test_all_that_ship_are_tested() -> None:
    assert set(files.shipped("bundle")) == set(LARGEST)


def test_it_opens_by_name_wherever_one_stands(shipped: bundle.Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = shipped.folder.name
    vectors = bundle.load(name).encode(["hello", "a man plays a guitar", "someone is making music", "the tax is due in May"])
    assert vectors.shape == (4, 384) and np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5
    assert vectors[1] @ vectors[2] > 0.4 > vectors[1] @ vectors[3] + 0.2
    said = call("embed", name, folder=tmp_path, text="hello\n")
    assert said.returncode == 0 and len(said.stdout.strip().splitlines()) == 1


def test_it_is_small_and_whole(shipped: bundle.Bundle) -> None:
    assert sum(path.stat().st_size for path in shipped.folder.rglob("*") if path.is_file()) <= LARGEST[shipped.folder.name]
    (precision,) = shipped.manifest["precisions"]
    assert verify.verify(shipped.folder)["precisions"][precision]["cosine_min"] > 0.99


def test_it_keeps_what_its_report_says(shipped: bundle.Bundle) -> None:
    measured = scoring.evaluate(scoring.suite("mini"), shipped.encode)["average"]
    ((precision, entry),) = shipped.manifest["precisions"].items()
    (said,) = [row for row in REPORT["reports"] if (row["bundle"]["name"], row["bundle"]["precision"]) == (shipped.folder.name, precision)]
    assert said["bundle"]["sha256"] == entry["sha256"], "a report of this very graph"
    assert measured == pytest.approx(said["quality"]["mini"]["average"], abs=0.005)


def test_every_text_it_learned_from_has_a_licence(shipped: bundle.Bundle) -> None:
    corpus = shipped.manifest["recipe"]["corpus"]
    patterns = corpus.get("texts") or [name for pair in corpus["pairs"] for name in pair["files"]]
    assert {Path(name).name for name in patterns} == set(corpus["licences"])
    card = (shipped.folder / "README.md").read_text(encoding="utf-8")
    assert all(licence in card for licence in corpus["licences"].values())
