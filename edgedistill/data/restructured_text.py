"""The prose of documents in reStructuredText, without markup, code and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

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


def restructured(document: str, titles: bool = True) -> Iterator[tuple[int, str]]:
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
