"""`rehearsal`: a finished student that goes on learning embeds random words as it did before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgedistill import recipe, run
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.students import head, kinds
from edgedistill.training import train, trained_module
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from tests.conftest import World, sentences

STAGE: dict[str, Any] = {
    "name": "on",
    "objective": {"kind": "cosine"},
    "steps": 60,
    "batch": 16,
    "bucket": 4,
    "learning_rate": 2e-2,
}


@pytest.fixture(scope="module")
def source(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("source") / "bert"
    train.train(world.spec(), out, Session(data=world.data))
    return out


def opened(folder: Path) -> PreparedStudent:
    return PreparedStudent.of(run.open_run(folder))


def described(world: World, source: Path, **stage: Any) -> recipe.Recipe:
    """A finished student trained on, on other texts than it was trained on."""
    (world.data / "other.txt").write_text("\n".join(f"a {word} b" for word in "0123456789") + "\n" * 2)
    corpus = {"files": ["other.txt"], "held_out": 0}
    whole = world.recipe(rows=corpus, student={"weights": str(source)}, stages=[{**STAGE, **stage}])
    return recipe.parse(whole, "test")


def go_on(world: World, source: Path, out: Path, **stage: Any) -> Path:
    train.train(described(world, source, **stage), out, Session(data=world.data))
    return out


def test_less_of_other_texts_is_forgotten(world: World, source: Path, tmp_path):
    def embedded(folder: Path) -> np.ndarray:
        return opened(folder).embed(sentences(60, seed=3))

    def kept(folder: Path) -> float:
        return float((embedded(folder) * embedded(source)).sum(1).mean())

    plain = go_on(world, source, tmp_path / "plain")
    rehearsed = go_on(world, source, tmp_path / "rehearsed", rehearsal=1.0)
    forgotten = 1 - kept(plain)
    assert forgotten > 0.005
    assert 1 - kept(rehearsed) < 0.7 * forgotten


def test_sequences_are_words_of_the_vocabulary_and_a_function_of_the_step(source: Path):
    student = opened(source)
    stage = recipe.Stage.model_validate({**STAGE, "rehearsal": 1.0, "max_tokens": 12})
    made = trained_module.Rehearsal(stage, student)
    ids, mask, before = made.at(7, torch.device("cpu"))
    assert len(ids) == 16 // trained_module.SHARE and before.shape == (len(ids), kinds.dims(student.module))
    assert ids.shape[1] <= 12, "the stage's limit"
    again = made.at(7, torch.device("cpu"))
    assert all(map(torch.equal, again, (ids, mask, before)))
    assert not torch.equal(made.at(8, torch.device("cpu"))[0], ids)
    known = set(trained_module.words(student.tokenizer).tolist())
    assert known and all(word.isalpha() for word in known) and "[CLS]" not in known
    with torch.no_grad(), head.without_lexical_channel(student.module):
        assert torch.allclose(student.module.eval()(ids, mask), before, atol=1e-6)


def test_it_is_refused_where_embeddings_alone_are_matched():
    stage = {**STAGE, "rehearsal": 1.0, "match": {"of": "assistant", "layer": "embeddings"}}
    with pytest.raises((UserError, ValueError), match="rehearsal"):
        recipe.Stage.model_validate(stage)
