"""Every file of every cache is checked when it is opened: a damaged one is named once and made again, with
the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from edgedistill import files, recipe
from edgedistill.data import cached_folder, corpus, token_cache
from edgedistill.data import rows as training_rows
from edgedistill.errors import UserError
from edgedistill.session import Session

DAMAGE: dict[str, Callable[[Path], Any]] = {
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "garbage": lambda path: path.write_bytes(b"\x93garbage" * 9),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
    "one bit": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
}


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "text": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def built(session: Session) -> corpus.Corpus:
    return corpus.build(recipe.Rows(files=["a.txt"], held_out=1), session, 0)


CACHES: dict[str, Callable[[Session], Any]] = {
    "corpora": built,
    "tokens": lambda session: token_cache.TokenPass(built(session), tokenizer(), 8, 0, session).open(),
    "rows": lambda session: training_rows.build(
        recipe.Rows.model_validate(
            {
                "held_out": 1,
                "tables": [{"files": ["pairs.tsv"], "languages": ["en", "de"], "columns": ["en", "de"]}],
            }
        ),
        session,
        0,
    ),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("cache", CACHES)
def test_a_damaged_file_is_named_and_made_again(tmp_path, cache: str):
    texts = [f"a text {number}" for number in range(9)]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    (tmp_path / "pairs.tsv").write_text("en\tde\n" + "".join(f"{text}\tein {text}\n" for text in texts))
    lines: list[str] = []
    session = Session(data=tmp_path, cache_folder=tmp_path / "cache", log=lines.append)
    CACHES[cache](session)
    folder = min((tmp_path / "cache" / cache).iterdir())  # of tokens the whole, before its shards
    before = contents(folder)
    assert len(before) >= 2 and any(not name.endswith(".json") for name in before)
    kinds = list(DAMAGE)
    for number, name in enumerate(before):
        for how in (kinds[number % 3], kinds[3 + number % 3]):
            DAMAGE[how](folder / name)
            lines.clear()
            CACHES[cache](session)
            assert contents(folder) == before, (name, how)
            about = [line for line in lines if "damaged or missing" in line]
            assert len(about) == 1 and f"{folder / name}: " in about[0], (name, how)
    lines.clear()
    CACHES[cache](session)
    left = {path.name for path in (tmp_path / "cache" / cache).iterdir()}
    assert not lines and left - {f"{folder.name}.shards"} == {folder.name}


def test_a_file_is_hashed_once_a_process(tmp_path, monkeypatch):
    """A corpus of gigabytes is opened several times by one command."""
    hashed: list[Path] = []
    sha256 = files.sha256_file
    cached_folder.cached_folder(tmp_path / "c", lambda folder: (folder / "a").write_text("one"), print)
    monkeypatch.setattr(files, "sha256_file", lambda path: hashed.append(path) or sha256(path))
    for _ in range(3):
        cached_folder.cached_folder(tmp_path / "c", lambda folder: pytest.fail("it is intact"), print)
    assert hashed == [tmp_path / "c" / "a"]
    (tmp_path / "c" / "a").write_text("other")
    cached_folder.cached_folder(
        tmp_path / "c", lambda folder: (folder / "a").write_text("one"), lambda line: None
    )
    assert (tmp_path / "c" / "a").read_text() == "one"


def test_ids_above_the_count_of_tokens_fit(tmp_path):
    """A vocabulary with gaps: three tokens, and an id that 16 bits do not hold."""
    (tmp_path / "a.txt").write_text("a text\na text text\n")
    made = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "text": 70_000}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    session = Session(data=tmp_path, cache_folder=tmp_path / "cache")
    found = token_cache.TokenPass(
        corpus.build(recipe.Rows(files=["a.txt"]), session, 0), made, 8, 0, session
    ).open()
    assert found.batch(np.arange(2), 8)[0].tolist() == [[1, 70_000, 0], [1, 70_000, 70_000]]


def test_a_folder_that_is_emptied_while_it_is_written(tmp_path):
    """What is written afterwards is not taken for all of it."""

    def write(folder: Path):
        (folder / "first").write_text("a")
        for path in folder.iterdir():
            path.unlink()
        (folder / "last").write_text("b")

    with pytest.raises(UserError, match="x: deleted while it was written; run the command again"):
        cached_folder.written(tmp_path / "x", write)
    assert not list(tmp_path.iterdir())
