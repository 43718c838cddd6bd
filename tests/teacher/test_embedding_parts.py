"""A teacher's pass that is killed goes on behind the last part that was kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedistill.data import corpus
from edgedistill.session import Session
from edgedistill.teacher import embedding_cache
from edgedistill.teacher.encoder import TeacherEncoder
from tests.conftest import World


def test_a_killed_pass_goes_on(world: World, tmp_path, monkeypatch):
    session = Session(data=world.data, cache_folder=tmp_path)
    spec = world.spec()
    assert spec.rows is not None
    texts, teacher = corpus.build(spec.rows, session, 0), TeacherEncoder(spec.teacher)
    whole = embedding_cache.TeacherPass(
        teacher, texts, Session(data=world.data, cache_folder=tmp_path / "other")
    ).open()
    monkeypatch.setattr(embedding_cache, "PART", 64)
    monkeypatch.setattr(embedding_cache, "PART_SECONDS", -1.0)
    embed, embedded = teacher.embed, list[int]()

    def killed_in_the_fourth(given: list[str], *rest: Any) -> np.ndarray:
        if len(embedded) == 3:
            raise KeyboardInterrupt
        embedded.append(len(given))
        return embed(given, *rest)

    monkeypatch.setattr(teacher, "embed", killed_in_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        embedding_cache.TeacherPass(teacher, texts, session).open()
    parts = embedding_cache.TeacherPass(teacher, texts, session).parts
    assert embedded == [64, 64, 64] and len(list(parts.iterdir())) == 3
    embedded.clear()
    monkeypatch.setattr(
        teacher, "embed", lambda given, *rest: embedded.append(len(given)) or embed(given, *rest)
    )
    found = embedding_cache.TeacherPass(teacher, texts, session).open()
    assert sum(embedded) == len(texts) - 3 * 64 and not list(parts.iterdir())
    rows = np.arange(len(texts))
    assert np.abs(found[rows] - whole[rows]).max() < 2e-3 and np.linalg.norm(found[rows], axis=1).min() > 0.99
