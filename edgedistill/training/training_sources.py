"""All that a recipe trains on, opened together: what is measured, none of it trains on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain

from edgedistill import recipe
from edgedistill.data import added_texts, deduplicate, file_patterns, labelled_tasks, made_tuples, rows
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.session import Session


@cache
def _of_shipped_suites() -> frozenset[int]:
    """The keys of their texts."""
    suites = map(scoring.suite, scoring.SHIPPED)
    return frozenset(added_texts.measured(text for suite in suites for text in suite.texts))


@dataclass(eq=False)
class TrainingSources:
    """The rows of a recipe (`section`) and the `tables` of its stages, by their places in it. They are read
    when they are asked for.

    Held-out texts with their sentences, held-out translations and held-out queries are measured: no other
    source trains on them, whatever letters they are written in. The answers of held-out queries are
    documents, which are to be found, and may be trained on. `measured` are the keys of what else is measured:
    the texts of a recipe's dev and test rows, and of its suites and those that ship, which judge every
    student, those that are embedded in the role of a text or a query.
    """

    section: recipe.Rows
    tables: Mapping[str, recipe.Rows]
    session: Session
    seed: int
    measured: frozenset[int] = field(default_factory=_of_shipped_suites)

    @classmethod
    def of_recipe(cls, spec: recipe.Recipe, session: Session) -> TrainingSources:
        """The sources of a recipe with rows."""
        if spec.rows is None:
            raise ValueError(f"{spec.name} has no rows")
        stages = enumerate(spec.distilling)
        tables = {f"stages[{at}].rows": stage.rows for at, stage in stages if stage.rows is not None}
        return cls(
            spec.rows,
            tables,
            session,
            spec.seed,
            _of_shipped_suites() | added_texts.measured(_measured(spec, session)),
        )

    @cached_property
    def texts(self) -> Rows:
        """The rows of the recipe. Raises UserError as reading them does, and those of stages of which some
        are held out."""
        return rows.build(self.section, self.session, self.seed, self._queries | self.measured)

    def of_stage(self, place: str) -> Rows:
        """The rows at a place, of files or made of the recipe's. Raises UserError as reading them does."""
        spec = self.tables[place]
        measured = self._queries | self.held_out_texts | self.measured
        if spec.queries is None:
            return self._read(place, measured)
        texts = self.texts.sides[0]
        excluded = file_patterns.matching_files(self.section.exclude, self.session.data, "rows.exclude")
        measured |= deduplicate.excluded_keys(excluded)
        count = texts.own - self.section.held_out + texts.paragraphs
        return made_tuples.build(spec.queries, texts, count, self.session, place, self.seed, measured)

    def _read(self, place: str, measured: set[int] | frozenset[int] = frozenset()) -> Rows:
        return rows.build(self.tables[place], self.session, self.seed, measured, self.section.exclude, place)

    @cached_property
    def held_out_texts(self) -> set[int]:
        """The keys of what the recipe's rows hold out."""
        return _held_out(self.section, self.texts)

    @cached_property
    def _queries(self) -> set[int]:
        """The keys of what the rows of stages hold out."""
        measured = set()
        for place, spec in self.tables.items():
            if spec.held_out:
                measured |= _held_out(spec, self._read(place))
        return measured


def _held_out(spec: recipe.Rows, rows: Rows) -> set[int]:
    """The keys of held-out texts: of queries with documents, those of the queries."""
    sides = rows.sides[:1] if spec.ranked else rows.sides
    return added_texts.measured(text for side in sides for text in side.texts(side.held_out))


def _measured(spec: recipe.Recipe, session: Session) -> Iterator[str]:
    """The texts that a recipe is measured on: of its suites, and the dev and test rows of its labelled task.
    A suite whose files are not here is logged."""
    for section in (spec.select, spec.requirements):
        try:
            yield from scoring.suite(section.suite, session.data).texts if section and section.suite else ()
        except UserError as missing:
            session.log(f"not excluded from training: {missing}")
    if spec.finetuning is not None:
        place = f"stages[{len(spec.stages) - 1}].rows"
        splits = labelled_tasks.measured_splits(spec.finetuning.rows, session, spec.seed, place)
        for split in splits.values():
            yield from chain.from_iterable(split.items)
