"""A model's tokenizer and what its files say about reading texts: load, save, max input tokens, prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from edgedistill import files, recipe
from edgedistill.errors import UserError, unknown_name
from edgedistill.students import sentence_transformer
from edgedistill.students.bert_layers import COUNTED_FROM_PADDING

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model")


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The fast tokenizer of a model folder; in a sentence-transformers layout, that of its transformer.

    Raises UserError: no tokenizer, one that cannot be read, a slow one, or one that does not belong to the model.
    """
    transformer, _ = sentence_transformer.layout(folder)
    if not trust_remote_code and not any((transformer / name).exists() for name in TOKENIZER_FILES):
        # transformers would silently make a tokenizer with an empty vocabulary
        raise UserError(f"{folder}: a model without a tokenizer (none of {', '.join(TOKENIZER_FILES)}); add its tokenizer files")
    try:
        loaded = AutoTokenizer.from_pretrained(transformer, use_fast=True, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: its tokenizer cannot be read: {str(error).splitlines()[0]}; it must come with the model") from error
    if not loaded.is_fast:
        raise UserError(f"{folder}: only a slow Python tokenizer; save a tokenizer.json next to the model")
    vocabulary_size = files.read_json(transformer / "config.json").get("vocab_size")
    if vocabulary_size is not None and len(loaded) > vocabulary_size:
        sizes = f"the tokenizer has {len(loaded):,} tokens, the model's embedding table {vocabulary_size:,}"
        raise UserError(f"{folder}: {sizes}; use the tokenizer that belongs to the model")
    return loaded


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer without the padding and truncation that the last encoding has set."""
    backend: Any = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    tokenizer.save_pretrained(folder)


def prompt_of(spec: recipe.Teacher, folder: Path) -> str:
    """The text put before every input: the recipe's, one of the model's own by name, or the model's default.

    Raises UserError for a name that the model does not have, and for a model that does not pool a prompt's tokens.
    """
    prompt = _prompt(spec, folder)
    if prompt and not sentence_transformer.prompt_is_pooled(folder):
        fact = "its pooling leaves the tokens of a prompt out (include_prompt: false), which is not supported here"
        raise UserError(f"{folder}: {fact}; embed with sentence-transformers, and give the file as teacher.embeddings")
    return prompt


def _prompt(spec: recipe.Teacher, folder: Path) -> str:
    own = folder / "config_sentence_transformers.json"
    config = files.read_json(own) if own.exists() else {}
    prompts = config.get("prompts") or {}
    if spec.prompt_name is None:
        return spec.prompt or prompts.get(config.get("default_prompt_name") or "", "")
    if spec.prompt_name not in prompts:
        raise UserError(f"teacher.prompt_name: {unknown_name('prompt', spec.prompt_name, prompts)}")
    return str(prompts[spec.prompt_name])


def max_input_tokens(folder: Path, tokenizer: PreTrainedTokenizerBase) -> int:
    """The longest input, in tokens, that a model's files allow."""
    transformer, _ = sentence_transformer.layout(folder)
    config = files.read_json(transformer / "config.json")
    limits = [int(tokenizer.model_max_length)]
    sentence_bert = transformer / "sentence_bert_config.json"
    if sentence_bert.exists() and (own := files.read_json(sentence_bert).get("max_seq_length")):
        limits.append(int(own))
    if "max_position_embeddings" in config:
        offset = int(config.get("pad_token_id") or 0) + 1 if config.get("model_type") in COUNTED_FROM_PADDING else 0
        limits.append(int(config["max_position_embeddings"]) - offset)
    return min(limits)
