"""What SECURITY.md promises of a stranger's bundle, in the programs of export/: Python's, Node's and the
web's worker, which Node runs here. The same bundles in each, and in tests/runtime/test_hostile.py."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import edgedistill
from edgedistill.export import bundle_writer
from edgedistill.runtime.trust import graph_check, operators, tokenizer_check
from tests.export.test_export import make_run
from tests.runners import hostile
from tests.runners.test_node import NODE, needs_node, needs_packages

PYTHON, WEB = NODE.parent / "python" / "embed.py", NODE.parent / "web"
COMPUTED = ("Range", "ConstantOfShape")  # SECURITY.md does not promise how much memory a graph takes
NAMES = [name for name in hostile.HOSTILE if not name.startswith(COMPUTED)]

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

OPEN_ALL_IN_A_WORKER = """
import { openAsBlob, readdirSync, readFileSync, statSync } from "node:fs";
import path from "node:path";
const { folders, text } = JSON.parse(readFileSync(0, "utf8"));
let answer;
globalThis.self = Object.assign(globalThis, { postMessage: (message) => message.progress ?? answer(message) });
await import("./worker.js");
const call = (op, rest) => new Promise((resolve) => { answer = resolve; self.onmessage({ data: { id: 1, op, ...rest } }); });
const found = {};
for (const [name, folder] of Object.entries(folders)) {
  const names = readdirSync(folder, { recursive: true }).filter((each) => statSync(path.join(folder, each)).isFile());
  const files = new Map(await Promise.all(names.map(async (each) => [each, await openAsBlob(path.join(folder, each))])));
  const loaded = await call("load", { from: { files, folder }, backend: "wasm", threads: 1 });
  const { error, result } = loaded.error ? loaded : await call("encode", { texts: [text], precision: "float32", first: 0 });
  found[name] = error ? `${error.kind}: ${error.message}` : `opened: ${result.rows.slice(0, 3)}`;
}
console.log(JSON.stringify(found));
"""  # noqa: E501
# What the answer to all bundles of a kind must name, whichever program it is of.
REASONS = {
    "external data": r"field 1[34] of a tensor|field (15|22) of a",
    "operator ": "operator that a bundle may not use",
    "If": "operator that|field 6 of an? attribute|field 1[01] of an? attribute",
    "a function": "field 25 of a model",
    "49,000 nodes": "more than (20000|20,000) nodes",
    "200,000": "fields",
    "Split: ": "no pattern of|none of a published|empty pattern",
    "Replace: ": "no pattern of|none of a published|empty pattern",
    "a template that repeats": "repeats the text",
    "long Unigram": "(unigram|characters of a token): [0-9]+, above 256",
    "continuation prefix": "(affix|continuing_subword_prefix): 10000000, above 100",
    "a word of any length": "(word|max_input_chars_per_word): 1000000000, above 256",
    "replacements that multiply": "(growth|times as long a text): [0-9e.+]+, above 1000",
    "dropout": "dropout",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each case its bundle, and "control", which is sound. The worker compares its golden texts too."""
    root = tmp_path_factory.mktemp("hostile")
    bundle_writer.export(make_run(root / "run"), ["fp32"], root / "good", lambda line: None)
    hostile.control(root / "good")
    golden = hostile.read(root / "good", "parity.json")
    rows = edgedistill.load(root / "good", threads=1).encode(golden["texts"]).round(6).tolist()
    hostile.write(root / "good", "parity.json", json.dumps({**golden, "vectors": rows}).encode())
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


def in_node(script: str, cwd: Path, folders: dict[str, Path]) -> dict[str, str]:
    asked = json.dumps(
        {"folders": {name: str(folder) for name, folder in folders.items()}, "text": hostile.TEXT}
    )
    command = ["node", "--input-type=module", "-e", script]
    ended = subprocess.run(
        command, cwd=cwd, input=asked, capture_output=True, text=True, check=False, timeout=240
    )
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def by_node(folders: dict[str, Path]) -> dict[str, str]:
    return in_node(OPEN_ALL, NODE, folders)


def by_the_web(folders: dict[str, Path]) -> dict[str, str]:
    """A browser has no links among the files that a visitor chooses."""
    return in_node(
        OPEN_ALL_IN_A_WORKER,
        WEB,
        {name: folder for name, folder in folders.items() if not name.startswith("link ")},
    )


needs_vendor = pytest.mark.skipif(
    not (WEB / "vendor" / "ort-wasm-simd-threaded.wasm").is_file(),
    reason="no export/web/vendor: make runners",
)


@pytest.mark.parametrize(
    ("run", "refusals"),
    [
        (by_python, ("exit: ",)),
        pytest.param(by_node, ("UserError: ", "CheckFailed: "), marks=[needs_node, needs_packages]),
        pytest.param(by_the_web, ("user: ", "check: "), marks=[needs_node, needs_vendor]),
    ],
)
def test_each_is_refused(
    folders: dict[str, Path], run: Callable[[dict[str, Path]], dict[str, str]], refusals: tuple[str, ...]
) -> None:
    found = run(folders)
    assert found.pop("control").startswith("opened: ")
    assert len(found) > 100
    wrong = [f"{name}: {answer[:200]}" for name, answer in found.items() if not answer.startswith(refusals)]
    assert not wrong, "\n".join(wrong)
    for kind, reason in REASONS.items():
        answers = {name: answer for name, answer in found.items() if name.startswith(kind)}
        assert answers
        other = [
            f"{name}: {answer[:200]}" for name, answer in answers.items() if not re.search(reason, answer)
        ]
        assert not other, "\n".join(other)


def pattern_of(expression: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": expression}}
    return {"model": {"type": "WordPiece", "vocab": {}}, "pre_tokenizer": split}


def accepted(expression: str) -> bool:
    try:
        tokenizer_check.check_tokenizer(json.dumps(pattern_of(expression)).encode())
    except ValueError:
        return False
    return True


GRAPH_CHECK = "check_graph _read _check_operator span number".split()
TOKENIZER_CHECK = """check_tokenizer _distinct _most _check_model _flat _check_step _check_strings _growth
_longest_replacement _added_tokens""".split()


def test_the_bounds_of_the_programs() -> None:
    """The limits of a tokenizer.json, and what is a pattern, are those of the package in each program."""
    module, check = embed_py(), tokenizer_check
    assert (check.LIMITS, check.STEPS, check.GROWS) == (module.LIMITS, module.STEPS, module.GROWS)
    assert module.PATTERN == check.PATTERN
    for name in TOKENIZER_CHECK:
        assert inspect.getsource(getattr(module, name)) == inspect.getsource(getattr(check, name))
    patterns = [*hostile.PUBLISHED, *hostile.REGEXES.values(), *hostile.OTHERS, "[a\n&&b]"]
    expected = [accepted(each) for each in patterns]
    assert expected == [True] * len(hostile.PUBLISHED) + [False] * (len(patterns) - len(hostile.PUBLISHED))
    if not shutil.which("node"):
        pytest.skip("needs Node for the bounds of export/node/core/bounds.js")
    script = """
import { readFileSync } from "node:fs";
import { LIMITS, checkBounds } from "./core/bounds.js";
const accepted = (tokenizer) => { try { checkBounds(tokenizer); return true; } catch { return false; } };
console.log(JSON.stringify([LIMITS, JSON.parse(readFileSync(0, "utf8")).map(accepted)]));
"""
    asked = json.dumps([pattern_of(each) for each in patterns])
    command = ["node", "--input-type=module", "-e", script]
    assert json.loads(subprocess.check_output(command, cwd=NODE, input=asked, text=True)) == [
        tokenizer_check.LIMITS,
        expected,
    ]


def test_the_lists_of_the_programs() -> None:
    """Operators and known fields are those of the package, in each program."""
    expected = {"": operators.STANDARD, "com.microsoft": operators.MICROSOFT}
    names = {domain: sorted(" ".join(groups.values()).split()) for domain, groups in expected.items()}
    module = embed_py()
    assert {domain: sorted(text.split()) for domain, text in module.OPERATORS.items()} == names
    assert module.FIELDS == graph_check.FIELDS
    for name in GRAPH_CHECK:
        assert inspect.getsource(getattr(module, name)) == inspect.getsource(getattr(graph_check, name))
    fields = {what: skipped | set(read) for what, (skipped, read) in module.FIELDS.items()}
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
