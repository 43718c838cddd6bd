"""Pieces: learn a vocabulary from a corpus, and give each piece a first vector."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from edgedistill import files, recipe
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.session import QUIET, Session

FORMAT = 1  # part of a cached tokenizer's key: raise it when what is learned changes

CONTINUES = ("##", "▁", "Ġ")  # how WordPiece, SentencePiece and byte-level BPE mark pieces


def learn(like: PreTrainedTokenizerBase, corpora: list[Corpus], size: int) -> PreTrainedTokenizerBase:
    """A WordPiece tokenizer of at most `size` pieces for the corpora, with the normalisation and special tokens of `like`.

    Raises UserError where `like` is no WordPiece tokenizer.
    """
    theirs = like.backend_tokenizer
    if not isinstance(theirs.model, models.WordPiece):
        kind = type(theirs.model).__name__
        raise UserError(f"student.vocabulary: learns WordPiece, the tokenizer is {kind}; leave it out, or give a tokenizer")
    special = [token for token in (like.pad_token, like.unk_token, like.cls_token, like.sep_token, like.mask_token) if token]
    letters = _train(like, corpora, 0, special)
    number = _train(like, corpora, size, [*special, *sorted(piece for piece in letters if piece.startswith("##"))])
    mine = Tokenizer(models.WordPiece(number, unk_token=like.unk_token))
    mine.normalizer, mine.pre_tokenizer = theirs.normalizer, theirs.pre_tokenizer
    mine.add_special_tokens(special)
    cls, sep = like.cls_token, like.sep_token
    mine.post_processor = processors.BertProcessing((sep, number[sep]), (cls, number[cls]))
    mine.decoder = theirs.decoder
    names = {name: getattr(like, name) for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")}
    return PreTrainedTokenizerFast(tokenizer_object=mine, model_max_length=like.model_max_length, **names)


def _train(like: PreTrainedTokenizerBase, corpora: list[Corpus], size: int, first: list[str]) -> dict[str, int]:
    """Pieces and their numbers, `first` ahead of all others; a size of 0 stops at the letters.

    The trainer numbers letters inside words (##a) in the order of a hash that differs each time, and of pairs that are equally
    frequent it merges those with the lowest numbers: unless these letters come first, no two trainings give the same pieces.
    """
    raw = Tokenizer(models.WordPiece(unk_token=like.unk_token))
    raw.normalizer, raw.pre_tokenizer = like.backend_tokenizer.normalizer, like.backend_tokenizer.pre_tokenizer
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    raw.train_from_iterator(chain.from_iterable(each.chunks(8_192) for each in corpora), trainer, length=sum(map(len, corpora)))
    return raw.get_vocab()


def learn_unigram(corpora: list[Corpus], spec: recipe.Unigram, longest: int = 512, session: Session = QUIET) -> PreTrainedTokenizerBase:
    """A Unigram tokenizer of at most `spec.pieces` pieces, laid out as XLM-R's: <s> <pad> </s> <unk> first, <mask> last.

    Learned on one thread, so that the same texts give the same pieces; cached under the texts and the options.
    Raises UserError where the single characters of the texts alone are more than `spec.pieces`.
    """
    made_of = {
        "corpora": [each.fingerprint for each in corpora],
        "spec": spec.model_dump(mode="json"),
        "tokenizers": tokenizers.__version__,
    }
    folder = session.cache / "tokenizers" / files.key(format=FORMAT, longest=longest, **made_of)
    if not folder.exists():
        total = sum(len(each) for each in corpora)
        session.log(f"learning {spec.pieces:,} pieces from {min(total, spec.sample):,} of {total:,} texts")
        words = _unigram(corpora, spec, longest)
        if len(words) > spec.pieces:
            fact = f"{len(words):,} pieces, {spec.pieces:,} were asked for: the texts have that many characters"
            raise UserError(f"student.unigram.pieces: {fact}; raise it, or leave a script out")
        if len(words) < spec.pieces:
            session.log(f"learned {len(words):,} pieces: these texts hold no more that are worth one")
        with files.new_folder(folder) as temporary:
            words.save_pretrained(temporary)
    return AutoTokenizer.from_pretrained(folder)


def _unigram(corpora: list[Corpus], spec: recipe.Unigram, longest: int) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.Unigram())
    steps = [normalizers.NFKC(), *([normalizers.Lowercase()] if spec.lowercase else []), normalizers.Replace(Regex(" {2,}"), " ")]
    raw.normalizer = normalizers.Sequence(steps)
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    first = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=spec.pieces - 1, special_tokens=first, unk_token="<unk>", show_progress=False)
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # sums over threads come in any order, and rounding would choose the pieces
    try:
        raw.train_from_iterator(_sampled(corpora, spec.sample), trainer)
    finally:
        os.environ.pop("TOKENIZERS_PARALLELISM") if before is None else os.environ.update(TOKENIZERS_PARALLELISM=before)
    data = json.loads(raw.to_str())  # the trainer sums over a hash map, whose order differs between processes, and with it the last digits
    data["model"]["vocab"] = [[piece, round(score, 9)] for piece, score in data["model"]["vocab"]]
    raw = Tokenizer.from_str(json.dumps(data))
    ends = [("<s>", raw.token_to_id("<s>")), ("</s>", raw.token_to_id("</s>"))]
    raw.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends)
    raw.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    names |= {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=longest, model_input_names=inputs, **names)


def _sampled(corpora: list[Corpus], most: int) -> Iterator[list[str]]:
    """At most so many texts to train on, spread evenly over all of them."""
    total, row = sum(each.trained for each in corpora), 0
    for each in corpora:
        left = each.trained
        for texts in each.chunks(8_192):
            here = texts[:left]
            left -= len(here)
            yield [text for at, text in enumerate(here, row) if at * most // total != (at - 1) * most // total or total <= most]
            row += len(here)


def pieces(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The pieces by id."""
    return [piece for piece, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]


def from_model(mine: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase, table: Tensor) -> Tensor:
    """First vectors (V, w) for my pieces from their word table: the same piece's row, else the mean of its parts' rows."""
    if mine.get_vocab() == theirs.get_vocab():
        return table[: len(mine)]
    return torch.stack([table[ids].mean(0) if ids else table.mean(0) for ids in parts(mine, theirs)])


def parts(mine: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase) -> list[list[int]]:
    """Each of my pieces in their ids: the same piece where they have it, else what they make of its text."""
    known = theirs.get_vocab()
    return [[known[piece]] if piece in known else theirs(plain(piece), add_special_tokens=False)["input_ids"] for piece in pieces(mine)]


def as_texts(mine: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase) -> list[np.ndarray]:
    """Each of my pieces as a text of its own in their ids, between their special tokens; (n_i,) int32 each."""
    first, *last = theirs("")["input_ids"]
    return [np.array([first, *ids, *last], np.int32) for ids in parts(mine, theirs)]


def from_glove(mine: PreTrainedTokenizerBase, path: Path, width: int, seed: int) -> Tensor:
    """First vectors (V, width) from a GloVe text file; pieces it lacks are drawn with the spread of those it has.

    Raises UserError: no such file, a line of another width, no piece found.
    """
    wanted = {plain(piece): number for number, piece in enumerate(pieces(mine))}
    found: dict[int, np.ndarray] = {}
    for number, word, values in _glove_lines(path):
        if word in wanted:
            if len(values) != width:
                raise UserError(f"{path}: line {number} has {len(values)} numbers, student.width is {width}; they must agree")
            found[wanted[word]] = np.array(values, np.float32)
    if not found:
        raise UserError(f"{path}: none of the tokenizer's {len(wanted):,} pieces is in it; give a tokenizer of whole words")
    known = np.stack(list(found.values()))
    table = np.random.default_rng(seed).normal(known.mean(), known.std(), (len(mine), width)).astype(np.float32)
    table[list(found)] = known
    return torch.from_numpy(table)


def _glove_lines(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    if not path.is_file():
        raise UserError(f"student.embeddings.file: no file {path}; relative paths lie under --data")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            word, *values = line.rstrip("\n").split(" ")
            yield number, word, values


def plain(piece: str) -> str:
    """A piece without its mark."""
    for mark in CONTINUES:
        piece = piece.removeprefix(mark)
    return piece
