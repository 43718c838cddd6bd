"""The recipe: all its parts, and what they must agree on."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Tag, model_validator

from edgedistill.recipe.finetuning import Finetune
from edgedistill.recipe.objectives import leaves
from edgedistill.recipe.section import Part, Precision, by_kind
from edgedistill.recipe.sources import Corpus, Parallel, Teacher
from edgedistill.recipe.stages import Stage, stage_of_pairs
from edgedistill.recipe.students import Bert, BiLSTM, Itself, Recurrent, Static, Student
from edgedistill.recipe.targets import Projected, Split, Targets
from edgedistill.recipe.views import Dropout, Identity

AnyStage = Annotated[Annotated[Stage, Tag("distil")] | Annotated[Finetune, Tag("finetune")], by_kind("distil")]


class Select(Part):
    """Keep the weights that score best on a suite; never a test set."""

    suite: str = "sts-dev"
    every: int = Field(500, ge=1, description="optimizer steps")
    within: float = Field(
        0.0, ge=0, description="later weights are kept where they score at most this less than the best: what the suite cannot tell apart"
    )
    patience: int | None = Field(None, ge=1, description="stop after this many measurements without gain")
    without: list[str] = Field([], description="languages of a parallel corpus that no task of the suite is in, and that is meant so")


class Promise(Part):
    """What the bundle is to keep; `bench` fails when it does not."""

    sts: float | None = Field(None, ge=-1, le=1, description="average Spearman on the suite")
    sts_kept: float | None = Field(None, ge=0, description="of the teacher's, same suite")
    suite: str | None = Field(None, description="where the promise holds; default: any STS suite")
    size_mb: dict[Precision, float] = Field({}, description="largest graph file per precision, in 10⁶ bytes")


class Recipe(Part):
    """One experiment, whole."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    about: str = ""
    seed: int = Field(0, ge=0)
    teacher: Teacher
    assistant: Teacher | None = Field(
        None, description="between teacher and student: a finished run's folder, a model's folder, or a hub id"
    )
    corpus: Corpus | None = None
    targets: Targets | None = Field(None, description="what the student is to match; default: the teacher's vectors as they are")
    student: Student
    stages: list[AnyStage] = Field([], description="of kind distil, the default, and at the end one of kind finetune or none")
    select: Select | None = None
    promise: Promise | None = None

    @property
    def distilling(self) -> list[Stage]:
        """The stages that learn from the teacher: all but a fine-tuning one."""
        return [stage for stage in self.stages if isinstance(stage, Stage)]

    @property
    def finetuning(self) -> Finetune | None:
        """The stage that learns from labels."""
        return self.stages[-1] if self.stages and isinstance(self.stages[-1], Finetune) else None

    @property
    def reads_corpus(self) -> bool:
        """Whether training reads the corpus: to distil on, to fit a teacher's own `targets` on, or to learn or trim a tokenizer."""
        learns = any(getattr(self.student, part, None) is not None for part in ("trim", "vocabulary", "unigram"))
        return bool(self.distilling) or learns or (isinstance(self.student, Itself) and self.targets is not None)

    @model_validator(mode="before")
    @classmethod
    def _from_the_assistant(cls, value: Any) -> Any:
        """A recurrent student takes layers and tokenizer from the assistant where there is one, unless told otherwise."""
        student = value.get("student") if isinstance(value, dict) else None
        if not isinstance(student, dict) or student.get("kind") != "recurrent" or not value.get("assistant"):
            return value
        return {**value, "student": {"weights": "assistant", "tokenizer": "assistant", **student}}

    @model_validator(mode="after")
    def _whole(self) -> Recipe:
        if self.distilling and self.corpus is None:
            raise ValueError("stages need a `corpus`")
        if self.distilling and self.student.kind == "teacher":
            raise ValueError("the teacher itself is not trained; leave `stages` out")
        if len({stage.name for stage in self.stages}) < len(self.stages):
            raise ValueError("two stages have the same name")
        if len(dtypes := sorted({stage.dtype for stage in self.stages})) > 1:
            raise ValueError(
                f"stages: more than one dtype ({', '.join(dtypes)}); all stages of a run share one, give them the same `dtype`"
            )
        if not isinstance(self.student, Itself):
            for number, stage in enumerate(self.distilling):
                self._views_differ(f"stages[{number}]", stage, self.student)
                if isinstance(self.student, Static) and stage.optimizer == "muon":
                    raise ValueError(
                        f"stages[{number}].optimizer: muon is for the matrices of layers, a static student has none; leave it out"
                    )
        return self

    def _views_differ(self, place: str, stage: Stage, student: Bert | BiLSTM | Recurrent | Static) -> None:
        kinds = {leaf.kind for leaf in leaves(stage.objective)}
        same = isinstance(stage.view, Dropout) or (isinstance(stage.view, Identity) and "simcse" in kinds)
        if same and not getattr(student, "dropout", 0):  # a static student has none
            raise ValueError(f"{place}.view: without dropout both views give the same vector; set student.dropout, or choose another view")
        if "simcse" in kinds and len(kinds) > 1 and student.head != "none" and not student.head_kept:
            raise ValueError(
                f"{place}.objective: simcse compares the student's own vectors, the others what the dropped head makes of them; "
                "give simcse a stage of its own, or set student.head_kept: true"
            )

    @model_validator(mode="after")
    def _finetuned_last(self) -> Recipe:
        """One stage learns from labels, and it is the last; what it cannot work with is refused here."""
        at = next((number for number, stage in enumerate(self.stages) if isinstance(stage, Finetune)), None)
        if at is None:
            return self
        last = self.stages[at]
        assert isinstance(last, Finetune)
        if at < len(self.stages) - 1:
            raise ValueError(f"stages[{at}]: a finetune stage is the last; put it behind the others, one a recipe")
        if last.start is not None and (self.distilling or isinstance(self.student, Itself)):
            what = "the stages before it say" if self.distilling else "the teacher itself says"
            raise ValueError(f"stages[{at}].start: {what} where it starts; leave `start` out")
        if isinstance(self.student, Static) and self.student.weights == "sif" and not self.distilling and last.start is None:
            raise ValueError("student.weights: sif counts pieces over texts distilled on, and there are none; set weights: equal")
        if isinstance(self.targets, Split) or (self.targets is not None and isinstance(self.student, Itself)):
            raise ValueError(
                f"stages[{at}]: a classifier reads the student's own vector; leave split `targets`, and those of a teacher, out"
            )
        return self

    @model_validator(mode="after")
    def _pairs_are_read(self) -> Recipe:
        """A parallel corpus, objectives over pairs, and an assistant go together."""
        pairs = self.corpus if isinstance(self.corpus, Parallel) else None
        for number, stage in enumerate(self.distilling):
            stage_of_pairs(f"stages[{number}]", stage, pairs, self.student, self.assistant is not None)
        if pairs is None and not isinstance(self.student, Itself) and self.student.embeddings.of == "translations":
            raise ValueError("student.embeddings.of: translations are those of a corpus of kind parallel; set of: words")
        if pairs is not None and self.targets is not None:
            raise ValueError("`targets` are made of texts, not of pairs; give the student `head: linear` where its width is another")
        if self.assistant is None and "assistant" in (getattr(self.student, "weights", None), getattr(self.student, "tokenizer", None)):
            raise ValueError("student: of an assistant, and the recipe names none; set assistant.model")
        if self.assistant is not None and self.assistant.vectors is not None:
            raise ValueError("assistant: must be a model; a file of vectors has no layers to give, nor vectors of new texts")
        return self

    @model_validator(mode="after")
    def _targets_are_possible(self) -> Recipe:
        parts = self.targets.parts if isinstance(self.targets, Split) else [self.targets]
        looks = any(isinstance(part, Projected) and part.looks for part in parts)
        if isinstance(self.student, Itself):
            if self.targets is not None and self.corpus is None:
                raise ValueError("`targets` are fitted on the texts of a `corpus`; name one")
            if looks and self.student.onto is None:
                raise ValueError("ridge, cca and `align` look at an untrained student; say which with student.onto")
            if self.student.onto is not None and not looks:
                raise ValueError("student.onto is there for ridge, cca and `align`; leave it out")
        elif self.student.head != "none" and not self.student.head_kept and (looks or isinstance(self.targets, Split)):
            raise ValueError("split, ridge, cca and `align` need the student's own vectors; with `head_kept: false` they are others")
        return self

    @model_validator(mode="after")
    def _without_weights(self) -> Recipe:
        """A teacher that is a file of vectors has no words, tokenizer or layers to give."""
        student = self.student
        if self.teacher.vectors is None:
            return self
        if isinstance(student, Itself):
            raise ValueError("the teacher is a file of vectors, so there is no teacher to export")
        for field, value in (("tokenizer", student.tokenizer), ("weights", getattr(student, "weights", None))):
            if value == "teacher":
                raise ValueError(f"the teacher is a file of vectors and brings no {field}; set student.{field} to a folder or a hub id")
        if getattr(student, "weights", "random") == "random" and student.embeddings.source == "teacher":
            raise ValueError("the teacher is a file of vectors and brings no words; set student.embeddings: {from: random}")
        return self
