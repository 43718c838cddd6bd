"""English sentences from the documentation of installed packages, read from their sources without importing them."""

from __future__ import annotations

import ast
import platform
import sysconfig
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from edgedistill import files
from edgedistill.data import docstring_sentences

SKIPPED_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "testing", "__pycache__", "_vendor", "vendored", "externals", "third_party")
)
LONGEST_SOURCE = 4_000_000  # bytes; larger ones are generated tables
SHORTEST_STRING = 120  # characters; shorter strings outside docstrings are messages and names


def sentences(packages: list[str]) -> Iterator[str]:
    """The sentences in the documentation of Python and of the named packages, where installed; duplicates included.

    The order depends on the files only. Nothing is imported, so no code runs.
    """
    for path in _sources(packages):
        for text in _strings(path):
            yield from docstring_sentences.sentences(text)


def strings(package: str) -> Iterator[str]:
    """The documentation strings of a package alone, whole, with their markup; none where it is not installed."""
    for path in _below_package(package):
        yield from _strings(path)


def content_id(packages: list[str]) -> list[str]:
    """What identifies the sentences: the code that extracts them, Python's version, every source's name and size."""
    listing = files.cache_key(sources=[[path.parts[-3:], path.stat().st_size] for path in _sources(packages)])
    code = [files.sha256_file(Path(path)) for path in (__file__, docstring_sentences.__file__)]
    return [*code, platform.python_version(), listing]


def _sources(packages: list[str]) -> Iterator[Path]:
    """The .py files of the standard library, then of each package, in order, without tests and bundled copies."""
    yield from _below(Path(sysconfig.get_paths()["stdlib"]))
    for name in packages:
        yield from _below_package(name)


def _below_package(name: str) -> Iterator[Path]:
    spec = find_spec(name.partition(".")[0])
    if spec is not None:
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
    """Docstrings, and the long strings that hold the documentation of C code (`add_newdoc`, `add_docstr`, tables of topics)."""
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
    """The strings of a module, class or function, in order; inside functions only docstrings."""
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
    """The string constants of an expression, but not the fragments of f-strings."""
    if isinstance(value, ast.Constant):
        if isinstance(value.value, str) and len(value.value) >= shortest:
            yield value.value
    elif not isinstance(value, ast.JoinedStr):
        for child in ast.iter_child_nodes(value):
            part = child.value if isinstance(child, ast.keyword) else child
            if isinstance(part, ast.expr):
                yield from _constants(part, shortest)
