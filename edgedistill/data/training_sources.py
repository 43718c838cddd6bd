"""All that a recipe trains on, opened together: what one source holds out, no other trains on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from edgedistill import recipe
from edgedistill.data import added_texts, file_patterns, made_tuples, rows
from edgedistill.data.rows import Rows
from edgedistill.session import Session


@dataclass(eq=False)
class TrainingSources:
    """The rows `of` a recipe and the `tables` of its stages, by their places in it. They are read when they
    are asked for.

    Held-out texts with their sentences, held-out translations and held-out queries are measured: no other
    source trains on them, whatever letters they are written in. The answers of held-out queries are
    documents, which are to be found, and may be trained on.
    """

    of: recipe.Rows
    tables: Mapping[str, recipe.Rows]
    session: Session
    seed: int

    @classmethod
    def of_recipe(cls, spec: recipe.Recipe, session: Session) -> TrainingSources:
        """The sources of a recipe with rows."""
        if spec.rows is None:
            raise ValueError(f"{spec.name} has no rows")
        stages = enumerate(spec.distilling)
        tables = {f"stages[{at}].rows": stage.rows for at, stage in stages if stage.rows is not None}
        return cls(spec.rows, tables, session, spec.seed)

    @cached_property
    def texts(self) -> Rows:
        """The rows of the recipe. Raises UserError as reading them does, and those of stages of which some
        are held out."""
        return rows.build(self.of, self.session, self.seed, self._queries)

    def of_stage(self, place: str) -> Rows:
        """The rows at a place, of files or made of the recipe's. Raises UserError as reading them does."""
        spec = self.tables[place]
        measured = self._queries | self.measured_texts
        if spec.queries is None:
            return self._read(place, measured)
        texts = self.texts.sides[0]
        excluded = file_patterns.matching_files(
            self.of.exclude, self.session.data, "rows.exclude", self.session.reading
        )
        count = texts.own - self.of.held_out + texts.paragraphs
        return made_tuples.build(
            spec.queries, texts, count, excluded, self.session, place, self.seed, measured
        )

    def _read(self, place: str, measured: set[int] | frozenset[int] = frozenset()) -> Rows:
        spec = self.tables[place]
        exclude = self.of.exclude
        return rows.build(spec, self.session, self.seed, measured, exclude, place)

    @cached_property
    def measured_texts(self) -> set[int]:
        """The keys of what the recipe's rows hold out."""
        return _measured(self.of, self.texts)

    @cached_property
    def _queries(self) -> set[int]:
        """The keys of what the rows of stages hold out."""
        measured = set()
        for place, spec in self.tables.items():
            if spec.held_out:
                measured |= _measured(spec, self._read(place))
        return measured


def _measured(spec: recipe.Rows, rows: Rows) -> set[int]:
    """The keys of held-out texts: of queries with documents, those of the queries."""
    sides = rows.sides[:1] if spec.ranked else rows.sides
    return added_texts.measured(text for side in sides for text in side.texts(side.held_out))
