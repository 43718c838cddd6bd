"""The snippets of recipes/SCALE.md, run with the engines that are installed: here, or in the environment
`engines` of `make integrations`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from edgedistill.teacher.encoder import TeacherEncoder
from tests.conftest import World
from tests.ecosystems.test_integrations import MISSING, ROOT, are_short, code, run

PAGE = (ROOT / "recipes" / "SCALE.md").read_text(encoding="utf-8")
SECTIONS = [section.split("\n## ")[0] for section in PAGE.split("\n### ")[1:]]
SNIPPETS = {section.splitlines()[0]: code(section) for section in SECTIONS}
NEEDS = {"A loop": "torch", "Ray Data": "ray", "Daft": "daft", "Spark": "pyspark"}
PRINT = "\nimport json, numpy\nprint(json.dumps(numpy.array(list(found), float).tolist()))"


def test_every_engine_has_its_snippet():
    assert set(SNIPPETS) == set(NEEDS)
    are_short(SNIPPETS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_a_snippet_embeds_as_the_teacher_does(name: str, world: World, tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text(json.dumps(world.recipe()), encoding="utf-8")
    environments = Path(os.environ.get("EDGEDISTILL_ENVIRONMENTS") or ROOT / ".environments")
    pythons = filter(os.path.exists, [sys.executable, environments / "engines" / "bin" / "python"])
    has = [each for each in pythons if not run(each, MISSING, NEEDS[name], folder=tmp_path).stdout.strip()]
    if not has:
        pytest.skip(f"needs {NEEDS[name]}; make integrations installs it")
    monkeypatch.setenv("PYSPARK_PYTHON", str(has[0]))
    done = run(has[0], SNIPPETS[name] + PRINT, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    teacher = TeacherEncoder(world.spec().teacher)
    expected = teacher.embed(["The train leaves at nine.", "It is late."])
    assert np.abs(np.array(json.loads(done.stdout.splitlines()[-1])) - expected).max() < 1e-3
