"""The texts of a user: which corpus they make, and whether a teacher knows their
language."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgedistill import recipe
from edgedistill.data import file_patterns, readers
from edgedistill.data.corpus import Corpus
from edgedistill.data.input_file import KINDS
from edgedistill.errors import UserError, as_options, counted
from edgedistill.session import Session
from edgedistill.training.training_sources import TrainingSources

if TYPE_CHECKING:  # `adapt` counts texts before it imports torch
    from transformers import PreTrainedTokenizerBase

    from edgedistill.teacher.encoder import TeacherEncoder

DOCUMENTATION = "documentation"  # a name for texts: sentences that come with this package
MOST_TEXTS = 200_000  # more bring a small student nothing in an hour
LEAST_TEXTS = 200
FEWEST = 50  # that a student can be adapted to, and measured on
ENOUGH_TEXTS = 20_000  # of which a student of this size gains
MOST_EPOCHS = 40.0  # more passes over the texts bring nothing
MAX_TOKENS = 256  # of a text, that a student of a fit reads
# General texts beside the user's: a share of these, at least so many as the maps between spaces need.
GENERAL_SHARE, LEAST_GENERAL, MOST_GENERAL = 0.25, 1_000, 4_000
HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 2_000
SAMPLE = 1_500  # texts that language and length are judged by
LONG_WORDS = 35  # of a text as long as a paragraph
PARAGRAPHS_SHARE = 0.35  # of the texts, added where there are only sentences
PASSAGES_SHARE, WORDS_OF_A_PASSAGE = 1.5, 16  # of long texts
# Shares of words that a teacher's tokenizer keeps whole. Measured with all-MiniLM's on 1,500 texts each: 26
# English sources .86 to .99, documentation of software .91; French .58, Spanish .51, Italian .47, Dutch .41,
# German .40, Polish .23, Turkish .20, Russian .11, Chinese and Arabic .00.
OTHER = 0.65  # below, the texts are in a language that the teacher does not know
# A vocabulary of many languages cuts words of each, and only unknown tokens tell. Such a share of its tokens
# is in ASCII, and such a share is not: .34 and .66 in XLM-R, .55 and .45 in `multi`, .95 and .05 in BERT.
OF_MANY_LANGUAGES = 0.2
BEFORE_WORDS = "▁Ġ"  # what stands for a space in tokens
WORD = re.compile(r"[^\W\d_]+")

NONE_GIVEN = (
    "--texts: none given; a fit needs texts of the kind that the student will embed: "
    f"{LEAST_TEXTS:,} at least, {ENOUGH_TEXTS:,} are better, no labels, one text per line: --texts "
    f"'folder/*.txt' (also {', '.join(KINDS[1:])}, each also .gz), or a folder; to try it without any, "
    "--texts documentation takes the sentences of Python's documentation that come with this package"
)


def section(texts: Sequence[str], column: str | None, data: Path | None) -> dict[str, Any]:
    """The corpus of a recipe: all of the texts and none held out. `texts` are globs, or DOCUMENTATION.

    Raises UserError where none are given, and where no file matches.
    """
    if not texts:
        raise UserError(NONE_GIVEN)
    patterns = [pattern for pattern in texts if pattern != DOCUMENTATION]
    if not patterns:
        return {"files": [recipe.DOCUMENTATION]}
    added = {"documentation_texts": ENOUGH_TEXTS} if DOCUMENTATION in texts else {}
    return files_section(patterns, column, data) | added


def files_section(patterns: list[str], column: str | None, data: Path | None) -> dict[str, Any]:
    """The corpus of all texts of some files, relative to the data folder where they are below that."""
    patterns, paths = file_patterns.given(patterns, data, "--texts")
    named = {} if column is None else {"column": column}
    unit = {"unit": "auto"} if any(map(readers.is_wrapped, paths)) else {}
    return {"files": patterns, **named, **unit}


def read(section: dict[str, Any], least: int, session: Session, seed: int = 0) -> Corpus:
    """The texts of a section. Raises UserError as reading them does, and for fewer than `least`."""
    with as_options({"rows.column": "--column", "rows: ": "--texts: "}):
        built = TrainingSources(parsed(section), {}, session, seed).texts.sides[0]
    if len(built) < least:
        few = counted(len(built), "distinct text")
        raise UserError(f"--texts: {few}, at least {least} are needed; add texts")
    return built


def parsed(section: dict[str, Any]) -> recipe.Rows:
    """A recipe's section of texts."""
    whole = {"name": "texts", "teacher": {"model": "m"}, "student": {"kind": "teacher"}, "rows": section}
    rows = recipe.parse(whole, "--texts").rows
    assert rows is not None, "it has this section"
    return rows


def described(read: Corpus, teacher: TeacherEncoder) -> str:
    """Number, length and language of the texts, in a line. Raises UserError for texts in a language that the
    teacher does not know."""
    texts = sample(read)
    known = whole_words(teacher.tokenizer, texts)
    if known < OTHER:
        example = texts[len(texts) // 2][:60]
        way_out = "give a teacher of their language, or other texts"
        raise UserError(f'--texts: {unknown_language(known)} (such as "{example}"); {way_out}')
    words = word_counts(texts).mean()
    fact = f"{len(read):,} of {words:.0f} words on average, {known:.0%} of them known whole"
    more = f"; students of this size gain from up to {ENOUGH_TEXTS:,} and more"
    return fact + more * (len(read) < ENOUGH_TEXTS)


def sample(read: Corpus) -> list[str]:
    """Some of the texts, spread evenly."""
    return read.texts(read.spread(SAMPLE))


def word_counts(texts: list[str]) -> np.ndarray:
    """(n,) the number of words of each text."""
    return np.array([text.count(" ") + 1 for text in texts])


def training_section(whole: dict[str, Any], read: Corpus, most: int) -> dict[str, Any]:
    """The corpus that all candidates train on, with held-out texts. The teacher can embed `most` texts, and
    paragraphs in proportion to their words.

    Sentences are joined to paragraphs too, and passages of long texts are added, so that the student knows
    short texts and long ones; and general texts, so that it knows others than the user's.
    """
    words = word_counts(sample(read))
    mean, is_documentation = float(words.mean()), whole["files"] == [recipe.DOCUMENTATION]
    name, share, cost = "passages", 0.0, 1.0
    if np.quantile(words, 0.95) < LONG_WORDS:  # hardly any is as long as a paragraph
        name, share = "paragraphs", PARAGRAPHS_SHARE
        cost = sum(recipe.Paragraphs(texts=1).words) / 2 / mean
    elif np.median(words) >= LONG_WORDS and not is_documentation:
        share = min(PASSAGES_SHARE, mean / WORDS_OF_A_PASSAGE)
    general = min(MOST_GENERAL, max(LEAST_GENERAL, round(GENERAL_SHARE * min(len(read), most))))
    general = 0 if is_documentation else max(general, whole.get("documentation_texts", 0))
    count = int(min(len(read), max(LEAST_TEXTS, (most - min(general, MOST_GENERAL)) / (1 + share * cost))))
    section = {**whole, "held_out": min(MOST_HELD_OUT, round(HELD_OUT_SHARE * count))}
    if count < len(read) or len(read) == MOST_TEXTS:
        section["limit"] = count
    if added := round(share * count):
        section[name] = {"texts": added}
    if general:
        section["documentation_texts"] = general
    return section


# ---- the language that a teacher knows


def whole_words(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> float:
    """The share of words, runs of letters, that are one known token; in a vocabulary of many languages,
    without an unknown one."""
    words = [f" {word}" for text in texts for word in WORD.findall(text)]
    ascii_tokens = [token.strip(BEFORE_WORDS).isascii() for token in tokenizer.get_vocab()]
    share = sum(ascii_tokens) / len(ascii_tokens)
    most = math.inf if min(share, 1 - share) >= OF_MANY_LANGUAGES else 1
    known = [len(ids) <= most and tokenizer.unk_token_id not in ids for ids in token_ids(tokenizer, words)]
    return sum(known) / max(1, len(words))


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> Iterator[list[int]]:
    """The ids of each text, whole and without special tokens."""
    backend: Any = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return (encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False))


def unknown_language(whole: float) -> str:
    """What a share of whole words below OTHER says, for messages."""
    return (
        f"the teacher's tokenizer cuts {1 - whole:.0%} of the texts' words into several tokens, as it "
        "does in languages it does not know"
    )
