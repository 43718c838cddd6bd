"""recipe -> run: corpus, teacher vectors, student, then one loop per stage."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from edgedistill import files, recipe, run
from edgedistill.data import parallel
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.session import QUIET, Session
from edgedistill.students import kinds
from edgedistill.teacher import encoder as teachers
from edgedistill.training import loop as loops
from edgedistill.training import prepare, teacher_run
from edgedistill.training.finetuning import finetune


def train(
    spec: recipe.Recipe,
    out: Path,
    session: Session = QUIET,
    resume: bool = False,
) -> dict[str, Any]:
    """Train a recipe's student and write the run folder `out`; it appears when it is whole, until then `out`.partial grows.

    Returns what run.json holds. With `resume` a finished run of the same recipe is left as it is.
    Raises UserError: `out` exists, a run to resume that is another recipe's, bad data.
    """
    if resume and out.exists() and not run.partial(out).exists():
        return finished(spec, out, session)
    teachers.no_denormals()
    partial = _open_partial(spec, out, resume)
    with _forgotten_unless_begun(partial):
        return _train(spec, out, partial, session)


def _train(spec: recipe.Recipe, out: Path, partial: Path, session: Session) -> dict[str, Any]:
    accelerator = accelerator_for(spec, session.device)
    session = replace(session, device=accelerator.device.type)
    started = time.perf_counter()
    planned: finetune.Planned | None = None
    if spec.finetuning is not None:  # looked at first: what is missing there is not to be found behind the other stages
        if accelerator.num_processes > 1:
            raise UserError("finetune: runs in one process; start it without accelerate launch")
        planned = finetune.plan(spec, session)
    if spec.student.kind == "teacher" and planned is None:
        return teacher_run.keep(spec, out, partial, session, accelerator)
    if planned is not None and not spec.distilling:
        return _only_finetune(spec, planned, out, partial, session, accelerator)
    check_languages(spec)
    made = prepare.prepare(spec, session, accelerator, partial)
    finetune.check_mask(spec, made.words)
    texts, student = made.texts, made.student
    selection = loops.Selection(spec.select, session.data, made.words, made.shape["max_tokens"], partial) if spec.select else None
    with loops.progress(session.progress) as bar:
        log = loops.MetricsLog(partial / "metrics.jsonl", bar, session.log)
        for number, stage in enumerate(spec.distilling):
            loop = loops.Loop(stage, number, spec.seed, made, accelerator, partial, selection, log)
            if not loop.already_done():
                loop.go()
        best = selection.best if selection and selection.best["stage"] else None
        start = finetune.Start(student, made.shape, made.words)
        tuned = _finetuned(spec, start, planned, accelerator, partial, best, log) if planned is not None else {}
    info = {
        **run.made_by(),
        "seconds": round(time.perf_counter() - started, 1),
        "corpus": teacher_run.about(texts),
        "dims": kinds.width(student),
        "parameters": kinds.count(student),
        "stages": log.stages,
        "selected": best,
        **tuned,
    }
    if accelerator.is_main_process:
        _finish(spec, out, partial, made.shape, student, info)
        session.log(
            f"{out}: {info['parameters']['total']:,} parameters"
            + (f", {selection.name} {selection.best['score']:.4f}" if selection and selection.best["stage"] else "")
        )
    return info


def _finetuned(
    spec: recipe.Recipe,
    start: finetune.Start,
    planned: finetune.Planned,
    accelerator: Accelerator,
    partial: Path,
    best: dict[str, Any] | None,
    log: loops.MetricsLog,
) -> dict[str, Any]:
    """Fine-tune in place and leave the classifier's files in `partial`. Returns what run.json says of it."""
    module, told = finetune.finetune(spec, start, planned, accelerator, partial, best, log)
    finetune.write(partial, module, told["labels"])
    for name in ("dev", "test"):
        if told[name] is not None:
            log.log(f"{name}: accuracy {told[name]['accuracy']:.4f}, F1 {told[name]['f1']:.4f}")
    return {"parameters": finetune.parameters(module), "task": told}


def _only_finetune(
    spec: recipe.Recipe,
    planned: finetune.Planned,
    out: Path,
    partial: Path,
    session: Session,
    accelerator: Accelerator,
) -> dict[str, Any]:
    """A run whose one stage learns from labels: nothing is distilled, the teacher embeds nothing."""
    started = time.perf_counter()
    start = finetune.begin(spec, session, partial)
    with loops.progress(session.progress) as bar:
        log = loops.MetricsLog(partial / "metrics.jsonl", bar, session.log)
        tuned = _finetuned(spec, start, planned, accelerator, partial, None, log)
    seconds = round(time.perf_counter() - started, 1)
    nothing: dict[str, Any] = {"corpus": None, "selected": None}
    info = {**run.made_by(), "seconds": seconds, "dims": kinds.width(start.student), **nothing, "stages": log.stages, **tuned}
    _finish(spec, out, partial, start.shape, start.student, info)
    session.log(f"{out}: {info['parameters']['total']:,} parameters")
    return info


def finished(spec: recipe.Recipe, out: Path, session: Session) -> dict[str, Any]:
    """What run.json holds of a run that is there already. Raises UserError for one of another recipe."""
    found = run.open_run(out)
    if recipe.dump(found.recipe) != recipe.dump(spec):
        raise UserError(f"{out}: was made of another recipe; delete it, or rename the recipe")
    session.log(f"{out}: finished already")
    return found.info


def _open_partial(spec: recipe.Recipe, out: Path, resume: bool) -> Path:
    partial = run.partial(out)
    if out.exists():
        raise UserError(f"{out}: exists already; choose another --out, or delete it")
    written = partial / "recipe.yaml"
    if partial.exists() and not resume:
        raise UserError(f"{partial}: an unfinished run; go on with --resume, or delete it")
    if resume and not written.exists():
        raise UserError(f"{partial}: nothing to resume; leave --resume out")
    text = recipe.dump(spec)
    if resume and written.read_text(encoding="utf-8") != text:
        what = _difference(written.read_text(encoding="utf-8"), text)
        raise UserError(f"{partial}: was begun with another recipe ({what}); give that one, or another --out")
    partial.mkdir(parents=True, exist_ok=True)
    files.write_text(written, text)
    return partial


@contextmanager
def _forgotten_unless_begun(partial: Path) -> Iterator[None]:
    """Where the user has to mend something before the first step is done, leave nothing that the mended recipe would stumble over."""
    try:
        yield
    except UserError:
        if not (partial / "checkpoints").exists():
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _difference(before: str, now: str) -> str:
    """The first lines that differ between two recipes."""
    for old, new in zip(before.splitlines(), now.splitlines(), strict=False):
        if old != new:
            return f"it says {old.strip()!r}, now {new.strip()!r}"
    return "its length differs"


def accelerator_for(spec: recipe.Recipe, device: str) -> Accelerator:
    """What a run trains on, in bf16 where its stages ask for that or the machine computes in it. Raises UserError: no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu")
    cpu = device == "cpu" or not torch.cuda.is_available()
    AcceleratorState._reset_state()  # of a run before this one in the same process: its precision would stay
    half = bool(spec.stages) and teachers.dtype(spec.stages[0].dtype) == torch.bfloat16  # all stages share one
    return Accelerator(mixed_precision="bf16" if half else "no", cpu=cpu)


def _finish(spec: recipe.Recipe, out: Path, partial: Path, shape: dict[str, Any], student: nn.Module, info: dict[str, Any]) -> None:
    """The run folder, whole; then the partial one goes."""
    with files.new_folder(out) as folder:
        (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
        run.write_student(folder, shape, student.state_dict())
        if shape["kind"] == "teacher":
            source = teachers.locate(spec.teacher)
            shutil.copytree(source, folder / "model", ignore=shutil.ignore_patterns(*teachers.OTHER_FORMATS, ".*"))
        for name in ("tokenizer", "targets"):
            if (partial / name).exists():
                shutil.copytree(partial / name, folder / name)
        for name in ("metrics.jsonl", "task.json", "head.safetensors"):
            if (partial / name).exists():
                shutil.copy(partial / name, folder)
        files.write_json(folder / "run.json", info)
    shutil.rmtree(partial)


def check_languages(spec: recipe.Recipe) -> None:
    """Raise UserError where a language of the pairs is in no task (en-de, ar-ar) of the suite that selects, and `select.without` does not
    say so. A suite whose tasks name none of the languages is taken to be English."""
    if spec.select is None or not isinstance(spec.corpus, recipe.Parallel):
        return
    of = {each: re.split(r"[^a-z]+", each.lower())[0] for each in parallel.languages(spec.corpus)}  # zh-CN is zh
    known = scoring.languages(spec.select.suite) & set(of.values()) or {"en"}
    unseen = [each for each in of if of[each] not in known and each not in spec.select.without]
    if unseen:
        fact = f"{', '.join(unseen)}: no task of the suite {spec.select.suite} is in these languages, so nothing selects for them"
        raise UserError(f"corpus.pairs: {fact}; choose another suite, or say that it is meant with select.without: [{', '.join(unseen)}]")
