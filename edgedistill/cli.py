"""The commands: read arguments, call one function, print the result."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from edgedistill import files, object_store
from edgedistill.data import file_patterns
from edgedistill.data.input_file import KINDS
from edgedistill.errors import DEBUG, CheckFailed, UserError, as_options, border, require
from edgedistill.precisions import DEFAULT, PRECISIONS, STANDARD
from edgedistill.runtime.arguments import MOST_THREADS
from edgedistill.session import Session, check_one_process, process, wrapped

INTERRUPTED = 130
Command = Callable[..., None]
UNWRAPPED = "\b\n"  # in front of a paragraph of help: keep its line ends

WRONG_USAGE: Any = typer.BadParameter.__base__  # every error of a command line


def _wrong_usage(error: Any) -> UserError:
    """What is wrong with a command line, in the words of typer."""
    place = error.ctx.command_path if error.ctx else "edgedistill"
    fact = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    fact = re.sub(r"('\w+'), '.*'\?$", r"\1?", fact)  # of several that it may be, the first
    fact = re.sub("Input should be a valid integer.*", "not a whole number", fact)
    return UserError(f"{place}: {fact}; {place} --help describes it")


class _Command(TyperCommand):
    """A command whose help shows metavars alone: no types of Python, and nothing around what is required."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            shown = parameter.metavar if parameter.opts[0].startswith("-") else None
            parameter.display_type_rich = lambda ctx, shown=shown: shown  # type: ignore[attr-defined]

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Errors name options, where those of its functions name parameters."""
        with as_options({f"^{parameter.name}=": f"{parameter.opts[0]} " for parameter in self.params}):
            return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [re.sub("[{}]", "", part) for part in super().collect_usage_pieces(ctx)]


PANELS = {
    "Use a student": "students search embed serve status verify",
    "Make your own": "adapt fit export recipes check cache train demo",
    "Measure": "bench",
}


class _Commands(TyperGroup):
    """The commands in --help, by what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in PANELS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{name:8}", self.commands[name].get_short_help_str(66)) for name in names.split()]
                )


app = typer.Typer(
    cls=_Commands,
    name="edgedistill",
    help="Distil a sentence encoder into a small one, export it to ONNX, and measure what it retains.",
    epilog=f"{DEBUG}=1 in the environment prints the traceback of every error.\n\n{UNWRAPPED}Exit codes:\n"
    "  0    success\n"
    "  1    a check failed: parity, a requirement of a recipe, or the hash of a file\n"
    "  2    an error that you can fix, described on stderr\n"
    "  130  interrupted",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # its help needs a Markdown parser, half of the time that help takes
)


def _option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """An option of several commands; typer names it after its parameter."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def _value(default: Any, metavar: str, help: str, *names: str, **more: Any) -> Any:
    """An option with a value, by default this one."""
    return typer.Option(default, *names, metavar=metavar, help=help, **more)


def _positional(default: Any, metavar: str, help: str, **more: Any) -> Any:
    return typer.Argument(default, metavar=metavar, help=help, **more)


Json = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object, on the last line of stdout.")
]
Data = Annotated[
    Path | None,
    _option("DIR", "Folder that relative data paths start from.", "--data", envvar="EDGEDISTILL_DATA"),
]
Changes = Annotated[
    list[str] | None,
    _option("KEY=VALUE", "Change a value of the recipe, e.g. stages.0.epochs=1. Repeatable.", "--set"),
]
Precisions = Annotated[
    list[str],
    _option("LIST", f"Any of {', '.join(PRECISIONS)}, separated by commas. Repeatable.", "--precision"),
]
TrainingDevice = Annotated[
    Literal["auto", "cpu", "cuda"],
    _option("DEVICE", "auto (cuda where available), cpu or cuda.", "--device"),
]
RuntimeDevice = Annotated[
    str,
    _option("DEVICE", "cpu, cuda (needs onnxruntime-gpu), or another provider of onnxruntime.", "--device"),
]
RemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run Python code that comes with a model. No recipe or bundle can allow it.",
    ),
]
Recipes = Annotated[
    list[str], typer.Argument(metavar="RECIPE", help="Paths of recipes, or names of shipped ones.")
]


NEEDED = "; .pdf needs pypdf, .parquet pyarrow"
HYBRID_WEIGHT = "Weight of BM25 beside the cosines; by default 2. In source code, an eighth of it counts."
Column = Annotated[
    str | None,
    _option(
        "NAME",
        "The column of texts in tables, or several: title,body. Default: text, else all that have words.",
        "--column",
    ),
]
PairTable = Annotated[
    str | None,
    _option(
        "FILE", "Queries and the texts that answer them: .csv .tsv .jsonl .parquet, also .gz.", "--pairs"
    ),
]
QueryColumn = Annotated[str, _option("NAME", "The column of queries in --pairs.", "--query-column")]
TextColumn = Annotated[str, _option("NAME", "The column of texts in --pairs.", "--text-column")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue an interrupted command, with the same result as without the interruption. Finished "
        "runs stay as they are.",
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace outputs that exist."),
]
Pooling = Annotated[
    str | None,
    _option("KIND", "For a plain transformers model: mean, cls, cls_pooler, max or last.", "--pooling"),
]
Revision = Annotated[str | None, _option("COMMIT", "Commit, tag or branch of a hub id.", "--revision")]
Threads = Annotated[
    int | None,
    _option("N", "Default: $OMP_NUM_THREADS, otherwise the processors this process may use.", "--threads"),
]
OneBundle = Annotated[
    str,
    typer.Argument(
        metavar="BUNDLE[:PRECISION]", help="Folder or name of a bundle, such as nano, which is shipped."
    ),
]


def _command(example: str) -> Callable[[Command], Command]:
    """Make a command of a function; the last line of its help is an example, on one line so that it can be
    copied."""
    return app.command(cls=_Command, epilog=f"{UNWRAPPED}Example: {example}")


def _print_version(is_given: bool) -> None:
    if is_given:
        import edgedistill

        typer.echo(f"edgedistill {edgedistill.__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    if context.invoked_subcommand not in ("train", "cache"):
        check_one_process(context.invoked_subcommand)


def _session(
    data: Path | None = None, device: str = "cpu", remote_code: bool = False, quiet: bool = False
) -> Session:
    """What a command works with; where it is to be `quiet`, without progress bars."""
    progress = sys.stderr.isatty() and not quiet
    return Session(data=data, device=device, log=log, progress=progress, remote_code=remote_code)


def _require_torch(command: str, model: object) -> None:
    """Raises UserError, without torch, with the extra that has all that the command needs of a model, or of
    recipes."""
    require("torch", f"edgedistill {command}", "demo" if "packaged:" in str(model) else "train")


@contextmanager
def _resumable(place: Path, begun: Path) -> Iterator[None]:
    """Log on Ctrl-C how to go on, once there is something to go on with. `begun` is what is there then."""
    try:
        yield
    except KeyboardInterrupt:
        if begun.exists():
            log(f"{place}: unfinished; continue with --resume")
        raise


def listed(values: list[str]) -> list[str]:
    """The items of an option that may be repeated and takes several at once, separated by commas."""
    return [item.strip() for value in values for item in value.split(",") if item.strip()]


def log(line: str) -> None:
    """Write a line to stderr: stdout is for results."""
    try:
        sys.stderr.write(f"{line}\n")
    except OSError:  # a log file on a full disk ends no training
        _discard(sys.stderr)


def print_result(value: dict[str, Any], as_json: bool, text: str = "") -> None:
    """Print a result as JSON, or as text."""
    if as_json:
        text = files.json_text(value, default=str)
    text = text.encode(errors="backslashreplace").decode()  # the name of a file may not be UTF-8
    if text:
        with border("stdout"):
            typer.echo(text)


def print_read(session: Session, value: dict[str, Any], as_json: bool, text: str = "") -> None:
    """Log what became of the files that a command read, and print its result with that."""
    log(session.reading.line)
    print_result({**value, "read": session.reading.report}, as_json, text)


@_command("edgedistill students")
def students(as_json: Json = False) -> None:
    """List the students that ship.

    Other commands take them by name. tokens: a student ignores what follows these. MB: the ONNX graph and
    tokenizer.json; `bench` shows the graph alone. STS: do cosines agree with people's judgements (Spearman
    x 100). search: do queries find their texts by cosine alone (nDCG@10 x 100). ms: median time of a short
    text on one thread of the processor in README; `status` measures nano on yours, `bench` any. --json adds
    the languages, folders, more scores and licences.
    """
    from edgedistill.evaluation import tables
    from edgedistill.runtime import bundle_location

    shipped, scored = bundle_location.shipped(), bundle_location.SCORED
    rows = [
        [
            student["name"],
            "English" if student["languages"] == ["en"] else f"{len(student['languages'])} languages",
            str(student["max_tokens"]),
            f"{student['size_bytes'] / 1e6:.1f}",
            *(f"{100 * student['scores'][suite]:.1f}" for suite in scored),
            f"{student['p50_ms']:.2f}",
        ]
        for student in shipped
    ]
    table = tables.of_cells(["name", "languages", "tokens", "MB", *scored.values(), "ms"], rows)
    print_result({"students": shipped}, as_json, f"{table}\n\n{bundle_location.CHOICE}")


@_command("edgedistill recipes demo-bert2 > mine.yaml")
def recipes(
    name: str | None = _positional(None, "RECIPE", "Print this recipe."),
    as_json: Json = False,
) -> None:
    """List the shipped recipes, or print one."""
    from edgedistill.recipe import yaml_file

    if name is not None:
        path = files.find("recipe", name)
        content = yaml_file.read(path)
        # but the schema, which an editor finds from that folder alone
        text = re.sub(r"^#.*\$schema=.*\n", "", path.read_text(encoding="utf-8"))
        result = {"name": name, "path": str(path), "recipe": content}
        return print_result(result, as_json, text.rstrip())
    from edgedistill import recipe

    students = files.shipped("bundle")

    paths = sorted(
        files.shipped("recipe").values(),
        key=lambda path: (path.stem != "starter", path.stem not in students),
    )
    rows = [(recipe.read(path), path.parent.name) for path in paths]
    shipped = [{"name": spec.name, "group": group, "about": spec.about} for spec, group in rows]
    width = 2 + max(len(path.stem) for path in paths)
    lines = [line for spec, _ in rows for line in wrapped(f"{spec.name:{width}}{spec.about}", width)]
    lines += ["", "To change one: edgedistill recipes NAME > mine.yaml"]
    return print_result({"recipes": shipped}, as_json, "\n".join(lines))


@_command("edgedistill check demo-bert2 --set student.layers=3")
def check(
    names: Recipes,
    changes: Changes = None,
    data: Data = None,
    device: TrainingDevice = "auto",
    remote_code: RemoteCode = False,
    as_json: Json = False,
) -> None:
    """Find problems in recipes and estimate what training costs.

    Prints parameters, graph sizes, the latency of the initial student, how many texts will be embedded and
    trained on, and about how long training takes on this machine. Trains nothing.
    """
    from edgedistill import recipe
    from edgedistill.planning import preflight

    specs = [recipe.read(name, changes or []) for name in names]
    preflight.check_all(specs, data)
    _require_torch("check", specs)
    from edgedistill.planning import cost

    session = _session(data, device, remote_code, quiet=True)
    result = cost.costs(specs, session)
    print_read(
        session, {"recipes": result}, as_json, "\n\n".join(cost.table(recipe_cost) for recipe_cost in result)
    )


def _share(value: str) -> tuple[int, int]:
    """I/N of --only. Raises UserError for anything else."""
    if not value:
        return process()
    number, _, shares = value.partition("/")
    if not (number.isdecimal() and shares.isdecimal() and 1 <= int(number) <= int(shares)):
        raise UserError(f"--only {value}: not a share; give I/N, such as 3/16, with I from 1 to N")
    return int(number) - 1, int(shares)


@_command("edgedistill cache demo-bert2 --only 3/16")
def cache(
    name: str = _positional(..., "RECIPE", "Path of a recipe, or name of a shipped one."),
    only: str = _value(
        "", "I/N", "Do only the I-th of N shares: for N jobs that share a cache folder (EDGEDISTILL_CACHE)."
    ),
    parquet: Path | None = _value(
        None, "DIR", "Write the embeddings there too, as .parquet files of `hash` and `embedding`."
    ),
    data: Data = None,
    changes: Changes = None,
    device: TrainingDevice = "auto",
    remote_code: RemoteCode = False,
    as_json: Json = False,
) -> None:
    """Embed and tokenize the texts of a recipe before training.

    `train` then finds the embeddings and tokens in the cache. Several machines share the work with --only.
    Results are written in shards, each whole or not at all. Start an interrupted command again to continue
    after the last shard. The bytes do not depend on how the work was shared.
    """
    from edgedistill import recipe
    from edgedistill.planning import preflight

    spec, share = recipe.read(name, changes or []), _share(only)
    if parquet is not None:
        files.check_free(parquet, "--parquet")
    preflight.check_all([spec], data)
    _require_torch("cache", spec)
    from edgedistill.training import cache_passes

    session = _session(data, device, remote_code)
    result = cache_passes.fill(spec, session, share, parquet)
    lines = [
        f"{shares['name']}: {shares['done']:,} of {shares['shards']:,} shards" for shares in result["passes"]
    ]
    print_result(result, as_json, "\n".join(lines))


@_command("edgedistill train demo-bert2 --set stages.0.epochs=1")
def train(
    name: str = _positional(..., "RECIPE", "Path of a recipe, or the name of a shipped one."),
    out: str | None = _value(None, "DIR", "Folder of the run, also s3://bucket/folder. Default: runs/NAME."),
    data: Data = None,
    changes: Changes = None,
    resume: Resume = False,
    device: TrainingDevice = "auto",
    remote_code: RemoteCode = False,
    as_json: Json = False,
) -> None:
    """Train the student of a recipe.

    The run folder is written atomically when training is complete. Recipes over the same texts share the
    cached embeddings of the teacher.
    """
    from edgedistill import recipe
    from edgedistill.planning import preflight

    spec = recipe.read(name, changes or [])
    preflight.check_all([spec], data)
    _require_torch("train", spec)
    session = _session(data, device, remote_code)
    from edgedistill.resolve import unfinished_run
    from edgedistill.training import train as training

    out = out or f"runs/{spec.name}"
    folder = object_store.pull(out, "run.json")
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"  # by torchrun, after a process died
    resume = resume or (restarted and unfinished_run(folder).exists())
    with _resumable(folder, unfinished_run(folder)):
        info = training.train(spec, folder, session, resume)
    if process()[0] == 0:
        object_store.push(folder, "run.json")
        print_read(session, {"run": out, **info}, as_json, out)


@_command("edgedistill adapt nano --texts 'docs/**/*.txt' --out bundles/mine")
def adapt(
    student: str = _positional(
        ..., "STUDENT", "A shipped bundle such as nano, the folder of a bundle, or of a run."
    ),
    texts: list[str] = _value(
        ...,
        "GLOB",
        f"Your texts, 50 or more: a folder, or files ({' '.join(KINDS)}), also .gz{NEEDED}. Repeatable.",
    ),
    out: Path = _value(..., "DIR", "Folder of the bundle. The run goes to runs/NAME, with its recipe."),
    column: Column = None,
    pairs: PairTable = None,
    query_column: QueryColumn = "query",
    text_column: TextColumn = "text",
    teacher: str | None = _value(
        None, "MODEL", "packaged:NAME, a model folder or a hub id. Default: the student's own teacher."
    ),
    revision: Revision = None,
    also: str | None = _value(
        None,
        "MODEL[@REV]",
        "A second teacher beside it, such as intfloat/multilingual-e5-small@main: learn from both.",
    ),
    minutes: float = _value(10, "N", "Minutes for the whole command.", min=0.1, max=100_000),
    steps: int | None = _value(
        None, "N", "Train so many steps instead of by the clock: the same student each time.", min=1
    ),
    precision: Precisions = ["int8"],  # noqa: B006 (typer reads it, nothing changes it)
    resume: Resume = False,
    overwrite: Overwrite = False,
    data: Data = None,
    device: TrainingDevice = "auto",
    remote_code: RemoteCode = False,
    as_json: Json = False,
) -> None:
    """Teach a finished student your own texts, without labels.

    Prints what the student finds before and after, in texts that were held out and in general ones, beside
    the teacher and BM25, and one verdict. If training brought nothing, the student is exported as
    it was. The held-out queries become a suite for `bench`, NAME-suite beside the bundle. The run's
    recipe.yaml says what was chosen; `train` runs it again.
    """
    began = time.perf_counter()
    # First what needs no torch: a wrong name or path, or too few texts, are named at once.
    from edgedistill import recipe, resolve
    from edgedistill.fitting import texts as own_texts

    resolve.finished(student, "adapt")
    file_patterns.given([] if pairs is None else [pairs], data, "--pairs")
    session = replace(_session(data, device, remote_code), data=data or Path())
    own_texts.read(own_texts.files_section(texts, column, session.data), own_texts.FEWEST, session)
    require("torch", "edgedistill adapt", "demo")
    from edgedistill import adapting
    from edgedistill.fitting.queries import Pairs

    other = None if teacher is None else recipe.Teacher(model=teacher, revision=revision)
    second = None
    if also is not None:
        model, _, of_second = also.partition("@")
        second = recipe.Teacher(model=model, revision=of_second or None)
    queries = None if pairs is None else Pairs(pairs, query_column, text_column)
    request = adapting.Request(
        *(student, texts, out, Path("runs"), column, other, minutes, steps),
        *(tuple(listed(precision)), overwrite, queries, second, began),
    )
    marks = {out: "manifest.json", request.run: "run.json", request.suite: "suite.yaml"}
    for folder, mark in marks.items() if not resume else ():
        files.check_free(folder, "--out", overwrite, mark, "what adapt wrote")
    with _resumable(request.run, resolve.unfinished_run(request.run)):
        result = adapting.adapt(request, session, resume)
    report = result.pop("report")
    print_read(session, result, as_json, report)


@_command(
    "edgedistill fit --teacher packaged:all-MiniLM-L6-v2 --texts 'texts/*.txt' --max-mb 5 --max-p50-ms 1"
)
def fit(
    teacher: str = _value(..., "MODEL", "packaged:NAME, a folder, a run, or a hub id with --revision."),
    max_mb: float = _value(
        ..., "MB", "Size of the graph and tokenizer.json together, in 10⁶ bytes.", min=0.001
    ),
    max_p50_ms: float = _value(
        ..., "MS", "Median time of one short text on one thread, tokenization included.", min=0.001
    ),
    texts: list[str] | None = _value(
        None,
        "GLOB",
        "At least 200 texts of the kind that you will embed, paths as for adapt; or `documentation`: that of "
        "Python. Repeatable.",
    ),
    minutes: float = _value(60, "N", "Minutes for the whole command.", min=0.05, max=100_000),
    space: Literal["own", "teacher"] = _value(
        "own",
        "SPACE",
        "own; or teacher, if the student is to search an index of the teacher's embeddings.",
    ),
    out: Path = _value(Path("fit"), "DIR", "Folder of the fit."),
    resume: Resume = False,
    column: Column = None,
    pairs: PairTable = None,
    query_column: QueryColumn = "query",
    text_column: TextColumn = "text",
    pooling: Pooling = None,
    revision: Revision = None,
    seed: int = _value(0, "N", "Seed of the candidates' recipes and of the sampler.", min=0, max=2**32 - 1),
    data: Data = None,
    device: TrainingDevice = "auto",
    remote_code: RemoteCode = False,
    as_json: Json = False,
) -> None:
    """Find a teacher's best student within a size and a latency.

    First measures shipped students and untrained shapes. Then trains the best of them on your texts and on
    general ones, and with --pairs on your queries too. Exports the best of all, even one that training did
    not improve. Writes a bundle, its recipe mine.yaml, and fit.json. Prints the scores of the student, of
    its start and of the teacher.
    """
    _require_torch("fit", teacher)
    from edgedistill.fitting import fit as fitting
    from edgedistill.fitting.queries import Pairs
    from edgedistill.fitting.record import Budget, FitRequest

    budget, known_teacher = Budget(max_mb, max_p50_ms), fitting.teacher(teacher, revision, pooling)
    queries = None if pairs is None else Pairs(pairs, query_column, text_column)
    request = FitRequest(
        *(known_teacher, tuple(texts or ()), budget, minutes, column),
        *(space, seed, queries, data),
    )
    with _resumable(out, out):
        session = _session(data, device, remote_code, quiet=as_json)
        result = fitting.fit(request, out, session, resume)
    print_read(session, result, as_json, fitting.summary(result))


@_command("edgedistill export runs/demo-bert2 --precision int8,w8")
def export(
    source: str = _positional(
        ...,
        "RUN|MODEL|BUNDLE",
        "A run folder written by train; a student's bundle, in its own weights; or a model: its folder, "
        "packaged:NAME or a hub id.",
    ),
    documents: str | None = _value(
        None,
        "RUN|MODEL|BUNDLE",
        "Write a pair of encoders: the first argument embeds queries, this one documents.",
    ),
    mean: bool = typer.Option(
        False,
        "--mean",
        help="Embed a pair's documents with both encoders and take the mean, which finds more.",
    ),
    precision: Precisions = [",".join(DEFAULT)],  # noqa: B006
    out: Path | None = _value(None, "DIR", "Folder of the bundle. Default: bundles/NAME."),
    shape: str | None = _value(
        None,
        "1xTOKENS",
        "One fixed shape, such as 1x128, for engines that need one: texts are padded and cut to 128 tokens. "
        f"Precisions: {', '.join(STANDARD)}; default: fp32,qdq.",
    ),
    core: Path | None = _value(
        None,
        "DIR",
        "Write the bundle as one file for devices, with the C99 core that reads it.",
    ),
    web: Path | None = _value(
        None,
        "DIR",
        "Write a page of static files that searches with this bundle. Run it again with another bundle to "
        "offer both on the page.",
    ),
    overwrite: Overwrite = False,
    pooling: Pooling = None,
    revision: Revision = None,
    remote_code: RemoteCode = False,
    as_json: Json = False,
) -> None:
    """Export a run or a sentence-transformers model as a bundle.

    Every ONNX graph is compared with the PyTorch model first. The bundle is written atomically after its
    checks pass. --core and --web write no graph.
    """
    precisions = listed(precision)
    if (folder := core or web) is not None:
        option = "--core" if core else "--web"
        others = {
            "--out": out,
            "--documents": documents,
            "--pooling": pooling,
            "--shape": shape,
            "--web": core and web,
        }
        if unused := [option for option, value in others.items() if value]:
            raise UserError(f"{option} {folder}: writes no bundle; leave {' and '.join(unused)} out")
        from edgedistill import device

        named = source if precisions == DEFAULT else f"{source}:{','.join(precisions)}"
        kept = " as it was (--overwrite writes it again)" * (folder.exists() and not overwrite)
        result = (device.write if core else device.write_page)(named, folder, overwrite)
        way_on = f"python -m http.server --bind 127.0.0.1 -d {folder} serves the page{kept}"
        if core:
            way_on = f"{folder}/README.md says how programs use it"
        text = f"wrote {folder}/{result['file']} ({result['size_bytes'] / 1e6:.1f} MB); {way_on}"
        return print_result({"folder": str(folder), **result}, as_json, text)
    if mean and documents is None:
        raise UserError("--mean: works only with a pair; add --documents, or leave --mean out")
    if documents is not None and out is None:
        raise UserError(
            f"--documents {documents}: writes a pair of encoders; add --out, the folder of the pair"
        )
    if documents is not None and shape:
        raise UserError(f"--shape {shape}: a pair has no shape; export each encoder alone")
    if out is None and source.partition(":")[0] in files.shipped("bundle"):
        raise UserError(f"{source}: is the name of a shipped bundle; add --out, a folder for the new one")
    out = out or Path("bundles") / Path(source).resolve().name.rpartition(":")[2]
    files.check_free(out, "--out", overwrite, "manifest.json", "a bundle")
    from edgedistill.resolve import exported as to_export

    to_export(source, revision)
    _require_torch("export without --core or --web", source)
    from edgedistill.export import bundle_writer, model_source, pair_bundle

    exported = model_source.Source(source, pooling, revision, remote_code)
    if documents is None:
        precisions = ["fp32", "qdq"] if shape and precisions == DEFAULT else precisions
        result = bundle_writer.export(exported, precisions, out, log, shape)
    else:
        document_encoder = model_source.Source(documents, remote_code=remote_code)
        result = pair_bundle.export(exported, document_encoder, precisions, out, log, mean)
    way_on = f"edgedistill verify {out}, or edgedistill bench {out}"
    print_result({"bundle": str(out), **result}, as_json, f"wrote {out}; go on with {way_on}")


@_command("edgedistill bench nano micro --suite sts-small --html report.html")
def bench(
    bundles: list[str] | None = _positional(
        None, "BUNDLE[:PRECISION]", "Folders or names of bundles; NAME:* measures every precision."
    ),
    suite: list[str] | None = _value(
        None,
        "SUITE",
        "A shipped suite or the path of a suite.yaml; xsts:en-de selects one of its tasks, mteb:TASK is "
        "one of mteb. For classifiers: task (the test rows), or task:FILE. "
        "Repeatable. Default: sts-small, or task for classifiers.",
    ),
    data: Data = None,
    threads: Threads = None,
    device: RuntimeDevice = "cpu",
    runner: list[str] | None = _value(
        None,
        "RUNNER",
        "What is timed: python, node, web (WASM in Chromium), or a command that answers as "
        "bench/README.md says. Repeatable. Default: python.",
    ),
    on: list[str] | None = _value(
        None,
        "PLACE",
        "Time it on another machine too, which needs nothing installed: ssh://USER@HOST, adb or "
        "adb://SERIAL. Repeatable.",
    ),
    quick: bool = typer.Option(False, "--quick", help="Fewer and shorter measurements."),
    hybrid: bool = typer.Option(False, "--hybrid", help="Also measure retrieval suites with BM25."),
    hybrid_weight: float | None = _value(
        None, "WEIGHT", HYBRID_WEIGHT + " Given alone, it is --hybrid too.", min=0
    ),
    embeddings: list[str] | None = _value(
        None,
        "LIST",
        "Score suites of sentence pairs and retrieval with embeddings in int8, binary or both too, "
        "separated by commas.",
    ),
    out: Path | None = _value(None, "FILE", "Write the reports to this JSON file."),
    html: Path | None = _value(None, "FILE", "Write a self-contained HTML page."),
    compare: tuple[Path, Path] | None = _value(
        None,
        "BEFORE.json AFTER.json",
        "Measure nothing: compare two files that --out wrote. Exit code 1 where accuracy, size or speed "
        "fell beyond noise.",
    ),
    drawn: Path | None = _value(
        None, "FILE", "Measure nothing: show the reports of a file that --out wrote.", "--from"
    ),
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Measure the accuracy, latency, size and memory of bundles.

    MB is the size of the graph alone. If you also name the teacher's bundle, the table shows which share of
    its score each student retains.
    """
    for option, file in (("--out", out), ("--html", html)):
        if file is not None and file.is_file():
            files.check_free(file, option, overwrite)
    show = None if as_json else typer.echo
    if bundles and (drawn is not None or compare is not None):
        option = "--compare" if drawn is None else "--from"
        raise UserError(f"{option}: measures nothing, but {bundles[0]} is named too; leave one of them out")
    if drawn is not None:
        from edgedistill.evaluation import page, report, tables

        reports = report.read(drawn)
        if html is not None:
            page.write(html, reports)
        result = {"schema": report.SCHEMA, "reports": list(map(report.without_samples, reports))}
        return print_result(result, as_json, tables.terminal(reports))
    if compare is not None:
        from edgedistill.evaluation import comparison

        return print_result(comparison.compare(*compare, show or log, html), as_json)
    from edgedistill.data import bm25
    from edgedistill.evaluation import bench as benchmark
    from edgedistill.evaluation import scoring, speed

    session = replace(_session(data, device, quiet=True), threads=threads)
    if hybrid and hybrid_weight is None:
        hybrid_weight = bm25.WEIGHT
    precisions = tuple(name for name in dict.fromkeys(listed(embeddings or [])) if name != "float32")
    search = scoring.Search(hybrid_weight, precisions)
    plan = speed.QUICK if quick else speed.PLAN
    outputs = benchmark.Outputs(out, html)
    runners = [*(runner or [speed.OWN]), *(on or [])]
    result = benchmark.bench(bundles or [], suite or [], session, outputs, plan, search, runners, show)
    return print_result(result, as_json)


@_command("edgedistill embed nano questions.csv --column question --out questions.npy")
def embed(
    name: OneBundle,
    file: str = _positional(
        "-",
        "FILE",
        f"One of {' '.join(KINDS)}, each also .gz; a .txt file has one text per line{NEEDED}. Default: - "
        "(lines from stdin).",
        show_default=False,
    ),
    out: Path | None = _value(
        None, "FILE", "X.npy (an n x d array) or X.jsonl. Default: JSON lines on stdout."
    ),
    column: Column = None,
    role: Literal["text", "query", "document"] = _value(
        "text",
        "ROLE",
        "What the texts are: text, query or document. The bundle may have a prompt for each.",
        "--as",
    ),
    dim: int | None = _value(None, "N", "Dimensions to return, of a Matryoshka student. Default: all."),
    embeddings: str = _value(
        "float32",
        "PRECISION",
        "float32, int8 (a byte per dimension) or binary (a bit), whatever the graph's.",
    ),
    batch_tokens: int | None = _value(
        None, "N", "Tokens per batch with padding. Default: 384 on cpu, 16384 on cuda."
    ),
    overwrite: Overwrite = False,
    threads: Threads = None,
    device: RuntimeDevice = "cpu",
    as_json: Json = False,
) -> None:
    """Embed the texts of a file or of stdin.

    Row i of the output is text i. Files of any size need the same memory.
    """
    from edgedistill.embed_file import EmbeddingFile, TextFile, embed_file
    from edgedistill.runtime.bundle import load

    source, target = TextFile(file, column, role), EmbeddingFile(out, overwrite, embeddings)
    opened = load(name, threads=threads, device=device)
    if opened.fallback:
        log(opened.fallback)
    if file == "-" and sys.stdin.isatty():
        log("reading texts from the terminal, one per line; end with Ctrl-D")
    session = _session(device=device, quiet=out is None)
    print_result(embed_file(opened, source, target, dim, batch_tokens, session), as_json)


@_command('edgedistill search "how do I reset it?" docs')
def search(
    question: str = _positional(..., "QUESTION", "What to look for, in quotes. It comes first."),
    places: list[str] | None = _positional(
        None,
        "PATH|STUDENT",
        "Any folders, files or globs, by default this folder; and one student, by default nano: a name from "
        "`edgedistill students`, or a bundle's folder.",
        show_default=False,
    ),
    top: int = _value(5, "N", "How many texts to show.", min=1),
    column: Column = None,
    weight: float | None = _value(
        None, "WEIGHT", HYBRID_WEIGHT + " 0 leaves BM25 out.", "--hybrid-weight", min=0
    ),
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Search texts by meaning and by words.

    Paragraphs, lines and table rows are ranked by meaning (cosine to the question) and, with the extra
    `search`, by the question's words (BM25: how much of the question a text contains; rare words count more,
    and one common word alone very little). `score` joins both. --json prints whole texts. Embeddings are
    cached, so only new and changed texts are embedded.
    """
    from edgedistill import search_files
    from edgedistill.data import bm25
    from edgedistill.runtime.bundle import load

    name, paths = search_files.arguments(question, places or [])
    opened = load(name, threads=threads)
    request = search_files.Search(paths, question, top, column, bm25.WEIGHT if weight is None else weight)
    result = search_files.search(opened, request, _session(quiet=as_json))
    print_result(result, as_json, search_files.table(result))
    log("\n".join(wrapped(search_files.summary(result))))


@_command("edgedistill status")
def status(as_json: Json = False) -> None:
    """Show versions, processor, extras and caches.

    Also which precision is used on this machine and why, and how long `nano` takes for a short text.
    """
    from edgedistill import status as state

    here = state.status(_session().cache)
    print_result(here, as_json, state.table(here))


@_command("edgedistill verify nano")
def verify(
    name: OneBundle,
    device: RuntimeDevice = "cpu",
    other: str | None = _value(
        None, "BUNDLE", "Check whether embeddings of both bundles may be mixed.", "--with"
    ),
    as_json: Json = False,
) -> None:
    """Verify a bundle on this machine.

    Compares the sha256 of every file with the manifest, and the embeddings of golden texts, in every
    precision, with those stored at export. --with compares the embeddings of two bundles on the same
    sentences.
    """
    from edgedistill.runtime import verify as verification

    result = verification.verify(name, device)
    lines = verification.summary(name, result)
    if other is not None:
        from edgedistill.evaluation import teacher_agreement

        result["with"] = teacher_agreement.beside(name, other)
        lines += f"\nwith {other}: {result['with']['advice']}"
        if not result["with"]["mixable"]:
            raise CheckFailed(lines, result)
    print_result(result, as_json, lines)


@_command("edgedistill serve nano --port 8000 --cors https://example.org")
def serve(
    name: OneBundle,
    host: str = _value("127.0.0.1", "ADDRESS", "0.0.0.0 for all interfaces.", "--host"),
    port: int = _value(8000, "N", "0 for any free one.", "--port", min=0, max=65_535),
    cors: list[str] | None = _value(
        None,
        "ORIGIN",
        "A web page whose scripts may send requests: https://example.org; * for all. Repeatable.",
    ),
    api_key: str | None = _value(
        None, "KEY", "Requests must carry this key. Safer in the environment.", envvar="EDGEDISTILL_API_KEY"
    ),
    model_name: list[str] | None = _value(
        None, "NAME", "Another name that clients may ask for, such as text-embedding-3-small. Repeatable."
    ),
    workers: int = _value(
        1, "N", "Batches embedded at the same time, each with a copy of the bundle.", min=1, max=MOST_THREADS
    ),
    threads: Threads = None,
    device: RuntimeDevice = "cpu",
    batch_tokens: int = _value(256, "N", "Estimated tokens of a batch.", min=1),
    max_body_mb: int = _value(8, "N", "Largest body of a request in MB; beyond it 413.", min=1),
    max_texts: int = _value(2048, "N", "Most texts of a request; beyond it 400.", min=1),
    max_chars: int = _value(100_000, "N", "Most characters of a text; beyond it 400.", min=1),
    queue_seconds: int = _value(
        30, "N", "Longest wait in the queue, at the measured rate; beyond it 429.", min=1
    ),
    timeout: int = _value(60, "N", "Most seconds to answer a request; beyond it 503.", min=1),
    header_timeout: int = _value(
        10, "N", "Most seconds for the headers of a request, also on an idle connection.", min=1
    ),
    stop_timeout: int = _value(30, "N", "Most seconds to finish accepted requests after SIGTERM.", min=1),
) -> None:
    """Serve a bundle over HTTP, with OpenAI's embeddings API.

    POST /v1/embeddings; GET /v1/models, /health and /metrics. After SIGTERM it answers what it has accepted
    and stops. --threads counts for each worker; by default the workers share the processors.
    """
    for needed in ("starlette", "uvicorn", "orjson", "prometheus_client"):
        require(needed, "edgedistill serve", "server")
    if wrong := [origin for origin in cors or () if origin != "*" and "://" not in origin]:
        raise UserError(f"--cors {wrong[0]}: not an origin; give https://example.org, or * for all")
    from edgedistill.serving import server

    limits = server.Limits(
        *(max_body_mb * 1_000_000, max_texts, max_chars, queue_seconds, batch_tokens),
        *(timeout, header_timeout, stop_timeout, tuple(cors or ()), api_key),
        names=tuple(model_name or ()),
    )
    session = Session(device=device, log=typer.echo, threads=threads)
    server.serve(name, host, port, limits, workers, session)


@_command("edgedistill demo --out demo")
def demo(
    out: Path = _value(Path("demo"), "DIR", "Folder for runs, bundles and the report."),
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train, export and measure two small students.

    Takes about six minutes on two cores. The texts are sentences of Python's
    documentation and come with the package, the teacher comes with the extra `demo`: nothing is downloaded.
    """
    files.check_free(out, "--out", overwrite)
    require("torch", "edgedistill demo", "demo")
    from edgedistill import demo as demonstration

    print_result(demonstration.demo(out, _session(quiet=True)), as_json)


@contextmanager
def _written_stdout() -> Iterator[None]:
    """Write what stdout still holds when the block ends: as Python exits, an error could no longer be
    told."""
    try:
        yield
    finally:
        try:
            with border("stdout"):
                sys.stdout.flush()
        except (UserError, OSError):
            _discard(sys.stdout)
            raise


def _discard(stream: TextIO) -> None:
    """Let go what a stream still holds, and all that is written to it from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main() -> None:
    """Run a command and exit: 0 success, 1 a check failed, 2 the user can fix it, 130 interrupted, by Ctrl-C
    or SIGTERM. A bug keeps its traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as a scheduler stops a job
    details = dict[str, Any]()
    arguments = sys.argv[1:]
    if arguments[:1] in ([], ["help"]):
        arguments = [*arguments[1:2], "--help"]
    # torch allocates in pages of 2 MB: a training step with a large embedding table takes little more than
    # half the time
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    sys.stdin, sys.stdout, sys.stderr = (
        stream or open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115
        for stream in (sys.stdin, sys.stdout, sys.stderr)
    )
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal shows what it can; what is stored is UTF-8
        encoding = None if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="replace" if encoding is None else "strict")
    try:
        with border(), _written_stdout():
            try:
                ended = app(arguments, "edgedistill", standalone_mode=False)
            except WRONG_USAGE as error:
                raise _wrong_usage(error) from None
        if ended == INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except (UserError, CheckFailed) as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        code, message = 2 if isinstance(error, UserError) else 1, str(error)
        details = {"problems": getattr(error, "problems", [message]), **error.details}
    except KeyboardInterrupt:
        code, message = INTERRUPTED, "interrupted"
    except (BrokenPipeError, SystemExit) as error:  # the reader is gone, as with `| head`: typer exits then
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        _discard(sys.stdout)
        sys.exit(141)
    else:
        return
    log(message)
    if "--json" in sys.argv:
        with suppress(UserError, OSError), _written_stdout():  # stdout may be what has failed
            print_result({"error": message, **details}, as_json=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
