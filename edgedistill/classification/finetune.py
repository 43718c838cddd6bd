"""recipe -> run, where the last stage fine-tunes on a labelled task. The line trains the student; then a
classifier head is trained behind it, and the student with it.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from edgedistill import files, recipe, resolve, run
from edgedistill.classification import classifier, transfer_set, tuning
from edgedistill.classification.classifier import Classifier
from edgedistill.classification.labelled_rows import (
    ItemTokens,
    LabelledTokens,
    TrainingRows,
    digest,
    logits,
)
from edgedistill.data import labelled_tasks
from edgedistill.data.labelled_tasks import LabelledRows, LabelledTask
from edgedistill.errors import Problems, UserError
from edgedistill.session import Session
from edgedistill.students import kinds
from edgedistill.teacher import tokenizer_files
from edgedistill.training import checkpoint, record
from edgedistill.training import open_recipe as line_recipes
from edgedistill.training import resume as resuming
from edgedistill.training import train as line
from edgedistill.training.initial_student import finished_student
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.open_recipe import Opened
from edgedistill.training.record import MetricsLog, progress_bar
from edgedistill.training.stage_in_progress import RunInProgress
from edgedistill.training.stages import NumberedStage, stage_seed, steps
from edgedistill.training.trained_module import use_plain_attention

# Entries of run.json that the stages before decide.
FROM_THE_LINE = ("corpus", "selected", "teachers", "weights", "earlier")


@dataclass(frozen=True)
class LabelledStage:
    """A fine-tuning stage and what it names, opened.

    It starts from the student of the run `start`, and the run `teacher` labels its rows, where it names them.
    The tagger gives the parts of speech for its transfer set, where it has one. It trains on so many rows;
    with a transfer set, that is the most there can be.
    """

    stage: NumberedStage[recipe.Finetune]
    task: LabelledTask
    start: run.Run | None
    teacher: run.Run | None
    tagger: transfer_set.Tagger | None
    rows: int

    @property
    def spec(self) -> recipe.Finetune:
        return self.stage.spec

    @property
    def samples(self) -> int:
        """How many texts training embeds, at all learning rates."""
        rates = len(tuning.learning_rates(self.spec))
        return steps(self.spec, self.rows) * self.spec.batch * len(self.spec.task.texts) * rates

    def new_classifier(self, student: torch.nn.Module) -> Classifier:
        """A randomly initialized head for the task behind a student."""
        spec, pair = self.spec, len(self.spec.task.texts) == 2
        return Classifier(
            student, kinds.dims(student), len(self.task.labels), pair, spec.hidden, spec.dropout
        )


def open_recipe(
    spec: recipe.Recipe, session: Session, folder: Path | None = None
) -> tuple[Opened, LabelledStage]:
    """Return what the line opens of a recipe without its fine-tuning stage, and that stage.

    The folder is that of the unfinished run, as for the line's `open_recipe`. Raises one UserError with all
    problems of the task and of the stages before it.
    """
    problems, labelled, opened = Problems(), None, None
    stages = spec.distilling
    corpus = spec.corpus if spec.reads_corpus else None
    before = spec.model_copy(update={"stages": stages, "corpus": corpus})
    with problems.collect():
        labelled = _open_stage(spec, session)
    if spec.finetuning is not None and spec.finetuning.start is None:
        with problems.collect():
            opened = line_recipes.open_recipe(before, session, folder)
    problems.raise_any()
    assert labelled is not None
    if opened is None:
        assert labelled.start is not None
        opened = Opened(before, None, None, [], _started(labelled.start))
    elif spec.student.kind == "teacher":
        tokenizer = tokenizer_files.from_the_start(opened.student.tokenizer)
        opened = replace(opened, student=replace(opened.student, tokenizer=tokenizer))
    _mask_token(labelled, opened.student.tokenizer)
    return opened, labelled


def _open_stage(spec: recipe.Recipe, session: Session) -> LabelledStage:
    """Raises UserError where something that the stage names is missing or does not fit: rows, a start, the
    task's teacher, a tagger, a batch."""
    assert spec.finetuning is not None
    number = len(spec.stages) - 1
    stage = NumberedStage(spec.finetuning, number, stage_seed(spec.seed, number))
    place, section = stage.place, stage.spec
    start = _open_start(spec, Path(section.start), f"{place}.start") if section.start is not None else None
    task = labelled_tasks.read_task(section.task, session.data, spec.seed, section.fraction, f"{place}.task")
    teacher, tagger, rows = None, None, len(task.train.items)
    if section.teacher is not None:
        teacher = _open_teacher(section.teacher, task, f"{place}.teacher")
    if section.augment is not None:
        tagger = transfer_set.tagger(section.augment, f"{place}.augment")
        rows = transfer_set.most_rows(section.augment, task.train.items)
    _check_batch(stage, rows)
    return LabelledStage(stage, task, start, teacher, tagger, rows)


def _open_start(spec: recipe.Recipe, folder: Path, place: str) -> run.Run:
    """The finished run whose student the recipe starts from. Raises UserError where that student is not the
    recipe's."""
    opened = run.open_run(folder, place)
    if opened.recipe.student != spec.student:
        raise UserError(
            f"{folder}: its student is not this recipe's; give both the same `student`, or another start"
        )
    if opened.shape.get("blocks"):
        raise UserError(
            f"{folder}: a student of split teachers, whose blocks a classifier cannot use; choose another "
            "start"
        )
    return opened


def _open_teacher(spec: recipe.TaskTeacher, task: LabelledTask, place: str) -> run.Run:
    """The run that labels a task's rows. Raises UserError where it was not fine-tuned, or on another task."""
    opened = run.open_run(spec.run, f"{place}.run")
    if not opened.labels:
        raise UserError(
            f"{place}: {spec.run} was not fine-tuned and has no labels; give a run whose last stage is "
            "finetune"
        )
    pair = classifier.head_shape(opened)["pair"]
    if opened.labels != task.labels or pair != (len(task.train.items[0]) == 2):
        of_run = f"{', '.join(opened.labels)} for {'pairs' if pair else 'texts'}"
        raise UserError(
            f"{place}: {spec.run} has the labels {of_run}, this task {', '.join(task.labels)}; give a "
            "teacher of this task"
        )
    return opened


def _check_batch(stage: NumberedStage[recipe.Finetune], rows: int) -> None:
    if stage.spec.batch > rows:
        raise UserError(
            f"{stage.place}.batch: {stage.spec.batch:,} of a task of {rows:,} training rows; lower it"
        )


def _mask_token(labelled: LabelledStage, tokenizer: PreTrainedTokenizerBase) -> str:
    """What replaces a masked word. Raises UserError where words are masked and the tokenizer has no mask
    token."""
    augment, mask = labelled.spec.augment, tokenizer.mask_token
    if augment is not None and augment.mask and mask is None:
        raise UserError(
            f"{labelled.stage.place}.augment.mask: the student's tokenizer has no mask token; set mask: 0, "
            "or choose another tokenizer"
        )
    return str(mask)


def _started(start: run.Run) -> PreparedStudent:
    """The student of a finished run, which fine-tuning goes on with."""
    whole = start.model_folder if start.kind == "teacher" else None
    return PreparedStudent(
        start.student(),
        start.shape,
        start.tokenizer(),
        earlier=finished_student.earlier(start),
        model_folder=whole,
    )


def train(spec: recipe.Recipe, out: Path, session: Session, resume: bool = False) -> dict[str, Any]:
    """Train a recipe's classifier and write the run folder `out` atomically. Returns the content of run.json.

    The stages before the last one are the line's: they are trained as a recipe of their own, into a run
    within the unfinished one, and resumed there. Where the last stage was killed, the logits of the task's
    teacher and the learning rates that are done are kept. Parameters and errors are those of the line's
    `train`.
    """
    started = time.perf_counter()
    with resuming.unfinished(spec, out, resume) as partial:
        opened, labelled = open_recipe(spec, session, None if spec.distilling else partial)
        (partial / "metrics.jsonl").unlink(missing_ok=True)  # what a killed fine-tuning has measured
        student, info = opened.student, dict[str, Any]()
        if spec.distilling:
            student, info = _distilled(opened.spec, partial, session)
        elif not (partial / "tokenizer").exists():
            with files.new_folder(partial / "tokenizer") as temporary:
                tokenizer_files.save_tokenizer(student.tokenizer, temporary)
        accelerator = line.accelerator_for(spec, session.device)
        session = replace(session, device=accelerator.device.type)
        with progress_bar(session.progress) as bar:
            metrics = MetricsLog(partial / "metrics.jsonl", bar, session.log)
            metrics.stages = list(info.get("stages", []))
            running = RunInProgress(partial, accelerator, session, metrics)
            module, task = _finetuned(labelled, student, running)
        info = {
            "selected": None,
            **record.provenance(student, None, started),
            **{name: info[name] for name in FROM_THE_LINE if name in info},
            "parameters": classifier.parameters(kinds.parameters(student.module), module),
            "stages": metrics.stages,
            "task": task,
        }
        record.write_run(spec, student, partial, out, info)
        session.log(f"{out}: {info['parameters']['total']:,} parameters")
    return info


def _distilled(
    spec: recipe.Recipe, partial: Path, session: Session
) -> tuple[PreparedStudent, dict[str, Any]]:
    """Return the student that the stages before have trained, and run.json of its run. That run lies among
    the checkpoints, because an unfinished run that has these is kept on an error."""
    folder = partial / "checkpoints" / "distilled"
    found = line.train(
        spec, folder, session, resume=folder.exists() or resolve.unfinished_run(folder).exists()
    )
    for name in ("tokenizer", "targets"):
        if (folder / name).exists():
            shutil.copytree(folder / name, partial / name, dirs_exist_ok=True)
    if (folder / "metrics.jsonl").exists():
        shutil.copy(folder / "metrics.jsonl", partial)
    distilled = run.open_run(folder)
    return PreparedStudent.of(distilled), found


def _finetuned(
    labelled: LabelledStage, student: PreparedStudent, running: RunInProgress
) -> tuple[Classifier, dict[str, Any]]:
    """Return the trained classifier and the entry `task` of run.json, and write the files that make a run a
    classifier's. The test split is measured here, once, and nowhere else."""
    task, device = labelled.task, running.accelerator.device
    rows = _training_rows(labelled, student, running)
    _check_batch(labelled.stage, len(rows.tokens))
    torch.manual_seed(labelled.stage.seed)
    module = labelled.new_classifier(student.module).to(device)
    use_plain_attention(student.module, running.accelerator)

    def split(part: LabelledRows) -> LabelledTokens:
        tokens = ItemTokens(part.items, student.tokenizer, student.prompt, student.max_tokens)
        return LabelledTokens(tokens, task.label_ids(part), task.labels)

    loop = tuning.Tuning(labelled.stage, module, rows, split(task.dev), running)
    loop.train()
    test = None if task.test is None else split(task.test).scores(module, device)
    _write_classifier(running.folder, module, task.labels)
    parts = {"train": task.train, "dev": task.dev} | ({} if task.test is None else {"test": task.test})
    for name, scores in (("dev", loop.best["dev"]), ("test", test)):
        if scores is not None:
            running.session.log(f"{name}: accuracy {scores['accuracy']:.4f}, F1 {scores['f1']:.4f}")
    return module, {
        "labels": task.labels,
        "rows": {name: labelled_tasks.summary(part) for name, part in parts.items()},
        "augmented": len(rows.tokens) - len(task.train.labels),
        "measure": labelled.spec.metric,
        "chosen": {key: loop.best[key] for key in ("rate", "step")},
        "tried": loop.tried,
        "dev": loop.best["dev"],
        "test": test,
    }


def _write_classifier(folder: Path, module: Classifier, labels: list[str]) -> None:
    """Write the files that make a run a classifier's: task.json and head.safetensors."""
    shape = {"labels": labels, "pair": module.pair, "hidden": module.hidden.out_features}
    files.write_json(folder / run.HEAD_SHAPE, shape)
    with files.new_file(folder / run.HEAD_WEIGHTS) as temporary:
        weights = {
            name: value for name, value in module.state_dict().items() if not name.startswith("encoder.")
        }
        run.save_weights(weights, temporary)


def _training_rows(labelled: LabelledStage, student: PreparedStudent, running: RunInProgress) -> TrainingRows:
    """The task's training rows; with `augment` followed by the transfer set, which the task's teacher
    labels."""
    spec, items = labelled.spec, list(labelled.task.train.items)
    labels, of_teacher = labelled.task.label_ids(labelled.task.train), None
    if spec.augment is not None and labelled.tagger is not None:
        mask, before = _mask_token(labelled, student.tokenizer), len(items)
        items += transfer_set.transfer_set(spec.augment, items, mask, labelled.stage.seed, labelled.tagger)
        running.session.log(
            f"{labelled.stage.place}.augment: {len(items) - before:,} new items from {before:,}"
        )
    if labelled.teacher is not None:
        teacher, device = labelled.teacher, running.accelerator.device
        tokens = ItemTokens(items, teacher.tokenizer(), teacher.prompt, teacher.max_tokens)
        module = classifier.read(teacher)
        kept = running.folder / checkpoint.FOLDER / f"logits-{digest(module, [tokens])[:24]}.npy"
        if not kept.exists():
            running.session.log(f"{labelled.stage.place}.teacher: logits of {len(items):,} items")
            with files.new_file(kept) as temporary:
                np.save(temporary, logits(module.to(device), tokens, device))
        of_teacher = np.load(kept)
        labels = np.concatenate([labels, of_teacher[len(labels) :].argmax(1)])
    max_tokens = min(spec.max_tokens, student.max_tokens)
    return TrainingRows(ItemTokens(items, student.tokenizer, student.prompt, max_tokens), labels, of_teacher)
