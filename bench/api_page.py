"""The API page, export/python/API.md: signatures and docstrings of what edgedistill offers, by griffe2md."""

from __future__ import annotations

import re
from pathlib import Path

import griffe
import griffe2md

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "export" / "python" / "API.md"
BESIDE = ("runtime.bundle.PairBundle", "runtime.bundle.ClassifierBundle")  # what `load` returns too
INTERNAL = r"!^(embedding_dim|item_rows|not_read|fallback|graph_file|\w+_ids|of|unknown_(id|tokens))$"
HEAD = """# The Python API

Generated from the docstrings by `make docs`. `import edgedistill` offers {offered}.
`load` returns a `Bundle`: for a pair of encoders a `PairBundle`, for a classifier a `ClassifierBundle`.
"""


def page() -> str:
    """The page as Markdown."""
    package = griffe.load("edgedistill", search_paths=[str(ROOT)])
    offered = [str(name).strip("'\"") for name in package.exports or ()]
    config = griffe2md.ConfigDict(
        docstring_style=None,
        filters=["!^_", INTERNAL],
        inherited_members=False,
        heading_level=2,
        members_order="source",
        show_root_full_path=False,
        show_root_members_full_path=False,
        show_object_full_path=False,
        show_bases=False,
        show_signature_annotations=True,
        show_submodules=False,
        show_if_no_docstring=False,
        summary=False,
    )
    parts = [HEAD.format(offered=", ".join(f"`{name}`" for name in offered))]
    for path in (*offered, *BESIDE):
        found = package[path]
        found = found.final_target if found.is_alias else found
        for each in (found, *found.members.values()):
            if each.docstring:
                each.docstring.value = _listed(each.docstring.value)
        parts.append(griffe2md.render_object_docs(found, config))
    return "\n".join(part.strip() + "\n" for part in parts)


def _listed(docstring: str) -> str:
    """A docstring whose lines *name: what it is* are a list."""
    return re.sub(r"^(\w+(?:, \w+)*): ", r"- `\1`: ", docstring, flags=re.MULTILINE)
