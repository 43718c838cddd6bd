"""export/python/API.md: up to date, and without names that are no longer there."""

from __future__ import annotations

import re

import api_page

import edgedistill
from edgedistill.runtime.bundle import ClassifierBundle, PairBundle

TEXT = api_page.PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date():
    assert api_page.page() == TEXT, "run make docs"


def test_every_name_of_the_page_is_there_and_described():
    found = {"PairBundle": PairBundle, "ClassifierBundle": ClassifierBundle}
    found |= {name: getattr(edgedistill, name) for name in edgedistill.__all__}
    sections = re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert sorted(name for name, _ in sections) == sorted(found)
    for name, section in sections:
        members = re.findall(r"^### `(\w+)`$", section, re.MULTILINE)
        assert all(hasattr(found[name], member) for member in members)
        assert re.search(r"^```\n\n[A-Z`(]", section, re.MULTILINE), f"{name} has no description"
    assert {"encode", "search", "tokenize", "close"} <= set(re.findall(r"^### `(\w+)`$", TEXT, re.MULTILINE))
