"""What is read of HTML pages beside the visible text in html5lib's tree (pip install html5lib):
python bench/html_judge.py FOLDER ... prints the pages that differ, of 300, and counts."""

import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree.ElementTree import Element

import html5lib

from edgedistill.data import document_text, input_file
from edgedistill.errors import UserError

# What the rendering section of the HTML standard does not show, or shows in place of what cannot be played.
NOT_SHOWN = set(
    "base basefont datalist head link meta meter noembed noframes param progress rp script style template "
    "title noscript textarea iframe video audio canvas defs desc metadata annotation annotation-xml".split()
)
HIDDEN = re.compile(r"(^|[;\s])(display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
PAGES, LARGEST = 300, 60_000  # bytes


def shown(element: Element) -> str:
    """The visible text of an element."""
    name = element.tag.rpartition("}")[2] if isinstance(element.tag, str) else "template"  # a comment
    closed = name == "dialog" and "open" not in element.attrib
    hidden = "hidden" in element.attrib or HIDDEN.search(element.get("style", ""))
    if name in NOT_SHOWN or closed or hidden:
        return ""
    below = (shown(child) + (child.tail or "") for child in element)
    return "".join([element.text or "", *below])


def compared(path: Path) -> str:
    """Whether both read the same of a page; what is between the cells of a table does not count."""
    try:
        page = input_file.decoded(path.read_bytes(), path.name, declared=True)
    except UserError as problem:
        return f"refused: {str(problem).rpartition(': ')[2]}"
    texts = shown(html5lib.parse(page, namespaceHTMLElements=False))
    passages = "".join(text for _, text in document_text.hypertext(page))
    right, ours = ("".join(each.replace(";", "").split()) for each in (texts, passages))
    return "the same" if right == ours else "different"


if __name__ == "__main__":
    found = [path for place in sys.argv[1:] for path in sorted(Path(place).rglob("*.htm*")) if path.is_file()]
    small = [path for path in found if path.suffix[:4] == ".htm" and path.stat().st_size < LARGEST]
    judged = {path: compared(path) for path in small[:: max(1, len(small) // PAGES)]}
    print(*(f"{path}: {how}" for path, how in judged.items() if how != "the same"), sep="\n")
    print(Counter(how.partition(":")[0] for how in judged.values()).most_common())
