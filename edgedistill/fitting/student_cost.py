"""What a candidate costs, before it is trained: its student is built, exported and timed in the runner of the
target."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from edgedistill import quantization, recipe
from edgedistill.data.corpus import Corpus
from edgedistill.fitting import latency, starts
from edgedistill.fitting.candidates import PRECISIONS, Choice, StartingPoint, Vocabulary, sections
from edgedistill.fitting.request import Budget
from edgedistill.quantization.mixed_precision import int8_with_w8
from edgedistill.quantization.sample_texts import Reader, samples
from edgedistill.session import Session
from edgedistill.students import graph
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student import finished_student, initial_weights, student_tokenizer
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.load_models import Models, open_weights


@dataclass(frozen=True)
class Cost:
    """size_bytes: of graph and tokenizer.json together, exact (in int8 to some ten bytes: constants are named
    by their values).

    p50_ms: of one text, tokenization included.
    """

    size_bytes: dict[str, int]
    p50_ms: dict[str, float]

    def fitting(self, budget: Budget) -> list[str]:
        """The precisions that keep to the budget, the preferred one first."""
        return [name for name in PRECISIONS if budget.excess(self.size_bytes[name], self.p50_ms[name]) <= 0]

    def best(self, budget: Budget) -> str:
        """The preferred precision that keeps to the budget; the nearest one where none does."""
        fits = self.fitting(budget)
        return fits[0] if fits else self.nearest(budget)[1]

    def nearest(self, budget: Budget) -> tuple[float, str]:
        """(by how much it exceeds the budget, in which precision): the least."""
        return min(
            (budget.excess(self.size_bytes[name], self.p50_ms[name]), name) for name in self.size_bytes
        )

    def described(self, precision: str) -> str:
        """int8 4.31 MB, 0.52 ms"""
        return f"{precision} {self.size_bytes[precision] / 1e6:.3g} MB, {self.p50_ms[precision]:.3g} ms"


@dataclass
class Workshop:
    """What candidates are built from. folder: of the vocabularies' tokenizers; texts: those that are timed,
    target: where."""

    teacher: TeacherEncoder
    corpus: Corpus
    start: StartingPoint
    vocabularies: dict[str, Vocabulary]
    folder: Path
    texts: list[str]
    target: str = "native"
    tokenizers: dict[str, Any] = field(default_factory=dict)

    def student(self, choice: Choice) -> PreparedStudent:
        """The student of a candidate with weights that nothing was fitted to. Raises UserError where it
        cannot be built."""
        spec = recipe.parse(
            {
                "name": "candidate",
                "teacher": self.teacher.spec.model_dump(exclude_defaults=True),
                "corpus": {"kind": "documentation"},
                "stages": [{"name": "distil", "objective": {"kind": "cosine"}, "steps": 1}],
                **sections(choice, self.start, self.vocabularies),
            },
            choice.name,
        )
        finished = finished_student.find(spec) if isinstance(spec.student, recipe.Finished) else None
        models = Models(self.teacher, weights=open_weights(spec.student), finished=finished)
        if choice.vocabulary not in self.tokenizers:
            folder = starts.tokenizer_folder(self.folder, choice.vocabulary)
            self.tokenizers[choice.vocabulary] = student_tokenizer.build(
                spec, models, self.corpus, Session(), folder
            )
        return initial_weights.build(
            spec, models, self.tokenizers[choice.vocabulary], Session(), fitted=False
        )

    def cost(self, choice: Choice) -> Cost:
        """Build, export and measure a candidate. Raises UserError as `student`."""
        return cost(self.student(choice), self.texts, self.target)


def cost(student: PreparedStudent, texts: list[str], target: str) -> Cost:
    """The cost of a student in every precision. texts: those that are timed."""
    reader = Reader(student.tokenizer, "", student.max_tokens)
    fp32 = graph.build(student.module.eval())
    drawn = samples(reader, [])
    models = {
        name: quantization.convert(fp32, name, drawn if name == "int8" else ()).SerializeToString()
        for name in PRECISIONS
    }
    tokenizer_bytes = starts.tokenizer_bytes(student.tokenizer, student.max_tokens)
    ids = reader.token_ids(texts)
    tokenizing, measured = _tokenizing_ms(student, texts), latency.RUNNERS[target](list(models.values()), ids)
    return Cost(
        {name: len(model) + tokenizer_bytes for name, model in models.items()},
        {name: round(ms + tokenizing, 4) for name, ms in zip(models, measured, strict=True)},
    )


def _tokenizing_ms(student: PreparedStudent, texts: list[str]) -> float:
    """Milliseconds of tokenizing a text, in the library that runs here; in a browser it takes about as
    long."""
    backend: Any = student.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(student.max_tokens)
    return latency.least_median(lambda text: backend.encode(text), texts)


def in_precision(student: PreparedStudent, precision: str) -> onnx.ModelProto:
    """A trained student's graph in a precision, as `export` makes it."""
    reader, model = (
        Reader(student.tokenizer, student.prompt, student.max_tokens),
        graph.build(student.module.eval()),
    )
    golden = reader.token_ids(reader.golden_texts())
    drawn = samples(reader, golden)
    if precision == "int8":
        return int8_with_w8(model, drawn, golden)[0]
    return quantization.convert(model, precision, drawn)
