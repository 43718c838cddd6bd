"""The same hostile bundles for the programs of export/: each is refused, by an error of the program's own,
and none reads another file."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from edgedistill.export import bundle_writer
from edgedistill.runtime.trust import onnx_reader, operators
from tests.export.test_export import make_run
from tests.runners import hostile
from tests.runners.test_node import NODE, needs_node, needs_packages

PYTHON = NODE.parent / "python" / "embed.py"
# How long a graph, a pattern or a tokenizer runs, and how much memory it takes, is bounded by
# `edgedistill.load` alone: export/README.md.
UNBOUNDED = (
    "integer ",
    "400 products",
    "200,000",
    "49,000",
    "Range",
    "50 GB",
    "Tile",
    "ConstantOfShape",
    "Pad by",
    "Split: ",
    "Replace: ",
)
UNBOUNDED += (
    "constants that ",
    "a template that repeats",
    "GatherND ",
    "long Unigram",
    "continuation prefix",
    "a word of any length",
    "replacements that multiply",
    "dropout",
)
UNUSED = ("a tensor larger", "a tensor of negative")  # no node reads them, and onnxruntime removes them
NAMES = [name for name in hostile.HOSTILE if not name.startswith(UNBOUNDED + UNUSED)]

OPEN_ALL = """
import { load } from "./index.js";
import { readFileSync } from "node:fs";
const { folders, text } = JSON.parse(readFileSync(0, "utf8"));
const found = {};
for (const [name, folder] of Object.entries(folders)) {
  try {
    const bundle = await load(folder, { threads: 1 });
    found[name] = `opened: ${(await bundle.encode(text)).slice(0, 3)}`;
  } catch (error) {
    found[name] = `${error.name}: ${error.message}`;
  }
}
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each case its bundle, and "control", which is sound."""
    root = tmp_path_factory.mktemp("hostile")
    bundle_writer.export(make_run(root / "run"), ["fp32"], root / "good", lambda line: None)
    made = {}
    for at, (name, change) in enumerate(
        [("control", hostile.control), *((name, hostile.HOSTILE[name]) for name in NAMES)]
    ):
        folder = made[name] = root / str(at) / "bundle"
        shutil.copytree(root / "good", folder)
        change(folder)
    return made


def embed_py() -> ModuleType:
    spec = importlib.util.spec_from_file_location("embed_py", PYTHON)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_python(folders: dict[str, Path]) -> dict[str, str]:
    module, found = embed_py(), {}
    for name, folder in folders.items():
        try:
            manifest = module.read_manifest(folder)
            row = module.Bundle(folder, next(iter(manifest["precisions"])))(hostile.TEXT)
            found[name] = f"opened: {row[:3]}"
        except SystemExit as refused:
            found[name] = f"exit: {refused.code}"
    return found


def by_node(folders: dict[str, Path]) -> dict[str, str]:
    asked = json.dumps(
        {"folders": {name: str(folder) for name, folder in folders.items()}, "text": hostile.TEXT}
    )
    command = ["node", "--input-type=module", "-e", OPEN_ALL]
    ended = subprocess.run(
        command, cwd=NODE, input=asked, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


@pytest.mark.parametrize(
    ("run", "refusals"),
    [
        (by_python, ("exit: ",)),
        pytest.param(by_node, ("UserError: ", "CheckFailed: "), marks=[needs_node, needs_packages]),
    ],
)
def test_each_is_refused(
    folders: dict[str, Path], run: Callable[[dict[str, Path]], dict[str, str]], refusals: tuple[str, ...]
) -> None:
    found = run(folders)
    assert found.pop("control").startswith("opened: ")
    assert len(found) == len(NAMES) > 60
    wrong = [f"{name}: {answer[:200]}" for name, answer in found.items() if not answer.startswith(refusals)]
    assert not wrong, "\n".join(wrong)
    outside = [name for name in found if name.startswith("external data")]
    assert len(outside) == 7
    assert all(re.search(r"field 1[34] of a tensor|field (15|22) of a", found[name]) for name in outside)


def test_the_lists_of_the_programs() -> None:
    """Operators and known fields are those of the package, in each program."""
    expected = {"": operators.STANDARD, "com.microsoft": operators.MICROSOFT}
    names = {domain: sorted(" ".join(groups.values()).split()) for domain, groups in expected.items()}
    elsewhere = {"external_data", "data_location", "segment", "string_data"}  # refused too, in other words
    known = {
        what: {
            number
            for number, field in onnx_reader.MESSAGES[what].items()
            if field.type != "refused" and field.name not in elsewhere
        }
        for what in ("model", "graph", "node", "attribute", "tensor")
    }
    module = embed_py()
    assert {domain: sorted(text.split()) for domain, text in module.OPERATORS.items()} == names
    fields = {what: skipped | set(read) for what, (skipped, read) in module.FIELDS.items()}
    assert fields == known
    if not shutil.which("node"):
        pytest.skip("needs Node for the list of export/node/core/graph.js")
    script = (
        'import { FIELDS, OPERATORS } from "./core/graph.js"; '
        "console.log(JSON.stringify([FIELDS, OPERATORS]))"
    )
    found = json.loads(
        subprocess.check_output(["node", "--input-type=module", "-e", script], cwd=NODE, text=True)
    )
    assert {domain: sorted(each) for domain, each in found[1].items()} == names
    assert {what: {*each["skipped"], *map(int, each["read"])} for what, each in found[0].items()} == fields


@pytest.mark.parametrize("start", [b"\x12\x06ab", b"\x00\x00\x00\x00"])
def test_a_graph_that_onnxruntime_would_read_as_another_format(start: bytes) -> None:
    """onnxruntime looks at bytes 4 to 8 of a model in memory: ORTM is its own format, whatever protobuf reads
    there."""
    with pytest.raises(ValueError, match="ORT format"):
        embed_py().check_graph(start + b"ORTM" + bytes(64))
