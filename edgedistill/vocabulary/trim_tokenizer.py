"""Trim a tokenizer to the tokens that texts use and those they depend on, so that texts of these tokens are
tokenized as before."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from edgedistill import recipe
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError, unknown_name
from edgedistill.files import Json
from edgedistill.teacher.tokenizer_files import with_backend

CHUNK = 8_192  # texts tokenized at a time
UNUSED = re.compile(r"\[unused\d+\]")  # places of BERT's vocabulary that no text reaches
# byte fallback writes a character without a token as these
BYTES = {f"<0x{byte:02X}>" for byte in range(256)}

# a Unigram tokenizer has a third fewer bytes, and divides one text in 10,000 elsewhere (bench/LOG.md)
DECIMALS = 4

Model = Json  # the `model` section of tokenizer.json


def is_trimmable(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether `trimmed` takes a tokenizer of this kind."""
    return type(tokenizer.backend_tokenizer.model).__name__ in REQUIRED


def trimmed(
    tokenizer: PreTrainedTokenizerBase, corpora: list[Corpus], trim: recipe.Trim
) -> PreTrainedTokenizerBase:
    """Keep the tokens that the training texts use often enough, as `trim` says.

    Always kept: added tokens, the unknown token, byte tokens, the characters of kept tokens, and whatever the
    tokenizer's model must still find to tokenize texts of kept tokens as before (see REQUIRED). The
    characters of all used tokens come before longer tokens, in up to a third of `trim.tokens`: without its
    token, a character is unknown. Ids keep their order; scores of Unigram are rounded to DECIMALS. Raises
    UserError for a model other than WordPiece and Unigram, and where there are no texts or no token is used
    often enough.
    """
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    model = data["model"]
    if model["type"] not in REQUIRED:
        fact = unknown_name("model to trim", model["type"], REQUIRED)
        raise UserError(f"tokenizer: {fact}; keep all of its tokens, or learn others")
    ids = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True)
    counts = _count(tokenizer.backend_tokenizer, chain.from_iterable(map(_training, corpora)))
    added = {token["content"] for token in data["added_tokens"]}
    without = added | set(filter(UNUSED.fullmatch, ids))
    vocabulary = dict(model["vocab"]).keys()  # of a dictionary, or of pairs
    required = partial(REQUIRED[model["type"]], model)
    used = {token: counts[ids[token]] for token in ids.keys() - without}
    by_count = sorted(used, key=lambda token: (-used[token], ids[token]))
    needed = required({token for token in used if used[token]})
    characters = [token for token in by_count if token in needed][: trim.tokens and trim.tokens // 3]
    often = [token for token in by_count if used[token] >= trim.min_count]
    if not often:
        raise UserError(
            f"min_count: no token occurs {trim.min_count:,} times in the corpus; lower it, or add texts"
        )
    chosen = set([*dict.fromkeys(characters + often)][: trim.tokens])
    special = added | set(tokenizer.all_special_tokens) | _unknown(model)
    kept = chosen | required(chosen) & vocabulary | special & ids.keys()
    if model.get("byte_fallback"):
        kept |= BYTES & vocabulary
    # the model's tokens in their old order, then added tokens that the model lacks: they always come last
    ordered = sorted(kept, key=lambda token: (token not in vocabulary, ids[token]))
    reduced = json.dumps(_reduced(data, ordered, ids), ensure_ascii=False)
    return with_backend(tokenizer, Tokenizer.from_str(reduced))


def _training(corpus: Corpus) -> Iterator[str]:
    return islice(corpus, 0, corpus.training_count)


def _count(backend: Tokenizer, texts: Iterator[str]) -> Counter[int]:
    """How often each id occurs. Raises UserError where there are no texts."""
    counts = Counter[int]()
    backend.no_padding()
    backend.no_truncation()
    while chunk := list(islice(texts, CHUNK)):
        counts.update(chain.from_iterable(encoding.ids for encoding in backend.encode_batch_fast(chunk)))
    if not counts:
        raise UserError("corpus: no texts, so the tokens to keep cannot be determined; give some")
    return counts


def _unknown(model: Model) -> set[str]:
    """The unknown token, if there is one."""
    if model["type"] == "WordPiece":
        return {model["unk_token"]}
    return set() if model.get("unk_id") is None else {str(model["vocab"][model["unk_id"]][0])}


def _reduced(data: Json, kept: list[str], ids: dict[str, int]) -> Json:
    """The data of tokenizer.json with the tokens that are kept, renumbered in this order."""
    new_ids = {ids[token]: number for number, token in enumerate(kept)}
    model = dict(data["model"])
    old = dict(model["vocab"])  # scores of Unigram, ids of WordPiece
    inside = [token for token in kept if token in old]
    if model["type"] == "Unigram":
        model["vocab"] = [(token, round(old[token], DECIMALS)) for token in inside]
        model["unk_id"] = new_ids.get(model["unk_id"])
    else:
        model["vocab"] = {token: new for new, token in enumerate(inside)}
    added = [{**token, "id": new_ids[ids[token["content"]]]} for token in data["added_tokens"]]
    return {
        **data,
        "model": model,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "padding": None,
        "truncation": None,
        "post_processor": _renumbered(data["post_processor"], new_ids),
    }


def _renumbered(part: Any, new_ids: dict[int, int]) -> Any:
    """A post-processor with new ids: `ids` of a template's tokens, (token, id) of BERT's and RoBERTa's, and
    those inside a sequence."""
    if isinstance(part, list):
        return [_renumbered(item, new_ids) for item in part]
    if not isinstance(part, dict):
        return part
    renumbered = {}
    for key, value in part.items():
        if key == "ids":
            renumbered[key] = [new_ids[old] for old in value]
        elif key in ("sep", "cls") and isinstance(value, list):
            renumbered[key] = [value[0], new_ids[value[1]]]
        else:
            renumbered[key] = _renumbered(value, new_ids)
    return renumbered


def _characters(tokens: Iterable[str]) -> set[str]:
    return set().union(*tokens)


def _wordpiece(model: Model, used: set[str]) -> set[str]:
    """WordPiece matches the longest token first: with fewer longer tokens, the same ones match."""
    prefix = model["continuing_subword_prefix"]
    characters = _characters(token.removeprefix(prefix) for token in used)
    return characters | {prefix + character for character in characters}


def _unigram(model: Model, used: set[str]) -> set[str]:
    """The best path stays the best, as long as an unknown character keeps its cost: 10 below the least likely
    token."""
    return {min(model["vocab"], key=lambda entry: entry[1])[0]} | _characters(used)


# The tokens that a model needs to find those that are used as before, if its vocabulary has them.
REQUIRED: dict[str, Callable[[Model, set[str]], set[str]]] = {
    "WordPiece": _wordpiece,
    "Unigram": _unigram,
}
