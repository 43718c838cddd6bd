"""What a recipe costs, before training: parameters, size, latency, texts to embed, training samples, and about how long it takes."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from edgedistill import recipe
from edgedistill.evaluation.tables import plain
from edgedistill.planning import training_time
from edgedistill.planning.recipe_inspection import Inspected, inspect, inspect_all
from edgedistill.planning.size_and_latency import TOKENS, size_and_latency
from edgedistill.session import Session
from edgedistill.students import kinds, recurrent
from edgedistill.students.output import own
from edgedistill.training.finetuning import finetune
from edgedistill.training.finetuning.finetuning_plan import FinetuningPlan


def costs(specs: list[recipe.Recipe], session: Session) -> list[dict[str, Any]]:
    """The costs of several recipes, as `cost`, with their estimated training time. Warnings go to the log.

    Raises one UserError with the problems of all of them before anything is measured; see `recipe_inspection.inspect`.
    """
    found = []
    for inspected in inspect_all(specs, session):
        for warning in inspected.warnings:
            session.log(f"warning: {inspected.spec.name}: {warning}" if len(specs) > 1 else f"warning: {warning}")
        found.append(_cost(inspected, session, timed=True))
    return found


def cost(spec: recipe.Recipe, session: Session) -> dict[str, Any]:
    """The cost of one recipe, without the training time. The corpus is built and cached; nothing is embedded or trained.

    `size_bytes` and `p50_ms` are of the graph of the initial student, in every precision; see `size_and_latency`.
    Raises UserError as `recipe_inspection.inspect`.
    """
    return _cost(inspect(spec, session), session, timed=False)


def _cost(inspected: Inspected, session: Session, timed: bool) -> dict[str, Any]:
    spec, student, corpus = inspected.spec, inspected.student, inspected.corpus
    found: dict[str, Any] = {"name": spec.name, "parameters": kinds.parameters(student)}
    if inspected.shape is not None:
        found["max_tokens"] = inspected.shape["max_tokens"]
    if isinstance(bare := own(student), recurrent.RecurrentStudent):
        found["unit"] = {"layers": len(bare.model.encoder.layer), "times": bare.model.encoder.times}
    found["size_bytes"], found["p50_ms"] = size_and_latency(student, len(inspected.tokenizer))
    if spec.finetuning is not None and inspected.finetuning is not None:
        found |= _finetuning(spec.finetuning, student, inspected.finetuning)
    missing = training_time.texts_to_embed(inspected, session)
    if corpus is not None:
        found["texts"] = {"train": corpus.training_count, "held_out": len(corpus.held_out)}
        found["teacher_texts"] = sum(each.missing for each in missing)
    if spec.stages:
        found["training_samples"] = training_time.training_samples(inspected)
    if timed and (spec.stages or missing):
        found["estimated_seconds"] = training_time.estimate_seconds(inspected, missing, session)
    return found | {"warnings": inspected.warnings}


def _finetuning(stage: recipe.Finetune, student: Any, planned: FinetuningPlan) -> dict[str, Any]:
    """The parameters with the classifier head, and the labelled rows; `transfer` is the most that the transfer set can hold."""
    task = planned.task
    module = finetune.new_classifier(planned, student)
    labelled = {"train": len(task.train.items), "dev": len(task.dev.items)}
    if stage.augment is not None:
        labelled["transfer"] = planned.rows
    return {"parameters": finetune.parameters(module), "labelled": labelled}


def table(found: dict[str, Any]) -> str:
    """The cost of a recipe as a table."""
    sheet = Table(title=found["name"], title_justify="left", show_header=False)
    for label, value in _rows(found):
        sheet.add_row(label, value)
    lines = [plain(sheet)]
    if "estimated_seconds" in found:
        seconds = found["estimated_seconds"]
        total, *parts = (duration(each) for each in (sum(seconds.values()), seconds["teacher"], seconds["student"]))
        about = "" if total.startswith("less") else "about "
        lines.append(f"estimated training time on this machine: {about}{total} (teacher {parts[0]}, student {parts[1]})")
    return "\n".join(lines)


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    parameters = found["parameters"]
    shares = " + ".join(f"{parameters[name]:,} {name}" for name in ("embedding", "encoder", "head"))
    rows = [("parameters", f"{parameters['total']:,} = {shares}")]
    if "words" in parameters:
        rows.append(("of the embedding", f"{parameters['words']:,} token embedding table and its projection"))
    if "unit" in found:
        layers, times = found["unit"]["layers"], found["unit"]["times"]
        rows.append(("shared layer block", f"{layers} layer{'s' if layers > 1 else ''}, repeated {times} times"))
    if "max_tokens" in found:
        rows.append(("max input tokens", f"{found['max_tokens']}; longer texts are truncated"))
    rows.append(("graph", "  ".join(f"{p} {size / 1e6:.2f} MB" for p, size in found["size_bytes"].items())))
    latencies = "  ".join(f"{p} {ms:.2f} ms" for p, ms in found["p50_ms"].items())
    rows.append(("p50, initial student", f"{latencies}  (a single text of {TOKENS} tokens)"))
    if "texts" in found:
        rows.append(("texts", f"{found['texts']['train']:,} to train on, {found['texts']['held_out']:,} held out"))
        rows.append(("teacher texts to embed", f"{found['teacher_texts']:,}"))
    if "labelled" in found:
        labelled = found["labelled"]
        more = f", at most {labelled['transfer']:,} with the transfer set" if "transfer" in labelled else ""
        rows.append(("labelled rows", f"{labelled['train']:,} to train on{more}, {labelled['dev']:,} to select by"))
    if "training_samples" in found:
        rows.append(("training samples", f"{found['training_samples']:,}"))
    return rows


def duration(seconds: float) -> str:
    """Rounded for people: less than 1 s, 40 s, 12 min, 3.5 h."""
    if seconds < 1:
        return "less than 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
