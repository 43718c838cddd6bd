"""Pair bundles: two encoders of one space in one folder, queries by one and documents by the other, in every
runner and in sentence-transformers."""

from __future__ import annotations

import json
import pickle
import runpy
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedistill import bundle_run, files
from edgedistill.errors import CheckFailed, UserError
from edgedistill.evaluation import bench, scoring, speed
from edgedistill.export import bundle_writer, pair_bundle
from edgedistill.export.bundle_writer import seal
from edgedistill.export.model_source import Source
from edgedistill.runtime import bundle, verify
from edgedistill.session import Session
from tests.conftest import World, sentences
from tests.export.test_export import make_run, quiet

EMBED = Path(__file__).resolve().parents[2] / "export" / "python" / "embed.py"
QUERY, DOCUMENT, TEXTS = "the dog ", "a child ", sentences(12, seed=3)


def paired(query: Path, document: Path, out: Path, precisions: tuple[str, ...] = ("fp32",)) -> dict[str, Any]:
    return pair_bundle.export(Source(str(query)), Source(str(document)), list(precisions), out, quiet)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Queries by a run in two precisions, documents by a bundle in one: the same weights behind two
    prompts."""
    root = tmp_path_factory.mktemp("pair")
    queries = make_run(root / "queries", "static", query_prompt=QUERY, max_tokens=12)
    documents = make_run(root / "documents", "static", document_prompt=DOCUMENT)
    bundle_writer.export(documents, ["fp32"], root / "d", quiet)
    found = paired(queries, root / "d", root / "pair", ("fp32", "int8"))
    sizes = {
        side: {name: entry["size_bytes"] for name, entry in about["precisions"].items()}
        for side in ("query", "document")
        for about in [files.read_json(root / "pair" / side / "manifest.json")]
    }
    assert found["precisions"] == sizes and [*sizes["query"]] == ["fp32", "int8"]
    assert (found["name"], found["dims"]) == ("pair", [24]) and found["cosine"] > 0.9
    return root / "pair"


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "pair")
    return tmp_path / "pair"


def test_queries_by_one_and_documents_by_the_other(folder: Path):
    opened = bundle.load(folder, "int8")
    query, document = bundle.load(folder / "query", "int8"), bundle.load(folder / "document")
    assert (opened.precision, opened.document.precision, opened.dims) == ("int8", "fp32", [24])
    assert opened.space == document.space != query.space
    assert np.array_equal(opened.encode_query(TEXTS), query.encode_query(TEXTS))
    assert np.array_equal(opened.encode_document(TEXTS[0]), document.encode_document(TEXTS[0]))
    long = "the cat " * 20
    assert [len(opened.tokenize([long], role)[0]) for role in ("query", "document")] == [12, 32]
    for again in (pickle.loads(pickle.dumps(opened)), deepcopy(opened)):
        assert np.array_equal(again.encode_query(TEXTS), query.encode_query(TEXTS))
        assert (again.precision, again.document.precision) == ("int8", "fp32")
    numbers, _ = opened.search(TEXTS[3], TEXTS, 3)
    assert numbers[0] == (query.encode_query(TEXTS[3]) @ document.encode_document(TEXTS).T).argmax()
    with again:
        pass
    for ask in (again.encode_query, again.encode_document):
        with pytest.raises(UserError, match="closed; open it again"):
            ask(TEXTS)
    for ask in (opened.encode, opened.tokenize, opened.encode_ids):
        with pytest.raises(UserError) as caught:
            ask(TEXTS)
        parts = f"{folder}/query or {folder}/document"
        way_out = f"call encode_query or encode_document (--as query or document), or open {parts}"
        assert str(caught.value) == f"pair: a pair of encoders, for queries and documents; {way_out}"


@pytest.mark.parametrize("side", ["query", "document"])
def test_a_pickled_pair_knows_its_encoders_again(copy: Path, side: str):
    pickled = pickle.dumps(bundle.load(copy))
    seal(copy / side, {**files.read_json(copy / side / "manifest.json"), "name": "other"})
    with pytest.raises(CheckFailed, match=rf"{side}: changed since it was opened"):
        pickle.loads(pickled)


def test_each_side_is_a_bundle_of_its_own(folder: Path):
    assert (folder.parent / "d" / "manifest.json").read_bytes() == (
        folder / "document" / "manifest.json"
    ).read_bytes()
    found, sides = verify.verify(folder), [verify.verify(folder / side) for side in ("query", "document")]
    assert [*found["precisions"]] == ["query/fp32", "query/int8", "document/fp32"]
    assert found["texts"] == sum(side["texts"] for side in sides) == 68
    assert found["files"] == sum(path.is_file() for path in folder.rglob("*")) - 1, "all but manifest.json"
    assert ": OK, " in verify.summary("x", found)


def test_two_spaces_are_refused(world: World, folder: Path, tmp_path):
    other = make_run(tmp_path / "other", "bert")
    for query, document, fact in (
        (folder / "query", other, "embeds a query at a mean cosine of "),
        (folder / "query", world.teacher, "has 24 dimensions, not 32, so they are not in one space; "),
    ):
        with pytest.raises(UserError) as caught:
            paired(query, document, tmp_path / "x")
        assert str(caught.value).startswith(f"{query} for {document}: {fact}")
        assert "not in one space; pair a student with its teacher" in str(caught.value)
        assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("source", "fact"),
    [
        ("pair", "a pair itself; a pair is made of two encoders, give one"),
        ("pair/query:int8", "a bundle is copied whole; leave :int8 out"),
    ],
)
def test_what_a_pair_is_not_made_of(folder: Path, tmp_path, source: str, fact: str):
    name = str(folder.parent / source)
    with pytest.raises(UserError) as caught:
        paired(Path(name), folder / "document", tmp_path / "x")
    assert str(caught.value) == f"{name}: {fact}"


def test_a_changed_file_is_noticed(copy: Path):
    table = copy / "document" / "onnx" / "model.onnx"
    table.write_bytes(table.read_bytes() + b"\0")
    with pytest.raises(CheckFailed, match=r"document/onnx/model\.onnx: changed since export"):
        verify.verify(copy)
    with pytest.raises(CheckFailed, match=r"document/onnx/model\.onnx: changed since export"):
        bundle.load(copy)


def test_another_encoder_in_its_place_is_noticed(copy: Path, tmp_path):
    """A whole bundle whose own hashes are right; and where the pair is signed again, one of other
    dimensions, or a pair."""
    shutil.rmtree(copy / "query")
    bundle_writer.export(make_run(tmp_path / "other", "static", head=None), ["fp32"], copy / "query", quiet)
    with pytest.raises(CheckFailed, match=r"query/manifest\.json: changed since export"):
        bundle.load(copy)
    manifest = files.read_json(copy / "manifest.json")
    del manifest["digest"]
    seal(copy, manifest)
    with pytest.raises(UserError, match="64 dimensions for queries, 24 for documents"):
        bundle.load(copy)
    with pytest.raises(UserError, match="64 dimensions for queries, 24 for documents"):
        verify.verify(copy)
    shutil.rmtree(copy / "query")
    shutil.copytree(copy / "document", copy / "query" / "query")
    shutil.copytree(copy / "document", copy / "query" / "document")
    seal(copy / "query", manifest)
    seal(copy, manifest)
    with pytest.raises(UserError, match=r"query: a pair itself, not an encoder"):
        bundle.load(copy)


def test_golden_texts_of_both_are_compared(copy: Path):
    """The document side loses its prompt, and everything is signed again."""
    side = files.read_json(copy / "document" / "manifest.json")
    del side["digest"], side["document_prompt"]
    seal(copy / "document", side)
    manifest = files.read_json(copy / "manifest.json")
    del manifest["digest"]
    seal(copy, manifest)
    with pytest.raises(CheckFailed, match="text 33 of 34 .*: token ids differ"):
        verify.verify(copy)


def collection(folder: Path) -> Path:
    """A retrieval suite of the tiny world's sentences, each to be found by its own first words."""
    texts = sentences(30, seed=5)
    (folder / "set").mkdir(parents=True)
    rows = {
        "corpus.jsonl": [{"_id": f"d{at}", "text": text} for at, text in enumerate(texts)],
        "queries.jsonl": [{"_id": f"q{at}", "text": text} for at, text in enumerate(texts[:10])],
    }
    for name, each in rows.items():
        (folder / "set" / name).write_text("".join(json.dumps(row) + "\n" for row in each))
    judged = "".join(f"q{at}\td{at}\t1\n" for at in range(10))
    (folder / "set" / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    (folder / "suite.yaml").write_text("name: own\nkind: retrieval\ntasks: [{name: set, folder: set}]\n")
    return folder / "suite.yaml"


def test_bench_asks_with_one_and_searches_the_other(folder: Path, tmp_path):
    suite, lines = collection(tmp_path), list[str]()
    plan = speed.MeasurementPlan(queries=4, warmups=1, rounds=1, seconds=0.01, resamples=10)
    session = Session(log=lines.append, threads=1)
    (report,) = bench.bench([f"{folder}:int8"], [str(suite)], session, plan=plan)["reports"]
    query, document = bundle.load(folder / "query", "int8"), bundle.load(folder / "document")
    by_hand = scoring.Encoder(document.encode, query.encode_query, document.encode_document)
    expected = scoring.evaluate(scoring.suite(suite), by_hand)["average"]
    assert report["quality"]["own"]["average"] == expected > 0.3
    for about, encoder, precision in (
        (report["bundle"], query, "int8"),
        (report["bundle"]["documents"], document, "fp32"),
    ):
        graph = encoder.manifest["precisions"][precision]
        assert (about["precision"], about["sha256"]) == (precision, graph["sha256"])
    assert any("documents:fp32" in line for line in lines)
    with pytest.raises(UserError, match="--suite mini: .*pair is a pair"):
        bench.bench([str(folder)], ["mini"], Session(threads=1), plan=plan)


def test_documents_by_both(folder: Path, tmp_path):
    """The mean of two embeddings at unit length, in whatever asks for documents; queries stay."""
    out = tmp_path / "mean"
    sides = [Source(str(folder / side)) for side in ("query", "document")]
    pair_bundle.export(*sides, ["fp32"], out, quiet, mean=True)
    opened, query, document = (
        bundle.load(each, "fp32") for each in (out, folder / "query", folder / "document")
    )
    wanted = query.encode_document(TEXTS) + document.encode_document(TEXTS)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    for again in (opened, pickle.loads(pickle.dumps(opened)), deepcopy(opened)):
        assert np.allclose(again.encode_document(TEXTS), wanted, atol=1e-6)
        assert np.array_equal(again.encode_query(TEXTS), query.encode_query(TEXTS))
    assert not np.allclose(wanted, document.encode_document(TEXTS), atol=1e-3)
    ids = opened.tokenize(TEXTS, "document")
    assert np.allclose(opened.of("document").encode_ids(ids), wanted, atol=1e-6), "as the server asks"
    assert np.array_equal(
        opened.encode_document(TEXTS, precision="binary"),
        np.packbits(document.calibration.centred(opened.encode_document(TEXTS)) > 0, axis=1),
    )
    verify.verify(out)

    manifest = files.read_json(out / "manifest.json")
    del manifest["digest"]
    seal(out, manifest | {"documents": "sum"})
    with pytest.raises(UserError, match="documents: 'sum': "):
        bundle.load(out)


def test_the_smallest_runner_names_the_encoders(folder: Path):
    runner = runpy.run_path(str(EMBED))["Bundle"]
    with pytest.raises(SystemExit, match=f"a pair of encoders; give {folder / 'query'} or"):
        runner(folder)
    expected = bundle.load(folder, "fp32").encode_query(TEXTS[:1])
    assert np.abs(runner(folder / "query", "fp32")(TEXTS[0], "query") - expected).max() < 1e-5


def test_what_takes_one_encoder_names_the_folders(folder: Path):
    with pytest.raises(UserError, match="x: .*pair is a pair of encoders; give the folder of one of them"):
        bundle_run.open_finished(str(folder), "x")
