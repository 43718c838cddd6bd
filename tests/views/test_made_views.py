"""Views that models and WordNet make: row beside row, the same alone as among others, made once."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from edgedistill import recipe
from edgedistill.data import corpus, readers
from edgedistill.errors import UserError
from edgedistill.session import QUIET, Session
from edgedistill.views import model_views, synonyms
from edgedistill.views.synonyms import Synonyms
from tests.conftest import World, make_tokenizer, sentences


@pytest.fixture(scope="module")
def built(world: World) -> corpus.Corpus:
    odd = ["naïve café, isn't it?", "[SEP] in a text [MASK]ed", "文字 and 🙂 emoji", "… — !!! ???"]
    (world.data / "viewed.txt").write_text("\n".join(odd + sentences(120, seed=6)) + "\n", encoding="utf-8")
    return corpus.build(recipe.Files(texts=["viewed.txt"]), Session(data=world.data), 0)


@pytest.fixture(scope="module")
def masked_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_masked_model(tmp_path_factory.mktemp("mlm"))


def make_masked_model(folder: Path) -> Path:
    from transformers import BertConfig, BertForMaskedLM

    words = make_tokenizer()
    torch.manual_seed(0)
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 40,
    }
    model = BertForMaskedLM(BertConfig(vocab_size=len(words), **shape))
    torch.nn.init.normal_(model.bert.embeddings.word_embeddings.weight)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def test_a_masked_model_refills_some_words_and_leaves_the_rest_letter_for_letter(
    world: World, masked_model: Path
) -> None:
    built = corpus.build(recipe.Files(texts=["texts.txt"], limit=60), Session(data=world.data), 0)
    spec = recipe.Mlm(kind="mlm", model=str(masked_model))
    made = model_views.build(spec, 0, built, QUIET, "stages[0].view")
    pairs = list(zip(built.texts(range(60)), made.texts(range(60)), strict=True))
    unlike = [sum(a != b for a, b in zip(old.split(), new.split(), strict=True)) for old, new in pairs]
    assert max(unlike) <= 3 and np.mean(unlike) > 0.5
    assert not [new for _, new in pairs if "[" in new or "#" in new]
    again = model_views.MaskedLanguageModel(masked_model, "cpu", "")
    assert again.refilled([pairs[7][0]], 7, spec.fraction, 0) == [pairs[7][1]]  # alone as among others
    other = model_views.build(spec, 1, built, QUIET, "stages[0].view")
    assert other.fingerprint != made.fingerprint


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

    def until_killed(texts: list[str], first: int) -> list[str]:
        if made == [0, 4]:
            raise KeyboardInterrupt
        made.append(first)
        return whole(texts, first)

    monkeypatch.setattr(model_views, "back_translation", lambda *rest: until_killed)
    with pytest.raises(KeyboardInterrupt):
        model_views.build(spec, 0, built, QUIET, "stages[0].view")
    monkeypatch.setattr(model_views, "back_translation", lambda *rest: whole)
    said: list[str] = []
    views = model_views.build(spec, 0, built, Session(log=said.append), "stages[0].view")
    assert said == ["views: making 10 in 3 shards, 2 of them done before"]
    assert len(views) == 10 and views[2] != built[2]
    assert views[2] == readers.normalize(whole([built[2]], 2)[0])  # alone as among others
    model_views.build(spec, 0, built, Session(log=said.append), "stages[0].view")
    assert len(said) == 1
    assert not list(views.folder.parent.glob("*.shards"))


def test_models_that_do_not_open_are_named(built: corpus.Corpus, world: World) -> None:
    spec = back_and_forth(world.teacher)
    with pytest.raises(
        UserError, match=r"stages\[0\].view: .*teacher: does not open as AutoModelForSeq2SeqLM: "
    ):
        model_views.build(spec, 0, built, QUIET, "stages[0].view")
    nowhere = spec.model_copy(update={"backward": recipe.Translator(model="owner/name")})
    with pytest.raises(
        UserError,
        match=r"view.backward.model: no folder 'owner/name' here; .*set stages\[0\].view.backward.revision",
    ):
        model_views.build(nowhere, 0, built, QUIET, "stages[0].view")
    with pytest.raises(UserError, match=r"stages\[0\].view.model: no folder 'owner/name' here"):
        model_views.build(recipe.Mlm(kind="mlm", model="owner/name"), 0, built, QUIET, "stages[0].view")


def test_synonyms_need_nltk_and_its_data() -> None:
    if importlib.util.find_spec("nltk") is None:
        says = r"needs nltk, which is not installed; pip install 'edgedistill\[views\]'"
    elif not wordnet_is_here():
        says = r"stages\[0\].view: synonym reads WordNet through nltk, which does not find it"
    else:
        pytest.skip("both are here")
    with pytest.raises(UserError, match=says):
        Synonyms(recipe.Synonym(kind="synonym"), 0, "stages[0].view")


def wordnet_is_here() -> bool:
    try:
        Synonyms(recipe.Synonym(kind="synonym"), 0, "")
    except UserError:
        return False
    return True


class TinyWordNet:
    """What is asked of nltk's WordNet: senses of a word in order of frequency, and the lemmas of each."""

    SENSES: ClassVar = {
        "word": [["word"]],
        "doctor": [["doctor", "physician", "medical_man"], ["fix", "repair"]],
        "house": [["house", "dwelling"]],
        "small": [["small", "little"]],
        "car": [["car", "automobile"]],  # of three letters
    }

    def synsets(self, word: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(lemma_names=lambda names=names: names) for names in self.SENSES.get(word, [])]


@pytest.mark.parametrize("tiny", [True, False], ids=["tiny", "nltk's"])
def test_synonyms_take_the_place_of_words_that_have_one(tiny: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if tiny:
        monkeypatch.setattr(synonyms, "require", lambda *names: SimpleNamespace(wordnet=TinyWordNet()))
    elif not wordnet_is_here():
        pytest.skip("nltk or its WordNet is not here")
    swap = Synonyms(recipe.Synonym(kind="synonym"), 0, "")
    texts = ["The Doctor, xyzzy.", "xyzzy qwfp", "a big house and a small car"] * 20
    rows, passes = np.arange(60), np.zeros(60, int)
    made = swap(texts, rows, passes)
    assert made == swap(texts, rows, passes)
    assert swap(texts[5:6], rows[5:6], passes[:1]) == [made[5]]  # alone as among others
    assert swap(texts, rows, passes + 1) != made
    assert all(
        new.endswith(", xyzzy.") and new != old and new[4].isupper()
        for old, new in zip(texts[::3], made[::3], strict=True)
    )
    assert set(made[1::3]) == {"xyzzy qwfp"}
    assert all(new.split()[0] == "a" and new != texts[2] for new in made[2::3])
    if tiny:
        assert set(made[::3]) == {"The Physician, xyzzy.", "The Medical man, xyzzy."}
        assert set(made[2::3]) == {"a big dwelling and a small car", "a big house and a little car"}
