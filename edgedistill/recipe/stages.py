"""The stages of a training. A distillation stage: its objective, the rows it reads, and how it is optimized;
and the one that fine-tunes the student and a classifier head on a labelled task."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from edgedistill.recipe.objectives import CrossEntropy, Loss, Objective
from edgedistill.recipe.rows import Rows
from edgedistill.recipe.section import (
    LARGEST_BATCH,
    MOST_EPOCHS,
    ByKind,
    Clip,
    OneOf,
    Patience,
    Section,
    Steps,
    TrainingDtype,
    TrainingTokens,
    Warmup,
    check_sorted_rows,
)

SORTED_BATCHES = 100
# keys of a stage that fine-tunes which a stage at one of its learning rates has too
SHARED = {"epochs", "steps", "batch", "warmup", "schedule", "clip", "max_tokens", "dtype"}
ROW_BATCHES = 50  # of shuffled rows, sorted by length together, which saves padding


Beta = Annotated[float, Field(ge=0, lt=1)]


class AnyView(ByKind):
    """What views differ in: whether words are left out, which `share` of them, and whether what remains is
    one span."""

    edits: ClassVar[bool] = True
    span: ClassVar[bool] = False

    @property
    def share(self) -> float:
        return 0.0


class WordDeletion(AnyView):
    """The text with random words deleted."""

    kind: Literal["word_deletion"]
    fraction: float = Field(
        0.1, gt=0, lt=1, description="Share of words deleted, on average over texts; at least one word stays."
    )

    @property
    def share(self) -> float:
        return self.fraction


class Crop(AnyView):
    """A random contiguous span of the text."""

    kind: Literal["crop"]
    span = True
    drop_fraction: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Share of words outside the span, on average over texts; at least one word stays.",
    )

    @property
    def share(self) -> float:
        return self.drop_fraction


View = Annotated[AnyView, OneOf(AnyView)]


class Match(Section):
    """Which embeddings the source and target side of a pair are trained to match."""

    of: Literal["teacher", "assistant"] = Field("teacher", description="Whose embeddings.")
    layer: Literal["output", "embeddings"] = Field(
        "output",
        description="output: the text embedding. embeddings: the embedding layer's mean output, the "
        "student's against the assistant's; "
        "only the student's embedding layer is trained.",
    )
    language: Literal["source", "own"] = Field(
        "source",
        description="source: both sides match the source text's embedding. own: each side matches its own.",
    )

    @model_validator(mode="after")
    def _of_an_assistant(self) -> Match:
        if self.of == "teacher" and (self.layer != "output" or self.language != "source"):
            raise ValueError(
                "`layer: embeddings` and `language: own` need an assistant, which knows all the languages; "
                "set `of: assistant`"
            )
        return self


class Stage(Section):
    """One distillation stage: an objective and how it is optimized."""

    kind: Literal["distil"] = "distil"
    name: str = Field(max_length=100, description="Appears in logs and metrics.")
    objective: Objective = Field(description="The loss.")
    view: View | None = Field(
        None, description="The second view of every text, for objectives that compare two views."
    )
    rows: Rows | None = Field(
        None,
        description="Rows of this stage, in place of the recipe's: such as queries with documents, for "
        "info_nce, listwise, margin_mse and each_side.",
    )
    tables: list[str] | None = Field(
        None, description="Train only on those of the rows' `tables` with these names. Default: all."
    )
    match: Match | None = Field(
        None,
        description="Of translations: which embeddings are matched. Default: both sides match the teacher's "
        "embedding of the source text.",
    )
    epochs: float = Field(1.0, gt=0, le=MOST_EPOCHS, description="Passes over the rows; may be fractional.")
    steps: int | None = Field(
        None,
        ge=0,
        description="Optimizer steps, instead of `epochs`. 0: only what is fitted before the first step.",
    )
    minutes: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Minutes by the clock, instead of `epochs`. The learning rate follows the share of them "
        "that has passed, so a slow machine takes fewer steps and still ends its schedule. With "
        "`steps`: at most that many. A repeated training then gives other bytes.",
    )
    batch: int = Field(256, ge=1, le=LARGEST_BATCH, description="Batch size in rows.")
    learning_rate: float = Field(1e-3, gt=0, le=100, description="Peak learning rate.")
    warmup: Warmup = 0.05
    schedule: Literal["linear", "cosine", "constant"] = Field(
        "linear", description="Learning rate after the warm-up; linear and cosine decay to 0."
    )
    weight_decay: float = Field(
        0.01, ge=0, description="Not applied to biases, norms and the embedding table."
    )
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), strict=False, description="AdamW's betas.")
    epsilon: float = Field(1e-8, gt=0, description="AdamW's ε.")
    bias_correction: bool = Field(
        True,
        description="false: AdamW without the correction of its first steps, as in the code of ConGen and of "
        "multi-stage distillation.",
    )
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="muon: orthogonalized momentum (Jordan et al. 2024) for the matrices of the student's "
        "layers, AdamW for all else.",
    )
    clip: Clip = 1.0
    initial_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the stage's initial weights in its result; the rest are those it ended with "
        "(Wortsman et al. 2022). A finished student then forgets less of what it knew.",
    )
    rehearsal: float = Field(
        0.0,
        ge=0,
        description="Weight of rehearsal beside the objective: the student goes on embedding random words as "
        "it did before the stage, and so forgets less. A batch has a quarter as many sequences of"
        " them as texts (pseudorehearsal, Robins 1995).",
    )
    max_tokens: TrainingTokens = 64
    skip_longer_than: int | None = Field(
        None, ge=3, description="Leave out texts with more tokens than this. Default: keep all."
    )
    bucket: int | None = Field(
        None,
        ge=1,
        description="Sort by length within windows of this many batches of shuffled texts, which saves "
        "padding. 1: no sorting. Default: 100; but 1 for objectives whose negatives come from the"
        " batch (ckd, congen, info_nce, mcl), since sorted texts would all be as long as their "
        "negatives.",
    )
    dtype: TrainingDtype = "auto"

    @model_validator(mode="after")
    def _of_whole_students(self) -> Stage:
        if self.rehearsal and self.only_embeddings:
            raise ValueError(
                "`rehearsal` is of whole students, and `match` of their embeddings; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _sorted_rows(self) -> Stage:
        check_sorted_rows(self.batch, self.sorting_window)
        return self

    @property
    def only_embeddings(self) -> bool:
        """Whether it trains only the student's embedding layer."""
        return self.match is not None and self.match.layer == "embeddings"

    @property
    def reads_teacher(self) -> bool:
        """Whether a term compares the student's embeddings with the teacher's."""
        return any(leaf.teacher == "embeddings" for leaf in self.objective.leaves)

    @property
    def reads_scores(self) -> bool:
        """Whether a term compares the student's ranking with a teacher's scores."""
        return any(leaf.teacher == "scores" for leaf in self.objective.leaves)

    def names_of(self, *reads: bool) -> str:
        """Its objectives by name, or those whose terms read several columns (True) or one."""
        terms = self.objective.terms_whole
        read = [term for term in terms if not reads or (len(term.columns) > 1) in reads]
        return ", ".join(sorted({term.kind for term in read}))

    @property
    def sorting_window(self) -> int:
        """Batches of shuffled texts that are sorted by length together; 1: none are."""
        among = any(leaf.negatives == "batch" for leaf in self.objective.leaves)
        return self.bucket or (1 if among else SORTED_BATCHES)

    def views(self, rows: Rows) -> int:
        """How many texts the student embeds for each of these rows."""
        return 2 if self.view is not None else rows.width


class TaskTeacher(Section):
    """The teacher of a finetune stage: a fine-tuned model whose logits are matched, α·cross-entropy + (1 −
    α)·MSE of logits (Tang et al. 2019; SRA, §3.2)."""

    run: str = Field(
        description="Folder of a run fine-tuned on the same task, usually with student kind `teacher`."
    )
    alpha: float = Field(
        0.0, ge=0, lt=1, description="Weight of the labels. 0, as in Tang et al.: only the teacher's logits."
    )


class Augment(Section):
    """Rule-based augmentation: words masked, n-grams (Tang et al. 2019; SRA's TS; there words are also
    replaced within their part of speech)."""

    mask: float = Field(
        0.1, ge=0, lt=1, description="Probability that a word becomes the tokenizer's mask token."
    )
    ngram: float = Field(
        0.25, ge=0, lt=1, description="Probability that a text is cut to 1 to 5 consecutive words."
    )
    limit: int = Field(
        800_000, ge=1, description="Stop at this many texts or pairs, the labelled ones included."
    )

    @model_validator(mode="after")
    def _edits(self) -> Augment:
        if self.mask + self.ngram == 0:
            raise ValueError("`mask` and `ngram` are 0, so nothing is edited; set one of them")
        return self


class Finetune(Section):
    """Train the student and a classifier head on a labelled task (SRA, §3.2); the last stage, or the only
    one."""

    kind: Literal["finetune"]
    name: str = Field("finetune", max_length=100, description="Appears in logs and metrics.")
    rows: Rows = Field(description="The rows of the task, with their `label`.")
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
        return Stage.model_construct(
            **self.model_dump(include=SHARED),
            name=self.name if len(self.rates) == 1 else f"{self.name} at {rate:g}",
            objective=self.objective(labels),
            learning_rate=rate,
            weight_decay=0.0,
            bucket=ROW_BATCHES,
        )

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


def ranks(leaf: Loss) -> bool:
    """Whether a term compares a query with documents: the student's own embeddings with each other."""
    return ... in leaf.columns


def check_reading(place: str, stage: Stage, rows: Rows) -> None:
    """Raise ValueError where a stage's objective, or another key of it, does not go with its rows."""
    if rows.label is not None:
        raise ValueError(f"{place}: labelled rows are read by a stage of the kind finetune; set its `kind`")
    if rows.ranked:
        _check_ranked(place, stage, rows)
        return
    if stage.batch == 1 and (
        compared := sorted({leaf.kind for leaf in stage.objective.leaves if leaf.alone})
    ):
        raise ValueError(
            f"{place}: `batch` is 1, and {', '.join(compared)} compares the texts of a batch with each "
            "other; set it to 2 or more"
        )
    if ranking := sorted({leaf.kind for leaf in stage.objective.leaves if ranks(leaf)}):
        raise ValueError(
            f"{place}: {', '.join(ranking)} ranks the documents of queries; give the stage `rows` with their "
            "`columns`"
        )
    _check_views(place, stage)
    if rows.translated:
        _check_translations(place, stage)
        return
    _check_unset(place, stage, ("match", "tables"), "applies to rows of translations, with `languages`")
    if several := stage.names_of(True):
        raise ValueError(f"{place}.objective: {several} reads translations; give rows with `languages`")


def _check_ranked(place: str, stage: Stage, rows: Rows) -> None:
    if single := sorted({term.kind for term in stage.objective.terms_whole if ... not in term.columns}):
        raise ValueError(
            f"{place}: {', '.join(single)} reads single texts, and the rows are queries with documents; "
            "apply it to both, {kind: each_side, objective: …}"
        )
    _check_unset(place, stage, ("view", "skip_longer_than"), "applies to rows of one text")
    _check_unset(place, stage, ("match",), "applies to rows of translations")
    if rows.scores and not stage.reads_scores:
        raise ValueError(
            f"{place}: scores are matched by listwise and margin_mse; add one, or leave them out"
        )


def _check_views(place: str, stage: Stage) -> None:
    if stage.view is None and stage.objective.second_view:
        kinds = {leaf.kind for leaf in stage.objective.leaves}
        alone = ", or set alpha: 1" if kinds == {"congen"} else ""
        raise ValueError(
            f"{place}: {stage.names_of()} compares a text with a second view of it; give the stage a "
            f"`view`{alone}"
        )
    if stage.view is not None and not stage.objective.second_view:
        raise ValueError(f"{place}: {stage.names_of()} reads no second view; leave `view` out")


def _check_translations(place: str, stage: Stage) -> None:
    if single := stage.names_of(False):
        raise ValueError(
            f"{place}.objective: {single} reads single texts, the rows hold translations; apply "
            "it to each side, {kind: each_side, objective: …}"
        )
    if stage.only_embeddings and any(leaf.columns == (0, 1) for leaf in stage.objective.leaves):
        raise ValueError(
            f"{place}.objective: {stage.objective.kind} compares whole texts; match embedding layers with "
            f"{{kind: each_side, objective: …}}"
        )


def _check_unset(place: str, stage: Stage, keys: tuple[str, ...], fact: str) -> None:
    for key in keys:
        if getattr(stage, key) is not None:
            raise ValueError(f"{place}.{key}: {fact}; leave it out")


def check_names(place: str, stage: Stage, rows: Rows) -> None:
    """Raise ValueError where a stage names tables that its rows do not have."""
    known = list(dict.fromkeys(part.title for part in rows.tables))
    if unknown := sorted(set(stage.tables or []) - {*known}):
        raise ValueError(f"{place}.tables: none is named {unknown[0]!r}; the rows have ({', '.join(known)})")
