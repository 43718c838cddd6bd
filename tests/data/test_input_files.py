"""Files of texts of every kind: found by name, read by type, and where they are damaged, refused in one line
that names file and place."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedistill import recipe
from edgedistill.data import corpus, document_text, file_patterns, labelled_tasks, readers
from edgedistill.data import rows as training_rows
from edgedistill.embed_file import TextFile
from edgedistill.errors import UserError
from edgedistill.evaluation.suites import suite_files
from edgedistill.reading import Reading
from edgedistill.session import Session
from edgedistill.teacher.precomputed_embeddings import PrecomputedEmbeddings

TEXTS = ["First text.", "two, with a comma", "third 文 🙂", "a fourth", "the fifth one"]
BOM = b"\xef\xbb\xbf"


def parquet(columns: dict[str, Any], **options: Any) -> bytes:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as module

    buffer = io.BytesIO()
    module.write_table(pa.table(columns), buffer, **options)
    return buffer.getvalue()


def objects(texts: list[Any]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def table(separator: str) -> bytes:
    quote = '"' if separator == "," else ""
    return "".join(
        f"{quote}{cell}{quote}{separator}{at}\n" for at, cell in enumerate(["text", *TEXTS])
    ).encode()


CONTENT: dict[str, Callable[[], bytes]] = {
    ".txt": lambda: "\n".join(TEXTS).encode(),
    ".md": lambda: "\n\n".join(TEXTS).encode(),
    ".markdown": lambda: "\n\n".join(TEXTS).encode(),
    ".mdx": lambda: "\n\n".join(TEXTS).encode(),
    ".rst": lambda: "\n\n".join(TEXTS).encode(),
    ".html": lambda: "<!doctype html><title>x</title><p>".join(["", *TEXTS]).encode(),
    ".htm": lambda: "".join(f"<li>{text}" for text in TEXTS).encode(),
    ".tsv": lambda: table("\t"),
    ".csv": lambda: table(","),
    ".jsonl": lambda: objects(TEXTS),
    ".ndjson": lambda: objects(TEXTS),
    ".json": lambda: json.dumps([{"text": text} for text in TEXTS], indent=1).encode(),
    ".parquet": lambda: parquet({"text": TEXTS, "n": list(range(5))}),
}
# How each command reads the texts of a file.
READERS: dict[str, Callable[[Path], Any]] = {
    "embed": lambda path: list(TextFile(path).texts()),
    "corpus": lambda path: list(readers.texts_in(path, unit="auto")),
    "excluded": lambda path: list(readers.texts_in_every_column(path)),
    "columns": lambda path: list(readers.columns_in(path, ("text",), "--column")),
}


@pytest.mark.parametrize("suffix", CONTENT)
def test_the_type_is_that_of_the_ending_in_any_case_and_of_the_content(tmp_path, suffix: str):
    data = CONTENT[suffix]()
    files = {
        f"a{suffix}": data,
        f"B{suffix.upper()}": data,
        f"c{suffix}.GZ": gzip.compress(data),
        f"packed{suffix}": gzip.compress(data),
    }
    files |= (
        {}
        if suffix == ".parquet"
        else {f"bom{suffix}": BOM + data, f"bom2{suffix}.gz": gzip.compress(BOM + data)}
    )
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert READERS["embed"](tmp_path / name) == READERS["corpus"](tmp_path / name) == TEXTS, name


def test_json_of_each_form(tmp_path):
    path = tmp_path / "a.json"
    for content in (json.dumps(TEXTS).encode(), BOM + json.dumps(TEXTS).encode(), objects(TEXTS)):
        path.write_bytes(content)
        assert READERS["embed"](path) == TEXTS


NOT_TEXT = {  # content: what it is called
    TEXTS[0].encode("utf-16-le"): "binary, or UTF-16 without a byte order mark",
    "東京の天気".encode("iso2022_jp"): "ISO-2022, not UTF-8",
    "今天天气".encode("hz"): "HZ, not UTF-8",
    "Café".encode("utf-7"): "UTF-7, not UTF-8",
    b"\x1b(I6@E2": "ISO-2022, not UTF-8",
    b"\0" * 5_000: "binary",
    b"PK\x03\x04 an .xlsx": "zip archive",
    b"%PDF-1.7": "a PDF",
    b"PAR1 and so on": "parquet",
    b"caf\xe9": "is not UTF-8",
}


@pytest.mark.parametrize("content", NOT_TEXT, ids=list(NOT_TEXT.values()))
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl.gz", "a.md"])
def test_what_is_no_text_is_refused_by_name(tmp_path, name: str, content: bytes):
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(UserError, match=rf"{name}: .*{NOT_TEXT[content]}"):
        READERS["embed"](tmp_path / name)


@pytest.mark.parametrize("name", ["a", "a.log", "a.xlsx", "a.xhtml.gz"])
def test_an_unknown_type_is_never_text(tmp_path, name: str):
    (tmp_path / name).write_bytes(b"a text\n")
    for read in READERS.values():
        with pytest.raises(UserError, match=rf"{name}: no file type.*\.csv.*rename it"):
            read(tmp_path / name)
    with pytest.raises(UserError, match="no file type"):
        TextFile(tmp_path / name).check()


DAMAGED: list[tuple[str, Callable[[], bytes], str]] = [
    ("a.csv", lambda: b'id,text\n1,good\n2,"not\nclosed\n3,c\n', "line 3: a quote .* is not closed"),
    ("a.csv", lambda: b'id,text\n1,"a\nb"\n2,x,y\n', "line 4 has 3 columns, the header 2"),
    (
        "a.txt",
        lambda: b"good\nold\rMac\r",
        "line 2 holds a carriage return; save the file with line ends of LF",
    ),
    ("a.csv", lambda: b"text\rgood\r", "line 1 holds a carriage return"),
    ("a.csv", lambda: b'id,text\n1,"closed"too early\n', "line 2: ',' expected after '\"'"),
    ("a.csv", lambda: b"id;text\n1;a;b\n", "divided by ';'; save it with commas"),
    ("a.csv", lambda: b"id,in;text\n1,a;b\n", "divided by ',' or ';'; say which"),
    ("a.tsv", lambda: b"id,text\n1,a\n", "divided by ','"),
    ("a.csv", lambda: b"text,text\na,b\n", "2 columns are named 'text'"),
    ("a.jsonl", lambda: objects(["good"]) + b'{"text": "x", "text": "y"}\n', "line 2: .* key 'text' twice"),
    ("a.json", lambda: b'[{"text": "x", "text": "y"}]', "key 'text' twice"),
    ("a.jsonl", lambda: objects(["good", None]), "line 2: column 'text' is null"),
    (
        "a.json",
        lambda: json.dumps([{"text": "good"}, {"text": None}]).encode(),
        "item 2: column 'text' is null",
    ),
    ("a.parquet", lambda: parquet({"text": ["good", None]}), "row 2: column 'text' is null"),
    ("a.parquet", lambda: parquet({"text": [[1], [2]]}), "row 1: column 'text' holds list, not text"),
    ("a.jsonl", lambda: objects(["good", "half \ud83d emoji"]), r"line 2: half a surrogate pair \(\\ud83d\)"),
    ("a.json", lambda: json.dumps(["good", "\udc00"]).encode(), "item 2: half a surrogate pair"),
    ("a.jsonl", lambda: objects(["good"]) + b"[" * 100_000, "line 2: nested too deeply"),
    ("a.json", lambda: b"[" * 100_000, "its content: nested too deeply"),
    ("a.jsonl", lambda: b'{"text": "x"}\n{"text": {}}\n', "line 2: column 'text' holds dict, not text"),
    ("a.json", lambda: b'["good", [3]]', "item 2: a JSON list"),
    ("a.txt", lambda: b"good\n" + b"x" * 20_000_000, "line 2 is over"),
    ("a.txt.gz", lambda: gzip.compress(b"\0x" * 10_000_000, 1), "line 1 is over|binary"),
    ("a.jsonl.gz", lambda: gzip.compress(b" " * 20_000_000, 1), "line 1 is over"),
    (
        "a.csv",
        lambda: b'text\n"' + (b"x" * 9_999 + b"\n") * 1_700,
        "line 2: a quote .* is not closed",
    ),
    ("a.json", lambda: b"[" + b" " * 20_000_000 + b"]", "read whole; save it as .jsonl"),
    ("a.md", lambda: (b"word " * 1_000 + b"\n") * 1_700, "a .md file is read whole"),
    ("a.txt.gz", lambda: gzip.compress(gzip.compress(b"good")), "gzip within gzip"),
    ("a.txt.gz", lambda: b"good\n", "ends in .gz and is not"),
    (
        "a.parquet",
        lambda: parquet({"text": TEXTS * 99}, compression="snappy", use_dictionary=False)[:-40],
        "at its start: damaged",
    ),
    (
        "a.parquet",
        lambda: not_utf8(parquet({"text": ["good", "QQQQ"]}, compression="none", use_dictionary=False)),
        "row 2: byte 0xff is not",
    ),
]


def not_utf8(data: bytes) -> bytes:
    return data.replace(b"QQQQ", b"QQ\xff\xff")


@pytest.mark.parametrize(
    ("name", "content", "message"), DAMAGED, ids=[f"{name}-{message[:25]}" for name, _, message in DAMAGED]
)
def test_a_damaged_file_is_named_with_its_line(
    tmp_path, name: str, content: Callable[[], bytes], message: str
):
    (tmp_path / name).write_bytes(content())
    for way in ("embed", "corpus"):
        with pytest.raises(UserError, match=rf"{re.escape(str(tmp_path / name))}: .*({message})") as caught:
            READERS[way](tmp_path / name)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def pairs(path: Path) -> Any:
    part = {"files": [str(path)], "languages": ["en", "de"], "columns": ["text", "label"]}
    spec = recipe.Rows.model_validate({"tables": [part]})
    return training_rows.build(spec, Session(cache_folder=path.parent / "cache"), 0)


def given(path: Path) -> list[Any]:
    texts = path.with_name("texts.txt")
    texts.write_text("\n".join(TEXTS), encoding="utf-8")
    spec = recipe.Teacher(embeddings=str(path), texts=str(texts) if path.suffix == ".npy" else None)
    return list(PrecomputedEmbeddings(spec, None).blocks(path))


def npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.eye(5, 8, dtype=np.float32))
    return buffer.getvalue()


LABELLED = {
    "text": TEXTS * 9,
    "label": ["yes", "no", "no", "no", "yes"] * 9,
    "_id": list("abcde") * 9,
    "embedding": [[0.5, 1.0]] * 45,
}
LABELLED_ROWS = [dict(zip(LABELLED, row, strict=True)) for row in zip(*LABELLED.values(), strict=True)]
FUZZED: dict[str, Callable[[], bytes]] = {
    "a.jsonl": lambda: "".join(json.dumps(row) + "\n" for row in LABELLED_ROWS).encode(),
    "a.json": lambda: json.dumps(LABELLED_ROWS).encode(),
    "a.csv": lambda: "".join(
        f'"{row["text"]}",{row["label"]},{row["_id"]}\n'
        for row in [dict.fromkeys(LABELLED, "text"), *LABELLED_ROWS]
    ).encode(),
    "a.parquet": lambda: parquet(LABELLED, compression="snappy"),
    "b.parquet": lambda: parquet(LABELLED, compression="none", use_dictionary=False),
    "a.npy": npy,
}
FUZZED |= {
    f"{name}.gz": lambda make=make: gzip.compress(make(), 1)
    for name, make in FUZZED.items()
    if name != "a.npy"
}  # type: ignore[misc]
ALL_READERS = READERS | {
    "pairs": pairs,
    "labels": lambda path: labelled_tasks.read_table(path, ["text"], "label", "task"),
    "suite": lambda path: list(
        suite_files.records(path) if "json" in path.name else suite_files.columns(path, ["text"])
    ),
    "precomputed": given,
}


NAMES = [
    "notes [2024]/a.txt",
    "minutes [draft].txt",
    "[a",
    "a]b.txt",
    "what?/x y.txt",
    "наши 🙂/é.txt",
    "plain/deep/er/b.txt",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in NAMES:
        path = tmp_path / (name if name.endswith(".txt") else f"{name}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a text\n")
    return tmp_path


def found(folder: Path, *patterns: str) -> list[str]:
    return [
        path.relative_to(folder).as_posix()
        for path in file_patterns.matching_files(list(patterns), folder, "--texts")
    ]


def test_a_name_that_exists_is_that_file(tree: Path, monkeypatch):
    every = [path.relative_to(tree).as_posix() for path in sorted(tree.rglob("*.txt"))]
    assert len(every) == len(NAMES)
    for name in every:
        assert found(tree, name) == found(tree, str(tree / name)) == found(tree, name, name) == [name]
        folder = (tree / name).parent
        monkeypatch.chdir(folder)
        _, matched = file_patterns.given(["*.txt"], None, "--texts")
        assert Path(Path(name).name) in matched
    assert found(tree, "**/*.txt") == found(tree, "**") == every
    assert found(tree, "notes [[]2024]/*") == ["notes [2024]/a.txt"], "a pattern that escapes brackets"
    assert found(tree, "notes [2024]*/[ab].txt") == ["notes [2024]/a.txt"], "brackets of both kinds"
    assert found(tree, "plain/*/??/b.txt") == ["plain/deep/er/b.txt"]
    for pattern, message in (
        ("no/*.txt", "no such file"),
        ("a\0b", "no such file"),
    ):
        with pytest.raises(UserError, match=message):
            found(tree, pattern)


def test_a_folder_is_its_texts_and_tables(tree: Path):
    every = found(tree, "**/*.txt")
    for name in (
        "plain/.c.txt",
        ".git/d.md",
        "node_modules/e/f.md",
        "v/site-packages/f.md",
        "plain/g.py",
        "env/pyvenv.cfg",
        "env/f.md",
        "mine/manifest.json",
        "mine/parity.json",
        "mine/README.md",
        "pair/manifest.json",
        "pair/document/README.md",
        "run/recipe.yaml",
        "run/tokenizer/vocabulary.txt",
        "mine-suite/suite.yaml",
        "mine-suite/made/corpus.jsonl",
        "out/student.bin",
        "out/README.md",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("no text\n")
    for name in (
        "plain/h.MD",
        "plain/deep/i.rst.gz",
        "plain/j.html",
        "plain/k.pdf",
        "plain/a.csv",
        "plain/b.docx",
    ):
        (tree / name).write_text("a text\n")
        every.append(name)
    assert sorted(found(tree, "")) == sorted(found(tree, str(tree))) == sorted(every)
    assert sorted(found(tree / "plain", ".")) == sorted(
        name.removeprefix("plain/") for name in every if name.startswith("plain/")
    )
    assert sorted(found(tree, "**/*.[mM][dD]")) == ["plain/h.MD"], "no hidden folder, no installed package"
    assert "plain/.c.txt" not in found(tree, "plain/**/*.txt")
    assert found(tree, "plain/.c*", ".git/*.md") == ["plain/.c.txt", ".git/d.md"]
    assert found(tree / "node_modules", "**/*.md") == ["e/f.md"]
    assert found(tree, "mine-suite", "env") == ["mine-suite/made/corpus.jsonl", "env/f.md"]
    (tree / "code").mkdir()
    (tree / "code" / "a.py").write_text("no text\n")
    with pytest.raises(UserError, match=r"--texts: .*'code': no texts in this folder .*, but 1 .py;"):
        found(tree, "code")


def test_what_cannot_be_read_of_a_folder_is_skipped_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    unread = {"config.json": '{\n  "a": 1\n}\n', "letter.docx": "PK", "latin.txt": "until here\ncaf\xe9"}
    unread |= {"deep/empty.md": "\n", "empty.md": "\n", "gone.txt": "", "red\x1b[31m.txt": "\xff"}
    for name, content in {
        **unread,
        "good.txt": "A cat sleeps.\n",
        "table.csv": "id,title,body\n1,Refunds,They take nine days.\n",
        "deep/sheet.xlsx": "PK",
        "deep/LICENSE": "A text without ending.\n",
    }.items():
        (folder / name).write_bytes(content.encode("latin-1"))
    (folder / "gone.txt").unlink()
    (folder / "gone.txt").symlink_to("nowhere.txt")
    os.mkfifo(folder / "pipe.txt")
    matched = file_patterns.matching_files(["texts"], tmp_path, "--texts")
    assert not any(map(readers.is_wrapped, matched)), "adapt asks for it first"
    session = Session(data=tmp_path)
    built = corpus.build(recipe.Rows(files=["texts"]), session, 0)
    assert sorted(built) == ["A cat sleeps.", "Refunds · They take nine days."]
    assert session.reading.files == 2
    pipe = str(folder / "pipe.txt")
    assert sorted(session.reading.skipped) == sorted([pipe, *(f"texts/{name}" for name in unread)])
    assert session.reading.skipped[pipe] == "a pipe or a device"
    assert session.reading.skipped["texts/latin.txt"].startswith("line 2: byte 0xe9 is not UTF-8")
    assert session.reading.columns == {str(folder / "table.csv"): ["title", "body"]}
    assert session.reading.not_read == {str(folder / "table.csv"): {"columns": ["id"]}}
    assert session.reading.line.isprintable()
    assert (
        "; other types, not read: 1 without ending, 1 .xlsx; " in session.reading.line
        and session.reading.line.endswith("--json names all")
    )
    again = Session(data=tmp_path)
    corpus.build(recipe.Rows(files=["texts"]), again, 0)
    assert again.reading.report == session.reading.report, "a cached corpus tells it too"
    with pytest.raises(UserError, match=r"latin.txt: line 2"):
        corpus.build(recipe.Rows(files=["texts/latin.txt"]), session, 0)


def test_what_is_skipped_has_no_other_note():
    reading = Reading()
    reading.leave_out("a.csv", "columns", "id")
    reading.skip("a.csv", UserError("a.csv: line 9: damaged; fetch it again"))
    assert reading.line == "read 0 files; skipped 1: a.csv (line 9: damaged); --json names all"


@pytest.fixture
def no_root() -> Iterator[Path]:
    """A folder of a user who may not open everything."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.seteuid(user)


def test_what_is_closed_or_no_file_is_named(no_root: Path):
    for name in ("a/open.txt", "b/of.txt", "c/of.txt"):
        (no_root / name).parent.mkdir()
        (no_root / name).write_text("a text\n")
    os.mkfifo(no_root / "a" / "pipe.txt")
    (no_root / "b").chmod(0o444)
    (no_root / "c").chmod(0)
    os.seteuid(os.geteuid() or 65_534)
    for pattern in ("", "*/*.txt", "**/*.txt", "?/*"):
        reading = Reading()
        matched = file_patterns.matching_files([pattern], no_root, "--texts", reading)
        assert [path.name for path in matched] == ["open.txt", "of.txt"], "its reader says of the second"
        assert sorted(Path(name).name for name in reading.skipped) == ["c", "pipe.txt"]
    with pytest.raises(UserError, match=r"c/\*.*permission denied"):
        found(no_root, "c/*")
    with pytest.raises(PermissionError):
        READERS["embed"](no_root / "b" / "of.txt")


def test_linked_folders_are_entered_once(tree: Path):
    (tree / "aside").mkdir()
    (tree / "aside" / "c.txt").write_text("a text\n")
    top = tree / "plain"
    for name, target in {
        "up": "..",
        "self": ".",
        "a-link": "deep",
        "linked": "../aside",
        "again": "../aside",
        "broken": "none",
    }.items():
        (top / name).symlink_to(target)
    texts = found(tree, "plain/**/*.txt")
    assert "plain/deep/er/b.txt" in texts, "under its own name, not a link's"
    real = [os.path.realpath(tree / name) for name in texts]
    assert len(set(real)) == len(real) == len(NAMES) + 1


def test_what_preflight_finds_is_what_is_read(tree: Path, monkeypatch):
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tree / "cache"))
    built = corpus.build(
        recipe.Rows(files=[str(tree / "notes [2024]" / "*.txt"), "minutes [draft].txt"]),
        Session(data=tree),
        0,
    )
    assert built.sources == [{"name": "a.txt", "texts": 1}, {"name": "minutes [draft].txt", "texts": 0}]


# ---- documents

PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>Not this</title><style>p {color: red}</style>
<body class="x"><nav><a href="/">Home</a></nav>
<h1>Resetting the
pump</h1><p>Hold the <b>green</b> <a href="#">button</a> for 3&nbsp;s.<script>"<p>not"</script>
Then &lt;wait&gt;.
<pre>not("this")</pre><ul><li>One<li>Two &amp; a half<br>lines</ul><table><tr><td>12<td>bar</table>
<!-- not this --><template>nor this</template></body></html>
"""
FOUND = [(3, "Home"), (4, "Resetting the pump"), (5, "Hold the green button for 3 s. Then <wait>.")]
FOUND += [(7, 'not("this")'), (7, "One"), (7, "Two & a half"), (7, "lines"), (7, "12; bar")]


def test_the_prose_of_a_web_page(tmp_path):
    assert list(document_text.hypertext(PAGE)) == FOUND
    assert list(document_text.hypertext("<p>a</select>")) == [(1, "a")]
    damage = ("<", "<!--", "<p ", "p", "<p a='>", "<svg></pre>", "</p", "&#x110000;", "<![CDATA[")
    for damaged in ("<" + each * 20_000 for each in damage):
        list(document_text.hypertext(damaged))  # in any way, but at once and without an error
    (tmp_path / "a.html").write_text(PAGE, encoding="utf-8")
    assert list(readers.texts_in(tmp_path / "a.html")) == [text for _, text in FOUND]
    (tmp_path / "b.html").write_bytes(PAGE.encode() + b"caf\xe9")
    with pytest.raises(UserError, match=r"b.html: line 9: byte 0xe9 is not UTF-8; convert the file"):
        list(readers.texts_in(tmp_path / "b.html"))


def pdf(*pages: list[str]) -> bytes:
    """A document with these lines on its pages."""
    pypdf = pytest.importorskip("pypdf")
    from pypdf.generic import DictionaryObject, NameObject, StreamObject

    writer, file = pypdf.PdfWriter(), io.BytesIO()
    font = b"<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    for lines in pages:
        page, content = writer.add_blank_page(612, 792), StreamObject()
        shown = "".join(f"({line}) Tj T*\n" for line in lines)
        content.set_data(f"BT /F1 12 Tf 14 TL 72 720 Td\n{shown}ET".encode("latin-1"))
        page[NameObject("/Contents")] = content
        page[NameObject("/Resources")] = DictionaryObject.read_from_stream(io.BytesIO(font), None)
    writer.write(file)
    return file.getvalue()


def test_the_paragraphs_of_a_pdf(tmp_path):
    first = ["The pump is reset by holding the green button", "for three seconds.", "Then it starts again by"]
    document = pdf([*first, "itself."], ["A second page."])
    for name, data in (("a.pdf", document), ("b.PDF", document), ("c.pdf.gz", gzip.compress(document))):
        (tmp_path / name).write_bytes(data)
        assert READERS["embed"](tmp_path / name) == [
            "The pump is reset by holding the green button for three seconds.",
            "Then it starts again by itself.",
            "A second page.",
        ]
    for name, data, message in (
        ("empty.pdf", b"", "at its start: damaged"),
        ("text.pdf", b"a text\n" * 99, "at its start: damaged"),
        ("cut.pdf", document[:60], "at its start: damaged"),
        ("torn.pdf", document.replace(b"second page.)", b"second page. "), "page 2: damaged"),
        (
            "scan.pdf",
            pdf([], []),
            r"no text in its 2 page\(s\); recognize it first, for example with ocrmypdf",
        ),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=f"{name}: {message}"):
            READERS["corpus"](tmp_path / name)
    draw = np.random.default_rng(0)
    for number in range(60):
        broken = bytearray(document)
        for at in draw.integers(0, len(broken), 1 + number % 7):
            broken[at] = draw.integers(0, 256)
        (tmp_path / "broken.pdf").write_bytes(broken)
        with contextlib.suppress(UserError):
            READERS["embed"](tmp_path / "broken.pdf")


def test_glyphs_of_a_pdf_that_stand_for_no_character_are_named(tmp_path):
    (tmp_path / "a.pdf").write_bytes(pdf(["A page\x01 of\x02 text."], ["\x01\x02\x03 \x05"]))
    reading = Reading()
    assert list(readers.texts_in(tmp_path / "a.pdf", reading=reading)) == ["A page of text."]
    named = {"characters without Unicode": ["2 on page 1", "4 on page 2"], "pages without text": [2]}
    assert reading.not_read == {str(tmp_path / "a.pdf"): named}
    (tmp_path / "b.pdf").write_bytes(pdf(["abcd"]).replace(b"/Helvetica", b"/X /Encoding /Identity-H"))
    assert list(readers.texts_in(tmp_path / "b.pdf", reading=reading))
    assert reading.not_read[str(tmp_path / "b.pdf")] == {"fonts without Unicode": ["X on page 1"]}
    (tmp_path / "b.pdf").write_bytes(pdf(["/g12/g7ab"]))
    assert list(readers.texts_in(tmp_path / "b.pdf")) == ["ab"]
    (tmp_path / "a.pdf").write_bytes(pdf(["\x01\x02"]))
    with pytest.raises(UserError, match="no text in its 1 page"):
        list(readers.texts_in(tmp_path / "a.pdf"))


def test_notes_and_fields_of_a_pdf(tmp_path):
    pypdf = pytest.importorskip("pypdf")
    from pypdf import generic
    from pypdf.annotations import FreeText

    writer, name, text = pypdf.PdfWriter(), generic.NameObject, generic.TextStringObject
    writer.add_blank_page(200, 200)
    writer.add_annotation(0, FreeText(text="Ask at the desk.", rect=(10, 10, 90, 90)))
    values = [text("Jane"), name("/Yes"), generic.ArrayObject([text("red"), text("/blue")])]
    notes = [{"/Subtype": name("/Widget"), "/V": value} for value in values]
    notes += [{"/Subtype": name("/Text"), "/Contents": text("A remark.")}]
    notes += [{**notes[-1], "/F": generic.NumberObject(2)}, {**notes[-1], "/Subtype": name("/Popup")}]
    caption = generic.DictionaryObject({name("/CA"): text("Send")})
    notes += [{**notes[0], "/V": name("/Off"), "/Ff": generic.NumberObject(1 << 16), "/MK": caption}]
    notes += [{**notes[0], "/V": name("/Off"), "/MK": caption}]
    notes += [{"/Subtype": name("/Stamp"), "/RC": text("<body><p>Paid <b>today</b></p></body>")}]
    look = generic.StreamObject()
    look.set_data(b"BT /F1 9 Tf (Drawn.) Tj ET")
    font = generic.DictionaryObject({name("/Subtype"): name("/Type1"), name("/BaseFont"): name("/Helvetica")})
    fonts = generic.DictionaryObject({name("/F1"): font})
    look[name("/Resources")] = generic.DictionaryObject({name("/Font"): fonts})
    drawn = generic.DictionaryObject({name("/N"): writer._add_object(look)})
    notes += [{"/Subtype": name("/Stamp"), "/AP": drawn}]
    for note in notes:
        note["/Rect"] = generic.RectangleObject((0, 0, 9, 9))
        writer.add_annotation(0, generic.DictionaryObject({name(key): note[key] for key in note}))
    writer.add_attachment("order.xml", b"")
    writer.write(tmp_path / "form.pdf")
    reading = Reading()
    read = list(readers.texts_in(tmp_path / "form.pdf", reading=reading))
    assert read[:5] == ["Ask at the desk.", "Jane", "red", "/blue", "A remark."]
    assert read[5:] == ["Send", "Paid today", "Drawn."]
    assert reading.not_read == {str(tmp_path / "form.pdf"): {"attachments": ["order.xml"]}}


def test_documents_that_another_program_converts(tmp_path):
    (tmp_path / "a.docx").write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError) as caught:
        READERS["embed"](tmp_path / "a.docx")
    command = f"pandoc --to plain --wrap none {tmp_path / 'a.docx'} --output a.txt"
    assert str(caught.value).endswith(f"convert it first, for example: {command}")
