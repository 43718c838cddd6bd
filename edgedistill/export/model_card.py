"""A bundle's model card: its README.md, from its manifest and the templates in card/. Every number on it was
measured at export."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from edgedistill import recipe
from edgedistill.data.corpus import ADDED, PARAGRAPHS, PASSAGES
from edgedistill.files import Json
from edgedistill.precisions import PRECISIONS, fastest_first
from edgedistill.runtime import bundle_location

MOST_FILES = 20  # more files without licences are one row
# Names of sources that records keep, as readers see them.
SHOWN = {
    PARAGRAPHS: "paragraphs joined from the lines above",
    PASSAGES: "sentences of the texts above, and runs of them",
}
LICENCES = {**dict.fromkeys(SHOWN, "those of the files above"), **bundle_location.LICENCES}
# How transformers.js names the files that it looks for.
DTYPES = {name: row.dtype for name, row in PRECISIONS.items() if row.dtype}


def filled(template: str, manifest: Json, **values: Any) -> str:
    """The card of a bundle as Markdown. `values` are what its template reads besides the manifest.

    Of an encoder: the `libraries` that open it, as `library_files.libraries` names them. Of a pair: the
    manifests of `query` and `document`.
    """
    folder = FileSystemLoader(Path(__file__).with_name("card"))
    templates = Environment(loader=folder, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    templates.filters |= {"number": "{:,}".format, "cell": _cell, "json": json.dumps}
    templates.globals |= {"rows": PRECISIONS, "shown": SHOWN, "licences": LICENCES, "dtypes": DTYPES}
    templates.globals |= {"ranked": fastest_first, "sources": _sources}
    text = templates.get_template(f"{template}.md.jinja").render(manifest, manifest=manifest, **values)
    # whatever a template leaves out leaves empty lines
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _cell(text: str) -> str:
    """A text on one line, and within its column."""
    return " ".join(str(text).split()).replace("|", "\\|")


def _sources(manifest: Json) -> tuple[list[Json], list[Json]] | None:
    """The text files of the corpus with what was added to them, and the tuples; None where the recipe
    neither names licences nor adds texts."""
    recorded = manifest["run"].get("corpus") or {}
    declared = manifest["recipe"].get("rows") or {}
    sources = recorded.get("sources", [])
    licences = declared.get("licences") or {}
    files = [source for source in sources if source["name"] not in ADDED]
    added = sources[len(files) :]  # they come behind the files
    tuples = recipe.row_sources(manifest["recipe"].get("stages", []))
    if not licences and not added and not tuples:
        return None
    if not licences and len(files) > MOST_FILES:
        counts = [source.get("texts", source.get("pairs")) for source in files]
        files = [{"name": f"{len(files):,} files", "texts": sum(counts)}]
    return [{**source, "licence": licences.get(source["name"])} for source in [*files, *added]], tuples
