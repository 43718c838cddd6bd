"""Embed the golden texts of bundles with every runner that is installed here, and report the worst cosine of
each.

Exports a bundle of each kind of student (the packaged teacher itself, and small students that start from it)
in every precision, has each runner embed its golden texts in one call, and compares the result with the
embeddings that torch gave. A runner is a program in bench/ecosystem_runners/ which reads {texts, files:
{precision: file}} on stdin and prints {version, vectors: {precision: rows}}.

python bench/ecosystems.py [--python NAME=PATH …] [--transformers-js DIR] [--bundles DIR] [--kinds …]
[--runners …]
                           [--out bench/reports/ecosystems.json] [--readme]

--python: the interpreter of an environment that has optimum-onnx and sentence-transformers 5 (NAME optimum),
or fastembed. --transformers-js: a folder whose node_modules has @huggingface/transformers. Default
of both: the folders optimum, fastembed and transformers.js below $EDGEDISTILL_ENVIRONMENTS,
otherwise below .environments in the checkout, where `make ecosystems` installs them. --out: a report that is
there keeps its rows of other runners and students. --readme: write the table into bench/ENGINES.md, too.
--readme alone writes it from the report that is there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import readme_tables

from edgedistill import files, machine, recipe, run
from edgedistill.errors import CheckFailed
from edgedistill.export import bundle_writer
from edgedistill.precisions import PRECISIONS, STANDARD
from edgedistill.session import QUIET
from edgedistill.students import kinds
from edgedistill.teacher import encoder, tokenizer_files
from edgedistill.training.initial_student import initial_weights
from edgedistill.training.load_models import Models

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS, REPORT, DOCUMENT = (
    ROOT / "bench" / "ecosystem_runners",
    ROOT / "bench" / "reports" / "ecosystems.json",
    ROOT / "bench" / "ENGINES.md",
)
TEACHER = "packaged:all-MiniLM-L6-v2"
STUDENTS: dict[
    str, dict[str, Any]
] = {  # before their first step: what is compared is arithmetic, not quality
    "bert": {
        "kind": "bert",
        "weights": "teacher",
        "layers": [0, 5],
        "width": 128,
        "heads": 4,
        "intermediate": 256,
        "head": "linear",
    },
    "recurrent": {"kind": "recurrent", "layers": 1, "repeats": 3, "head": "linear", "dims": 256},
    "bilstm": {
        "kind": "bilstm",
        "layers": 1,
        "width": 128,
        "hidden": 128,
        "readout": "max",
        "head": "linear",
    },
    "static": {"kind": "static", "width": 128, "head": "linear"},
}
SHIPPED = ("nano", "micro", "multi")  # in their own weights, for engines
SHAPE = "1x128"  # of bundles whose names end in it
KINDS = [
    *STUDENTS,
    *(f"{name}-{SHAPE}" for name in STUDENTS),
    *SHIPPED,
    *(f"{name}-{SHAPE}" for name in SHIPPED),
]
TIMEOUT_S = 600


class Runner(NamedTuple):
    """A library or program: its script, what starts it, and why it cannot open a bundle (None where it
    can)."""

    script: str
    # "here", the name of an environment, "transformers.js", or the folder of one of our own runners in
    # JavaScript
    starts: str
    needs: Callable[[Path], str | None] = lambda folder: None
    arguments: tuple[str, ...] = ()
    precisions: tuple[str, ...] = tuple(PRECISIONS)


def _is_transformer(folder: Path) -> str | None:
    known = not str(files.read_json(folder / "config.json")["model_type"]).startswith("edgedistill-")
    return None if known else "needs a transformer"


def _has_modules(folder: Path) -> str | None:
    return None if (folder / "modules.json").exists() else "needs a transformer"


def _has_one_shape(folder: Path) -> str | None:
    return None if "shape" in files.read_json(folder / "manifest.json") else "needs a fixed shape"


RUNNERS = {
    "edgedistill": Runner("edgedistill_encode.py", "here"),
    "export/python": Runner("plain_python.py", "here"),
    "export/core": Runner("core_in_node.py", "here", precisions=("fp32", "w8", "int8", "w4")),
    "sentence-transformers": Runner("sentence_transformers_encode.py", "optimum", _has_modules),
    "optimum": Runner("optimum_forward.py", "optimum", _is_transformer),
    "fastembed": Runner("fastembed_embed.py", "fastembed"),
    "transformers.js pipeline": Runner(
        "transformers_js.mjs", "transformers.js", _is_transformer, ("pipeline",)
    ),
    "transformers.js model": Runner("transformers_js.mjs", "transformers.js", arguments=("model",)),
}
ENGINES = {  # given token ids
    "onnxruntime": Runner("engine_forward.py", "here", arguments=("onnxruntime",)),
    "openvino": Runner("engine_forward.py", "openvino", arguments=("openvino",)),
    "tract": Runner("engine_forward.py", "tract", arguments=("tract",)),
    "onnx reference": Runner("engine_forward.py", "here", arguments=("reference",)),
    "QNN (not run)": Runner("qnn_compile.py", "qnn", _has_one_shape),
}
RUNNERS |= ENGINES


def export_students(folder: Path, names: list[str]) -> None:
    """Export the teacher and the students as bundles below `folder`; those that are there already are
    kept."""
    loaded: encoder.TeacherEncoder | None = None
    for name in names:
        if (folder / name / "manifest.json").exists():
            continue
        with tempfile.TemporaryDirectory() as temporary:
            student = name.removesuffix(f"-{SHAPE}")
            source, shape = TEACHER if name == "teacher" else student, SHAPE if name != student else None
            if student in STUDENTS:
                loaded = loaded or encoder.TeacherEncoder(recipe.Teacher(model=TEACHER, dtype="fp32"))
                source = str(_write_run(Path(temporary) / student, STUDENTS[student], loaded))
            precisions = list(PRECISIONS) if name in ("teacher", *STUDENTS) else STANDARD
            try:
                log = partial(print, f"{name}:")
                bundle_writer.export(source, precisions, folder / name, log, shape)
            except CheckFailed as error:  # the precisions that passed are there
                print(f"{name}: {error}")


def _write_run(folder: Path, student: dict[str, Any], teacher: encoder.TeacherEncoder) -> Path:
    """The run of a student with its initial weights."""
    spec = recipe.parse(
        {"name": folder.name, "teacher": {"model": TEACHER}, "student": student}, f"student {folder.name}"
    )
    prepared = initial_weights.build(spec, Models(teacher), teacher.tokenizer, QUIET)
    folder.mkdir()
    (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
    run.write_student(folder, prepared.shape, prepared.module.state_dict())
    tokenizer_files.save_tokenizer(prepared.tokenizer, folder / "tokenizer")
    info = {
        "dims": kinds.dims(prepared.module),
        "parameters": kinds.parameters(prepared.module),
        "corpus": None,
        "stages": [],
    }
    files.write_json(folder / "run.json", {**run.provenance(), **info})
    return folder


class Environments(NamedTuple):
    """What starts the runners: Python interpreters by name, and the folder of transformers.js."""

    pythons: dict[str, Path]
    transformers_js: Path

    @classmethod
    def found(
        cls, pythons: dict[str, str] | None = None, transformers_js: Path | None = None
    ) -> Environments:
        """Those that are given, otherwise those below $EDGEDISTILL_ENVIRONMENTS, otherwise those of the
        checkout."""
        folder = Path(os.environ.get("EDGEDISTILL_ENVIRONMENTS") or ROOT / ".environments")
        interpreters = {
            name: folder / name / "bin" / "python"
            for name in ("optimum", "fastembed", "openvino", "tract", "qnn")
        }
        interpreters |= {name: Path(path).absolute() for name, path in (pythons or {}).items()}
        return cls(interpreters, (transformers_js or folder / "transformers.js").absolute())

    def command(self, runner: Runner) -> tuple[list[str], Path] | str:
        """(command, working directory) of a runner, or what is missing."""
        script = str(SCRIPTS / runner.script)
        if runner.script.endswith(".mjs"):
            node = shutil.which("node")
            if node is None:
                return "no node"
            where = self.transformers_js if runner.starts == "transformers.js" else ROOT
            if (
                runner.starts == "transformers.js"
                and not (where / "node_modules" / "@huggingface" / "transformers").is_dir()
            ):
                return f"npm install @huggingface/transformers in {where.name}, or --transformers-js"
            return [node, script], where
        python = Path(sys.executable) if runner.starts == "here" else self.pythons[runner.starts]
        return (
            ([str(python), script], ROOT)
            if python.exists()
            else f"no environment: --python {runner.starts}=PATH"
        )


def measure(folder: Path, name: str, runner: Runner, environments: Environments) -> list[dict[str, Any]]:
    """A row per precision of a bundle: {runner, kind, precision, version, cosine_min, …}, or {…, reason}
    where it was not run."""
    wanted = {
        each: entry["file"]
        for each, entry in files.read_json(folder / "manifest.json")["precisions"].items()
        if each in runner.precisions
    }
    shared: dict[str, Any] = {"runner": name, "kind": folder.name}
    if reason := runner.needs(folder):
        return [{**shared, "precision": None, "reason": reason}]
    found = environments.command(runner)
    if isinstance(found, str):
        return [{**shared, "precision": None, "not_run": found}]
    return answered([*found[0], str(folder), *runner.arguments], found[1], folder, wanted, shared)


def answered(
    command: list[str], where: Path, folder: Path, wanted: dict[str, str], shared: dict[str, Any]
) -> list[dict[str, Any]]:
    """A row per precision, with what is `shared` by them, of what a runner's command makes of the golden
    texts of a bundle with these graphs."""
    golden = _without_roles(folder)
    answer = _ask(command, where, golden["texts"], wanted)
    answers = dict.fromkeys(wanted, answer)
    if isinstance(answer, str) and len(wanted) > 1:  # one by one, to see which of them it is
        answers = {
            precision: _ask(command, where, golden["texts"], {precision: file})
            for precision, file in wanted.items()
        }
    return [
        {**shared, "precision": precision, **_result(each, golden, precision)}
        for precision, each in answers.items()
    ]


def _without_roles(folder: Path) -> dict[str, Any]:
    """parity.json of a bundle but for queries and documents, for which each library is asked otherwise."""
    golden = files.read_json(folder / "parity.json")
    roles = golden.get("roles", ["text"] * len(golden["texts"]))
    kept = [at for at, role in enumerate(roles) if role == "text"]
    return {**golden, **{key: [golden[key][at] for at in kept] for key in ("texts", "ids", "vectors")}}


def _result(answer: dict[str, Any] | str, golden: dict[str, Any], precision: str) -> dict[str, Any]:
    if isinstance(answer, str):
        return {"error": answer}
    if "compiled" in answer:
        return {"version": answer["version"], "compiled": answer["compiled"][precision]}
    dims, expected = (len(rows[0]) for rows in (answer["vectors"][precision], golden["vectors"]))
    if dims != expected:
        return {
            "version": answer["version"],
            "error": f"{dims} dimensions, the bundle's embeddings have {expected}",
        }
    rates = {"rate_texts_s": answer["rate_texts_s"][precision]} if "rate_texts_s" in answer else {}
    return {
        "version": answer["version"],
        **compared(answer["vectors"][precision], golden, precision),
        **rates,
    }


def _ask(command: list[str], folder: Path, texts: list[str], wanted: dict[str, str]) -> dict[str, Any] | str:
    """A runner's answer, or the line of its error."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    request = json.dumps({"texts": texts, "files": wanted})
    try:
        done = subprocess.run(
            command,
            input=request,
            capture_output=True,
            text=True,
            cwd=folder,
            env=environment,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S} s"
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return dict(json.loads(lines[-1]))
    return _message(done.stderr) or f"exit code {done.returncode}"


def _message(stderr: str) -> str:
    """The message of a program's exception, on one line, without the places in another language's source
    that it names."""
    lines = stderr.strip().splitlines()
    frames = [at for at, line in enumerate(lines) if line.startswith("  File ")]
    message = [line.strip() for line in lines[frames[-1] + 1 if frames else -1 :] if not line.startswith(" ")]
    kept = " ".join(line for line in message if "Exception from src" not in line and line)
    return kept.replace(f"{ROOT}/", "")[:200]


def compared(vectors: list[list[float]], golden: dict[str, Any], precision: str) -> dict[str, Any]:
    """The worst cosine of all golden texts, and of those that fit max_tokens; how many miss the precision's
    threshold."""
    rows = np.array(vectors, np.float64)
    cosines = (rows * np.array(golden["vectors"])).sum(1)
    lengths = np.array(list(map(len, golden["ids"])))
    whole = lengths < lengths.max()  # the longest fill max_tokens
    below = int((cosines < golden["cosine_at_least"][precision]).sum())
    return {
        "texts": len(rows),
        "dims": rows.shape[1],
        "cosine_min": _rounded_down(cosines.min()),
        "cosine_min_whole": _rounded_down(cosines[whole].min()),
        "below_threshold": below,
    }


def _rounded_down(value: float) -> float:
    return float(np.floor((value + 5e-7) * 1e6) / 1e6)  # golden embeddings have six digits


def inference_server_layout(folder: Path) -> dict[str, Any]:
    """Whether Text Embeddings Inference finds what its ort backend reads: names, config keys, a graph with
    its inputs and outputs.

    The server itself is not run. It fetches config.json, tokenizer.json, tokenizer_config.json,
    1_Pooling/config.json, sentence_bert_config.json and onnx/model.onnx, and takes the output
    `sentence_embedding` where there is one.
    """
    row = {"runner": "text-embeddings-inference", "kind": folder.name, "precision": "fp32"}
    names = [
        "tokenizer.json",
        "tokenizer_config.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "onnx/model.onnx",
    ]
    if reason := _is_transformer(folder):
        return {**row, "precision": None, "reason": reason}
    missing = [name for name in names if not (folder / name).is_file()]
    config = files.read_json(folder / "config.json")
    keys = ("model_type", "hidden_size", "num_hidden_layers", "max_position_embeddings")
    missing += [f"config.json: {key}" for key in keys if key not in config]
    if (folder / "onnx" / "model.onnx").is_file():
        graph = onnx.load(folder / "onnx" / "model.onnx").graph
        inputs, outputs = {each.name for each in graph.input}, {each.name for each in graph.output}
        strange = inputs - {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
        missing += [f"input {name}, which it does not give" for name in sorted(strange)]
        missing += (
            [] if outputs & {"sentence_embedding", "last_hidden_state"} else ["an output that it reads"]
        )
    return {**row, "error": f"missing: {', '.join(missing)}"} if missing else {**row, "layout": True}


def merged(before: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an earlier report whose runner and student were not measured again, or not run now, and the
    new ones."""
    known = {(row["runner"], row["kind"]) for row in before if not row.get("not_run")}
    rows = [row for row in rows if not (row.get("not_run") and (row["runner"], row["kind"]) in known)]
    again = {(row["runner"], row["kind"]) for row in rows}
    return [row for row in before if (row["runner"], row["kind"]) not in again] + rows


def table(report: dict[str, Any]) -> str:
    """The report as Markdown: a row for each kind and precision, a column for each engine, and the same for
    the libraries."""
    libraries = [name for name in RUNNERS if name not in ENGINES]
    plain = [row for row in report["rows"] if row["kind"] in ("teacher", *STUDENTS)]
    parts = ((report["rows"], list(ENGINES)), (plain, [*libraries, "text-embeddings-inference"]))
    return "\n".join(_table(rows, names) for rows, names in parts)


def _table(rows: list[dict[str, Any]], runners: list[str]) -> str:
    """A column for each of these runners; below, what was not run and why."""
    rows = [row for row in rows if row["runner"] in runners]
    rows.sort(key=lambda row: ["teacher", *KINDS].index(row["kind"]))
    shown = {row["runner"] for row in rows if row.get("precision")}
    names = [name for name in runners if name in shown]
    if not names:
        return ""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        if row.get("precision"):
            cells.setdefault((row["kind"], row["precision"]), {})[row["runner"]] = _cell(row)
    lines = [f"| student | precision | {' | '.join(names)} |", f"|---|---|{'---:|' * len(names)}"]
    for (kind, precision), found in cells.items():
        lines.append(f"| {kind} | {precision} | {' | '.join(found.get(name, '–') for name in names)} |")
    versions = {row["runner"]: row["version"] for row in rows if row.get("version")}
    notes = [f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}."]
    missing = {row["runner"]: row["not_run"] for row in rows if row.get("not_run")}
    if missing:
        notes.append(f"Not run: {', '.join(sorted(missing))}.")
    errors = dict.fromkeys(f"{row['runner']}: {row['error']}" for row in rows if row.get("error"))
    return "\n".join([*lines, "", *notes, *(f"Failed: {error}." for error in errors), ""])


def _cell(row: dict[str, Any]) -> str:
    if str(row.get("error")).startswith("no answer"):
        return "too slow"
    if row.get("error"):
        return "refuses" if row["runner"] in ENGINES else "fails"
    if row.get("layout"):
        return "layout"
    if row.get("compiled"):
        return str(row["compiled"])
    worst = f"{row['cosine_min']:.5f}"
    if "rate_texts_s" in row:
        worst += f", {row['rate_texts_s']:,.0f}/s"
    return (
        f"{worst} ({row['texts'] - row['below_threshold']} of {row['texts']})"
        if row["below_threshold"]
        else worst
    )


def write_readme(report: dict[str, Any]) -> None:
    """Write the table between its markers in bench/ENGINES.md."""
    readme_tables.update(DOCUMENT, table(report), "ecosystems")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--transformers-js", type=Path, metavar="DIR")
    parser.add_argument("--bundles", type=Path, metavar="DIR")
    parser.add_argument("--kinds", nargs="*", default=["teacher", *KINDS])
    parser.add_argument("--runners", nargs="*", default=list(RUNNERS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--readme", action="store_true")
    arguments = parser.parse_args()
    if arguments.readme and not arguments.out:
        write_readme(files.read_json(REPORT))
        return
    environments = Environments.found(
        dict(each.split("=", 1) for each in arguments.python), arguments.transformers_js
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.bundles or Path(temporary)).absolute()
        export_students(folder, arguments.kinds)
        rows: list[dict[str, Any]] = []
        for kind in arguments.kinds:
            for name in arguments.runners:
                found = measure(folder / kind, name, RUNNERS[name], environments)
                rows += found
                print(*(json.dumps(row) for row in found), sep="\n", flush=True)
            if kind in ("teacher", *STUDENTS):
                rows.append(inference_server_layout(folder / kind))
    if arguments.out and arguments.out.exists():
        rows = merged(files.read_json(arguments.out)["rows"], rows)
    report = {"schema": 1, "bench": "ecosystems", "rows": rows, "machine": machine.here(), **run.provenance()}
    if arguments.out:
        files.write_json(arguments.out, report)
    if arguments.readme:
        write_readme(report)
    print(table(report))


if __name__ == "__main__":
    main()
