"""Write README's results table from the reports it names.

python bench/readme.py
"""

from __future__ import annotations

from pathlib import Path

from edgedistill import report

ROOT = Path(__file__).resolve().parent.parent
REPORTS = [ROOT / "bench" / "reports" / name for name in ("english.json", "flagship.json")]

if __name__ == "__main__":
    changed = report.update_readme(ROOT / "README.md", REPORTS)
    print("README.md: written anew" if changed else "README.md: already so")
