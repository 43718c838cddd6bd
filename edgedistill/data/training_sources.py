"""All that a recipe trains on, opened together: what one source holds out, no other trains on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from edgedistill import recipe
from edgedistill.data import added_texts, file_patterns, made_tuples, rows
from edgedistill.data.rows import Rows
from edgedistill.session import Session


class TrainingSources:
    """The corpus of a recipe and the tuples of its stages, by their places in it. They are read when they are
    asked for.

    Held-out texts with their sentences, held-out translations and held-out queries are measured: no other
    source trains on them, whatever letters they are written in. The answers of held-out queries are
    documents, which are to be found, and may be trained on.
    """

    def __init__(
        self, of: recipe.Corpus, tuples: Mapping[str, recipe.Tuples], session: Session, seed: int
    ) -> None:
        self.of, self.tables, self.session, self.seed = of, tuples, session, seed
        self.exclude = of.exclude

    @classmethod
    def of_recipe(cls, spec: recipe.Recipe, session: Session) -> TrainingSources:
        """The sources of a recipe with a corpus."""
        if spec.corpus is None:
            raise ValueError(f"{spec.name} has no corpus")
        stages = enumerate(spec.distilling)
        tables = {f"stages[{at}].tuples": each.tuples for at, each in stages if each.tuples is not None}
        return cls(spec.corpus, tables, session, spec.seed)

    @cached_property
    def texts(self) -> Rows:
        """The rows of the corpus. Raises UserError as reading it does, and tuples of which some are held
        out."""
        return rows.build(self.of, self.session, self.seed, self._queries)

    def tuples(self, place: str) -> Rows:
        """The tuples at a place, of a table or made of the corpus. Raises UserError as reading them does."""
        spec, measured = self.tables[place], self._queries | self._measured_texts
        if not isinstance(spec, recipe.TupleCorpus):
            return rows.build_tuples(spec, self.exclude, self.session, place, self.seed, measured)
        texts = self.texts.sides[0]
        excluded = file_patterns.matching_files(self.exclude, self.session.data, "corpus.exclude")
        count = texts.own - self.of.held_out + texts.paragraphs
        return made_tuples.build(spec, texts, count, excluded, self.session, place, self.seed, measured)

    @cached_property
    def _measured_texts(self) -> set[int]:
        """The keys of what the corpus holds out."""
        return added_texts.measured(text for side in self.texts.sides for text in side.texts(side.held_out))

    @cached_property
    def _queries(self) -> set[int]:
        """The keys of the queries that tables hold out."""
        found = set[int]()
        for place, spec in self.tables.items():
            if not isinstance(spec, recipe.TupleCorpus) and spec.held_out:
                table = rows.build_tuples(spec, self.exclude, self.session, place, self.seed)
                found |= added_texts.measured(table.sides[0].texts(table.sides[0].held_out))
        return found
