"""The whole recipe: its sections, and the checks across them."""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import Field, Tag, model_validator

from edgedistill.recipe.rows import JointScores, Rows
from edgedistill.recipe.section import Patience, Precision, Section, by_kind
from edgedistill.recipe.stages import Finetune, Stage, check_names, check_reading, ranks
from edgedistill.recipe.students import AnyStudent, BuiltStudent, Finished, Student, TeacherItself, drops_head
from edgedistill.recipe.teacher import Targets, Teacher

AnyStage = Annotated[
    Annotated[Stage, Tag("distil")] | Annotated[Finetune, Tag("finetune")], by_kind("distil")
]


class Select(Section):
    """Keep the weights that score best on a development suite; never on a test set."""

    suite: str = Field("sts-dev", description="A shipped suite, or the path of one.")
    every: int = Field(500, ge=1, description="Optimizer steps between evaluations.")
    patience: Patience = None
    languages_without_dev: list[str] = Field([], description="Languages of the rows that the suite may lack.")


class Requirements(Section):
    """Thresholds for the finished bundle; `bench` fails when one is missed."""

    sts: float | None = Field(
        None, ge=-1, le=1, description="Average Spearman correlation on the suite (0 to 1)."
    )
    sts_kept: float | None = Field(
        None, ge=0, description="Share of the teacher's score that is retained, on the same suite (0 to 1)."
    )
    suite: str | None = Field(None, description="The suite these scores refer to. Default: any STS suite.")
    size_mb: dict[Precision, float] = Field(
        {}, description="Maximum size of the graph file in MB (10⁶ bytes), by precision."
    )


class Recipe(Section):
    """The whole recipe: the keys at the top of the file."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        max_length=100,
        description="Lower-case letters, digits, dots, dashes; names the run and the bundle.",
    )
    about: str = Field("", description="One line about the experiment.")
    seed: int = Field(0, ge=0, description="Seed of everything random.")
    teacher: Teacher = Field(description="The encoder that is distilled.")
    assistant: Teacher | None = Field(
        None,
        description="A model between teacher and student (multi-stage distillation): a run folder, a model "
        "folder, or a hub id.",
    )
    rows: Rows | None = Field(
        None,
        description="What the stages train on: texts, translations, or queries with documents. Not needed "
        "where nothing is distilled.",
    )
    targets: Targets | None = Field(
        None, description="What the student is trained to match. Default: the teacher's embeddings unchanged."
    )
    student: Student = Field(description="The model that is trained.")
    stages: list[AnyStage] = Field(
        [],
        max_length=64,
        description="Distillation stages (kind distil, the default) in order, and at most one finetune stage "
        "at the end.",
    )
    select: Select | None = Field(
        None, description="Which weights are kept. Default: those of the last step."
    )
    requirements: Requirements | None = Field(None, description="Thresholds that `bench` checks.")

    @property
    def distilling(self) -> list[Stage]:
        """The stages that learn from the teacher: all but the fine-tuning stage."""
        return [stage for stage in self.stages if isinstance(stage, Stage)]

    @property
    def finetuning(self) -> Finetune | None:
        """The stage that learns from labels."""
        return self.stages[-1] if self.stages and isinstance(self.stages[-1], Finetune) else None

    def rows_of(self, stage: Stage) -> Rows:
        """What a stage reads."""
        rows = stage.rows or self.rows
        if rows is None:
            raise ValueError(f"{stage.name}: the recipe has no `rows`")
        return rows

    def place_of_rows(self, number: int) -> str:
        """Where the rows of a stage that distils are described."""
        return f"stages[{number}].rows" if self.distilling[number].rows is not None else "rows"

    def scorers(self, number: int) -> dict[str, Teacher]:
        """The teachers of scores beside the recipe's own, of a stage that distils, by their places."""
        scores, place = self.rows_of(self.distilling[number]).scores, self.place_of_rows(number)
        teachers = scores.teachers if isinstance(scores, JointScores) else []
        return {f"{place}.scores.teachers[{at}]": teacher for at, teacher in enumerate(teachers)}

    @property
    def beside(self) -> dict[str, Teacher]:
        """The teachers of `targets` beside the recipe's own, by their places."""
        teachers = [] if self.targets is None else self.targets.teachers
        return {f"targets.teachers[{at}]": teacher for at, teacher in enumerate(teachers)}

    @property
    def finished(self) -> Finished | None:
        """The finished student that goes on learning, where the recipe's is one."""
        return self.student if isinstance(self.student, Finished) else None

    @property
    def built(self) -> BuiltStudent:
        """The student, asked for where the recipe describes its shape."""
        return cast(BuiltStudent, self.student)

    @property
    def reads_rows(self) -> bool:
        """Whether training reads the recipe's own rows: to distil on, to fit a teacher's own `targets` on, or
        to learn or trim a tokenizer.

        Only the unchanged teacher and a student that learns from labels alone do without.
        """
        if self.rows is None or not self.student.trained:
            return self.rows is not None and self.targets is not None
        learns = any(getattr(self.student, part, None) is not None for part in ("trim", "unigram"))
        return bool(self.distilling) or learns or self.finetuning is None

    @model_validator(mode="before")
    @classmethod
    def _from_the_assistant(cls, value: Any) -> Any:
        """A recurrent student takes its layers and tokenizer from the assistant where there is one, by
        default."""
        student = value.get("student") if isinstance(value, dict) else None
        if not isinstance(student, dict) or student.get("kind") != "recurrent" or not value.get("assistant"):
            return value
        return {**value, "student": {"weights": "assistant", "tokenizer": "assistant", **student}}

    @model_validator(mode="after")
    def _whole(self) -> Recipe:
        if self.distilling and self.rows is None:
            raise ValueError("stages need `rows`")
        if self.rows is not None and (self.rows.queries or self.rows.label):
            raise ValueError("rows: made `queries` and labelled rows are read by a stage; move them there")
        if self.distilling and not self.student.trained:
            raise ValueError("the teacher itself is not trained; leave `stages` out")
        if len({stage.name for stage in self.stages}) < len(self.stages):
            raise ValueError("two stages have the same name")
        if len(dtypes := sorted({stage.dtype for stage in self.stages})) > 1:
            raise ValueError(
                f"stages: more than one dtype ({', '.join(dtypes)}); all stages of a run share one, give "
                "them the same `dtype`"
            )
        for number, stage in enumerate(self.distilling):
            self._views_differ(f"stages[{number}]", stage, self.student)
        return self

    def _views_differ(self, place: str, stage: Stage, student: AnyStudent) -> None:
        kinds = {leaf.kind for leaf in stage.objective.leaves}
        ranking = {leaf.kind for leaf in stage.objective.leaves if ranks(leaf)}
        if ranking and kinds - ranking and drops_head(student):
            named = ", ".join(sorted(ranking))
            raise ValueError(
                f"{place}.objective: {named} compares the student's own embeddings, the other terms the "
                f"dropped head's output; give {named} a stage of its own, or set student.head_kept: true"
            )

    @model_validator(mode="after")
    def _finetuned_last(self) -> Recipe:
        """At most one stage fine-tunes, and it is the last; refuse what it cannot be combined with."""
        for at, stage in enumerate(self.stages[:-1]):
            if isinstance(stage, Finetune):
                raise ValueError(
                    f"stages[{at}]: a finetune stage must be the last, and the only one of its kind"
                )
        if self.finetuning is not None and self.targets is not None and not self.student.trained:
            raise ValueError("`targets`: a classifier head reads the teacher's own embedding; leave them out")
        return self

    @model_validator(mode="after")
    def _rows_and_assistant_fit(self) -> Recipe:
        """Rows, what objectives read of them, and an assistant go together."""
        for number, stage in enumerate(self.distilling):
            place = f"stages[{number}]"
            rows = self.rows_of(stage)
            if rows.queries is not None and self.rows is not None and self.rows.text_columns > 1:
                raise ValueError(f"{place}.rows.queries: are made of rows of one text; name files")
            check_reading(place, stage, rows)
            check_names(place, stage, rows)
            if stage.match is not None and stage.match.of == "assistant" and self.assistant is None:
                raise ValueError(
                    f"{place}.match: needs an assistant, and the recipe has none; set assistant.model"
                )
            if stage.only_embeddings and not self.student.of_layers:
                raise ValueError(
                    f"{place}.match: a {self.student.kind} student has no embedding layer to match; choose "
                    "bert or recurrent"
                )
        translated = self.rows is not None and self.rows.translated
        if self.student.reads_translations and not translated:
            raise ValueError(
                "student.embeddings.of: translations need rows with `languages`; set of: token_embeddings"
            )
        if translated and self.targets is not None:
            raise ValueError(
                "`targets` need texts, not translations; set head: linear where the dimensions differ"
            )
        if self.assistant is None and "assistant" in (
            getattr(self.student, "weights", None),
            getattr(self.student, "tokenizer", None),
        ):
            raise ValueError(
                "student: takes weights or tokenizer from an assistant, and the recipe has none; set "
                "assistant.model"
            )
        if self.assistant is not None and self.assistant.embeddings is not None:
            raise ValueError(
                "assistant: must be a model; precomputed embeddings have no layers and cannot embed new texts"
            )
        return self

    @model_validator(mode="after")
    def _targets_are_possible(self) -> Recipe:
        looks = self.targets is not None and self.targets.fits_student
        if isinstance(self.student, TeacherItself):
            if self.teacher.embeddings is not None:
                raise ValueError(
                    "the teacher is a file of precomputed embeddings, so there is no model to export"
                )
            if self.targets is not None and self.rows is None:
                raise ValueError("`targets` are fitted on the texts of `rows`; add them")
            if looks and self.student.reference_student is None:
                raise ValueError(
                    "`align` is fitted to an initial student; define it with student.reference_student"
                )
            if self.student.reference_student is not None and not looks:
                raise ValueError("student.reference_student is only used by ridge and `align`; leave it out")
        elif drops_head(self.student) and looks:
            raise ValueError("ridge and `align` need the student's own embeddings; set head_kept: true")
        return self

    @model_validator(mode="after")
    def _lengths_are_known(self) -> Recipe:
        raw = self.targets is not None and self.targets.raw
        if raw and not self.student.trained:
            raise ValueError(
                "targets.raw: a reduced teacher reads embeddings of unit length; leave `raw` out"
            )
        if self.beside and not self.student.trained:
            raise ValueError("targets.teachers: a reduced teacher is one model; leave `teachers` out")
        if raw and self.teacher.embeddings is not None:
            raise ValueError(
                "targets.raw: precomputed embeddings are kept at unit length; give the teacher's model, or "
                "leave `raw` out"
            )
        return self

    @model_validator(mode="after")
    def _prompts_are_learned(self) -> Recipe:
        if not self.distilling or any(self.rows_of(stage).ranked for stage in self.distilling):
            return self
        for field in ("query_prompt", "document_prompt"):
            if getattr(self.student, field, None):
                raise ValueError(
                    f"student.{field}: no stage reads queries and documents, so the student would never "
                    "learn it; add such `rows`, or leave it out"
                )
        return self

    @model_validator(mode="after")
    def _selected_as_kept(self) -> Recipe:
        """What `select` scores has to be what is kept."""
        for number, stage in enumerate(self.distilling):
            if self.select is not None and stage.initial_share:
                raise ValueError(
                    f"stages[{number}].initial_share: `select` scores the weights before they are mixed; "
                    "leave one of them out"
                )
        return self
