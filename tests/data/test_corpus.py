"""Building corpora: distinct rows from every file type; errors that name the file and the line."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edgedistill import recipe
from edgedistill.data import corpus
from edgedistill.errors import UserError
from edgedistill.runtime.sentences import sentences
from edgedistill.session import QUIET, Session

TEXTS = ["First text.", "Zweiter Text, mit Komma", 'third "quoted" text', "fourth 文 🙂", "fifth"]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))


def build(folder: Path, *texts: str, **options: Any) -> corpus.Corpus:
    return corpus.build(recipe.Rows(files=list(texts), **options), Session(data=folder), 0)


def all_of(made: corpus.Corpus) -> list[str]:
    return [text for chunk in made.chunks(3) for text in chunk]


MARKDOWN = """---
title: not read
---
# A `heading` of *one* line

A paragraph that is
wrapped, with [a link](https://example.org/x) and ![a picture](x.png).

* an item
  * one within it

    of two paragraphs

| one | two |
| --- | --- |
| 3   |     |

> quoted <b>text</b>

```sh
not read
```

    not read

<!-- not read -->
Setext
---
"""


def test_markdown_is_read_without_markup(tmp_path):
    (tmp_path / "a.md").write_text(MARKDOWN, encoding="utf-8")
    wrapped = "A paragraph that is wrapped, with a link and a picture."
    read = all_of(build(tmp_path, "a.md"))
    assert read == [
        "A heading of one line",
        wrapped,
        "an item",
        "one within it",
        "of two paragraphs",
        "one; two",
        "3",
        "quoted text",
        "not read",
        "Setext",
    ]
    (tmp_path / "test.md").write_text("Of two\n*paragraphs*\n", encoding="utf-8")
    assert all_of(build(tmp_path, "a.md", exclude=["test.md"])) == [
        text for text in read if text != "of two paragraphs"
    ]


def test_normalised_and_distinct_but_for_case(tmp_path):
    (tmp_path / "a.txt").write_text("  a \t b\u00a0c \n\nA B C\n   \nd\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("D\ne\n", encoding="utf-8")
    made = build(tmp_path, "a.txt", "b.txt")
    assert all_of(made) == ["a b c", "d", "e"]
    assert made.sources == [{"name": "a.txt", "texts": 2}, {"name": "b.txt", "texts": 1}]


def test_held_out_rows_come_last_and_are_drawn_by_the_seed(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(f"text {i}" for i in range(100)), encoding="utf-8")
    made = build(tmp_path, "a.txt", held_out=10)
    held = made.texts(made.held_out)
    assert (len(made), made.training_count, len(held)) == (100, 90, 10)
    assert sorted(all_of(made)) == sorted(f"text {i}" for i in range(100))
    other = corpus.build(recipe.Rows(files=["a.txt"], held_out=10), Session(data=tmp_path), 1)
    assert set(other.texts(other.held_out)) != set(held)
    assert other.fingerprint != made.fingerprint
    own = corpus.build(recipe.Rows(files=["a.txt"], held_out=10, seed=0), Session(data=tmp_path), 1)
    assert own.fingerprint == made.fingerprint


def test_limits_draw_evenly(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("\n".join(f"{name} {i}" for i in range(100)), encoding="utf-8")
    made = build(tmp_path, "*.txt", limit_per_file=10, limit=15)
    texts = all_of(made)
    assert len(texts) == 15
    assert texts[0] == "a 0"
    assert {t[0] for t in texts} == {"a", "b"}
    assert max(int(t[2:]) for t in texts) >= 80
    some = all_of(build(tmp_path, "*.txt", limit_per_file=10, limits={"b.txt": 30}))
    assert [sum(t[0] == name for t in some) for name in "ab"] == [10, 30]
    more = all_of(build(tmp_path, "*.txt", limits={"b.txt": 30}))
    assert [sum(t[0] == name for t in more) for name in "ab"] == [100, 30]
    with pytest.raises(UserError, match=r"rows\.limits: c\.txt is none of the files"):
        build(tmp_path, "*.txt", limits={"c.txt": 30})


def test_lines_are_joined_to_paragraphs(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("\n".join(f"{name} {i}" for i in range(50)), encoding="utf-8")
    (tmp_path / "leak.txt").write_text("a 3\n", encoding="utf-8")
    plain = build(tmp_path, "?.txt", exclude=["leak.txt"], held_out=10)
    made = build(
        tmp_path, "?.txt", exclude=["leak.txt"], held_out=10, paragraphs={"texts": 20, "words": [6, 8]}
    )
    held = made.texts(made.held_out)
    assert held == plain.texts(plain.held_out)
    assert all_of(made)[: plain.training_count] == all_of(plain)[: plain.training_count]
    more = all_of(made)[plain.training_count : made.training_count]
    assert 18 <= len(more) <= 20
    assert made.sources[-1] == {"name": "paragraphs of their lines", "texts": len(more)}
    for text in more:
        lines = [" ".join(pair) for pair in pairwise(text.split())][::2]
        numbers = [int(line[2:]) for line in lines]
        assert len({line[0] for line in lines}) == 1  # of one source
        assert numbers == sorted(numbers)
        assert not {*lines} & {*held, "a 3"}
        assert 3 <= len(lines) <= 4 or numbers[-1] >= 47  # or the source ended
    assert {text[0] for text in more} == {"a", "b"}


def test_texts_are_cut_into_sentences_and_runs_of_them(tmp_path):
    """Each passage once; those of held-out texts are held out, and an excluded sentence is never a
    passage."""
    texts = [
        " ".join(f"Sentence {n} of text {t} is here." for n in range(5)) + " They all end like this."
        for t in range(12)
    ]
    (tmp_path / "a.txt").write_text("\n".join([*texts, "Only one sentence in this text."]) + "\n")
    (tmp_path / "leak.txt").write_text("Sentence 2 of text 3 is here.\n")
    made = build(tmp_path, "a.txt", exclude=["leak.txt"], held_out=3, passages={})
    rows = all_of(made)
    trained, held = rows[: made.training_count], rows[made.training_count :]
    assert sum(text in texts or text.startswith("Only") for text in trained) == 10
    whole = [text for text in held if text in texts]
    assert len(whole) >= 2 and set(held[: len(whole)]) <= {*texts, "Only one sentence in this text."}
    assert not set(trained) & set(held)
    for passage in [text for text in trained if text not in texts]:
        assert any(passage in text for text in texts if text not in whole) or passage.startswith("Only")
    assert "They all end like this." not in trained, "it is a sentence of held-out texts"
    assert held.count("They all end like this.") == 1
    assert "Sentence 2 of text 3 is here." not in rows
    runs = [text for text in trained if 1 < text.count("Sentence") < 5]
    assert runs and all(text.count(".") <= 4 for text in runs)
    assert made.sources[-1] == {"name": "passages of their texts", "texts": len(rows) - 13}, (
        "with those of held-out texts"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "One sentence is here. No. Another one is here!",
            ["One sentence is here.", "No. Another one is here!"],
        ),
        (
            "in lower case it is . the results were obtained .",
            ["in lower case it is .", "the results were obtained ."],
        ),
        ("in lower case, e.g. here. it ends in Rome.", ["in lower case, e.g. here.", "it ends in Rome."]),
        ("He said “it is so now.” And then he left us", ["He said “it is so now.”", "And then he left us"]),
        ("Das ist ein langer Satz. Kurz.", ["Das ist ein langer Satz. Kurz."]),
        (
            "这是第一个很长的句子。这是第二个很长的句子。",
            ["这是第一个很长的句子。", "这是第二个很长的句子。"],
        ),
        ("好。这是第二个很长的句子。对。", ["好。这是第二个很长的句子。对。"]),
        ("no end", ["no end"]),
    ],
)
def test_sentences_of_a_text(text: str, expected: list[str]):
    assert sentences(text, 4) == expected


def test_lines_up_to_a_blank_one_are_a_paragraph(tmp_path):
    (tmp_path / "a.txt").write_text("The first line\nand the second.\n\n \nAnother paragraph.\n")
    assert sorted(all_of(build(tmp_path, "a.txt", unit="paragraph"))) == [
        "Another paragraph.",
        "The first line and the second.",
    ]
    assert len(build(tmp_path, "a.txt")) == 3


def test_documentation_is_added_and_never_held_out(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"This is the text number {n}.\n" for n in range(20)))
    made = build(tmp_path, "a.txt", held_out=5, documentation_texts=30)
    assert made.training_count == 15 + 30 and made.sources[-1] == {
        "name": "Python's documentation",
        "texts": 30,
    }
    assert all(made[row].startswith("This is the text") for row in made.held_out)


def test_words_of_paragraphs_must_ascend():
    with pytest.raises(ValueError, match="must be ascending"):
        recipe.Paragraphs(texts=1, words=(9, 8))


def test_excluded_texts_are_left_out_whatever_their_column(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (tmp_path / "test.tsv").write_text("sentence1\tsentence2\nFIRST  text.\tfifth\n", encoding="utf-8")
    (tmp_path / "test.jsonl").write_text('{"q": "fourth 文 🙂", "n": 1}\n', encoding="utf-8")
    assert all_of(build(tmp_path, "a.txt", exclude=["test.*"])) == TEXTS[1:3]


def test_the_same_corpus_is_built_once(tmp_path):
    (tmp_path / "a.txt").write_text("a\nb\n", encoding="utf-8")
    lines: list[str] = []
    first = corpus.build(recipe.Rows(files=["a.txt"]), Session(data=tmp_path, log=lines.append), 0)
    logged = len(lines)
    again = corpus.build(recipe.Rows(files=["a.txt"]), Session(data=tmp_path, log=lines.append), 0)
    assert logged > 0
    assert len(lines) == logged
    assert again.folder == first.folder
    (tmp_path / "a.txt").write_text("a\nc\n", encoding="utf-8")
    assert all_of(build(tmp_path, "a.txt")) == ["a", "c"]


BAD = [
    ("a.txt", b"good\n\xff\xfe bad\n", "a.txt: line 2: byte 0xff is not UTF-8; convert the file"),
    ("a.txt", b"x" * 1_000_000 + b"\n", "line 1 is over 400,000 bytes; split the file into lines"),
    ("a.txt", b"", "nothing to train on: 0 of 0 texts"),
    ("a.txt", b" \n\t\n\n", "nothing to train on: 0 of 3 texts"),
    (
        "a.md",
        b"good\n\n" + b"wrapped words\n" * 10_000,
        "a.md: line 3 is a text of 139,999 characters, the limit is 100,000",
    ),
    ("a.md", b"---\nonly: front matter\n---\n", "nothing to train on: 0 of 0 texts"),
    ("a.tsv", b"id\tcount\n1\t2\n", "a.tsv: no column with words"),
    ("a.jsonl", b'{"text": "x"}\n{"text": \n', "line 2: not JSON"),
]


@pytest.mark.parametrize(
    ("name", "content", "message"), BAD, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(BAD)]
)
def test_bad_files_are_named_and_nothing_is_left(tmp_path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        build(tmp_path, name)
    assert not list((tmp_path / "cache").rglob("*.*"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("leak.jsonl", b'{"text": \n', "line 1: not JSON"),
        ("leak.jsonl", b"[1]\n", "line 1: a JSON list"),
        ("leak.parquet", b"no", "not a parquet"),
    ],
)
def test_bad_files_of_leaks_are_named_too(tmp_path, name: str, content: bytes, message: str):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        build(tmp_path, "a.txt", exclude=["leak.*"])


def test_where_the_data_is_not(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        build(tmp_path, "no/*.txt")
    with pytest.raises(UserError, match="give --data DIR or set EDGEDISTILL_DATA"):
        corpus.build(recipe.Rows(files=["a.txt"]), QUIET, 0)


def test_hub_data_sets_come_through_datasets(tmp_path):
    """The real loading path, on a data set that is a local folder."""
    pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text(
        "".join(json.dumps({"text": t}) + "\n" for t in TEXTS), encoding="utf-8"
    )
    spec = recipe.Rows(dataset=str(tmp_path / "set"), revision="main")
    assert all_of(corpus.build(spec, QUIET, 0)) == TEXTS
    with pytest.raises(UserError, match="no column 'body'.*set rows.column"):
        corpus.build(recipe.Rows(dataset=str(tmp_path / "set"), revision="main", column="body"), QUIET, 0)


def test_of_several_columns_each_file_has_its_own(tmp_path, monkeypatch):
    """Tables of languages: a file is read in those columns that it has, and must have one of them."""
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.tsv").write_text("en\tde\na b\tc d\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"en": "e f", "fr": "g h"}\n', encoding="utf-8")
    pq.write_table(pa.table({"nl": ["i j"], "id": [3]}), tmp_path / "c.parquet")

    def texts(columns: list[str], *names: str) -> list[str]:
        built = corpus.build(recipe.Rows(files=list(names), column=columns), Session(data=tmp_path), 0)
        return sorted(built.texts(np.arange(len(built))))

    everywhere = ["a.tsv", "b.jsonl", "c.parquet"]
    assert texts(["en", "de", "fr", "nl"], *everywhere) == ["a b", "c d", "e f", "g h", "i j"]
    with pytest.raises(UserError, match="a.tsv: no column 'fr'"):
        texts(["fr", "nl"], *everywhere)
    with pytest.raises(UserError, match="no column 'es'"):
        texts(["en", "nl", "es"], *everywhere)
