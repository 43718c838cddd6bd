"""What SECURITY.md promises of the tree itself: no pickle, no remote code but by an option, packages by their
hashes, a wheel of the same bytes."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import measured_tables
import pytest

from edgedistill import files

ROOT = Path(__file__).resolve().parents[1]
UNSAFE = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "read_pickle",
    "to_pickle",
}
# whose value a command line decides; everywhere else it is False
DECIDED = {"trust_remote_code", "remote_code"}


def nodes(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node of the syntax of every file, and where it is."""
    for path in (each for folder in folders for each in sorted((ROOT / folder).rglob("*.py"))):
        if "node_modules" not in path.parts:
            place = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                yield f"{place}:{getattr(node, 'lineno', 0)}", node


def test_nothing_is_unpickled():
    """In all that ships, and in bench/."""
    arrays = loads = 0
    for place, node in nodes("edgedistill", "export", "bench", "recipes"):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names] + [getattr(node, "module", None) or ""]
            assert not UNSAFE & {name.partition(".")[0] for name in names}, place
        assert not (isinstance(node, ast.Attribute) and node.attr in UNSAFE), place
        if isinstance(node, ast.Call):
            options = {each.arg: ast.unparse(each.value) for each in node.keywords}
            assert options.get("allow_pickle", "False") == "False", place
            arrays += ast.unparse(node.func) == "np.load"
            if ast.unparse(node.func) == "torch.load":
                loads += 1
                assert options["weights_only"] == "True", place
    assert arrays and loads, "otherwise this finds nothing"


def settings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What a node gives a name: arguments of calls, entries of dicts, defaults of parameters and fields."""
    if isinstance(node, ast.Call):
        yield from ((each.arg or "", each.value) for each in node.keywords)
    elif isinstance(node, ast.Dict):
        yield from (
            (str(key.value), value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        )
    elif isinstance(node, ast.arguments):
        given = [*node.posonlyargs, *node.args]
        yield from ((each.arg, value) for each, value in zip(given[::-1], node.defaults[::-1], strict=False))
        pairs = zip(node.kwonlyargs, node.kw_defaults, strict=True)
        yield from ((each.arg, value) for each, value in pairs if value)
    elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
        yield node.target.id, node.value


def test_code_of_a_model_runs_by_an_option_alone():
    """False everywhere, or what came down from the command line."""
    found = 0
    for place, node in nodes("edgedistill", "export", "bench"):
        for name, value in settings(node):
            if name in DECIDED:
                found += 1
                assert ast.unparse(value).rpartition(".")[2] in {"False", *DECIDED}, place
    assert found > 25, "otherwise this finds nothing"


def test_actions_are_pinned_to_commits():
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    used = [line.partition("uses:")[2].split() for line in text.splitlines() if "uses:" in line]
    assert used and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each[0]) for each in used)


def pinned(name: str) -> dict[str, str]:
    """name -> version, of a file of requirements."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = [re.match(r"([\w.-]+)==([^ ]+)", line) for line in lines]
    return {pair[1].lower().replace("_", "-"): pair[2] for pair in pairs if pair}


@pytest.mark.parametrize("name", [".ci/locked.txt", ".ci/release.txt"])
def test_what_ci_installs_has_hashes(name: str):
    """Each package, and the versions are those of constraints.txt: `make locked`."""
    text = (ROOT / name).read_text(encoding="utf-8")
    locked, constraints = pinned(name), pinned("constraints.txt")
    assert len(locked) > 50 and "numpy" in locked
    assert all(
        re.search(r"--hash=sha256:[0-9a-f]{64}", each) for each in re.split(r"^(?=\w)", text, flags=re.M)[1:]
    )
    assert {key: constraints[key] for key in locked if key in constraints}.items() <= locked.items()


def test_ci_installs_all_that_it_needs():
    everything = {**pinned(".ci/locked.txt"), **pinned(".ci/release.txt")}
    unused = {"mteb"}  # no test of CI needs it
    assert set(pinned("constraints.txt")) - set(everything) == unused


def test_the_table_of_faults():
    """Is that of the report, and nothing in it went wrong."""
    found = files.read_json(ROOT / "bench" / "reports" / "faults.json")
    assert measured_tables.faults(found) in (ROOT / "bench/FAULTS.md").read_text(encoding="utf-8")
    assert not any(
        each["wrong"]
        for section in ("kills", "determinism", "faults")
        for each in found.get(section, {}).values()
    )
    assert not any(each["failures"] for each in found["fuzz"].values())
    assert set(found["soak"]) == {"encode", "serve"}


@pytest.mark.slow
def test_two_builds_of_the_wheel_are_the_same_bytes(tmp_path):
    pytest.importorskip("hatchling")
    script = "import sys; from hatchling import build; print(build.build_wheel(sys.argv[1]))"
    found = []
    for name in "ab":
        (tmp_path / name).mkdir()
        subprocess.run([sys.executable, "-c", script, str(tmp_path / name)], cwd=ROOT, check=True)
        (wheel,) = (tmp_path / name).glob("*.whl")
        found.append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert found[0] == found[1]
