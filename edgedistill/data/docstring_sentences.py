"""Extract English sentences from a documentation string."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator


def sentences(text: str) -> Iterator[str]:
    """The English sentences of a documentation string, without markup."""
    for paragraph in running_text(text):
        yield from filter(is_sentence, split_sentences(without_markup(paragraph)))


# Markup of reStructuredText, numpydoc, Google style and Markdown that has to be removed.
_BLOCK = re.compile(r"\.\. +([\w:-]+)::\s*(.*)$")  # .. directive:: argument
_TEXT_DIRECTIVES = {
    "note",
    "warning",
    "seealso",
    "tip",
    "important",
    "caution",
    "attention",
    "hint",
    "admonition",
    "rubric",
    "topic",
    "danger",
}
_VERSION_DIRECTIVES = {"versionadded", "versionchanged", "deprecated"}
_COMMENT = re.compile(r"\.\.( |$)")
_RULE = re.compile(r"([^\w\s])\1{2,}$")  # ------ under a title
_TABLE = re.compile(r"^[+|]|\|\s*$|={3,} +={3,}|-{3,} +-{3,}|\S {3,}\S.*\S {3,}\S")
_BULLET = re.compile(r"(?:[-*+•]|\(?[0-9]{1,2}[.)]|\([a-z]\))\s+(?=\S)")
_FIELD = re.compile(r":(\w+)[^:`]*:(?:\s+(.*)|)$")  # :param x: …
_NAMES = re.compile(r"[*`'\"]*[\w.\[\]\-]+[`'\"*]*(?:, ?[*`'\"]*[\w.]+[`'\"*]*)*(?: ?\([^()]*(?:\([^()]*\)[^()]*)*\))?( ?):(?:\s+(.*)|)$")


def running_text(text: str) -> Iterator[str]:
    """The paragraphs of a documentation string, one line each, without code, tables, titles and signatures."""
    lines = inspect.cleandoc(text).splitlines()
    gathered: list[str] = []
    indents: list[int] = []
    hidden = -1  # lines deeper than this belong to a code block
    fenced = example = hanging = False

    def done() -> Iterator[str]:
        if gathered:
            yield " ".join(gathered)
        gathered.clear()
        indents.clear()

    for number, line in enumerate(lines):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if stripped.startswith(("```", "~~~")):
            fenced = not fenced
            yield from done()
            continue
        if not stripped:
            example = False
            yield from done()
            continue
        if hidden >= 0 and indent > hidden:
            continue
        hidden = -1
        if fenced or example or stripped.startswith((">>>", "$ ", "In [", "Out[")):
            example = example or not fenced
            yield from done()
            continue
        if _RULE.fullmatch(stripped):
            gathered.clear()
            yield from done()
            continue
        if _TABLE.search(stripped):
            yield from done()
            continue
        start = _marked_start(stripped, indent, lines[number + 1 :])
        if start is not None:
            yield from done()
            stripped, hides = start
            if hides:
                hidden = indent
                continue
            hanging = True
        elif indents and indent != indents[-1] and not (hanging and len(indents) == 1 and indent > indents[0]):
            yield from done()
            hanging = False
        elif not indents:
            hanging = False
        if stripped.endswith("::"):
            hidden = indent if not gathered else indents[0]
            yield from done()
            continue
        if stripped:
            gathered.append(stripped)
            indents.append(indent)
    yield from done()


def _marked_start(line: str, indent: int, following: list[str]) -> tuple[str, bool] | None:
    """What is left of a line that begins a bullet, a parameter or a directive, and whether the deeper lines after it are hidden."""
    if block := _BLOCK.match(line):
        name, rest = block.groups()
        if name in _VERSION_DIRECTIVES:
            return re.sub(r"^v?[\d.]+\w*\s*", "", rest), False
        return (rest if name in ("note", "warning", "tip") else "", False) if name in _TEXT_DIRECTIVES else ("", True)
    if _COMMENT.match(line):
        return "", True
    if field := _FIELD.match(line):
        return ("" if field[1] in ("type", "rtype", "vartype") else field[2] or ""), False
    if bullet := _BULLET.match(line):
        rest = line[bullet.end() :]
        named = _NAMES.fullmatch(rest)
        return (named[2] or "" if named else rest), False
    if named := _NAMES.fullmatch(line):
        deeper = bool(following) and len(following[0]) - len(following[0].lstrip()) > indent and bool(following[0].strip())
        is_type = named[1] == " " and deeper  # numpydoc: `x : array_like` stands alone, its text below it
        return ("" if is_type else named[2] or ""), False
    return None


_UNREADABLE = "\0"  # in place of a formula or an address; a sentence with it is dropped
_MARKUP: list[tuple[str, re.Pattern[str], str]] = [  # (a substring of every match, pattern, replacement)
    (":math:", re.compile(r":math:`[^`]*`"), _UNREADABLE),
    ("$", re.compile(r"\$[^$]+\$"), _UNREADABLE),
    ("\\(", re.compile(r"\\\(.*?\\\)"), _UNREADABLE),
    (">`", re.compile(r":[\w:+-]+:`~?!?([^`<]*?)\s*<[^`>]*>`"), r"\1"),  # :ref:`text <target>`
    (":`~", re.compile(r":[\w:+-]+:`~(?:[^`]*\.)?([^`.]+)`"), r"\1"),  # :func:`~a.b.c`
    (":`", re.compile(r":[\w:+-]+:`!?([^`]*)`"), r"\1"),
    (">`_", re.compile(r"`([^`<]*?)\s*<[^`>]*>`__?"), r"\1"),
    ("](", re.compile(r"!?\[([^\]]+)\]\([^)]*\)"), r"\1"),  # Markdown
    ("]_", re.compile(r"\s*\[[\w*#., -]+\]_"), ""),  # a footnote
    ("`", re.compile(r"``([^`]*)``|`([^`]*)`_{0,2}"), r"\1\2"),
    ("**", re.compile(r"\*\*([^*\s](?:[^*]*[^*\s])?)\*\*"), r"\1"),
    ("*", re.compile(r"(?<![\w*])\*([^*\s](?:[^*]*[^*\s])?)\*(?![\w*])"), r"\1"),
    ("|", re.compile(r"\|([\w ]+)\|_{0,2}"), r"\1"),
    ("<", re.compile(r"</?[a-zA-Z]{1,6}>"), ""),
    ("://", re.compile(r"\w+://\S+"), _UNREADABLE),
    ("www.", re.compile(r"www\.\S+"), _UNREADABLE),
    ("@", re.compile(r"\S+@\S+\.\w+"), _UNREADABLE),
]


def without_markup(paragraph: str) -> str:
    """The paragraph without markup; `\\0` replaces formulas and addresses."""
    for substring, pattern, replacement in _MARKUP:
        if substring in paragraph:
            paragraph = pattern.sub(replacement, paragraph)
    return " ".join(paragraph.replace("“", '"').replace("”", '"').split())


_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
_SHORT = "al approx ca cf ch dr e.g ed eds eq eqs etc fig figs i.e incl mr no pp prof ref refs resp sec st vol vs".split()
_NO_END = re.compile(rf"\b(?:{'|'.join(map(re.escape, _SHORT))}|[a-z])\.$", re.IGNORECASE)


def split_sentences(paragraph: str) -> Iterator[str]:
    """Split a paragraph after full stops, question and exclamation marks, but not after abbreviations and initials."""
    start = 0
    for end in _END.finditer(paragraph):
        text = paragraph[start : end.start()]
        if not _NO_END.search(text):
            yield paragraph[start : end.end()].strip()
            start = end.end()
    yield paragraph[start:].strip()


_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_ODD = re.compile(r"[\0\\{}=<>|@#^~$_*;%/`\[\]]{2}|[\0\\{}=<>|@#^~$*`]")
_CODE = re.compile(r"\w[_.(\[:/]\w|\w\(\)|[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z]|^_|_$|^-")
_FUNCTION_WORDS = frozenset(
    "a an the of to in is are be been was were and or for with by on from as at that this these those it its if not can will "
    "may must should when where which who whose what how than then there into but has have had do does no all any each you "
    "your we our they their he his she her one two only also so such both between over under after before while about".split()
)


def is_sentence(text: str) -> bool:
    """Whether the text is an English sentence: at least four words, mostly letters, some function words, little code."""
    tokens = text.split()
    words = _WORD.findall(text)
    if len(tokens) < 4 or len(words) < 4 or _ODD.search(text):
        return False
    if not (text[0].isalpha() or text[0] in "\"'(") or text.count("(") != text.count(")") or text.count('"') % 2:
        return False
    whole = text.rstrip("\"')").endswith((".", "!", "?"))
    if not whole and not (text[0].isupper() and text[-1].isalnum()):
        return False
    if sum(map(len, words)) < 0.72 * len(text.replace(" ", "")) or sum(len(w) < 2 for w in words) > 0.3 * len(words):
        return False
    function_words = sum(word.lower() in _FUNCTION_WORDS for word in words)
    return function_words >= max(1, len(words) // 8) and sum(map(_is_code, tokens)) <= 0.2 * len(tokens)


def _is_code(token: str) -> bool:
    bare = token.rstrip(".,:)")
    return not (bare.isalpha() and bare.islower()) and _CODE.search(bare) is not None
