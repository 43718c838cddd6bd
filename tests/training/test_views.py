"""One text -> another view: what stays, how much goes, that ids and texts agree, and what models and files make."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgedistill import recipe
from edgedistill.data import corpus, readers, token_cache, triples
from edgedistill.errors import UserError
from edgedistill.session import QUIET, Session
from edgedistill.teacher import token_batches
from edgedistill.training.initial_student.prepared_student import StudentTokenizer
from edgedistill.training.inputs import corpus_views, model_views, text_batches, word_edits
from edgedistill.training.inputs.synonyms import Synonyms
from edgedistill.training.inputs.text_batches import TokenizedCorpus
from edgedistill.training.stages import NumberedStage
from tests.conftest import World, make_tokenizer, sentences

DELETION = recipe.WordDeletion(kind="word_deletion")
CROP = recipe.Crop(kind="crop")
ONE = recipe.DeleteOne(kind="delete_one")


def flags(spec: Any, counts: list[int], seed: int = 0, passes: int = 0) -> list[list[bool]]:
    rows, sizes = np.arange(len(counts)), np.array(counts)
    stays = word_edits.remaining_words(spec, seed, rows, np.full(len(counts), passes), sizes)
    return [part.tolist() for part in np.split(stays, np.cumsum(sizes)[:-1])]


@pytest.mark.parametrize("spec", [DELETION, CROP, ONE], ids=lambda s: s.kind)
def test_the_same_text_and_pass_the_same_view_whatever_stands_beside_it(spec: Any) -> None:
    counts = [9, 1, 14, 30, 2, 7]
    whole = flags(spec, counts)
    assert flags(spec, counts) == whole
    alone = word_edits.remaining_words(spec, 0, np.array([3]), np.array([0]), np.array([30]))
    assert alone.tolist() == whole[3]
    assert flags(spec, [30] * 50, passes=1) != flags(spec, [30] * 50)
    assert flags(spec, [30] * 50, seed=1) != flags(spec, [30] * 50)


@pytest.mark.parametrize("spec", [DELETION, CROP, ONE], ids=lambda s: s.kind)
def test_at_least_one_word_stays(spec: Any) -> None:
    assert flags(spec, [1] * 200) == [[True]] * 200
    assert min(sum(each) for each in flags(spec, [2, 3] * 100)) >= 1
    if spec is not ONE:
        harsh = spec.model_copy(update={"drop_fraction" if spec is CROP else "fraction": 0.99})
        assert {sum(each) for each in flags(harsh, [4] * 200)} == {1}


@pytest.mark.parametrize("spec", [DELETION, CROP], ids=lambda s: s.kind)
def test_a_tenth_goes_on_average_and_never_more_than_rounding(spec: Any) -> None:
    gone = [each.count(False) for each in flags(spec, [8] * 4000)]
    assert set(gone) == {0, 1}
    assert np.mean(gone) == pytest.approx(0.8, abs=0.03)
    assert {each.count(False) for each in flags(spec, [20] * 100)} == {2}


def test_every_word_is_as_likely_to_go() -> None:
    for spec, counts in ((DELETION, 10), (ONE, 10)):
        where = Counter(each.index(False) for each in flags(spec, [counts] * 4000) if False in each)
        assert set(where) == set(range(10))
        assert max(where.values()) < 1.35 * min(where.values())
    assert {each.count(False) for each in flags(ONE, [5] * 100)} == {1}


def test_a_crop_is_contiguous_and_anywhere() -> None:
    cropped = flags(recipe.Crop(kind="crop", drop_fraction=0.5), [10] * 600)
    starts = Counter(each.index(True) for each in cropped)
    assert all(each[start : start + 5] == [True] * 5 and sum(each) == 5 for each in cropped for start in [each.index(True)])
    assert set(starts) == set(range(6))


@pytest.fixture(scope="module")
def built(world: World) -> corpus.Corpus:
    odd = [
        "naïve café, isn't it?",
        "[SEP] in a text [MASK]ed",
        "文字 and 🙂 emoji",
        "x\u200d \u0301 accents",
        "W" * 120 + " long",
        "… — !!! ???",
    ]
    (world.data / "odd.txt").write_text("\n".join(odd + sentences(120, seed=6)) + "\n" + " ".join(sentences(12, seed=8)), encoding="utf-8")
    return corpus.build(recipe.Files(texts=["odd.txt"]), Session(data=world.data), 0)


@pytest.mark.parametrize("spec", [DELETION, CROP, ONE, recipe.WordDeletion(kind="word_deletion", fraction=0.5)], ids=str)
@pytest.mark.parametrize("most", [64, 12])
def test_words_taken_out_of_the_ids_are_words_taken_out_of_the_text(built: corpus.Corpus, spec: Any, most: int) -> None:
    words = make_tokenizer()
    assert token_cache.tokenizes_words_independently(words.backend_tokenizer)
    rows = np.random.default_rng(0).permutation(len(built))
    passes = np.arange(len(rows)) % 3
    by_word = token_cache.tokenize_by_word(built, words.backend_tokenizer, 0, QUIET)
    ids, mask = text_batches._edited_ids(spec, 5, by_word, most)(rows, passes)
    view = text_batches._of_changed_texts(lambda r, p, old: word_edits.edited(spec, 5, r, p, old), built, StudentTokenizer(words, most))
    expected, expected_mask = view(rows, passes)
    assert ids.tolist() == expected.tolist()
    assert mask.tolist() == expected_mask.tolist()
    assert ids.shape[1] == (12 if most == 12 else ids.shape[1])
    plain, _ = token_cache.tokenize(built, words.backend_tokenizer, most, 0, QUIET).batch(rows, most)
    assert plain.tolist() != ids.tolist()


def test_without_edits_the_words_are_the_text(built: corpus.Corpus) -> None:
    words = make_tokenizer()
    rows = np.arange(len(built))
    by_word = token_cache.tokenize_by_word(built, words.backend_tokenizer, 0, QUIET)
    everything = np.ones(int(by_word.counts(rows).sum()), bool)
    for most in (64, 9):
        ids, mask = by_word.batch(rows, everything, most)
        same, same_mask = token_cache.tokenize(built, words.backend_tokenizer, most, 0, QUIET).batch(rows, most)
        assert ids.tolist() == same.tolist() and mask.tolist() == same_mask.tolist()


def test_other_tokenizers_go_through_the_text() -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    raw = Tokenizer.from_str(make_tokenizer().backend_tokenizer.to_str())
    raw.pre_tokenizer = pre_tokenizers.Punctuation()
    assert not token_cache.tokenizes_words_independently(raw)
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFKC()
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel()
    assert not token_cache.tokenizes_words_independently(bpe)


def view_file(folder: Path, texts: list[str]) -> recipe.ViewFile:
    lines = [f"{number}\t{text.upper()}\tview {number} of it" for number, text in enumerate(texts)]
    (folder / "views.tsv").write_text("n\ttext\tview\n" + "\n".join(reversed(lines)) + "\n", encoding="utf-8")
    return recipe.ViewFile(kind="file", files=[str(folder / "views.tsv")])


def test_views_from_a_file_lie_row_beside_row(built: corpus.Corpus, tmp_path: Path) -> None:
    texts = built.texts(range(len(built)))
    made = corpus_views.build(view_file(tmp_path, texts), 0, built, QUIET, "stages[0].view")
    assert made.texts(range(len(made))) == [f"view {number} of it" for number in range(len(texts))]
    assert made.training_count == built.training_count


def test_a_file_that_lacks_texts_is_refused_with_their_count(built: corpus.Corpus, tmp_path: Path) -> None:
    texts = built.texts(range(len(built)))
    spec = view_file(tmp_path, texts)
    made = (tmp_path / "views.tsv").read_text(encoding="utf-8")
    (tmp_path / "views.tsv").write_text(made.replace("view 1 of it", " ").replace("view 4 of it", ""), encoding="utf-8")
    with pytest.raises(UserError, match=rf"stages\[0\].view: 2 of the corpus' {len(texts)} texts have an empty view in views.tsv"):
        corpus_views.build(spec, 0, built, QUIET, "stages[0].view")
    spec = view_file(tmp_path, texts[:2] + texts[5:])
    with pytest.raises(UserError, match=rf"stages\[0\].view: 3 of the corpus' {len(texts)} texts are not in views.tsv, the first of them"):
        corpus_views.build(spec, 0, built, QUIET, "stages[0].view")
    with pytest.raises(UserError, match=r"no column 'text'|no column 'vew'"):
        corpus_views.build(spec.model_copy(update={"view_column": "vew"}), 0, built, QUIET, "stages[0].view")


@pytest.fixture(scope="module")
def masked_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_masked_model(tmp_path_factory.mktemp("mlm"))


def make_masked_model(folder: Path) -> Path:
    from transformers import BertConfig, BertForMaskedLM

    words = make_tokenizer()
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 40}
    model = BertForMaskedLM(BertConfig(vocab_size=len(words), **shape))
    torch.nn.init.normal_(model.bert.embeddings.word_embeddings.weight)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def test_a_masked_model_refills_some_words_and_leaves_the_rest_letter_for_letter(world: World, masked_model: Path) -> None:
    built = corpus.build(recipe.Files(texts=["texts.txt"], limit=60), Session(data=world.data), 0)
    spec = recipe.Mlm(kind="mlm", model=str(masked_model))
    made = corpus_views.build(spec, 0, built, QUIET, "stages[0].view")
    pairs = list(zip(built.texts(range(60)), made.texts(range(60)), strict=True))
    unlike = [sum(a != b for a, b in zip(old.split(), new.split(), strict=True)) for old, new in pairs]
    assert max(unlike) <= 3 and np.mean(unlike) > 0.5
    assert not [new for _, new in pairs if "[" in new or "#" in new]
    again = model_views.MaskedRefill(masked_model, spec.fraction, 0, "cpu", "")
    assert again([pairs[7][0]], 7) == [pairs[7][1]]  # alone as among others
    other = corpus_views.build(spec, 1, built, QUIET, "stages[0].view")
    assert other.fingerprint != made.fingerprint


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_translator(tmp_path_factory.mktemp("marian"))


def make_translator(folder: Path) -> Path:
    from transformers import MarianConfig, MarianMTModel

    words = make_tokenizer()
    torch.manual_seed(1)
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}
    config = MarianConfig(
        vocab_size=len(words), d_model=16, pad_token_id=0, eos_token_id=3, decoder_start_token_id=0, bos_token_id=2, init_std=1.0, **sides
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
    monkeypatch.setattr(corpus_views, "SHARD", 4)
    whole = corpus_views.back_translation([translator] * 2, 1, "cpu", "")
    made: list[int] = []

    def until_killed(texts: list[str], first: int) -> list[str]:
        if made == [0, 4]:
            raise KeyboardInterrupt
        made.append(first)
        return whole(texts, first)

    monkeypatch.setattr(corpus_views, "back_translation", lambda *rest: until_killed)
    with pytest.raises(KeyboardInterrupt):
        corpus_views.build(spec, 0, built, QUIET, "stages[0].view")
    monkeypatch.setattr(corpus_views, "back_translation", lambda *rest: whole)
    said: list[str] = []
    views = corpus_views.build(spec, 0, built, Session(log=said.append), "stages[0].view")
    assert said == ["views: making 10 in 3 shards, 2 of them done before"]
    assert len(views) == 10 and views[2] != built[2]
    assert views[2] == readers.normalize(whole([built[2]], 2)[0])  # alone as among others
    corpus_views.build(spec, 0, built, Session(log=said.append), "stages[0].view")
    assert len(said) == 1
    assert not list(views.folder.parent.glob("*.shards"))


def test_models_that_do_not_open_are_named(built: corpus.Corpus, world: World) -> None:
    spec = back_and_forth(world.teacher)
    with pytest.raises(UserError, match=r"stages\[0\].view: .*teacher: does not open as AutoModelForSeq2SeqLM: "):
        corpus_views.build(spec, 0, built, QUIET, "stages[0].view")
    nowhere = spec.model_copy(update={"backward": recipe.Translator(model="owner/name")})
    with pytest.raises(UserError, match=r"view.backward.model: no folder 'owner/name' here; .*set stages\[0\].view.backward.revision"):
        corpus_views.build(nowhere, 0, built, QUIET, "stages[0].view")
    with pytest.raises(UserError, match=r"stages\[0\].view.model: no folder 'owner/name' here"):
        corpus_views.build(recipe.Mlm(kind="mlm", model="owner/name"), 0, built, QUIET, "stages[0].view")


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


def test_synonyms_take_the_place_of_words_that_have_one() -> None:
    if not wordnet_is_here():
        pytest.skip("nltk or its WordNet is not here")
    swap = Synonyms(recipe.Synonym(kind="synonym"), 0, "")
    texts = ["The Doctor, xyzzy.", "xyzzy qwfp", "a big house and a small car"] * 20
    rows, passes = np.arange(60), np.zeros(60, int)
    made = swap(rows, passes, texts)
    assert made == swap(rows, passes, texts) and swap(rows[5:6], passes[:1], texts[5:6]) == [made[5]]
    assert all(new.endswith(", xyzzy.") and new != old and new[4].isupper() for old, new in zip(texts[::3], made[::3], strict=True))
    assert set(made[1::3]) == {"xyzzy qwfp"}
    assert all(new.split()[0] == "a" and new != texts[2] for new in made[2::3])


def test_triples_are_distinct_whole_and_without_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))
    rows = ["a 1\tb 1\tc 1", "a 1\tb 1\tc 1", "a 2\t\tc 2", "A LEAK\tb 3\tc 3", "a 4\tb 4\ta leak", " a  5\tb 5\tc 5", "a 6\tb 6\tc 6"]
    (tmp_path / "t.tsv").write_text("one\ttwo\tthree\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "leaks.tsv").write_text("x\ty\nno\ta leak\n", encoding="utf-8")

    def build(limit: int | None = None, columns: tuple[str, str, str] = ("one", "two", "three")) -> triples.Triples:
        spec = recipe.TripleFiles(files=["*.tsv"] if columns[0] == "x" else ["t.tsv"], columns=columns, limit=limit)
        return triples.build(spec, ["leaks.tsv"], Session(data=tmp_path), "stages[1].triples")

    made = build()
    assert [column.texts(range(len(made))) for column in made.columns] == [[f"{c} {n}" for n in (1, 5, 6)] for c in "abc"]
    assert (made.read, made.leaked) == (7, 2)
    assert [column.texts(range(2)) for column in build(limit=2).columns] == [[f"{c} {n}" for n in (1, 6)] for c in "abc"]
    with pytest.raises(UserError, match=r"no column 'for'; .*set stages\[1\].triples.columns"):
        build(columns=("one", "two", "for"))
    (tmp_path / "t.txt").write_text("a\n", encoding="utf-8")
    with pytest.raises(UserError, match="a text file has no columns"):
        triples.build(recipe.TripleFiles(files=["t.txt"]), [], Session(data=tmp_path), "stages[1].triples")
    (tmp_path / "leaks.tsv").write_text("x\ta 1\na leak\ta 5\na 6\t\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"stages\[1\].triples: no triple is left of 7 read, 6 of them with an excluded text"):
        build()


def test_a_feed_gives_views_of_the_same_rows(world: World) -> None:
    built = corpus.build(recipe.Files(texts=["texts.txt"]), Session(data=world.data), 0)
    words = make_tokenizer()
    cut = token_cache.tokenize(built, words.backend_tokenizer, 48, 0, QUIET)
    stage = recipe.Stage.model_validate({"name": "a", "objective": {"kind": "skd"}, "view": {"kind": "delete_one"}})
    made = text_batches.of_texts(
        NumberedStage(stage, 0, 0), TokenizedCorpus(built, cut), StudentTokenizer(words, 48), None, Session(log=print)
    )
    rows = np.arange(20)
    (own, _), (other, _) = made.batch(rows, np.zeros(20, int))[0]
    assert own.tolist() == token_batches.pad(token_batches.encode_ids(words, built.texts(rows), 48), 0)[0].tolist()
    assert all(set(b[b > 0]) <= set(a) and (b > 0).sum() < (a > 0).sum() for a, b in zip(own, other, strict=True))
    assert made.batch(rows, np.ones(20, int))[0][1][0].tolist() != other.tolist()
