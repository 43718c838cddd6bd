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
import hashlib
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import general_corpus
import overlap

from edgedistill import files
from edgedistill.data import input_file

SKIPPED = general_corpus.SKIPPED | {"encodings", "locale", "migrations", "lib2to3"}
FUNCTIONS, DOCSTRINGS = 1_500, 1_000  # of a package, at most
LEAST, MOST = 60, 900  # characters
PAIRS = (
    *("biomed_titles", "docs_cpp", "docs_govuk", "docs_node", "docs_office", "docs_otel", "docs_powershell"),
    *("docs_prometheus", "docs_pydevguide", "docs_react", "docs_rustbook", "docs_terminal", "docs_virt"),
    *("docs_wsl_terminal", "factbook", "glossary_cncf", "medquad", "scitldr", "tydi_train"),
)
WRITTEN = {"functions": 70_000, "docstrings": 50_000, "pairs": 70_000}


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


def cells(paths: Iterable[Path]) -> Iterator[list[str]]:
    """The cells of each line."""
    return (line.split("\t") for path in paths for _, line in input_file.lines(path))


def write(path: Path, texts: Iterable[str]) -> None:
    """So many of the distinct texts, in the order of their hashes."""
    ordered = sorted(general_corpus.distinct(texts), key=lambda text: hashlib.sha1(text.encode()).hexdigest())
    files.write_bytes(path, general_corpus.compressed(ordered[: WRITTEN[path.name.split(".")[0]]]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    data = arguments.data
    asked = set[int]()
    for _, *document in cells(data.glob("ir/*/corpus.tsv.gz")):
        asked |= overlap.spans("\t".join(document))
    drawn = [of_package(folder) for folder in sorted(arguments.packages.iterdir())]
    for name, kind in zip(("functions", "docstrings"), zip(*drawn, strict=True), strict=True):
        texts = (text for of_one in kind for text in of_one if asked.isdisjoint(overlap.spans(text)))
        write(data / "code" / f"{name}.txt.gz", texts)
    pairs = cells(data / "pairs" / f"{name}.en.tsv.gz" for name in PAIRS)
    write(data / "code/pairs.txt.gz", (text for pair in pairs for text in pair[:2] if " " in text))


if __name__ == "__main__":
    main()
