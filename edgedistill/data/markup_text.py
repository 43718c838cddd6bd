"""The prose of Markdown documents, without markup, code and tables' borders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from markdown_it.token import Token

Passages = Iterator[tuple[int, str]]  # (number of its first line, text)

FENCE = "---"  # around a front matter


def markdown(document: str) -> Passages:
    """Every heading, paragraph, list item and table cell, in their order."""
    lines = document.splitlines()
    first = _front_matter(lines)
    line = first
    for token in MarkdownIt("commonmark").enable("table").parse("\n".join(lines[first:])):
        line = first + token.map[0] if token.map else line
        text = _plain(token.children or []).strip() if token.type == "inline" else ""
        if text:
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
