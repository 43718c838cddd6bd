"""A tiny real world, made once: a BERT of 2 layers and 32 dims with its own 200 pieces, a corpus, an STS
suite, runs."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
collect_ignore = ["faults"] if os.name == "nt" else []  # limits and signals of POSIX

LONGEST = """test_every_recipe.py test_core.py test_fit.py test_adapting.py test_processes.py test_places.py
test_web.py test_javascript.py test_faults.py test_server.py test_bench.py""".split()

WORDS = {
    "who": "the cat|the dog|a child|my neighbour|the teacher|an old man|the young singer|our doctor".split(
        "|"
    ),
    "does": "eats|watches|finds|carries|paints|sells|forgets|cleans".split("|"),
    "what": "a red apple|the newspaper|two small boxes|the garden wall|a wooden chair|her letter|the blue "
    "car|some bread".split("|"),
    "when": "in the morning|after dinner|on Sunday|before the rain|every day|at the station|near the "
    "river|without a word".split("|"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]):
    """The files that take longest come first, so that no process is left with one at the end."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def sentences(count: int, seed: int = 0) -> list[str]:
    """Distinct plain sentences."""
    draw = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[
            " ".join(draw.choice(words) for words in WORDS.values()) + draw.choice([".", "!", ", he said."])
        ] = None
    return list(found)


@dataclass(frozen=True)
class World:
    """Where the tiny teacher and its data lie, and a recipe over them."""

    folder: Path
    teacher: Path
    data: Path

    def recipe(self, **changes: Any) -> dict[str, Any]:
        data: dict[str, Any] = {
            "name": "tiny",
            "teacher": {"model": str(self.teacher), "max_tokens": 32},
            "rows": {"files": ["texts.txt"], "held_out": 40},
            "student": {"kind": "bert", "layers": 1, "width": 16, "heads": 2, "head": "linear"},
            "stages": [
                {"name": "distil", "objective": {"kind": "cosine"}, "steps": 12, "batch": 16, "bucket": 4}
            ],
        }
        return {**data, **changes}

    def spec(self, **changes: Any) -> Any:
        from edgedistill import recipe

        return recipe.parse(self.recipe(**changes), "test")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    data = folder / "data"
    data.mkdir()
    (data / "texts.txt").write_text("\n".join(sentences(440)) + "\n", encoding="utf-8")
    before = os.environ.get("EDGEDISTILL_CACHE")
    os.environ["EDGEDISTILL_CACHE"] = str(folder / "cache")
    measure_briefly()
    yield World(folder, make_teacher(folder / "teacher"), data)
    os.environ.pop("EDGEDISTILL_CACHE") if before is None else os.environ.update(EDGEDISTILL_CACHE=before)


def measure_briefly():
    """What plans by measured seconds measures a call or two: here no number is too rough."""
    from edgedistill.adapting import plan as adapting_plan
    from edgedistill.fitting import judge
    from edgedistill.fitting import plan as fitting_plan
    from edgedistill.fitting import texts as fitting_texts
    from edgedistill.planning import cost, training_time

    cost.MOST_SECONDS, cost.ROUNDS, training_time.TEACHER_SECONDS = 0.0, 1, 0.0
    adapting_plan.TEACHER_S = fitting_plan.TEACHER_S = 0.1
    fitting_texts.MOST_EPOCHS = 0.5  # a fit ends by its steps
    judge.PASSAGES, judge.QUERIES = 100, 60


def make_tokenizer() -> Any:
    """A WordPiece tokenizer of 200 tokens, learned from the sentences; the same in every process.

    The trainer numbers letters inside words by a hash that differs each time, and prefers low numbers among
    pairs that are equally
    frequent: so these letters are given first, as for any WordPiece.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

    def empty(**given: Any) -> Any:
        made = Tokenizer(models.WordPiece(**given, unk_token="[UNK]"))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        return made

    def learned(size: int, first: list[str]) -> dict[str, int]:
        tokenizer = empty()
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False)
        tokenizer.train_from_iterator(sentences(300, seed=1), trainer)
        return dict(tokenizer.get_vocab())

    letters = sorted(token for token in learned(0, special) if token.startswith("##"))
    raw = empty(vocab=learned(200, [*special, *letters]))
    raw.add_special_tokens(special)
    raw.post_processor = processors.BertProcessing(
        ("[SEP]", raw.token_to_id("[SEP]")), ("[CLS]", raw.token_to_id("[CLS]"))
    )
    raw.decoder = decoders.WordPiece()
    names = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True)
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=64, **names)


def make_encoder(folder: Path, words: Any, kind: str = "bert", chain: bool = True, **sizes: int) -> Path:
    """An encoder from a seed: a sentence-transformers folder, with mean pooling and unit length; without
    `chain` a plain AutoModel's, with its pooler."""
    import torch
    from transformers import AutoConfig, AutoModel

    from edgedistill import files

    torch.manual_seed(0)
    ids = {"vocab_size": len(words), "pad_token_id": words.pad_token_id, "max_position_embeddings": 64}
    config = AutoConfig.for_model(kind, **ids, num_attention_heads=4, **sizes)
    model = AutoModel.from_config(config, add_pooling_layer=not chain)
    for parameter in model.parameters():  # spread the weights, so that texts differ
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    if chain:
        parts = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
        modules = [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{part}"}
            for at, (path, part) in enumerate(parts)
        ]
        files.write_json(folder / "modules.json", modules)
        pooling = {"word_embedding_dimension": sizes["hidden_size"], "pooling_mode_mean_tokens": True}
        files.write_json(folder / "1_Pooling" / "config.json", pooling)
    return folder


def make_teacher(folder: Path) -> Path:
    """BERT 2 × 32."""
    from edgedistill import files

    make_encoder(folder, make_tokenizer(), hidden_size=32, num_hidden_layers=2, intermediate_size=64)
    files.write_json(folder / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False})
    return folder


@contextmanager
def added_kinds(*sections: Any) -> Iterator[None]:
    """Let recipes hold further kinds, and no longer afterwards."""
    from edgedistill import recipe

    recipe.add(*sections)
    yield
    for section in sections:
        del section.kinds[get_args(section.model_fields["kind"].annotation)[0]]
    recipe.add()
