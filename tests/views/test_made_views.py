"""Views that models make: row beside row, the same alone as among others, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgedistill import recipe
from edgedistill.data import corpus, readers
from edgedistill.errors import UserError
from edgedistill.session import QUIET, Session
from edgedistill.views import model_views
from tests.conftest import World, make_tokenizer, sentences


@pytest.fixture(scope="module")
def built(world: World) -> corpus.Corpus:
    odd = ["naïve café, isn't it?", "[SEP] in a text [MASK]ed", "文字 and 🙂 emoji", "… — !!! ???"]
    (world.data / "viewed.txt").write_text("\n".join(odd + sentences(120, seed=6)) + "\n", encoding="utf-8")
    return corpus.build(recipe.Files(texts=["viewed.txt"]), Session(data=world.data), 0)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_translator(tmp_path_factory.mktemp("marian"))


def make_translator(folder: Path) -> Path:
    from transformers import MarianConfig, MarianMTModel

    words = make_tokenizer()
    torch.manual_seed(1)
    sides = {
        f"{side}_{name}": n
        for side in ("encoder", "decoder")
        for name, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))
    }
    config = MarianConfig(
        vocab_size=len(words),
        d_model=16,
        pad_token_id=0,
        eos_token_id=3,
        decoder_start_token_id=0,
        bos_token_id=2,
        init_std=1.0,
        **sides,
    )
    config.max_position_embeddings = 64
    MarianMTModel(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def back_and_forth(folder: Path) -> recipe.BackTranslation:
    one = recipe.Translator(model=str(folder))
    return recipe.BackTranslation(kind="back_translation", forward=one, backward=one)


def test_there_and_back_once_for_the_corpus_and_shards_outlive_a_kill(
    world: World, translator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = corpus.build(recipe.Files(texts=["texts.txt"], limit=10), Session(data=world.data), 0)
    spec = back_and_forth(translator)
    monkeypatch.setattr(model_views, "SHARD", 4)
    whole = model_views.back_translation([translator] * 2, "cpu", "")
    made: list[int] = []

    def until_killed(texts: list[str]) -> list[str]:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(len(texts))
        return whole(texts)

    monkeypatch.setattr(model_views, "back_translation", lambda *rest: until_killed)
    with pytest.raises(KeyboardInterrupt):
        model_views.build(spec, built, QUIET, "stages[0].view")
    monkeypatch.setattr(model_views, "back_translation", lambda *rest: whole)
    said: list[str] = []
    views = model_views.build(spec, built, Session(log=said.append), "stages[0].view")
    assert said == ["views: making 10 in 3 shards, 2 of them done before"]
    assert len(views) == 10 and views[2] != built[2]
    assert views[2] == readers.normalize(whole([built[2]])[0])  # alone as among others
    model_views.build(spec, built, Session(log=said.append), "stages[0].view")
    assert len(said) == 1
    assert not list(views.folder.parent.glob("*.shards"))


def test_models_that_do_not_open_are_named(built: corpus.Corpus, world: World) -> None:
    spec = back_and_forth(world.teacher)
    with pytest.raises(
        UserError, match=r"stages\[0\].view: .*teacher: does not open as AutoModelForSeq2SeqLM: "
    ):
        model_views.build(spec, built, QUIET, "stages[0].view")
    nowhere = spec.model_copy(update={"backward": recipe.Translator(model="owner/name")})
    with pytest.raises(
        UserError,
        match=r"view.backward.model: no folder 'owner/name' here; .*set stages\[0\].view.backward.revision",
    ):
        model_views.build(nowhere, built, QUIET, "stages[0].view")
