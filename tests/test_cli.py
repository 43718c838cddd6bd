"""Commands as a user types them: exit codes, help, the last line of stdout."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import typer

import edgedistill
from edgedistill import cli, files
from edgedistill.cli import app
from edgedistill.data import bm25
from edgedistill.errors import MAX_NAMES, unknown_name
from edgedistill.precisions import PRECISIONS
from edgedistill.runtime import verify
from edgedistill.training import train
from tests.conftest import World

ROOT = Path(__file__).resolve().parent.parent
SCORE = re.compile(r"(\d\.\d\d)").split
COMMANDS = (
    "students",
    "recipes",
    "check",
    "cache",
    "train",
    "adapt",
    "fit",
    "export",
    "bench",
    "embed",
    "search",
    "status",
    "serve",
    "verify",
    "demo",
)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def call(*arguments: object, folder: Path, data: Path | None = None, text: str = "") -> Done:
    """Run `edgedistill ARGUMENTS` in this process: a new process would need seconds to import torch."""
    stdin, stdout, stderr = (
        io.TextIOWrapper(io.BytesIO(b), encoding="utf-8") for b in (text.encode(), b"", b"")
    )
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setattr(sys, "argv", ["edgedistill", *map(str, arguments)])
        patch.setenv("COLUMNS", "100")
        if data:
            patch.setenv("EDGEDISTILL_DATA", str(data))
        for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
            patch.setattr(sys, name, stream)
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        stdout.flush()
        stderr.flush()
    return Done(code, *(stream.buffer.getvalue().decode() for stream in (stdout, stderr)))  # type: ignore[attr-defined]


def in_a_process(
    *arguments: object, folder: Path, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgedistill", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, input=text, check=False
    )


def last(done: Done | subprocess.CompletedProcess[str]) -> dict[str, object]:
    return json.loads(done.stdout.splitlines()[-1])


def test_every_command_has_help_with_an_example():
    from typer.testing import CliRunner

    runner = CliRunner()
    assert {command.name or command.callback.__name__ for command in app.registered_commands} == set(COMMANDS)  # type: ignore[union-attr]
    for command in COMMANDS:
        shown = runner.invoke(app, [command, "--help"])
        assert shown.exit_code == 0
        assert "Example: edgedistill " in shown.output
        for parameter in typer.main.get_command(app).commands[command].params:  # type: ignore[attr-defined]
            assert getattr(parameter, "help", None), f"{command}: {parameter.name} is not described"
            assert (parameter.metavar or "") in shown.output
        if "--hybrid-weight" in shown.output:
            assert f"by default {bm25.WEIGHT:g}" in " ".join(shown.output.split())
        assert " None" not in shown.output.partition("Options:")[2].partition("Example:")[0]


def check_shown(printed: str, shown: str) -> None:
    """Scores are alike, as int8 rounds a little differently on each processor; all else is equal."""
    one, other = SCORE(printed), SCORE(shown)
    assert one[::2] == other[::2]
    np.testing.assert_allclose(np.float64(one[1::2]), np.float64(other[1::2]), atol=0.011)


def test_the_search_of_the_readme_prints_what_it_shows(monkeypatch, tmp_path):
    pytest.importorskip("bm25s")
    monkeypatch.setenv("COLUMNS", "80")
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    *made, command = (line for line in lines if line.startswith(("echo ", 'edgedistill search "wa')))
    subprocess.run("\n".join(made), shell=True, check=True, cwd=tmp_path)
    done = in_a_process(*shlex.split(command)[1:], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    at = lines.index("```text")
    check_shown(done.stdout + done.stderr, "\n".join([*lines[at + 1 : at + 5], ""]))


def test_the_python_of_the_readme_prints_what_it_shows(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code, shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL).groups()  # type: ignore[union-attr]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    check_shown(done.stdout, shown)


@pytest.mark.parametrize("width", [80, 100])
def test_the_list_of_commands_is_not_cut(width: int, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = in_a_process("--help", folder=tmp_path).stdout
    listed = dict(re.findall(r"^  ([a-z]+) +([A-Z].*\.)$", shown, re.MULTILINE))
    assert listed.keys() == set(COMMANDS) and "..." not in "".join(listed.values())


def test_from_recipe_to_embeddings(world: World, tmp_path):
    """check, train, export, verify, embed: each command reads what the one before it wrote."""
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(json.dumps(world.recipe()), encoding="utf-8")
    checked = call("check", recipe, "--json", folder=tmp_path, data=world.data)
    assert checked.returncode == 0, checked.stderr
    [cost] = last(checked)["recipes"]  # type: ignore[misc]
    assert cost["texts"] == {"train": 400, "held_out": 40}
    assert set(cost["size_bytes"]) == {"fp32", "fp16", "w8", "int8", "qdq", "w4"}

    trained = call("train", recipe, "--json", folder=tmp_path, data=world.data)
    assert trained.returncode == 0, trained.stderr
    assert last(trained)["parameters"]["total"] == cost["parameters"]["total"]  # type: ignore[index]
    assert (tmp_path / "runs/tiny/run.json").exists()

    exported = call("export", "runs/tiny", "--json", folder=tmp_path)
    assert exported.returncode == 0, exported.stderr
    assert (tmp_path / "bundles/tiny/manifest.json").exists()

    again = call("export", "runs/tiny", folder=tmp_path)
    refusal = "bundles/tiny: exists already; add --overwrite to replace it, or choose another --out\n"
    assert (again.returncode, again.stderr) == (2, refusal)
    precisions = ["--precision", "w8,int8", "--precision", "fp32"]
    assert call("export", "runs/tiny", *precisions, "--overwrite", folder=tmp_path).returncode == 0
    (tmp_path / "r.json").touch()
    again = call("bench", "bundles/tiny", "--out", "r.json", folder=tmp_path)
    refusal = "r.json: exists already; add --overwrite to replace it, or choose another --out\n"
    assert (again.returncode, again.stderr) == (2, refusal)

    verified = call("verify", "bundles/tiny", folder=tmp_path)
    assert verified.returncode == 0
    assert re.match(r"bundles/tiny: OK, .* 32 golden texts match \(worst cosine [01]\.\d{5}", verified.stdout)
    embedded = call("embed", "bundles/tiny:w8", folder=tmp_path, text="the cat eats\nanother text\n")
    assert embedded.returncode == 0, embedded.stderr
    assert len(embedded.stdout.splitlines()) == 2
    alone = in_a_process("embed", "bundles/tiny:w8", folder=tmp_path, text="the cat eats\nanother text\n")
    assert (alone.returncode, alone.stdout) == (0, embedded.stdout)

    runner = [sys.executable, str(ROOT / "export/python/embed.py"), str(tmp_path / "bundles/tiny"), "int8"]
    golden = subprocess.run([*runner, "--check"], capture_output=True, text=True, check=False)
    assert golden.returncode == 0, golden.stderr + golden.stdout
    first = subprocess.run(
        ["sh", "-c", f"yes cat | {shlex.join(runner)} | head -n 1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(first.stdout)) > 1 and first.stderr == ""
    plain = subprocess.run(runner, capture_output=True, text=True, check=True, input="the cat eats\n")
    ours = call("embed", "bundles/tiny:int8", folder=tmp_path, text="the cat eats\n")
    assert np.allclose(json.loads(plain.stdout), json.loads(ours.stdout)["embedding"], atol=1e-6)
    tokenizer = tmp_path / "bundles/tiny/tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes() + b" ")
    broken = call("verify", "bundles/tiny", "--json", folder=tmp_path)
    assert broken.returncode == 1
    assert "tokenizer.json" in str(last(broken)["error"])


def test_what_the_user_can_fix_is_exit_2_and_one_line(tmp_path):
    done = in_a_process("train", "no-such-recipe", "--json", folder=tmp_path)
    assert done.returncode == 2
    assert "no recipe 'no-such-recipe'" in done.stderr
    assert "Traceback" not in done.stderr
    assert "no recipe" in str(last(done)["error"])
    assert call("bench", "nowhere", folder=tmp_path).returncode == 2
    assert call("export", "nowhere", folder=tmp_path).returncode == 2
    assert "nano: is the name" in call("export", "nano", folder=tmp_path).stderr
    assert call("serve", "nano", "--cors", "a.b", folder=tmp_path).stderr.startswith("--cors a.b: not ")
    assert call("train", folder=tmp_path).returncode == 2


def test_embed_writes_a_file_and_logs_it(tmp_path):
    (tmp_path / "q.csv").write_text("id,question\n1,how do I reset it?\n2,where is it?\n", encoding="utf-8")
    arguments = [
        "embed",
        "nano",
        "q.csv",
        "--column",
        "question",
        "--batch-tokens",
        64,
        "--device",
        "cpu",
        "--out",
        "q.npy",
    ]
    done = call(*arguments, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    result = last(done)
    assert (result["texts"], result["dims"], result["out"]) == (2, 384, "q.npy")
    assert done.stderr == "q.npy: 2 texts, 384 dimensions\nread 1 file\n"
    assert np.load(tmp_path / "q.npy").shape == (2, 384)
    again = call(*arguments, folder=tmp_path)
    assert (again.returncode, again.stderr) == (
        2,
        "q.npy: exists already; add --overwrite to replace it, or choose another --out\n",
    )
    assert call(*arguments, "--overwrite", folder=tmp_path).returncode == 0
    assert call("embed", "nano", "q.csv", "--dim", 99, folder=tmp_path).stderr.startswith(
        "--dim 99: nano has 384 dimensions and cannot be cut; leave it out"
    )


def test_embed_of_an_empty_input(tmp_path):
    for file in ("/dev/null", "-"):
        done = call("embed", "nano", file, folder=tmp_path)
        line = f"{file}: no text found; give another file\n"
        if file == "-":
            line = "stdin: no text found; pipe lines in, or name a file\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("embedd nano", "edgedistill: No such command 'embedd'. Did you mean 'embed'?; edgedistill --help "),
        ("nano texts.csv", "edgedistill: No such command 'nano'; edgedistill --help describes it"),
        ("search", "edgedistill search: Missing argument 'QUESTION'; edgedistill search --help describes it"),
        (
            "search how is it",
            "edgedistill search: 'is', 'it': no files, folders or students; put the question ",
        ),
        ("search q nowhere", "search: 'nowhere': no such file or folder; give another path"),
        ("search q nano micro", "edgedistill search: nano and micro are students; give one"),
        ("embed nano --device tpu", "--device tpu: no device 'tpu'; did you mean 'cpu'? (cpu, cuda)"),
        ("embed owner/name", "owner/name: no bundle here, it looks like a hub id; make a bundle of that: "),
        (
            "check nano",
            "nano: reads 'unlabeled/tatoeba_en.txt.gz' and 16 more in a data folder; give --data ",
        ),
        ("search question .", "search: '.': no texts in this folder ("),
        ("embed", "edgedistill embed: Missing argument 'BUNDLE[:PRECISION]'; edgedistill embed --help"),
        ("embed nano x.csv -o y", "edgedistill embed: No such option: -o; edgedistill embed --help"),
        ("verify nano micro", "edgedistill verify: Got unexpected extra argument"),
        (
            "search q nano . --top 0",
            "edgedistill search: Invalid value for '--top': Input should be ",
        ),
        (
            "embed nano --as page",
            "edgedistill embed: Invalid value for '--as': 'page' is not one of ",
        ),
        ("embed nano --threads 0", "--threads 0: "),
        ("bench nano --on there", "--runner or --on: no program or machine 'there'; choose one: "),
        ("bench nano --compare a.json b.json", "--compare: measures nothing, but nano is named too; "),
        ("verify nano:fp64", "nano: no precision 'fp64'; choose int8; "),
        ("demo --out .", ".: exists already; add --overwrite "),
        ("--versoin", "edgedistill: No such option: --versoin (Possible options: --version)"),
    ],
)
def test_what_strangers_try_is_answered_with_a_way_out(tmp_path, arguments: str, line: str):
    done = call(*arguments.split(), "--json", folder=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and done.stderr.startswith(line)
    assert last(done)["error"] == done.stderr.strip()  # type: ignore[index, call-overload]


def test_students_lists_what_ships(tmp_path):
    found = last(call("students", "--json", folder=tmp_path))["students"]
    assert found == edgedistill.shipped() and {Path(each["folder"]).name for each in found} == set(
        files.shipped("bundle")
    )  # type: ignore[attr-defined]
    head, _, *rows, _, choice, _ = call("students", folder=tmp_path).stdout.strip().splitlines()
    best = [max(found, key=lambda each: each["scores"][suite])["name"] for suite in ("sts7", "search-test")]  # type: ignore[index]
    assert "STS: {}. Best search: {}.".format(*best) in choice
    assert head.split() == ["name", "languages", "tokens", "MB", "STS", "search", "ms"]
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- students:begin -->\n")[2]
    titles, _, *listed = (line.strip("| ").split(" | ") for line in table.splitlines()[: 2 + len(rows)])
    assert [*titles[:6], titles[7]] == head.split()
    for row, beside in zip(rows, listed, strict=True):
        name, *_, tokens, size, sts, search, ms = row.split()
        assert beside[0].startswith(f"[`{name}`]") and beside[2:6] == [tokens, size, sts, search]
        assert beside[7] == ms


def test_status_says_what_is_here(tmp_path, monkeypatch):
    (tmp_path / "cache" / "search").mkdir(parents=True)
    (tmp_path / "cache" / "search" / "a.npy").write_bytes(bytes(2_000_000))
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))
    found = last(call("status", "--json", folder=tmp_path))
    assert (found["version"], found["caches"]) == (edgedistill.__version__, {"search": 2_000_000})
    assert found["p50_ms"] > 0 and set(found["precisions"]) == set(PRECISIONS)  # type: ignore[operator, call-overload]
    shown = call("status", folder=tmp_path).stdout
    first = "the fastest first: int8, "
    assert first in " ".join(shown.split()) and shown.splitlines()[-1].split() == ["search", "2.0", "MB"]


def test_help_by_its_other_names(tmp_path):
    whole, of_search = (call(*each, "--help", folder=tmp_path).stdout for each in ([], ["search"]))
    for other in (["help"], ["-h"], []):
        assert call(*other, folder=tmp_path) == Done(0, whole, "")
    assert call("help", "search", folder=tmp_path).stdout == of_search
    assert call("search", "-h", folder=tmp_path).stdout == of_search


def test_a_recipe_is_read_from_a_pipe(world: World, tmp_path):
    pipe, content = tmp_path / "pipe", json.dumps(world.recipe())
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(content,))
    writer.start()
    done = call("check", pipe, "--json", folder=tmp_path, data=world.data)
    writer.join()
    assert done.returncode == 0 and last(done)["recipes"][0]["name"] == "tiny"  # type: ignore[index]


def test_recipes_lists_and_prints(tmp_path):
    listed = call("recipes", "--json", folder=tmp_path)
    names = [r["name"] for r in last(listed)["recipes"]]  # type: ignore[union-attr, index]
    assert "bert-2x128" in names
    printed = call("recipes", "bert-2x128", folder=tmp_path)
    assert printed.stdout.startswith("name: bert-2x128\n")
    (tmp_path / "bad.yaml").write_bytes(b"\xff")
    assert call("recipes", "bad.yaml", folder=tmp_path).stderr.startswith("bad.yaml: not YAML: ")
    (tmp_path / "mine.yaml").write_text(printed.stdout, encoding="utf-8")
    assert last(call("recipes", "mine.yaml", "--json", folder=tmp_path))["recipe"]["name"] == "bert-2x128"  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        ("train teacher-minilm", "torch", "demo"),  # with its teacher, packaged:all-MiniLM-L6-v2
        ("export nano --out x", "torch", "train"),
        ("serve nano", "uvicorn", "server"),
    ],
)
def test_a_missing_extra_is_named(tmp_path, command: str, module: str, extra: str):
    missing = f"raise ModuleNotFoundError(\"No module named '{module}'\", name='{module}')\n"
    (tmp_path / f"{module}.py").write_text(missing, encoding="utf-8")
    code = (
        f"import sys; sys.path.insert(0, '.'); sys.argv = {['edgedistill', *command.split()]}\n"
        "from edgedistill.cli import main; main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.returncode == 2
    way_out = f'in your clone of edgedistill: pip install ".[{extra}]"'
    fact = f"needs {module}, which is not installed; {way_out}"
    assert done.stderr.startswith(f"edgedistill {command.split()[0]} ") and fact in done.stderr


def test_json_prints_its_object_however_the_command_ends(tmp_path, monkeypatch):
    done = call("check", "--json", "--bad", folder=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("edgedistill check: No such option: --bad")
    assert last(done) == {"error": done.stderr.strip(), "problems": [done.stderr.strip()]}
    monkeypatch.setattr(verify, "verify", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    done = call("verify", "bundles/x", "--json", folder=tmp_path)
    assert (done.returncode, last(done)) == (130, {"error": "interrupted"})
    assert done.stderr.splitlines() == ["interrupted"]


def test_an_interrupted_training_says_so_once(world: World, tmp_path, monkeypatch):
    def interrupt(spec: object, out: Path, *rest: object):
        out.with_name(f"{out.name}.partial").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", interrupt)
    recipe = tmp_path / "r.json"
    recipe.write_text(json.dumps(world.recipe()), encoding="utf-8")
    done = call("train", recipe, folder=tmp_path, data=world.data)
    lines = ["runs/tiny: unfinished; continue with --resume", "interrupted"]
    assert (done.returncode, done.stderr.splitlines()) == (130, lines)


def test_a_wrong_name_is_answered_with_the_nearest_and_the_others(tmp_path):
    done = call("recipes", "bert2-128", folder=tmp_path)
    assert done.returncode == 2
    others = len(files.shipped("recipe")) - 4
    assert done.stderr.startswith(
        "no recipe 'bert2-128'; did you mean 'bert-2x128'? (bert-2x128, bert-2x128-256, "
    )
    assert done.stderr.endswith(
        f" and {others} more); begin with `starter`, `edgedistill recipes` lists all\n"
    )
    many = [f"name-{number}" for number in range(MAX_NAMES + 1)]
    assert unknown_name("x", "y", many).endswith(f", name-12 and {len(many) - 5} more)")


def test_missing_files_are_found_before_torch_is_imported(world: World, tmp_path):
    recipe = tmp_path / "r.json"
    changes = {
        "rows": {"files": ["none-*.txt"], "exclude": ["no/*.tsv"]},
        "select": {"suite": "minni"},
        "requirements": {"sts": 0.5, "suite": "stss7"},
    }
    recipe.write_text(json.dumps(world.recipe(**changes)), encoding="utf-8")
    code = (
        "import sys; sys.argv[1:] = sys.argv[2:]; from edgedistill import cli\ntry: cli.main()\nfinally: "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "-", "check", str(recipe), "--data", str(world.data)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "False\n")
    lines = done.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "rows.files",
        "rows.exclude",
        "select.suite",
        "requirements.suite",
    ]
    assert "did you mean 'mini'?" in lines[2] and "did you mean 'sts7'?" in lines[3]
    assert "no such folder" in call("train", recipe, "--data", tmp_path / "nodir", folder=tmp_path).stderr


def test_a_finished_run_is_left_as_it_is(world: World, tmp_path):
    recipe = tmp_path / "r.json"
    recipe.write_text(json.dumps(world.recipe()), encoding="utf-8")
    call("train", recipe, folder=tmp_path, data=world.data)
    before = files.sha256_folder(tmp_path / "runs/tiny")
    done = call("train", recipe, "--resume", folder=tmp_path, data=world.data)
    assert (done.returncode, files.sha256_folder(tmp_path / "runs/tiny")) == (0, before)
    assert "runs/tiny: finished already" in done.stderr
    done = call("train", recipe, "--resume", "--set", "seed=3", folder=tmp_path, data=world.data)
    message = (
        "runs/tiny: a finished run of another recipe (seed was 0, is now 3); give another --out, or delete it"
    )
    assert (done.returncode, done.stderr.strip()) == (2, message)


def test_a_student_for_the_core_and_two_bundles_beside_each_other(tmp_path):
    asked = ("export", "micro", "--core", "core")
    assert call(*asked, folder=tmp_path).returncode == 0
    for more, fact in (([], "exists already"), (["--out", "x"], "writes no bundle; leave --out out")):
        assert fact in call(*asked, *more, folder=tmp_path).stderr
    assert call("verify", "micro", "--with", "micro", folder=tmp_path).returncode == 0
    assert call("verify", "micro", "--with", "nano", folder=tmp_path).returncode == 1


def test_version(tmp_path):
    assert call("--version", folder=tmp_path).stdout.strip() == f"edgedistill {edgedistill.__version__}"


def test_a_pair_of_encoders(world: World, tmp_path):
    """Export, verify and embed by role; what a pair does not do raises with the way out."""
    asked = ("export", world.teacher, "--documents", world.teacher, "--precision", "fp32")
    without = call(*asked, folder=tmp_path)
    assert without.returncode == 2
    assert without.stderr.endswith("writes a pair of encoders; add --out, the folder of the pair\n")
    done = call(*asked, "--out", "bundles/pair", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["precisions"]["query"] == found["precisions"]["document"] and found["cosine"] == 1
    assert call("verify", "pair", folder=tmp_path).stdout.startswith("pair (bundles/pair): OK, ")
    embedded = call("embed", "pair", "--as", "query", folder=tmp_path, text="the cat\n")
    expected = edgedistill.load(tmp_path / "bundles" / "pair").encode_query("the cat")
    row = json.loads(embedded.stdout.splitlines()[0])["embedding"]
    assert np.allclose(row, expected, atol=1e-6)
    refused = call("embed", "pair", folder=tmp_path, text="the cat\n")
    assert refused.returncode == 2 and "a pair of encoders, for queries and documents; " in refused.stderr
