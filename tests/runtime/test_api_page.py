"""export/python/API.md: up to date, complete, and its examples run."""

from __future__ import annotations

import doctest
import re

import api_page

import edgedistill

TEXT = api_page.PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date():
    assert api_page.page() == TEXT, "run make docs"


def test_every_name_is_described():
    described = re.findall(r"^## `(\w+)`\n\n(?:```.*?```\n\n)?[A-Z]", TEXT, re.DOTALL | re.MULTILINE)
    assert {*edgedistill.__all__, "PairBundle", "ClassifierBundle"} == {*described}


def test_the_examples_run():
    page = doctest.DocTestParser().get_doctest(TEXT, {}, "API.md", None, 0)
    assert len(page.examples) > 15
    assert doctest.DocTestRunner().run(page).failed == 0
