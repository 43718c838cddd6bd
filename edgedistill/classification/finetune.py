"""The stage that trains on labels: a classifier head behind the student, and the student with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from edgedistill import files
from edgedistill.classification.finetuning_plan import FinetuningPlan, check_batch
from edgedistill.classification.learning_rate_trials import Tuning
from edgedistill.classification.training_rows import training_rows
from edgedistill.students import classifier, kinds
from edgedistill.students.classifier import Classifier
from edgedistill.training import plain_attention
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.stage_in_progress import RunInProgress


def finetune(
    plan: FinetuningPlan, student: PreparedStudent, run: RunInProgress, selected: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Train on the task, keep the weights that score best on dev, measure them once on test; write the
    classifier's files.

    selected: what the stages before have selected; the checkpoints carry it on. Returns the entries
        `parameters` and `task` of run.json.
    """
    rows = training_rows(plan, student, run)
    check_batch(plan.stage, len(rows.tokens))
    torch.manual_seed(plan.stage.seed)
    module = new_classifier(plan, student.module).to(run.accelerator.device)
    plain_attention.use_where_faster(student.module, run.accelerator)
    task = Tuning(plan, module, rows, student, run, selected).train()
    _write_classifier(run.folder, module, task["labels"])
    for name in ("dev", "test"):
        if task[name] is not None:
            run.session.log(f"{name}: accuracy {task[name]['accuracy']:.4f}, F1 {task[name]['f1']:.4f}")
    return {"parameters": parameters(module), "task": task}


def new_classifier(plan: FinetuningPlan, student: torch.nn.Module) -> Classifier:
    """A randomly initialized head for the plan's task behind a student."""
    stage = plan.stage.spec
    return Classifier(
        student, kinds.dims(student), len(plan.task.labels), plan.pairs, stage.hidden, stage.dropout
    )


def _write_classifier(folder: Path, module: Classifier, labels: list[str]) -> None:
    """Write the files that make a run a classifier's: task.json and head.safetensors."""
    files.write_json(
        folder / "task.json", {"labels": labels, "pair": module.pair, "hidden": module.hidden.out_features}
    )
    with files.new_file(folder / "head.safetensors") as temporary:
        save_file(
            {name: value.detach().cpu().contiguous() for name, value in module.head_state().items()},
            temporary,
        )


def parameters(module: Classifier) -> dict[str, int]:
    """Numbers of parameters; those of the classifier's layers count as `head`."""
    return classifier.parameters(kinds.parameters(module.encoder), module)
