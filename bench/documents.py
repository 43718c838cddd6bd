"""Write every generated document: schema.json, the recipe reference, the tables of README.md and bench/RESULTS.md, the README's plot.

python bench/documents.py (or make docs)
"""

from __future__ import annotations

from pathlib import Path

from edgedistill.evaluation import readme, report
from edgedistill.evaluation.plots import readme_plot
from edgedistill.recipe import reference, schema

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "bench" / "reports"
TABLES = {  # name of the table -> (the document with its markers, its reports)
    "flagships": (ROOT / "README.md", [REPORTS / "flagship.json"]),
    "shipped": (ROOT / "README.md", [REPORTS / "export.json"]),
    "results": (ROOT / "bench" / "RESULTS.md", [REPORTS / "english.json"]),
    "languages": (ROOT / "bench" / "RESULTS.md", [REPORTS / "languages.json"]),
}
PLOTS = ROOT / "bench" / "plots"
PLOTTED, PLOTTED_SUITE = REPORTS / "flagship.json", "sts7"

RECIPES = ROOT / "recipes"


def rewrite(path: Path, text: str) -> bool:
    """Write a file whose text has changed. Returns whether it had."""
    changed = path.read_text(encoding="utf-8") != text
    if changed:
        path.write_text(text, encoding="utf-8")
    return changed


if __name__ == "__main__":
    changed = [
        name
        for name, path, text in (
            ("schema", RECIPES / "schema.json", schema()),
            ("recipe reference", RECIPES / "README.md", reference.updated((RECIPES / "README.md").read_text(encoding="utf-8"))),
        )
        if rewrite(path, text)
    ]
    changed += [name for name, (document, sources) in TABLES.items() if readme.update_table(document, sources, name)]
    if readme_plot.write(PLOTS, report.merged(report.read(PLOTTED)), PLOTTED_SUITE):
        changed.append("plot")
    print(f"updated: {', '.join(changed)}" if changed else "up to date")
