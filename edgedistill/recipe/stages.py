"""One pass of training, and what it reads: views, triples, pairs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from edgedistill.recipe.objectives import Mcl, MclBool, MclCe, Objective, among_the_batch, leaves, reads_pairs, reads_second_view
from edgedistill.recipe.section import Part, by_kind
from edgedistill.recipe.sources import Parallel
from edgedistill.recipe.students import Bert, Recurrent, Student
from edgedistill.recipe.views import View


class TripleFiles(Part):
    """Tables of triples: .tsv, .csv, .jsonl or .parquet, each also .gz."""

    kind: Literal["files"] = "files"
    files: list[str] = Field(min_length=1, description="paths or globs; relative ones lie under --data; leaks are the corpus' `exclude`")
    columns: tuple[str, str, str] = Field(
        ("anchor", "entailment", "contradiction"), strict=False, description="a text, one that means the same, one that does not"
    )
    limit: int | None = Field(None, ge=1, description="at most this many triples, drawn evenly")


class TripleHub(Part):
    """Triples from a hub data set, at a revision."""

    kind: Literal["hub"]
    dataset: str
    revision: str
    config: str | None = None
    split: str = "train"
    columns: tuple[str, str, str] = Field(
        ("anchor", "positive", "negative"), strict=False, description="a text, one that means the same, one that does not"
    )
    limit: int | None = Field(None, ge=1, description="at most this many triples, drawn evenly")


Triples = Annotated[Annotated[TripleFiles, Tag("files")] | Annotated[TripleHub, Tag("hub")], by_kind("files")]


class Match(Part):
    """What the two sides of a pair are to match."""

    of: Literal["teacher", "assistant"] = "teacher"
    at: Literal["output", "embeddings"] = Field(
        "output",
        description="embeddings: the mean of the embedding layers' vectors, the student's against the assistant's; no other layer learns",
    )
    language: Literal["source", "own"] = Field("source", description="both sides the vector of the first, or each side its own")

    @model_validator(mode="after")
    def _of_an_assistant(self) -> Match:
        if self.of == "teacher" and (self.at != "output" or self.language != "source"):
            raise ValueError("`at: embeddings` and `language: own` are of an assistant, which reads all the languages; set `of: assistant`")
        return self


class Stage(Part):
    """One pass of training: an objective, and how it is optimised."""

    kind: Literal["distil"] = "distil"
    name: str
    objective: Objective
    view: View | None = Field(None, description="the second view of every text, for the objectives that read one")
    triples: Triples | None = Field(None, description="train on these instead of the corpus' texts; for simcse")
    match: Match | None = Field(None, description="over pairs: whose vectors; default: the teacher's of the first side, for both")
    pairs: list[str] | None = Field(None, description="train on the parts of `corpus.pairs` with these names; default: on all")
    epochs: float = Field(1.0, gt=0, description="passes over the corpus; fractions are fine")
    steps: int | None = Field(None, ge=1, description="instead of epochs")
    batch: int = Field(256, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    warmup: float = Field(0.05, ge=0, lt=1, description="fraction of the steps")
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    weight_decay: float = Field(0.01, ge=0, description="not on biases, norms and the word table")
    betas: tuple[float, float] = Field((0.9, 0.999), strict=False, description="of adamw")
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: the matrices of the student's layers by orthogonalised momentum (Jordan et al. 2024), all else by adamw"
    )
    clip: float | None = Field(1.0, gt=0, description="largest norm of the gradient")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of a moving average of the weights; the average is what is selected")
    max_tokens: int = Field(64, ge=3, description="longer texts are cut here in training")
    longest: int | None = Field(None, ge=3, description="train on the texts of at most this many tokens; default: on all")
    bucket: int = Field(100, ge=1, description="batches are cut from this many batches' worth of shuffled texts, sorted by length; 1: none")
    dtype: Literal["auto", "fp32", "bf16"] = "auto"

    @model_validator(mode="after")
    def _views_are_read(self) -> Stage:
        kinds = sorted({leaf.kind for leaf in leaves(self.objective)})
        compared = sorted({leaf.kind for leaf in leaves(self.objective) if among_the_batch(leaf)})
        if self.batch == 1 and compared and self.triples is None:
            raise ValueError(f"`batch` is 1, and {', '.join(compared)} compares the texts of a batch with each other; set it to 2 or more")
        if self.triples is not None:
            if kinds != ["simcse"]:
                raise ValueError(f"`triples` have no teacher vectors; simcse alone reads them, not {', '.join(kinds)}")
            if self.view is not None or self.longest is not None:
                raise ValueError(f"`{'view' if self.view else 'longest'}` is of the corpus' texts; leave it out beside `triples`")
        elif self.view is None and reads_second_view(self.objective):
            alone = ", or set alpha: 1" if "congen" in kinds else ", or `triples`" if kinds == ["simcse"] else ""
            raise ValueError(f"{', '.join(kinds)} compares a text with another view of it; give the stage a `view`{alone}")
        elif self.view is not None and not reads_second_view(self.objective):
            raise ValueError(f"{', '.join(kinds)} reads no second view; leave `view` out")
        return self

    @property
    def views(self) -> int:
        """How many texts the student reads for each one a batch counts."""
        return 3 if self.triples is not None else 2 if self.view is not None or reads_pairs(self.objective) == {True} else 1


def stage_of_pairs(place: str, stage: Stage, pairs: Parallel | None, student: Student, assisted: bool) -> None:
    """Raise ValueError where a stage and its corpus do not read the same."""
    if pairs is None or stage.triples is not None:
        for field in ("match", "pairs"):
            if getattr(stage, field) is not None:
                raise ValueError(f"{place}.{field}: is of a parallel corpus' pairs; leave it out, or set corpus.kind: parallel")
        if True in reads_pairs(stage.objective):
            raise ValueError(f"{place}.objective: {stage.objective.kind} reads pairs; set corpus.kind: parallel")
        return
    if False in reads_pairs(stage.objective):
        way_out = "put it to both sides, {kind: each_side, objective: …}"
        kinds = ", ".join(sorted({leaf.kind for leaf in leaves(stage.objective)}))
        raise ValueError(f"{place}.objective: {kinds} reads single texts, the corpus holds pairs; {way_out}")
    unknown_names = sorted(set(stage.pairs or []) - {part.title for part in pairs.pairs})
    if unknown_names:
        known = ", ".join(dict.fromkeys(part.title for part in pairs.pairs))
        raise ValueError(f"{place}.pairs: none are called {unknown_names[0]!r}; corpus.pairs are ({known})")
    if stage.match is not None and stage.match.of == "assistant" and not assisted:
        raise ValueError(f"{place}.match: of an assistant, and the recipe names none; set assistant.model")
    if stage.match is not None and stage.match.at == "embeddings" and not isinstance(student, Bert | Recurrent):
        raise ValueError(f"{place}.match: a {student.kind} student has no embedding layer to match; choose bert or recurrent")
    if (
        stage.match is not None
        and stage.match.at == "embeddings"
        and any(isinstance(leaf, Mcl | MclBool | MclCe) for leaf in leaves(stage.objective))
    ):
        raise ValueError(
            f"{place}.objective: {stage.objective.kind} compares whole texts; embeddings are matched by {{kind: each_side, objective: …}}"
        )
