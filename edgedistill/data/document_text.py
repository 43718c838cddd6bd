"""The prose of documents in Markdown, reStructuredText, HTML and PDF, without markup, code and tables'
borders."""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from edgedistill.errors import UserError, first_line, require

if TYPE_CHECKING:
    from markdown_it.token import Token

Passages = Iterator[tuple[int, str]]  # (number of its first line, or of its page, text)

FENCE = "---"  # around a front matter
# What is no prose in HTML, and what does not end a passage.
_HIDDEN = set("title script style template noscript svg math pre textarea select button nav".split())
_WITHIN = set(
    "a abbr b bdi bdo big cite code data del dfn em font i img ins kbd label mark q ruby s samp script small "
    "span strike strong style sub sup template time tt u var wbr".split()
)
_TAG = re.compile(r"<(?P<end>/?)(?P<name>[a-zA-Z][\w:-]*+)[^<>]*+>|<[!?/][^<>]*+>")
_SHORT = 0.8  # of a page's longest line: a sentence that ends in a shorter one ends its paragraph
_RULE = re.compile(r"([^\w\s])\1{2,}")  # ------ under a title
_TABLE = re.compile(r"[+|].*|={2,} +={2,}.*|.*\S {3,}\S.*")
_DIRECTIVE = re.compile(r"\.\. +([\w:-]+)::\s*(.*)")  # .. name:: argument
_MARKED = re.compile(
    r"(?:[-*+•]|\(?(?:\d{1,2}|#|[a-z])[.)]) +(?=\S)|:\w[^:`]*:(?: +|$)"
)  # an item of a list, a field
_NOT_PROSE = set(
    "code code-block sourcecode parsed-literal literalinclude include raw math doctest testcode testsetup "
    "testoutput "
    "productionlist toctree image figure table csv-table list-table highlight index "
    "tabularcolumns graphviz".split()
)
_BEGIN_WITH_TEXT = {
    "note",
    "warning",
    "tip",
    "important",
    "caution",
    "hint",
    "versionadded",
    "versionchanged",
    "deprecated",
}
_INLINE = [  # (pattern, replacement)
    (re.compile(r"``(.+?)``"), r"\1"),
    (re.compile(r"`~[^`]*\.(?=[^`.]+`)"), "`"),  # :func:`~a.b.c`
    (
        re.compile(r"(?::[\w:+.-]+:)?`!?([^`<]*?)\s*(?:<[^`>]*>)?`_{0,2}"),
        r"\1",
    ),  # :ref:`text <target>`, `text <address>`_
    (re.compile(r"(?<![\w*])\*{1,2}([^*\s](?:[^*]*[^*\s])?)\*{1,2}(?![\w*])"), r"\1"),
    (re.compile(r"\|([\w ]+)\|_{0,2}"), r"\1"),
    (re.compile(r"\s*\[[\w#*-]+\]_|\\ "), ""),  # a footnote's number, an escaped space
]


def markdown(document: str) -> Passages:
    """Every heading, paragraph, list item and table row, in their order."""
    from markdown_it import MarkdownIt

    lines = document.splitlines()
    first = _front_matter(lines)
    line, row = first, None
    for token in MarkdownIt("commonmark").enable("table").parse("\n".join(lines[first:])):
        line = first + token.map[0] if token.map else line
        text = _plain(token.children or []).strip() if token.type == "inline" else ""
        if token.type == "tr_open":
            row = list[str]()
        elif token.type == "tr_close":
            text, row = "; ".join(row or []), None
        elif row is not None and text:
            row.append(text)
        if text and row is None:
            yield line + 1, text


def _front_matter(lines: list[str]) -> int:
    """How many lines a front matter (between two lines of `---` at the top) takes."""
    if not lines or lines[0].rstrip() != FENCE:
        return 0
    return next((at + 1 for at, line in enumerate(lines[1:], 1) if line.rstrip() == FENCE), 0)


def _plain(tokens: list[Token]) -> str:
    """The text of inline tokens; an image's is its alternative text."""
    parts = []
    for token in tokens:
        if token.type in ("softbreak", "hardbreak"):
            parts.append(" ")
        elif token.type == "image":
            parts.append(_plain(token.children or []))
        elif token.type != "html_inline":
            parts.append(token.content)
    return "".join(parts)


def restructured(document: str, titles: bool = True) -> Passages:
    """(number of its first line, text) of every title, paragraph, list item and field, in their order; what
    stands in a directive is read, tables are not.

    With `titles` False they are left out, such as the names of a docstring's sections.

    This knows what prose is made of, not the whole of reStructuredText: what is no prose to it, it leaves
    out.
    """
    gathered: list[str] = []
    first = indent = 0
    hidden = 1_000  # lines indented deeper than this are code, a table or a comment
    hanging = example = options = False
    for number, line in enumerate([*document.expandtabs().splitlines(), ""], 1):
        text, depth = line.strip(), len(line) - len(line.lstrip())
        if text and depth > hidden:
            continue
        hidden = 1_000 if text else hidden
        example = bool(text) and (example or text.startswith((">>>", "$ ")))
        if not titles and _RULE.fullmatch(text):
            gathered.clear()
        left_out = example or bool(_RULE.fullmatch(text) or _TABLE.fullmatch(text)) or text.startswith("..")
        marked = None if left_out else _MARKED.match(text)
        continues = depth == indent or (hanging and len(gathered) == 1 and depth > indent)
        if gathered and (not text or left_out or marked or not continues):
            yield first, _without_roles(" ".join(gathered))
            gathered.clear()
        if directive := _DIRECTIVE.match(text):
            name, text = directive.groups()
            hidden = depth if name in _NOT_PROSE else hidden
            marked, left_out = directive, name not in _BEGIN_WITH_TEXT
            text = re.sub(r"^v?\d[\w.]*\s*", "", text) if name.startswith(("version", "deprecated")) else text
        elif text.startswith(".."):
            hidden = depth
        elif marked:
            left_out = options and text.startswith(":")
            text = text[marked.end() :]
        options = directive is not None or (options and left_out)
        if text.endswith("::") and not left_out:
            text, hidden = text[:-1], indent if gathered else depth
        if text and not left_out:
            first, hanging = (first, hanging) if gathered else (number, marked is not None)
            indent = depth
            gathered.append(text)


def _without_roles(paragraph: str) -> str:
    """The paragraph without inline markup."""
    for pattern, replacement in _INLINE:
        paragraph = pattern.sub(replacement, paragraph)
    return " ".join(paragraph.split())


def hypertext(document: str) -> Passages:
    """Every run of text between tags that are more than emphasis, in their order; what a page hides, and
    preformatted text, is left out.

    Tags are found by their brackets, in one pass over a page of any content.
    """
    gathered, hidden = list[str](), list[str]()  # texts, and the tags that hide what follows
    first = line = 1
    document, at = _without_comments(document), 0
    for tag in _TAG.finditer(document):
        text = document[at : tag.start()]
        if not hidden and (gathered or text.strip()):
            first = first if gathered else line + text[: -len(text.lstrip())].count("\n")
            gathered.append(html.unescape(text))
        line += document.count("\n", at, tag.end())
        at, name = tag.end(), (tag["name"] or "").lower()
        if gathered and not hidden and name not in _WITHIN:
            yield first, " ".join("".join(gathered).split())
            gathered.clear()
        if tag["end"] and name in hidden:
            del hidden[hidden.index(name) :]
        elif name in _HIDDEN - set(hidden) and not (tag["end"] or tag[0].endswith("/>")):
            hidden.append(name)
    gathered += [] if hidden else [html.unescape(document[at:])]
    if text := " ".join("".join(gathered).split()):
        yield first if len(gathered) > 1 else line, text


def _without_comments(document: str) -> str:
    """The page with the line ends of its comments alone."""
    text, *comments = document.split("<!--")
    parts = (comment.partition("-->") for comment in comments)
    return "".join([text, *("\n" * part[0].count("\n") + part[2] for part in parts)])


def portable(file: IO[bytes], name: str, most: int) -> Passages:
    """The paragraphs of a PDF, with the numbers of their pages. `name` names it in errors.

    Raises UserError where pypdf is not installed, for a file that it cannot read, one without text, and one
    of more than `most` characters.
    """
    pypdf = require("pypdf", f"{name}: a .pdf file")
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its remarks on damage that it can repair
    size = page = 0
    try:
        reader = pypdf.PdfReader(file)
        if reader.is_encrypted and not reader.decrypt(""):
            raise UserError(f"{name}: encrypted; save it without a password")
        for page, each in enumerate(reader.pages, 1):
            text = each.extract_text()
            size += len(text)
            if size > most:
                raise UserError(f"{name}: over {most:,} characters by page {page}; split it")
            for paragraph in _paragraphs(text):
                yield page, paragraph
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - of a damaged file, its reader raises anything
        place = f"page {page + 1}" if page else "at its start"
        raise UserError(f"{name}: {place}: damaged ({first_line(error)}); fetch the file again") from None
    if not size:
        raise UserError(
            f"{name}: no text in its {page} page(s); recognize it first, for example with ocrmypdf"
        )


def _paragraphs(page: str) -> Iterator[str]:
    """The lines of a page, joined to paragraphs."""
    lines = [line.strip() for line in page.splitlines()]
    longest, gathered = max(map(len, lines), default=0), list[str]()
    for line in [*lines, ""]:
        gathered += [line] if line else []
        ends = line.endswith((".", "!", "?", ":")) and len(line) < _SHORT * longest
        if gathered and (ends or not line):
            yield " ".join(gathered)
            gathered = []
