"""What a teacher makes possible: the encoder whose layers students take, their vocabularies, finished
students to go on from."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerBase

from edgedistill import bundle_run, files, recipe
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.export import library_files
from edgedistill.fitting import language
from edgedistill.fitting.candidates import MAX_TOKENS, FinishedStudent, StartingPoint, Vocabulary
from edgedistill.resolve import PACKAGED
from edgedistill.session import Session
from edgedistill.students import bert_layers
from edgedistill.teacher.encoder import TeacherEncoder
from edgedistill.training.initial_student import student_tokenizer, weight_source
from edgedistill.training.load_models import Models, open_weights

KEPT = (3, 12)  # a token is kept where the texts use it so often
LEARNED = (12_000, 25_000, 40_000)  # sizes of vocabularies learned from the texts
RANDOM: dict[str, Any] = {
    "depth": 4,
    "width": 256,
    "heads": 4,
    "neurons": 1024,
}  # the largest student without an encoder to start from


def find(teacher: TeacherEncoder, texts: list[str], session: Session) -> StartingPoint:
    """The start that this teacher allows: its own layers, else those of a packaged encoder that knows the
    texts' words, else random ones.

    texts: a sample of those to train on.
    """
    finished = _finished_students(texts)
    for weights, tokenizer in (("teacher", "teacher"), *((f"packaged:{name}",) * 2 for name in PACKAGED)):
        try:
            found, loaded = _source(weights, tokenizer, teacher)
        except UserError as error:
            session.log(f"students cannot start from {weights}: {error}")
            continue
        if weights != "teacher" and language.whole_words(loaded, texts) < language.OTHER:
            continue
        config = found.model.config
        sizes = {
            "depth": config.num_hidden_layers,
            "width": config.hidden_size,
            "heads": config.num_attention_heads,
        }
        positions = min(
            MAX_TOKENS + bert_layers.first_position(found.layers.pad), config.max_position_embeddings
        )
        most = min(teacher.max_tokens, positions - bert_layers.first_position(found.layers.pad))
        known: dict[str, Any] = {
            **sizes,
            "neurons": config.intermediate_size,
            "positions": positions,
            "max_tokens": most,
        }
        known |= {"wordpiece": _wordpiece(loaded), "keeps_heads": found.layers.relative_bias is not None}
        return StartingPoint(weights, tokenizer, **known, dims=teacher.dims, finished=finished)
    wordpiece = _wordpiece(teacher.tokenizer)
    most = min(MAX_TOKENS, teacher.max_tokens)
    return StartingPoint(
        "",
        "teacher",
        **RANDOM,
        positions=most,
        max_tokens=most,
        dims=teacher.dims,
        wordpiece=wordpiece,
        finished=finished,
    )


def _source(
    weights: str, tokenizer: str, teacher: TeacherEncoder
) -> tuple[weight_source.WeightSource, PreTrainedTokenizerBase]:
    """An encoder to start from, and the student's tokenizer. Raises UserError where there is none."""
    spec = recipe.parse(_recipe(teacher, {"kind": "bert", "weights": weights, "tokenizer": tokenizer}), "fit")
    assert isinstance(spec.student, recipe.Bert)
    models = Models(teacher, weights=open_weights(spec.student))
    loaded = student_tokenizer.build(spec, models, None, Session())
    found = weight_source.find(spec.student, models, loaded)
    assert found is not None
    if not hasattr(found.model.config, "num_attention_heads") or type(found.model).__name__ != "BertModel":
        raise UserError(f"{weights}: its layers cannot be projected to a smaller width; choose another")
    return found, loaded


def _finished_students(texts: list[str]) -> tuple[FinishedStudent, ...]:
    """The shipped students that know the texts' words. One that had another teacher is given a new head."""
    found = []
    for name, path in sorted(files.shipped("bundle").items()):
        opened = bundle_run.open_finished(name, "fit")
        if language.whole_words(opened.tokenizer(), texts) >= language.OTHER:
            graphs = [path.parent / each["file"] for each in files.read_json(path)["precisions"].values()]
            smallest = min(graph.stat().st_size for graph in graphs)
            found.append(
                FinishedStudent(name, opened.kind, smallest + (path.parent / "tokenizer.json").stat().st_size)
            )
    return tuple(found)


def _wordpiece(tokenizer: PreTrainedTokenizerBase) -> bool:
    backend: Any = tokenizer.backend_tokenizer
    return isinstance(backend.model, tokenizer_models.WordPiece)


def vocabularies(
    start: StartingPoint, teacher: TeacherEncoder, corpus: Corpus, session: Session, folder: Path
) -> dict[str, Vocabulary]:
    """The vocabularies that candidates choose from, by name: all of the start's tokens, those that the texts
    use, learned ones.

    Of those of one size only the first is kept. folder: where the tokenizers are written, for
    `tokenizer_folder`.
    """
    found: dict[str, Vocabulary] = {}

    def add(name: str, section: dict[str, Any]) -> int:
        student = {"kind": "static", "width": 2, "tokenizer": start.tokenizer, **section}
        spec = recipe.parse(_recipe(teacher, student), "fit")
        tokenizer = student_tokenizer.build(
            spec, Models(teacher), corpus, session, tokenizer_folder(folder, name)
        )
        if len(tokenizer) not in {each.size for each in found.values()}:
            found[name] = Vocabulary(section, len(tokenizer), tokenizer_bytes(tokenizer, start.max_tokens))
        return len(tokenizer)

    add("all", {})
    for count in KEPT:
        add(f"kept {count}", {"trim": {"min_count": count}})
    for size in LEARNED:
        learned = {"vocabulary_size": size} if start.wordpiece else {"unigram": {"vocabulary_size": size}}
        if add(f"learned {size}", learned) < size:
            break  # the texts hold no more
    return found


def tokenizer_folder(folder: Path, vocabulary: str) -> Path:
    """Where the tokenizer of a vocabulary lies, as in an unfinished run's folder."""
    return folder / vocabulary.replace(" ", "-")


def tokenizer_bytes(tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> int:
    """Bytes of the tokenizer.json that a bundle would have."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        found = library_files.tokenizer_json(Path(folder), max_tokens)
    return len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()) + 1


def _recipe(teacher: TeacherEncoder, student: dict[str, Any]) -> dict[str, Any]:
    corpus = {"kind": "documentation"}  # named only: nothing reads it
    return {
        "name": "fit",
        "teacher": teacher.spec.model_dump(exclude_defaults=True),
        "student": student,
        "corpus": corpus,
    }
