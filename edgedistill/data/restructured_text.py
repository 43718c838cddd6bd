"""reStructuredText by docutils, with the directives and roles that it does not know, such as Sphinx's."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import Directive, Parser, directives, roles
from docutils.parsers.rst.states import Inliner
from docutils.utils import unescape

SETTINGS = {
    "file_insertion_enabled": False,
    "raw_enabled": False,  # `_raw` reads it
    "_disable_config": True,
    "halt_level": 5,
    "report_level": 1,  # its messages stay in the tree, with the source of what could not be parsed
    "warning_stream": False,
    "doctitle_xform": False,
    "smart_quotes": False,
    "syntax_highlight": "none",
    "line_length_limit": 10_000_000,
}
NOT_SHOWN = ("index", "only", "highlight", "currentmodule", "module", "tabularcolumns", "program")
LONGEST_MARKUP = 4_000  # characters
NO_LINE_ENDS = dict.fromkeys(
    map(ord, "\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " "
)  # but docutils takes them for one
_LOCK = threading.Lock()  # docutils keeps its directives and roles in its modules


class _Options(defaultdict):
    """Any option is text, a flag without a value too."""

    def __bool__(self) -> bool:  # docutils reads no options where there are none to read
        return True

    def __missing__(self, name: str) -> Callable[[str | None], str]:
        return lambda value: value or ""


class _AnyDirective(Directive):
    """A directive that docutils does not know: its argument and its content are text."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec = _Options()

    def run(self) -> list[nodes.Node]:
        shown = self.shown([] if self.name in NOT_SHOWN else self.arguments)
        container = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, container, match_titles=True)
        return [*shown, *container.children]

    def shown(self, argument: list[str]) -> list[nodes.Node]:
        """The argument and the caption."""
        texts = [*argument, *filter(None, [self.options.get("caption")])]
        found: list[nodes.Node] = [nodes.paragraph(text, text) for text in texts]
        for node in found:
            node.line = self.lineno
        return found


class _Code(_AnyDirective):
    """Code, with any option, such as those of Sphinx."""

    def run(self) -> list[nodes.Node]:
        code = "\n".join(self.content)
        block = nodes.literal_block(code, code)
        block.line = self.content_offset + 1
        return [*self.shown([]), block]


def _bounded_inliner() -> Inliner:
    """The time that docutils takes for a paragraph's markup grows with the square of its length, so a very
    long one is text as it is written."""
    inliner = Inliner()
    parse = inliner.parse

    def bounded(text: str, *place: Any) -> tuple[list[nodes.Node], list[nodes.Node]]:
        return parse(text, *place) if len(text) <= LONGEST_MARKUP else ([nodes.Text(text)], [])

    inliner.parse = bounded
    return inliner


def _raw(hypertext: Callable[[str], Iterator[tuple[int, str]]]) -> type[Directive]:
    class Raw(_AnyDirective):
        """Text for one kind of output; that for HTML is read as a page is."""

        def run(self) -> list[nodes.Node]:
            if "html" not in " ".join(self.arguments):
                return []
            shown = []
            for line, text in hypertext("\n".join(self.content)):
                shown.append(nodes.paragraph(text, text))
                shown[-1].line = self.content_offset + line
            return list(shown)

    return Raw


def _any_role(
    name: str, source: str, text: str, line: int, inliner: Any, options: Any = None, content: Any = None
) -> tuple[list[nodes.Node], list[nodes.Node]]:
    """A role that docutils does not know: `title <target>` is its title, `~a.b.c` its last part."""
    text = unescape(text)
    title, _, target = text.partition(" <")
    if target.endswith(">") and title.strip():
        text = title
    elif text.startswith("~"):
        text = text[1:].rpartition(".")[2]
    return [nodes.inline(source, text.lstrip("!"))], []


def parsed(document: str, hypertext: Callable[[str], Iterator[tuple[int, str]]]) -> nodes.document:
    """The document's tree. `hypertext` reads the HTML in it."""
    parser = Parser(inliner=_bounded_inliner())
    with _LOCK, _every_name_known(_raw(hypertext)):
        return publish_doctree(document.translate(NO_LINE_ENDS), parser=parser, settings_overrides=SETTINGS)


@contextmanager
def _every_name_known(raw: type[Directive]) -> Iterator[None]:
    """Let docutils find a directive and a role under any name. Its parser looks both up in these modules, and
    has no other place to say so (Sphinx does the same)."""
    known_directive, known_role = directives.directive, roles.role
    replaced = {"raw": raw, "code": _Code, "code-block": _Code, "sourcecode": _Code}

    def directive(name: str, language: Any, tree: Any) -> tuple[type[Directive], list[nodes.Node]]:
        known, _ = known_directive(name, language, tree)
        return replaced.get(name) or known or _AnyDirective, []

    def role(name: str, language: Any, line: int, reporter: Any) -> tuple[Any, list[nodes.Node]]:
        known, messages = known_role(name, language, line, _Silent())
        return known or _any_role, messages if known else []

    directives.directive, roles.role = directive, role
    try:
        yield
    finally:
        directives.directive, roles.role = known_directive, known_role


class _Silent:
    """A reporter that says nothing of names that docutils does not know."""

    def info(self, *arguments: Any, **named: Any) -> nodes.Node:
        return nodes.comment()

    warning = error = info
