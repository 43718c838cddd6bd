"""Bad texts and bad teachers, each with its message; what will be weak."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from edgedistill import recipe
from edgedistill.data import corpus
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.fitting import fit, texts
from edgedistill.fitting.record import Budget, FitRequest
from edgedistill.session import Session
from edgedistill.teacher.encoder import TeacherEncoder
from tests.conftest import World, make_tokenizer, sentences
from tests.fitting.conftest import request


def refused(asked: FitRequest, folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        fit.fit(asked, folder / "fit", Session())
    assert not (folder / "fit" / "trials").exists()
    return str(caught.value)


def section(asked: FitRequest) -> dict[str, Any]:
    return texts.section(asked.texts, asked.column, asked.data)


def read(asked: FitRequest) -> Corpus:
    return texts.read(section(asked), texts.LEAST_TEXTS, Session())


def test_none_given(world: World, tmp_path):
    message = refused(request(world, texts=()), tmp_path)
    assert message.startswith(
        "--texts: none given; a fit needs texts of the kind that the student will embed: 200 at least"
    )
    assert "--texts documentation takes the sentences of Python's documentation" in message


def test_another_language(world: World, tmp_path):
    draw = random.Random(0)
    words = (
        "der Hund lief über das nasse Gras und bellte laut zum offenen Fenster hinauf während alle schliefen"
    ).split()
    german = [" ".join(draw.sample(words, 9)) for _ in range(300)]
    (tmp_path / "de.txt").write_text("\n".join(german), encoding="utf-8")
    message = refused(request(world, texts=(str(tmp_path / "de.txt"),)), tmp_path)
    assert message.startswith("--texts: the teacher's tokenizer cuts ") and message.endswith(
        "give a teacher of their language, or other texts"
    )


def test_the_share_of_whole_words():
    tokenizer = make_tokenizer()
    assert texts.whole_words(tokenizer, sentences(50)) > texts.OTHER
    assert texts.whole_words(tokenizer, ["the cat 12, - zzzzxq", ""]) == pytest.approx(
        2 / 3
    )  # numbers and signs are no words
    assert texts.whole_words(tokenizer, ["北京今天的天气很好"]) == 0.0
    assert texts.whole_words(tokenizer, [""]) == 0.0


def test_what_is_said_of_the_texts(world: World, tmp_path):
    lines = sentences(220) * 2 + [" ".join(sentences(30, seed=number)) for number in range(40)]
    (tmp_path / "some.txt").write_text("\n".join(lines), encoding="utf-8")
    asked = request(world, texts=(str(tmp_path / "some.txt"),))
    found = read(asked)
    line = texts.described(found, TeacherEncoder(asked.teacher))
    assert line.startswith(f"{len(found)} of ") and "gain from up to 20,000" in line
    trained_on = texts.training_section(section(asked), found, 1_240)
    assert trained_on["limit"] == 240 and trained_on["held_out"] == 24 and "paragraphs" not in trained_on
    assert trained_on["documentation_texts"] == 1_000, "general texts beside them"
    assert "limit" not in texts.training_section(section(asked), found, 2_000)


def test_long_texts_are_cut_and_short_ones_joined(world: World, tmp_path):
    (tmp_path / "long.txt").write_text(
        "\n".join(" ".join(sentences(6, seed=number)) for number in range(300)), encoding="utf-8"
    )
    asked = request(world, texts=(str(tmp_path / "long.txt"),))
    trained_on = texts.training_section(section(asked), read(asked), 1_500)
    assert trained_on["limit"] == 200 and trained_on["passages"] == {"texts": 300}
    built = corpus.build(texts.parsed(trained_on), Session(), 0)
    assert min(len(text.split()) for text in built.texts(range(built.training_count))) < 15
    short = request(world)
    trained_on = texts.training_section(section(short), read(short), 10_000)
    assert trained_on["paragraphs"] == {"texts": round(0.35 * len(read(short)))} and "limit" not in trained_on
    dear = texts.training_section(section(short), read(short), 1_500)  # a paragraph counts as several texts
    assert dear["limit"] < 500 / (1 + 0.35 * 3) and dear["paragraphs"]["texts"] == round(0.35 * dear["limit"])


def test_where_the_texts_lie(world: World, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = request(world, texts=("a/*.txt",))
    with pytest.raises(UserError, match=r"^--texts: .*a/\*.txt"):
        section(asked)
    with pytest.raises(UserError, match=r"^--texts: .*: no texts in this folder"):
        section(request(world, texts=(".",)))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "some.txt").write_text("A line.\nAnother.\n", encoding="utf-8")
    assert section(asked) == {"files": ["a/*.txt"]}, "relative to where it runs"
    assert texts.read(section(request(world, texts=("a",))), 2, Session(data=Path())).texts([0, 1]) == [
        "A line.",
        "Another.",
    ]
    inside = FitRequest(
        asked.teacher, ("a/*.txt", "documentation"), Budget(1, 1), column="body", data=tmp_path
    )
    assert section(inside) == {
        "files": ["a/*.txt"],
        "column": "body",
        "documentation_texts": texts.ENOUGH_TEXTS,
    }
    assert section(request(world, texts=("documentation",))) == {"files": [recipe.DOCUMENTATION]}
    (tmp_path / "a" / "some.txt").write_text(
        "lines that are wrapped\nat any word\n\nand divided by\nblank ones\n", encoding="utf-8"
    )
    assert section(asked)["unit"] == "auto"


def test_a_teacher_that_is_nowhere(world: World, tmp_path):
    message = refused(request(world, teacher=recipe.Teacher(model="no/where")), tmp_path)
    assert message == "--teacher: no folder 'no/where' here; if it is a hub id, give --revision"


def test_minutes_too_few(world: World, tmp_path):
    message = refused(request(world, minutes=0.5), tmp_path)
    assert message.startswith("--minutes 0.5: too few: the teacher embeds ") and message.endswith("; give 2")
    assert not (tmp_path / "fit").exists(), "the same folder can be given with more minutes"
