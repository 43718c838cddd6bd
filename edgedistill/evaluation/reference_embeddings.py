"""The teacher's embeddings of unlabelled texts, which students' agreement is measured against."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from edgedistill import recipe
from edgedistill.data import corpus, parallel_corpus
from edgedistill.errors import UserError
from edgedistill.evaluation import scoring
from edgedistill.recipe import recorded
from edgedistill.runtime import bundle
from edgedistill.session import Session

MAX_TEXTS = 5000  # drawn evenly from the held-out texts, because the teacher has to encode them


class Reference(NamedTuple):
    """n texts with the teacher's embeddings (n, d), their lengths (n,) in the teacher's tokens, and where
    they come from."""

    texts: list[str]
    embeddings: np.ndarray
    lengths: np.ndarray
    source: str


class ReferenceEmbeddings:
    """Embeds the held-out texts of each recipe's corpus with the teacher, once per corpus and seed."""

    def __init__(
        self, open_teacher: Callable[[], bundle.Bundle], suites: list[scoring.Suite], session: Session
    ) -> None:
        self.open_teacher, self.suites, self.session = open_teacher, suites, session
        self.by_corpus: dict[str, Reference] = {}

    def of(self, manifest: dict[str, Any], name: str) -> Reference:
        """The reference for a bundle: texts that its recipe held out from training, else the texts of the
        suites. `name`: for the log."""
        described = manifest.get("recipe") or {}
        key = json.dumps([described.get("corpus"), described.get("seed")], sort_keys=True)
        if key not in self.by_corpus:
            texts, source = self._texts(described, name)
            self.session.log(f"agreement of {name} with the teacher: {len(texts):,} {source}")
            teacher = self.open_teacher()
            lengths = np.array([len(ids) for ids in teacher.tokenize(texts)])
            self.by_corpus[key] = Reference(texts, teacher.encode(texts), lengths, source)
        return self.by_corpus[key]

    def _texts(self, described: dict[str, Any], name: str) -> tuple[list[str], str]:
        """(texts, source): held-out texts where the corpus' files are there, else the suites' own."""
        try:
            spec = recipe.parse(described, "manifest.json: recipe")
            if spec.corpus is not None and spec.corpus.held_out:
                recorded.check_confined(spec.corpus, self.session.data, "manifest.json: recipe.corpus")
                session = Session(data=self.session.data, log=self.session.log)
                if isinstance(spec.corpus, recipe.Parallel):  # the side that the teacher reads
                    built = parallel_corpus.build(spec.corpus, session, spec.seed).source_side
                else:
                    built = corpus.build(spec.corpus, session, spec.seed)
                at = built.held_out[
                    np.linspace(0, len(built.held_out) - 1, min(MAX_TEXTS, len(built.held_out))).astype(int)
                ]
                return built.texts(at), "held-out texts of its recipe's corpus"
        except UserError as error:
            needs_data = (described.get("corpus") or {}).get("kind", "files") in ("files", "parallel")
            reason = (
                " without --data" if needs_data and self.session.data is None else f" ({error.problems[0]})"
            )
            self.session.log(
                f"{name}: held-out texts not available{reason}; agreement is measured on the suite's texts"
            )
        texts = list(dict.fromkeys(text for suite in self.suites for text in suite.texts if text))
        return texts[:MAX_TEXTS], f"texts of {', '.join(suite.name for suite in self.suites)}"
