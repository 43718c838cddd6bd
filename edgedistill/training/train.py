"""recipe -> run. The method on one page: `train` opens, trains stage by stage and records; `take_step` is one
step of the optimizer.

Each part has its file: open_recipe (teacher, texts, student), training_data (targets, batches),
    stage_in_progress (module, optimizers,
selection and checkpoints of a stage). A loss is in objectives/. Everything that a step reads is a
function of the recipe's seed and the number of the step, or is in the checkpoint: so a run that was killed
and resumed ends with the bytes of one that was not.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from edgedistill import files, objectives, recipe, resolve, run
from edgedistill.errors import UserError
from edgedistill.session import QUIET, Session
from edgedistill.students import kinds
from edgedistill.teacher import encoder as teachers
from edgedistill.training import open_recipe, teacher_record, teacher_run, training_data
from edgedistill.training import resume as resuming
from edgedistill.training.checkpoint_selection import Selection
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.metrics_log import MetricsLog, progress_bar
from edgedistill.training.stage_in_progress import RunInProgress, StageInProgress
from edgedistill.training.stages import distillation_stages


def train(
    spec: recipe.Recipe,
    out: Path,
    session: Session = QUIET,
    resume: bool = False,
    pause_at: int | None = None,
) -> dict[str, Any]:
    """Train a recipe's student and write the run folder `out` atomically; until then the unfinished run is in
    `out`.partial.

    resume: continue the unfinished run; a finished run of the same recipe is left as it is. pause_at: the
        step of its first distillation
    stage at which it pauses, to be resumed later; the result is the same as without the pause. Returns the
    content of run.json.
    Raises UserError: `out` exists, the run to resume is of another recipe, a recipe that does not fit its
        data. Raises Paused.
    """
    if resume and out.exists() and not resolve.unfinished_run(out).exists():
        return resuming.finished(spec, out, session)
    if spec.finetuning is not None:  # the one door to classifiers, which have a room beside the line
        from edgedistill.classification import finetune

        return finetune.train(spec, out, session, resume)
    started = time.perf_counter()
    teachers.flush_denormals()
    with resuming.unfinished(spec, out, resume) as partial:
        accelerator = accelerator_for(spec, session.device)
        session, data, selection = replace(session, device=accelerator.device.type), None, None
        # Teacher, texts, student and targets: what one process caches, the others find.
        with accelerator.main_process_first():
            opened = open_recipe.open_recipe(spec, session, partial)
            if spec.student.kind == "teacher":
                return teacher_run.keep(opened, out, partial, session)
            if opened.texts is not None:
                data = training_data.build(opened, session, partial)
        with progress_bar(session.progress) as bar:
            metrics = MetricsLog(partial / "metrics.jsonl", bar, session.log)
            running = RunInProgress(partial, accelerator, session, metrics, pause_at)
            if data is not None and spec.select is not None:
                selection = Selection(spec.select, opened.student, session.data, partial)
            # again: the first session of onnxruntime in a process may have changed it
            teachers.flush_denormals()
            for numbered in distillation_stages(spec):
                assert data is not None
                stage = StageInProgress(numbered, opened.student, data, running, selection)
                if stage.already_done():
                    continue
                stage.set_up()
                while not stage.ended:
                    stage.pause_where_asked()
                    stage.follow(float(take_step(stage)))
                stage.hand_over()
            selected = selection.selected if selection is not None else None
        return _record(opened, running, selected, out, started)


def take_step(stage: StageInProgress) -> Tensor:
    """One optimizer step of a stage. Returns the loss of its batch, ()."""
    views, targets = stage.batch()
    for optimizer in stage.optimizers:
        optimizer.zero_grad()
    stage.set_learning_rate()
    loss: Tensor = stage.distributed(
        views, targets
    )  # the student embeds the views, the objective compares them with the targets
    stage.accelerator.backward(loss)
    if stage.spec.clip:
        stage.accelerator.clip_grad_norm_(stage.module.parameters(), stage.spec.clip)
    for optimizer in stage.optimizers:
        optimizer.step()
    if targets is not None:
        objectives.update_queues(
            stage.module.objective, targets
        )  # after the loss: a text is no negative of itself
    if stage.average:
        stage.average.update(stage.student, stage.step)
    stage.step += 1
    return loss.detach()


def accelerator_for(spec: recipe.Recipe, device: str) -> Accelerator:
    """What a run trains on, in bf16 if its stages ask for that or the machine computes in it.

    Raises UserError for no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu")
    cpu = device == "cpu" or not torch.cuda.is_available()
    AcceleratorState._reset_state()  # of an earlier run in the same process, whose precision would stay
    half = (
        bool(spec.stages) and teachers.resolve_dtype(spec.stages[0].dtype, device) == torch.bfloat16
    )  # all stages share one
    return Accelerator(mixed_precision="bf16" if half else "no", cpu=cpu)


def _record(
    opened: open_recipe.Opened,
    running: RunInProgress,
    selected: dict[str, Any] | None,
    out: Path,
    started: float,
) -> dict[str, Any]:
    """Write the run folder. Returns the content of run.json. started: when training began, by
    `time.perf_counter`."""
    student, spec, texts = opened.student, opened.spec, opened.texts
    info = {
        **run.provenance(),
        "seconds": round(time.perf_counter() - started, 1),
        "corpus": teacher_run.about(texts) if texts is not None else None,
        "dims": kinds.dims(student.module),
        "parameters": kinds.parameters(student.module),
        "stages": running.metrics.stages,
        "selected": selected,
        **teacher_record.kept(running.folder),
        **origins(student),
    }
    if running.accelerator.is_main_process:
        write_run(spec, student, running.folder, out, info)
        score = f", {selected['suite']} {selected['score']:.4f}" if selected else ""
        running.session.log(f"{out}: {info['parameters']['total']:,} parameters{score}")
    return info


def origins(student: PreparedStudent) -> dict[str, Any]:
    """The entries of run.json about where a student comes from."""
    origin = {"weights": student.origin} if student.origin is not None else {}
    return origin | ({"earlier": list(student.earlier)} if student.earlier else {})


def write_run(
    spec: recipe.Recipe,
    student: PreparedStudent,
    partial: Path,
    out: Path,
    info: dict[str, Any],
    more: tuple[str, ...] = (),
) -> None:
    """Write the run folder atomically, and delete the unfinished one. `more` files are copied from that."""
    with files.new_folder(out) as folder:
        (folder / "recipe.yaml").write_text(recipe.dump(spec), encoding="utf-8")
        run.write_student(folder, student.shape, student.module.state_dict())
        if student.shape["kind"] == "teacher":
            source = resolve.teacher_files(spec.teacher)
            shutil.copytree(
                source, folder / "model", ignore=shutil.ignore_patterns(*resolve.OTHER_FORMATS, ".*")
            )
        for name in ("tokenizer", "targets"):
            if (partial / name).exists():
                shutil.copytree(partial / name, folder / name)
        for name in ("metrics.jsonl", *more):
            if (partial / name).exists():
                shutil.copy(partial / name, folder)
        files.write_json(folder / "run.json", info)
    shutil.rmtree(partial)
