from __future__ import annotations

import sys
import sysconfig
from itertools import islice
from pathlib import Path

import pytest

from edgedistill.data import docstring_sentences, documentation

NUMPYDOC = """
    add(x, y, out=None)

    Add two arrays, element by element.

    Parameters
    ----------
    x : array_like
        The first of the two arrays that are
        added to each other.
    y : ndarray, optional
        See `numpy.subtract` for **what** it may be [1]_.

    See Also
    --------
    subtract : Take the second array away from the first.

    .. versionadded:: 1.2
        The second array may be left out.

    .. code-block:: python

        this line of code must not be seen here

    Notes
    -----
    The sum is :math:`a + b`, which nobody can read aloud.  It is a :class:`~numpy.ndarray`
    in all of the cases, e.g. for one that is empty.  Read https://example.org/add for more of the same.

    An example follows these words::

        and this literal block must not be seen either

    - The first point of the list is that a bullet may
      go on in the next line.

    >>> add(1, 2) # the result of this is three
    3 is what the example of the sum prints

    ===== ===== this is a table of the numbers
    """


def test_documentation_reads_as_sentences() -> None:
    assert list(docstring_sentences.sentences(NUMPYDOC)) == [
        "Add two arrays, element by element.",
        "The first of the two arrays that are added to each other.",
        "See numpy.subtract for what it may be.",
        "Take the second array away from the first.",
        "The second array may be left out.",
        "It is a ndarray in all of the cases, e.g. for one that is empty.",
        "The first point of the list is that a bullet may go on in the next line.",
    ]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("input (Tensor): the tensor that is read.", "the tensor that is read."),
        (":param x: what the function is to be given.", "what the function is to be given."),
        (":type x: int or a list of them", None),
        ("1. The first of a list of things.", "The first of a list of things."),
        (".. note:: This is what a note says.", "This is what a note says."),
        (".. image:: a picture of the thing", None),
        ("| a | table | of | the | things |", None),
    ],
)
def test_the_start_of_a_line(text: str, left: str | None) -> None:
    assert list(docstring_sentences.running_text(text)) == ([left] if left else [])


@pytest.mark.parametrize(
    "text",
    [
        "Too short here.",
        "x = f(a) if a is not None else the_other",
        "np.array, np.dot, torch.mm, a.b_c, the x_1",
        "This one ends in the middle,",
        "Tensor Array Matrix Vector Scalar Number Value.",
        "an unfinished fragment of the text",
        "1.5 2.5 3.5 4.5 the numbers 5.5 6.5 of it.",
        "It lost \0 what it was about.",
    ],
)
def test_what_nobody_would_read_is_left_out(text: str) -> None:
    assert not docstring_sentences.is_sentence(text)


def test_sentences_end_where_they_end() -> None:
    text = 'Use it, e.g. A or B. Smith et al. They said "yes." Then what? See Fig. 3 of J. Doe! Done.'
    assert list(docstring_sentences.split_sentences(text)) == [
        'Use it, e.g. A or B. Smith et al. They said "yes."',
        "Then what?",
        "See Fig. 3 of J. Doe!",
        "Done.",
    ]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that must not be imported: it would fail."""
    folder = tmp_path / "prosaic_package"
    (folder / "tests").mkdir(parents=True)
    (folder / "__init__.py").write_text('"""This is the text of the module."""\nraise SystemExit("imported")\n')
    (folder / "broken.py").write_text('"""This text is in a file that cannot be parsed."""\ndef (:\n')
    (folder / "tests" / "test_it.py").write_text('"""The tests of the package are not read."""\n')
    long = "\n".join(["Compute the sum of all the numbers.", "", "The numbers are read from the file that is given.", "", "x" * 80])
    code = 'class A:\n    def f(self):\n        """Do what the function is for."""\n        '
    code += f't = """{long} inside."""\nadd_newdoc("f", r"""{long}""")\n'
    (folder / "documents.py").write_text(code + 'x = f"""It was {long} of the pieces."""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_sources_are_read_and_not_run(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Path(sysconfig.get_paths()["stdlib"]) / "json"  # the whole library takes seconds
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(part)})
    python = list(documentation.sentences([]))
    assert len(python) > 20
    every = list(documentation.sentences(["prosaic_package", "no_such_package_anywhere"]))
    assert every[: len(python)] == python, "the order is not the same in every run"
    assert every[len(python) :] == [
        "This is the text of the module.",
        "Do what the function is for.",
        "Compute the sum of all the numbers.",
        "The numbers are read from the file that is given.",
    ]
    assert "prosaic_package" not in sys.modules


def test_python_alone_has_thousands() -> None:
    distinct = {text.casefold() for text in islice(documentation.sentences([]), 10_000)}
    assert len(distinct) > 8_000
    assert not [text for text in distinct if "\n" in text or "\0" in text or len(text.split()) < 4]


def test_the_content_id_changes_with_the_sources(package: Path) -> None:
    before = documentation.content_id(["prosaic_package"])
    assert before == documentation.content_id(["prosaic_package"]) != documentation.content_id([])
    (package / "documents.py").write_text("")
    assert documentation.content_id(["prosaic_package"]) != before


@pytest.mark.slow
def test_the_demo_has_enough_to_train_on() -> None:
    assert len({text.casefold() for text in documentation.sentences(["numpy", "scipy", "torch"])}) >= 30_000
