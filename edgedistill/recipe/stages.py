"""A distillation stage: its objective, what it reads (views, tuples, pairs), and how it is optimized."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from edgedistill.recipe.corpus import Parallel
from edgedistill.recipe.objectives import Loss, Objective
from edgedistill.recipe.section import (
    LARGEST_BATCH,
    MOST_EPOCHS,
    Clip,
    Section,
    TrainingDtype,
    TrainingTokens,
    Warmup,
    check_sorted_rows,
)
from edgedistill.recipe.students import Student
from edgedistill.recipe.tuples import Scores, Tuples
from edgedistill.recipe.views import View

SORTED_BATCHES = 100


Beta = Annotated[float, Field(ge=0, lt=1)]


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
    tuples: Tuples | None = Field(
        None,
        description="Train on queries and documents instead of the corpus' texts: with info_nce, listwise, "
        "margin_mse, and objectives of single texts in each_side.",
    )
    match: Match | None = Field(
        None,
        description="For pairs: which embeddings are matched. Default: both sides match the teacher's "
        "embedding of the source text.",
    )
    pairs: list[str] | None = Field(
        None, description="Train only on the `corpus.pairs` with these names. Default: all."
    )
    epochs: float = Field(1.0, gt=0, le=MOST_EPOCHS, description="Passes over the corpus; may be fractional.")
    steps: int | None = Field(
        None,
        ge=0,
        description="Optimizer steps, instead of `epochs`. 0: only what is fitted before the first step.",
    )
    minutes: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Minutes by the clock, instead of `epochs`: the learning rate follows the share of them "
        "that has passed, so a slow machine takes fewer steps and still ends its schedule. With `steps`: at "
        "most so many. Only `steps` alone gives the same bytes again.",
    )
    batch: int = Field(256, ge=1, le=LARGEST_BATCH, description="Batch size in texts, pairs or tuples.")
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
        "layers, AdamW for all else; "
        "needs torch 2.9.",
    )
    clip: Clip = 1.0
    initial_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the stage's initial weights in its result, the rest being those it ended with "
        "(Wortsman et al. 2022): a "
        "finished student forgets less of what it knew.",
    )
    rehearsal: float = Field(
        0.0,
        ge=0,
        description="Weight of rehearsal beside the objective: the student embeds random words as it did "
        "before the stage, a quarter as many sequences of them as a batch has texts (pseudorehearsal, Robins "
        "1995), so that a finished student forgets less.",
    )
    max_tokens: TrainingTokens = 64
    skip_longer_than: int | None = Field(
        None, ge=3, description="Leave out texts with more tokens than this. Default: keep all."
    )
    bucket: int | None = Field(
        None,
        ge=1,
        description="Sort by length within windows of this many batches of shuffled texts, which saves "
        "padding. 1: no sorting. Default: "
        "100; 1 for objectives whose negatives come from the batch (ckd, congen, info_nce, mcl), all "
        "of the text's own length otherwise.",
    )
    dtype: TrainingDtype = "auto"

    @model_validator(mode="after")
    def _inputs_match_objective(self) -> Stage:
        kinds = sorted({leaf.kind for leaf in self.objective.leaves})
        compared = sorted({leaf.kind for leaf in self.objective.leaves if leaf.alone})
        if self.rehearsal and self.only_embeddings:
            raise ValueError(
                "`rehearsal` is of whole students, and `match` of their embeddings; leave it out"
            )
        if self.tuples is not None:
            self._reads_tuples()
            return self
        if self.batch == 1 and compared:
            raise ValueError(
                f"`batch` is 1, and {', '.join(compared)} compares the texts of a batch with each other; set "
                "it to 2 or more"
            )
        if ranking := sorted({leaf.kind for leaf in self.objective.leaves if ranks(leaf)}):
            raise ValueError(f"{', '.join(ranking)} ranks the documents of queries; give the stage `tuples`")
        if self.view is None and self.objective.second_view:
            ways_out = {"congen": ", or set alpha: 1"}
            alone = ways_out.get(kinds[0], "") if len(kinds) == 1 else ""
            raise ValueError(
                f"{', '.join(kinds)} compares a text with a second view of it; give the stage a `view`{alone}"
            )
        if self.view is not None and not self.objective.second_view:
            raise ValueError(f"{', '.join(kinds)} reads no second view; leave `view` out")
        return self

    def _reads_tuples(self) -> None:
        """Raise ValueError where the objective, or another key, does not go with tuples."""
        others = [term.kind for term in self.objective.terms_whole if ... not in term.columns]
        if others:
            raise ValueError(
                f"{', '.join(sorted(set(others)))} reads single texts, and the stage has `tuples`; apply it "
                "to queries and documents, {kind: each_side, objective: …}"
            )
        for field in ("view", "skip_longer_than"):
            if getattr(self, field) is not None:
                raise ValueError(f"`{field}` applies to the corpus' texts; leave it out with `tuples`")
        scores = self.tuples.scores if self.tuples is not None else None
        if scores not in (None, Scores()) and not self.reads_scores:
            raise ValueError(
                "`tuples.scores` are matched by listwise and margin_mse; add one, or leave them out"
            )

    @model_validator(mode="after")
    def _whole_groups(self) -> Stage:
        check_sorted_rows(self.batch, self.sorting_window)
        if self.group is not None and self.batch % self.group:
            raise ValueError(
                f"`similar_texts` is {self.group}, which does not divide a batch of {self.batch}; choose one "
                "that does"
            )
        if self.group is not None and self.sorting_window == 1:
            raise ValueError(
                "`similar_texts` are found among the batches of a `bucket`, and it is 1; give it more, such "
                "as 100"
            )
        return self

    @property
    def only_embeddings(self) -> bool:
        """Whether it trains only the student's embedding layer."""
        return self.match is not None and self.match.layer == "embeddings"

    @property
    def group(self) -> int | None:
        """How many tuples in a row of a batch are similar to each other; None: they are drawn at random."""
        sizes = {getattr(leaf, "similar_texts", None) for leaf in self.objective.leaves} - {None}
        if len(sizes) > 1:
            raise ValueError(
                "`similar_texts` differs between the objective's terms; a batch has groups of one size, give "
                "one number"
            )
        return sizes.pop() if sizes else None

    @property
    def reads_teacher(self) -> bool:
        """Whether a term compares the student's embeddings with the teacher's."""
        return any(leaf.teacher == "embeddings" for leaf in self.objective.leaves)

    @property
    def reads_scores(self) -> bool:
        """Whether a term compares the student's ranking with a teacher's scores."""
        return any(leaf.teacher == "scores" for leaf in self.objective.leaves)

    @property
    def reads_pairs(self) -> set[bool]:
        """Whether the terms read several columns: {True}, {False}, or both where they differ."""
        return {len(term.columns) > 1 for term in self.objective.terms_whole}

    @property
    def sorting_window(self) -> int:
        """Batches of shuffled texts that are sorted by length together; 1: none are."""
        among = any(leaf.negatives == "batch" for leaf in self.objective.leaves)
        return self.bucket or (1 if among else SORTED_BATCHES)

    @property
    def views(self) -> int:
        """How many texts the student embeds for each item of a batch."""
        if self.tuples is not None:
            return self.tuples.width
        return 2 if self.view is not None or self.reads_pairs == {True} else 1


def ranks(leaf: Loss) -> bool:
    """Whether a term compares a query with documents: the student's own embeddings with each other."""
    return ... in leaf.columns


def stage_of_pairs(
    place: str, stage: Stage, pairs: Parallel | None, student: Student, assisted: bool
) -> None:
    """Raise ValueError where a stage does not fit its corpus."""
    if stage.tuples is not None and pairs is not None and stage.tuples.made:
        raise ValueError(f"{place}.tuples: are made of single texts, and the corpus holds pairs; name files")
    if pairs is None or stage.tuples is not None:
        for field in ("match", "pairs"):
            if getattr(stage, field) is not None:
                raise ValueError(
                    f"{place}.{field}: applies to a parallel corpus; leave it out, or set corpus.kind: "
                    "parallel"
                )
        if True in stage.reads_pairs and stage.tuples is None:
            raise ValueError(
                f"{place}.objective: {stage.objective.kind} reads pairs; set corpus.kind: parallel"
            )
        return
    if False in stage.reads_pairs:
        way_out = "apply it to each side, {kind: each_side, objective: …}"
        kinds = ", ".join(sorted({leaf.kind for leaf in stage.objective.leaves}))
        raise ValueError(f"{place}.objective: {kinds} reads single texts, the corpus holds pairs; {way_out}")
    unknown_names = sorted(set(stage.pairs or []) - {part.title for part in pairs.pairs})
    if unknown_names:
        known = ", ".join(dict.fromkeys(part.title for part in pairs.pairs))
        raise ValueError(
            f"{place}.pairs: no pairs are named {unknown_names[0]!r}; corpus.pairs has ({known})"
        )
    if stage.match is not None and stage.match.of == "assistant" and not assisted:
        raise ValueError(f"{place}.match: needs an assistant, and the recipe has none; set assistant.model")
    if stage.only_embeddings and not student.of_layers:
        raise ValueError(
            f"{place}.match: a {student.kind} student has no embedding layer to match; choose bert or "
            "recurrent"
        )
    if stage.only_embeddings and any(leaf.columns == (0, 1) for leaf in stage.objective.leaves):
        raise ValueError(
            f"{place}.objective: {stage.objective.kind} compares whole texts; match embedding layers with "
            f"{{kind: each_side, objective: …}}"
        )
