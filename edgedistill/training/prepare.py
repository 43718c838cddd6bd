"""recipe -> what a run begins with: texts, tokens, what the student is to match, and the untrained student."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedTokenizerBase

from edgedistill import objectives, recipe
from edgedistill.data import corpus, parallel, triples
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel import Pairs
from edgedistill.data.token_cache import Tokens, tokenize
from edgedistill.errors import UserError
from edgedistill.session import Session
from edgedistill.students import kinds, static
from edgedistill.students.output import own
from edgedistill.teacher import assistant as assistants
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import precomputed, targets
from edgedistill.teacher.embedding_cache import Vectors, embed_corpus
from edgedistill.training import initialise
from edgedistill.training.inputs import pair_feed, text_feed, view_makers
from edgedistill.training.inputs.text_feed import Feed


@dataclass(frozen=True)
class Made:
    """What every stage of a run works with."""

    texts: Corpus | Pairs
    vectors: targets.Rows | None  # what the student is to match; of pairs, what the first stage over them matches, if one does
    feeds: list[Feed]  # one a stage
    words: PreTrainedTokenizerBase
    student: nn.Module
    shape: dict[str, Any]
    drops_head: bool  # a projection onto the teacher's space serves training only


def prepare(spec: recipe.Recipe, session: Session, accelerator: Accelerator, partial: Path) -> Made:
    """Texts, tokens, teacher vectors and the untrained student, from the caches where they have them."""
    assert spec.corpus is not None
    with accelerator.main_process_first():
        teacher, assistant = (
            initialise.open_teacher(spec.teacher, session.data),
            open_assistant(spec),
        )  # first: one that is not there costs a moment
        texts = open_corpus(spec.corpus, session, spec.seed)
        ahead = look_ahead(spec, texts, teacher, session)
        words = initialise.own_tokenizer(spec, teacher, texts, partial, session, assistant)
        student, shape = initialise.build(spec, teacher, words, session.data, initialise.look(spec, words, texts, session), assistant)
        check_objectives(spec, student, teacher.dims, assistant)
        most = shape["max_tokens"]
        if isinstance(texts, Pairs):
            models = pair_feed.Models(teacher, assistant)
            pair_feed.check(spec, models, words)
            tokens = pair_feed.tokens(spec, texts, words, most, session)
            _weigh(spec, student, words, list(zip(tokens, (texts.first.trained, texts.second.trained), strict=True)))
            others = [_of_triples(stage, each.triples, words, most, session) for stage, each in zip(spec.distilling, ahead, strict=True)]
            feeds = pair_feed.feeds(spec, texts, tokens, models, most, session, others)
            return Made(texts, pair_feed.matched(feeds), feeds, words, student, shape, _dropped_head(spec))
        longest = max(stage.max_tokens for stage in spec.distilling) if spec.distilling else most
        cut = tokenize(texts, words.backend_tokenizer, min(longest, most), words.pad_token_id or 0, session)
        for number, stage in enumerate(spec.distilling):
            if stage.longest is not None:
                queued(stage, len(cut.short(stage.longest, texts.trained)), f"stages[{number}]")
        vectors = wanted(spec, teacher, texts, (student, words, most), session, partial)
        _weigh(spec, student, words, [(cut, texts.trained)])
        feeds = [
            _of_triples(stage, each.triples, words, most, session) or _feed(spec, number, texts, cut, words, vectors, most, session)
            for number, (stage, each) in enumerate(zip(spec.distilling, ahead, strict=True))
        ]
    return Made(texts, vectors, feeds, words, student, shape, _dropped_head(spec))


def open_corpus(spec: recipe.Corpus, session: Session, seed: int) -> Corpus | Pairs:
    """A recipe's texts, or its pairs."""
    return parallel.build(spec, session, seed) if isinstance(spec, recipe.Parallel) else corpus.build(spec, session, seed)


def open_assistant(spec: recipe.Recipe) -> teachers.Teacher | None:
    """The recipe's assistant, where it names one."""
    return None if spec.assistant is None else assistants.open_assistant(spec.assistant)


def _weigh(spec: recipe.Recipe, student: nn.Module, words: PreTrainedTokenizerBase, read: list[tuple[Tokens, int]]) -> None:
    """Let a static student's weights start from how often each piece occurs. `read`: token ids, and how many rows of them count."""
    bare = own(student)
    if isinstance(bare, static.StaticStudent) and isinstance(spec.student, recipe.Static) and spec.student.weights == "sif":
        static.weigh(bare, torch.from_numpy(np.sum([tokens.counts(len(words), among) for tokens, among in read], 0)))


def _feed(
    spec: recipe.Recipe,
    number: int,
    texts: Corpus,
    tokens: Tokens,
    words: PreTrainedTokenizerBase,
    vectors: targets.Rows,
    max_tokens: int,
    session: Session,
) -> Feed:
    """What a stage over the corpus' texts reads."""
    stage = spec.distilling[number]
    wanted = vectors if objectives.reads_teacher(stage.objective) else None
    seed = stage_seed(spec.seed, number)
    return text_feed.of_texts(stage, f"stages[{number}].view", seed, texts, tokens, words, wanted, max_tokens, session)


def _of_triples(
    stage: recipe.Stage, found: triples.Triples | None, words: PreTrainedTokenizerBase, max_tokens: int, session: Session
) -> Feed | None:
    """The feed of a stage with triples of its own."""
    return None if found is None else text_feed.of_triples(found, words, min(stage.max_tokens, max_tokens), session)


def stage_seed(seed: int, number: int) -> int:
    """Every stage draws numbers of its own."""
    return seed * 1_000_003 + number


class Ahead(NamedTuple):
    """What a stage learns from: its own triples, or the corpus where it has none; how many rows, those of its queue left out."""

    triples: triples.Triples | None
    rows: int


def look_ahead(spec: recipe.Recipe, texts: Corpus | Pairs, teacher: initialise.Asked, session: Session) -> list[Ahead]:
    """What each stage will learn from, looked at before anything is embedded.

    Raises UserError for triples without their columns, a queue that leaves no text, views that cannot be had, and as `targets.check`.
    """
    check_targets(spec, texts.trained, teacher, session)
    leaks = spec.corpus.exclude if isinstance(spec.corpus, recipe.Files | recipe.Parallel) else []
    found = []
    for number, stage in enumerate(spec.distilling):
        place = f"stages[{number}]"
        if stage.triples is not None:
            own = triples.build(stage.triples, leaks, session, f"{place}.triples")
            found.append(Ahead(own, len(own)))
            continue
        rows = len(texts.of(stage.pairs)) if isinstance(texts, Pairs) else texts.trained
        if rows == 0:
            raise UserError(f"{place}.pairs: none are left of {', '.join(stage.pairs or [])} to train on; name others")
        found.append(Ahead(None, rows - queued(stage, rows, place)))
        if stage.view is not None and isinstance(texts, Corpus):
            view_makers.check(stage.view, stage_seed(spec.seed, number), texts, session, f"{place}.view")
    return found


def queued(stage: recipe.Stage, texts: int, place: str) -> int:
    """How many of a stage's texts start its queue and are not trained on. Raises UserError where that leaves none."""
    wanted = objectives.memory(stage.objective)
    if texts == 0:
        raise UserError(f"{place}.longest: no text of the corpus has {stage.longest} tokens or fewer; raise it")
    if wanted >= texts:
        raise UserError(f"{place}.objective: a queue of {wanted:,} texts leaves none of {texts:,} to train on; lower it")
    return wanted


def check_targets(spec: recipe.Recipe, texts: int, teacher: initialise.Asked, session: Session) -> None:
    """Raise UserError for `targets` that cannot be made of their teachers' numbers or of so many texts."""
    if spec.targets is not None:
        targets.check(spec.targets, lambda of: (initialise.open_teacher(of, session.data) if of else teacher).dims, texts)


def wanted(
    spec: recipe.Recipe,
    teacher: initialise.Asked,
    texts: Corpus,
    first: tuple[nn.Module, PreTrainedTokenizerBase, int] | None,
    session: Session,
    partial: Path,
) -> targets.Rows:
    """What the student is to match: the teacher's vectors, or what the recipe's `targets` make of those of its teachers.

    `first`: the untrained student, its tokenizer and its limit in tokens, for reducers that look at it.
    """
    found: dict[recipe.Teacher, Vectors] = {}

    def vectors(of: recipe.Teacher | None) -> Vectors:
        which = of or spec.teacher
        if which not in found:
            source = teacher if which == spec.teacher else initialise.open_teacher(which, session.data)
            if isinstance(source, precomputed.Given):
                found[which] = precomputed.vectors(source, texts, session)
            else:
                found[which] = embed_corpus(source, texts, session)
        return found[which]

    def student(rows: np.ndarray) -> np.ndarray:
        assert first is not None, "the recipe has made sure"
        module, words, max_tokens = first
        return encode(own(module).eval(), words, texts.texts(rows), max_tokens)

    if spec.targets is None:
        return vectors(None)
    return targets.make(spec.targets, vectors, texts.trained, student, spec.seed, partial / "targets", session.log)


def _dropped_head(spec: recipe.Recipe) -> bool:
    return not isinstance(spec.student, recipe.Itself) and spec.student.head != "none" and not spec.student.head_kept


def check_objectives(spec: recipe.Recipe, student: nn.Module, teacher_dims: int, assistant: teachers.Teacher | None = None) -> None:
    """Raise UserError where a stage's objective cannot compare the student's vectors with its targets, or cannot cut them."""
    assert not isinstance(spec.student, recipe.Itself)
    wide = spec.targets.width if spec.targets else teacher_dims
    for number, stage in enumerate(spec.distilling):
        place, match = f"stages[{number}].objective", stage.match or recipe.Match()
        theirs = assistant.dims if assistant is not None and match.of == "assistant" else wide
        width = (spec.student.dims or theirs) if _dropped_head(spec) else kinds.width(student)
        if match.at == "embeddings":
            assert assistant is not None
            bare: Any = own(student)
            width, theirs = int(bare.model.config.hidden_size), assistants.EmbeddingLayer(assistant).dims
        objectives.fits(stage.objective, width, theirs, place)
        if objectives.cuts(stage.objective) and (_dropped_head(spec) or isinstance(spec.targets, recipe.Split)):
            raise UserError(
                f"{place}: matryoshka cuts the student's own vectors, not blocks of several teachers, nor a head that is dropped"
            )


def encode(student: nn.Module, words: PreTrainedTokenizerBase, texts: list[str], max_tokens: int) -> np.ndarray:
    """Texts -> (n, d) float32 unit rows, by the module as it stands, on its own device."""
    forward = teachers.through_torch(student, next(student.parameters()).device)
    ids = teachers.encode_ids(words, texts, max_tokens)
    return teachers.unit_rows(forward, ids, words.pad_token_id or 0, kinds.width(student), 8_192)
