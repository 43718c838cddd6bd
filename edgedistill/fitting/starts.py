"""What a teacher makes possible: the encoder whose layers students take, their vocabularies, finished
students to go on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerBase

from edgedistill import bundle_run, files, recipe
from edgedistill.data.corpus import Corpus
from edgedistill.data.rows import Rows
from edgedistill.errors import UserError
from edgedistill.fitting import texts
from edgedistill.fitting.candidates import MAX_TOKENS, FinishedStudent, StartingPoint, Vocabulary
from edgedistill.fitting.cost import tokenizer_bytes
from edgedistill.resolve import PACKAGED
from edgedistill.session import Session
from edgedistill.students import bert_layers
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student import student_tokenizer, weight_source
from edgedistill.training.load_models import Models, open_weights
from edgedistill.vocabulary.trim_tokenizer import is_trimmable

KEPT = (3, 12)  # a token is kept where the texts use it so often
LEARNED = (12_000, 25_000, 40_000)  # sizes of vocabularies learned from the texts
# The largest student without an encoder to start from.
RANDOM: dict[str, Any] = {"depth": 4, "width": 256, "heads": 4, "neurons": 1024}


def find(teacher: TeacherEncoder, sample: list[str], session: Session) -> StartingPoint:
    """The start that this teacher allows: its own layers, else those of a packaged encoder that knows the
    texts' words, else random ones.

    `sample` holds some of the texts to train on.
    """
    shared: dict[str, Any] = {"dims": teacher.dims, "finished": _finished_students(sample)}
    for weights in ("teacher", *(f"packaged:{name}" for name in PACKAGED)):
        try:
            found, tokenizer = _source(weights, teacher)
        except UserError as error:
            session.log(f"students cannot start from {weights}: {error}")
            continue
        if weights != "teacher" and texts.whole_words(tokenizer, sample) < texts.OTHER:
            continue
        config, first = found.model.config, bert_layers.first_position(found.layers.pad)
        positions = min(MAX_TOKENS + first, config.max_position_embeddings)
        return StartingPoint(
            weights,
            weights,
            depth=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            neurons=config.intermediate_size,
            positions=positions,
            max_tokens=min(teacher.max_tokens, positions - first),
            wordpiece=_is_wordpiece(tokenizer),
            **shared,
        )
    most, wordpiece = min(MAX_TOKENS, teacher.max_tokens), _is_wordpiece(teacher.tokenizer)
    sizes = {**RANDOM, "positions": most, "max_tokens": most}
    return StartingPoint("", "teacher", **sizes, wordpiece=wordpiece, **shared)


def _source(
    weights: str, teacher: TeacherEncoder
) -> tuple[weight_source.WeightSource, PreTrainedTokenizerBase]:
    """An encoder to start from, and its tokenizer. Raises UserError where there is none."""
    spec = _spec(teacher, {"kind": "bert", "weights": weights, "tokenizer": weights})
    models = Models(teacher, weights=open_weights(spec.student))
    tokenizer = student_tokenizer.build(spec, models, None, Session())
    found = weight_source.find(spec.built, models, tokenizer)
    assert found is not None
    if not hasattr(found.model.config, "num_attention_heads") or type(found.model).__name__ != "BertModel":
        raise UserError(f"{weights}: its layers cannot be projected to a smaller width; choose another")
    return found, tokenizer


def _finished_students(sample: list[str]) -> tuple[FinishedStudent, ...]:
    """The shipped students that know the texts' words. One that had another teacher is given a new head."""
    found = []
    for name, path in sorted(files.shipped("bundle").items()):
        opened = bundle_run.open_finished(name, "fit")
        if texts.whole_words(opened.tokenizer(), sample) >= texts.OTHER:
            graphs = (path.parent / each["file"] for each in files.read_json(path)["precisions"].values())
            size = min(graph.stat().st_size for graph in graphs)
            size += (path.parent / "tokenizer.json").stat().st_size
            found.append(FinishedStudent(name, opened.kind, size))
    return tuple(found)


def _is_wordpiece(tokenizer: PreTrainedTokenizerBase) -> bool:
    backend: Any = tokenizer.backend_tokenizer
    return isinstance(backend.model, tokenizer_models.WordPiece)


def vocabularies(
    start: StartingPoint, teacher: TeacherEncoder, corpus: Corpus, folder: Path
) -> dict[str, Vocabulary]:
    """The vocabularies that candidates choose from, by name: all of the start's tokens, those that the texts
    use, learned ones.

    Of those of one size only the first is kept. The tokenizers are written to `folder`, for
    `tokenizer_folder`, and read from there the next time.
    """
    found: dict[str, Vocabulary] = {}

    def add(name: str, section: dict[str, Any]) -> PreTrainedTokenizerBase:
        spec = _spec(teacher, {"kind": "static", "width": 2, "tokenizer": start.tokenizer, **section})
        kept = tokenizer_folder(folder, name)
        tokenizer = student_tokenizer.build(spec, Models(teacher), Rows.of_texts(corpus), Session(), kept)
        if len(tokenizer) not in {each.size for each in found.values()}:
            found[name] = Vocabulary(section, len(tokenizer), tokenizer_bytes(tokenizer, start.max_tokens))
        return tokenizer

    whole = add("all", {})
    for count in KEPT if is_trimmable(whole) else ():
        add(f"kept {count}", {"trim": {"min_count": count}})
    for size in LEARNED:
        learned = {"vocabulary_size": size} if start.wordpiece else {"unigram": {"vocabulary_size": size}}
        if len(add(f"learned {size}", learned)) < size:
            break  # the texts hold no more
    return found


def tokenizer_folder(folder: Path, vocabulary: str) -> Path:
    """Where the tokenizer of a vocabulary lies, as in an unfinished run's folder."""
    return folder / vocabulary.replace(" ", "-")


def _spec(teacher: TeacherEncoder, student: dict[str, Any]) -> recipe.Recipe:
    """A recipe that only names a student: nothing reads its corpus."""
    named = teacher.spec.model_dump(exclude_defaults=True)
    corpus = {"kind": "documentation"}
    return recipe.parse({"name": "fit", "teacher": named, "student": student, "corpus": corpus}, "fit")
