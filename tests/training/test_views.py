"""One text -> another view without some of its words: what stays, how much goes, that ids and texts agree."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from edgedistill import files, recipe
from edgedistill.data import corpus
from edgedistill.data import rows as training_rows
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.session import QUIET, Session
from edgedistill.teacher import tokenizer_files
from edgedistill.training.initial_student.prepared_student import StudentTokenizer
from edgedistill.training.inputs import batches as training_batches
from edgedistill.training.stages import NumberedStage
from tests.conftest import World, make_tokenizer, sentences

DELETION = recipe.WordDeletion(kind="word_deletion")
CROP = recipe.Crop(kind="crop")


def views(spec: Any, counts: list[int], seed: int = 0, rows: Any = None, passes: int = 0) -> list[str]:
    """The views of texts of so many words, which are their numbers."""
    texts = [" ".join(map(str, range(count))) for count in counts]
    rows = np.arange(len(counts)) if rows is None else np.array(rows)
    return training_batches._without_words(spec, seed, texts, rows, np.full(len(counts), passes))


def flags(spec: Any, counts: list[int], seed: int = 0, passes: int = 0) -> list[list[bool]]:
    found = views(spec, counts, seed, passes=passes)
    return [
        [str(at) in view.split() for at in range(count)] for view, count in zip(found, counts, strict=True)
    ]


@pytest.mark.parametrize("spec", [DELETION, CROP], ids=lambda s: s.kind)
def test_the_same_text_and_pass_the_same_view_whatever_stands_beside_it(spec: Any):
    counts = [9, 1, 14, 30, 2, 7]
    whole = views(spec, counts)
    assert views(spec, counts) == whole
    assert views(spec, [30], rows=[3]) == [whole[3]]
    assert views(spec, [30] * 50, passes=1) != views(spec, [30] * 50)
    assert views(spec, [30] * 50, seed=1) != views(spec, [30] * 50)


@pytest.mark.parametrize("spec", [DELETION, CROP], ids=lambda s: s.kind)
def test_at_least_one_word_stays(spec: Any):
    assert flags(spec, [1] * 200) == [[True]] * 200
    assert min(sum(each) for each in flags(spec, [2, 3] * 100)) >= 1
    harsh = spec.model_copy(update={"drop_fraction" if spec is CROP else "fraction": 0.99})
    assert {sum(each) for each in flags(harsh, [4] * 200)} == {1}


def test_a_crop_is_contiguous_and_anywhere():
    cropped = flags(recipe.Crop(kind="crop", drop_fraction=0.5), [10] * 600)
    starts = Counter(each.index(True) for each in cropped)
    assert all(
        each[start : start + 5] == [True] * 5 and sum(each) == 5
        for each in cropped
        for start in [each.index(True)]
    )
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
    (world.data / "odd.txt").write_text(
        "\n".join(odd + sentences(120, seed=6)) + "\n" + " ".join(sentences(12, seed=8)), encoding="utf-8"
    )
    return corpus.build(recipe.Rows(files=["odd.txt"]), Session(data=world.data), 0)


@pytest.mark.parametrize("spec", [DELETION, CROP], ids=lambda s: s.kind)
@pytest.mark.parametrize("most", [64, 12])
def test_a_view_is_the_text_without_those_words(built: corpus.Corpus, spec: Any, most: int):
    tokenizer = StudentTokenizer(make_tokenizer(), most)
    view = {
        "name": "a",
        "objective": {"kind": "congen", "queue": 0},
        "view": spec.model_dump(),
        "max_tokens": most,
    }
    stage = NumberedStage(recipe.Stage.model_validate(view), 0, 5)
    batches = training_batches.of_stage(stage, Rows.of_texts(built), tokenizer, QUIET)
    rows = np.random.default_rng(0).permutation(len(built))
    passes = np.arange(len(rows)) % 3
    (plain, _), (ids, mask) = batches.batch(rows, passes)[0]
    texts = built.texts(rows)
    left = training_batches._without_words(spec, 5, texts, rows, passes)
    assert all(set(view.split()) <= set(text.split()) for view, text in zip(left, texts, strict=True))
    expected = tokenizer_files.encode_ids(tokenizer.tokenizer, left, most)
    assert [row[: int(n)].tolist() for row, n in zip(ids, mask.sum(1), strict=True)] == [
        row.tolist() for row in expected
    ]
    assert plain.tolist() != ids.tolist()


def texts_of(made: Rows) -> list[list[str]]:
    columns = enumerate(made.index.T)
    return [made.sides[min(at, 1)].texts(rows) for at, rows in columns]


def test_tuples_are_distinct_whole_and_without_leaks(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))
    rows = [
        "a 1\tb 1\tc 1",
        "a 1\tb 1\tc 1",
        "a 2\t\tc 2",
        "A LEAK\tb 3\tc 3",
        "a 4\tb 4\ta leak",
        " a  5\tb 5\tc 5",
        "a 6\tb 6\tc 6",
    ]
    (tmp_path / "t.tsv").write_text("one\ttwo\tthree\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "leaks.tsv").write_text("x\ty\nno\ta leak\n", encoding="utf-8")

    def build(limit: int | None = None, columns: tuple[str, ...] = ("one", "two", "three")) -> Rows:
        spec = recipe.Rows(
            files=["*.tsv"] if columns[0] == "x" else ["t.tsv"], columns=[*columns], limit=limit
        )
        return training_rows.build(
            spec, Session(data=tmp_path), 0, exclude=["leaks.tsv"], place="stages[1].rows"
        )

    made = build()
    assert texts_of(made) == [[f"{c} {n}" for n in (1, 5, 6)] for c in "abc"]
    about = files.read_json(made.sides[0].folder.parent / "rows.json")
    assert (about["pairs"], about["trained"]) == (3, 3)
    left_out = {"with an empty text": 1, "with an excluded text": 2, "duplicates": 1}
    assert about["reading"] == {"files": 1, "rows_left_out": left_out}
    assert texts_of(build(limit=2)) == [[f"{c} {n}" for n in (1, 5)] for c in "abc"]
    with pytest.raises(UserError, match=r"no column 'for'; .*set stages\[1\].rows.columns"):
        build(columns=("one", "two", "for"))
    (tmp_path / "leaks.tsv").write_text("x\ta 1\na leak\ta 5\na 6\t\n", encoding="utf-8")
    reasons = "6 with an excluded text, 1 with an empty text"
    with pytest.raises(UserError, match=rf"stages\[1\].rows: no row is left of 7 read, {reasons}; "):
        build()
