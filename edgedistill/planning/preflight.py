"""What is wrong around a recipe, found in a moment: before torch is imported, a corpus is read or a text embedded."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from edgedistill import files, recipe
from edgedistill.data import readers
from edgedistill.errors import UserError, of_each
from edgedistill.evaluation import scoring

MUON = (2, 9)  # the torch that brought it


def check_all(specs: list[recipe.Recipe], data: Path | None) -> None:
    """Raise UserError with what is wrong around each recipe; of several, each line says whose it is."""
    if data is not None and not data.is_dir():
        raise UserError(f"--data {data}: no such folder; give the one that the recipes' paths start from")
    of_each(specs, lambda spec: check(spec, data))


def check(spec: recipe.Recipe, data: Path | None) -> None:
    """Raise UserError with all of these: patterns that match no file, a suite that cannot be read, an optimizer torch does not have yet."""
    problems: list[str] = []
    for patterns, place in _patterns(spec):
        try:
            readers.matching(patterns, data, place)
        except UserError as error:
            problems += error.problems
    if spec.select is not None:
        try:
            scoring.suite(spec.select.suite, data)
        except UserError as error:
            shipped = spec.select.suite in files.shipped("suite") and not isinstance(spec.corpus, recipe.Parallel)
            other = ", or --set select.suite=mini, which needs no data" if shipped else ""
            problems += [f"select.suite: {problem}{other}" for problem in error.problems]
    muon = [number for number, stage in enumerate(spec.distilling) if stage.optimizer == "muon"]
    if muon and tuple(int(part) for part in version("torch").split(".")[:2]) < MUON:
        log = f"muon needs torch 2.9, this is {version('torch')}; update it, or choose adamw"
        problems += [f"stages[{number}].optimizer: {log}" for number in muon]
    if problems:
        raise UserError(*problems)


def _patterns(spec: recipe.Recipe) -> Iterator[tuple[list[str], str]]:
    """Patterns of the files that training reads, and where the recipe names them."""
    if not spec.reads_corpus:
        return  # the teacher as it is, or a student that only labels teach: the corpus is for bench
    if isinstance(spec.corpus, recipe.Files):
        yield spec.corpus.texts, "corpus.texts"
    if isinstance(spec.corpus, recipe.Parallel):
        yield from ((part.files, f"corpus.pairs[{number}].files") for number, part in enumerate(spec.corpus.pairs) if part.files)
    if isinstance(spec.corpus, recipe.Files | recipe.Parallel):
        yield spec.corpus.exclude, "corpus.exclude"
    for number, stage in enumerate(spec.distilling):
        if isinstance(stage.triples, recipe.TripleFiles):
            yield stage.triples.files, f"stages[{number}].triples.files"
