"""The student before its first step: its tokenizer, its shape, its first weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from edgedistill import files, recipe, run
from edgedistill.data.corpus import Corpus
from edgedistill.data.parallel import Pairs
from edgedistill.data.token_cache import tokenize
from edgedistill.errors import UserError
from edgedistill.session import QUIET, Session
from edgedistill.students import bert, bilstm, head, kinds, narrow_bert, recurrent, static
from edgedistill.students.output import Output
from edgedistill.students.sentence_transformer import layout, whole
from edgedistill.teacher import assistant as assistants
from edgedistill.teacher import encoder as teachers
from edgedistill.teacher import precomputed
from edgedistill.vocabulary import learn_tokenizer, translation_init, trim_tokenizer

LOOKED_AT = 512  # texts that first weights are fitted to

SHORT = 32  # tokens of them that are read

Asked = teachers.Teacher | precomputed.Given


def open_teacher(spec: recipe.Teacher, data: Path | None) -> Asked:
    """A teacher to ask (a finished run too), or the file of its vectors."""
    return assistants.open_assistant(spec) if spec.vectors is None else precomputed.Given(spec, data)


def _weights(teacher: Asked, what: str) -> teachers.Teacher:
    if isinstance(teacher, precomputed.Given):
        raise UserError(f"{what}: the teacher is a file of vectors ({teacher.path.name}) and has none to give; choose another source")
    return teacher


def own_tokenizer(
    spec: recipe.Recipe,
    teacher: Asked,
    texts: Corpus | Pairs | None,
    partial: Path | None,
    session: Session = QUIET,
    assistant: teachers.Teacher | None = None,
) -> PreTrainedTokenizerBase:
    """The student's tokenizer: the teacher's or a named one, trimmed to the corpus or not, or one learned. Kept in the run's folder."""
    folder = partial / "tokenizer" if partial else None
    if folder and folder.exists():
        return AutoTokenizer.from_pretrained(folder)
    student = spec.student
    assert not isinstance(student, recipe.Itself)
    corpora = [texts.first, texts.second] if isinstance(texts, Pairs) else [texts] if texts else []
    for field in ("vocabulary", "unigram"):
        if getattr(student, field) is not None and not corpora:
            raise UserError(f"student.{field}: is learned from the corpus, and the recipe has none")
    if student.unigram is not None:
        words = learn_tokenizer.learn_unigram(corpora, student.unigram, session=session)
    else:
        words = _named_tokenizer(student, teacher, assistant)
    if student.vocabulary is not None:
        words = learn_tokenizer.learn(words, corpora, student.vocabulary)
    lost = None
    if student.trim is not None:
        if not corpora:
            raise UserError("student.trim: keeps the pieces of the corpus, and the recipe has none")
        names = ("first side, ", "second side, ") if len(corpora) > 1 else ("",)
        sources = [trim_tokenizer.of_corpus(each, name) for each, name in zip(corpora, names, strict=True)]
        words, _, lost, _ = trim_tokenizer.trimmed(
            words, [trained for trained, _ in sources], [held for _, held in sources], student.trim.min_count
        )
        session.log(f"student.trim: {trim_tokenizer.line(lost)}")
    if folder:
        with files.new_folder(folder) as temporary:
            teachers.save_tokenizer(words, temporary)
            if lost is not None:
                files.write_json(temporary / "trim.json", lost)
    return words


class Look(NamedTuple):
    """What first weights are fitted to. `weights` (V,) float64, or None: what each piece counts for where the word table is reduced,
    (its count in the training texts + 1)^power. `seen`: (ids, mask), each (B, T), of texts spread over the training texts. `pairs`: those
    whose translations give first vectors."""

    weights: Tensor | None
    seen: tuple[Tensor, Tensor]
    pairs: Pairs | None = None


def look(spec: recipe.Recipe, words: PreTrainedTokenizerBase, texts: Corpus | Pairs, session: Session) -> Look | None:
    """A look at the training texts, where the student's first weights ask for one; of pairs, both sides are counted, the first is seen."""
    student = spec.student
    assert not isinstance(student, recipe.Itself)
    weighed, translated = student.embeddings.weigh != "none", student.embeddings.of == "translations"
    if not weighed and not translated and not (isinstance(student, recipe.Bert) and student.reduced):
        return None
    longest = min(max((stage.max_tokens for stage in spec.stages), default=student.max_tokens), student.max_tokens)
    corpora = [texts.first, texts.second] if isinstance(texts, Pairs) else [texts]
    read = [tokenize(each, words.backend_tokenizer, longest, words.pad_token_id or 0, session) for each in corpora]
    rows = np.linspace(0, corpora[0].trained - 1, min(LOOKED_AT, corpora[0].trained)).astype(np.int64)
    ids, mask = read[0].batch(rows, SHORT)
    counts = np.sum([tokens.counts(len(words), each.trained) for tokens, each in zip(read, corpora, strict=True)], 0)
    weights = torch.from_numpy((counts + 1.0) ** student.embeddings.power) if weighed else None
    pairs = texts if translated and isinstance(texts, Pairs) else None
    if pairs is not None:
        session.log(f"fitting {len(words):,} pieces to their translations in {pairs.trained:,} pairs: some minutes where there are many")
    return Look(weights, (torch.from_numpy(ids), torch.from_numpy(mask)), pairs)


def _named_tokenizer(student: head.Headed, teacher: Asked, assistant: teachers.Teacher | None) -> PreTrainedTokenizerBase:
    if student.tokenizer == "teacher":
        return _weights(teacher, "student.tokenizer").tokenizer
    if student.tokenizer == "assistant":
        assert assistant is not None, "the recipe has made sure"
        return assistant.tokenizer
    if run.is_run(student.tokenizer):
        return run.open_run(Path(student.tokenizer), "student.tokenizer").tokenizer()
    return teachers.tokenizer(_model_folder(student.tokenizer, getattr(student, "revision", None), "student.tokenizer"))


def build(
    spec: recipe.Recipe,
    teacher: Asked,
    words: PreTrainedTokenizerBase,
    data: Path | None,
    looked: Look | None = None,
    assistant: teachers.Teacher | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """The student before its first step, and its shape as data. The same recipe gives the same weights.

    `looked`: the recipe's `look`; whoever asks for the shape alone, or for what it costs, leaves it out.
    """
    module, shape = _first_student(spec, teacher, words, data, looked, assistant)
    if not isinstance(spec.targets, recipe.Split):
        return module, shape
    if kinds.width(module) != spec.targets.width:
        blocks = " + ".join(str(size) for size, _ in spec.targets.blocks)
        raise UserError(f"targets.parts: {blocks} numbers for a student of {kinds.width(module)}; the dims must add up to its width")
    return Output(module, None, spec.targets.blocks), {**shape, "blocks": spec.targets.blocks}


def _first_student(
    spec: recipe.Recipe,
    teacher: Asked,
    words: PreTrainedTokenizerBase,
    data: Path | None,
    looked: Look | None,
    assistant: teachers.Teacher | None,
) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(spec.seed)
    weights = looked.weights if looked else None
    width = spec.targets.width if spec.targets else teacher.dims
    asked, pad = spec.student, words.pad_token_id or 0
    source = _source(asked, teacher, words, assistant) if isinstance(asked, recipe.Bert | recipe.Recurrent) else None
    student = _within_trained_places(spec, source)
    start = _first_vectors(spec, teacher, words, source, data, looked.pairs if looked else None)
    if isinstance(student, recipe.BiLSTM):
        shape = bilstm.shape(student, len(words), pad, width)
        module: nn.Module = bilstm.build(shape)
        bilstm.start(module, start, weights)  # type: ignore[arg-type]
        return module, shape
    if isinstance(student, recipe.Static):
        shape = static.shape(student, len(words), pad, width)
        module = static.build(shape)
        static.start(module, start, student.embeddings.of == "outputs", weights)
        return module, shape
    model = source.model if source else None
    if isinstance(student, recipe.Recurrent):
        assert model is not None  # a recurrent student always has a source
        assert source is not None
        applied = getattr(model.encoder, "times", 1)  # of a recurrent student's own layers
        shape = recurrent.shape(student, len(words), pad, width, model.config, source.counted, applied)
        if shape["positions"] == "pad" and words.pad_token_id is None:
            raise UserError("student.positions: counted from padding, and the tokenizer names no padding token; set positions: zero")
        unit = recurrent.build(shape)
        recurrent.start(unit, recurrent.chosen(student, model.config), model, source.counted, start, weights)
        _start_head(unit, source)
        return unit, shape
    smaller = narrow_bert.shape(student, model.config) if model and student.reduced else {}
    shape = bert.shape(student, len(words), pad, width, model.config if model else None, smaller)
    module = bert.build(shape)
    if student.reduced:
        assert model is not None and start is not None
        if looked is not None:
            narrow_bert.start(module, model, bert.chosen(student, model.config), start, looked.seen, weights)
        return module, shape
    bert.start(module, bert.chosen(student, model.config) if model else None, model, start, student.embeddings.of == "outputs", weights)
    _start_head(module, source)
    return module, shape


def _within_trained_places(spec: recipe.Recipe, source: Source | None) -> recipe.Bert | recipe.BiLSTM | recipe.Recurrent | recipe.Static:
    """The recipe's student. Where its position table starts from noise it reads no further than the stages train that table; where it
    starts from a run, no further than that run or the stages."""
    student = spec.student
    assert not isinstance(student, recipe.Itself)
    fresh = isinstance(student, recipe.Bert) and student.weights == "random"
    fresh = fresh or (isinstance(student, recipe.Recurrent) and student.embeddings.source == "random")
    known = [] if fresh else [source.most] if source is not None and source.most is not None else [student.max_tokens]
    trained = [*known, *(stage.max_tokens for stage in spec.distilling)]
    if not trained or spec.finetuning is not None:
        return student
    return student.model_copy(update={"max_tokens": min(student.max_tokens, max(trained))})


def _start_head(module: Any, source: Source | None) -> None:
    """A head of the shape of the source's starts as that one."""
    theirs = source.head if source else None
    if theirs is not None and module.head is not None and module.head.weight.shape == theirs.weight.shape:
        module.head.load_state_dict(theirs.state_dict())


class Source(NamedTuple):
    """The encoder whose weights a student starts from, and the tokenizer that its word table's rows belong to."""

    model: Any
    words: PreTrainedTokenizerBase
    counts: str | None = None  # from where it counts positions, where its config does not say
    head: Any = None  # what a finished run has behind its pooling
    most: int | None = None  # tokens that a finished run reads; its places behind those were never trained

    @property
    def counted(self) -> str:
        """From where it counts positions: behind the padding id (`pad`), or from 0 (`zero`)."""
        return self.counts or ("pad" if self.model.config.model_type in teachers.COUNTS_FROM_PAD else "zero")


def _source(
    student: recipe.Bert | recipe.Recurrent, teacher: Asked, words: PreTrainedTokenizerBase, assistant: teachers.Teacher | None
) -> Source | None:
    """The encoder that a BERT's weights, or a recurrent student's layers, come from."""
    known, kind, instead = {"BertModel": "bert"}, "BERT", "use `weights: random`"
    if isinstance(student, recipe.Recurrent):
        known, kind, instead = recurrent.SOURCES, "BERT or RoBERTa", "give an assistant that is one"
    if student.weights == "random":
        return None
    asked = _weights(teacher, "student.weights") if student.weights == "teacher" else assistant if student.weights == "assistant" else None
    if run.is_run(student.weights):
        asked = assistants.open_assistant(recipe.Teacher(model=student.weights))
    if asked is not None:
        model: Any = getattr(asked.module, "model", None)
        if type(model).__name__ not in known:
            raise UserError(f"student.weights: {asked.spec.name} is {type(model).__name__}, not {kind}; {instead}")
        if not isinstance(asked, assistants.OfRun):
            return Source(model, asked.tokenizer)
        if isinstance(asked.module, recurrent.RecurrentStudent) and isinstance(student, recipe.Bert):
            raise UserError(
                f"student.weights: {asked.spec.model} is a recurrent student, whose layers a BERT reads otherwise; use `kind: recurrent`"
            )
        counts = "zero" if getattr(asked.module, "pad", None) is None else "pad"
        return Source(model, asked.tokenizer, counts, getattr(asked.module, "head", None), asked.run.max_tokens)
    folder = _model_folder(student.weights, student.revision, "student.weights")
    transformer, _ = layout(folder)
    if files.read_json(transformer / "config.json").get("model_type") not in known.values():
        raise UserError(f"student.weights: {folder} is not a {kind}; choose one, or {instead}")
    model = whole(transformer, dtype=torch.float32, add_pooling_layer=student.pooling == "cls_pooler")
    bare = not any((transformer / name).exists() for name in teachers.TOKENIZERS)
    if bare and student.tokenizer != "teacher":  # weights without a tokenizer are taken to go with the one that is named
        return Source(model, teachers.tokenizer(_model_folder(student.tokenizer, student.revision, "student.tokenizer")))
    theirs = teachers.tokenizer(folder)
    if student.tokenizer == "teacher" and not words.get_vocab().keys() <= theirs.get_vocab().keys():
        way_out = f"set student.tokenizer: {student.weights}"
        raise UserError(f"student.tokenizer: the weights of {student.weights} belong to another vocabulary; {way_out}")
    return Source(model, theirs)


def _model_folder(name: str, revision: str | None, what: str) -> Path:
    if name.startswith("packaged:"):
        return teachers.locate(recipe.Teacher(model=name))
    return teachers.folder(name, revision, what)


def _first_vectors(
    spec: recipe.Recipe, teacher: Asked, words: PreTrainedTokenizerBase, source: Source | None, data: Path | None, pairs: Pairs | None
) -> Tensor | None:
    """Vectors (V, w) that the word table starts from, or None for random ones."""
    student = spec.student
    assert not isinstance(student, recipe.Itself)
    if isinstance(student, recipe.Recurrent) and student.embeddings.source == "random":
        return None
    if source is None and student.embeddings.source == "glove":
        assert student.embeddings.file is not None and not isinstance(student, recipe.Recurrent) and student.width is not None
        return learn_tokenizer.from_glove(words, (data or Path()) / student.embeddings.file, student.width, spec.seed)
    if source is not None:
        model, theirs = source.model, source.words
    elif student.embeddings.source == "teacher":
        giver = _weights(teacher, "student.embeddings")
        if student.embeddings.of == "outputs":
            return torch.from_numpy(giver.embed_ids(learn_tokenizer.as_texts(words, giver.tokenizer)))
        asked: Any = giver.module
        model, theirs = asked.model, giver.tokenizer
    else:
        return None
    table = model.get_input_embeddings().weight.detach()
    own = learn_tokenizer.from_model(words, theirs, table)
    return own if pairs is None else translation_init.start(own, words, theirs, table, pairs)
