"""How much training will compute, and about how long it will take on this machine.

The teacher's speed is measured on a sample of the texts that it has still to embed, the student's on one
batch of random tokens, as long as a sample of the texts is on average. Not included: measuring on the
`select` suite, tokenizing, what an objective computes, and fine-tuning.
"""

from __future__ import annotations

import copy
import time
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from edgedistill.data.corpus import Corpus
from edgedistill.session import Session
from edgedistill.students import kinds
from edgedistill.teacher.embedding_cache import Embeds, TeacherPass
from edgedistill.teacher.encoder import flush_denormals
from edgedistill.training import train
from edgedistill.training.open_recipe import Opened
from edgedistill.training.stages import steps
from edgedistill.training.trained_module import Accelerator

TEACHER_SECONDS = 0.5  # of measuring, at most, but for the last chunk: a check answers at once
# Of a student that a check measures. Layers count as often as they are applied.
MOST_PARAMETERS = 30_000_000
MOST_LAYERS = 16
TIMED_ROWS = 64  # of a timed batch, at most
SAMPLE = 2_048  # texts of a corpus that are read
CHUNK = 128  # texts that the teacher embeds at a time


def training_samples(opened: Opened) -> int:
    """How many texts the student embeds in training, over all stages and epochs; every view of a text
    counts."""
    spec = opened.spec
    samples = 0
    for ahead in opened.stages:
        stage = ahead.stage.spec
        samples += steps(stage, ahead.training) * stage.batch * stage.views(spec.rows_of(stage))
    return samples


def estimate_seconds(opened: Opened, missing: list[TeacherPass], session: Session) -> dict[str, float]:
    """{"teacher", "student"}: about how many seconds embedding and training will take on this machine.

    Takes a second or two, but for a teacher in int8 whose graph is not cached yet: it is made, and training
    will find it.
    """
    flush_denormals()
    accelerator = train.accelerator_for(opened.spec, session.device)
    on_device = replace(session, device=accelerator.device.type)
    missing = [teacher_pass for teacher_pass in missing if teacher_pass.missing]
    for teacher_pass in missing:
        teacher_pass.teacher.prepare(on_device)
    limit = TEACHER_SECONDS / max(1, len(missing))
    teacher = 0.0
    student = 0.0
    for teacher_pass in missing:
        texts = sample(teacher_pass.corpus)
        rate = seconds_per_text(teacher_pass.teacher, texts, on_device.device, limit)
        teacher += teacher_pass.missing * rate
    if samples := training_samples(opened):
        with torch.random.fork_rng(devices=[]):
            student = samples * _seconds_per_row(opened, accelerator)
    return {"teacher": round(teacher, 3), "student": round(student, 3)}


def sample(corpus: Corpus) -> list[str]:
    """At most SAMPLE texts of a corpus, spread evenly over it, in random order."""
    return corpus.texts(np.random.default_rng(0).permutation(corpus.spread(SAMPLE)))


def seconds_per_text(teacher: Embeds, texts: list[str], device: str, limit: float) -> float:
    """Seconds in which a teacher embeds one of these texts, the median over chunks of them: other work on the
    machine delays some. They are measured for at most about `limit` seconds."""
    teacher.embed(texts[:2], device, True)  # builds the graph
    done = 0
    measured = []
    while done < len(texts) and (done == 0 or limit > 0):
        chunk = texts[done : done + (CHUNK if done else 16)]
        started = time.perf_counter()
        teacher.embed(chunk, device, True)
        done = done + len(chunk)
        seconds = time.perf_counter() - started
        measured.append(seconds / len(chunk))
        limit -= seconds
    return float(np.median(measured))


def is_measured(student: nn.Module) -> bool:
    """Whether a student is small enough to be built, converted and trained for a moment by a check, which
    answers within seconds. A shared layer counts as often as it is applied."""
    bare = student
    encoder = getattr(getattr(bare, "model", None), "encoder", None)
    layers = len(getattr(encoder, "layer", [None])) * int(getattr(encoder, "times", 1))
    return kinds.parameters(student)["total"] <= MOST_PARAMETERS and layers <= MOST_LAYERS


def _seconds_per_row(opened: Opened, accelerator: Accelerator) -> float:
    """Seconds in which a copy of the student learns from one text: a batch of random tokens, as many a text
    as training reads on average, the second of two."""
    stages = opened.spec.distilling
    texts = []
    for ahead in opened.stages:
        for side in ahead.rows.sides:
            texts += sample(side)[:CHUNK]
    limited = opened.student.limited_tokenizer.limited(max(stage.max_tokens for stage in stages))
    length = max(1, round(float(np.mean(list(map(len, limited.encoder()(texts)))))))
    module = copy.deepcopy(opened.student.module).to(accelerator.device).train().requires_grad_(True)
    rows = min(TIMED_ROWS, *(stage.batch for stage in stages))
    ids = torch.randint(len(opened.student.tokenizer), (rows, length), device=accelerator.device)
    optimizer = torch.optim.AdamW(module.parameters())
    for _ in range(2):  # the first builds its kernels
        started = time.perf_counter()
        with accelerator.autocast():
            loss = module(ids, torch.ones_like(ids)).float().square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - started) / rows
