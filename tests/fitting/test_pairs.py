"""A fit with queries and the texts that answer them: all candidates train on them behind the texts, and are
judged by what they find for queries that were held out."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.fitting import fit, queries, texts
from edgedistill.fitting.queries import Pairs
from edgedistill.runtime import bundle
from edgedistill.session import Session
from edgedistill.training.training_sources import TrainingSources
from tests.conftest import World
from tests.fitting.conftest import Finished, request, state_of


def test_candidates_train_on_pairs_behind_the_texts(finished: Finished):
    assert any(line.endswith("pairs of 60 queries, 6 of them held out") for line in finished.logged)
    state, winner = state_of(finished.folder), finished.result["winner"]
    assert state.pairs is not None and (state.pairs.rows, state.pairs.held_out) == (54, 6)
    for candidate in (each for each in state.candidates if each.steps):
        first, behind = candidate.recipe["stages"]
        assert "rows" not in first and behind["rows"]["held_out"] == 6
        assert 1 <= behind["steps"] <= round(0.2 * first["steps"]) + 1 and len(candidate.taken) == 2
        assert {"agreement", "own", "similarity"} < set(candidate.measures)
    assert state.teacher_measures is not None and state.teacher_measures["own"] > 0.3
    opened = bundle.load(finished.folder / "bundle", precision=winner["precision"])
    rows, pairs = texts.parsed(state.corpus or {}), {"--pairs": state.pairs.table}
    held_out = queries.asked(TrainingSources(rows, pairs, Session(data=Path()), 0))["own"]
    assert len(held_out.queries) == 6
    again = held_out.score(scoring.Encoder.of(opened))["ndcg_at_10"]
    assert again == pytest.approx(winner["measures"]["own"], abs=1e-3)
    assert again > 0.3, "words of the text itself find it"
    assert "own " in fit.summary(finished.result).split("retained of the teacher: ")[1]


def test_texts_without_words_are_refused_before_anything_is_measured(tmp_path):
    """Of which BM25 finds none."""
    (tmp_path / "marks.txt").write_text("".join(f"{'!' * (n + 1)} ?\n" for n in range(60)), encoding="utf-8")
    rows = "".join(f"{'?' * (n + 1)}\t{'!' * (n + 1)} ?\n" for n in range(60))
    (tmp_path / "p.tsv").write_text(f"query\ttext\n{rows}", encoding="utf-8")
    session = Session(data=tmp_path, cache_folder=tmp_path / "cache")
    marks = recipe.Rows(files=["marks.txt"], held_out=10)
    pairs = {"--pairs": queries.counted(Pairs("p.tsv"), session).table}
    without = queries.asked(TrainingSources(marks, {}, session, 0))
    assert without == {}, "no text has several sentences, so none is asked for"
    with pytest.raises(UserError, match=r"^--texts: no words in \d+ texts, so BM25 finds none; give "):
        queries.asked(TrainingSources(marks, pairs, session, 0))


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        (Pairs("p.csv", "q", "q"), "--text-column: 'q' is the column of queries too; name that of the texts"),
        (Pairs("gone.csv"), "--pairs: 'gone.csv'"),
        (Pairs("p.csv"), "p.csv: no column 'query'; .* set --query-column and --text-column"),
        (Pairs("p.txt"), "a text file has no columns; give --query-column and --text-column a .tsv"),
    ],
)
def test_what_is_no_table_of_pairs(tmp_path, pairs: Pairs, problem: str):
    (tmp_path / "p.csv").write_text("q,answer\nwhat,that\n", encoding="utf-8")
    (tmp_path / "p.txt").write_text("what that\n", encoding="utf-8")
    with pytest.raises(UserError, match=problem):
        queries.counted(pairs, Session(data=tmp_path, cache_folder=tmp_path / "cache"))


def test_pairs_that_teach_nothing_end_before_anything_is_trained(world: World, tmp_path):
    (tmp_path / "p.csv").write_text("q,answer\nwhat,that\nwho,they\n", encoding="utf-8")
    pairs = Pairs(str(tmp_path / "p.csv"), "q", "answer")
    with pytest.raises(UserError, match="^--pairs: 2 distinct queries, at least 20 are needed; add pairs$"):
        fit.fit(request(world, pairs=pairs), tmp_path / "fit", Session())
    assert not (tmp_path / "fit").exists()
