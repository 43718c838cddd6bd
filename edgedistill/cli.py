"""The commands: read arguments, call one function, print the result."""

from __future__ import annotations

import json
import os
import sys
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedistill.errors import AnswerIsNo, UserError
from edgedistill.session import Session

app = typer.Typer(
    name="edgedistill",
    help="Turn any sentence encoder into one that fits the device, and prove what it kept.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its help needs a Markdown parser, half of the time that help takes
)

INTERRUPTED = 130
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
Data = Annotated[Path | None, typer.Option("--data", envvar="EDGEDISTILL_DATA", help="Folder that relative data paths start from.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="K=V", help="Change a recipe's value, e.g. stages.0.epochs=1. Repeatable.")
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Default: the processors this process may use.")]


def _version(asked: bool) -> None:
    if asked:
        import edgedistill

        typer.echo(edgedistill.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")] = False,
) -> None:
    pass


def say(line: str) -> None:
    """Progress goes to stderr: stdout is the answer."""
    from rich.console import Console

    Console(stderr=True, highlight=False).print(line, markup=False, soft_wrap=True)


def answer(value: dict[str, Any], as_json: bool, text: str = "") -> None:
    if as_json:
        typer.echo(json.dumps(value, ensure_ascii=False, default=str))
    elif text:
        typer.echo(text)


@app.command(epilog="Example: edgedistill recipes demo-bert2 > mine.yaml")
def recipes(name: Annotated[str | None, typer.Argument(help="Print this one.")] = None, as_json: Json = False) -> None:
    """List the shipped recipes, or print one."""
    import yaml

    from edgedistill import files

    if name is not None:
        path = files.find("recipe", name)
        answer({"name": name, "path": str(path), "recipe": yaml.safe_load(path.read_text())}, as_json, path.read_text().rstrip())
        return
    from edgedistill import recipe

    paths = sorted(files.shipped("recipe").values(), key=lambda path: path.parent.name != "starter")  # first what to begin with
    found = [(path.parent.name, recipe.read(path)) for path in paths]
    width = max(len(r.name) for _, r in found)
    lines: list[str] = []
    for group, members in groupby(found, key=lambda each: each[0]):
        lines += ["", group, *(f"{r.name:{width}}  {r.about}" for _, r in members)]
    told = [{"name": r.name, "group": group, "about": r.about} for group, r in found]
    answer({"recipes": told}, as_json, "\n".join(lines[1:]))


@app.command(epilog="Example: edgedistill check bert-2x128 --set student.layers=3 --data ~/texts")
def check(
    names: Annotated[list[str], typer.Argument(metavar="RECIPE...", help="Paths, or names of shipped recipes.")],
    changes: Changes = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Log what recipes cost before paying it. Parameters, bytes, teacher passes, latency untrained."""
    from edgedistill import recipe
    from edgedistill.errors import require
    from edgedistill.planning import preflight

    specs = [recipe.read(name, changes or []) for name in names]
    preflight.check_all(specs, data)
    require("torch", "check", "train")
    from edgedistill.planning import cost

    found = cost.costs(specs, Session(data=data, log=say))
    answer({"recipes": found}, as_json, "\n\n".join(cost.table(each) for each in found))


@app.command(epilog="Example: edgedistill train bert-2x128 bert-1x384-b64 --data ~/texts --set stages.0.epochs=1")
def train(
    names: Annotated[list[str], typer.Argument(metavar="RECIPE...", help="Paths, or names of shipped recipes.")],
    out: Annotated[Path | None, typer.Option("--out", help="Default: runs/NAME; only with one recipe.")] = None,
    data: Data = None,
    changes: Changes = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with a run that was killed; the result is the same, byte for byte. Of several, finished ones are kept."
        ),
    ] = False,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    as_json: Json = False,
) -> None:
    """Train a recipe's student; the run folder appears when it is whole. Several share the teacher's vectors, and take turns."""
    from edgedistill import recipe
    from edgedistill.errors import require, unknown
    from edgedistill.planning import preflight

    specs = [recipe.read(name, changes or []) for name in names]
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device: {unknown('device', device, ('auto', 'cpu', 'cuda'))}")
    if len(specs) > 1 and out is not None:
        raise UserError(f"--out: one folder for {len(specs)} recipes; leave it out (each goes to runs/NAME), or train them one by one")
    preflight.check_all(specs, data)
    require("torch", "train", "train")
    if len(specs) > 1:
        from edgedistill.training import several

        made = several.series(specs, Path("runs"), Session(data=data, device=device, log=say, progress=sys.stderr.isatty()), resume)
        answer(made, as_json, "\n".join(each["run"] for each in made["runs"]))
        return
    from edgedistill.training import train as training

    out = out or Path("runs") / specs[0].name
    try:
        info = training.train(specs[0], out, Session(data=data, device=device, log=say, progress=sys.stderr.isatty()), resume)
    except KeyboardInterrupt:
        if out.with_name(out.name + ".partial").exists():
            say(f"{out}: interrupted; go on with --resume, at most a minute of work is done again")
        raise
    answer({"run": str(out), **info}, as_json, str(out))


@app.command(epilog="Example: edgedistill export runs/bert-2x128 --precision w8,int8")
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that train made.")],
    precision: Annotated[str, typer.Option("--precision", help="fp32, w8, int8; several with commas.")] = "fp32,w8,int8",
    out: Annotated[Path | None, typer.Option("--out", help="Default: bundles/NAME.")] = None,
    as_json: Json = False,
) -> None:
    """Write a run as an ONNX bundle. It is compared with torch before it gets its name."""
    from edgedistill.errors import require

    require("torch", "export", "train")
    from edgedistill.export import bundle_writer as exporting

    out = out or Path("bundles") / run.resolve().name
    made = exporting.export(run, [p.strip() for p in precision.split(",") if p.strip()], out, say)
    answer({"bundle": str(out), **made}, as_json, str(out))


@app.command(epilog="Example: edgedistill bench bundles/teacher:fp32 bundles/bert-2x128:w8 --suite mini --html report.html")
def bench(
    bundles: Annotated[list[str], typer.Argument(metavar="BUNDLE[:PRECISION]...", help="Bundles; :* measures every precision.")],
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite",
            help="A shipped suite, or a path; xsts:en-de is one of its tasks; task or task:FILE for labels. Default: mini, or task.",
        ),
    ] = None,
    data: Data = None,
    threads: Threads = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option("--out", help="Write the reports here as JSON.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write one self-contained page here.")] = None,
    as_json: Json = False,
) -> None:
    """Measure bundles. Accuracy, what was kept of the teacher, latency, size, memory."""
    from edgedistill.evaluation import bench as benching

    made = benching.bench(bundles, suite or [], Session(data=data, device=device, log=say), threads, out, html)
    answer(made, as_json)


@app.command(epilog="Example: echo 'how do I reset it?' | edgedistill embed bundles/bert-2x128:w8")
def embed(
    name: Annotated[str, typer.Argument(metavar="BUNDLE[:PRECISION]")],
    file: Annotated[str, typer.Argument(help="A text a line; - is stdin.")] = "-",
    out: Annotated[Path | None, typer.Option("--out", help="X.npy or X.jsonl; default: JSON lines on stdout.")] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Embed a text a line. Files of any size need the same memory."""
    from edgedistill.runtime import embed_file as embedding

    answer(embedding.embed(name, file, out, threads=threads), as_json)


@app.command(epilog="Example: edgedistill verify bundles/bert-2x128")
def verify(bundle: Annotated[Path, typer.Argument(metavar="BUNDLE")], as_json: Json = False) -> None:
    """Check a bundle's bytes and vectors. Against its manifest, and against those it was made with."""
    from edgedistill.runtime import verify as verification

    found = verification.verify(bundle)
    answer(found, as_json, f"{bundle}: as it was made")


@app.command(epilog="Example: edgedistill trim owner/name --revision main --corpus 'texts/*.txt.gz' --out models/mine")
def trim(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="packaged:NAME, a folder, or a hub id.")],
    texts: Annotated[list[str], typer.Option("--corpus", metavar="GLOB[:COLUMN]", help="Files whose pieces are kept. Repeatable.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the smaller model.")],
    others: Annotated[
        list[str] | None, typer.Option("--report", metavar="GLOB[:COLUMN]", help="Files to report on only. Repeatable.")
    ] = None,
    min_count: Annotated[int, typer.Option("--min-count", min=1, help="Keep pieces used at least this often.")] = 1,
    revision: Annotated[str | None, typer.Option("--revision", help="For a hub id: commit, tag or branch.")] = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Drop pieces of a vocabulary that a corpus does not use. The vectors of its texts stay."""
    from edgedistill.errors import require

    require("torch", "trim", "train")
    from edgedistill.vocabulary import trim_model as trimming

    found = trimming.trim(model, texts, out, Session(data=data, log=say), others, min_count, revision)
    answer(found, as_json, trimming.table(found))


@app.command(epilog="Example: edgedistill demo --minutes 6")
def demo(
    minutes: Annotated[float, typer.Option("--minutes", min=0.2, help="Of training, both students together.")] = 3.0,
    out: Annotated[Path, typer.Option("--out", help="Folder for runs, bundles and the report.")] = Path("demo"),
    as_json: Json = False,
) -> None:
    """From a teacher to two measured students in minutes. On texts this machine already has."""
    from edgedistill.errors import require

    require("torch", "demo", "demo")
    from edgedistill import demo as demonstration

    answer(demonstration.demo(minutes, out, Session(log=say)), as_json)


def main() -> None:
    """Run a command. Exit 0 done, 1 the answer is no, 2 the user can fix it, 130 interrupted; a bug keeps its traceback."""
    shown, numbers = False, dict[str, Any]()
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch in pages of 2 MB: a large word table's step takes little over half the time
    try:
        app()
    except SystemExit as way_out:  # typer's own: help, wrong arguments, Ctrl-C; it has said why
        if way_out.code not in (2, INTERRUPTED):
            raise
        code, shown = way_out.code, way_out.code != INTERRUPTED
        message = "interrupted" if code == INTERRUPTED else "wrong arguments; stderr says which"
    except UserError as error:
        code, message, numbers = 2, str(error), {"problems": list(error.problems), **error.numbers}
    except AnswerIsNo as error:
        code, message, numbers = 1, str(error), error.numbers
    except KeyboardInterrupt:
        code, message = INTERRUPTED, "interrupted"
    except BrokenPipeError:  # the reader has gone, as with `| head`: nothing left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    else:
        return
    if not shown:
        sys.stderr.write(message + "\n")
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps({"error": message, **numbers}, ensure_ascii=False, default=str) + "\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
