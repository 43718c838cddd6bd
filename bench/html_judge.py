"""Compare what is read of HTML pages with the visible text in html5lib's tree (pip install html5lib):
python bench/html_judge.py [--pages 300] [FOLDER ...]. Prints each page that differs, and a count by kind."""

import re
import sys
import sysconfig
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated
from xml.etree.ElementTree import Element

import html5lib
import typer

from edgedistill.data import document_text, input_file
from edgedistill.errors import UserError

# By the rendering section of the HTML standard, written apart from document_text.
NOT_RENDERED = set(
    "area base basefont datalist head link meta noembed noframes param rp script style template title"
    " noscript iframe object video audio canvas textarea select defs desc metadata".split()
)
HIDDEN = re.compile(r"(^|[;\s])(display\s*:\s*none|visibility\s*:\s*hidden)", re.I)
LARGEST = 60_000  # bytes


def visible(element: Element, shown: list[str]) -> list[str]:
    """The texts of an element in their order, in pieces."""
    name = element.tag.rpartition("}")[2] if isinstance(element.tag, str) else "!"  # a comment
    attributes = element.attrib
    closed = name == "dialog" and "open" not in attributes
    hidden = "hidden" in attributes or HIDDEN.search(attributes.get("style", ""))
    if not (name == "!" or name in NOT_RENDERED or closed or hidden):
        shown.append(element.text or "")
        for child in element:
            visible(child, shown)
            shown.append(child.tail or "")
    return shown


def main(folders: Annotated[list[Path] | None, typer.Argument()] = None, pages: int = 300) -> None:
    sys.setrecursionlimit(20_000)
    places = folders or [Path(sysconfig.get_path("purelib")), Path("/usr/share")]
    found = [path for place in places for path in sorted(place.rglob("*.htm*")) if path.is_file()]
    small = [path for path in found if path.suffix in (".html", ".htm") and path.stat().st_size < LARGEST]
    kinds = Counter[str]()
    for path in small[:: max(1, len(small) // pages)][:pages]:
        try:
            text = input_file.decoded(path.read_bytes(), path.name, declared=True)
        except UserError as problem:
            print(f"{path}: {problem}")
            kinds["refused"] += 1
            continue
        tree = html5lib.parse(text, namespaceHTMLElements=False)
        right = "".join("".join(visible(tree, [])).split())
        ours = "".join(passage for _, passage in document_text.hypertext(text))
        right, ours = (each.replace(";", "") for each in (right, "".join(ours.split())))  # between cells
        kinds["the same" if ours == right else "different"] += 1
        steps = SequenceMatcher(None, right, ours, autojunk=False).get_opcodes() if ours != right else []
        parts = [f"-{right[a:b]!r:.80} +{ours[c:d]!r:.80}" for kind, a, b, c, d in steps if kind != "equal"]
        print(*([f"{path}:", *parts[:4]] if parts else []))
    print(dict(kinds))


if __name__ == "__main__":
    typer.run(main)
