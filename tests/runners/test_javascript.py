"""The core's JavaScript in Node: what it has of a text is what Python has, by the library, the command and
the package."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from edgedistill import device, files, run
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.export import bundle_writer, pair_bundle
from edgedistill.export.model_source import Source
from edgedistill.runtime.bundle import load
from edgedistill.runtime.compact import compact
from edgedistill.runtime.manifest import digest
from edgedistill.students.classifier import Classifier
from tests.conftest import sentences
from tests.export.test_export import make_run
from tests.runners.measuring import measured

ROOT = Path(__file__).resolve().parent.parent.parent
CORE = ROOT / "export" / "core"
TEXTS = sentences(9)

pytestmark = pytest.mark.skipif(not shutil.which("node"), reason="needs Node 20 or newer")

EMBED = """
import { readFileSync } from "node:fs";
import { Student } from "./edgedistill.js";
const { file, texts, options } = JSON.parse(readFileSync(0, "utf8"));
const module = await WebAssembly.compile(readFileSync("edgedistill.wasm")); // as an edge function imports it
const student = await Student.open(readFileSync(file), module);
const rows = options.map((each) => texts.map((text) => [...student.embed(text, each)]));
const { about, dims, maxTokens, labels, isPair } = student;
const classes = labels.length ? texts.map((text) => student.classify(text)) : [];
const check = student.check();
console.log(JSON.stringify({ rows, about, dims, maxTokens, labels, isPair, classes, check }));
"""


def node(*arguments: str, text: str | bytes = "") -> subprocess.CompletedProcess[str]:
    sent = text.encode() if isinstance(text, str) else text
    done = subprocess.run(["node", *arguments], cwd=CORE, input=sent, capture_output=True, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def embed(file: Path, texts: list[str], *options: dict[str, Any]) -> dict[str, Any]:
    asked = json.dumps({"file": str(file), "texts": texts, "options": options})
    ended = node("--input-type=module", "-e", EMBED, text=asked)
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


def written(name: str | Path, folder: Path) -> Path:
    device.write(str(name), folder)
    return folder / device.FILE


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with prompts for queries and documents, and two sizes."""
    root = tmp_path_factory.mktemp("asked")
    source = make_run(root / "runs" / "tiny", "static", query_prompt="the dog ", document_prompt="a child ")
    bundle_writer.export(source, ["fp32"], root / "tiny", lambda line: None)
    path = root / "tiny" / "manifest.json"
    manifest = {**files.read_json(path), "dims": [24, 8]}
    files.write_json(path, {**manifest, "digest": digest(manifest)})
    return root / "tiny"


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A bundle with three labels, of random weights."""
    folder = make_run(tmp_path / "run", "static")
    torch.manual_seed(2)
    head = Classifier(torch.nn.Identity(), 24, 3, False, 16)
    save_file(head.state_dict(), folder / run.HEAD_WEIGHTS)
    files.write_json(folder / run.HEAD_SHAPE, {"labels": ["x", "y", "z"], "pair": False, "hidden": 16})
    bundle_writer.export(folder, ["fp32"], tmp_path / "classifier", lambda line: None)
    return tmp_path / "classifier"


@pytest.mark.parametrize("name", ["nano", "micro", "multi", "small"])
def test_shipped_students_as_in_python(name: str, tmp_path):
    found = embed(written(name, tmp_path / "out"), TEXTS, {}, {"precision": "binary"})
    with load(name, threads=1) as opened:
        rows, calibration, precision = opened.encode(TEXTS), opened.calibration, opened.precision
        golden = files.read_json(opened.folder / "parity.json")
    least = {"multi": 0.998, "nano": 0.9998}.get(name, 0.9999)  # as in test_core
    assert (rows * np.array(found["rows"][0])).sum(1).mean() >= least
    bits = compact(np.array(found["rows"][0], np.float32), "binary", calibration)
    assert np.array_equal(bits, found["rows"][1])
    about = found["about"]
    assert (about["name"], about["precision"], about["golden"]) == (name, precision, len(golden["texts"]))
    assert about["languages"][0] == "en" and (len(about["languages"]) == 14) == (name == "multi")
    assert found["check"]["worst"] >= found["check"]["least"]  # and the golden texts' ids


def test_roles_and_sizes_as_in_python(asked: Path, tmp_path):
    roles = [{"role": role} for role in ("text", "query", "document")]
    found = embed(written(asked, tmp_path / "out"), TEXTS, *roles, {"role": "query", "dims": 8})
    with load(asked, threads=1) as opened:
        calls = opened.encode, opened.encode_query, opened.encode_document
        expected = [encode(TEXTS) for encode in calls]
        short = opened.encode_query(TEXTS, 8)
    np.testing.assert_allclose(found["rows"][:3], expected, atol=1e-5)
    np.testing.assert_allclose(found["rows"][3], short, atol=1e-5)
    assert found["dims"] == [24, 8]


@pytest.mark.parametrize("mean", [False, True])
def test_a_pair_as_in_python(mean: bool, tmp_path):
    queries = make_run(tmp_path / "q", "static", query_prompt="the dog ", max_tokens=12)
    documents = make_run(tmp_path / "d", "static", document_prompt="a child ")
    sides = Source(str(queries)), Source(str(documents))
    pair_bundle.export(*sides, ["fp32"], tmp_path / "pair", lambda line: None, mean)
    file = written(tmp_path / "pair", tmp_path / "out")
    found = embed(file, TEXTS, {"role": "query"}, {"role": "document"})
    with load(tmp_path / "pair", threads=1) as opened:
        expected = [opened.encode_query(TEXTS), opened.encode_document(TEXTS)]
    np.testing.assert_allclose(found["rows"], expected, atol=1e-5)
    assert (found["about"]["name"], found["maxTokens"], found["isPair"]) == ("pair", 12, True)
    assert found["about"]["golden"] == 68
    lines = node("cli.js", str(file), "--as", "document", text="\n".join(TEXTS))
    np.testing.assert_allclose(list(map(json.loads, lines.stdout.splitlines())), expected[1], atol=1e-5)
    without = node("cli.js", str(file), text="a")
    assert without.returncode == 2 and "pair: a pair of encoders" in without.stderr


def test_a_classifier_as_in_python(classifier: Path, tmp_path):
    file = written(classifier, tmp_path / "out")
    found = embed(file, TEXTS, {})
    with load(classifier, threads=1) as opened:
        logits, labels = opened.logits(TEXTS), opened.classify(TEXTS).labels  # type: ignore[attr-defined]
        assert found["labels"] == opened.labels and found["dims"] == []
    np.testing.assert_allclose(found["rows"][0], logits, atol=1e-4)
    assert [each[0]["label"] for each in found["classes"]] == list(labels)
    (line,) = node("cli.js", str(file), text=TEXTS[0]).stdout.splitlines()
    assert json.loads(line) == found["classes"][0]


@pytest.mark.parametrize("name", ["asked", "classifier"])
def test_bench_compares_queries_or_logits(name: str, request):
    target = measured(str(request.getfixturevalue(name)), "node", TEXTS)
    assert target.speed["runner"]["cosine_min"] > 0.9999


def test_search_by_words():
    ended = node("--test", str(Path(__file__).parent / "core" / "search.test.mjs"))
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("language", [None, "english"])
def test_full_text_search_as_in_python(language: str | None):
    """Texts of no language that look like source code, and 200 English ones, whose words are compared by
    their stems."""
    pytest.importorskip("bm25s")
    from edgedistill.data import bm25

    texts = [text.replace(" ", "x() ") for text in sentences(40)]
    texts += ["東京都は晴れ", "猫 東京", "हिन्दी पाठ हिन्दी", "Nº5 ﬁve Éclairs", "", "ΟΔΟΣ ẞ İx"]
    queries = ["thex catx eatsx", "東京都", "हिन्दी", "five five éclairs!", "οδος ß", "?"]
    if language:
        *texts, _ = english = scoring.suite("sts-small").texts[:201]
        queries = [*english[::10][:5], "?"]
    script = """
import { readFileSync } from "node:fs";
import { BM25, joined, words } from "./search.js";
const { texts, queries } = JSON.parse(readFileSync(0, "utf8"));
const index = new BM25(texts);
const rows = queries.map((query) => [...index.shares(query)]);
const both = rows.map((row, at) => [...joined(rows[(at + 1) % rows.length], row, 4 * index.weight)]);
console.log(JSON.stringify({ words: texts.map(words), rows, both }));
"""
    sent = json.dumps({"texts": texts, "queries": queries})
    ended = node("--input-type=module", "-e", script, text=sent)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["words"] == [bm25.words(text) for text in texts]
    index = bm25.BM25(texts, "texts")
    assert index.language == language
    expected = index.shares(queries)
    assert (expected > 0).any(axis=1).tolist() == [True] * 5 + [False]
    np.testing.assert_allclose(found["rows"], expected, rtol=1e-5)
    both = bm25.joined(np.roll(expected, -1, axis=0), expected, 4 * index.weight)
    np.testing.assert_allclose(found["both"], both, atol=1e-5)


# ---- the command


def test_lines_become_rows(asked: Path, tmp_path):
    file = written(asked, tmp_path / "out")
    lines = "\ufeffa cat\r\n\nline\u2028separator\nlast"
    rows = [json.loads(line) for line in node("cli.js", str(file.parent), text=lines).stdout.splitlines()]
    with load(asked, threads=1) as opened:
        expected = opened.encode(["a cat", "", "line\u2028separator", "last"])
        bits = compact(opened.encode_query(["a cat"], 8), "binary", opened.calibration)
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    short = node("cli.js", str(file), "--dim", "8", "--as", "query", "--embeddings", "binary", text="a cat")
    assert json.loads(short.stdout) == bits[0].tolist()
    empty = node("cli.js", str(file))
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "")


def test_check_and_time(asked: Path, tmp_path):
    file = written(asked, tmp_path / "out")
    found = json.loads(node("cli.js", str(file), "--check", "--time", "--json").stdout)
    assert found["worst"] >= found["least"] and found["golden"] == 36
    assert found["p90_ms"] >= found["p50_ms"] > 0 and found["rate_texts_s"] > 0
    people = node("cli.js", str(file), "--check")
    assert people.returncode == 0 and "tiny: OK, 36 golden texts match" in people.stdout
    data = bytearray(file.read_bytes())
    data[-4:] = b"\x00\x7c\x00\xfc"  # of the last golden embedding
    data[12:16] = zlib.crc32(data[16:]).to_bytes(4, "little")
    file.write_bytes(data)
    differs = node("cli.js", str(file), "--check")
    assert differs.returncode == 1 and "not all golden texts match" in differs.stdout
    assert node("cli.js", "--version").stdout == f"{files.read_json(CORE / 'package.json')['version']}\n"
    assert node("cli.js", "--help").stdout.startswith("Usage: edgedistill STUDENT")


@pytest.mark.parametrize(
    ("options", "text", "fact"),
    [
        ([], "", "0 given"),
        (["FILE", "--nothing"], "", "Unknown option '--nothing'"),
        (["FILE", "--dim", "1e2"], "", "--dim 1e2"),
        (["FILE", "--dim", "9"], "", "dims: 9, not one of 24,8"),
        (["FILE", "--as", "title"], "", "role: title"),
        (["FILE", "--embeddings", "int4"], "", "precision: int4"),
        (["nowhere"], "", "nowhere: no student here"),
        (["package.json"], "", "package.json: not a student's file"),
        (["FILE"], b"good\nfine\nbad \xff\n", "stdin: line 3: not UTF-8"),
        (["FILE"], b"x" * 1_500_000, "stdin: line 1: longer than 1 MB"),
    ],
)
def test_what_the_user_can_fix(options: list[str], text: str | bytes, fact: str, asked: Path, tmp_path):
    file = str(written(asked, tmp_path / "out"))
    named = [file if each == "FILE" else each for each in options]
    ended = node("cli.js", *named, "--json", text=text)
    assert ended.returncode == 2 and fact in ended.stderr and len(ended.stderr.splitlines()) == 1
    assert json.loads(ended.stdout.splitlines()[-1])["error"] == ended.stderr.strip()


# ---- what is written


def test_the_package_in_an_empty_project(asked: Path, tmp_path):
    if not shutil.which("npm"):
        pytest.skip("needs npm")
    package = files.read_json(CORE / "package.json")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (package["name"], package["version"]) == (project["name"], project["version"])
    assert "dependencies" not in package
    new = tmp_path / "new"

    def run(*command):
        done = subprocess.run(command, cwd=new, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    new.mkdir()
    files.write_json(new / "package.json", {"type": "module"})
    run("npm", "pack", str(written(asked, tmp_path / "out").parent))
    run("npm", "install", "--offline", str(next(new.glob("*.tgz"))))
    installed = new / "node_modules/edgedistill"
    links = re.findall(r"\]\(([^#)]+)\)", (installed / "README.md").read_text())
    assert links and all((installed / link).exists() for link in links)
    assert {path.name for path in installed.iterdir()} == {*package["files"], "package.json", "README.md"}
    script = """
import { Student, similarity } from "edgedistill";
import { BM25 } from "edgedistill/search";
const student = await Student.open();
const [a, b] = ["a cat", "a cat"].map((text) => student.embed(text));
console.log(similarity(a, b) > 0.999, new BM25(["a cat"]).shares("cat").length);
"""
    (new / "app.js").write_text(script)
    assert run("node", "app.js") == "true 1\n"


def test_a_page_keeps_its_students(asked: Path, tmp_path):
    for name in (str(asked), "micro", str(asked)):
        device.write_page(name, tmp_path / "site")
        (tmp_path / "site" / "index.html").write_text("mine")
    listed = files.read_json(tmp_path / "site" / device.STUDENTS)
    assert [each["name"] for each in listed] == ["micro", "tiny"]
    for each in listed:
        assert (tmp_path / "site" / each["file"]).stat().st_size == each["size_bytes"]
    assert (tmp_path / "site" / "index.html").read_text() == "mine"
    page = {path.name for path in (tmp_path / "site").iterdir()}
    assert page >= {"index.html", "page.js", "worker.js", "encoder.js", "style.css", "core"}
    assert not page & {"test", "bench.mjs", "package.json", "node_modules"}
    with pytest.raises(UserError, match="is not a page"):
        device.write_page("micro", tmp_path)
