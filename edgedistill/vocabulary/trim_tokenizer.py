"""A tokenizer of fewer pieces: those a corpus uses and what they need, so that texts made of them are cut as before."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError, unknown

CHUNK = 8_192  # texts tokenized at a time
EXAMPLES = 16  # kept texts of each source that are handed on, for whoever compares vectors
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
BYTES = {f"<0x{byte:02X}>" for byte in range(256)}  # what byte fallback makes of a character without a piece
Texts = tuple[str, Callable[[], Iterator[str]]]  # a source of texts: its name, and how to read it once more


class Trimmed(NamedTuple):
    """A smaller tokenizer; `ids`: the old id of each of its pieces, in the order of the new ones; what was lost; some kept texts."""

    words: PreTrainedTokenizerBase
    ids: np.ndarray
    report: dict[str, Any]
    examples: list[str]


def trimmed(
    words: PreTrainedTokenizerBase, chosen: list[Texts], others: list[Texts], min_count: int = 1, also: Iterable[int] = ()
) -> Trimmed:
    """Keep the pieces that the chosen texts use at least `min_count` times, and report on those texts and on the others.

    Always kept: added tokens, the unknown piece, bytes, the characters of kept pieces, the old ids in `also`, and whatever the
    tokenizer's model must still find to cut a text of kept pieces as before (see `_wordpiece`, `_unigram`, `_bpe`). Ids keep their order.
    Raises UserError: a model that is none of the three, an unknown or padding piece the tokenizer lacks, no texts, no piece used enough.
    """
    data = json.loads(words.backend_tokenizer.to_str())
    model = data["model"]
    if model["type"] not in NEEDED:
        raise UserError(f"tokenizer: {unknown('model to trim', model['type'], NEEDED)}; word-level tables have no pieces to fall back on")
    number = words.backend_tokenizer.get_vocab(with_added_tokens=True)
    special = {str(getattr(words, name)) for name in SPECIAL if getattr(words, name, None)}
    _insist(model, number, special, also)
    counts, failed = _used(words.backend_tokenizer, chosen, model)
    added = {token["content"] for token in data["added_tokens"]}
    own = {piece for piece, at in number.items() if counts[at] >= min_count and piece not in added}
    if not own:
        raise UserError(f"min_count: no piece is used {min_count:,} times in the corpus; lower it, or add texts")
    by_id = {at: piece for piece, at in number.items()}
    fallback = _unknown_piece(model)
    named = added | special | {by_id[at] for at in also} | ({fallback} if fallback is not None else set())
    wanted = NEEDED[model["type"]](model, own | _failed_paths(model, failed)) | _bytes(data) | named
    ids = _order(model, number, wanted)
    smaller = _tokenizer(words, _without(data, ids, number), {by_id[at]: new for new, at in enumerate(ids.tolist())})
    sources, examples = _report(words, smaller, ids, len(counts), [*chosen, *others])
    return Trimmed(smaller, ids, {"pieces": {"before": len(number), "after": len(ids)}, "sources": sources}, examples)


def of_corpus(corpus: Corpus, side: str = "") -> tuple[Texts, Texts]:
    """The texts that are trained on and those held out, as two sources; `side` begins their names."""

    def rows(start: int, end: int) -> Iterator[str]:
        return itertools.islice(itertools.chain.from_iterable(corpus.chunks(CHUNK)), start, end)

    whole, first = len(corpus), corpus.trained
    return (f"{side}trained on", lambda: rows(0, first)), (f"{side}held out", lambda: rows(first, whole))


def line(report: dict[str, Any]) -> str:
    """The report in a line."""
    pieces = report["pieces"]
    shares = (f"{source['identical']:.1%} of {source['name']}" for source in report["sources"] if source["texts"])
    return f"{pieces['after']:,} of {pieces['before']:,} pieces kept; cut as before: {', '.join(shares)}"


def _insist(model: dict[str, Any], number: dict[str, int], special: set[str], also: Iterable[int]) -> None:
    """Unknown, padding and other special pieces must be there to be kept."""
    fallback = _unknown_piece(model)
    if (fallback is None and model["type"] == "WordPiece") or (fallback is not None and fallback not in number):
        raise UserError(f"tokenizer: its unknown piece {fallback!r} is none of its pieces; mend tokenizer.json")
    for piece in special - number.keys():
        raise UserError(f"tokenizer: its special token {piece!r} is none of its pieces; mend tokenizer_config.json")
    known = set(number.values())
    for at in also:
        if at not in known:
            raise UserError(f"tokenizer: the model pads with id {at}, which is none of its pieces; mend pad_token_id in config.json")


def _unknown_piece(model: dict[str, Any]) -> str | None:
    if model["type"] == "Unigram":
        return None if model.get("unk_id") is None else str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")


def chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts, CHUNK at a time."""
    rest = iter(texts)
    while chunk := list(itertools.islice(rest, CHUNK)):
        yield chunk


def _used(backend: Tokenizer, sources: list[Texts], model: dict[str, Any]) -> tuple[np.ndarray, set[str]]:
    """How often each old id occurs, (largest id + 1,); and, for WordPiece, the words in texts with unknown ones."""
    backend.no_padding()
    backend.no_truncation()
    number = backend.get_vocab(with_added_tokens=True)
    counts = np.zeros(max(number.values()) + 1, np.int64)
    fallback = number.get(_unknown_piece(model) or "", -1) if model["type"] == "WordPiece" else -1
    failed: set[str] = set()
    read = 0
    for chunk in itertools.chain.from_iterable(chunks(texts()) for _, texts in sources):
        read += len(chunk)
        rows = [encoding.ids for encoding in backend.encode_batch_fast(chunk)]
        counts += np.bincount([at for row in rows for at in row], minlength=len(counts))
        if fallback >= 0:
            failed.update(word for text, row in zip(chunk, rows, strict=True) if fallback in row for word in _words(backend, text))
    if not read:
        raise UserError("corpus: no texts, so nothing says which pieces to keep; give some")
    return counts, failed


def _words(backend: Tokenizer, text: str) -> list[str]:
    text = backend.normalizer.normalize_str(text) if backend.normalizer else text
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]


# What each model needs beside the pieces that are used, to cut texts of those pieces as before


def _letters(pieces: Iterable[str]) -> set[str]:
    return set().union(*pieces)


def _wordpiece(model: dict[str, Any], own: set[str]) -> set[str]:
    """Longest match first looks only at what is there: fewer longer pieces change nothing. (Unknown words: see `_failed_paths`.)"""
    prefix, known = model["continuing_subword_prefix"], model["vocab"]
    letters = _letters(piece.removeprefix(prefix) for piece in own)
    return own | {form for letter in letters for form in (letter, prefix + letter) if form in known}


def _failed_paths(model: dict[str, Any], words: set[str]) -> set[str]:
    """The pieces WordPiece matches in a word before it fails: without them shorter ones might match, and the word be known.

    [ab, a, ##bc] cut `abc` into nothing (`ab`, then no `##c`); without `ab` it would become `a ##bc`.
    """
    if model["type"] != "WordPiece":
        return set()
    prefix, known, found = model["continuing_subword_prefix"], model["vocab"], set()
    for word in words:
        at = 0
        while at < len(word) <= model["max_input_chars_per_word"]:
            mark = prefix if at else ""
            end = next((end for end in range(len(word), at, -1) if mark + word[at:end] in known), at)
            if end == at:
                break
            found.add(mark + word[at:end])
            at = end
    return found


def _unigram(model: dict[str, Any], own: set[str]) -> set[str]:
    """The best path stays the best among fewer, as long as an unknown character costs what it did: 10 below the least likely piece."""
    known = {piece for piece, _ in model["vocab"]}
    least = min(model["vocab"], key=lambda entry: entry[1])[0]
    return own | {least} | (_letters(own) & known)


def _bpe(model: dict[str, Any], own: set[str]) -> set[str]:
    """Every piece that merges make on the way to a kept one. Merges inside a piece are the same alone and in any word."""
    rank = {pair: at for at, pair in enumerate(_merges(model))}
    made: set[str] = set()
    for piece in own:
        made.update(_way(piece, model, rank))
    prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    letters = _letters(piece.removeprefix(prefix).removesuffix(suffix) for piece in own)
    forms = {form for letter in letters for form in (letter, prefix + letter, letter + suffix, prefix + letter + suffix)}
    return own | {piece for piece in made | forms if piece in model["vocab"]}


def _merges(model: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs in the order they are learned; older files write a pair as one string."""
    return [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]  # type: ignore[misc]


def _merged(model: dict[str, Any], pair: tuple[str, str]) -> str:
    return pair[0] + pair[1].removeprefix(model.get("continuing_subword_prefix") or "")


def _way(piece: str, model: dict[str, Any], rank: dict[tuple[str, str], int]) -> Iterator[str]:
    """The symbols a piece starts from, and everything merged until it is whole."""
    prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    inner = piece.removeprefix(prefix).removesuffix(suffix)
    first = prefix if prefix and piece.startswith(prefix) else ""
    last = suffix if suffix and piece.endswith(suffix) else ""
    end = len(inner) - 1
    symbols = [(prefix if at else first) + letter + (last if at == end else "") for at, letter in enumerate(inner)]
    yield from symbols
    while len(symbols) > 1:
        best = min(range(len(symbols) - 1), key=lambda at: rank.get((symbols[at], symbols[at + 1]), len(rank)))
        pair = (symbols[best], symbols[best + 1])
        if pair not in rank:
            return
        symbols[best : best + 2] = [_merged(model, pair)]
        yield symbols[best]


NEEDED: dict[str, Callable[[dict[str, Any], set[str]], set[str]]] = {"WordPiece": _wordpiece, "Unigram": _unigram, "BPE": _bpe}


def _bytes(data: dict[str, Any]) -> set[str]:
    """The pieces that stand for single bytes: of byte-level models, and of byte fallback."""
    model, found = data["model"], set()
    known = {piece for piece, _ in model["vocab"]} if model["type"] == "Unigram" else set(model["vocab"])
    if model.get("byte_fallback"):
        found |= BYTES
    if '"ByteLevel"' in json.dumps([data["normalizer"], data["pre_tokenizer"]]):
        suffix = model.get("end_of_word_suffix") or ""
        found |= {form for letter in pre_tokenizers.ByteLevel.alphabet() for form in (letter, letter + suffix)}
    return found & known


# The smaller tokenizer


def _order(model: dict[str, Any], number: dict[str, int], wanted: set[str]) -> np.ndarray:
    """Old ids by new id: the model's pieces as they were, then added tokens that the model does not know (they always come last)."""
    own = {piece for piece, _ in model["vocab"]} if model["type"] == "Unigram" else model["vocab"]
    return np.array([number[piece] for piece in sorted(wanted, key=lambda piece: (piece not in own, number[piece]))], np.int64)


def _without(data: dict[str, Any], ids: np.ndarray, number: dict[str, int]) -> dict[str, Any]:
    """tokenizer.json with the pieces of `ids` alone, renumbered."""
    new = {old: at for at, old in enumerate(ids.tolist())}
    model = dict(data["model"])
    if model["type"] == "Unigram":
        model["vocab"] = [entry for old, entry in enumerate(model["vocab"]) if old in new]
        model["unk_id"] = None if model.get("unk_id") is None else new[model["unk_id"]]
    else:
        kept = {piece: new[old] for piece, old in model["vocab"].items() if old in new}
        model["vocab"] = dict(sorted(kept.items(), key=lambda item: item[1]))
    if model["type"] == "BPE":
        kept = model["vocab"]
        pairs = _merges(data["model"])
        model["merges"] = [list(pair) for pair in pairs if {*pair, _merged(model, pair)} <= kept.keys()]
    tokens = sorted(({**token, "id": new[number[token["content"]]]} for token in data["added_tokens"]), key=lambda token: token["id"])
    made = {**data, "model": model, "added_tokens": tokens, "padding": None, "truncation": None}
    return {**made, "post_processor": _renumbered(data["post_processor"], new)}


def _renumbered(part: Any, new: dict[int, int]) -> Any:
    """A post-processor with new ids: `ids` of a template's tokens, (token, id) of BERT's and RoBERTa's, and those inside a sequence."""
    if isinstance(part, list):
        return [_renumbered(each, new) for each in part]
    if not isinstance(part, dict):
        return part
    found = {}
    for key, value in part.items():
        if key == "ids":
            found[key] = [new[old] for old in value]
        elif key in ("sep", "cls") and isinstance(value, list):
            found[key] = [value[0], new[value[1]]]
        else:
            found[key] = _renumbered(value, new)
    return found


def _tokenizer(like: PreTrainedTokenizerBase, data: dict[str, Any], expected: dict[str, int]) -> PreTrainedTokenizerBase:
    """What transformers opens, with the names and limits of the old one."""
    raw = Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
    names = {name: str(getattr(like, name)) for name in SPECIAL if getattr(like, name, None)}
    limits = {"model_max_length": like.model_max_length, "padding_side": like.padding_side, "truncation_side": like.truncation_side}
    words = PreTrainedTokenizerFast(tokenizer_object=raw, model_input_names=like.model_input_names, **limits, **names)
    if words.get_vocab() != expected:
        raise RuntimeError("the trimmed tokenizer numbers its pieces otherwise than it was told")
    return words


# What is lost


class _Tally:
    """Texts, their tokens before and after, and the unknown ones among them."""

    def __init__(self) -> None:
        self.texts = 0
        self.tokens, self.unknown = [0, 0], [0, 0]

    def add(self, rows: tuple[list[int], list[int]], fallbacks: tuple[int, int]) -> None:
        self.texts += 1
        for at, (row, fallback) in enumerate(zip(rows, fallbacks, strict=True)):
            self.tokens[at] += len(row)
            self.unknown[at] += row.count(fallback)

    def shares(self) -> dict[str, Any]:
        mean = [round(tokens / self.texts, 3) if self.texts else None for tokens in self.tokens]
        unknown = [round(count / tokens, 6) if tokens else None for count, tokens in zip(self.unknown, self.tokens, strict=True)]
        return {
            "texts": self.texts,
            "tokens_mean": dict(zip(("before", "after"), mean, strict=True)),
            "unknown": dict(zip(("before", "after"), unknown, strict=True)),
        }


def _report(
    before: PreTrainedTokenizerBase, after: PreTrainedTokenizerBase, ids: np.ndarray, rows: int, sources: list[Texts]
) -> tuple[list[dict[str, Any]], list[str]]:
    """For each source the share of texts cut as before, and of those (kept) and the rest (dropped) tokens and unknown pieces.

    Also some kept texts. Raises RuntimeError where a text of kept pieces is cut otherwise: then the surgery is wrong.
    """
    new = [-1] * rows
    for at, old in enumerate(ids.tolist()):
        new[old] = at
    fallbacks = tuple(-1 if words.unk_token_id is None else int(words.unk_token_id) for words in (before, after))
    found, examples = [], []
    for name, texts in sources:
        kept, dropped, shown = _Tally(), _Tally(), 0
        for chunk in chunks(texts()):
            pairs = [[encoding.ids for encoding in words.backend_tokenizer.encode_batch_fast(chunk)] for words in (before, after)]
            for text, old, now in zip(chunk, *pairs, strict=True):
                expected = [new[at] for at in old]
                if expected != now and -1 not in expected:
                    raise RuntimeError(f"a text of kept pieces is cut otherwise than before: {text[:200]!r}")
                (kept if expected == now else dropped).add((old, now), fallbacks)  # type: ignore[arg-type]
                if expected == now and shown < EXAMPLES:
                    examples.append(text)
                    shown += 1
        total = kept.texts + dropped.texts
        share = round(kept.texts / total, 6) if total else None
        found.append({"name": name, "texts": total, "identical": share, "kept": kept.shares(), "dropped": dropped.shares()})
    return found, examples
