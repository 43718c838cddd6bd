"""The bundles that ship: each opens by its name, says where its texts come from, and keeps what its report
says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import report_files

import edgedistill
from edgedistill import files, recipe
from edgedistill.evaluation import bench, comparison, scoring
from edgedistill.recipe.rows import Rows
from edgedistill.runtime import bundle, verify
from tests.test_cli import call

ROOT = Path(__file__).resolve().parents[2]
REPORTS = report_files.read(ROOT / "bench" / "reports" / "shipped.json")
SEARCHES = files.read_json(ROOT / "bench" / "reports" / "search-test.json")["rows"]
# name: its precision, and the most bytes that its graph and its tokenizer may have
SHIPPED = {
    "nano": ("int8", 5e6),
    "micro": ("int8", 2e6),
    "small": ("w4", 9e6),
    "multi": ("w4", 16e6),
}


@pytest.fixture(scope="module", params=sorted(SHIPPED))
def shipped(request: pytest.FixtureRequest) -> bundle.Bundle:
    return bundle.load(request.param)


def sections(shipped: bundle.Bundle) -> list[Rows]:
    spec = recipe.parse(shipped.manifest["recipe"], "manifest.json", recorded=True)
    return [rows for rows in (spec.rows, *(stage.rows for stage in spec.distilling)) if rows is not None]


def test_all_that_ship_are_tested():
    assert set(files.shipped("bundle")) == set(SHIPPED)


def test_it_opens_by_name_wherever_one_stands(shipped: bundle.Bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = shipped.folder.name
    vectors = bundle.load(name).encode(
        ["hello", "a man plays a guitar", "someone is making music", "the tax is due in May"]
    )
    assert vectors.shape == (4, 384) and np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5
    near, far = vectors[1] @ vectors[2], vectors[1] @ vectors[3]
    assert near > 0.4 > far + 0.2
    said = call("embed", name, folder=tmp_path, text="hello\n")
    assert said.returncode == 0 and len(said.stdout.strip().splitlines()) == 1


def test_it_is_small_and_whole(shipped: bundle.Bundle):
    precision, most = SHIPPED[shipped.folder.name]
    graph = shipped.folder / shipped.manifest["precisions"][precision]["file"]
    assert graph.stat().st_size + (shipped.folder / "tokenizer.json").stat().st_size <= most
    assert list(shipped.manifest["precisions"]) == [precision]
    least = {"int8": 0.99, "w4": 0.9}[precision]
    assert verify.verify(shipped.folder)["precisions"][precision]["cosine_min"] > least


def test_it_is_listed(shipped: bundle.Bundle):
    name = shipped.folder.name
    (listed,) = [each for each in edgedistill.shipped() if each["name"] == name]
    _, most = SHIPPED[name]
    assert most / 4 < listed["size_bytes"] < most + 5e5 and listed["max_tokens"] == shipped.max_tokens
    assert "en" in listed["languages"] and (len(listed["languages"]) > 1) == (name == "multi")
    teacher = "mit" if name == "multi" else "apache-2.0"
    licences = {teacher, *(each for rows in sections(shipped) for each in rows.licences.values())}
    if name == "small":
        licences.add("mit")  # a teacher of scores
    licences.add("PSF-2.0")  # of Python's documentation
    assert {each.lower() for each in licences} <= {each.lower() for each in listed["licences"]}
    (reported,) = [row["quality"] for row in REPORTS if row["bundle"]["name"] == name]
    (searched,) = [row["quality"] for row in SEARCHES if row["bundle"]["name"] == row["documents"] == name]
    averages = {suite: round(each["average"], 5) for suite, each in reported.items()}
    assert averages.items() <= listed["scores"].items() and "sts7" in averages, "make docs writes them"
    assert listed["scores"]["search-test"] == round(searched["search-test"]["average"], 5)


def test_it_keeps_what_its_report_says(shipped: bundle.Bundle):
    name = shipped.folder.name
    precision, _ = SHIPPED[name]
    (said,) = [
        row for row in REPORTS if (row["bundle"]["name"], row["bundle"]["precision"]) == (name, precision)
    ]
    of_searches = [row["bundle"]["sha256"] for row in SEARCHES if row["bundle"]["name"] == name]
    assert {said["bundle"]["sha256"], *of_searches} == {
        shipped.manifest["precisions"][precision]["sha256"]
    }, "reports of this very graph"
    [target] = bench.targets(name)
    now = {
        "quality": {"mini": scoring.evaluate(scoring.suite("mini"), shipped.encode, samples=True)},
        "size_bytes": {"graph": target.manifest["precisions"][target.precision]["size_bytes"]},
    }
    found = comparison.changes(name, said, now, [suite for suite in said["quality"] if suite != "mini"])
    assert [each.measure for each in found] == ["mini", "graph MB"]
    assert not [each for each in found if each.verdict == "worse"]


def test_every_text_it_learned_from_has_a_licence(shipped: bundle.Bundle):
    for rows in sections(shipped):
        assert {Path(name).name for part in rows.parts for name in part.files} == set(rows.licences)
    card = (shipped.folder / "README.md").read_text(encoding="utf-8")
    assert all(licence in card for rows in sections(shipped) for licence in rows.licences.values())


def test_multi_finds_translations():
    encoder = bundle.load("multi")
    english = encoder.encode(
        [
            "Where is the nearest train station?",
            "I would like a cup of coffee.",
            "The children are playing in the garden.",
        ]
    )
    for translated in (
        ["Wo ist der nächste Bahnhof?", "Ich hätte gern eine Tasse Kaffee.", "Die Kinder spielen im Garten."],
        [
            "¿Dónde está la estación de tren más cercana?",
            "Quisiera una taza de café.",
            "Los niños juegan en el jardín.",
        ],
        [
            "Où est la gare la plus proche ?",
            "Je voudrais une tasse de café.",
            "Les enfants jouent dans le jardin.",
        ],
        [
            "Waar is het dichtstbijzijnde treinstation?",
            "Ik wil graag een kopje koffie.",
            "De kinderen spelen in de tuin.",
        ],
    ):
        cosines = english @ encoder.encode(translated).T
        others = cosines.max(initial=-1, where=~np.eye(3, dtype=bool))
        assert cosines.diagonal().min() > others + 0.2
