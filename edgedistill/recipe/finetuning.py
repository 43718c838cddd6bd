"""The fine-tuning stage: the student and a classifier head trained on a labelled task."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from edgedistill.recipe.objectives import CrossEntropy
from edgedistill.recipe.rows import Rows
from edgedistill.recipe.section import (
    LARGEST_BATCH,
    MOST_EPOCHS,
    Clip,
    Patience,
    Section,
    Steps,
    TrainingDtype,
    TrainingTokens,
    Warmup,
)
from edgedistill.recipe.stages import Stage

ROW_BATCHES = 50  # of shuffled rows, sorted by length together, which saves padding


class TaskTeacher(Section):
    """A fine-tuned model whose logits are matched: α·cross-entropy + (1 − α)·MSE of logits (Tang et al. 2019;
    SRA, §3.2)."""

    run: str = Field(
        description="Folder of a run fine-tuned on the same task, usually with student kind `teacher`."
    )
    alpha: float = Field(
        0.0, ge=0, lt=1, description="Weight of the labels. 0, as in Tang et al.: only the teacher's logits."
    )


class Augment(Section):
    """Rule-based augmentation: words masked or replaced within their part of speech, n-grams (Tang et al.
    2019; SRA's TS)."""

    mask: float = Field(
        0.1, ge=0, lt=1, description="Probability that a word becomes the tokenizer's mask token."
    )
    pos: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Probability that a word is replaced by a training word with the same part of speech; "
        "above 0 it needs nltk's tagger.",
    )
    ngram: float = Field(
        0.25, ge=0, lt=1, description="Probability that a text is cut to 1 to 5 consecutive words."
    )
    limit: int = Field(
        800_000, ge=1, description="Stop at this many texts or pairs, the labelled ones included."
    )

    @model_validator(mode="after")
    def _edits(self) -> Augment:
        if self.mask + self.pos > 1 or self.mask + self.pos + self.ngram == 0:
            raise ValueError("`mask` + `pos` must be at most 1, and one of `mask`, `pos`, `ngram` above 0")
        return self


class Finetune(Section):
    """Train the student and a classifier head on a labelled task (SRA, §3.2); the last stage, or the only
    one."""

    kind: Literal["finetune"]
    name: str = Field("finetune", max_length=100, description="Appears in logs and metrics.")
    rows: Rows = Field(description="The rows of the task, with their `label`.")
    start: str | None = Field(
        None, description="Folder of a run of the same student to start from, instead of earlier stages."
    )
    teacher: TaskTeacher | None = Field(
        None, description="A fine-tuned model to learn from. Default: labels only."
    )
    augment: Augment | None = Field(
        None, description="Also train on augmented texts, labelled by the task's `teacher`."
    )
    fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the training rows used, sampled by seed, stratified by label. The paper uses "
        "0.2, 0.3, 0.5 and 1.",
    )
    hidden: int = Field(256, ge=1, le=65_536, description="Width of the classifier head's hidden layer.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout before each layer of the classifier head.")
    epochs: float = Field(
        5.0, gt=0, le=MOST_EPOCHS, description="Passes over the training rows; may be fractional."
    )
    steps: Steps = None
    batch: int = Field(32, ge=1, le=LARGEST_BATCH, description="Batch size in rows.")
    learning_rate: float = Field(3e-4, gt=0, le=100, description="Adam's learning rate.")
    learning_rates: list[float] | None = Field(
        None,
        min_length=1,
        description="Try each of these from the same start and keep the best on dev. The paper uses 2e-4, "
        "3e-4, 5e-4 and 1e-3.",
    )
    warmup: Warmup = 0.0
    schedule: Literal["linear", "constant"] = Field(
        "constant", description="Learning rate after the warm-up; linear decays to 0."
    )
    clip: Clip = None
    metric: Literal["accuracy", "f1"] = Field(
        "accuracy",
        description="The dev score that selects the weights; f1 is that of the last of two labels.",
    )
    every: int | None = Field(
        None, ge=1, description="Steps between evaluations on dev. Default: once per epoch."
    )
    patience: Patience = None
    max_tokens: TrainingTokens = 128
    dtype: TrainingDtype = "auto"

    @property
    def rates(self) -> list[float]:
        """The learning rates that are tried, one after the other."""
        return self.learning_rates or [self.learning_rate]

    def objective(self, labels: int) -> CrossEntropy:
        """What it minimizes, for so many labels."""
        return CrossEntropy(
            labels=labels,
            pair=len(self.rows.columns) == 2,
            hidden=self.hidden,
            dropout=self.dropout,
            alpha=self.teacher.alpha if self.teacher is not None else 1.0,
        )

    def attempt(self, rate: float, labels: int) -> Stage:
        """The stage that trains at one learning rate, for so many labels."""
        shared = ("epochs", "steps", "batch", "warmup", "schedule", "clip", "max_tokens", "dtype")
        values: dict[str, Any] = {key: getattr(self, key) for key in shared}
        values["name"] = self.name if len(self.rates) == 1 else f"{self.name} at {rate:g}"
        values["objective"] = self.objective(labels)
        values |= {"learning_rate": rate, "weight_decay": 0.0, "bucket": ROW_BATCHES}
        return Stage.model_construct(**values)

    @model_validator(mode="after")
    def _taught(self) -> Finetune:
        if self.rows.label is None:
            raise ValueError("`rows` without a `label` teach no classifier; name its column")
        if self.augment is not None and self.teacher is None:
            raise ValueError(
                "`augment` makes unlabelled texts; give a `teacher` that labels them, or leave it out"
            )
        if self.learning_rates is not None and (
            min(self.learning_rates) <= 0 or len(set(self.learning_rates)) < len(self.learning_rates)
        ):
            raise ValueError(f"`learning_rates` {self.learning_rates} must be positive and distinct")
        return self
