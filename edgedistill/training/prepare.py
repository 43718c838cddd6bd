"""recipe -> what a run trains on: corpus, tokens, target embeddings, and the student before its first step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator

from edgedistill import objectives, recipe
from edgedistill.data import corpus, parallel_corpus
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel_corpus import ParallelCorpus
from edgedistill.data.token_cache import TokenCache
from edgedistill.session import Session
from edgedistill.students import static
from edgedistill.students.output import own
from edgedistill.teacher import precomputed_embeddings, targets
from edgedistill.teacher.embedding_cache import embed_corpus
from edgedistill.teacher.targets import EmbeddingRows
from edgedistill.training import checkpoint, checks, student_embeddings, teacher_record
from edgedistill.training.initial_student import corpus_sample, finished_student, head_fit, initial_weights, student_tokenizer
from edgedistill.training.initial_student.prepared_student import PreparedStudent
from edgedistill.training.inputs import pair_batches, text_batches
from edgedistill.training.inputs.text_batches import Batches, TokenizedCorpus
from edgedistill.training.load_models import AnyTeacher, Models, open_models, open_teacher
from edgedistill.training.stages import distillation_stages


@dataclass(frozen=True)
class Prepared:
    """What the stages of a run work with."""

    texts: Corpus | ParallelCorpus
    targets: EmbeddingRows | None  # what the student is to match; of pairs, what the first stage over them matches, if one does
    batches: list[Batches]  # one for each stage
    student: PreparedStudent
    drops_head: bool  # a projection onto the teacher's dimensions serves training only


def prepare(spec: recipe.Recipe, session: Session, accelerator: Accelerator, folder: Path) -> Prepared:
    """Corpus, tokens, target embeddings and initial student of a recipe, from the caches where these have them.

    folder: the unfinished run's, which is given the tokenizer and the maps of `targets`. Raises UserError as the `checks` do.
    """
    assert spec.corpus is not None
    with accelerator.main_process_first():
        models = open_models(spec, session)  # first: a missing model is reported at once
        if isinstance(spec.student, recipe.Finished):
            finished_student.find(spec)  # likewise
        teacher_record.check_device(spec, session.device)
        teacher_record.keep(spec, session.data, folder)
        texts = open_corpus(spec.corpus, session, spec.seed)
        rows = checks.stage_rows(spec, texts, models.teacher, session)
        tokenizer = student_tokenizer.build(spec, models, texts, session, folder)
        resumed = spec.finetuning is None and checkpoint.exists(folder / "checkpoints")  # then all weights come from there
        sample = None if resumed else corpus_sample.sample(spec, tokenizer, texts, session)
        student = initial_weights.build(spec, models, tokenizer, session, sample, fitted=not resumed)
        checks.check_objectives(spec, student, models)
        of_triples = [_of_triples(stage, each, student, session) for stage, each in zip(spec.distilling, rows, strict=True)]
        if isinstance(texts, ParallelCorpus):
            return _over_pairs(spec, texts, models, student, of_triples, session)
        tokenized = TokenizedCorpus(texts, _tokens(spec, texts, student, session))
        found = target_embeddings(spec, models.teacher, texts, student, session, folder)
        if student.new_head and not resumed:
            head_fit.fit(student, found, texts, spec.seed, session)
        return _over_texts(spec, tokenized, found, student, of_triples, session)


def _over_pairs(
    spec: recipe.Recipe, pairs: ParallelCorpus, models: Models, student: PreparedStudent, of_triples: list[Batches | None], session: Session
) -> Prepared:
    """Stages over a parallel corpus. of_triples: the batches of the stages that have triples of their own."""
    pair_batches.check_tokenizers(spec, models, student.tokenizer)
    tokenized = pair_batches.tokenize(spec, pairs, student.limited_tokenizer, session)
    _set_token_weights(
        spec, student, [(tokenized.source, pairs.source_side.training_count), (tokenized.target, pairs.target_side.training_count)]
    )
    embedded = pair_batches.EmbeddedSides(pairs, models, session)
    batches = [
        own_batches or pair_batches.of_pairs(stage, tokenized, embedded, student.max_tokens)
        for stage, own_batches in zip(spec.distilling, of_triples, strict=True)
    ]
    first = next((each.targets for each in batches if each.targets is not None), None)
    return Prepared(pairs, first, batches, student, checks.drops_head(spec))


def _over_texts(
    spec: recipe.Recipe,
    corpus: TokenizedCorpus,
    targets: EmbeddingRows,
    student: PreparedStudent,
    of_triples: list[Batches | None],
    session: Session,
) -> Prepared:
    """Stages over a corpus of single texts. of_triples: the batches of the stages that have triples of their own."""
    _set_token_weights(spec, student, [(corpus.tokens, corpus.texts.training_count)])
    tokenizer, batches = student.limited_tokenizer, []
    for stage, own_batches in zip(distillation_stages(spec), of_triples, strict=True):
        of_stage = targets if objectives.reads_teacher(stage.spec.objective) else None
        batches.append(own_batches or text_batches.of_texts(stage, corpus, tokenizer, of_stage, session))
    return Prepared(corpus.texts, targets, batches, student, checks.drops_head(spec))


def _of_triples(stage: recipe.Stage, rows: checks.StageRows, student: PreparedStudent, session: Session) -> Batches | None:
    """The batches of a stage with triples of its own."""
    tokenizer = student.limited_tokenizer.limited(stage.max_tokens)
    return None if rows.triples is None else text_batches.of_triples(rows.triples, tokenizer, session)


def _tokens(spec: recipe.Recipe, texts: Corpus, student: PreparedStudent, session: Session) -> TokenCache:
    """Token ids of the corpus. Raises UserError where a stage skips so many texts as too long that too few remain."""
    tokens = student.limited_tokenizer.limited_to(spec.distilling).tokenize(texts, session)
    for stage in distillation_stages(spec):
        if stage.spec.skip_longer_than is not None:
            checks.queue_rows(stage, len(tokens.rows_up_to(stage.spec.skip_longer_than, texts.training_count)))
    return tokens


def open_corpus(spec: recipe.Corpus, session: Session, seed: int) -> Corpus | ParallelCorpus:
    """A recipe's texts, or its pairs."""
    return parallel_corpus.build(spec, session, seed) if isinstance(spec, recipe.Parallel) else corpus.build(spec, session, seed)


def _set_token_weights(spec: recipe.Recipe, student: PreparedStudent, counted: list[tuple[TokenCache, int]]) -> None:
    """Initialise a static student's token weights from token frequencies. counted: token ids, and how many of their rows count."""
    bare = own(student.module)
    if isinstance(bare, static.StaticStudent) and isinstance(spec.student, recipe.Static) and spec.student.token_weights == "sif":
        counts = np.sum([tokens.counts(len(student.tokenizer), rows) for tokens, rows in counted], 0)
        static.set_sif_weights(bare, torch.from_numpy(counts))


def target_embeddings(
    spec: recipe.Recipe,
    teacher: AnyTeacher,
    texts: Corpus,
    student: PreparedStudent | None,
    session: Session,
    folder: Path,
) -> EmbeddingRows:
    """What the student is to match: the teacher's embeddings, or what the recipe's `targets` make of those of its teachers.

    student: before its first step, for reducers and alignments that need its embeddings; None where the recipe has none of these.
    folder: the unfinished run's, where the fitted maps are written.
    """
    found: dict[recipe.Teacher, EmbeddingRows] = {}
    raw = isinstance(spec.targets, recipe.SingleTeacher) and spec.targets.raw

    def of_teacher(other: recipe.Teacher | None) -> EmbeddingRows:
        which = other or spec.teacher
        if which not in found:
            opened = teacher if which == spec.teacher else open_teacher(which, session)
            if isinstance(opened, precomputed_embeddings.PrecomputedEmbeddings):
                found[which] = precomputed_embeddings.corpus_embeddings(opened, texts, session)
            else:
                found[which] = embed_corpus(opened, texts, session, unit=not raw)
        return found[which]

    def of_student(rows: np.ndarray) -> np.ndarray:
        assert student is not None, "the recipe's own checks guarantee it"
        return student_embeddings.embed(own(student.module).eval(), student.tokenizer, texts.texts(rows), student.max_tokens)

    if spec.targets is None:
        return of_teacher(None)
    data = targets.FittingData(of_teacher, texts.training_count, of_student, spec.seed)
    return targets.load_or_fit(spec.targets, data, folder / "targets", session.log)
