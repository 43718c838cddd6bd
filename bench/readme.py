"""Write README's results tables, each from the reports it is made of.

python bench/readme.py
"""

from __future__ import annotations

from pathlib import Path

from edgedistill.evaluation import report

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "bench" / "reports"
TABLES = {
    "flagships": [REPORTS / "flagship.json"],
    "results": [REPORTS / "english.json"],
    "languages": [REPORTS / "languages.json"],
}

if __name__ == "__main__":
    changed = [name for name, sources in TABLES.items() if report.update_readme(ROOT / "README.md", sources, name)]
    print(f"README.md: written anew ({', '.join(changed)})" if changed else "README.md: already so")
