"""Write every generated document: schema.json, the recipe reference, the tables of README.md and bench/RESULTS.md, the README's plot.

python bench/documents.py (or make docs)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgedistill import files
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
README, ADAPTED = ROOT / "README.md", REPORTS / "adapt.json"  # of bench/adapt_goals.py
COLLECTIONS = {"scifact": "SciFact", "cranfield": "Cranfield"}


def adapted(found: dict[str, Any]) -> str:
    """The table of adaptations: nDCG@10 of a collection for each number of its documents, and what the student kept of STS."""
    name, rows = found["student"], []
    for collection, runs in found["adapted"].items():
        teacher, before = (found[who][collection] for who in ("teacher", "unadapted"))
        rows.append((COLLECTIONS[collection], 0, "", before, teacher))
        rows += [(COLLECTIONS[collection], each["documents"], each["seconds"] / 60, each["scores"], teacher) for each in runs.values()]
    rows.sort(key=lambda row: (list(COLLECTIONS.values()).index(row[0]), row[1]))
    head = f"| collection | documents that `{name}` learned | minutes | nDCG@10 | of its teacher's | sts7 |"
    lines = [head, "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for title, documents, minutes, scores, teacher in rows:
        time = f"{minutes:.1f}" if documents else ""
        share = f"{scores['ndcg10'] / teacher['ndcg10']:.1%}"
        lines.append(f"| {title} | {documents:,} | {time} | {100 * scores['ndcg10']:.1f} | {share} | {100 * scores['sts7']:.1f} |")
    machine = found["machine"]
    return "\n".join([*lines, "", f"<sub>{machine['cpu']} · {machine['cores']} cores</sub>", ""])


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
    if readme.update(README, adapted(files.read_json(ADAPTED)), "adapted"):
        changed.append("adapted")
    if readme_plot.write(PLOTS, report.merged(report.read(PLOTTED)), PLOTTED_SUITE):
        changed.append("plot")
    print(f"updated: {', '.join(changed)}" if changed else "up to date")
