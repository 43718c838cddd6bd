"""Views from a file: row beside row, and refused where they are not whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedistill import recipe
from edgedistill.data import corpus
from edgedistill.errors import UserError
from edgedistill.session import QUIET, Session
from edgedistill.training.inputs.text_batches import of_files
from tests.conftest import World, sentences


@pytest.fixture(scope="module")
def built(world: World) -> corpus.Corpus:
    odd = ["naïve café, isn't it?", "[SEP] in a text [MASK]ed", "文字 and 🙂 emoji", "… — !!! ???"]
    (world.data / "viewed.txt").write_text("\n".join(odd + sentences(120, seed=6)) + "\n", encoding="utf-8")
    return corpus.build(recipe.Files(texts=["viewed.txt"]), Session(data=world.data), 0)


def of_file(folder: Path, texts: list[str]) -> recipe.ViewFile:
    lines = [f"{number}\t{text.upper()}\tview {number} of it" for number, text in enumerate(texts)]
    (folder / "views.tsv").write_text("n\ttext\tview\n" + "\n".join(reversed(lines)) + "\n", encoding="utf-8")
    return recipe.ViewFile(kind="file", files=[str(folder / "views.tsv")])


def test_views_from_a_file_lie_row_beside_row(built: corpus.Corpus, tmp_path: Path) -> None:
    texts = built.texts(range(len(built)))
    made = of_files(of_file(tmp_path, texts), built, QUIET, "stages[0].view")
    assert made.texts(range(len(made))) == [f"view {number} of it" for number in range(len(texts))]
    assert made.training_count == built.training_count


def test_a_file_that_lacks_texts_is_refused_with_their_count(built: corpus.Corpus, tmp_path: Path) -> None:
    texts = built.texts(range(len(built)))
    spec = of_file(tmp_path, texts)
    made = (tmp_path / "views.tsv").read_text(encoding="utf-8")
    (tmp_path / "views.tsv").write_text(
        made.replace("view 1 of it", " ").replace("view 4 of it", ""), encoding="utf-8"
    )
    with pytest.raises(
        UserError,
        match=rf"stages\[0\].view: 2 of the corpus' {len(texts)} texts have an empty view in views.tsv",
    ):
        of_files(spec, built, QUIET, "stages[0].view")
    spec = of_file(tmp_path, texts[:2] + texts[5:])
    with pytest.raises(
        UserError,
        match=rf"stages\[0\].view: 3 of the corpus' {len(texts)} texts are not in views.tsv, the first of "
        r"them",
    ):
        of_files(spec, built, QUIET, "stages[0].view")
    with pytest.raises(UserError, match=r"no column 'text'|no column 'vew'"):
        of_files(spec.model_copy(update={"view_column": "vew"}), built, QUIET, "stages[0].view")
