"""The text of documents in Markdown, reStructuredText, HTML and PDF: what a reader of the page sees.

Each is parsed by a library that knows its standard: selectolax (HTML), markdown-it-py (CommonMark with
tables, whose HTML is read as a page is), docutils (reStructuredText), pypdf.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from typing import IO, TYPE_CHECKING, Any

import yaml

from edgedistill.errors import UserError, first_line, require

if TYPE_CHECKING:
    from docutils import nodes
    from selectolax.lexbor import LexborNode

Passages = Iterator[tuple[int, str]]  # (number of its first line, or of its page, text)
LeftOut = Callable[[str, Any], None]  # is called with what is not read, and which of it
Kinds = tuple[type["nodes.Node"], ...]

FRONT = re.compile(r"---[^\S\n]*\n(.*?\n)---[^\S\n]*(?:\n|\Z)", re.DOTALL)  # matter, at the top of a page
LINE = "data-edgedistill-line"  # the attribute that carries the line of a Markdown block into its HTML
CELL = "; "  # between the cells of a table's row
# On both sides of what an attribute shows: a space where a word follows, but for brackets, else nothing.
BESIDE = "\x1f"
_SPACED = re.compile(rf"(?<=[^\s({{\[\"']){BESIDE}+(?=\w)")
# Elements whose content a browser does not show, or shows in place of what it cannot play.
_HIDDEN = frozenset(
    "head title script style template noscript noframes noembed video audio canvas meter progress datalist "
    "textarea rp desc defs metadata annotation annotation-xml".split()
)
# Those that hold no text to be read, or the same in another notation.
_NO_TEXT = frozenset("head script style rp metadata defs annotation annotation-xml".split())
_OF_HEAD = 'title:not(:empty), meta[name=description i]:not([content=""])'
# The attributes that a browser shows as text, the first that an element has.
_SHOWN = {
    "img": ("alt",),
    "area": ("alt",),
    "input": ("alt", "value", "placeholder"),
    "optgroup": ("label",),
    "option": ("label",),
}
# Those that it shows in another place, reads aloud, or leaves to the element's script.
_BESIDE_TEXT = frozenset("title aria-label alttext label heading caption summary".split())
_NOT_TYPED = ("hidden", "checkbox", "radio", "password", "color", "range", "file")  # types of <input>
# Elements that stand within a line; each other one begins a passage, and ends it.
_WITHIN = frozenset(
    "a abbr acronym area b bdi bdo big button cite code data del dfn em embed font i img input ins kbd label "
    "map mark nobr object output picture q ruby rt s samp slot small source span strike strong sub sup td th "
    "time tt u var wbr "
    "svg circle clippath ellipse g image line lineargradient mask path polygon polyline rect stop symbol use "
    "math semantics mrow mi mo mn ms mtext mspace mstyle mfrac msqrt mroot msub msup msubsup munder mover "
    "munderover".split()
)
_UNSEEN = re.compile(r"(?:^|[;\s])(?:display\s*:\s*none|(?:content-)?visibility\s*:\s*hidden)", re.IGNORECASE)
# In Markdown, one of these without its end would hide all that follows, as in "the <script> tag".
_ENCLOSING = re.compile(
    rf"<(/?)({'|'.join(sorted(_HIDDEN - {'head', 'rp'}))}|dialog|iframe|plaintext|select|textarea|xmp)\b"
    r"[^<>]*?(/?)>",
    re.IGNORECASE,
)
# In Markdown, a tag without attributes and without an end in the page is a placeholder, as `<your-name>` or
# in `List<String>`, but for these, which need no end or are often left open.
_PLACEHOLDER = re.compile(r"<([A-Za-z][\w.-]*)>")
_LEFT_OPEN = frozenset(
    "a area b base big body br caption center code col colgroup dd dt em embed font h1 h2 h3 h4 h5 h6 head "
    "hr html i img input kbd li link meta optgroup option p param q rp rt s small source span strong sub sup "
    "table tbody td tfoot th thead tr track tt u wbr".split()
)
# A component of MDX, and its attributes that are mostly shown.
_COMPONENT = re.compile(r"<[A-Z]\w*[a-z][\w.]*\s[^<>]*>")
_LABEL = re.compile(r"""\s(?:title|label|caption|summary)\s*=\s*["']([^"'<>]*)["']""")
_END = re.compile("</(?:body|html)>", re.IGNORECASE)  # in a script, that has taken all to here for its own
_VALUE = re.compile(r"""=\s*["'{]""")
_CONTAINER = re.compile(
    r"<(/?)(?:div|section|article|main|aside|header|footer|nav|blockquote|center|details|dialog|fieldset|figure"
    r"|[uod]l|dir|menu|form|address|hgroup|summary|search|listing|pre)\b",
    re.IGNORECASE,
)
# Of reStructuredText, at the begin of its source; `|name|` where a substitution stands for it.
DIRECTIVE = re.compile(r"\A\.\. (?:\|[^|]*\| )?([\w:-]+::.*)")
MOST_LINKS, MOST_BLOCKS = 8, 200  # of Markdown within each other; a list is two blocks
MOST_NESTED = 10_000  # containers: the time that parsing takes grows with the square of their depth
# Where a note of a PDF has its text, if not in /Contents; flags of a note, and of a field.
NOTE_TEXT = {"/Widget": "/V", "/Link": None, "/Popup": None}
NOT_SHOWN, PUSH_BUTTON = 2, 1 << 16
_SHORT = 0.8  # of a page's longest line: a sentence that ends in a shorter one ends its paragraph
# Of a PDF: glyphs that stand for no character, as their numbers or names, or in areas for private use.
_NO_UNICODE = re.compile(r"/(?:g|gid|cid|glyph)\d+|[\x00-\x08\x0e-\x1f\x7f-\x9f\ue000-\uf8ff\ufffd]")
NEEDLE = 40  # characters by which a text is found in its page
MOST_MISSED, REACH = 1_000, 200_000  # texts not found, after which no more are looked for, and how far


def hypertext(
    document: str, left_out: LeftOut = lambda what, which: None, attributes: bool = False
) -> Passages:
    """Every run of text between elements that begin a line, in their order; the cells of a row are one. With
    `attributes` an image is its alternative text, a field of a form what stands in it. `left_out` is called
    with each element whose text, or whose attribute, is not read.

    Raises RecursionError where containers stand in each other more than MOST_NESTED times.
    """
    place = _Place(document)
    first = 0
    gathered: list[str] = []
    for node, leaving in _visible(_tree(document), left_out):
        if node.is_element_node and not leaving:
            place.marked(node)
            for name, text in node.attributes.items():
                if text and name in _BESIDE_TEXT and name not in _SHOWN.get(node.tag or "", ()):
                    left_out("attributes", f"<{node.tag} {name}>")
        if node.tag in ("td", "th") and not leaving and _trimmed(gathered):
            gathered.append(CELL)
        if node.is_element_node and node.tag not in _WITHIN and _trimmed(gathered):
            text = _SPACED.sub(" ", "".join(gathered)).replace(BESIDE, "")
            yield first, " ".join(text.split())
            gathered = []
        text = "" if leaving else _text(node)
        if text and node.is_element_node and not attributes:
            left_out("attributes", f"<{node.tag}>")
            text = BESIDE
        if text.strip() or place.in_html:
            line = place.of(text)
            first = first if gathered else line
        if text.strip() or gathered:
            gathered.append(text)


def _tree(page: str) -> LexborNode | None:
    """A page's first element, which holds all others. Raises RecursionError as `hypertext`."""
    from selectolax.lexbor import LexborHTMLParser

    steps = (-1 if tag[1] else 1 for tag in _CONTAINER.finditer(page))
    if any(depth > MOST_NESTED for depth in accumulate(steps, lambda depth, step: max(0, depth + step))):
        raise RecursionError
    return LexborHTMLParser(page).root


def _trimmed(gathered: list[str]) -> list[str]:
    """The parts of a passage, after those at its end are removed that are white space or a cell's border."""
    while gathered and (gathered[-1] is CELL or not gathered[-1].strip()):
        gathered.pop()
    return gathered


def _visible(root: LexborNode | None, left_out: LeftOut) -> Iterator[tuple[LexborNode, bool]]:
    """Every node that a page shows, in its order, and each element a second time when it is left. `left_out`
    is called with the names of the others, but for those that never hold text to be read."""
    node = root
    leaving = False
    while node is not None:
        shown = leaving or _is_shown(node)
        if shown:
            yield node, leaving
            if node.tag == "iframe" and not leaving and node.text().strip():
                left_out("hidden", "<iframe>")
        elif node.tag == "head":
            for element in node.css(_OF_HEAD):
                left_out("head", f"<{element.tag}>")
        elif node.is_element_node and (_holds_more(node) if node.tag in _NO_TEXT else _has_text(node)):
            left_out("hidden", f"<{node.tag}>")
        for tree in _inside(node) if shown and not leaving else []:
            yield from _visible(tree, left_out)
        below = node.first_child if shown and not leaving and node.tag != "iframe" else None
        if below is not None:
            node = below
        elif node.is_element_node and shown and not leaving:
            leaving = True
        elif node.next is not None:
            node = node.next
            leaving = False
        else:
            node = node.parent
            leaving = True
            if node is not None and node.is_document_node:
                return


def _holds_more(node: LexborNode) -> bool:
    """Whether there is a page's text in a script: one that has no end, or a template."""
    kind = (node.attributes.get("type") or "").lower() if node.tag == "script" else ""
    return bool(_END.search(node.text())) or (kind.startswith("text/") and "script" not in kind)


def _has_text(node: LexborNode) -> bool:
    """Whether there is text in an element, or in a template that is in it."""
    inert = (tree for template in node.css("template") for tree in template.template_fragments())
    return any(tree.text().strip() for tree in (node, *inert))


def _inside(node: LexborNode) -> list[LexborNode | None]:
    """The trees that an element shows in its place: of a declared shadow root, and of a page in a page."""
    if node.tag == "iframe":
        return [_tree(node.attributes.get("srcdoc") or "")]
    return [shadow.first_child for shadow in node.template_fragments()] if node.tag == "template" else []


def _text(node: LexborNode) -> str:
    """What a page shows of the node itself: a text, or that of an element's attribute, a word of its own."""
    if not node.is_element_node:
        return node.text_content or ""
    attributes = node.attributes if node.tag in _SHOWN else {}
    if (attributes.get("type") or "").lower() in _NOT_TYPED:
        return ""
    names = _SHOWN.get(node.tag or "", ())
    return next((f"{BESIDE}{attributes[name]}{BESIDE}" for name in names if attributes.get(name)), "")


def _is_shown(node: LexborNode) -> bool:
    """Whether a page shows the node: a text, or an element that nothing hides."""
    if not node.is_element_node:
        return node.is_text_node
    attributes = node.attributes
    closed = node.tag == "dialog" and "open" not in attributes
    if node.tag == "template":  # a declared shadow root is shown; its slots show what is read behind it
        return bool(attributes.get("shadowrootmode"))
    return not (
        closed
        or node.tag in _HIDDEN
        or ("hidden" in attributes and attributes["hidden"] != "until-found")
        or _UNSEEN.search(attributes.get("style") or "")
    )


class _Place:
    """Where the texts of a page stand: its parser keeps no lines, so each is looked for behind the last
    one."""

    def __init__(self, document: str) -> None:
        self.document = document
        self.at = 0
        self.line = 1
        self.missed = 0
        self.from_marks = self.in_html = False

    def marked(self, element: LexborNode) -> None:
        """Take the line that Markdown's renderer wrote on an element."""
        number = element.attributes.get(LINE)
        if number is not None:
            self.line = int(number)
            self.from_marks = True
            self.in_html = element.tag == "hr"

    def of(self, text: str) -> int:
        """The line where a text begins; that of the last one, where it is written otherwise in the page."""
        if self.from_marks:
            line = self.line + text[: len(text) - len(text.lstrip())].count("\n")
            self.line += text.count("\n")
            return line
        text = text.strip().partition("\n")[0][:NEEDLE]
        word = re.search(r"\w+", text, re.ASCII)
        for needle in (text, word[0] if word else ""):
            if self.missed < MOST_MISSED and needle:
                at = self.document.find(needle, self.at, self.at + REACH)
                if at >= 0:
                    self.line += self.document.count("\n", self.at, at)
                    self.at = at
                    break
                self.missed += 1
        return self.line


def markdown(document: str, left_out: LeftOut = lambda what, which: None) -> Passages:
    """Every heading, paragraph, list item, table row and code block, in their order, and what HTML in the
    document shows. `left_out` is called with each key of front matter, and with each row of a table that has
    more cells than its head, as no renderer shows these.

    Raises RecursionError where blocks stand in each other MOST_BLOCKS times.
    """
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import reference
    from markdown_it.rules_block.table import escapedSplit

    def no_footnote(state: Any, start: int, end: int, silent: bool) -> bool:
        footnote = state.src.startswith("[^", state.bMarks[start] + state.tShift[start])
        return not footnote and reference(state, start, end, silent)

    def html(self: Any, tokens: Any, at: int, options: Any, env: Any) -> str:
        return f'<hr {LINE}="{tokens[at].map[0] + 1}">{tokens[at].content}'

    def nested_links(state: Any) -> None:
        state.md.options["maxNesting"] = MOST_LINKS

    parser = MarkdownIt("commonmark", {"maxNesting": MOST_BLOCKS}).enable("table")
    parser.core.ruler.before("inline", "nested_links", nested_links)
    parser.block.ruler.at("reference", no_footnote)
    parser.add_render_rule("html_block", html)
    keys, document = _front_matter(document)
    for key in keys:
        left_out("front matter", key)
    tokens = parser.parse(document)
    if any(token.level >= MOST_BLOCKS - 1 for token in tokens):  # what is below is left out by the parser
        raise RecursionError
    lines = document.split("\n")
    columns = 0
    for token in tokens:
        columns = 0 if token.type == "thead_open" else columns + (token.type == "th_open")
        if token.type == "fence" and _VALUE.search(token.info):
            left_out("attributes", f"``` {token.info.split()[0]}")
        if columns and token.type == "tr_open" and token.map:
            row = escapedSplit(lines[token.map[0]].strip(" \t>"))
            if any(map(str.strip, row[columns + (row[0] == "") :])):
                left_out("cells", f"line {token.map[0] + 1}")
        if token.map and token.nesting >= 0:
            token.attrSet(LINE, str(token.map[0] + 1 + (token.type == "fence")))
    page = parser.renderer.render(tokens, parser.options, {})
    ended = {name.lower() for name in re.findall(r"</([\w.-]+)", page)}
    yield from hypertext(
        LINE.join(_closed(block, ended, left_out) for block in page.split(LINE)), left_out, True
    )


def _closed(block: str, ended: set[str], left_out: LeftOut) -> str:
    """The HTML of a Markdown block, in which a tag of _ENCLOSING, a comment or a placeholder that has no end
    is text, and a component of MDX such as `<Select>` is no element of HTML, and has its title and label
    before it. `ended`: the tags in the page that have an end."""
    tags = _ENCLOSING.finditer(block)
    ends = {tag[2].lower(): tag.start() for tag in tags if tag[1]}

    def checked(tag: re.Match[str]) -> str:
        if tag[3]:  # <iframe src="x"/>, as JSX has it, is empty
            return ""
        if tag[2][0].isupper() and not tag[2].isupper():
            return f"<{tag[1]}div>"
        is_open = not tag[1] and ends.get(tag[2].lower(), -1) < tag.start()
        return tag[0].replace("<", "&lt;") if is_open else tag[0]

    def placeholder(tag: re.Match[str]) -> str:
        is_element = tag[1].lower() in ended | _LEFT_OPEN or _CONTAINER.match(tag[0])
        return tag[0] if is_element else f"&lt;{tag[1]}&gt;"

    def labelled(component: re.Match[str]) -> str:
        rest = _LABEL.sub("", component[0])
        if _VALUE.search(rest):
            left_out("attributes", rest.split()[0] + ">")
        return rest + "".join(f"<div>{text}</div>" for text in _LABEL.findall(component[0]))

    block = _PLACEHOLDER.sub(placeholder, _ENCLOSING.sub(checked, _COMPONENT.sub(labelled, block)))
    end = max(block.rfind("-->"), block.rfind("--!>"), 0)
    return block[:end] + block[end:].replace("<!--", "&lt;!--")


def _front_matter(document: str) -> tuple[list[str], str]:
    """The keys of a document's front matter, a mapping in YAML between two lines of `---` at the top; and the
    document with empty lines in its place."""
    front = FRONT.match(document)
    data = None
    with suppress(yaml.YAMLError, RecursionError):
        data = yaml.compose(front[1], yaml.CSafeLoader) if front else None
    if not front or not isinstance(data, yaml.MappingNode):
        return [], document
    keys = [str(key.value) for key, _ in data.value]
    return keys, "\n" * front[0].count("\n") + document[front.end() :]


def restructured(document: str, left_out: LeftOut = lambda what, which: None, but: Kinds = ()) -> Passages:
    """Every title, paragraph, list item, field, table row and literal block, in their order, `but` for those
    kinds of nodes.

    What a directive holds that docutils does not know, such as Sphinx's, is read too. `left_out` is called
    with a directive that stands for a file, as no file is opened, or that is for another format than HTML,
    and with options that are not read.
    """
    from edgedistill.data.restructured_text import parsed

    yield from _blocks(parsed(document), left_out, but)


def _blocks(node: nodes.Node, left_out: LeftOut, but: Kinds = (), line: int = 1) -> Passages:
    """The passages below a node of docutils' tree."""
    from docutils import nodes

    from edgedistill.data.restructured_text import NotRead

    invisible = (nodes.comment, nodes.substitution_definition, nodes.target)
    line = node.line or line
    if isinstance(node, (*invisible, *but)):
        return
    if isinstance(node, nodes.raw) and "html" in node["format"]:
        yield from ((line + 1 + number, text) for number, text in hypertext(node.astext(), left_out))
    elif isinstance(node, nodes.raw):
        left_out("directive", f"raw:: {node['format']}")
    elif isinstance(node, nodes.meta):
        left_out("directive", "meta::")
    elif isinstance(node, NotRead):
        left_out(node["what"], node["which"])
    elif isinstance(node, nodes.system_message):  # the source stands in it, of what could not be parsed
        lost = [child.astext() for child in node.children if isinstance(child, nodes.literal_block)]
        for block in lost if node["level"] >= 3 else []:
            yield line, " ".join(block.split())
        for what in DIRECTIVE.findall("".join(lost)) if node["level"] < 3 else []:
            left_out("directive", what)
    elif isinstance(node, nodes.TextElement | nodes.line_block | nodes.image):
        text = " ".join(_plain(node, left_out).split())
        above = isinstance(node, nodes.title) and isinstance(node.parent, nodes.section)
        if text:
            yield line - above, text  # a section's line is that under its title
    elif isinstance(node, nodes.row):
        cells = [list(_blocks(cell, left_out, but, line)) for cell in node.children]
        if any(cells):
            first = min(number for cell in cells for number, _ in cell)
            yield max(line, first), CELL.join(" ".join(text for _, text in cell) for cell in cells)
    else:
        for child in node.children:
            yield from _blocks(child, left_out, but, line)
            line = child.line or line


def _plain(node: nodes.Node, left_out: LeftOut) -> str:
    """The text of a node."""
    from docutils import nodes

    if isinstance(node, nodes.Text):
        return node.astext()
    if isinstance(node, nodes.raw):
        return " ".join(text for _, text in _blocks(node, left_out))
    if isinstance(node, nodes.image):
        return str(node.get("alt", ""))
    between = " " if isinstance(node, nodes.line_block) else ""
    return between.join(_plain(child, left_out) for child in node.children)


def portable(file: IO[bytes], name: str, most: int, left_out: LeftOut) -> Passages:
    """The paragraphs of a PDF, with the numbers of their pages. `name` names it in errors; `left_out` is
    called with the number of each page without text, such as a scan, with how many of its characters are none
    of Unicode, and each of its fonts that names no characters for its glyphs, whose texts are mostly other
    letters than a reader sees; with the names of attachments, and with a form in XFA.

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
        for attached in reader.attachments:
            left_out("attachments", attached)
        if "/XFA" in reader.root_object.get("/AcroForm", ()):
            left_out("forms", "XFA")
        for page in range(1, len(reader.pages) + 1):
            text = "\n\n".join(
                [reader.pages[page - 1].extract_text(), *_notes(reader.pages[page - 1], left_out)]
            )
            text, unknown = _NO_UNICODE.subn("", text)
            if unknown:
                left_out("characters without Unicode", f"{unknown:,} on page {page}")
            size += len(text.strip())
            if size > most:
                raise UserError(f"{name}: over {most:,} characters by page {page}; split it")
            for font in _fonts_without_unicode(reader.pages[page - 1]):
                left_out("fonts without Unicode", f"{font} on page {page}")
            if not text.strip():
                left_out("pages without text", page)
            for paragraph in _paragraphs(text):
                yield page, paragraph
    except UserError:
        raise
    except pypdf.errors.DependencyError:
        require("cryptography", f"{name}: a PDF that is encrypted without a password")
        raise
    except Exception as error:  # noqa: BLE001 - of a damaged file, its reader raises anything
        place = f"page {page}" if page else "at its start"
        raise UserError(f"{name}: {place}: damaged ({first_line(error)}); fetch the file again") from None
    if not size:
        raise UserError(
            f"{name}: no text in its {page} page(s); recognize it first, for example with ocrmypdf"
        )


def _fonts_without_unicode(page: Any) -> Iterator[str]:
    """The names of a page's fonts whose codes are glyphs, without a table of their characters."""
    fonts = page.get("/Resources", {}).get("/Font", {})
    for font in map(fonts.__getitem__, fonts):
        if str(font.get("/Encoding")).startswith("/Identity") and "/ToUnicode" not in font:
            yield str(font.get("/BaseFont", "font"))[1:]


def _notes(page: Any, left_out: LeftOut) -> Iterator[str]:
    """The texts that stand on a page beside its content: those of its notes, and of its form's fields; of one
    that has none its rich text, the caption of a button, or what is drawn in its place."""
    for note in (reference.get_object() for reference in page.annotations or []):
        is_shown = hasattr(note, "get_inherited") and not note.get("/F", 0) & NOT_SHOWN
        key = NOTE_TEXT.get(str(note.get("/Subtype")), "/Contents") if is_shown else None
        if "/FS" in note:
            left_out("attachments", "of a note")
        if key is not None:
            look = note.get_inherited("/MK", {}) if note.get_inherited("/Ff", 0) & PUSH_BUTTON else {}
            rich = "".join(_strings(note.get_inherited("/RC")))
            known = _strings(note.get_inherited(key)) or [text for _, text in hypertext(rich)]
            yield from known or _strings(look.get("/CA")) or _drawn(page, note)


def _strings(value: Any) -> list[str]:
    """The texts among the values of a PDF; the name of a ticked box is none."""
    from pypdf.generic import NameObject

    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str) and not isinstance(text, NameObject) and text]


def _drawn(page: Any, note: Any) -> list[str]:
    look = note["/AP"]["/N"] if "/AP" in note and "/N" in note["/AP"] else None
    return [page.extract_xform_text(look)] if hasattr(look, "get_data") else []


def _paragraphs(page: str) -> Iterator[str]:
    """The lines of a page, joined to paragraphs."""
    lines = [line.strip() for line in page.splitlines()]
    longest = max(map(len, lines), default=0)
    gathered = list[str]()
    for line in [*lines, ""]:
        gathered += [line] if line else []
        ends = line.endswith((".", "!", "?", ":")) and len(line) < _SHORT * longest
        if gathered and (ends or not line):
            yield " ".join(gathered)
            gathered = []
