"""recipe -> run: prepare the data and the student, train stage by stage, write the run folder."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from edgedistill import files, recipe, run
from edgedistill.errors import UserError
from edgedistill.session import QUIET, Session
from edgedistill.students import kinds
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import locate_teacher
from edgedistill.training import checks, prepare, teacher_record, teacher_run
from edgedistill.training import resume as resuming
from edgedistill.training.checkpoint_selection import Selection
from edgedistill.training.finetuning import finetune, finetuning_plan
from edgedistill.training.finetuning.finetuning_plan import FinetuningPlan
from edgedistill.training.finetuning.starting_student import starting_student
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.loop import Loop
from edgedistill.training.metrics_log import MetricsLog, progress_bar
from edgedistill.training.run_in_progress import RunInProgress
from edgedistill.training.stages import distillation_stages


def train(
    spec: recipe.Recipe,
    out: Path,
    session: Session = QUIET,
    resume: bool = False,
    pause_at: int | None = None,
) -> dict[str, Any]:
    """Train a recipe's student and write the run folder `out` atomically; until then the unfinished run is in `out`.partial.

    resume: continue the unfinished run; a finished run of the same recipe is left as it is. pause_at: the step of its first distillation
    stage at which it pauses, to be resumed later; the result is the same as without the pause. Returns the content of run.json.
    Raises UserError: `out` exists, the run to resume is of another recipe, a recipe that does not fit its data. Raises loop.Paused.
    """
    if resume and out.exists() and not run.partial(out).exists():
        return resuming.finished(spec, out, session)
    teachers.flush_denormals()
    partial = resuming.open_folder(spec, out, resume)
    with resuming.removed_unless_checkpointed(partial):
        return _train(spec, out, partial, session, pause_at)


def _train(spec: recipe.Recipe, out: Path, partial: Path, session: Session, pause_at: int | None) -> dict[str, Any]:
    accelerator = accelerator_for(spec, session.device)
    session, started = replace(session, device=accelerator.device.type), time.perf_counter()
    if spec.finetuning is not None and accelerator.num_processes > 1:
        raise UserError("finetune: runs in one process; start it without accelerate launch")
    plan = finetuning_plan.plan(spec, session)  # first, so that what it lacks is reported before the other stages are trained
    if spec.student.kind == "teacher" and plan is None:
        return teacher_run.keep(spec, out, partial, session)
    prepared = None
    if plan is not None and not spec.distilling:
        student = starting_student(spec, plan.stage, session, partial)
    else:
        checks.check_languages(spec)
        prepared = prepare.prepare(spec, session, accelerator, partial)
        student = prepared.student
        finetuning_plan.check_mask(spec, student.tokenizer)
    with progress_bar(session.progress) as bar:
        metrics = MetricsLog(partial / "metrics.jsonl", bar, session.log)
        running = RunInProgress(partial, accelerator, session, metrics, pause_at)
        selected = _distil(spec, prepared, running) if prepared is not None else None
        tuned = _finetune(plan, student, running, selected) if plan is not None else {}
    info = {
        **run.provenance(),
        "seconds": round(time.perf_counter() - started, 1),
        "corpus": teacher_run.about(prepared.texts) if prepared is not None else None,
        "dims": kinds.dims(student.module),
        "parameters": kinds.parameters(student.module),
        "stages": metrics.stages,
        "selected": selected,
        **teacher_record.kept(partial),
        **({"weights": student.origin} if student.origin is not None else {}),
        **({"earlier": list(student.earlier)} if student.earlier else {}),
        **tuned,
    }
    if accelerator.is_main_process:
        _write_run(spec, out, partial, student, info)
        score = f", {selected['suite']} {selected['score']:.4f}" if selected else ""
        session.log(f"{out}: {info['parameters']['total']:,} parameters{score}")
    return info


def _distil(spec: recipe.Recipe, prepared: prepare.Prepared, running: RunInProgress) -> dict[str, Any] | None:
    """Train the student through the stages that distil. Returns the entry `selected` of run.json."""
    selection = Selection(spec.select, prepared.student, running.session.data, running.folder) if spec.select else None
    teachers.flush_denormals()  # again: the first session of onnxruntime in a process may have changed it
    for stage in distillation_stages(spec):
        loop = Loop(stage, prepared, running, selection)
        if not loop.already_done():
            loop.train()
    return selection.selected if selection else None


def _finetune(plan: FinetuningPlan, student: PreparedStudent, running: RunInProgress, selected: dict[str, Any] | None) -> dict[str, Any]:
    """Fine-tune the student and write the classifier's files into the unfinished run. Returns its entries of run.json."""
    module, task = finetune.finetune(plan, student, running, selected)
    finetune.write_classifier(running.folder, module, task["labels"])
    for name in ("dev", "test"):
        if task[name] is not None:
            running.session.log(f"{name}: accuracy {task[name]['accuracy']:.4f}, F1 {task[name]['f1']:.4f}")
    return {"parameters": finetune.parameters(module), "task": task}


def accelerator_for(spec: recipe.Recipe, device: str) -> Accelerator:
    """What a run trains on, in bf16 if its stages ask for that or the machine computes in it. Raises UserError: no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu")
    cpu = device == "cpu" or not torch.cuda.is_available()
    AcceleratorState._reset_state()  # of an earlier run in the same process, whose precision would stay
    half = bool(spec.stages) and teachers.resolve_dtype(spec.stages[0].dtype, device) == torch.bfloat16  # all stages share one
    return Accelerator(mixed_precision="bf16" if half else "no", cpu=cpu)


def _write_run(spec: recipe.Recipe, out: Path, partial: Path, student: PreparedStudent, info: dict[str, Any]) -> None:
    """Write the run folder atomically, and delete the unfinished one."""
    with files.new_folder(out) as folder:
        (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
        run.write_student(folder, student.shape, student.module.state_dict())
        if student.shape["kind"] == "teacher":
            source = locate_teacher.locate(spec.teacher)
            shutil.copytree(source, folder / "model", ignore=shutil.ignore_patterns(*locate_teacher.OTHER_FORMATS, ".*"))
        for name in ("tokenizer", "targets"):
            if (partial / name).exists():
                shutil.copytree(partial / name, folder / name)
        for name in ("metrics.jsonl", "task.json", "head.safetensors"):
            if (partial / name).exists():
                shutil.copy(partial / name, folder)
        files.write_json(folder / "run.json", info)
    shutil.rmtree(partial)
