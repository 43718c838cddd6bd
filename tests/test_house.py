"""The house's rules that a machine can check: who imports whom, what starts without torch, what every shipped file must pass."""

from __future__ import annotations

import ast
import json
import re
import resource
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from edgedistill import files, quality, recipe

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "edgedistill"

RECIPE = [
    *["recipe.part", "recipe.sources", "recipe.students", "recipe.targets", "recipe.objectives", "recipe.views", "recipe.stages"],
    *["recipe.finetuning", "recipe.whole", "recipe.reading", "recipe"],
]
SHARED = ["__init__", "errors", "files", *RECIPE, "prose", "readers", "corpus", "labelled", "pair_tables", "parallel"]
SUITES = [
    *["suites", "suites.tables", "suites.vectors", "suites.sts", "suites.retrieval", "suites.bitext", "suites.transfer"],
    *["suites.similarity", "suites.task"],
]
EDGE = [*SUITES, "machine", "report", "plots", "page", "bundle", "verify", "embed", "quality", "speed", "bench", "preflight"]
TORCH = [
    *["triples", "tokens", "batches", "checkpoint", "vocabulary", "translations", "surgery"],
    *["students", "students.pooling", "students.tables", "students.head", "students.bert", "students.narrow", "students.bilstm"],
    *["students.recurrent", "students.static", "students.classifier", "transfer_set"],
    *[
        "students.teacher",
        "students.output",
        "objectives.queue",
        "objectives.softmax",
        "objectives.regression",
        "objectives.contrastive",
        "objectives.relational",
        "objectives.pairs",
        "objectives",
    ],
    *[
        *["graph.sheet", "graph.bert", "graph.bilstm", "graph.static", "graph.compare", "graph.traced", "graph"],
        "quantize",
        "teacher",
        "vectors",
        "augment",
        "given",
        "targets",
        "feed",
        "run",
        "assistant",
        "sides",
        "untrained",
        "prepare",
        "loop",
        "baseline",
        "lesson",
        "finetune",
    ],
    "train",
    *["card", "layout", "verdict", "export", "cost", "demo", "trim", "series"],
]
ORDER = [*SHARED, *EDGE, *TORCH, "cli", "__main__"]  # a module imports only what stands before it
BORROWED = {  # edge module: by whom
    "quality": ["loop", "train"],
    "bundle": ["export", "demo", "verdict"],
    "verify": ["export", "verdict"],
    "bench": ["demo"],
    "speed": ["demo"],
}

HEAVY = {"torch", "transformers", "onnx", "onnxscript", "sentence_transformers", "accelerate", "safetensors", "optimum"}
HEAVY_AT_START = HEAVY | {"pyarrow", "pandas", "matplotlib", "sklearn", "datasets"}
NO_NOUN = {"utils", "util", "common", "helpers", "helper", "misc", "base", "core", "manager", "handler"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if "shipped" not in path.parts}


def imported(module: str) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether at module level) of every import; those of our own without `edgedistill.`, down to the module."""
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)}
    typing_only = {id(n) for i in ast.walk(tree) if isinstance(i, ast.If) and "TYPE_CHECKING" in ast.dump(i.test) for n in ast.walk(i)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield name, id(node) not in inside | typing_only


def own_imports(module: str) -> set[str]:
    """Our own modules that a module imports, lazily or not."""
    found = set()
    for name, _ in imported(module):
        if name.split(".")[0] == "edgedistill":
            parts = name.split(".")[1:]
            while parts and ".".join(parts) not in SOURCES:
                parts.pop()  # edgedistill.errors.UserError -> errors
            found.add(".".join(parts) or "__init__")
    return found - {module}


def test_every_module_has_its_place() -> None:
    assert len(SOURCES) >= 25
    assert not set(SOURCES) - set(ORDER), "give the new module its place in ORDER"


@pytest.mark.parametrize("module", SOURCES)
def test_arrows_never_turn_back(module: str) -> None:
    if module == "__init__":  # `edgedistill.load` is looked up on first use, nothing before
        assert not [name for name, at_start in imported(module) if at_start and name.startswith("edgedistill")]
        return
    later = [name for name in own_imports(module) if ORDER.index(name) > ORDER.index(module)]
    assert not later, f"{module} imports {later}, which stand after it"


@pytest.mark.parametrize("module", [module for module in SOURCES if module in EDGE])
def test_the_edge_side_keeps_to_itself(module: str) -> None:
    assert not own_imports(module) & set(TORCH)
    roots = {name.split(".")[0] for name, _ in imported(module)}
    assert not roots & HEAVY
    assert not {name.split(".")[0] for name, at_start in imported(module) if at_start} & HEAVY_AT_START


@pytest.mark.parametrize("module", [module for module in SOURCES if module in TORCH])
def test_the_torch_side_borrows_little(module: str) -> None:
    foreign = {name for name in own_imports(module) & set(EDGE) if module not in BORROWED.get(name, ())}
    assert not foreign


def test_every_module_is_a_noun() -> None:
    assert not {part for module in SOURCES for part in module.split(".")} & NO_NOUN


def run_python(*arguments: str, text: str = "") -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, check=False, timeout=600, input=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


STARTS = [
    "import edgedistill",
    "from edgedistill import load",
    "from typer.testing import CliRunner; from edgedistill.cli import app; assert CliRunner().invoke(app, ['--help']).exit_code == 0",
    "from typer.testing import CliRunner; from edgedistill.cli import app; assert CliRunner().invoke(app, ['recipes']).exit_code == 0",
    *[f"import edgedistill.{module}" for module in [*SHARED[1:], *EDGE] if module in SOURCES],
]


def test_starts_without_torch() -> None:
    """One fresh interpreter runs them all, each followed by the heavy modules that are there by then; the last one is seen to bring one."""
    statements = [*STARTS, "import safetensors"]
    probe = (
        "import sys, json\nfor statement in json.load(sys.stdin):\n    exec(statement, {})\n    print(*sorted(HEAVY & set(sys.modules)))"
    )
    lines = run_python("-c", probe.replace("HEAVY", repr(HEAVY_AT_START)), text=json.dumps(statements)).split("\n")[:-1]
    assert {statement: line for statement, line in zip(statements, lines, strict=True) if line} == {"import safetensors": "safetensors"}


def test_help_is_there_at_once() -> None:
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        assert "train" in run_python("-m", "edgedistill.cli", "--help")
        spent.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    assert min(spent) < 1.0, "processor seconds; about 0.3 on an idle machine, 3 with torch"


def yaml_files(folder: str) -> list[Path]:
    return sorted(path for suffix in ("*.yaml", "*.yml") for path in (ROOT / folder).rglob(suffix))


def test_every_recipe_is_read() -> None:
    found = yaml_files("recipes")
    assert len(found) >= 77
    assert sorted(files.shipped("recipe").values()) == found, "two recipes have the same name, or one is not found"
    for path in found:
        spec = recipe.read(path)
        assert spec.name == path.stem
        assert recipe.parse(yaml.safe_load(recipe.dump(spec)), str(path)) == spec
    assert recipe.read(spec.name) == spec


def test_every_suite_is_read() -> None:
    found = yaml_files("bench/suites")
    assert len(found) >= 9
    assert sorted(files.shipped("suite").values()) == found
    for path in found:
        assert quality._parse(path).name in (None, path.parent.name)  # its data may lie elsewhere, its description is whole
    assert quality.suite("mini").name == "mini"


def test_every_target_is_found() -> None:
    assert sorted(files.shipped("target").values()) == yaml_files("export")


def test_the_recipes_schema_is_in_step() -> None:
    command = "python -c 'from edgedistill import recipe; print(recipe.schema(), end=\"\")' > recipes/schema.json"
    assert (ROOT / "recipes" / "schema.json").read_text(encoding="utf-8") == recipe.schema(), f"make it anew: {command}"


def tracked() -> list[Path]:
    """What is or would be committed."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:  # an unpacked source distribution
        return [
            path for path in ROOT.rglob("*") if path.is_file() and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        ]
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_no_file_knows_its_machine_or_a_registry() -> None:
    places = re.compile(r"(?<![\w.~$}/-])/(?:work|home|root|Users|mnt|srv)/\w")
    hosts = re.compile(r"\b(?:pypi|pythonhosted|test\.pypi|npmjs|crates|anaconda|download\.pytorch)\.(?:org|com|io)\b")
    problems = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.decode("utf-8").splitlines(), 1):
            if places.search(line) or hosts.search(line):
                problems.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert len(tracked()) >= 50
    assert not problems, "\n".join(problems)


def test_constraints_name_every_direct_dependency() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(d for extra in ("train", "report", "demo", "dev") for d in extras[extra])]
    names = {re.split(r"[\[<>=~! ]", each)[0].lower().replace("_", "-") for each in wanted} - {"edgedistill"}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-").splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line and not line.startswith("#")}
    assert names - pinned == set()


def test_the_readmes_results_are_those_of_the_reports(tmp_path: Path) -> None:
    from edgedistill import report

    copy = tmp_path / "README.md"
    copy.write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    for name, sources in runpy.run_path(str(ROOT / "bench/readme.py"))["TABLES"].items():
        assert not report.update_readme(copy, sources, name), "run python bench/readme.py"
    assert "| ---" in copy.read_text(encoding="utf-8")
