"""Scores worked by hand, or against another implementation."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

import edgedistill
from edgedistill.data import bm25
from edgedistill.errors import CheckFailed, UserError
from edgedistill.evaluation import bench, scoring
from edgedistill.evaluation.suites import retrieval
from edgedistill.evaluation.teacher_agreement import agreement
from edgedistill.runtime.similarity import unit_rows

ANGLES = {"zero": 0.0, "ten": 10.0, "thirty": 30.0, "sixty": 60.0, "ninety": 90.0, "more": 150.0}


def encode(texts: list[str]) -> np.ndarray:
    """A text is a direction in the plane: "sixty" lies at 60 degrees; "" has none, "nan" is not a number."""
    angles = [math.radians(ANGLES.get(text.split()[0] if text else "", 0.0)) for text in texts]
    rows = np.array([[math.cos(angle), math.sin(angle)] for angle in angles], dtype=np.float32)
    rows[[text == "" for text in texts]] = 0
    rows[[text == "nan" for text in texts]] = np.nan
    return rows


def write_suite(folder: Path, yaml: str, **tables: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        (folder / f"{name}.tsv").write_text(table, encoding="utf-8")
    (folder / "suite.yaml").write_text(yaml, encoding="utf-8")
    return folder / "suite.yaml"


TABLE = "".join(
    "\t".join(row) + "\n"
    for row in [
        ("sentence1", "sentence2", "score", "subset"),
        ("zero", "ten", "5", "a"),
        ("zero", "thirty", "3", "a"),
        ("zero", "ninety", "4", "a"),
        ("zero", "more", "0", "a"),
        ("zero", "sixty", "", "a"),  # without a score: dropped
        ("zero", "sixty", "2", "b"),
        ("zero", 'thirty "', "1", "b"),  # a quotation mark is a character like any other
    ]
)
STS = "kind: sts\ntasks: [{name: t, file: pairs.tsv}]\n"


def test_all_by_hand(tmp_path):
    suite = scoring.suite(write_suite(tmp_path, STS, pairs=TABLE))
    found = scoring.evaluate(suite, encode)
    task = found["tasks"]["t"]
    # all: closeness 10 > 30 = 30 > 60 > 90 > 150, gold 5 3 4 0 2 1; ties share a rank
    close, gold = rankdata([-10, -30, -90, -150, -60, -30]), rankdata([5, 3, 4, 0, 2, 1])
    assert task["all"] == pytest.approx(np.corrcoef(close, gold)[0, 1], abs=1e-6)
    assert task["pairs"] == 6
    assert found["average"] == task["all"]
    assert found["kind"] == "sts"


def test_average_is_the_mean_of_all_over_tasks_and_subset_filters(tmp_path):
    yaml = (
        "kind: sts\ntasks: [{name: first, file: pairs.tsv, subset: a}, {name: second, file: pairs.tsv, "
        "subset: b}]\n"
    )
    found = scoring.evaluate(scoring.suite(write_suite(tmp_path, yaml, pairs=TABLE)), encode)
    assert found["tasks"]["first"]["all"] == pytest.approx(0.8)
    assert found["tasks"]["second"]["all"] == pytest.approx(-1)
    assert found["average"] == pytest.approx(-0.1)


def test_vectors_without_direction_have_cosine_zero(tmp_path):
    table = "sentence1\tsentence2\tscore\nzero\tten\t5\nzero\t\t3\nzero\tmore\t0\n"
    suite = scoring.suite(write_suite(tmp_path, STS, pairs=table))
    assert scoring.evaluate(suite, encode)["tasks"]["t"]["all"] == pytest.approx(1)  # 0.98 > 0 > -0.87


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_embedding_that_is_not_finite_has_no_score(tmp_path, value: float):
    suite = scoring.suite(write_suite(tmp_path, STS, pairs=TABLE))

    def broken(texts: list[str]) -> np.ndarray:
        return np.where([[text == "sixty"] for text in texts], np.float32(value), encode(texts))

    with pytest.raises(CheckFailed, match=r"^embedding \d is not finite; "):
        scoring.evaluate(suite, broken)


@pytest.mark.filterwarnings("error")
def test_an_encoder_that_returns_one_vector_scores_zero(tmp_path):
    suite = scoring.suite(write_suite(tmp_path, STS, pairs=TABLE))
    found = scoring.evaluate(suite, lambda texts: np.ones((len(texts), 4), np.float32))
    assert found["average"] == 0
    assert scoring.evaluate(suite, lambda texts: np.zeros((len(texts), 4), np.float32))["average"] == 0


def test_each_distinct_text_is_encoded_once(tmp_path):
    suite = scoring.suite(
        write_suite(
            tmp_path,
            STS,
            pairs=TABLE.replace("\tten", "\t ten "),
        )
    )
    seen: list[str] = []

    def counting(texts: list[str]) -> np.ndarray:
        seen.extend(texts)
        return encode(texts)

    scoring.evaluate(suite, counting)
    assert sorted(seen) == sorted({"zero", "ten", "thirty", "ninety", "more", "sixty", 'thirty "'})


def test_columns_by_name_gz_and_files_under_data(tmp_path):
    table = "gold\tjunk\tleft\tright\tsubset\n5\tx\tzero\tten\tp\n0\tx\tzero\tmore\tp\n3\tx\tzero\tsixty\tq\n"
    (tmp_path / "data").mkdir()
    with gzip.open(tmp_path / "data" / "pairs.tsv.gz", "wt", encoding="utf-8") as file:
        file.write(table)
    yaml = (
        "kind: sts\ntasks: [{name: t, file: pairs.tsv.gz, sentence1: left, sentence2: right, score: gold}]\n"
    )
    path = write_suite(tmp_path / "suite", yaml)
    suite = scoring.suite(path, tmp_path / "data")
    assert suite.name == "suite"
    assert suite.tasks["t"].gold.tolist() == [5, 0, 3]
    assert scoring.evaluate(suite, encode)["average"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("yaml", "table", "says"),
    [
        (
            "kind: sts\ntasks: [{name: t, file: other.tsv}]\n",
            TABLE,
            "other.tsv is not next to it; give --data DIR or set EDGEDISTILL_DATA",
        ),
        (
            "kind: stss\ntasks: []\n",
            TABLE,
            "kind: no kind of suite 'stss'; did you mean 'sts'? (bitext, mteb, pair_classification, "
            "retrieval, sts, transfer)",
        ),
        ("kind: task\ntasks: [{name: t}]\n", TABLE, "kind: no kind of suite 'task'; "),
        (
            "kind: sts\ntasks: [{name: t, file: pairs.tsv, scor: x}]\n",
            TABLE,
            "tasks[0].scor: no key 'scor'; did you mean 'score'?",
        ),
        ("kind: sts\ntasks: [{name: t}]\n", TABLE, "tasks[0].file: missing; this key is required"),
        ("kind: sts\ntasks: []\n", TABLE, "tasks: list should have at least 1 item"),
        (
            "kind: pair_classification\ntasks: [{name: t, dev: pairs.tsv, test: pairs.tsv}]\n",
            TABLE,
            "pairs.tsv: is dev and test of t; ",
        ),
        (
            "kind: sts\ntasks: [{name: t, file: pairs.tsv, score: gold}]\n",
            TABLE,
            "pairs.tsv: no column 'gold'; ",
        ),
        (
            "kind: sts\ntasks: [{name: t, file: pairs.tsv, subset: c}]\n",
            TABLE,
            "pairs.tsv: pairs with a score of subset c: 0, ",
        ),
        (
            "kind: sts\ntasks: [{name: t, file: pairs.tsv}]\n",
            TABLE.replace("\t4\t", "\tfour\t"),
            "row 3: score 'four'",
        ),
        (
            "kind: sts\ntasks: [{name: t, file: pairs.tsv}]\n",
            TABLE + "zero\tten\n",
            "line 9 has 2 columns, the header 4; correct the line",
        ),
        (
            "kind: sts\ntasks: [{name: t, file: pairs.tsv}, {name: t, file: pairs.tsv}]\n",
            TABLE,
            "tasks: two have the same name",
        ),
        ("- a\n", TABLE, "a suite is a mapping, this is a list"),
        ("kind: [\n", TABLE, "not YAML"),
    ],
)
def test_bad_suites_say_where_and_what(tmp_path, monkeypatch, yaml: str, table: str, says: str):
    monkeypatch.delenv("EDGEDISTILL_DATA", raising=False)
    path = write_suite(tmp_path, yaml, pairs=table)
    with pytest.raises(UserError) as problem:
        scoring.suite(path)
    assert says in str(problem.value)
    assert str(problem.value).startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("data", "fact"), [("nowhere", "nowhere: no such folder"), ("", "pairs.tsv: no such file, but")]
)
def test_missing_data(tmp_path, data: str, fact: str):
    with pytest.raises(UserError, match=fact):
        scoring.suite(write_suite(tmp_path / "suite", STS), tmp_path / data)


def test_not_utf8_and_broken_gzip(tmp_path):
    path = write_suite(tmp_path, STS, pairs=TABLE)
    (tmp_path / "pairs.tsv").write_bytes(TABLE.encode() + b"\xff\xfe\t\t1\ta\n")
    with pytest.raises(UserError, match=r"pairs.tsv: .* is not UTF-8"):
        scoring.suite(path)
    path.write_text("kind: sts\ntasks: [{name: t, file: pairs.tsv.gz}]\n", encoding="utf-8")
    (tmp_path / "pairs.tsv.gz").write_bytes(gzip.compress(TABLE.encode())[:-12])
    with pytest.raises(UserError, match=r"pairs.tsv.gz: line 8: damaged"):
        scoring.suite(path)


@pytest.mark.parametrize("name", ["mini", "sts-small"])
def test_a_suite_ships_whole(name: str):
    suite = scoring.suite(name)
    assert sum(len(pairs.gold) for pairs in suite.tasks.values()) >= 200
    for pairs in suite.tasks.values():
        assert pairs.gold.min() >= 0
        assert pairs.gold.max() <= 5
        assert len(set(pairs.gold.tolist())) >= 4


def test_the_default_suite_ranks_students_as_sts7_does():
    """sts7: nano 78.8, multi 77.1, micro 73.3."""
    suite = scoring.suite(bench.DEFAULT_SUITE)
    students = [edgedistill.load(name) for name in ("nano", "multi", "micro")]
    nano, multi, micro = (scoring.evaluate(suite, student.encode)["average"] for student in students)
    assert 0.9 > nano > multi > micro + 0.02 > 0.7


def test_ndcg_by_hand():
    # ranked grades are 3 2 0 1, judged ones 3 3 2 1: a grade counts grade / log2(rank + 1)
    gained = 3 + 2 / math.log2(3) + 1 / math.log2(5)
    ideal = 3 + 3 / math.log2(3) + 1 + 1 / math.log2(5)
    assert retrieval.ndcg([3, 2, 0, 1], [3, 3, 2, 1]) == pytest.approx(gained / ideal)
    assert retrieval.ndcg([1, 1, 1], [1, 1, 1]) == pytest.approx(1)
    assert retrieval.ndcg([0, 1], [1]) == pytest.approx(1 / math.log2(3))
    assert retrieval.ndcg([0] * 10 + [1], [1]) == 0  # eleventh
    assert retrieval.ndcg([-1, 1], [-1, 1]) == pytest.approx(
        1 / math.log2(3)
    )  # a negative grade gains nothing
    assert retrieval.ndcg([0], [0]) == 0


def beir(
    folder: Path,
    corpus: dict[str, str],
    queries: dict[str, str],
    qrels: list[tuple[str, str, int]],
    gz: bool = False,
):
    folder.mkdir(parents=True)
    rows = [
        json.dumps({"_id": name, "title": text.split()[0], "text": " ".join(text.split()[1:])})
        for name, text in corpus.items()
    ]
    if gz:
        (folder / "corpus.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    else:
        (folder / "corpus.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    asked = [json.dumps({"_id": name, "text": text}) for name, text in queries.items()]
    (folder / "queries.jsonl").write_text("\n".join(asked) + "\n", encoding="utf-8")
    (folder / "qrels").mkdir()
    table = "".join(f"{q}\t{d}\t{grade}\n" for q, d, grade in qrels)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + table, encoding="utf-8")


@pytest.mark.parametrize("chunk", [1, 2, 4096])
def test_retrieval_by_hand_whatever_the_chunk(tmp_path, monkeypatch, chunk: int):
    corpus = {"d1": "zero text", "d2": "thirty text", "d3": "ninety text", "d4": "more text"}
    qrels = [("q1", "d2", 2), ("q1", "d1", 1), ("q1", "gone", 1), ("q2", "d3", 1)]
    beir(tmp_path / "set", corpus, {"q1": "ten", "q2": "more", "q3": "never judged"}, qrels, gz=chunk == 1)
    path = write_suite(tmp_path, "kind: retrieval\ntasks: [{name: set, folder: set}]\n")
    whole = retrieval.Collection.chunks
    monkeypatch.setattr(retrieval.Collection, "chunks", lambda self, size=chunk: whole(self, size))
    found = scoring.evaluate(scoring.suite(path), encode)
    # q1 at 10 degrees: d1 (10 away), d2 (20), d3, d4: grades 1 2; ideal 2 1 1 (a judged text may be missing
    # from the corpus)
    first = (1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3) + 1 / 2)
    second = 1 / math.log2(3)  # q2 at 150: d4 (0 away), d3 (60)
    assert found["tasks"]["set"]["queries"] == 2
    assert found["tasks"]["set"]["texts"] == 4
    assert found["average"] == pytest.approx((first + second) / 2, abs=1e-5)


def test_ties_go_to_the_higher_id_as_in_trec_eval(tmp_path):
    beir(tmp_path / "set", {"a": "zero x", "c": "zero x", "b": "zero x"}, {"q": "zero"}, [("q", "b", 1)])
    suite = scoring.suite(write_suite(tmp_path, "kind: retrieval\ntasks: [{name: set, folder: set}]\n"))
    assert scoring.evaluate(suite, encode)["average"] == pytest.approx(1 / math.log2(3))  # c, b, a


def test_a_collection_of_tables_without_headers(tmp_path):
    """As test_retrieval_by_hand: a cell in quotes is a text like others."""
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "corpus.tsv").write_text('a\tzero\t"x\nb\t\tthirty x\n', encoding="utf-8")
    (folder / "queries.tsv").write_text("q\tten\nr\tmore\n", encoding="utf-8")
    (folder / "qrels.tsv").write_text("q\tb\t1\n", encoding="utf-8")
    path = write_suite(tmp_path, "kind: retrieval\ntasks: [{name: set, folder: set}]\n")
    scored = scoring.evaluate(scoring.suite(path), encode)
    assert scored["tasks"]["set"]["texts"] == 2 and scored["tasks"]["set"]["queries"] == 1
    assert scored["average"] == pytest.approx(1 / math.log2(3))  # a, b
    (folder / "corpus.tsv").write_text("a\tzero\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"corpus.tsv: line 1: 2 fields"):
        scoring.evaluate(scoring.suite(path), encode)


@pytest.mark.parametrize("layout", ["beir", "flat"])
def test_judgements_of_another_split(tmp_path, layout: str):
    beir(tmp_path / "set", {"a": "zero x", "b": "thirty x"}, {"q": "ten", "r": "more"}, [("q", "b", 1)])
    judged = "query-id\tcorpus-id\tscore\nr\tb\t1\n"
    if layout == "beir":
        (tmp_path / "set" / "qrels" / "train.tsv").write_text(judged, encoding="utf-8")
    else:
        (tmp_path / "set" / "qrels_train.tsv").write_text(judged, encoding="utf-8")
        (tmp_path / "set" / "queries_train.jsonl").write_text(
            json.dumps({"_id": "r", "text": "more"}) + "\n", encoding="utf-8"
        )
    suite = scoring.suite(
        write_suite(tmp_path, "kind: retrieval\ntasks: [{name: set, folder: set, split: train}]\n")
    )
    found = scoring.evaluate(suite, encode)
    assert found["tasks"]["set"]["queries"] == 1
    assert found["average"] == 1  # b is nearest to r, and second to q
    with pytest.raises(UserError, match=r"no qrels/dev.tsv or qrels_dev.tsv"):
        scoring.suite(
            write_suite(tmp_path, "kind: retrieval\ntasks: [{name: set, folder: set, split: dev}]\n")
        )


def test_beside_bm25_by_hand(tmp_path):
    """One query, which the nearest text does not answer, and of whose word `more` only the farthest text
    has one: its share of BM25 lifts it by the weight, of which source code has an eighth."""
    corpus = {"d1": "zero ()", "d2": "thirty ( text )", "d3": "ninety = text", "d4": "more text"}
    beir(tmp_path / "set", corpus, {"q1": "ten more"}, [("q1", "d4", 1), ("q1", "d2", 2)])
    suite = scoring.suite(
        write_suite(tmp_path, "name: suite\nkind: retrieval\ntasks: [{name: set, folder: set}]\n")
    )
    cosines = np.cos(np.radians([10, 20, 80, 140]))
    share = bm25.BM25(corpus.values(), "set").shares(["ten more"])[0]
    assert (share > 0).tolist() == [False, False, False, True]
    for weight, grades in ((0.0, [0, 2, 0, 1]), (800.0, [0, 2, 1, 0]), (4e3, [1, 0, 2, 0])):
        joined = (cosines - cosines.mean()) / (1 - cosines.mean()) + weight / 8 * share
        assert np.array([0, 2, 0, 1])[np.argsort(-joined)].tolist() == grades
        found = scoring.rankings(suite, encode, scoring.Search(weight))
        assert found["suite + BM25"]["average"] == pytest.approx(retrieval.ndcg(grades, [2, 1]))
        assert found["suite + BM25"]["weight"] == weight
        assert found["suite + BM25"]["bm25"] == pytest.approx(retrieval.ndcg([1], [2, 1]))
        assert found["suite"]["average"] == scoring.evaluate(suite, encode)["average"]


def test_broken_collections(tmp_path):
    path = write_suite(tmp_path, "kind: retrieval\ntasks: [{name: set, folder: set}]\n")
    beir(tmp_path / "set", {"d": "zero x"}, {"q": "zero"}, [("q", "d", 1), ("p", "d", 1)])
    with pytest.raises(UserError, match=r"query 'p' is not in queries.jsonl"):
        scoring.suite(path)
    (tmp_path / "set/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\thigh\n")
    with pytest.raises(UserError, match=r"query q, text d: grade 'high' is not a whole number"):
        scoring.suite(path)
    for row, fact in (
        ('{"id": "q"}', "line 1: no `_id`"),
        ('{"_id": "q", "text": [1]}', "holds list, not text"),
    ):
        (tmp_path / "set/queries.jsonl").write_text(row + "\n")
        (tmp_path / "set/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
        with pytest.raises(UserError, match=f"queries.jsonl: .*{fact}"):
            scoring.suite(path)
    beir(tmp_path / "empty" / "set", {}, {"q": "zero"}, [("q", "d", 1)])
    empty = write_suite(tmp_path / "empty", "kind: retrieval\ntasks: [{name: set, folder: set}]\n")
    with pytest.raises(UserError, match=r"corpus.jsonl: no texts; take it from the same release"):
        scoring.evaluate(scoring.suite(empty), encode)
    (tmp_path / "set" / "corpus.jsonl").unlink()
    with pytest.raises(UserError, match=r"no corpus.jsonl or corpus.tsv; give --data DIR"):
        scoring.suite(path)


def test_samples_are_seeded_and_repeat_only_when_they_must(tmp_path):
    suite = scoring.suite(write_suite(tmp_path, STS, pairs=TABLE))
    assert suite.sample(5) == suite.sample(5)
    assert len(set(suite.sample(7))) == 7
    assert len(suite.sample(20)) == 20


def test_agreement_of_a_rotation_is_perfect_but_for_the_cosine():
    random = np.random.default_rng(0)
    teacher = random.normal(size=(60, 8)).astype(np.float32)
    turn = np.linalg.qr(random.normal(size=(8, 8)))[0].astype(np.float32)
    found = agreement(teacher @ turn, teacher)
    assert found["spearman"] == pytest.approx(1, abs=1e-6)
    assert found["top10_overlap"] == 1
    assert found["cosine_mean"] < 0.9
    assert agreement(teacher, teacher)["cosine_mean"] == pytest.approx(1)


def test_agreement_equals_scipy_and_a_plain_loop():
    random = np.random.default_rng(1)
    teacher = random.normal(size=(40, 6))
    student = np.concatenate([teacher[:, :4], random.normal(size=(40, 5))], axis=1)
    found = agreement(student, teacher)
    cosines = [rows @ rows.T for rows in map(unit_rows, (student, teacher))]
    upper = np.triu_indices(40, 1)
    expected = spearmanr(*(each[upper] for each in cosines)).statistic
    assert found["spearman"] == pytest.approx(expected, abs=1e-4)
    assert found["cosine_mean"] is None and found["texts"] == 40  # 9 and 6 dims
    nearest = [np.argsort(-each + 9 * np.eye(40), axis=1)[:, :10] for each in cosines]
    shared = [len(set(one) & set(other)) / 10 for one, other in zip(*nearest, strict=True)]
    assert found["top10_overlap"] == pytest.approx(np.mean(shared))


def test_agreement_samples_pairs_with_a_seed():
    vectors = np.random.default_rng(2).normal(size=(100, 4))
    other = vectors + np.random.default_rng(3).normal(size=(100, 4))
    first, again = (agreement(vectors, other, pairs=500) for _ in range(2))
    assert first == again
    assert first["spearman"] != agreement(vectors, other, pairs=400)["spearman"]


def test_scores_with_embeddings_in_fewer_bytes(tmp_path):
    """Every task once more, with what int8 and bits leave of the embeddings; bits by hand."""
    draw = np.random.default_rng(0)
    known: dict[str, np.ndarray] = {}

    def wide(texts: list[str]) -> np.ndarray:
        return np.stack([known.setdefault(text, draw.normal(size=64).astype(np.float32)) for text in texts])

    texts = [f"text {at}" for at in range(300)]
    rows = wide(texts)
    for at in range(20):  # a query is a noisy copy of the text that is relevant to it
        known[f"query {at}"] = rows[at] + draw.normal(size=64).astype(np.float32) * 1.3
    grades = [at % 7 for at in range(50)]
    table = "".join(f"query 1\ttext {at}\t{grade}\n" for at, grade in enumerate(grades))
    path = write_suite(tmp_path, STS, pairs="sentence1\tsentence2\tscore\n" + table)
    found = scoring.evaluate(scoring.suite(path), wide, ["int8", "binary"])
    differ = (known["query 1"] > 0) != (rows[:50] > 0)
    expected = spearmanr(-differ.sum(1), grades).statistic
    assert found["tasks"]["t"]["embeddings"]["binary"] == pytest.approx(expected, abs=1e-6)
    assert found["embeddings"]["int8"] == pytest.approx(found["average"], abs=0.01)
    assert found["embeddings"]["int8"] != found["average"]

    qrels = [(f"q{at}", f"d{at}", 1) for at in range(20)]
    corpus = {f"d{at}": text for at, text in enumerate(texts)}
    beir(tmp_path / "set", corpus, {f"q{at}": f"query {at}" for at in range(20)}, qrels)
    suite = scoring.suite(write_suite(tmp_path, "kind: retrieval\ntasks: [{name: set, folder: set}]\n"))
    search = scoring.Search(precisions=("int8", "binary"))
    found = scoring.rankings(suite, wide, search)[suite.name]
    queries = np.stack([known[f"query {at}"] for at in range(20)])
    nearest = np.argsort(-np.sign(queries) @ np.sign(rows).T, axis=1, kind="stable")[:, :100]
    gains = []
    for at, candidates in enumerate(nearest):  # the hundred nearest by bits, ranked by the query itself
        order = candidates[np.argsort(-(np.sign(rows)[candidates] @ queries[at]))].tolist()
        gains.append(retrieval.ndcg([int(candidate == at) for candidate in order], [1]))
    assert found["embeddings"]["binary"] == pytest.approx(np.mean(gains), abs=1e-6)
    assert found["embeddings"]["int8"] == pytest.approx(found["average"], abs=0.05)
    assert 0.3 < found["embeddings"]["binary"] < found["embeddings"]["binary+int8"]
