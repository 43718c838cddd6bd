"""A model's tokenizer and what its files say about reading texts: load, save, token ids, max input tokens,
prompt."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from edgedistill import recipe
from edgedistill.errors import UserError
from edgedistill.runtime.prompts import Prompts
from edgedistill.students import model_folder
from edgedistill.students.bert_layers import COUNTED_FROM_PADDING
from edgedistill.students.model_folder import ModelFolder, opening

# Model types whose positions start after the padding id, those too whose layers a student cannot take.
FROM_PADDING = (
    *COUNTED_FROM_PADDING,
    *"data2vec-text esm ibert longformer luke roberta-prelayernorm xlm-roberta-xl xmod".split(),
)
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
)
# of a model's own prompts for queries and for documents, in the order in which sentence-transformers'
# encode_query and encode_document look for them
ROLE_NAMES = (("query",), ("document", "passage", "corpus"))
# characters that vocabularies lack, though not all: a tokenizer without an unknown token raises for these
RARE = "𓀀 ꙮ 𒀀"


def load_tokenizer(opened: ModelFolder, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The fast tokenizer of a model folder, as sentence-transformers sets it up; in its layout, that of its
    transformer.

    Raises UserError: no tokenizer, one that cannot be read, a slow one, one that does not belong to the
    model, or a setting that other readers of its tokenizer.json would not follow.
    """
    folder = opened.folder
    model_folder.check_architecture(opened, trust_remote_code)
    if not trust_remote_code and not any((opened.transformer / name).exists() for name in TOKENIZER_FILES):
        # transformers would silently make a tokenizer with an empty vocabulary
        raise UserError(
            f"{folder}: a model without a tokenizer (none of {', '.join(TOKENIZER_FILES)}); add its "
            "tokenizer files"
        )
    options = {"trust_remote_code": trust_remote_code, "local_files_only": not trust_remote_code}
    with opening(folder, "its tokenizer cannot be read", "it must come with the model: download it again"):
        loaded = AutoTokenizer.from_pretrained(opened.transformer, use_fast=True, **options)
    if not loaded.is_fast:
        raise UserError(f"{folder}: only a slow Python tokenizer; save a tokenizer.json next to the model")
    _check(loaded, opened)
    return _lowered(loaded) if opened.lower_case else loaded


def _lowered(tokenizer: Any) -> Any:
    """The tokenizer with sentence-transformers' Lowercase in front of its normalizer, where there is none.

    Its class is one without a normalizer of its own: those of BERT and its relatives build theirs when a
    saved one is opened again.
    """
    backend = tokenizer.backend_tokenizer
    normalizer = backend.normalizer
    steps = [normalizer] * (normalizer is not None)
    if isinstance(normalizer, normalizers.Sequence):
        steps = list(iter(normalizer))
    if any(isinstance(step, normalizers.Lowercase) for step in steps):
        return tokenizer
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
    return with_backend(tokenizer, backend)


def with_backend(tokenizer: PreTrainedTokenizerBase, backend: Tokenizer) -> PreTrainedTokenizerBase:
    """A tokenizer of this backend, with the special tokens and limits of another one."""
    kept = ("model_max_length", "padding_side", "truncation_side", "model_input_names")
    options = {**tokenizer.special_tokens_map, **{name: getattr(tokenizer, name) for name in kept}}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)


def _check(loaded: Any, opened: ModelFolder) -> None:
    """Raise UserError for a tokenizer that gives ids or types that the model, or a reader of tokenizer.json,
    does not have."""
    folder = opened.transformer
    backend = loaded.backend_tokenizer
    rows = opened.config.get("vocab_size")
    largest = max(loaded.get_vocab().values(), default=0)
    if rows is not None and largest >= rows:
        raise UserError(
            f"{opened.folder}: the tokenizer has token ids up to {largest:,}, the model's embedding table "
            f"{rows:,} rows; use the tokenizer that belongs to the model"
        )
    fact = "its tokenizer has no token for unknown characters"
    way_out = "correct the unknown token in it"
    with opening(folder / "tokenizer.json", fact, way_out):
        backend.encode(RARE)
    unsupported = {
        "tokenizer_config.json: split_special_tokens: true": loaded.split_special_tokens,
        "tokenizer.json: a post_processor that gives the tokens of a text other types than 0": (
            "token_type_ids" in loaded.model_input_names and any(backend.encode("a").type_ids)
        ),
    }
    for setting, is_set in unsupported.items():
        if is_set:
            raise UserError(f"{folder / setting}, which is not supported here; {model_folder.ELSEWHERE}")


def from_the_start(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, or a copy of one that keeps the end of a long text (truncation_side: left) that keeps
    its start, as students do."""
    if tokenizer.truncation_side == "right":
        return tokenizer
    copied = copy.deepcopy(tokenizer)
    copied.truncation_side = copied.init_kwargs["truncation_side"] = "right"
    return copied


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer without the padding and truncation that the last encoding has set."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    tokenizer.save_pretrained(folder)


def encode_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str], max_tokens: int) -> list[np.ndarray]:
    """Token ids of each text, special tokens included, truncated at max_tokens; (n_i,) int32 each."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(max_tokens, direction=tokenizer.truncation_side)
    return [np.array(encoding.ids, np.int32) for encoding in backend.encode_batch_fast(texts)]


def prompts_of(spec: recipe.Teacher, opened: ModelFolder) -> Prompts:
    """What is put before texts, queries and documents: the recipe's prompts, or the model's own.

    Those are the model's default, and the first of ROLE_NAMES that the model has; where it has none of them,
    the one before texts. Raises UserError for a model that does not pool a prompt's tokens.
    """
    named = opened.prompts
    prompt = spec.prompt or opened.default_prompt
    texts = [prompt]
    for text, names in zip((spec.query_prompt, spec.document_prompt), ROLE_NAMES, strict=True):
        known = (named[name] for name in names if name in named)
        texts.append(next(known, prompt) if text is None else text)
    if any(texts) and not opened.pools_prompt:
        raise UserError(
            f"{opened.folder}: its pooling leaves the tokens of a prompt out (include_prompt: false), which "
            f"is not supported here; {model_folder.ELSEWHERE}"
        )
    return Prompts(*texts)


def max_input_tokens(opened: ModelFolder, tokenizer: PreTrainedTokenizerBase) -> int:
    """The longest input, in tokens: sentence-transformers' setting where the model has one, otherwise the
    tokenizer's own limit.

    Neither can be above the positions that the model has.
    """
    limit = opened.max_tokens or int(tokenizer.model_max_length)
    config = opened.config
    positions = config.get("max_position_embeddings")
    if positions is None or positions < 0:  # XLNet's -1: no limit
        return limit
    if config.get("model_type") in FROM_PADDING:
        positions -= int(config.get("pad_token_id") or 0) + 1
    return min(limit, int(positions))
