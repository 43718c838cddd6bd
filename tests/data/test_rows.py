"""Parallel corpora: columns by name and by number, distinct pairs, excluded texts, held-out source texts, and
the rows of both sides."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedistill import recipe
from edgedistill.data import rows as training_rows
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError, own_cache
from edgedistill.session import Session


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))


def write(folder: Path, name: str, rows: list[tuple[str, ...]]):
    text = "".join("\t".join(row) + "\n" for row in rows)
    (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())


def build(folder: Path, pairs: list[dict[str, Any]], **more: Any) -> Rows:
    tables = [{"languages": part["columns"], **part} for part in pairs]
    spec = recipe.Rows.model_validate({"tables": tables, **more})
    return training_rows.build(spec, Session(data=folder), 0)


def pairs_of(made: Rows, start: int = 0, end: int | None = None) -> list[tuple[str, str]]:
    return [(made.sides[0][int(a)], made.sides[1][int(b)]) for a, b in made.index[start:end]]


def test_named_and_numbered_columns_scores_and_the_rows_of_every_text(tmp_path):
    write(
        tmp_path,
        "ted.tsv.gz",
        [
            ("talk", "en", "de"),
            ("1", "Hello  there", "Hallo"),
            ("1", "One.", "Eins."),
            ("2", "", "leer"),
            ("2", "Two.", ""),
        ],
    )
    write(
        tmp_path,
        "wiki.tsv",
        [("1.30", "hello there", "Hola"), ("1.01", "Bad.", "Mal."), ("1.04", "Hi!", "Hallo")],
    )  # no header
    (tmp_path / "news.jsonl").write_text(json.dumps({"en": "One.", "fr": "Un."}) + "\n", encoding="utf-8")
    made = build(
        tmp_path,
        [
            {"name": "ted", "files": ["ted.tsv.gz"], "columns": ["en", "de"]},
            {
                "files": ["wiki.tsv"],
                "columns": [1, 2],
                "languages": ["en", "es"],
                "score_column": 0,
                "min_score": 1.04,
            },
            {"files": ["news.jsonl"], "columns": ["en", "fr"]},
        ],
    )
    expected = [
        ("Hello there", "Hallo"),
        ("One.", "Eins."),
        ("hello there", "Hola"),
        ("Hi!", "Hallo"),
        ("One.", "Un."),
    ]
    assert pairs_of(made) == expected
    assert made.sides[0].texts(range(len(made.sides[0]))) == [
        "Hello there",
        "One.",
        "hello there",
        "Hi!",
    ]
    assert made.index.tolist() == [[0, 0], [1, 1], [2, 2], [3, 0], [1, 3]]
    assert [(source["part"], source["languages"], source["trained"]) for source in made.sources] == [
        ("ted", ["en", "de"], 2),
        ("en-es", ["en", "es"], 2),
        ("en-fr", ["en", "fr"], 1),
    ]
    assert made.training_rows(["en-es", "en-fr"]).tolist() == [[2, 2], [3, 0], [1, 3]]
    assert made.training_rows(None).tolist() == made.index.tolist()


def test_pairs_are_distinct_but_for_case_and_without_excluded_texts_on_either_side(tmp_path):
    write(
        tmp_path,
        "a.tsv",
        [
            ("en", "de"),
            ("A cat.", "Eine Katze."),
            ("a CAT.", "eine katze."),
            ("A dog.", "Ein Hund."),
            ("A cow.", "Eine Kuh."),
        ],
    )
    write(tmp_path, "test.tsv", [("score", "text"), ("1", "ein  hund."), ("2", "a cow.")])
    assert pairs_of(
        build(tmp_path, [{"files": ["a.tsv"], "columns": ["en", "de"]}], exclude=["test.tsv"])
    ) == [("A cat.", "Eine Katze.")]
    with pytest.raises(UserError, match="no row is left of 4 read, 4 with an excluded text; "):
        build(tmp_path, [{"files": ["a.tsv"], "columns": ["en", "de"]}], exclude=["a.tsv"])


def rows(count: int) -> Iterator[tuple[str, str]]:
    for number in range(count):
        yield (
            f"text {number % (count // 2)}",
            f"{'Satz' if number < count // 2 else 'texto'} {number % (count // 3)}",
        )


def test_held_out_texts_take_all_their_translations_along(tmp_path):
    everything = list(rows(120))
    write(tmp_path, "a.tsv", [("en", "de"), *everything[:70]])
    write(tmp_path, "b.tsv", [("en", "de"), *everything[70:]])
    made = build(tmp_path, [{"files": ["*.tsv"], "columns": ["en", "de"]}], held_out=10)
    kept = list(dict.fromkeys(everything))
    assert sorted(pairs_of(made)) == sorted(kept)
    held, trained = pairs_of(made, made.training_count), pairs_of(made, 0, made.training_count)
    assert len({text for text, _ in held}) == 10 and not {text for text, _ in held} & {
        text for text, _ in trained
    }
    assert trained == [pair for pair in kept if pair in set(trained)]  # in the order they were read
    assert made.sides[0].training_count == len(made.sides[0]) - 10
    both = [made.sides[0], made.sides[1]]
    for side, texts in enumerate(both):
        assert sorted(texts.texts(range(len(texts)))) == sorted({pair[side] for pair in kept})
        assert set(texts.texts(range(texts.training_count))) == {pair[side] for pair in trained}
        assert made.index[: made.training_count, side].max() < texts.training_count
    assert made.sides[1].training_count < len(made.sides[1])
    assert sum(source["trained"] for source in made.sources) == made.training_count


def test_caps_draw_evenly_per_file_and_in_all(tmp_path):
    for name in ("a", "b"):
        write(
            tmp_path,
            f"{name}.tsv",
            [("en", "de"), *((f"{name} {number}", f"{number} {name}") for number in range(100))],
        )
    parts = [
        {"files": ["a.tsv"], "columns": ["en", "de"], "limit_per_file": 5},
        {"files": ["b.tsv"], "columns": ["en", "de"]},
    ]
    made = build(tmp_path, parts, limit_per_file=20)
    assert [source["pairs"] for source in made.sources] == [5, 20]
    assert [text for text, _ in pairs_of(made)[:5]] == ["a 0", "a 20", "a 40", "a 60", "a 80"]
    assert len(build(tmp_path, parts, limit=30)) == 30
    assert (
        len(build(tmp_path, parts, max_chars=3)) == 5 + 10
    )  # a 0 … a 9 fit, five of them are kept; b 0 … b 9


def test_the_same_pairs_are_the_same_corpus_and_others_are_not(tmp_path):
    write(tmp_path, "a.tsv", [("en", "de"), *rows(60)])
    part = [{"files": ["a.tsv"], "columns": ["en", "de"]}]
    one, again, other = build(tmp_path, part), build(tmp_path, part), build(tmp_path, part, held_out=3)
    assert one.fingerprint == again.fingerprint != other.fingerprint
    folder = one.sides[0].folder.parent
    assert build(tmp_path, part, licences={"a.tsv": "CC0"}).sides[0].folder.parent == folder
    swapped = [(de, en) for en, de in rows(60)]
    write(tmp_path, "a.tsv", [("en", "de"), *swapped])
    assert build(tmp_path, part).fingerprint != one.fingerprint
    assert not [
        path for path in folder.iterdir() if path.name.startswith(("spool", "buckets", "same", "rows-"))
    ]


@pytest.mark.parametrize(
    ("table", "part", "message"),
    [
        (
            [("en",), ("Hello",)],
            {"columns": ["en", "de"]},
            r"no column 'de'; choose en; set rows.tables\[0\].columns",
        ),
        (
            [("Hello",), ("Bye",)],
            {"columns": [0, 1], "languages": ["en", "de"]},
            r"line 1: no text column '1'; choose 0",
        ),
        (
            [("en", "fr"), ("Hello", "Salut")],
            {"columns": ["en", "de"]},
            r"no column 'de'.*set rows.tables\[0\].columns",
        ),
        (
            [("high", "Hello", "Hallo")],
            {"columns": [1, 2], "languages": ["en", "de"], "score_column": 0, "min_score": 1},
            "score 'high' is not a number",
        ),
    ],
)
def test_tables_that_hold_no_pairs(
    tmp_path, table: list[tuple[str, ...]], part: dict[str, Any], message: str
):
    write(tmp_path, "a.tsv", table)
    with pytest.raises(UserError, match=message):
        build(tmp_path, [{"files": ["a.tsv"], **part}])
    assert not list((own_cache() / "rows").glob("*"))


def test_too_few_texts_to_hold_out(tmp_path):
    write(tmp_path, "a.tsv", [("en", "de"), ("a", "b"), ("a", "c")])
    with pytest.raises(
        UserError, match="1 source texts are left, 1 are to be held out; add rows, or lower rows.held_out"
    ):
        build(tmp_path, [{"files": ["a.tsv"], "columns": ["en", "de"]}], held_out=1)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"columns": ["en", "de"]}, "give one of `files`, `dataset`"),
        ({"dataset": "owner/name", "columns": ["en", "de"]}, "needs a `revision`"),
        ({"files": ["a.tsv"], "columns": [-1, 0], "languages": ["en", "de"]}, "columns are counted from 0"),
        ({"files": ["a.tsv"], "columns": ["en", "en"]}, "names a column twice"),
        (
            {"files": ["a.tsv"], "columns": ["en", 1], "languages": ["en", "de"]},
            "give all columns as names, or all as numbers",
        ),
        (
            {"files": ["a.tsv"], "columns": ["en", "de"], "score_column": "margin"},
            "`score_column` and `min_score` go together",
        ),
    ],
)
def test_parts_that_cannot_be(part: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        recipe.Rows.model_validate(part)


def test_scores_may_be_numbers(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"en": "A cat.", "de": "Eine Katze.", "margin": 1.2},
        {"en": "A dog.", "de": "Kein Hund.", "margin": 1},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pq.write_table(
        pa.table(
            {key: [float(row[key]) if key == "margin" else row[key] for row in rows] for key in rows[0]}
        ),
        tmp_path / "a.parquet",
    )
    for name in ("a.jsonl", "a.parquet"):
        part = {"files": [name], "columns": ["en", "de"], "score_column": "margin", "min_score": 1.04}
        assert pairs_of(build(tmp_path, [part])) == [("A cat.", "Eine Katze.")]


def hub(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> recipe.Rows:
    """Pairs of a data set that `load` opens."""
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", load)
    columns = ["translation.en", "translation.de"]
    part = {"dataset": "owner/name", "revision": "main", "columns": columns, "languages": ["en", "de"]}
    return recipe.Rows.model_validate({"tables": [part]})


def test_a_hub_data_set_that_is_not_there(monkeypatch):
    def load(*asked: Any, **options: Any) -> Any:
        raise FileNotFoundError("Dataset 'owner/name' doesn't exist on the Hub")

    with pytest.raises(
        UserError, match=r"rows.tables\[0\].dataset: 'owner/name' at 'main', split 'train': .*doesn't exist"
    ):
        training_rows.build(hub(monkeypatch, load), Session(), 0)


def test_a_hub_data_set_by_nested_column(monkeypatch):
    rows: list[dict[str, Any]] = [
        {"id": 1, "translation": {"en": " Hello.", "de": "Hallo."}},
        {"id": 2, "translation": {"en": "No translation.", "de": None}},
    ]
    spec = hub(monkeypatch, lambda *asked, **options: rows)
    assert pairs_of(training_rows.build(spec, Session(), 0)) == [("Hello.", "Hallo.")]
    for odd, message in (
        ({"en": "Hello."}, r"owner/name: no column 'translation.de'.*rows.tables\[0\].columns"),
        ({"en": "Hello.", "de": [3]}, "owner/name: row 3: column 'translation.de' holds list, not text"),
    ):
        spec = hub(monkeypatch, lambda *asked, odd=odd, **options: [*rows, {"translation": odd}])
        with pytest.raises(UserError, match=message):
            training_rows.build(spec, Session(), len(odd))
