"""Bundles measured for real: two tiny graphs, in fresh processes, on a suite with known scores."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import report_files
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from edgedistill import files, machine
from edgedistill.errors import CheckFailed, UserError
from edgedistill.evaluation import bench, report, scoring, speed
from edgedistill.evaluation.suites import cosines
from edgedistill.precisions import PRECISIONS
from edgedistill.session import Session, silent

QUICK = speed.MeasurementPlan(queries=2, warmups=1, rounds=1, seconds=0.0, resamples=2)
PLAN = speed.MeasurementPlan(queries=6, warmups=2, rounds=2, seconds=0.01, resamples=20)
WORDS = {"zero": 0, "ten": 10, "thirty": 30, "sixty": 60, "ninety": 90, "more": 150}
TABLE = (
    "sentence1\tsentence2\tscore\nzero\tten\t5\nzero\tthirty\t4\nzero\tsixty\t2\n"
    "zero\tninety\t1\nzero\tmore\t0\nten\tninety\t1.5\n"
)


def graph(table: np.ndarray) -> bytes:
    """A token embedding table, mean over the mask, unit length: (B, T) ids and mask -> (B, d)."""
    constants = {
        "table": table.astype(np.float32),
        "last": np.array([2], np.int64),
        "one": np.array([1], np.int64),
        "tiny": np.array(1e-9, np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("Cast", ["attention_mask"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "last"], ["mask"]),
        helper.make_node("Mul", ["words", "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "one"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "sum"], ["squares"]),
        helper.make_node("ReduceSum", ["squares", "one"], ["square"], keepdims=1),
        helper.make_node("Sqrt", ["square"], ["norm"]),
        helper.make_node("Max", ["norm", "tiny"], ["safe"]),
        helper.make_node("Div", ["sum", "safe"], ["sentence_embedding"]),
    ]
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    out = [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", table.shape[1]])]
    made = helper.make_graph(
        nodes, "tiny", ids, out, [numpy_helper.from_array(value, name) for name, value in constants.items()]
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def bundle(folder: Path, kind: str, table: np.ndarray, requirements: dict[str, Any] | None = None) -> Path:
    """A bundle folder as export writes it, in fp32 and w8 (with equal weights: the arithmetic of bench is
    tested, not quantization)."""
    (folder / "onnx").mkdir(parents=True)
    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{word: 2 + at for at, word in enumerate(WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    full = np.concatenate([np.zeros((2, table.shape[1])), table])
    precisions: dict[str, Any] = {}
    for precision, name, drift in (("fp32", "model.onnx", 1.0), ("w8", "model_w8.onnx", 0.99)):
        path = folder / "onnx" / name
        path.write_bytes(graph(full))
        precisions[precision] = {
            "file": f"onnx/{name}",
            "sha256": files.sha256_file(path),
            "size_bytes": path.stat().st_size,
            "rank": PRECISIONS[precision].rank._asdict(),
            "parity": {"cosine_mean": 1.0, "cosine_min": 1.0, "threshold": 0.999},
            "drift": {"mean": 1.0, "min": drift},
        }
    recipe = {
        "name": folder.name,
        "seed": 0,
        "teacher": {"model": "packaged:all-MiniLM-L6-v2"},
        "student": {"kind": "teacher"},
    }
    files.write_json(
        folder / "manifest.json",
        {
            "schema": 1,
            "name": folder.name,
            "kind": kind,
            "made_at": "2025-01-15T10:00:00+00:00",
            "teacher": "t",
            "prompt": "",
            "recipe": {**recipe, "requirements": requirements},
            "dims": [table.shape[1]],
            "max_tokens": 16,
            "precisions": precisions,
            "parameters": {"embedding": full.size, "encoder": 0, "head": 0, "total": full.size},
            "inputs": ["input_ids", "attention_mask"],
            "output": "sentence_embedding",
            "files": {
                str(p.relative_to(folder)): files.sha256_file(p)
                for p in sorted(folder.rglob("*"))
                if p.is_file()
            },
            "versions": {},
            "run": {},
        },
    )
    return folder


@pytest.fixture(scope="module", autouse=True)
def a_processor_with_int8_products() -> Iterator[None]:
    """The default precision depends on the processor's instructions: here it is w8 everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "flags", lambda: ["avx2", "avx512_vnni"])
        yield


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher whose angles are the words', a student that mixes up two of them, and a suite the teacher
    gets right."""
    root = tmp_path_factory.mktemp("shelf")
    angles = np.radians(list(WORDS.values()))
    table = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    bundle(root / "teacher", "teacher", table)
    swapped = table[[0, 1, 3, 2, 4, 5]]
    bundle(
        root / "student",
        "bert",
        np.concatenate([swapped, np.zeros((6, 1))], axis=1),
        {"sts": 0.9, "size_mb": {"w8": 1.0}},
    )
    bundle(
        root / "braggart",
        "bert",
        swapped,
        {"sts": 0.99, "sts_kept": 0.999, "suite": "suite", "size_mb": {"w8": 0.0001, "fp32": 1}},
    )
    (root / "suite").mkdir()
    (root / "suite" / "suite.yaml").write_text("kind: sts\ntasks: [{name: angles, file: pairs.tsv}]\n")
    (root / "suite" / "pairs.tsv").write_text(TABLE)
    return root


def run(shelf: Path, bundles: list[str], lines: list[str] | None = None, **more: Any) -> dict[str, Any]:
    log: Any = lines.append if lines is not None else silent
    session, suites = Session(log=log, threads=more.pop("threads", 1)), [str(shelf / "suite" / "suite.yaml")]
    return bench.bench([str(shelf / name) for name in bundles], suites, session, **{"plan": PLAN, **more})


@pytest.fixture(scope="module")
def measured(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str], Path]:
    """One real measurement: the student in every precision and the teacher; what bench returned, lines and
    wrote."""
    lines: list[str] = []
    folder = tmp_path_factory.mktemp("reports")
    found = run(
        shelf, ["student:*", "teacher"], lines, outputs=bench.Outputs(folder / "r.json", folder / "r.html")
    )
    return found, lines, folder


def test_a_teacher_and_its_student_side_by_side(
    shelf: Path, measured: tuple[dict[str, Any], list[str], Path]
):
    found, lines, folder = measured
    full, student, teacher = report_files.read(folder / "r.json")
    assert [report.title(made) for made in found["reports"]] == ["student:fp32", "student:w8", "teacher:w8"]
    assert teacher["quality"]["suite"]["average"] == pytest.approx(1)
    assert student["kept"]["suite"] == pytest.approx(student["quality"]["suite"]["average"])
    assert teacher["kept"]["suite"] == 1
    agreement = {"cosine_mean": None, "texts": 6, "source": "texts of suite"}  # 3 and 2 dims
    assert agreement.items() <= student["agreement"].items() and teacher["agreement"] is None
    assert np.shape(student["single"]["samples_ms"]) == (2, 6)
    assert (student["single"]["queries"], student["threads"]) == (12, 1)
    assert set(student["offline"]["by_batch"]) == {"1", "8", "32", "budget"}
    for made, name in ((full, "model.onnx"), (student, "model_w8.onnx")):
        path = shelf / "student" / "onnx" / name
        assert made["bundle"]["sha256"] == files.sha256_file(path)
        assert made["size_bytes"]["graph"] == path.stat().st_size
    check = found["requirements"][-1]
    assert (check["bundle"], check["requirement"], check["met"]) == ("student:w8", "size_mb in w8", True)
    assert "student:w8" in "\n".join(lines) and "size_mb" not in "\n".join(lines)  # a requirement that is met
    assert (folder / "r.html").read_text().startswith("<!doctype html>")
    for made in found["reports"]:  # all keys, no samples
        assert report_files.missing_keys(made) == []
        assert len(json.dumps(made)) < 8000


def test_the_student_score_is_spearman_by_hand(measured: tuple[dict[str, Any], list[str], Path]):
    swapped = dict(zip(WORDS, (0, 10, 60, 30, 90, 150), strict=True))
    rows = [line.split("\t") for line in TABLE.strip().split("\n")[1:]]
    closeness = [-abs(swapped[a] - swapped[b]) for a, b, _ in rows]
    expected = cosines.spearman(np.array(closeness, float), np.array([float(score) for *_, score in rows]))
    assert measured[0]["reports"][1]["quality"]["suite"]["average"] == pytest.approx(expected)
    assert expected is not None
    assert 0.5 < expected < 0.95


def test_without_a_teacher_nothing_is_retained_and_a_line_says_how_to_make_its_bundle(shelf: Path):
    lines: list[str] = []
    found = run(shelf, ["student"], lines, plan=QUICK)["reports"][0]
    [line] = [line for line in lines if "no teacher among the bundles" in line]
    assert "`edgedistill export packaged:all-MiniLM-L6-v2 --out bundles/teacher`" in line
    assert found["kept"] == {"suite": None}
    assert found["agreement"] is None
    assert found["bundle"]["precision"] == "w8"  # the default, where there is one


def test_an_unmet_requirement_fails_after_the_reports_with_its_numbers(shelf: Path, tmp_path):
    lines: list[str] = []
    with pytest.raises(CheckFailed) as no:
        run(
            shelf,
            ["braggart", "teacher"],
            lines,
            outputs=bench.Outputs(tmp_path / "r.json"),
            plan=QUICK,
        )
    assert "braggart:w8: sts on suite is 0." in str(no.value)
    assert "sts_kept on suite is 0." in str(no.value)
    assert "size_mb in w8 is 0.00" in str(no.value)
    assert [c["met"] for c in no.value.details["requirements"]] == [False, False, False]
    assert len(report_files.read(tmp_path / "r.json")) == 2


def test_what_was_not_measured_is_not_checked():
    made = {
        "bundle": {"name": "x", "precision": "w8"},
        "quality": {"mini": {"kind": "sts", "average": 0.5}, "search": {"kind": "retrieval", "average": 0.4}},
        "kept": {"mini": None, "search": None},
        "size_bytes": {"graph": 4_500_000},
    }

    def checked(requirements: dict[str, Any] | None) -> list[tuple[str, bool | None]]:
        checks = report.check_requirements({"recipe": {"requirements": requirements}}, made)
        return [(check["requirement"], check["met"]) for check in checks]

    named = {"sts": 0.7, "suite": "sts7", "size_mb": {"w8": 4.5, "int8": 1}}
    assert checked(named) == [("sts on sts7", None), ("size_mb in w8", True)]
    of_every_suite = {"sts": 0.5, "sts_kept": 0.9}
    assert checked(of_every_suite) == [("sts on mini", True), ("sts_kept on mini", None)]
    assert checked(None) == report.check_requirements({}, made) == []


def test_bundles_of_one_recipe_are_named_by_their_folders():
    manifest = {"name": "starter", "kind": "bert"}
    one, two, other = (
        bench.Measured(Path(folder), "w8", manifest=manifest)
        for folder in ("bundles/one", "bundles/two", "more/two")
    )
    assert [each.title for each in bench.distinguishable([one, two])] == ["one:w8", "two:w8"]
    assert [each.title for each in bench.distinguishable([one, two, other])] == [
        "one:w8",
        "bundles/two:w8",
        "more/two:w8",
    ]


def test_bad_input_fails_before_anything_is_measured(shelf: Path, tmp_path):
    (tmp_path / "file").touch()
    html = bench.Outputs(html=tmp_path / "file" / "r.html")
    for bundles, outputs, says in (
        (["nothing"], bench.Outputs(), "nothing"),
        (["student:int8"], bench.Outputs(), "int8"),
        ([], bench.Outputs(), "no bundle"),
        (["student"], bench.Outputs(tmp_path), "a folder"),
        (["nothing"], html, "file: file exists"),
    ):
        with pytest.raises(UserError, match=says):
            run(shelf, bundles, outputs=outputs)
    with pytest.raises(UserError, match="'mimi'.*'mini'"):
        bench.bench([str(shelf / "student")], ["mimi"], Session(log=print), plan=PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture(scope="module")
def collection(shelf: Path) -> Path:
    """Four texts; those with a word of the query are not the one whose embedding is nearest."""
    folder = shelf / "collection"
    folder.mkdir()
    for name, texts in (("corpus", ["zero", "ten", "sixty", "more"]), ("queries", ["ten more"])):
        rows = [json.dumps({"_id": f"{name[0]}{at}", "text": text}) for at, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq0\tc3\t2\nq0\tc1\t1\n", encoding="utf-8")
    path = folder / "suite.yaml"
    path.write_text("name: search\nkind: retrieval\ntasks: [{name: words, folder: .}]\n", encoding="utf-8")
    return path


def test_search_beside_bm25(shelf: Path, collection: Path, tmp_path):
    lines: list[str] = []
    session = Session(log=lines.append, threads=1)
    bench.bench(
        [str(shelf / name) for name in ("braggart:fp32", "teacher:fp32")],
        [str(collection)],
        session,
        bench.Outputs(tmp_path / "r.json", tmp_path / "r.html"),
        QUICK,
        scoring.Search(1.0),
    )
    student, teacher = (made["quality"] for made in report_files.read(tmp_path / "r.json"))
    titles = ["search", "search + BM25"]
    assert list(student) == titles
    alone, joined = (student[title]["average"] for title in titles)
    by_teacher = [teacher[title]["average"] for title in titles]
    assert joined > alone  # `ten` and `more` pass `sixty`
    retained = report_files.read(tmp_path / "r.json")[0]["kept"]
    assert retained[titles[1]] == pytest.approx(joined / by_teacher[1])
    assert student[titles[1]]["weight"] == 1
    for title, difference in ((titles[0], alone - by_teacher[0]), (titles[1], joined - by_teacher[1])):
        task = student[title]["tasks"]["words"]
        assert task["difference"]["mean"] == pytest.approx(difference, abs=1e-5)
        assert "difference" not in teacher[title]["tasks"]["words"]
    assert f"BM25 alone: search {100 * student[titles[1]]['bm25']:.1f}; its weight: 1" in "\n".join(lines)
    assert '"bm25":' in (tmp_path / "r.html").read_text(encoding="utf-8"), "its sentence, see test_report"


@pytest.mark.parametrize(
    ("search", "suite", "place"),
    [
        (scoring.Search(0.5), "suite", "--hybrid: .*retrieval"),
        (scoring.Search(1.0), "collection", r"--hybrid needs Stemmer.*\[search\]"),
        (scoring.Search(math.inf), "collection", "--hybrid-weight: inf"),
        (scoring.Search(precisions=("int4",)), "suite", "--embeddings: .*'int4'.*'int8'"),
        (scoring.Search(precisions=("binary",)), "suite", "--embeddings: binary .*not 3"),
    ],
)
def test_a_search_that_cannot_be_measured(
    shelf: Path,
    collection: Path,
    monkeypatch,
    search: scoring.Search,
    suite: str,
    place: str,
):
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    with pytest.raises(UserError, match=place):
        bench.bench([str(shelf / "student")], [str(shelf / suite / "suite.yaml")], Session(), search=search)


def test_the_error_of_a_child_is_raised(tmp_path):
    changed = bundle(tmp_path / "changed", "bert", np.ones((6, 2)))
    (changed / "onnx" / "model_w8.onnx").write_bytes(b"other bytes")
    for folder, problem in ((tmp_path / "nowhere", "nowhere"), (changed, "model_w8.onnx: changed since")):
        with pytest.raises(UserError, match=f"--runner python: ended with 1: .*{problem}"):
            speed.measure([speed.Target(folder, "w8")], ["zero"], Session(threads=1), PLAN)


def test_children_alternate(shelf: Path):
    lines: list[str] = []
    both = [speed.Target(shelf / "student", "w8"), speed.Target(shelf / "teacher", "fp32")]
    found = speed.measure(both, ["zero ten", "sixty"], Session(log=lines.append, threads=1), PLAN)
    assert [line.split(",")[0] for line in lines] == [
        *["timing student:w8", "timing teacher:fp32", "timing student:w8"] * 2,  # the first again: A/A
    ]
    assert found[0]["noise"]["same_bundle"]["title"] == "student:w8"
    assert set(found[0]["against"]) == {"teacher:fp32"} and found[0]["against"]["teacher:fp32"]["ratio"] > 0
    for one in found:
        assert one["single"]["tokens_mean"] == 1.5
        assert [each["tokens"] for each in one["single"]["by_length"].values()] == [8, 16]  # its limit
        assert one["load"]["start_ms"][0] > 0
        assert one["peak_rss_bytes"] >= one["memory"]["loaded_rss_bytes"] > 1_000_000
        assert all(
            math.isfinite(value) and value > 0
            for value in (one["offline"]["texts_s"], one["single"]["p50_ms"])
        )


def test_threads_default_to_the_environments(shelf: Path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert run(shelf, ["student"], threads=None, plan=QUICK)["reports"][0]["threads"] == 3
    with pytest.raises(UserError, match="threads=0: not a whole number from 1 to 1,024"):
        run(shelf, ["student"], threads=0, plan=QUICK)


def test_the_teacher_of_the_missing_teacher_line_is_the_bundles_own():
    def logged(teacher: dict[str, str], kind: str = "bert") -> str:
        lines: list[str] = []
        manifest = {"kind": kind, "teacher": "t", "recipe": {"teacher": teacher}}
        bench._log_conditions([bench.Measured(Path("s"), "w8", manifest=manifest)], lines.append)
        return "\n".join(lines)

    assert "`edgedistill export some/encoder --revision main --out bundles/teacher`" in logged(
        {"model": "some/encoder", "revision": "main"}
    )
    assert "`edgedistill export 'my models/x' --out bundles/teacher`" in logged({"model": "my models/x"})
    assert logged({"model": "some/encoder"}, "teacher") == ""


INT8 = scoring.Search(precisions=("int8",))


def test_embeddings_in_fewer_bytes_stand_beside_float32(shelf: Path, tmp_path):
    lines: list[str] = []
    outputs = bench.Outputs(tmp_path / "r.json", tmp_path / "r.html")
    [found] = run(shelf, ["student"], lines, search=INT8, outputs=outputs)["reports"]
    quality = found["quality"]["suite"]
    int8 = quality["tasks"]["angles"]["embeddings"]["int8"]
    assert quality["embeddings"] == {
        "float32": {"average": quality["average"], "bytes": 12},
        "int8": {"average": int8, "bytes": 3},
    }
    assert (
        report_files.read(tmp_path / "r.json")[0]["quality"]["suite"]["embeddings"] == quality["embeddings"]
    )
    [table] = [line for line in lines if "embeddings" in line and not line.startswith("wrote")]
    for precision, size, score in (("float32", 12, quality["average"]), ("int8", 3, int8)):
        assert re.search(rf"student:\w+ +{precision} +{size} +{100 * score:.1f}\n", table)


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        ("int4", "no precision of embeddings 'int4'; did you mean 'int8'? (binary, float32, int8)"),
        ("binary", "binary needs dimensions in whole bytes, not 3; choose int8"),
    ],
)
def test_embeddings_that_are_not_scored(shelf: Path, precision: str, message: str):
    with pytest.raises(UserError) as caught:
        run(shelf, ["student"], search=scoring.Search(precisions=(precision,)))
    assert str(caught.value) == f"--embeddings: {message}"


@pytest.mark.skipif(not shutil.which("node"), reason="no Node on the path")
def test_another_runner_joins_the_same_report(tmp_path):
    outputs, both = bench.Outputs(tmp_path / "r.json", tmp_path / "r.html"), ["python", "node"]
    session = Session(threads=1)
    bench.bench(["micro"], [], session, outputs, QUICK, runners=both)
    own, node = report_files.read(tmp_path / "r.json")
    assert [report.title(each) for each in (own, node)] == ["micro:int8", "micro:int8 [node]"]
    assert node["quality"] == own["quality"] and node["runner"]["cosine_min"] > 0.99
    assert node["runner"]["version"].startswith("edgedistill.wasm") and "cosine_min" not in own["runner"]
    assert node["single"]["queries"] >= 2 and node["offline"]["texts_s"] > 0
    assert set(own["against"]) == {"micro:int8 [node]"} and set(node["against"]) == {"micro:int8"}


def test_a_runner_of_another_model_is_refused(shelf: Path, tmp_path):
    """Its embeddings are compared before its times are reported."""
    for name, rows, error, problem in (
        ("other", [[0.0, 1.0]], CheckFailed, "an embedding is at a cosine of 0.000 to that of teacher:w8"),
        ("shape", [[1.0, 0.0, 0.0]], UserError, "embeddings that are not of 2 dimensions"),
    ):
        answer = {"single_ms": [1.0] * 2, "texts_s": {"1": 5.0}, "embeddings": rows}
        script = tmp_path / f"{name}.json"
        script.write_text(json.dumps(answer))
        target = bench.targets(str(shelf / "teacher"))[0]
        target = replace(target, runner=speed.Runner.named(f"cat {script}"))
        [target.speed] = speed.measure([target], ["zero"], Session(threads=1), QUICK)
        with pytest.raises(error, match=re.escape(f"--runner cat {name}.json: {problem}")):
            bench._check_embeddings(target, ["zero"], Session(threads=1))
