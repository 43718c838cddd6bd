"""Prose read out of reStructuredText, and the general corpus that was made from Python's."""

from __future__ import annotations

import general_corpus
import pytest

from edgedistill import files, recipe
from edgedistill.data import corpus, document_text, readers
from edgedistill.errors import UserError
from edgedistill.session import Session

DOCUMENT = """
=====
Title
=====

.. _a-target:
.. highlight:: c

Add two *arrays*, element by
element; see :func:`~numpy.add.at`, :ref:`the text <target>` and `a page <https://example.org>`_ [1]_.

.. function:: add(x, y)

   The text of a function, with ``code`` in it.

   .. versionchanged:: 3.8
      It may be left out.

.. code-block:: python
   :linenos:

   not = read

An example follows these words::

    and this literal block must not be seen

    nor this

- The first point of the list may
  go on in the next line.
- The second.

term
    What it means.

>>> add(1, 2)  # not read
3

===== =====
not   read
===== =====
"""


def test_restructured_text_and_its_prose():
    paragraphs = [
        (9, "Add two arrays, element by element; see at, the text and a page [1]_."),
        (12, "add(x, y)"),
        (14, "The text of a function, with code in it."),
        (16, "3.8 It may be left out."),
        (24, "An example follows these words:"),
        (30, "The first point of the list may go on in the next line."),
        (32, "The second."),
        (34, "term"),
        (35, "What it means."),
    ]
    assert list(document_text.restructured(DOCUMENT, but=general_corpus.NO_PROSE)) == paragraphs
    whole = list(document_text.restructured(DOCUMENT))
    assert [passage for passage in whole if passage in paragraphs] == paragraphs
    assert [passage for passage in whole if passage not in paragraphs] == [
        (3, "Title"),
        (22, "not = read"),
        (26, "and this literal block must not be seen nor this"),
        (37, ">>> add(1, 2) # not read 3"),
        (41, "not; read"),
    ]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (":param x: what the function is given.", ["param x", "what the function is given."]),
        ("1. The first of a list of things.", ["The first of a list of things."]),
        (".. note:: This is what a note says.", ["This is what a note says."]),
        (".. versionadded:: 3.5 What was added.", ["3.5 What was added."]),
        (".. image:: a picture of the thing", []),
        (".. a comment", []),
        ("| a line of verse\n| another", ["a line of verse another"]),
        (".. image:: a.png\n   :alt: a picture", ["a picture"]),
        (".. include:: /etc/passwd", []),
        (".. raw:: html\n\n   <p>in <b>bold</b></p>", ["in bold"]),
        (".. only:: html\n\n   Shown in one kind of output.", ["Shown in one kind of output."]),
        (".. list-table::\n\n   * - a\n     - b", ["a; b"]),
        ("Of :ref:`the text <target>` and :py:meth:`~a.b.c`.", ["Of the text and c."]),
        ("+---+\n| cut |\n+--\n", ["+---+ | cut | +--"]),
        ("A name with a star* and 2 * 3.", ["A name with a star* and 2 * 3."]),
    ],
)
def test_what_is_read_of(text: str, left: list[str]):
    assert [found for _, found in document_text.restructured(text)] == left


def test_a_file_gives_its_passages(tmp_path):
    path = tmp_path / "page.rst"
    path.write_text(DOCUMENT, encoding="utf-8")
    assert list(readers.texts_in(path)) == [text for _, text in document_text.restructured(DOCUMENT)]
    path.write_text(f"Title\n=====\n\n{'word ' * 30_000}\n", encoding="utf-8")
    with pytest.raises(UserError, match="page.rst: line 4 is a text of 149,999 characters"):
        list(readers.texts_in(path))


def test_the_general_corpus_is_distinct_normalized_sentences():
    texts = list(readers.texts_in(files.GENERAL_CORPUS))
    assert len({text.casefold() for text in texts}) == len(texts) > 60_000
    assert texts == [readers.normalize(text) for text in texts]
    assert all(len(text.split()) >= 4 for text in texts)
    assert files.GENERAL_CORPUS.stat().st_size <= 3_000_000
    assert "PSF-2.0" in (files.GENERAL_CORPUS.parent / "LICENSE.txt").read_text(encoding="utf-8")


def test_a_corpus_of_documentation_is_the_same_everywhere():
    made = corpus.build(recipe.Rows(files=[recipe.DOCUMENTATION], limit=500, held_out=50), Session(), 0)
    assert made.fingerprint.startswith("9de90deccbc7")
    assert made.sources == [{"name": "documentation", "texts": 500}] and made.training_count == 450
