"""The batches of a stage over tuples: token ids of the queries and of the batch's distinct documents, and the
ranking that they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgedistill import objectives, recipe
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.data.token_cache import TokenPass
from edgedistill.runtime.bundle import SIDES
from edgedistill.session import Session
from edgedistill.teacher import tuple_scores
from edgedistill.teacher.embedding_cache import TeacherPass
from edgedistill.teacher.targets import EmbeddingRows
from edgedistill.teacher.tuple_scores import Embedded, ScoredTuples
from edgedistill.training.initial_student.prepared_student import StudentTokenizer
from edgedistill.training.inputs import batch_order
from edgedistill.training.inputs.text_batches import Batches, ColumnTokens, Ids
from edgedistill.training.load_models import Models
from edgedistill.training.stages import NumberedStage


class TupleTargets:
    """What the tuples of a batch are compared with, rows (B,) -> Ranking of arrays.

    `queries` and `documents` are the embeddings that the student is to match, where the objective reads them;
    `similar_by` are those of the documents by which similar tuples are found.
    """

    def __init__(
        self,
        scored: ScoredTuples,
        queries: EmbeddingRows | None,
        documents: EmbeddingRows | None,
        similar_by: EmbeddingRows | None,
    ) -> None:
        self.scored, self.queries, self.documents, self.similar_by = scored, queries, documents, similar_by
        self.dims = None if queries is None else queries.dims
        # The known answers of all queries, by query: those of query q are answers[starts[q] : starts[q + 1]].
        asked, answers = scored.index[:, 0], scored.index[:, 1]
        order = np.lexsort((answers, asked))
        self._answers = np.asarray(answers[order])
        self._starts = np.searchsorted(asked[order], np.arange(int(asked.max()) + 2))

    def __getitem__(self, rows: np.ndarray) -> objectives.Ranking:
        return self.batch(rows)[-1]

    def batch(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, objectives.Ranking]:
        """(the queries (B,) of tuples, their distinct documents (M,) ascending, the ranking)."""
        index = self.scored.index[rows]
        documents, positions = np.unique(index[:, 1:], return_inverse=True)
        positions = positions.reshape(len(index), -1)
        scores = self.scored.scores(rows, documents, positions)
        answers = self._other_answers(index, documents)
        found = objectives.Ranking(positions[:, 0], scores=scores, answers=answers)
        if self.queries is not None and self.documents is not None:
            found = found._replace(queries=self.queries[index[:, 0]], documents=self.documents[documents])
        return index[:, 0], documents, found

    def _other_answers(self, index: np.ndarray, documents: np.ndarray) -> np.ndarray | None:
        """Which documents (M,) of a batch answer the queries of its tuples (B, 1 + m), without those that are
        their positives here: (B, M) bool, or None where none do."""
        found = np.zeros((len(index), len(documents)), bool)
        for row, (query, positive) in enumerate(index[:, :2].tolist()):
            known = self._answers[self._starts[query] : self._starts[query + 1]]
            if len(known) > 1:
                found[row] = np.isin(documents, known) & (documents != positive)
        return found if found.any() else None

    def similar(self, stage: recipe.Stage, seed: int) -> batch_order.Groups:
        """Groups of tuples whose positives are similar, those of one document side by side."""
        assert self.similar_by is not None, "the stage has `similar_texts`"
        positives = self.scored.index[:, 1]
        documents = int(positives.max()) + 1
        found = batch_order.similar_texts(stage, self.similar_by, documents, seed)
        return found._replace(clusters=found.clusters[positives] * documents + positives)


@dataclass(frozen=True)
class TupleBatches(Batches):
    """Batches of tuples: two views, the queries (B, T) and the distinct documents (M, T) of the batch, of at
    most `max_tokens` each."""

    max_tokens: int = 0

    def batch(self, rows: np.ndarray, passes: np.ndarray) -> tuple[list[Ids], objectives.Ranking]:
        """(ids and mask of both views, the ranking)."""
        assert isinstance(self.tokens, ColumnTokens) and isinstance(self.targets, TupleTargets)
        *texts, ranking = self.targets.batch(rows)
        of_columns = zip(self.tokens.columns, texts, strict=True)
        return [column.batch(each, self.max_tokens) for column, each in of_columns], ranking


def token_passes(tuples: ParallelCorpus, tokenizer: StudentTokenizer, session: Session) -> list[TokenPass]:
    """What tokenizes the queries and the documents of tuples."""
    roles = zip(tuples.columns, SIDES, strict=True)
    return [tokenizer.tokens(each, session, role) for each, role in roles]


def of_tuples(tuples: ParallelCorpus, tokenizer: StudentTokenizer, session: Session) -> TupleBatches:
    """The batches of tuples, without what they are compared with."""
    columns = [each.open() for each in token_passes(tuples, tokenizer, session)]
    tokens = ColumnTokens(columns, np.asarray(tuples.index))
    return TupleBatches([], tokens, tuples.training_count, max_tokens=tokenizer.max_tokens)


def targets_of(
    stage: NumberedStage[recipe.Stage],
    tuples: ParallelCorpus,
    models: Models,
    session: Session,
    mapped: Callable[[Callable[[recipe.Teacher | None], EmbeddingRows]], EmbeddingRows],
    seed: int,
) -> TupleTargets:
    """What the tuples of a stage are compared with; teachers embed what is needed for it and not cached.

    `mapped` makes of each teacher's embeddings of a column what the student is to match; `seed` draws the
    negatives.
    """
    spec = stage.spec
    assert spec.tuples is not None
    vectors, scored = objectives.reads_teacher(spec.objective), recipe.reads_scores(spec.objective)
    of = spec.tuples.scores

    def embedded(side: int) -> Callable[[recipe.Teacher | None], EmbeddingRows]:
        corpus, role = tuples.columns[side], SIDES[side]
        return lambda which: TeacherPass(models.of(which).in_role(role), corpus, session).open()

    teachers = list[Embedded]()
    if needs_cosines(spec):
        named: list[recipe.Teacher | None] = [None, *of.teachers]
        for each in named:
            identity = {role: models.of(each).in_role(role).identity() for role in SIDES}
            teachers.append(Embedded(embedded(0)(each), embedded(1)(each), identity))
    place = f"{stage.place}.tuples"
    found = tuple_scores.build(spec.tuples, tuples, teachers, scored, session, place, seed)
    similar_by = embedded(1)(None) if spec.group is not None else None
    if not vectors:
        return TupleTargets(found, None, None, similar_by)
    return TupleTargets(found, mapped(embedded(0)), mapped(embedded(1)), similar_by)


def needs_cosines(stage: recipe.Stage) -> bool:
    """Whether a stage over tuples needs the teacher's cosines of queries and documents: as scores, or to draw
    negatives by them."""
    if stage.tuples is None:
        return False
    scored = recipe.reads_scores(stage.objective) and not stage.tuples.scores.of_the_tuple
    return scored or stage.tuples.negatives is not None


def teachers_of(stage: recipe.Stage) -> list[recipe.Teacher | None]:
    """The teachers that embed the queries and documents of a stage's tuples; None is the recipe's own."""
    if stage.tuples is None:
        return []
    own = objectives.reads_teacher(stage.objective) or stage.group is not None or needs_cosines(stage)
    return [*([None] if own else []), *stage.tuples.scores.teachers]
