"""Tiny WordPiece tokenizers made on the spot, and a small bundle whose parts a phone gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from edgedistill.export import bundle_writer
from tests.export.test_export import make_run

TOKENS = (
    "the cat dog watch eat find ##ing ##s ##ed un ##known strasse cafe naive "
    "東 京 ᄀ ᅡ ᆨ 가 é É À a b c d e f g "
    "h i l m n o p r s t u v w "
    "##a ##b ##c ##d ##e ##f ##g ##h ##i ##k ##l ##m ##n ##o ##p ##r ##t ##u ##w ##x ##é ##0 ##1 . , ! ? ' - "
    "= ; $ « ” 🙂 A B C T The Cat "
    "0 1 2 ½ ² ﬁ"
).split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture
def wordpiece() -> Callable[..., Tokenizer]:
    """A WordPiece tokenizer by its normalizer and options; nothing is learned."""

    def make(normalizer: Any = None, max_word: int = 100, added: tuple[Any, ...] = ()) -> Tokenizer:
        ids = {token: number for number, token in enumerate([*SPECIAL, *TOKENS])}
        found = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=max_word))
        found.normalizer = normalizer or normalizers.BertNormalizer()
        found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        found.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        found.add_special_tokens(SPECIAL)
        found.add_tokens(list(added))
        found.enable_truncation(16)
        return found

    return make


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle."""
    root = tmp_path_factory.mktemp("mobile")
    bundle_writer.export(make_run(root / "run"), ["fp32", "w8"], root / "x", lambda line: None)
    return root / "x"
