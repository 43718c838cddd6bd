"""A student by sentence-transformers' own script: some of the teacher's layers, and the mean squared error to
its embeddings.

examples/sentence_transformer/training/distillation/model_distillation_layer_reduction.py of its repository:
every third layer, one epoch, batches of 64, learning rate 1e-4, 10% warm-up, the teacher's embeddings
precomputed as the column `label`. Texts and their number are those of the budget; it has no held-out suite to
select by, as the budget leaves none of its minutes.
"""

from __future__ import annotations

from datasets import Dataset
from harness import Opened, Task, lines, texts_for
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MSELoss
from sentence_transformers_backends import of_torch
from torch.nn import ModuleList

TRIAL = 640  # texts, to see how many the minutes are enough for


def _student(task: Task) -> SentenceTransformer:
    model = SentenceTransformer(str(task.teacher), device="cpu", model_kwargs={"torch_dtype": "float32"})
    encoder = model.transformers_model
    kept = [layer for at, layer in enumerate(encoder.encoder.layer) if at % 3 == 0]
    encoder.encoder.layer = ModuleList(kept)
    encoder.config.num_hidden_layers = len(kept)
    return model


def _trained(task: Task, texts: list[str]) -> SentenceTransformer:
    teacher, student = SentenceTransformer(str(task.teacher), device="cpu"), _student(task)
    labels = teacher.encode(texts, batch_size=128, show_progress_bar=False).tolist()
    given = SentenceTransformerTrainingArguments(
        output_dir=str(task.folder / "trainer"),
        num_train_epochs=1,
        per_device_train_batch_size=64,
        warmup_steps=0.1,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    rows = Dataset.from_dict({"sentence": texts, "label": labels})
    SentenceTransformerTrainer(model=student, args=given, train_dataset=rows, loss=MSELoss(student)).train()
    return student


def make_reduced(task: Task) -> dict[str, int]:
    seconds = 60 * task.minutes
    texts = texts_for(seconds, lines(task.texts), lambda some: _trained(task, some), TRIAL)
    _trained(task, texts).save_pretrained(str(task.folder / "model"))
    return {"texts": len(texts)}


def open_reduced(task: Task) -> Opened:
    return of_torch(task.folder / "model")
