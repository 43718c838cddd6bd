"""The last stage: a student and its classifier on labelled texts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, model_validator

from edgedistill.recipe.section import Part, by_kind


class TaskFiles(Part):
    """A labelled task in tables: .tsv, .csv, .jsonl or .parquet, each also .gz; a text, or a pair of texts, and its label."""

    kind: Literal["files"] = "files"
    train: list[str] = Field(min_length=1, description="paths or globs; relative ones lie under --data")
    dev: str | None = Field(None, description="what chooses the weights; default: `dev_rows` of `train`")
    test: str | None = Field(None, description="measured once, at the end, and by `bench --suite task`")
    texts: list[str] = Field(["sentence"], min_length=1, max_length=2, description="the column of the text, or the two of a pair")
    label: str = Field("label", description="the column of the labels, which are read as words; a 0 is the label '0'")
    dev_rows: int | None = Field(
        None, ge=2, description="rows of `train` set aside in place of a `dev` file, drawn by seed, label by label"
    )

    @model_validator(mode="after")
    def _one_dev(self) -> TaskFiles:
        return _with_one_dev(self)


class TaskHub(Part):
    """A labelled task from a hub data set, at a revision."""

    kind: Literal["hub"]
    dataset: str
    revision: str
    config: str | None = None
    train: str = "train"
    dev: str | None = Field("validation", description="the split that chooses the weights; null: `dev_rows` of `train`")
    test: str | None = Field(None, description="measured once, at the end; GLUE's test labels are hidden, leave it out there")
    texts: list[str] = Field(["sentence"], min_length=1, max_length=2, description="the column of the text, or the two of a pair")
    label: str = Field("label", description="the column of the labels; a number gets the name the data set has for it")
    dev_rows: int | None = Field(
        None, ge=2, description="rows of `train` set aside in place of a `dev` split, drawn by seed, label by label"
    )

    @model_validator(mode="after")
    def _one_dev(self) -> TaskHub:
        return _with_one_dev(self)


def _with_one_dev(task: Any) -> Any:
    if (task.dev is None) == (task.dev_rows is None):
        raise ValueError("something must choose the weights: give `dev`, or `dev_rows` of train; one of the two")
    return task


Task = Annotated[Annotated[TaskFiles, Tag("files")] | Annotated[TaskHub, Tag("hub")], by_kind("files")]


class TaskTeacher(Part):
    """A fine-tuned model whose logits are matched: α·cross-entropy + (1 − α)·MSE of logits (Tang et al. 2019; SRA, §3.2)."""

    run: str = Field(description="the folder of a run of the same task whose last stage is `finetune`, mostly of student `teacher`")
    alpha: float = Field(0.0, ge=0, lt=1, description="weight of the labels; Tang's is 0: the teacher's logits alone")


class Augment(Part):
    """A transfer set made by rule: words masked, replaced by others of their part of speech, n-grams (Tang et al. 2019; SRA's TS)."""

    mask: float = Field(0.1, ge=0, lt=1, description="chance of a word to become the tokenizer's mask")
    pos: float = Field(0.1, ge=0, lt=1, description="chance of a word to become one of the training texts with its part of speech")
    ngram: float = Field(0.25, ge=0, lt=1, description="chance of a text to shrink to 1 to 5 of its words in a row")
    rounds: int | None = Field(None, ge=1, description="over the training texts; default: 20, of pairs 10")
    limit: int = Field(800_000, ge=1, description="stop at so many texts or pairs, the labelled ones counted in")
    tags: str | None = Field(None, description="a table of words and their tags (columns word, tag); default: nltk's tagger and its data")

    @model_validator(mode="after")
    def _edits(self) -> Augment:
        if self.mask + self.pos > 1 or self.mask + self.pos + self.ngram == 0:
            raise ValueError("`mask` and `pos` share a word's chances and sum to at most 1; one of the three is above 0")
        if self.tags is not None and self.pos == 0:
            raise ValueError("`tags` serve `pos`, which is 0; leave one out")
        return self


class Finetune(Part):
    """Train the student and a classifier behind it on a labelled task (SRA, §3.2); the last stage, or the only one."""

    kind: Literal["finetune"]
    name: str = "finetune"
    task: Task
    start: str | None = Field(
        None, description="the folder of a run of this very student to begin from, in place of stages before this one"
    )
    teacher: TaskTeacher | None = Field(None, description="default: the labels alone")
    augment: Augment | None = Field(None, description="train on a transfer set too, which the task's `teacher` labels")
    fraction: float = Field(1.0, gt=0, le=1, description="of the training rows, drawn by seed, label by label; the paper: 0.2, 0.3, 0.5, 1")
    hidden: int = Field(256, ge=1, description="width of the classifier's hidden layer")
    dropout: float = Field(0.0, ge=0, lt=1, description="before either layer of the classifier")
    epochs: float = Field(5.0, gt=0, description="passes over the rows trained on; fractions are fine")
    steps: int | None = Field(None, ge=1, description="instead of epochs")
    batch: int = Field(32, ge=1)
    learning_rate: float = Field(3e-4, gt=0, description="of Adam")
    rates: list[float] | None = Field(
        None,
        min_length=1,
        description="try each of these, from the same start, and keep the best on dev; the paper: 2e-4, 3e-4, 5e-4, 1e-3",
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="fraction of the steps")
    schedule: Literal["linear", "constant"] = "constant"
    clip: float | None = Field(None, gt=0, description="largest norm of the gradient")
    measure: Literal["accuracy", "f1"] = Field("accuracy", description="what chooses the weights on dev")
    positive: str | None = Field(None, description="the label whose F1 is meant; default, of two labels: the last")
    every: int | None = Field(None, ge=1, description="steps between measurements on dev; default: once a pass")
    patience: int | None = Field(None, ge=1, description="stop after this many measurements without gain")
    max_tokens: int = Field(128, ge=3, description="longer texts are cut here in training")
    bucket: int = Field(50, ge=1, description="batches are cut from this many batches' worth of shuffled rows, sorted by length; 1: none")
    dtype: Literal["auto", "fp32", "bf16"] = "auto"

    @model_validator(mode="after")
    def _taught(self) -> Finetune:
        if self.augment is not None and self.teacher is None:
            raise ValueError("`augment` makes texts without labels; give a `teacher` that labels them, or leave it out")
        if self.rates is not None and (min(self.rates) <= 0 or len(set(self.rates)) < len(self.rates)):
            raise ValueError(f"`rates` {self.rates} must be above 0, and each another")
        return self
