"""English prose that is on every machine with Python: documentation, read from sources without importing them."""

from __future__ import annotations

import ast
import inspect
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from edgedistill import files

SKIPPED_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "testing", "__pycache__", "_vendor", "vendored", "externals", "third_party")
)
LONGEST_SOURCE = 4_000_000  # bytes; larger ones are generated tables
SHORTEST_STRING = 120  # characters; shorter strings outside docstrings are messages and names


def sentences(packages: list[str]) -> Iterator[str]:
    """Sentences of the documentation of Python and of the named packages, where installed; the same ones may come again.

    Always in the same order for the same files. Nothing is imported, so nothing is run.
    """
    for path in _sources(packages):
        for text in _strings(path):
            for paragraph in paragraphs(text):
                yield from filter(decent, split(plain(paragraph)))


def made_of(packages: list[str]) -> list[str]:
    """What identifies the sentences: this module's own bytes, Python's version, every source's name and size."""
    listing = files.key(sources=[[path.parts[-3:], path.stat().st_size] for path in _sources(packages)])
    return [files.sha256_file(Path(__file__)), platform.python_version(), listing]


def _sources(packages: list[str]) -> Iterator[Path]:
    """The .py files of the standard library, then of each package, in order; none of tests and bundled copies."""
    yield from _below(Path(sysconfig.get_paths()["stdlib"]))
    for name in packages:
        spec = find_spec(name.partition(".")[0])
        if spec is None:
            continue
        if spec.submodule_search_locations is None:
            yield from (Path(p) for p in [spec.origin] if p and p.endswith(".py"))
        for folder in spec.submodule_search_locations or ():
            yield from _below(Path(folder))


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in SKIPPED_FOLDERS:
                yield from _below(path)
        elif path.suffix == ".py" and path.stat().st_size <= LONGEST_SOURCE:
            yield path


def _strings(path: Path) -> Iterator[str]:
    """Docstrings, and the long strings that C code's documentation is kept in (`add_newdoc`, `add_docstr`, tables of topics)."""
    source = path.read_bytes()
    if b'"""' not in source and b"'''" not in source and b"topics" not in source:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's sources
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # templates, and sources for another Python
        return
    yield from _documented(tree)


def _documented(node: ast.AST, shortest: int = SHORTEST_STRING) -> Iterator[str]:
    """The strings of a module, class or function, each in its place; inside functions only docstrings."""
    for number, statement in enumerate(getattr(node, "body", ())):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            yield from _constants(statement.value, 1 if number == 0 else shortest)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _documented(statement, LONGEST_SOURCE)
        elif isinstance(statement, ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from _documented(statement, shortest)
        elif isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign) and statement.value is not None and shortest < LONGEST_SOURCE:
            yield from _constants(statement.value, shortest)


def _constants(value: ast.expr, shortest: int) -> Iterator[str]:
    """The string constants of an expression; an f-string is only pieces of text, so none of its."""
    if isinstance(value, ast.Constant):
        if isinstance(value.value, str) and len(value.value) >= shortest:
            yield value.value
    elif not isinstance(value, ast.JoinedStr):
        for child in ast.iter_child_nodes(value):
            part = child.value if isinstance(child, ast.keyword) else child
            if isinstance(part, ast.expr):
                yield from _constants(part, shortest)


# reStructuredText, numpydoc, Google style and Markdown, as far as they stand in the way of reading.
_BLOCK = re.compile(r"\.\. +([\w:-]+)::\s*(.*)$")  # .. directive:: argument
_SPOKEN = {"note", "warning", "seealso", "tip", "important", "caution", "attention", "hint", "admonition", "rubric", "topic", "danger"}
_VERSIONED = {"versionadded", "versionchanged", "deprecated"}
_COMMENT = re.compile(r"\.\.( |$)")
_RULE = re.compile(r"([^\w\s])\1{2,}$")  # ------ under a title
_TABLE = re.compile(r"^[+|]|\|\s*$|={3,} +={3,}|-{3,} +-{3,}|\S {3,}\S.*\S {3,}\S")
_BULLET = re.compile(r"(?:[-*+•]|\(?[0-9]{1,2}[.)]|\([a-z]\))\s+(?=\S)")
_FIELD = re.compile(r":(\w+)[^:`]*:(?:\s+(.*)|)$")  # :param x: …
_NAMES = re.compile(r"[*`'\"]*[\w.\[\]\-]+[`'\"*]*(?:, ?[*`'\"]*[\w.]+[`'\"*]*)*(?: ?\([^()]*(?:\([^()]*\)[^()]*)*\))?( ?):(?:\s+(.*)|)$")


def paragraphs(text: str) -> Iterator[str]:
    """The running text of a documentation string: one line a paragraph, without code, tables, titles and signatures."""
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
        start = _start(stripped, indent, lines[number + 1 :])
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


def _start(line: str, indent: int, following: list[str]) -> tuple[str, bool] | None:
    """What is left of a line that begins a bullet, a parameter or a directive, and whether the deeper lines after it are hidden."""
    if block := _BLOCK.match(line):
        name, rest = block.groups()
        if name in _VERSIONED:
            return re.sub(r"^v?[\d.]+\w*\s*", "", rest), False
        return (rest if name in ("note", "warning", "tip") else "", False) if name in _SPOKEN else ("", True)
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


_LOST = "\0"  # what cannot be read aloud; a sentence with it is dropped
_MARKUP: list[tuple[str, re.Pattern[str], str]] = [  # (a piece it cannot be without, pattern, what is left)
    (":math:", re.compile(r":math:`[^`]*`"), _LOST),
    ("$", re.compile(r"\$[^$]+\$"), _LOST),
    ("\\(", re.compile(r"\\\(.*?\\\)"), _LOST),
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
    ("://", re.compile(r"\w+://\S+"), _LOST),
    ("www.", re.compile(r"www\.\S+"), _LOST),
    ("@", re.compile(r"\S+@\S+\.\w+"), _LOST),
]


def plain(paragraph: str) -> str:
    """A paragraph as it reads, without mark-up; `\\0` stands where there was a formula or an address."""
    for piece, pattern, left in _MARKUP:
        if piece in paragraph:
            paragraph = pattern.sub(left, paragraph)
    return " ".join(paragraph.replace("“", '"').replace("”", '"').split())


_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
_SHORT = "al approx ca cf ch dr e.g ed eds eq eqs etc fig figs i.e incl mr no pp prof ref refs resp sec st vol vs".split()
_NO_END = re.compile(rf"\b(?:{'|'.join(map(re.escape, _SHORT))}|[a-z])\.$", re.IGNORECASE)


def split(paragraph: str) -> Iterator[str]:
    """Cut a paragraph after full stops, question and exclamation marks, not after abbreviations and initials."""
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
_GLUE = frozenset(
    "a an the of to in is are be been was were and or for with by on from as at that this these those it its if not can will "
    "may must should when where which who whose what how than then there into but has have had do does no all any each you "
    "your we our they their he his she her one two only also so such both between over under after before while about".split()
)


def decent(text: str) -> bool:
    """Is this a sentence a person would read: at least four words, mostly letters, some of them the glue of English, little code?"""
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
    glue = sum(word.lower() in _GLUE for word in words)
    return glue >= max(1, len(words) // 8) and sum(map(_is_code, tokens)) <= 0.2 * len(tokens)


def _is_code(token: str) -> bool:
    bare = token.rstrip(".,:)")
    return not (bare.isalpha() and bare.islower()) and _CODE.search(bare) is not None
