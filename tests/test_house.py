"""The house's rules that a machine can check: who imports whom, what starts without torch, what every shipped
file must pass."""

from __future__ import annotations

import ast
import importlib
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from edgedistill import files, recipe
from edgedistill.evaluation import scoring

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "edgedistill"

GROUND = ["__init__", "errors", "files", "object_store", "machine", "precisions", "reading", "session"]
EDGE = [
    "recipe",
    "runtime",
    "data",
    "evaluation",
    "planning.preflight",
    "embed_file",
    "search_files",
    "status",
    "resolve",
    "serving",
    "device",
]  # numpy, tokenizers and onnxruntime at most
TORCH = ["objectives", "students", "quantization", "run", "bundle_run"]
TORCH += ["teacher", "vocabulary", "training", "export", "fitting"]
TORCH += ["adapting", "demo", "planning.cost", "planning.training_time"]
# From the ground up: a room imports only rooms before it.
ROOMS = [
    *[
        *GROUND,
        "recipe",
        "objectives",
        "runtime",
        "resolve",
        "data",
        "evaluation",
        "students",
        "quantization",
        "run",
    ],
    *[
        "bundle_run",
        "teacher",
        "vocabulary",
        "training",
        "export",
        "device",
        "planning",
        "fitting",
        "adapting",
        "demo",
    ],
    *["embed_file", "search_files", "status", "serving", "cli", "__main__"],
]

HEAVY = {
    "torch",
    "transformers",
    "onnx",
    "onnxscript",
    "sentence_transformers",
    "accelerate",
    "safetensors",
    "scipy",
    "optimum",
}
HEAVY_AT_START = HEAVY | {"bm25s", "pyarrow", "pandas", "sklearn", "datasets"}
NO_NOUN = {"utils", "util", "common", "helpers", "helper", "misc", "base", "core", "manager", "handler"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if "shipped" not in path.parts}


def within(module: str, places: list[str]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def imported(module: str) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether at module level) of every import."""
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    inside = {
        id(n)
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
        for n in ast.walk(f)
    }
    typing_only = {
        id(n)
        for i in ast.walk(tree)
        if isinstance(i, ast.If) and "TYPE_CHECKING" in ast.dump(i.test)
        for n in ast.walk(i)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield name, id(node) not in inside | typing_only


@cache
def own_imports(module: str) -> set[str]:
    """What a module imports of ours, lazily or not, without `edgedistill.`: data.corpus.build."""
    found = {name.partition(".")[2] for name, _ in imported(module) if name.split(".")[0] == "edgedistill"}
    return {name or "__init__" for name in found}


def modules_of(names: set[str]) -> set[str]:
    """errors.UserError -> errors."""
    found = set()
    for name in names:
        parts = name.split(".")
        while parts and ".".join(parts) not in SOURCES:
            parts.pop()
        found.add(".".join(parts) or "__init__")
    return found


def room(module: str) -> str:
    return module.split(".")[0]


def test_every_room_has_its_place():
    assert len(SOURCES) >= 100
    assert {room(module) for module in SOURCES} <= set(ROOMS), "give the new room its place in ROOMS"
    for module in SOURCES:
        assert within(module, [*GROUND, *EDGE, *TORCH, "cli", "__main__", "planning"]), (
            f"{module}: with torch or without?"
        )


@pytest.mark.parametrize("name", sorted({room(module) for module in SOURCES} - {"__init__"}))
def test_arrows_never_turn_back(name: str):
    back = [
        f"{module} -> {other}"
        for module in SOURCES
        if room(module) == name
        for other in modules_of(own_imports(module))
        if ROOMS.index(room(other)) > ROOMS.index(name)
    ]
    assert not back
    assert not [
        n for n, at_start in imported("__init__") if at_start and n.startswith("edgedistill")
    ]  # looked up on first use


def test_within_a_room_no_circle():
    arrows = {
        module: {o for o in modules_of(own_imports(module)) if room(o) == room(module)} - {module}
        for module in SOURCES
    }
    arrows = {
        m: {o for o in to if not (m.startswith(f"{o}.") and SOURCES[o].name == "__init__.py")}
        for m, to in arrows.items()
    }
    while arrows:
        free = {module for module, to in arrows.items() if not to & set(arrows)}
        assert free, f"a circle among {sorted(arrows)}"
        arrows = {module: to for module, to in arrows.items() if module not in free}


def test_other_rooms_use_what_a_room_offers():
    """A room's `__init__` names in `__all__` the modules and values that other rooms may use; recipe's takes
    in all names of its files, and no file."""
    offered = {}
    for name in {room(module) for module in SOURCES if "." in module}:
        tree = ast.parse(SOURCES[name].read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), f"{name}: one sentence, what goes in and what comes out"
        lists = [
            n.value
            for n in tree.body
            if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__"
        ]
        if lists:
            offered[name] = set(ast.literal_eval(lists[0]))
        else:
            names = vars(importlib.import_module(f"edgedistill.{name}"))
            values = {each for each, value in names.items() if not isinstance(value, ModuleType)}
            files_named = {
                alias.name for n in tree.body if isinstance(n, ast.ImportFrom) for alias in n.names
            }
            offered[name] = values | files_named
    strange = []
    for module in SOURCES:
        for other in own_imports(module):
            name, _, rest = other.partition(".")
            elsewhere = name in offered and name != room(module) and rest
            if elsewhere and rest.split(".")[0] not in offered[name]:
                strange.append(f"{module} uses {other}")
    assert not strange


@pytest.mark.parametrize("module", [module for module in SOURCES if within(module, [*GROUND, *EDGE])])
def test_the_edge_side_keeps_to_itself(module: str):
    assert not [other for other in modules_of(own_imports(module)) if within(other, TORCH)]
    roots = {name.split(".")[0] for name, _ in imported(module)}
    assert not roots & HEAVY
    assert not {name.split(".")[0] for name, at_start in imported(module) if at_start} & HEAVY_AT_START


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@pytest.mark.parametrize("folder", ["edgedistill", "bench", "export", "tests"])
def test_an_expression_is_read_once(folder: str):
    """No conditional inside a conditional, no assignment inside a comprehension; ruff has no rule for
    either."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        if "node_modules" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            refused = ast.IfExp if isinstance(node, ast.IfExp) else ast.NamedExpr
            inner = list(ast.walk(node))[1:] if isinstance(node, (ast.IfExp, *COMPREHENSIONS)) else []
            if any(isinstance(each, refused) for each in inner):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


def test_every_module_is_a_noun():
    assert not {part for module in SOURCES for part in module.split(".")} & NO_NOUN


def test_tests_are_laid_out_as_the_rooms_are():
    folders = {
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    # other libraries on our bundles, export/'s programs, and commands that are killed and misled
    of_other_programs = {"ecosystems", "runners", "faults"}
    assert folders <= {room(module) for module in SOURCES if "." in module} | of_other_programs


def run_python(*arguments: str, text: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=600,
        input=text,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


STARTS = [
    "import edgedistill",
    "from edgedistill import Bundle, CheckFailed, UserError, load, similarity",
    "from typer.testing import CliRunner; from edgedistill.cli import app; assert CliRunner().invoke(app, "
    "['--help']).exit_code == 0",
    "from typer.testing import CliRunner; from edgedistill.cli import app; assert CliRunner().invoke(app, "
    "['recipes']).exit_code == 0",
    *[f"import edgedistill.{module}" for module in SOURCES if within(module, [*GROUND[1:], *EDGE])],
]


def test_starts_without_torch():
    """One fresh interpreter runs them all, each followed by the heavy modules that are there by then; the
    last one is seen to bring one."""
    statements = [*STARTS, "import safetensors"]
    probe = (
        "import sys, json\nfor statement in json.load(sys.stdin):\n    exec(statement, {})\n    "
        "print(*sorted(HEAVY & set(sys.modules)))"
    )
    lines = run_python("-c", probe.replace("HEAVY", repr(HEAVY_AT_START)), text=json.dumps(statements)).split(
        "\n"
    )[:-1]
    assert {statement: line for statement, line in zip(statements, lines, strict=True) if line} == {
        "import safetensors": "safetensors"
    }


def test_help_is_there_at_once():
    resource, spent = pytest.importorskip("resource"), []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        assert "train" in run_python("-m", "edgedistill", "--help")
        spent.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    assert min(spent) < 1.0, "processor seconds; about 0.3 on an idle machine, 3 with torch"


def yaml_files(folder: str) -> list[Path]:
    found = sorted(path for suffix in ("*.yaml", "*.yml") for path in (ROOT / folder).rglob(suffix))
    return [
        path for path in found if "node_modules" not in path.parts
    ]  # other people's packages, of export/web


def test_every_recipe_is_read():
    found = yaml_files("recipes")
    assert 20 <= len(found) <= 40, "arms of a reproduction are bases in bench/reproduction"
    assert sorted(files.shipped("recipe").values()) == found, (
        "two recipes have the same name, or one is not found"
    )
    for path in found:
        spec = recipe.read(path)
        assert spec.name == path.stem
        assert recipe.parse(yaml.safe_load(recipe.dump(spec)), str(path)) == spec
    assert recipe.read(spec.name) == spec


def test_every_suite_is_read():
    found = yaml_files("bench/suites")
    assert len(found) >= 9
    assert sorted(files.shipped("suite").values()) == found
    for path in found:
        assert scoring.describe(path).name in (
            None,
            path.parent.name,
        )  # its data may lie elsewhere, its description is whole
    assert scoring.suite("mini").name == "mini"


def test_every_runner_is_found():
    """By the README of its folder, which one of a single file does without; `fit` times students in the
    web's."""
    assert set(files.shipped("runner")) == {"core", "server", "web"}


def test_the_recipes_schema_is_in_step():
    assert (ROOT / "recipes" / "schema.json").read_text(encoding="utf-8") == recipe.schema(), "run make docs"


def tracked() -> list[Path]:
    """What is or would be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:  # an unpacked source distribution
        return [
            path
            for path in ROOT.rglob("*")
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        ]
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_no_file_knows_its_machine_or_a_registry():
    places = re.compile(r"(?<![\w.~$}/-])/(?:work|home|root|Users|mnt|srv)/\w")
    hosts = re.compile(
        r"\b(?:pypi|pythonhosted|test\.pypi|npmjs|crates|anaconda|download\.pytorch)\.(?:org|com|io)\b"
    )
    problems = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" in data[:65_536]:  # weights of 4 bits begin without
            continue
        for number, line in enumerate(data.decode("utf-8").splitlines(), 1):
            if places.search(line) or hosts.search(line):
                problems.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert len(tracked()) >= 50
    assert not problems, "\n".join(problems)


def test_constraints_name_every_direct_dependency():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(d for extra in set(extras) - {"augment", "optimum", "remote"} for d in extras[extra]),
    ]
    names = {re.split(r"[\[<>=~! ]", each)[0].lower().replace("_", "-") for each in wanted} - {"edgedistill"}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-").splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line and not line.startswith("#")}
    assert names - pinned == set()


def heading_ids(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


COPIED = ("core",)  # folders that `export` copies with their pages: a link out of them is dead there


def test_every_link_of_a_document_resolves():
    pages = [path for path in tracked() if path.suffix == ".md"]
    broken = []
    for page in pages:
        text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)\s]+)\)|\bsrc(?:set)?=\"([^\"]+)\"", text):
            name, _, anchor = "".join(link).partition("#")
            target = page if not name else page.parent / name
            wrong = not target.exists() or (anchor and anchor not in heading_ids(target))
            left = page.parent.name in COPIED and not target.resolve().is_relative_to(page.parent)
            if (wrong or left) and "://" not in name:
                broken.append(f"{page.relative_to(ROOT)}: {''.join(link)}")
    assert len(pages) >= 25 and not broken, "\n".join(broken)


def test_what_documents_show_of_reports_is_what_the_reports_hold(tmp_path):
    import readme_tables

    written = runpy.run_path(str(ROOT / "bench/documents.py"))
    for name, (document, text) in written["generated"]().items():
        copy = tmp_path / document.name
        copy.write_text(document.read_text(encoding="utf-8"), encoding="utf-8")
        assert not readme_tables.update(copy, text, name), "run make docs"


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node on the path")
def test_the_readmes_plots_are_those_of_the_reports():
    import readme_plot

    script = runpy.run_path(str(ROOT / "bench/documents.py"))
    pages = {"students": "bench/RESULTS.md", "accuracy-latency": "README.md"}
    drawings = script["drawings"]()
    for name, page in pages.items():
        for theme in readme_plot.THEMES:
            path = script["PLOTS"] / f"{name}-{theme}.svg"
            drawn = readme_plot.svg(drawings[name], theme)
            assert path.read_text(encoding="utf-8") == drawn, "run make docs"
            assert f"plots/{path.name}" in (ROOT / page).read_text(encoding="utf-8")


# Syntax nodes, which short functions on long lines do not hide. Who raises one says in the commit what the
# user gets for it; who removes code lowers it.
NODES = {("edgedistill",): 237_430, ("tests",): 237_730, ("bench", "export"): 73_950}


@pytest.mark.parametrize("folders", NODES, ids="+".join)
def test_the_house_does_not_grow(folders: tuple[str, ...]):
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    own = [path for path in paths if not {"shipped", "node_modules"} & set(path.relative_to(ROOT).parts)]
    count = sum(1 for path in own for _ in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    assert NODES[folders] - 3_000 < count <= NODES[folders]
