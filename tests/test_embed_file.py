"""Files of texts become embeddings, whatever their format."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgedistill import embed_file as module
from edgedistill.embed_file import EmbeddingFile, TextFile, embed_file
from edgedistill.errors import UserError
from edgedistill.export import bundle_writer
from edgedistill.runtime.bundle import Bundle, load
from edgedistill.session import Session
from tests.conftest import sentences
from tests.export.test_export import make_run

TEXTS = [*sentences(12, seed=3), "", "a", 'she said "no",\tand left' * 2]


@pytest.fixture(scope="module")
def nano() -> Bundle:
    return load("nano", threads=1)


def write_rows(path: Path, texts: list[str]):
    with (
        gzip.open(path, "wt", newline="", encoding="utf-8")
        if path.suffix == ".gz"
        else path.open("w", newline="") as file
    ):
        rows = [
            ("id", "question", "text"),
            *((str(at), f"question {at}", text) for at, text in enumerate(texts)),
        ]
        csv.writer(file).writerows(rows)


def write_parquet(path: Path, texts: list[str]):
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    rows = {
        "id": list(range(len(texts))),
        "question": [f"question {at}" for at in range(len(texts))],
        "text": texts,
    }
    parquet.write_table(pyarrow.table(rows), buffer)
    path.write_bytes(gzip.compress(buffer.getvalue()) if path.suffix == ".gz" else buffer.getvalue())


WRITERS: dict[str, Callable[[Path, list[str]], None]] = {
    "t.csv.gz": write_rows,
    "t.parquet": write_parquet,
    "t.parquet.gz": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_column_of_a_table(nano: Bundle, tmp_path, name: str, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_TEXTS", 7)
    WRITERS[name](tmp_path / name, TEXTS)
    embed_file(nano, TextFile(tmp_path / name), EmbeddingFile(tmp_path / "v.npy"))
    assert np.allclose(np.load(tmp_path / "v.npy"), nano.encode(TEXTS), atol=1e-4)
    embed_file(nano, TextFile(tmp_path / name, "question"), EmbeddingFile(tmp_path / "q.npy"))
    assert np.allclose(
        np.load(tmp_path / "q.npy"), nano.encode([f"question {at}" for at in range(len(TEXTS))]), atol=1e-4
    )
    with pytest.raises(
        UserError, match=rf"{name}: .*no (text )?column 'qestion'; did you mean 'question'\?.*--column"
    ):
        embed_file(nano, TextFile(tmp_path / name, "qestion"), EmbeddingFile(tmp_path / "none.npy"))
    assert not (tmp_path / "none.npy").exists()


def test_a_plain_file_becomes_an_array(nano: Bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_TEXTS", 7)
    source = tmp_path / "texts.txt"
    source.write_bytes(
        b"\xef\xbb\xbf" + "\r\n".join(TEXTS).encode()
    )  # a byte order mark, and the line ends of Windows
    logged: list[str] = []
    result = embed_file(
        nano, TextFile(source), EmbeddingFile(tmp_path / "out" / "v.npy"), session=Session(log=logged.append)
    )
    assert result.pop("read")["files"] == 1
    assert result.pop("space") == nano.space
    assert result == {"texts": 15, "dims": 384, "out": tmp_path / "out" / "v.npy"}
    assert logged == [f"{tmp_path / 'out' / 'v.npy'}: 15 texts, 384 dimensions", "read 1 file"]
    assert np.allclose(np.load(tmp_path / "out" / "v.npy"), nano.encode(TEXTS), atol=1e-4)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["v.npy"]


def test_texts_that_are_cut_are_counted(nano: Bundle, tmp_path):
    (tmp_path / "long.txt").write_text("short\n" + "word " * 300 + "\n" + "word " * 254 + "\n")
    logged: list[str] = []
    session = Session(log=logged.append)
    result = embed_file(
        nano, TextFile(tmp_path / "long.txt"), EmbeddingFile(tmp_path / "v.npy"), session=session
    )
    assert (result["read"]["texts_cut"], result["read"]["tokens_cut"]) == (1, 302 - nano.max_tokens)
    assert logged[-1] == "read 1 file; 1 text cut at the encoder's limit, 46 tokens not read"


def test_columns_are_chosen_as_the_page_chooses(nano: Bundle, tmp_path):
    (tmp_path / "t.csv").write_text("id,title,body\n1,Refunds,They take nine days.\n2,Post,\n")

    def texts(column: str | None) -> list[str]:
        return list(TextFile(tmp_path / "t.csv", column).texts())

    assert texts(None) == texts("title,body")[:1] + ["Post"] == ["Refunds · They take nine days.", "Post"]
    assert texts("body") == ["They take nine days.", ""]


def test_a_packed_file_becomes_json_lines(nano: Bundle, tmp_path):
    source = tmp_path / "texts.txt.gz"
    source.write_bytes(gzip.compress("\n".join([*TEXTS[:9], "line\u2028separator"]).encode() + b"\n"))
    embed_file(nano, TextFile(source), EmbeddingFile(tmp_path / "v.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert [row["text"] for row in rows] == [*TEXTS[:9], "line\u2028separator"]
    assert np.allclose(
        [row["embedding"] for row in rows], nano.encode([row["text"] for row in rows]), atol=1e-4
    )


def test_stdin_to_stdout(nano: Bundle, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a text\n\nanother")))
    result = embed_file(nano, TextFile(), EmbeddingFile())
    assert (result["texts"], result["dims"], result["out"]) == (3, 384, None)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["a text", "", "another"]
    assert np.allclose([row["embedding"] for row in rows], nano.encode(["a text", "", "another"]), atol=1e-4)


def test_texts_in_a_role(tmp_path):
    source = make_run(tmp_path / "run", query_prompt="the dog ")
    bundle_writer.export(source, ["fp32"], tmp_path / "b", lambda line: None)
    (tmp_path / "t.txt").write_text("one\ntwo\n")
    opened, expected = load(tmp_path / "b"), {}
    for role in ("text", "query", "document"):
        embed_file(opened, TextFile(tmp_path / "t.txt", role=role), EmbeddingFile(tmp_path / f"{role}.npy"))
        expected[role] = np.load(tmp_path / f"{role}.npy")
    assert np.allclose(expected["query"], opened.encode_query(["one", "two"]), atol=1e-6)
    assert np.array_equal(expected["document"], expected["text"])
    assert not np.allclose(expected["query"], expected["text"], atol=1e-3)
    with pytest.raises(UserError, match=r"^role: no role 'querry'; did you mean 'query'\?"):
        embed_file(opened, TextFile(tmp_path / "t.txt", role="querry"), EmbeddingFile(tmp_path / "x.npy"))


@pytest.mark.parametrize("name", ["none.txt", "none.jsonl"])
def test_an_empty_file(nano: Bundle, tmp_path, name: str):
    (tmp_path / name).touch()
    for out in (EmbeddingFile(tmp_path / "new" / "v.npy"), EmbeddingFile()):
        with pytest.raises(UserError) as refused:
            embed_file(nano, TextFile(tmp_path / name), out)
        assert str(refused.value) == f"{tmp_path / name}: no text found; give another file"
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_an_existing_file_is_replaced_only_with_overwrite(nano: Bundle, tmp_path):
    (tmp_path / "t.txt").write_text("one\n")
    (tmp_path / "v.npy").write_text("mine")
    with pytest.raises(
        UserError,
        match=r"v\.npy: exists already; add --overwrite",
    ):
        embed_file(nano, TextFile(tmp_path / "t.txt"), EmbeddingFile(tmp_path / "v.npy"))
    assert (tmp_path / "v.npy").read_text() == "mine"
    embed_file(nano, TextFile(tmp_path / "t.txt"), EmbeddingFile(tmp_path / "v.npy", overwrite=True))
    assert np.load(tmp_path / "v.npy").shape == (1, 384)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "t.txt",
            b"good\nfine\nbad \xff here\n",
            r"t\.txt: line 3: byte 0xff is not UTF-8; convert the file",
        ),
        ("t.txt.gz", gzip.compress(b"good\n" * 999, mtime=0)[:-12], r"t\.txt\.gz: line 673: damaged"),
    ],
)
@pytest.mark.parametrize("out", ["v.npy", "v.jsonl"])
def test_a_damaged_line_leaves_nothing(
    nano: Bundle,
    tmp_path,
    monkeypatch,
    name: str,
    data: bytes,
    message: str,
    out: str,
):
    monkeypatch.setattr(module, "LONGEST_TEXT", 256)
    monkeypatch.setattr(module, "CHUNK_TEXTS", 1)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message):
        embed_file(nano, TextFile(tmp_path / name), EmbeddingFile(tmp_path / out))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_where_from_and_where_to(nano: Bundle, tmp_path):
    with pytest.raises(UserError, match=r"--out v\.csv: no format '\.csv'; choose one: \(\.jsonl, \.npy\)"):
        embed_file(nano, TextFile(), EmbeddingFile(Path("v.csv")))
    for source, fact in (
        (TextFile(tmp_path / "nothing.txt"), "nothing.txt: no such file"),
        (TextFile(tmp_path), "a folder"),
        (TextFile("-", "text"), "--column text: stdin"),
    ):
        with pytest.raises(UserError, match=fact):
            embed_file(nano, source, EmbeddingFile(tmp_path / "v.npy"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("precision", ["int8", "binary"])
def test_embeddings_in_fewer_bytes(nano: Bundle, tmp_path, capsys, precision: str):
    write_rows(tmp_path / "t.csv", TEXTS)
    expected = nano.encode([text.strip() for text in TEXTS], precision=precision)
    for name in ("out.npy", "out.jsonl"):
        embed_file(nano, TextFile(tmp_path / "t.csv"), EmbeddingFile(tmp_path / name, precision=precision))
    found = np.load(tmp_path / "out.npy")
    assert found.dtype == expected.dtype and np.array_equal(found, expected)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["embedding"] for line in lines] == expected.tolist()
    assert (tmp_path / "out.npy").stat().st_size < len(TEXTS) * nano.dims[0] + 200


def test_a_precision_of_embeddings_that_there_is_not(nano: Bundle, tmp_path):
    (tmp_path / "t.txt").write_text("a text\n")
    with pytest.raises(
        UserError, match="--embeddings: no precision of embeddings 'int4'; did you mean 'int8'?"
    ):
        embed_file(nano, TextFile(tmp_path / "t.txt"), EmbeddingFile(tmp_path / "x.npy", precision="int4"))
    assert not (tmp_path / "x.npy").exists()
