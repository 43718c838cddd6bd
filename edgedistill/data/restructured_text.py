"""reStructuredText by docutils, with the directives and roles that it does not know, such as Sphinx's."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import Directive, Parser, directives, roles
from docutils.parsers.rst.states import Inliner
from docutils.utils import unescape

SETTINGS = {
    "file_insertion_enabled": False,
    "_disable_config": True,
    "halt_level": 5,
    "report_level": 1,  # its messages stay in the tree, with the source of what could not be parsed
    "warning_stream": False,
    "doctitle_xform": False,
    "docinfo_xform": False,
    "smart_quotes": False,
    "syntax_highlight": "none",
    "line_length_limit": 10_000_000,
}
CODE = ("code", "code-block", "sourcecode")
NOT_SHOWN = (*CODE, "index", "only", "highlight", "currentmodule", "module", "tabularcolumns", "program")
UNREAD = ("literalinclude", "title")  # of files, and of the page's head; docutils warns of others itself
# Options that Sphinx prints behind what a directive describes, with the sign between them, and below it;
# and those of the layout, which nobody reads. All others are named.
BEHIND = {"type": ": ", "annotation": " ", "value": " = ", "default": " = "}
BELOW = ("caption", "alt")
LAYOUT = (
    "name class ref link link-type target align width height scale columns language lexer sync maxdepth "
    "linenos lineno-start number-lines emphasize-lines dedent force glob hidden titlesonly numbered reversed "
    "noindex no-index no-index-entry no-contents-entry".split()
)
ANY_OPTION = defaultdict(lambda: directives.unchanged, caption=directives.unchanged)  # is text
LONGEST_MARKUP = 4_000  # characters
NO_LINE_ENDS = dict.fromkeys(map(ord, "\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")  # docutils takes them for one
_LOCK = threading.Lock()  # docutils keeps its directives and roles in its modules


class NotRead(nodes.Invisible, nodes.Element):
    """What is not read of a document, and `which` of it."""


class _AnyDirective(Directive):
    """A directive that docutils does not know, or code with options of Sphinx: its argument, its content and
    the options that are printed are text."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec = ANY_OPTION

    def run(self) -> list[nodes.Node]:
        if self.name in UNREAD:
            raise self.warning("not read")
        options = {name: text for name, text in self.options.items() if name not in LAYOUT}
        behind = (sign + options.pop(name) for name, sign in BEHIND.items() if name in options)
        is_shown = self.name not in NOT_SHOWN or (self.name in CODE and not self.content)
        described = "".join([*(self.arguments if is_shown else []), *behind])
        texts = [described, *(options.pop(name, "") for name in BELOW)]
        shown: list[nodes.Node] = [nodes.paragraph(text, text) for text in texts if text]
        for node in shown:
            node.line = self.lineno
        shown += [NotRead(what="options", which=f"{self.name} :{name}:") for name in options]
        if self.name in CODE:
            content = nodes.literal_block("", "\n".join(self.content))
            content.line = self.content_offset + 1
            return [*shown, content]
        container = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, container, match_titles=True)
        return [*shown, *container.children]


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


def parsed(document: str) -> nodes.document:
    """The document's tree. The time that docutils takes for a paragraph's markup grows with the square of its
    length, so a very long one is text as it is written."""
    inliner = Inliner()
    marked = inliner.parse
    inliner.parse = lambda text, *place: (
        marked(text, *place) if len(text) <= LONGEST_MARKUP else ([nodes.Text(text)], [])
    )
    parser = Parser(inliner=inliner)
    with _LOCK, _every_name_known():
        return publish_doctree(document.translate(NO_LINE_ENDS), parser=parser, settings_overrides=SETTINGS)


@contextmanager
def _every_name_known() -> Iterator[None]:
    """Let docutils find a directive and a role under any name. Its parser looks both up in these modules, and
    has no other place to say so (Sphinx does the same)."""
    known_directive = directives.directive
    known_role = roles.role

    def directive(name: str, *place: Any) -> tuple[type[Directive], list[nodes.Node]]:
        known = None if name in (*CODE, *UNREAD) else known_directive(name, *place)[0]
        return known or _AnyDirective, []

    def role(name: str, *place: Any) -> tuple[Any, list[nodes.Node]]:
        return known_role(name, *place)[0] or _any_role, []

    directives.directive = directive
    roles.role = role
    try:
        yield
    finally:
        directives.directive = known_directive
        roles.role = known_role
