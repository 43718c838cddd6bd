"""The student's tokenizer: the teacher's, the assistant's or a named one, perhaps trimmed to the corpus; or
learned from the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from edgedistill import files, recipe, resolve, run
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.teacher import tokenizer_files
from edgedistill.training.load_models import Models, model_files, with_weights
from edgedistill.vocabulary import learn_tokenizer, trim_tokenizer


def build(
    spec: recipe.Recipe,
    models: Models,
    texts: Corpus | ParallelCorpus | None,
    session: Session,
    folder: Path | None = None,
) -> PreTrainedTokenizerBase:
    """The tokenizer that a recipe asks for.

    texts: what a vocabulary is learned from or trimmed to. folder: the unfinished run's; the tokenizer is
        written there, and read from
    there if it is there already. Raises UserError where the recipe learns or trims a vocabulary and has no
    corpus.
    """
    kept = folder / "tokenizer" if folder else None
    if kept and kept.exists():
        return AutoTokenizer.from_pretrained(kept, trust_remote_code=False)
    student = spec.student
    if isinstance(student, recipe.Finished):
        assert models.finished is not None
        return _kept(models.finished.tokenizer(), kept)
    assert isinstance(student, recipe.BuiltStudent)
    corpora = (
        [texts.source_side, texts.target_side]
        if isinstance(texts, ParallelCorpus)
        else [texts]
        if texts
        else []
    )
    for field in ("vocabulary_size", "unigram"):
        if getattr(student, field) is not None and not corpora:
            raise UserError(
                f"student.{field}: is learned from the corpus, and the recipe has none; add a corpus, or "
                "leave it out"
            )
    if student.unigram is not None:
        tokenizer = learn_tokenizer.learn_unigram(corpora, student.unigram, session=session)
    else:
        tokenizer = _named(student, models)
    if student.vocabulary_size is not None:
        tokenizer = learn_tokenizer.learn_wordpiece(tokenizer, corpora, student.vocabulary_size)
    trimming = None
    if student.trim is not None:
        tokenizer, trimming = _trimmed(tokenizer, corpora, student.trim)
        session.log(f"student.trim: {trim_tokenizer.summary_line(trimming)}")
    return _kept(tokenizer, kept, trimming)


def _kept(
    tokenizer: PreTrainedTokenizerBase, folder: Path | None, trimming: Any = None
) -> PreTrainedTokenizerBase:
    """The tokenizer, written to the unfinished run's folder if there is one. trimming: the content of
    trim.json."""
    tokenizer = tokenizer_files.from_the_start(tokenizer)
    if folder:
        with files.new_folder(folder) as temporary:
            tokenizer_files.save_tokenizer(tokenizer, temporary)
            if trimming is not None:
                files.write_json(temporary / "trim.json", trimming)
    return tokenizer


def _named(student: recipe.BuiltStudent, models: Models) -> PreTrainedTokenizerBase:
    if student.tokenizer == "teacher":
        return with_weights(models.teacher, "student.tokenizer").tokenizer
    if student.tokenizer == "assistant":
        assert models.assistant is not None, "the recipe's own checks guarantee it"
        return models.assistant.tokenizer
    found = resolve.resolve(student.tokenizer)
    if isinstance(found, resolve.HubId) and "revision" not in type(student).model_fields:
        raise UserError(
            f"student.tokenizer: no such folder: {student.tokenizer!r}; give packaged:NAME, or a folder with "
            "tokenizer.json"
        )
    return load_named(found, getattr(student, "revision", None))


def load_named(found: resolve.Resolved, revision: str | None) -> PreTrainedTokenizerBase:
    """The tokenizer of a run or of a model, which `student.tokenizer` names."""
    if isinstance(found, resolve.RunFolder):
        return run.open_run(found.folder, "student.tokenizer").tokenizer()
    return tokenizer_files.load_tokenizer(model_files(found, revision, "student.tokenizer"))


def _trimmed(
    tokenizer: PreTrainedTokenizerBase, corpora: list[Corpus], spec: recipe.Trim
) -> tuple[PreTrainedTokenizerBase, Any]:
    """(the tokenizer with the tokens of the corpus only, the content of trim.json)."""
    if not corpora:
        raise UserError(
            "student.trim: keeps the tokens of the corpus, and the recipe has none; add a corpus, or leave "
            "it out"
        )
    names = ("source side, ", "target side, ") if len(corpora) > 1 else ("",)
    sources = [trim_tokenizer.corpus_texts(each, name) for each, name in zip(corpora, names, strict=True)]
    trained, held_out = [trained for trained, _ in sources], [held for _, held in sources]
    found = trim_tokenizer.trimmed(tokenizer, trained, held_out, spec.min_count)
    return found.tokenizer, found.report
