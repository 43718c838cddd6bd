"""The student's tokenizer: the teacher's, the assistant's or a named one, perhaps trimmed to the corpus; or
learned from the corpus."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from edgedistill import files, recipe, resolve, run
from edgedistill.data.corpus import Corpus
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.students import model_folder
from edgedistill.teacher import tokenizer_files
from edgedistill.training.load_models import Models, with_weights
from edgedistill.vocabulary import learn_tokenizer, trim_tokenizer

# The options that read the corpus, and what they do with it.
OF_THE_CORPUS = {
    "unigram": "is learned from",
    "trim": "keeps the tokens of",
}


def build(
    spec: recipe.Recipe,
    models: Models,
    texts: Rows | None,
    session: Session,
    folder: Path | None = None,
) -> PreTrainedTokenizerBase:
    """The tokenizer that a recipe asks for.

    A vocabulary is learned from `texts` or trimmed to them. The tokenizer is written to `folder`, the
    unfinished run's, and read from there if it is there already. Raises UserError where the recipe learns or
    trims a vocabulary and has no corpus.
    """
    if folder is not None and (folder / "tokenizer").exists():
        return AutoTokenizer.from_pretrained(folder / "tokenizer", trust_remote_code=False)
    if models.finished is not None:
        tokenizer = models.finished.tokenizer()
    else:
        tokenizer = _new(spec.built, models, [] if texts is None else texts.sides, session)
    tokenizer = tokenizer_files.from_the_start(tokenizer)
    keep(tokenizer, folder)
    return tokenizer


def keep(tokenizer: PreTrainedTokenizerBase, folder: Path | None) -> None:
    """Write a tokenizer to the unfinished run's `folder`, where it is not there yet."""
    if folder is None or (folder / "tokenizer").exists():
        return
    with files.new_folder(folder / "tokenizer") as temporary:
        tokenizer_files.save_tokenizer(tokenizer, temporary)


def _new(
    student: recipe.BuiltStudent, models: Models, corpora: list[Corpus], session: Session
) -> PreTrainedTokenizerBase:
    """The tokenizer of a student whose shape the recipe describes."""
    for field, what in OF_THE_CORPUS.items():
        if getattr(student, field) is not None and not corpora:
            raise UserError(
                f"student.{field}: {what} the rows, and the recipe has none; add `rows`, or leave it out"
            )
    if student.unigram is not None:
        return learn_tokenizer.learn_unigram(corpora, student.unigram, session=session)
    tokenizer = named(student, models)
    if student.trim is None:
        return tokenizer
    smaller = trim_tokenizer.trimmed(tokenizer, corpora, student.trim)
    session.log(f"student.trim: {len(smaller):,} of {len(tokenizer):,} tokens kept")
    return smaller


def named(student: recipe.BuiltStudent, models: Models) -> PreTrainedTokenizerBase:
    """The whole tokenizer that `student.tokenizer` names: the teacher's, the assistant's, that of a run or of
    another model."""
    if student.tokenizer == "teacher":
        return with_weights(models.teacher, "student.tokenizer").tokenizer
    if student.tokenizer == "assistant":
        return models.taught.tokenizer
    source = resolve.resolve(student.tokenizer)
    if isinstance(source, resolve.RunFolder):
        return run.open_run(source.folder, "student.tokenizer").tokenizer()
    if isinstance(source, resolve.HubId) and "revision" not in type(student).model_fields:
        raise UserError(
            f"student.tokenizer: no such folder: {student.tokenizer!r}; give packaged:NAME, or a folder with "
            "tokenizer.json"
        )
    revision = getattr(student, "revision", None)
    folder = resolve.model_files(source, revision, "student.tokenizer")
    return tokenizer_files.load_tokenizer(model_folder.read(folder))
