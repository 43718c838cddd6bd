"""The texts of files answer a question: what is read, what is kept between calls, and what is refused."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from edgedistill import search_files
from edgedistill.embed_file import EmbeddingFile, TextFile, embed_file
from edgedistill.errors import UserError
from edgedistill.runtime.bundle import Bundle, load
from edgedistill.search_files import Search, search
from edgedistill.session import Session
from tests.data.test_input_files import pdf
from tests.export.test_export import make_run
from tests.export.test_pair_bundle import paired
from tests.test_cli import call

PAGE = """# Refunds

Your money is paid back within ten days, to the card that you paid with.

# Delivery

We send books by post. They arrive after two or three days, and later on islands.
"""
QUESTION = "How do I get my money back?"


@pytest.fixture(scope="module")
def nano() -> Bundle:
    return load("nano", threads=1)


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a page, lines, wrapped prose, a table, a picture, and a hidden folder."""
    folder = tmp_path / "docs"
    (folder / "more").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "a.txt").write_text("How do I get my money back?\n")
    (folder / "page.md").write_text(PAGE, encoding="utf-8")
    (folder / "lines.txt").write_text("A cat sleeps.\nThe train leaves at nine.\nA cat sleeps.\n")
    wrapped = (
        "The shop is closed on\nSunday, and all trains\nstop in the next town.\n\nA second\nparagraph.\n"
    )
    (folder / "more" / "wrapped.txt").write_text(wrapped)
    (folder / "rows.csv").write_text("id,text\n1,The invoice is in the parcel.\n")
    (folder / "other.tsv").write_text("a\tb\n1\t2\n")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "binary.txt").write_bytes(b"a\0\0\0\0\0")
    monkeypatch.chdir(tmp_path)
    return folder


def asked(nano: Bundle, paths: list[str], session: Session, question: str = QUESTION, **more: Any) -> Any:
    return search(nano, Search(paths, question, **more), session)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(cache_folder=tmp_path / "cache")


def test_no_passage_spans_the_pages_of_a_pdf(nano: Bundle, docs: Path, session: Session):
    (docs / "short.pdf").write_bytes(pdf(["The shop opens at nine."], ["The cat sleeps."], ["Red shoes."]))
    found = asked(nano, ["docs/short.pdf"], session, top=9)["results"]
    assert {(each["page"], each["text"]) for each in found} == {
        (1, "The shop opens at nine."),
        (2, "The cat sleeps."),
        (3, "Red shoes."),
    }


def test_a_folder_is_read_whole(nano: Bundle, docs: Path, session: Session):
    found = asked(nano, ["docs"], session, top=99)
    assert {(each["file"], each.get("line")): each["text"] for each in found["results"]} == {
        ("docs/lines.txt", 1): "A cat sleeps.",
        ("docs/lines.txt", 2): "The train leaves at nine.",
        (
            "docs/more/wrapped.txt",
            1,
        ): "The shop is closed on Sunday, and all trains stop in the next town.",
        ("docs/more/wrapped.txt", 5): "A second paragraph.",
        ("docs/rows.csv", 2): "The invoice is in the parcel.",
        (
            "docs/page.md",
            1,
        ): "Refunds\nYour money is paid back within ten days, to the card that you paid with.\n"
        "Delivery\nWe send books by post. They arrive after two or three days, and later on islands.",
    }
    assert (found["read"]["files"], found["texts"]) == (4, 6)
    assert list(found["read"]["skipped"]) == ["docs/binary.txt", "docs/other.tsv"]
    assert search_files.summary(found) == (
        "4 files, 6 texts (4 not read, or in part: --json); too few texts to tell whether any is close"
    )
    assert found["results"][0]["line"] == 1 and found["results"][0]["file"] == "docs/page.md"


def test_a_pattern_stands_for_all_that_it_names(nano: Bundle, docs: Path, session: Session):
    found = asked(nano, ["docs/*"], session, "Where is the invoice?", column="text")
    assert list(found["read"]["skipped"]) == ["docs/binary.txt", "docs/other.tsv", "docs/picture.png"]
    best = found["results"][0]
    assert (best["file"], best["line"], best["text"]) == ("docs/rows.csv", 2, "The invoice is in the parcel.")
    found = asked(nano, ["docs/*.tsv"], session, "q", column="b")
    assert [each["text"] for each in found["results"]] == ["2"] and not found["read"]["skipped"]


def test_the_ranking_is_that_of_the_bundle_and_bm25(nano: Bundle, docs: Path, session: Session):
    paths, question = ["docs/lines.txt", "docs/more/*.txt"], "the train"
    alone = asked(nano, paths, session, question, top=3, weight=0)
    texts = [
        "A cat sleeps.",
        "The train leaves at nine.",
        "The shop is closed on Sunday, and all trains stop in the next town.",
        "A second paragraph.",
    ]
    numbers, cosines = nano.search(question, texts, 3)
    assert [each["text"] for each in alone["results"]] == [texts[at] for at in numbers]
    assert np.allclose([each["cosine"] for each in alone["results"]], cosines, atol=0.01)
    assert {each["bm25"] for each in alone["results"]} == {None} and alone["ranked_by"] == "cosine"
    joined = asked(nano, paths, session, "second train", weight=50.0)
    assert joined["ranked_by"] == "cosine above the mean + 50 × BM25" and joined["embedded"] == 0
    assert joined["results"][0]["bm25"] > joined["results"][3]["bm25"] == 0
    scores = [each["score"] for each in joined["results"]]
    assert scores == sorted(scores, reverse=True)
    (docs / "lines.txt").write_text("def f(x): return x\n")
    assert (
        asked(nano, paths[:1], session)["ranked_by"] == "cosine above the mean + 0.25 × BM25, in source code"
    )


def test_without_the_extra_cosines_decide(nano: Bundle, docs: Path, session: Session, monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    found = asked(nano, ["docs/lines.txt"], session, "a cat")
    assert found["results"][0]["text"] == "A cat sleeps." and found["results"][0]["bm25"] is None
    assert search_files.summary(found).endswith(
        "; ranked by cosine alone (BM25 needs bm25s, which is not installed; in your clone of edgedistill: "
        'pip install ".[search]")'
    )


@pytest.mark.parametrize("student", ["nano", "multi"])
@pytest.mark.parametrize(
    "text",
    [
        "so today we talk about bread and let the dough rest " * 200,
        " ".join(f"set_{at}_x9(q{at * 7919 % 997}, 0x{at * 104729:x});" for at in range(150)),
        "Właściciele największych przedsiębiorstw sprzeciwiają się nowym przepisom. " * 40,
        "我们今天谈谈怎样在家里烤面包" * 200,
        "Dr. Smith met Mr. Jones. " * 100,
    ],
    ids=["transcript", "code", "Polish", "Chinese", "abbreviations"],
)
def test_every_word_of_a_text_is_read(student: str, text: str):
    opened = load(student, threads=1)
    parts = opened.passages(text.strip())
    assert len(parts) > 1 and max(opened.token_counts(parts)) <= opened.max_tokens
    assert "".join(parts).replace(" ", "") == text.replace(" ", ""), "nothing is lost, nothing is twice"
    assert not any(part.endswith(("Dr.", "Mr.")) for part in parts)


def test_a_heading_stays_with_its_section(nano: Bundle, docs: Path, session: Session):
    (docs / "page.md").write_text("# Refunds\n\n" + "Your money is paid back within nine days. " * 60)
    found = asked(nano, ["docs/page.md"], session, "refunds", top=99)
    (first,) = [hit["text"] for hit in found["results"] if "Refunds" in hit["text"]]
    assert first.startswith("Refunds\nYour money is paid back") and found["texts"] > 1


def test_only_what_has_changed_is_embedded_again(nano: Bundle, docs: Path, session: Session, monkeypatch):
    first = asked(nano, ["docs", "docs/*.?sv"], session)
    (docs / "lines.txt").write_text("A dog sleeps.\nThe train leaves at nine.\n")
    (docs / "rows.csv").rename(docs / "moved.csv")
    again = asked(nano, ["docs", "docs/*.?sv"], session)
    assert (first["embedded"], again["embedded"], again["texts"]) == (6, 1, 6)
    assert asked(nano, ["docs", "docs/*.?sv"], session, "another question")["embedded"] == 0
    assert {each["file"] for each in again["results"]} >= {"docs/moved.csv"}
    monkeypatch.setattr(search_files, "CHUNK", 1)
    monkeypatch.setattr(search_files, "MANY", 1)
    (docs / "lines.txt").write_text("A cow sleeps.\nThe bus leaves at nine.\n")
    logged = Mock(side_effect=[None, None, None, KeyboardInterrupt])  # as the first texts are embedded
    with pytest.raises(KeyboardInterrupt):
        asked(nano, ["docs", "docs/*.?sv"], replace(session, log=logged))
    assert "2 new texts; name a folder" in logged.call_args_list[2].args[0]
    assert asked(nano, ["docs", "docs/*.?sv"], session)["embedded"] == 1
    (docs / "moved.csv").unlink()
    assert asked(nano, ["docs", "docs/*.?sv"], session)["embedded"] == 0
    kept = list(session.cache.rglob("embeddings.npy"))
    assert len(kept) == 1 and len(np.load(kept[0])) == 5, "what is gone is not kept"
    assert asked(load("micro", threads=1), ["docs", "docs/*.?sv"], session)["embedded"] == 5, "another bundle"


@pytest.mark.parametrize(
    ("paths", "question", "message"),
    [
        (["docs"], " \n", "the question is empty; give one, in quotes"),
        (["nowhere/*.md"], "q", "search: 'nowhere/*.md': no such file or folder; give"),
        (["docs/more", "mirco"], "q", "search: 'mirco': no such file or folder; did you mean 'micro'?"),
        (["docs/picture.png"], "q", "docs/picture.png: no file type '.png'"),
        (["docs/binary.txt"], "q", "docs/binary.txt: binary, or UTF-16 without a byte order mark"),
        (["docs/other.tsv"], "q", "docs/other.tsv: no column with words; name one"),
        (["docs/empty*"], "q", "docs/empty.txt: no text found"),
    ],
)
def test_what_is_refused(
    nano: Bundle, docs: Path, session: Session, paths: list[str], question: str, message: str
):
    (docs / "empty.txt").write_text("\n\n")
    with pytest.raises(UserError) as caught:
        asked(nano, paths, session, question)
    assert str(caught.value).startswith(message)
    assert not session.cache.exists()


def test_a_column_of_no_table_is_refused(nano: Bundle, docs: Path, session: Session):
    with pytest.raises(UserError, match="--column body: no table in docs/lines.txt; leave it out"):
        asked(nano, ["docs/lines.txt"], session, column="body")


def test_a_pipe_is_refused_by_name(nano: Bundle, session: Session, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        UserError, match="pipe: a pipe, which can be read only once; write what it gives to a file"
    ):
        asked(nano, [str(tmp_path / "pipe")], session)


def test_every_place_of_a_text_is_shown(nano: Bundle, session: Session, tmp_path):
    (tmp_path / "a.txt").write_text("A cat sleeps.\n")
    (tmp_path / "b.txt").write_text("A dog.\nA cat sleeps.\n")
    (tmp_path / "c.txt").symlink_to(tmp_path / "a.txt")
    found = asked(nano, [str(tmp_path)], session, "cat")
    places = [{"file": str(tmp_path / name), "line": line} for name, line in (("b.txt", 2), ("c.txt", 1))]
    assert found["results"][0]["also"] == places
    assert f"a.txt:1\n     also {tmp_path / 'b.txt'}:2\n     also " in search_files.table(found)


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.html"])
def test_the_line_where_a_part_of_a_paragraph_begins(nano: Bundle, session: Session, tmp_path, name: str):
    lines = [f"Pump{at} of house{at} is <b>reset{at}</b> by holding{at} green{at}" for at in range(60)]
    lines = [line if name != "a.txt" else re.sub("<.*?>", "", line) for line in lines]
    (tmp_path / name).write_text("A title\n\n" + "\n".join([*lines, "button.", "", "The end."]) + "\n")
    results = asked(nano, [str(tmp_path)], session, top=99)["results"]
    begun = {each["line"]: re.search(r"\d+", each["text"]) for each in results if each["line"] > 3}
    assert len(begun) > 3
    assert all(found is None or line - 3 == int(found[0]) for line, found in begun.items())


@pytest.mark.parametrize("count", [1, 2])
def test_what_the_vocabulary_lacks_is_counted(nano: Bundle, session: Session, tmp_path, count: int):
    """Also where the embeddings come from the cache; what stands between two cells is none of it."""
    texts = [
        "\u0e44\u0e17\u0e22\u0e20\u0e32\u0e29\u0e32\t",
        "\U0001f600\t",
        "hello " + "a" * 3000 + "\thello",
    ]
    (tmp_path / "a.tsv").write_text("\n".join(["one\ttwo", *texts, ""]), encoding="utf-8")
    found = [asked(nano, [str(tmp_path)], session, "hello", column="one,two") for _ in range(count)]
    out = EmbeddingFile(tmp_path / "a.npy", overwrite=True)
    found += [embed_file(nano, TextFile(tmp_path / "a.tsv", "one,two"), out)]
    for each in found:
        assert (each["read"]["unknown_tokens"], each["read"]["unknown_texts"]) == (3, 2)


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0, 1e39])
def test_a_weight_must_be_a_number(nano: Bundle, docs: Path, session: Session, weight: float):
    with pytest.raises(UserError, match=f"^--hybrid-weight: {re.escape(str(weight))} is not from 0"):
        asked(nano, [str(docs)], session, "q", weight=weight)


def test_the_command(docs: Path, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))
    command = ("search", QUESTION, "nano", "docs/*.md", "docs/rows.csv")
    told = call(*command, folder=tmp_path)
    lines = told.stdout.splitlines()
    assert told.returncode == 0 and lines[0].split() == ["#", "score", "cosine", "BM25", "where"]
    assert re.fullmatch(r"  1 +\d\.\d\d +0\.\d\d +\d\.\d\d  docs/page\.md:1", lines[1])
    page = " · ".join(line.removeprefix("# ") for line in PAGE.split("\n") if line)
    assert "".join(lines[2:4]).replace(" ", "") == page.replace(" ", "")
    assert lines[4].split()[::4] == ["2", "docs/rows.csv:2"] and len(lines) == 6
    assert " ".join(told.stderr.split()) == (
        "2 files, 2 texts (1 not read, or in part: --json); too few texts to tell whether any is close"
    )
    told = call(*command, "--json", "--top", "1", "--hybrid-weight", "0", folder=tmp_path)
    found = json.loads(told.stdout)
    assert len(found["results"]) == 1 and (found["embedded"], found["ranked_by"]) == (0, "cosine")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ("nano", ["."])),
        ("docs|micro:int8|.", ("micro:int8", ["docs", "."])),
        ("docs/*.md|nano|none/*", ("nano", ["docs/*.md", "none/*"])),
    ],
)
def test_what_stands_behind_the_question(docs: Path, line: str, expected: object):
    assert search_files.arguments("docs", line.split("|") if line else ["."]) == expected
    with pytest.raises(UserError, match="'docs' is a file or a folder; put a question before it: "):
        search_files.arguments("docs", [])


def test_a_long_text_is_cut_to_three_lines(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    hit = {
        "file": "a.txt",
        "line": 7,
        "text": "many words " * 40,
        "also": [],
        "score": 3.2,
        "cosine": 0.5,
        "bm25": None,
    }
    answer: Any = {"results": [hit], "close": None}
    head, first, *cut = search_files.table(answer).splitlines()
    assert head == "  #   score  cosine  where" and first == "  1    3.20    0.50  a.txt:7" and len(cut) == 3
    assert all(len(line) <= 60 for line in cut) and cut[2].endswith(" …")
    answer = {"results": [hit | {"bm25": 0.004}], "close": False}
    assert "    <.01  a.txt:7" in search_files.table(answer)


def test_a_pair_searches_with_both_encoders(docs: Path, session: Session, tmp_path):
    run = make_run(tmp_path / "run", "static")
    paired(run, run, tmp_path / "pair")
    found = asked(load(tmp_path / "pair"), ["docs/lines.txt"], session, "a cat", weight=0)
    assert found["texts"] == 2 and search_files.table(found).count("\n") == 5
