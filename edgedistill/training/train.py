"""recipe -> run. The method on one page: `train` opens, trains stage by stage and records; `take_step` is one
step of the optimizer.

Each part has its file: open_recipe (teacher, texts, student), training_data (targets, batches),
stage_in_progress (module, optimizers, selection and checkpoints of a stage), record. A loss is in
objectives/. Everything that a step reads is a function of the recipe's seed and the number of the step, or
is in the checkpoint: so a run that was killed and resumed ends with the bytes of one that was not.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, distributed

from edgedistill import objectives, recipe, resolve
from edgedistill.files import Json
from edgedistill.session import QUIET, Session, check_one_process, silent
from edgedistill.teacher import encoder as teachers
from edgedistill.training import (
    cache_passes,
    checkpoint,
    finetuning,
    open_recipe,
    processes,
    record,
    training_data,
)
from edgedistill.training import resume as resuming
from edgedistill.training.checkpoint_selection import Selection
from edgedistill.training.record import MetricsLog, progress_bar
from edgedistill.training.stage_in_progress import RunInProgress, StageInProgress, stages_done
from edgedistill.training.trained_module import Accelerator


def train(
    spec: recipe.Recipe,
    out: Path,
    session: Session = QUIET,
    resume: bool = False,
) -> Json:
    """Train a recipe's student and write the run folder `out` atomically; until then the unfinished run is in
    `out`.partial.

    With `resume` an unfinished run continues, and a finished run of the same recipe is left as it is. Returns
    the content of run.json. Raises UserError where `out` exists, where the run to resume is of another
    recipe, and for a recipe that does not fit its data. Processes that torchrun or accelerate launch has
    started train as one, see `processes`.
    """
    if resume and out.exists():
        return resuming.finished(spec, out, session)
    if spec.finetuning is not None:
        check_one_process("train of a recipe with a finetune stage")
    started = time.perf_counter()
    teachers.flush_denormals()
    accelerator = accelerator_for(spec, session.device)
    session = replace(session, device=accelerator.device.type)
    with (
        processes.joined(session.device) as joined,
        resuming.unfinished(spec, out, resume, joined) as partial,
    ):
        accelerator = accelerator._replace(processes=joined)
        if joined.number:
            session = replace(session, log=silent, progress=False)
        with joined.first_alone(partial, resolve.unfinished_run(out)):
            opened = open_recipe.open_recipe(spec, session, partial)
        if joined.count > 1:
            share = joined.number, joined.count
            for work in [
                *cache_passes.passes(opened, session),
                *cache_passes.token_passes(opened, session),
            ]:
                work.run(share)
            distributed.barrier()
        taught: Json = {}
        if spec.distilling or spec.finetuning is None:
            taught = {"teachers": record.teachers(spec, opened.models)}
        resuming.check_inputs(opened, taught, partial)
        # The teacher embeds the texts, or its cache is read; its embeddings are reduced to targets, the texts
        # become tokens, and both are put into batches. What the student still lacks is fitted on them.
        with joined.first_alone(partial, resolve.unfinished_run(out)):
            student, batches = training_data.build(opened, session, partial)
        with progress_bar(session.progress) as bar:
            metrics = MetricsLog(partial / "metrics.jsonl", bar, session.log)
            resumed = checkpoint.newest(partial)
            running = RunInProgress(partial, accelerator, session, metrics, resumed)
            selection = None
            if spec.distilling and spec.select is not None:
                selection = Selection(spec.select, student, session.data, partial)
                running.selections.append(selection)
            # Again: the first session of onnxruntime in a process may have changed it.
            teachers.flush_denormals()
            distilling = zip(opened.stages, batches, strict=True)
            # a stage, what it reads, and what selects its weights
            ahead = [(stage, rows, selection) for (stage, *_), rows in distilling]
            fine = None
            if opened.labelled is not None:
                rows, fine = finetuning.prepared(opened.labelled, student, running)
                ahead += [(attempt, rows, fine) for attempt in opened.labelled.attempts]
            done = stages_done(student, running)
            for stage, rows, selects in ahead[done:]:
                trained = StageInProgress(stage, student, rows, running, selects)
                while not trained.ended:
                    trained.follow(float(take_step(trained)))
                trained.hand_over()
            selected = selection.selected if selection is not None else None
            labelled = {} if fine is None else fine.finish(student, running)
        info = {
            **record.provenance(student, opened.texts, started),
            "stages": metrics.stages,
            "selected": selected,
            **taught,
            **labelled,
        }
        if joined.number == 0:
            record.write_run(spec, student, partial, out, info)
    score = f", {selected['suite']} {selected['score']:.4f}" if selected else ""
    session.log(f"{out}: {info['dims']} dimensions, {info['parameters']['total']:,} parameters{score}")
    return info


def take_step(stage: StageInProgress) -> Tensor:
    """One optimizer step of a stage. Returns the loss of its batch, ()."""
    views, targets = stage.batch()
    for optimizer in stage.optimizers:
        optimizer.zero_grad()
    stage.set_learning_rate()
    loss = stage.loss(views, targets)
    loss.backward()
    stage.module.processes.sum_gradients(stage.module, stage.student)
    if stage.spec.clip:
        torch.nn.utils.clip_grad_norm_(stage.module.parameters(), stage.spec.clip)
    for optimizer in stage.optimizers:
        optimizer.step()
    # After the loss: a text is no negative of itself.
    objectives.update_queues(stage.module.objective, targets)
    stage.step += 1
    return loss.detach()


def accelerator_for(spec: recipe.Recipe, device: str) -> Accelerator:
    """What a run trains on, in bf16 if its stages ask for that or the machine computes in it.

    Raises UserError where there is no such device.
    """
    kind = teachers.device_of(device)
    # All stages share one precision.
    bf16 = bool(spec.stages) and teachers.resolve_dtype(spec.stages[0].dtype, device) == torch.bfloat16
    return Accelerator(torch.device(kind), bf16)
