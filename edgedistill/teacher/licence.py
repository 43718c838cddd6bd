"""The licence that a model's own card states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

LONGEST = 120  # characters


def stated(folder: Path) -> str | None:
    """The `license` in the front matter of a model folder's README.md; of a licence called `other`, its name. None where there is none."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    first, *rest = card.read_text(encoding="utf-8", errors="replace").split("---\n", 2)
    if first.strip() or len(rest) < 2:
        return None
    try:
        front: Any = yaml.safe_load(rest[0])
    except yaml.YAMLError:
        return None
    if not isinstance(front, dict):
        return None
    named = front.get("license_name") if front.get("license") == "other" else None
    found = named or front.get("license")
    licences = [str(each) for each in (found if isinstance(found, list) else [found]) if each]
    return " ".join(", ".join(licences).split())[:LONGEST] or None
