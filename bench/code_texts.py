"""Make the technical texts that nano and micro learn from: code/functions.txt.gz, docstrings.txt.gz and
pairs.txt.gz in the data folder.

python bench/code_texts.py PACKAGES --data DIR

PACKAGES: a folder for each package of recipes/code_packages.txt, its unpacked wheel, called as that is up to
the first hyphen, and one of Python 3.11's own library, called stdlib, without config-*

Functions of 60 to 900 characters, those with a docstring first, and docstrings, each on one line, without
any that shares 13 words in a row with a text of ir/; then the queries and texts of pairs/ with free licences.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import general_corpus

from edgedistill import files

SKIPPED = general_corpus.SKIPPED | {"encodings", "locale", "migrations", "lib2to3"}
FUNCTIONS, DOCSTRINGS = 1_500, 1_000  # of a package, at most
LEAST, MOST = 60, 900  # characters
SHARED = 13  # words in a row
PAIRS = (
    *("biomed_titles", "docs_cpp", "docs_govuk", "docs_node", "docs_office", "docs_otel", "docs_powershell"),
    *("docs_prometheus", "docs_pydevguide", "docs_react", "docs_rustbook", "docs_terminal", "docs_virt"),
    *("docs_wsl_terminal", "factbook", "glossary_cncf", "medquad", "scitldr", "tydi_train"),
)
WRITTEN = {"functions": 70_000, "docstrings": 50_000, "pairs": 70_000}


def runs(text: str) -> set[tuple[str, ...]]:
    """Every run of SHARED words."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + SHARED]) for at in range(len(words) - SHARED + 1)}


def of_package(folder: Path) -> tuple[list[str], list[str]]:
    """Functions and docstrings, drawn by the package's name."""
    functions, docstrings = list[tuple[bool, str]](), list[str]()
    for text, tree in general_corpus.sources(folder, SKIPPED):
        lines = text.splitlines(keepends=True)
        for node in ast.walk(tree):
            if not isinstance(node, general_corpus.DOCUMENTED):
                continue
            docstring = ast.get_docstring(node) or ""
            if len(docstring) > 30:
                docstrings.append(" ".join(docstring.split())[:MOST])
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                whole = " ".join("".join(lines[node.lineno - 1 : node.end_lineno]).split())
                if LEAST <= len(whole) <= MOST and (node.end_lineno or 0) - node.lineno > 1:
                    functions.append((not docstring, whole))
    draw = random.Random(folder.name)
    draw.shuffle(functions)
    functions.sort(key=lambda function: function[0])
    draw.shuffle(docstrings)
    return [whole for _, whole in functions[:FUNCTIONS]], docstrings[:DOCSTRINGS]


def columns(paths: Iterable[Path]) -> Iterator[list[str]]:
    """The cells of each line."""
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from (line.rstrip("\n").split("\t") for line in lines)


def write(path: Path, texts: Iterable[str]) -> None:
    """So many of the distinct texts, in the order of their hashes."""
    distinct = dict[str, str]()
    for text in texts:
        distinct.setdefault(text.casefold(), text)
    ordered = sorted(distinct.values(), key=lambda text: hashlib.sha1(text.encode()).hexdigest())
    files.write_bytes(path, general_corpus.compressed(ordered[: WRITTEN[path.name.split(".")[0]]]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    data = arguments.data
    asked = set[tuple[str, ...]]()
    for cells in columns(data.glob("ir/*/corpus.tsv.gz")):
        asked |= runs("\t".join(cells[1:]))
    drawn = [of_package(folder) for folder in sorted(arguments.packages.iterdir())]
    for name, kind in zip(("functions", "docstrings"), zip(*drawn, strict=True), strict=True):
        texts = (text for of_one in kind for text in of_one if not runs(text) & asked)
        write(data / "code" / f"{name}.txt.gz", texts)
    pairs = columns(sorted(data / "pairs" / f"{name}.en.tsv.gz" for name in PAIRS))
    write(data / "code/pairs.txt.gz", (text for cells in pairs for text in cells[:2] if " " in text))


if __name__ == "__main__":
    main()
