"""Make the general corpus, edgedistill/shipped/general_corpus/sentences.txt.gz: English sentences of Python's
documentation.

python bench/general_corpus.py DOC [--out FILE]

DOC: the sources of Python's documentation (its .rst files, or Debian's .rst.txt)

Made once, with Python 3.11: the documentation's sentences in the order of its files, then those of the
    standard library's docstrings, each
sentence once. Where they are more than MOST_BYTES compressed, they are drawn evenly. PSF licence, version 2.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from docutils import nodes

from edgedistill import files
from edgedistill.data import document_text, readers

MOST_BYTES = 3_000_000
NO_PROSE = (
    *(nodes.title, nodes.subtitle, nodes.rubric, nodes.FixedTextElement, nodes.field_name, nodes.table),
    *(nodes.system_message, nodes.label),
)
SKIPPED = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "testing",
    "idle_test",
    "__pycache__",
    "_vendor",
    "vendored",
    "externals",
}
NOT_READ = {"whatsnew/changelog", "license", "copyright", "contents"}  # lists of changes, legal texts
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
_SHORT = (
    "al approx ca cf ch dr e.g ed eds eq eqs etc fig figs i.e incl mr no pp prof ref refs resp sec st vol vs"
).split()
_NO_END = re.compile(rf"\b(?:{'|'.join(map(re.escape, _SHORT))}|[a-z])\.$", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_ODD = re.compile(r"[\\{}=<>|@#^~$_*;%/`\[\]]{2}|[\\{}=<>|@#^~$*`]|://|www\.")
_CODE = re.compile(r"\w[_.(\[:/]\w|\w\(\)|[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z]|^_|_$|^-")
_FUNCTION_WORDS = frozenset(
    "a an the of to in is are be been was were and or for with by on from as at that this these those it its "
    "if not can will "
    "may must should when where which who whose what how than then there into but has have had do does no "
    "all any each you "
    "your we our they their he his she her one two only also so such both between over under after before "
    "while about".split()
)


def sources(folder: Path, skipped: set[str] = SKIPPED) -> Iterator[tuple[str, ast.Module]]:
    """The .py files below a folder, in order, parsed, without tests and bundled copies. Nothing is
    imported."""
    for path in sorted(folder.rglob("*.py")):
        if skipped & set(path.relative_to(folder).parts) or path.name.startswith("test_"):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in other people's sources
                text = path.read_text(encoding="utf-8")
                yield text, ast.parse(text)
        except (SyntaxError, ValueError):  # templates, sources for another Python, other encodings
            continue


def docstrings(folder: Path) -> Iterator[str]:
    """The docstrings of these."""
    for _, tree in sources(folder):
        documented = (each for each in ast.walk(tree) if isinstance(each, DOCUMENTED))
        yield from filter(None, map(ast.get_docstring, documented))


def sentences(document: str) -> Iterator[str]:
    """The English sentences of a document in reStructuredText."""
    for _, paragraph in document_text.restructured(document, but=NO_PROSE):
        for text in split_sentences(readers.normalize(paragraph.replace("“", '"').replace("”", '"'))):
            if is_sentence(text):
                yield text


def split_sentences(paragraph: str) -> Iterator[str]:
    """Split a paragraph after full stops, question and exclamation marks, but not after abbreviations and
    initials."""
    start = 0
    for end in _END.finditer(paragraph):
        text = paragraph[start : end.start()]
        if not _NO_END.search(text):
            yield paragraph[start : end.end()].strip()
            start = end.end()
    yield paragraph[start:].strip()


def is_sentence(text: str) -> bool:
    """Whether the text is an English sentence: at least four words, mostly letters, some function words,
    little code."""
    tokens = text.split()
    words = _WORD.findall(text)
    if len(tokens) < 4 or len(words) < 4 or _ODD.search(text):
        return False
    if (
        not (text[0].isalpha() or text[0] in "\"'(")
        or text.count("(") != text.count(")")
        or text.count('"') % 2
    ):
        return False
    whole = text.rstrip("\"')").endswith((".", "!", "?"))
    if not whole and not (text[0].isupper() and text[-1].isalnum()):
        return False
    if sum(map(len, words)) < 0.72 * len(text.replace(" ", "")) or sum(len(w) < 2 for w in words) > 0.3 * len(
        words
    ):
        return False
    function_words = sum(word.lower() in _FUNCTION_WORDS for word in words)
    return function_words >= max(1, len(words) // 8) and sum(map(_is_code, tokens)) <= 0.2 * len(tokens)


def _is_code(token: str) -> bool:
    bare = token.rstrip(".,:)")
    return not (bare.isalpha() and bare.islower()) and _CODE.search(bare) is not None


def corpus(documentation: Path) -> list[str]:
    """The distinct sentences of Python's documentation, then of the running Python's docstrings."""
    paths = sorted(path for path in documentation.rglob("*.rst*") if path.is_file())
    named = [(str(path.relative_to(documentation)).split(".rst")[0], path) for path in paths]
    documents = [path.read_text(encoding="utf-8") for name, path in named if name not in NOT_READ]
    found = chain.from_iterable(
        map(sentences, chain(documents, docstrings(Path(sysconfig.get_paths()["stdlib"]))))
    )
    return distinct(found)


def distinct(texts: Iterable[str]) -> list[str]:
    """The first of each that differ in more than letter case."""
    kept = dict[str, str]()
    for text in texts:
        kept.setdefault(text.casefold(), text)
    return list(kept.values())


def compressed(texts: list[str]) -> bytes:
    """A line each, as .gz without a date: the same texts are the same bytes."""
    return gzip.compress("".join(f"{text}\n" for text in texts).encode(), 9, mtime=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("documentation", type=Path, metavar="DOC")
    parser.add_argument("--out", type=Path, default=files.GENERAL_CORPUS)
    arguments = parser.parse_args()
    texts = corpus(arguments.documentation)
    data = compressed(texts)
    if len(data) > MOST_BYTES:
        most = int(len(texts) * MOST_BYTES / len(data) * 0.99)
        texts = [texts[number * len(texts) // most] for number in range(most)]
        data = compressed(texts)
    files.write_bytes(arguments.out, data)
    print(f"{len(texts):,} sentences, {len(data):,} bytes")


if __name__ == "__main__":
    main()
