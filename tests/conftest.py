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


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    data = folder / "data"
    data.mkdir()
    (data / "texts.txt").write_text("\n".join(sentences(440)) + "\n", encoding="utf-8")
    before = os.environ.get("EDGEDISTILL_CACHE")
    os.environ["EDGEDISTILL_CACHE"] = str(folder / "cache")
    yield World(folder, make_teacher(folder / "teacher"), data)
    os.environ.pop("EDGEDISTILL_CACHE") if before is None else os.environ.update(EDGEDISTILL_CACHE=before)


def make_tokenizer() -> Any:
    """A WordPiece tokenizer of 200 tokens, learned from the sentences; the same in every process.

    The trainer numbers letters inside words by a hash that differs each time, and prefers low numbers among
    pairs that are equally
    frequent: so these letters are given first, as `learn_wordpiece` does.
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


def make_teacher(folder: Path) -> Path:
    """A sentence-transformers folder: BERT 2 × 32 from a seed, mean pooling, unit length."""
    import torch
    from transformers import BertConfig, BertModel

    from edgedistill import files

    words = make_tokenizer()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    model = BertModel(config, add_pooling_layer=False)
    for parameter in model.parameters():  # spread the weights, so that texts differ
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    chain = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    files.write_json(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(chain)
        ],
    )
    files.write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
    )
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
