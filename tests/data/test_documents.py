"""What is read of documents and tables: what a reader of the page sees, as the standard of each has it."""

from __future__ import annotations

import csv
import json

import pytest

from edgedistill.data import document_text, readers
from edgedistill.errors import UserError
from edgedistill.reading import Reading

REFUNDS = "Refunds take nine days."
SHOWN = {  # around or in place of: what browsers show all the same
    "a revealed comment": f"<!--[if !mso]><!--><p>{REFUNDS}</p><!--<![endif]-->",
    "an empty comment": f"<!--><p>{REFUNDS}</p><!-- end -->",
    "a comment of one dash": f"<!---><p>{REFUNDS}</p>",
    "a comment that ends in !": f"<!-- note --!><p>{REFUNDS}</p>",
    "a script's string": f'<script>var open = "<!--"; run(open);</script><p>{REFUNDS}</p>',
    "an old script": f"<script><!--\nrun();\n</script><p>{REFUNDS}</p>",
    "an icon": "<p>Refunds <svg><title>no</title><path d=M0></svg> take <video src=x>no</video>nine days.",
    "a button": "<p>Refunds <button>take</button> nine<input type=hidden value=no> days.",
    "a page in a page": f'<iframe srcdoc="<p>{REFUNDS}<p hidden>no">no</iframe>',
    "an option": f"<select><option>{REFUNDS}</select>",
    "what has no player": f"<object data=x>{REFUNDS}</object><video>no</video>",
    "an attribute": f'<a title="<!-- begins a comment"></a><p>{REFUNDS}</p>',
    "a sign in quotes": '<p>Refunds <a title="Home > Shop" href="/x">take</a> nine days.</p>',
    "CDATA": f"<![CDATA[ no text ]]><p>{REFUNDS}</p>",
    "svg": f"<svg><title>no</title><text>{REFUNDS}</text></svg>",
    "a formula": "<p>Refunds take <math><mi>nine</mi></math> days.</p>",
    "details": f"<details><summary>{REFUNDS}</summary></details>",
    "a shadow root": f"<div><template shadowrootmode=open><p>{REFUNDS}<slot></slot></template></div>",
    "found by its reader": f"<p hidden=until-found>{REFUNDS}</p>",
    "another style": f'<p style="--display:none; background: url(?display:none)">{REFUNDS}</p>',
    "entities": "<p>Refunds&nbsp;take n&#105;ne days&period;</p>",
}
HIDDEN = [
    "<p hidden>no</p>",
    '<p style="display: none">no</p>',
    "<template>no</template>",
    "<noscript>no</noscript>",
]


@pytest.mark.parametrize("page", SHOWN.values(), ids=SHOWN)
def test_a_page_is_read_as_a_browser_shows_it(tmp_path, page: str):
    (tmp_path / "page.html").write_text(
        f"<!doctype html><body><p>First.</p>{page}{''.join(HIDDEN)}<p>Last.</p>"
    )
    assert list(readers.texts_in(tmp_path / "page.html")) == ["First.", REFUNDS, "Last."]


@pytest.mark.parametrize(
    "block",
    [
        f"<table><tr><td>{REFUNDS}</td></tr></table>",
        f'<p align="center">{REFUNDS}</p>',
        f"<details><summary>How?</summary>\n\n{REFUNDS}\n\n</details>",
        f"<Note>\n{REFUNDS}\n</Note>",
        f"<Select>\n{REFUNDS}\n</Select>",
        f"<ul>\n<li>{REFUNDS}</li>\n</ul>",
        f"---\n\n{REFUNDS}\n\n---",
    ],
)
def test_html_in_markdown_is_read(block: str):
    passages = dict(reversed(pair) for pair in document_text.markdown(f"# Report\n\n{block}\n\nThe end."))
    line = 3 + block[: block.index(REFUNDS)].count("\n\n") * 2
    assert passages[REFUNDS] in (line, line + 1) and {"Report", "The end."} <= set(passages)


@pytest.mark.parametrize("name", ["script", "title", "select", "dialog", "plaintext", "iframe src=x"])
def test_a_tag_without_its_end_hides_nothing_of_a_markdown_document(name: str):
    read = list(document_text.markdown(f"The <{name}> tag.\n\n{REFUNDS}\n\n<{name} />\n\nThe end.\n"))
    assert read == [(1, f"The <{name}> tag."), (3, REFUNDS), (7, "The end.")]


@pytest.mark.parametrize("mark", ["- ", "> ", "1. "])
def test_blocks_within_blocks_are_read(mark: str):
    assert list(document_text.markdown(f"{mark * 60}{REFUNDS}")) == [(1, REFUNDS)]


def test_an_image_is_its_alternative_text():
    document = f"![Refunds](a.png)![take *nine*](b.png)\n![days](c.png).\n\n<img alt='{REFUNDS}'>"
    assert list(document_text.markdown(document)) == [(1, REFUNDS), (4, REFUNDS)]
    assert list(document_text.hypertext("<p>(<img alt=a>)b<img alt=c>d", attributes=True)) == [
        (1, "(a)b c d")
    ]


@pytest.mark.parametrize(("name", "deep"), [("a.md", "> " * 20_000), ("a.html", "<div>" * 20_000)])
def test_what_is_nested_too_deeply_is_refused(tmp_path, name: str, deep: str):
    (tmp_path / name).write_text(deep + REFUNDS)
    with pytest.raises(UserError, match=f"{name}: its markup: nested too deeply"):
        list(readers.texts_in(tmp_path / name))


def test_placeholders_and_comments_without_an_end_are_text():
    document = "Put <your-name> in `x`, a List<String>.\n\nLine<br>break <p>and\n\n"
    document += '<Card title="Install" icon="x">in</Card>\n\n<Tab label="Two"/>\n\n<!-- open\n\nB.'
    read = " | ".join(text for _, text in document_text.markdown(document))
    assert (
        read
        == "Put <your-name> in x, a List<String>. | Line | break | and | Install | in | Two | <!-- open B."
    )
    assert [text for _, text in document_text.markdown("End.\n\n<Mangle text with no close")][-1].startswith(
        "<Mang"
    )


def test_lines_and_notes_of_markdown():
    document = "One[^1]  \ntwo.\n\n```\ncode\n```\n\n<ul>\n<li>A</li>\n<li>B</li>\n</ul>\n\n[^1]: Knuth\n"
    expected = [(1, "One[^1]"), (2, "two."), (5, "code"), (9, "A"), (10, "B"), (13, "[^1]: Knuth")]
    assert list(document_text.markdown(document)) == expected


def test_options_captions_and_rows_of_restructured_text():
    document = (
        ".. code-block:: c\n   :caption: Shown\n\n   code\n\n.. data:: LIMIT\n   :type: int\n   :value: 3\n"
        "   :noindex:\n   :synopsis: no\n\n   Told.\n\n.. graphviz::\n   :alt: A graph\n\n"
        ".. autoclass:: f(x)\n\n=== ===\nx   y\n=== ===\n1   2\n=== ===\n"
    )
    expected = [(1, "Shown"), (4, "code"), (6, "LIMIT: int = 3"), (12, "Told."), (14, "A graph")]
    left_out = list[tuple[str, str]]()
    read = list(document_text.restructured(document, lambda *part: left_out.append(part)))
    assert read == [*expected, (17, "f(x)"), (20, "x; y"), (22, "1; 2")]
    assert left_out == [("options", "data :synopsis:")]


@pytest.mark.parametrize(
    ("start", "read"),
    [
        ("---\ntitle: no\ntags: [a, b]\n---\n", [(5, REFUNDS)]),
        ("---\n\n# Terms\n\n---\n", [(3, "Terms"), (6, REFUNDS)]),
        ("---\nOf prose. It is none.\n\n---\n", [(2, "Of prose. It is none."), (5, REFUNDS)]),
    ],
)
def test_front_matter_is_a_mapping(start: str, read: list[tuple[int, str]]):
    left_out = list[tuple[str, str]]()
    assert list(document_text.markdown(start + REFUNDS, lambda *part: left_out.append(part))) == read
    assert left_out == [("front matter", key) for key in ("title", "tags") if key in start]


def test_what_a_page_hides_is_named():
    hidden = (
        '<dialog>a</dialog><div hidden>b</div><p style="display: none">c</p><noscript><i>d</i></noscript>'
    )
    hidden += "<iframe>e</iframe><template>i</template>"
    silent = "<head><title>e</title><meta name=Description content=g></head><script>f</script><rp>h</rp>"
    left_out = list[tuple[str, str]]()
    read = document_text.hypertext(f"{silent}{hidden}<p>{REFUNDS}", lambda *part: left_out.append(part))
    assert [text for _, text in read] == [REFUNDS]
    assert left_out[:2] == [("head", "<title>"), ("head", "<meta>")]
    assert left_out[2:] == [
        ("hidden", f"<{tag}>") for tag in ("dialog", "div", "p", "noscript", "iframe", "template")
    ]
    fields = (
        "<p>Refunds <img alt=no> take <input value=no>nine <textarea>no</textarea><b title=no aria-label=''>"
    )
    fields += "days.<script type=text/template>no</script>"
    read = document_text.hypertext(fields, lambda *part: left_out.append(part))
    assert [text for _, text in read] == [REFUNDS]
    expected = [("attributes", "<img>"), ("attributes", "<input>"), ("hidden", "<textarea>")]
    assert left_out[8:] == [*expected, ("attributes", "<b title>"), ("hidden", "<script>")]
    left_out.clear()
    read = document_text.hypertext(f"<p>{REFUNDS}<script/><p>no</body>", lambda *part: left_out.append(part))
    assert [text for _, text in read] == [REFUNDS] and left_out == [("hidden", "<script>")]


@pytest.mark.parametrize("place", ["", "> ", "   "])
def test_cells_that_a_table_has_no_column_for_are_named(place: str):
    rows = ["a | b |", "|-|-|", "| 1 | 2 | lost |", "1 | 2 | ", "| 3 |", r"| 4\|5 | 6 |", "7 | 8 | lost"]
    left_out = list[tuple[str, str]]()
    table = "\n".join(f"{place}{row}" for row in rows)
    read = document_text.markdown(f"A.\n\n{table}", lambda *part: left_out.append(part))
    assert [text for _, text in read] == ["A.", "a; b", "1; 2", "1; 2", "3", "4|5; 6", "7; 8"]
    assert left_out == [("cells", "line 5"), ("cells", "line 9")]


def test_attributes_of_components_that_are_not_read_are_named():
    left_out = list[tuple[str, str]]()
    document = f'<Card title="{REFUNDS}" message="no" /> <Tabs caption="" />'
    read = document_text.markdown(document, lambda *part: left_out.append(part))
    assert [text for _, text in read] == [REFUNDS] and left_out == [("attributes", "<Card>")]
    left_out.clear()
    document = f'```py title="no"\n{REFUNDS}\n```\n<x-y label=no>'
    read = document_text.markdown(document, lambda *part: left_out.append(part))
    assert [text for _, text in read] == [REFUNDS]
    assert left_out == [("attributes", "``` py"), ("attributes", "<x-y label>")]


def test_directives_that_are_not_read_are_named():
    directives = ["include:: a.rst", "csv-table:: Told", "raw:: html", "literalinclude:: a.py", "raw:: latex"]
    directives += ["title:: no"]
    options = ["", "   :file: a.csv", "   :url: b.html", "   :lines: 2-3", "\n   no", ""]
    document = "\n\n".join(f".. {each}\n{of}\n" for each, of in zip(directives, options, strict=True))
    left_out = list[str]()
    read = document_text.restructured(f"{document}\n{REFUNDS}", lambda _, which: left_out.append(which))
    assert [text for _, text in read] == [REFUNDS] and left_out == directives


@pytest.mark.parametrize("sign", "\u2028\f\x85\v\x1c")
@pytest.mark.parametrize("kind", [".md", ".rst", ".html", ".txt"])
def test_lines_end_where_editors_end_them(tmp_path, kind: str, sign: str):
    path, end = tmp_path / f"page{kind}", "<p>" if kind == ".html" else "\n"
    path.write_bytes(f"First{sign}part.\n{end}Second.\n{end}Third.\n".encode())
    assert [row for row in readers.numbered_texts(path) if row[1] in ("Second.", "Third.")] == [
        (2 if kind == ".html" else 3, "Second."),
        (3 if kind == ".html" else 5, "Third."),
    ]


@pytest.mark.parametrize(
    "data",
    [
        f'<style>{"p {} " * 600}</style><meta charset="ISO-8859-1"><p>Caf\xe9 \x80</p>'.encode("latin-1"),
        b'<meta http-equiv="Content-Type" content="text/html; charset=windows-1252"><p>Caf\xe9 \x80</p>',
        b'<?xml version="1.0" encoding="utf-8"?><p>Caf\xc3\xa9 \xe2\x82\xac</p>',
        "<!-- <meta charset=utf-16> --><meta charset=ascii><p>Café €".encode("cp1252"),
        "<meta content='charset=big5'><meta charset=latin1><p>Café €".encode(),
        "<meta charset=x-gbk><p>Caf\xe9 \u20ac".encode("gb18030"),
        "<p>Café €</p>".encode("utf-16"),
        "\ufeff<p>Café €</p>\r\n".encode(),
    ],
)
def test_a_declared_charset_is_honoured(tmp_path, data: bytes):
    (tmp_path / "page.html").write_bytes(data)
    assert list(readers.texts_in(tmp_path / "page.html")) == ["Café €"]


def test_an_unknown_charset_is_named(tmp_path):
    (tmp_path / "page.html").write_text('<meta charset="rot13"><p>Abc')
    with pytest.raises(UserError, match="page.html: charset 'rot13'"):
        list(readers.texts_in(tmp_path / "page.html"))


def test_a_byte_order_mark_names_the_encoding_of_lines(tmp_path):
    (tmp_path / "a.txt").write_bytes("Café\nzwei\r\n".encode("utf-16"))
    (tmp_path / "a.csv").write_bytes("text\nCafé\n".encode("utf-16-be").join([b"\xfe\xff", b""]))
    assert list(readers.numbered_texts(tmp_path / "a.txt")) == [(1, "Café"), (2, "zwei")]
    assert list(readers.texts_in(tmp_path / "a.csv")) == ["Café"]


def test_quotes_of_a_tsv_file(tmp_path):
    texts = ['She said "nine days" twice.', '"A" and "B"', "Plain.", '5" wide', "“Fine”"]
    with (tmp_path / "written.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([["id", "text"], *enumerate(texts)])
    assert list(readers.texts_in(tmp_path / "written.tsv")) == texts
    (tmp_path / "plain.tsv").write_text("text\n" + "\n".join([*texts, '"open']) + "\n")
    assert list(readers.texts_in(tmp_path / "plain.tsv")) == [*texts, '"open']


def test_tables_of_other_writers(tmp_path):
    excel = b"id;text\r\n1;A cat, black, sleeps.\r\n"
    written = (b"sep=;\r\n" + excel, excel, excel.replace(b";", b"\t").decode().encode("utf-16"))
    for number, content in enumerate(written):
        (tmp_path / "excel.csv").write_bytes(content)
        line = 2 if number else 3
        assert list(readers.numbered_texts(tmp_path / "excel.csv")) == [(line, "A cat, black, sleeps.")]
    path, items = (
        tmp_path / "whole.json",
        [{"name": "A cat", "note": "sleeps."}, {"name": "A dog", "note": 7}],
    )
    for indent in (None, 0, 2):
        path.write_text(json.dumps({"version": "two", "data": items, "ids": [1]}, indent=indent))
        read = Reading()
        assert list(readers.texts_in(path, None, reading=read)) == ["A cat · sleeps.", "A dog · 7"]
        assert set(read.not_read[str(path)]["keys"]) == {"version", "ids"}


def test_numbers_in_a_column_of_texts(tmp_path):
    """They are read as they are written, in every kind of table."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [("Galaxy phone", "S22", "0.10", "true"), ("Nokia phone", "3310", "1e-3", "false")]
    header = ["product", "model", "price", "sold"]
    with (tmp_path / "a.csv").open("w") as file:
        csv.writer(file).writerows([header, *rows])
    as_json = '{"product": "%s", "model": %s, "price": %s, "sold": %s}\n'
    lines = as_json % ("Galaxy phone", '"S22"', "0.10", "true") + as_json % rows[1]
    (tmp_path / "a.jsonl").write_text(lines)
    for name in ("a.csv", "a.jsonl"):
        path, read = tmp_path / name, Reading()
        assert list(readers.texts_in(path, None, reading=read)) == [
            "Galaxy phone · S22",
            "Nokia phone · 3310",
        ]
        assert read.not_read == {str(path): {"columns": ["price", "sold"]}}
        assert "Nokia phone · 3310" in readers.texts_in_every_column(path)
        assert list(readers.columns_in(path, header, "--column")) == rows
    table = {"model": [3310, 7], "price": pyarrow.array([0.1, 2], pyarrow.float32()), "sold": [True, None]}
    parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    assert next(readers.columns_in(tmp_path / "a.parquet", header[1:], "--column")) == ("3310", "0.1", "true")


def test_every_word_of_a_table_is_read(tmp_path):
    rows = [{"id": at, "of": {"title": "A cat"}, "tags": ["x", "7"]} for at in range(3_000)]
    rows += [{"id": "S7", "of": {"title": "A cat"}, "late": "sleeps"}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    read = list(readers.texts_in(tmp_path / "a.jsonl", None))
    assert (read[0], read[-1]) == ("0 · A cat · x", "S7 · A cat · sleeps")
    assert {"A cat", *read[::1000]} <= set(readers.texts_in_every_column(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    "text",
    [
        ":a" * 5_000,
        "*a " * 5_000,
        "`" * 20_000,
        "[" * 20_000,
        "<svg><math><pre>" * 2_000,
        "<!--" * 5_000,
        "<script " * 20_000,
        "&" * 20_000,
    ],
)
@pytest.mark.parametrize(
    "read", [document_text.markdown, document_text.restructured, document_text.hypertext]
)
def test_no_document_takes_long(read: object, text: str):
    list(read(text))  # type: ignore[operator]
