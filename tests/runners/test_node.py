"""The Node runner: its own tests on two bundles, and its embeddings beside the Python runner's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest

from edgedistill import files
from edgedistill.export import bundle_writer, pair_bundle
from edgedistill.export.model_source import Source
from edgedistill.runtime.bundle import load
from edgedistill.runtime.manifest import digest
from tests.conftest import sentences
from tests.export.test_export import make_run
from tests.runtime.conftest import rewrite

ROOT = Path(__file__).resolve().parent.parent.parent
NODE = ROOT / "export" / "node"
NANO = ROOT / "edgedistill" / "shipped" / "bundles" / "nano"

needs_node = pytest.mark.skipif(not shutil.which("npm"), reason="needs Node 20 or newer, with npm")
needs_packages = pytest.mark.skipif(
    not (NODE / "node_modules").is_dir(), reason="needs the packages of export/node: make runners"
)

EMBED = """
import { load } from "./index.js";
import { readFileSync } from "node:fs";
const { folder, precision, dim, batched, texts } = JSON.parse(readFileSync(0, "utf8"));
const bundle = await load(folder, { precision, threads: 1 });
const rows = batched ? await bundle.encode(texts, { dim }) : [];
if (!batched) for (const text of texts) rows.push(await bundle.encode(text, { dim }));
const ids = texts.map((text) => bundle.tokenize(text));
console.log(JSON.stringify({ ids, rows: rows.map((row) => [...row]) }));
"""


def node(*arguments: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=NODE,
        input=text,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def embed(
    folder: Path, precision: str, texts: list[str], dim: int | None = None, batched: bool = False
) -> tuple[list[list[int]], np.ndarray]:
    """(token ids, embeddings) of texts, by the Node runner."""
    asked = {
        "folder": str(folder),
        "precision": precision,
        "texts": texts,
        "batched": batched,
        **({} if dim is None else {"dim": dim}),
    }
    ended = node("node", "--input-type=module", "-e", EMBED, text=json.dumps(asked))
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    return found["ids"], np.array(found["rows"], np.float32)


@pytest.fixture(scope="module", params=["bert", "bilstm", "static"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of random weights, with a prompt and two Matryoshka sizes."""
    root = tmp_path_factory.mktemp("bundles")
    run = make_run(root / "run", request.param, prompt="query: ")
    bundle_writer.export(run, ["fp32", "w8", "int8"], root / "tiny", lambda line: None)
    path = root / "tiny" / "manifest.json"
    manifest = {**files.read_json(path), "dims": [24, 8]}
    files.write_json(path, {**manifest, "digest": digest(manifest)})
    return root / "tiny"


@needs_node
@needs_packages
@pytest.mark.parametrize("which", ["nano", "tiny"])
def test_its_own_tests(which: str, tmp_path: Path) -> None:
    folder = NANO
    if which == "tiny":
        folder = tmp_path / "tiny"
        bundle_writer.export(make_run(tmp_path / "run"), ["fp32", "w8", "int8"], folder, lambda line: None)
    ended = node("npm", "test", EDGEDISTILL_BUNDLE=str(folder))
    assert ended.returncode == 0, ended.stdout[ended.stdout.find("not ok") :]
    assert int(re.findall(r"^(?:#|ℹ) pass (\d+)$", ended.stdout, re.MULTILINE)[0]) >= 40


@needs_node
@needs_packages
def test_the_shipped_bundle_as_in_python() -> None:
    opened = load(NANO, threads=1)
    golden = files.read_json(NANO / "parity.json")
    texts = [*golden["texts"], *sentences(20), "ΟΔΟΣ ΣΑΣ", "𠮷野家で𪚥を食べる", "İIıi ẞß ǅ"]
    ids, rows = embed(NANO, opened.precision, texts, batched=True)
    assert ids == [row.tolist() for row in opened.tokenize(texts)]
    assert (rows * opened.encode(texts)).sum(1).min() >= 0.9999


@needs_node
@needs_packages
@pytest.mark.parametrize("precision", ["fp32", "w8", "int8"])
def test_every_kind_of_student_as_in_python(tiny: Path, precision: str) -> None:
    opened = load(tiny, precision=precision, threads=1)
    golden = files.read_json(tiny / "parity.json")
    texts = [*golden["texts"], *sentences(20)]
    ids, rows = embed(tiny, precision, texts)
    assert ids == [row.tolist() for row in opened.tokenize(texts)]
    assert ids[: len(golden["ids"])] == golden["ids"]
    alone = np.stack([opened.encode(text) for text in texts])
    assert (rows * alone).sum(1).min() >= 0.9999
    _, short = embed(tiny, precision, texts[:1], dim=8)
    assert np.allclose(short, opened.encode(texts[:1], dim=8), atol=1e-4)
    checked = node("node", "cli.js", str(tiny), "--precision", precision, "--check", "--json")
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout)["cosine_min"] >= json.loads(checked.stdout)["threshold"]


IN_ROLES = """
import { load } from "./index.js";
import { readFileSync } from "node:fs";
const { folder, texts } = JSON.parse(readFileSync(0, "utf8"));
const bundle = await load(folder, { precision: "fp32", threads: 1 });
const of = async (rows) => (await rows).map((row) => [...row]);
const found = [bundle.encode(texts), bundle.encodeQuery(texts), bundle.encodeDocument(texts)];
const short = await bundle.encodeQuery(texts[0], { dim: 8 });
const error = await bundle.encode([], { role: "querry" }).catch((error) => error.message);
console.log(JSON.stringify({ found: await Promise.all(found.map(of)), short: [...short], error }));
"""


@needs_node
@needs_packages
def test_queries_and_documents_as_in_python(tmp_path: Path) -> None:
    source = make_run(tmp_path / "run", "static", query_prompt="the dog ", document_prompt="a child ")
    bundle_writer.export(source, ["fp32"], tmp_path / "b", lambda line: None)
    rewrite(tmp_path / "b", dims=[24, 8])
    texts, opened = sentences(9), load(tmp_path / "b", threads=1)
    asked = json.dumps({"folder": str(tmp_path / "b"), "texts": texts})
    ended = node("node", "--input-type=module", "-e", IN_ROLES, text=asked)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    expected = [encode(texts) for encode in (opened.encode, opened.encode_query, opened.encode_document)]
    np.testing.assert_allclose(answer["found"], expected, atol=1e-5)
    np.testing.assert_allclose(answer["short"], opened.encode_query(texts[0], 8), atol=1e-5)
    assert answer["error"] == "role: no role 'querry'; choose text, query, document"
    lines = node("node", "cli.js", str(tmp_path / "b"), "--as", "query", text="\n".join(texts))
    rows = [json.loads(line) for line in lines.stdout.splitlines()]
    np.testing.assert_allclose(rows, expected[1], atol=1e-5)
    check = ("node", "cli.js", str(tmp_path / "b"), "--check", "--json")
    assert json.loads(node(*check).stdout)["texts"] == 36


@needs_node
def test_full_text_search_as_in_python() -> None:
    pytest.importorskip("bm25s")
    from edgedistill.data import bm25

    texts = [text.replace(" ", "x ") for text in sentences(40)]  # of no language
    texts += ["東京都は晴れ", "猫 東京", "हिन्दी पाठ हिन्दी", "Nº5 ﬁve Éclairs", "", "ΟΔΟΣ ẞ İx"]
    queries = ["thex catx eatsx", "東京都", "हिन्दी", "five five éclairs!", "οδος ß", "?"]
    script = """
import { readFileSync } from "node:fs";
import { BM25, joined, words } from "./core/bm25.js";
const { texts, queries } = JSON.parse(readFileSync(0, "utf8"));
const index = new BM25(texts);
const rows = queries.map((query) => [...index.shares(query)]);
const both = rows.map((row, at) => [...joined(rows[(at + 1) % rows.length], row, 0.5)]);
console.log(JSON.stringify({ words: texts.map(words), rows, both }));
"""
    asked = json.dumps({"texts": texts, "queries": queries})
    ended = node("node", "--input-type=module", "-e", script, text=asked)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["words"] == [bm25.words(text) for text in texts]
    index = bm25.BM25(texts, "texts")
    assert index.language is None, "so that words are compared as they are"
    expected = index.shares(queries)
    assert [(row > 0).sum() > 0 for row in expected] == [True] * 5 + [False]
    np.testing.assert_allclose(found["rows"], expected, rtol=1e-5)
    np.testing.assert_allclose(
        found["both"], bm25.joined(np.roll(expected, -1, axis=0), expected, 0.5), atol=1e-5
    )


PAIR = """
import { load } from "./index.js";
import { readFileSync } from "node:fs";
const { folder, texts } = JSON.parse(readFileSync(0, "utf8"));
const bundle = await load(folder, { precision: "int8", threads: 1 });
const of = async (rows) => (await rows).map((row) => [...row]);
const found = [await of(bundle.encodeQuery(texts)), await of(bundle.encodeDocument(texts))];
const refused = await bundle.encode(texts).catch((error) => error.message);
const lengths = [bundle.maxTokens, bundle.dims[0]];
console.log(JSON.stringify({ found, refused, checked: await bundle.check(), lengths }));
await bundle.close();
"""


@needs_node
@needs_packages
@pytest.mark.parametrize("mean", [False, True])
def test_a_pair_as_in_python(tmp_path: Path, mean: bool) -> None:
    queries = make_run(tmp_path / "q", "static", query_prompt="the dog ", max_tokens=12)
    bundle_writer.export(queries, ["fp32", "int8"], tmp_path / "queries", lambda line: None)
    folder, documents = tmp_path / "pair", make_run(tmp_path / "d", "static", document_prompt="a child ")
    given = Source(str(tmp_path / "queries")), Source(str(documents))
    pair_bundle.export(*given, ["fp32"], folder, lambda line: None, mean)
    texts, opened = sentences(9), load(folder, "int8", threads=1)
    asked = json.dumps({"folder": str(folder), "texts": texts})
    ended = node("node", "--input-type=module", "-e", PAIR, text=asked)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    expected = [opened.encode_query(texts), opened.encode_document(texts)]
    np.testing.assert_allclose(answer["found"], expected, atol=1e-4)
    assert answer["refused"].startswith(
        "pair: a pair of encoders, for queries and documents; call encodeQuery "
    )
    assert (answer["checked"]["texts"], answer["lengths"]) == (68, [12, 24])
    lines = node("node", "cli.js", str(folder), "--as", "document", text="\n".join(texts))
    rows = [json.loads(line) for line in lines.stdout.splitlines()]
    np.testing.assert_allclose(rows, opened.encode_document(texts), atol=1e-4)
    without = node("node", "cli.js", str(folder), text="a")
    assert without.returncode == 2 and "a pair of encoders" in without.stderr
    other = tmp_path / "other"
    bundle_writer.export(make_run(tmp_path / "o", "static", head=None), ["fp32"], other, lambda line: None)
    shutil.rmtree(folder / "document")
    shutil.copytree(other, folder / "document")
    assert (
        "document/manifest.json: changed since export"
        in node("node", "cli.js", str(folder), "--check").stderr
    )


def test_the_package_names_what_it_ships() -> None:
    package = files.read_json(NODE / "package.json")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (package["name"], package["version"], package["license"]) == (
        project["name"],
        project["version"],
        project["license"].split(" AND ")[0],
    )
    exported = package["exports"]["."]
    named = {*package["bin"].values(), *(Path(place).name for place in exported.values())}
    assert named | {"core", "telemetry.js"} == set(package["files"])
    assert all((NODE / name).exists() for name in package["files"])
    code, types = ((NODE / name).read_text(encoding="utf-8") for name in ("index.js", "index.d.ts"))
    (listed,) = re.findall(r"^export \{ (.*) \};$", code, re.MULTILINE)
    public = {*listed.split(", "), *re.findall(r"^export async function (\w+)", code, re.MULTILINE)}
    assert public == {"load", "similarity", "Bundle", "UserError", "CheckFailed"}
    assert public == set(re.findall(r"^export (?:class|function) (\w+)", types, re.MULTILINE))
    imported = set(re.findall(r'^import .* from "([^."][^"]*)"', code, re.MULTILINE))
    assert {name for name in imported if not name.startswith("node:")} == set(package["dependencies"])
