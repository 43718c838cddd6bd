"""The texts of a fit: which corpus they make, and what is weak about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgedistill import files, recipe
from edgedistill.data import corpus, file_patterns, readers
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.fitting import language
from edgedistill.fitting.candidates import MAX_TOKENS
from edgedistill.fitting.request import DOCUMENTATION, FitRequest
from edgedistill.session import Session
from edgedistill.teacher.encoder import TeacherEncoder

MOST_TEXTS = 200_000  # more bring a small student nothing in an hour
LEAST_TEXTS = 200
FEW_TEXTS, ENOUGH_TEXTS = (
    2_000,
    20_000,
)  # below these a student knows little besides, or still gains from more
HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 2_000
SAMPLE = 1_500  # texts that language and length are judged by
MANY_DUPLICATES, MANY_LONG = 0.2, 0.1
LONG_WORDS = 35  # of a text as long as a paragraph
PARAGRAPHS_SHARE = 0.35  # of the texts, added where there are only sentences
PASSAGES_SHARE, WORDS_OF_A_PASSAGE = 1.5, 16  # of long texts

NONE_GIVEN = (
    "--texts: none given; a fit needs texts of the kind that the student will embed: "
    f"{LEAST_TEXTS:,} at least, {ENOUGH_TEXTS:,} are better, no labels, one text per line: --texts "
    "'folder/*.txt' (also .md, .tsv, .csv, "
    ".jsonl, .parquet, each also .gz); to try it without any, --texts documentation takes the sentences of "
    "Python's "
    "documentation that come with this package"
)


@dataclass(frozen=True)
class TextsReport:
    """What was found: facts for the log, and what will be weak."""

    facts: list[str]
    weak: list[str]


def section(request: FitRequest) -> dict[str, Any]:
    """The corpus of a recipe, all of the texts and none held out. Raises UserError where none are given, and
    where no file matches."""
    if not request.texts:
        raise UserError(NONE_GIVEN)
    patterns = [each for each in request.texts if each != DOCUMENTATION]
    if not patterns:
        return {"kind": "documentation"}
    if request.data is None:
        patterns = file_patterns.from_here(patterns)
    column = {} if request.column == "text" else {"column": request.column}
    added = {"documentation_texts": ENOUGH_TEXTS} if DOCUMENTATION in request.texts else {}
    paths = file_patterns.matching_files(patterns, request.data, "--texts")
    unit = {"unit": "auto"} if any(map(readers.is_wrapped, paths)) else {}
    return {"texts": patterns, **column, **unit, **added}


def read(request: FitRequest, session: Session) -> Corpus:
    """All the texts, at most MOST_TEXTS of them spread evenly. Raises UserError as `section`, as reading them
    does, and for too few."""
    try:
        built = corpus.build(_parsed(section(request) | {"limit": MOST_TEXTS}), session, request.seed)
    except UserError as error:
        raise UserError(*(each.replace("corpus.column", "--column") for each in error.problems)) from None
    if len(built) < LEAST_TEXTS:
        fact = (
            f"{len(built)} distinct texts; a fit needs {LEAST_TEXTS:,} at least, {ENOUGH_TEXTS:,} are better"
        )
        raise UserError(
            f"--texts: {fact}; add texts, or --texts documentation, which comes with this package"
        )
    return built


def _parsed(section: dict[str, Any]) -> corpus.Spec:
    found = recipe.parse(
        {"name": "fit", "teacher": {"model": "fit"}, "student": {"kind": "teacher"}, "corpus": section}, "fit"
    )
    assert found.corpus is not None and not isinstance(found.corpus, recipe.Parallel)
    return found.corpus


def check(read: Corpus, teacher: TeacherEncoder) -> TextsReport:
    """Language, length, duplicates, number. Raises UserError for texts in a language that the teacher does
    not know."""
    sample = _sample(read)
    words = _words(sample)
    tokens = np.array([len(row) for row in _tokens(teacher, sample)])
    lines = int(files.read_json(read.folder / "corpus.json")["read"])
    low, middle, high = (int(np.quantile(words, share)) for share in (0.05, 0.5, 0.95))
    whole = language.whole_words(teacher.tokenizer, sample)
    facts = [
        f"{lines:,} texts, {len(read):,} used, of {low} to {high} words (median {middle}); {whole:.0%} of "
        "words are known whole"
    ]
    if whole < language.OTHER:
        example = _shortened(sample[len(sample) // 2])
        raise UserError(
            f"--texts: {language.unknown(whole)} ({example}); give a teacher of their language, or other "
            "texts"
        )
    weak = list(_weak(len(read), whole))
    if len(read) < MOST_TEXTS and 1 - len(read) / max(1, lines) > MANY_DUPLICATES:
        weak.append(f"{1 - len(read) / lines:.0%} of the texts are duplicates or empty, and were left out")
    long = float((tokens > MAX_TOKENS).mean())
    if long > MANY_LONG:
        weak.append(
            f"{long:.0%} of the texts have more than {MAX_TOKENS} tokens; students read the first "
            f"{MAX_TOKENS}"
        )
    if _all_short(words):
        weak.append(
            "all texts are short; neighbouring ones are joined to paragraphs too, which stand for longer "
            "documents only roughly"
        )
    return TextsReport(facts, weak)


def _weak(texts: int, whole: float) -> Iterable[str]:
    if texts < FEW_TEXTS:
        few = (
            f"{texts:,} texts are few: the student will know little besides them, and scores on so few "
            "held-out texts are rough"
        )
        yield f"{few}; add texts, or --texts documentation"
    elif texts < ENOUGH_TEXTS:
        yield f"{texts:,} texts; students of this size still gain from up to {ENOUGH_TEXTS:,} and more"
    if whole < language.UNSURE:
        yield (
            f"only {whole:.0%} of the words are in the teacher's vocabulary as a whole: names, jargon, or "
            "more than one language"
        )


def _tokens(teacher: TeacherEncoder, texts: list[str]) -> list[list[int]]:
    backend: Any = teacher.tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return [encoding.ids for encoding in backend.encode_batch(texts)]


def _shortened(text: str) -> str:
    return f'"{text[:60]}…"' if len(text) > 60 else f'"{text}"'


def paragraphs(read: Corpus) -> list[str]:
    """Texts as long as the paragraphs that short ones are joined to, to time the teacher with; none where
    long ones are among them."""
    sample = _sample(read)
    if not _all_short(_words(sample)):
        return []
    words, size = " ".join(sample).split(" "), sum(recipe.Paragraphs(texts=1).words) // 2
    return [" ".join(words[start : start + size]) for start in range(0, len(words), size)]


def _sample(read: Corpus) -> list[str]:
    return read.texts(np.linspace(0, len(read) - 1, min(SAMPLE, len(read))).astype(int))


def _words(texts: list[str]) -> np.ndarray:
    return np.array([text.count(" ") + 1 for text in texts])


def _all_short(words: np.ndarray) -> bool:
    """Whether texts of so many words are hardly ever as long as a paragraph."""
    return float(np.quantile(words, 0.95)) < LONG_WORDS


def training_section(
    request: FitRequest, read: Corpus, most: int, paragraph_cost: float = 1.0
) -> dict[str, Any]:
    """The corpus that all candidates train on, with held-out texts. most: how many texts the teacher can
    embed; paragraph_cost: of a paragraph for the teacher, in texts.

    Sentences are joined to paragraphs too, and passages of long texts are added, so that the student knows
    short texts and long ones.
    """
    whole, words = section(request), _words(_sample(read))
    short, long = _all_short(words), float(np.median(words)) >= LONG_WORDS
    from_files = "texts" in whole
    share = (
        PARAGRAPHS_SHARE
        if short
        else min(PASSAGES_SHARE, float(words.mean()) / WORDS_OF_A_PASSAGE)
        if long and from_files
        else 0.0
    )
    texts = int(min(len(read), most / (1 + share * paragraph_cost)))
    added = round(share * texts)
    name = "paragraphs" if short else "passages"
    limited = {"limit": texts} if texts < len(read) or len(read) == MOST_TEXTS else {}
    held_out = min(MOST_HELD_OUT, round(HELD_OUT_SHARE * texts))
    return {**whole, **limited, "held_out": held_out, **({name: {"texts": added}} if added else {})}


def build(section: dict[str, Any], session: Session, seed: int) -> Corpus:
    """The corpus of a recipe's section."""
    return corpus.build(_parsed(section), session, seed)
