"""Learn a Unigram tokenizer from corpora."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from edgedistill import files, recipe
from edgedistill.data.cached_folder import cached_folder
from edgedistill.data.corpus import Corpus
from edgedistill.errors import UserError
from edgedistill.session import QUIET, Session

FORMAT = 1  # part of a cached tokenizer's key: raise it when what is learned changes
CHUNK = 8_192  # texts read at a time
MAX_TOKENS = 512  # the model_max_length of a learned Unigram tokenizer


def learn_unigram(
    corpora: list[Corpus], spec: recipe.Unigram, session: Session = QUIET
) -> PreTrainedTokenizerBase:
    """A Unigram tokenizer of at most `spec.vocabulary_size` tokens, laid out as XLM-R's: <s> <pad> </s> <unk>
    first, <mask> last.

    Learned on one thread, so that the same texts give the same tokens; cached under the texts and the
    options. Raises UserError where the texts have more
    distinct characters than `spec.vocabulary_size`.
    """
    content = {
        "corpora": [corpus.fingerprint for corpus in corpora],
        "spec": spec.model_dump(mode="json"),
        "tokenizers": tokenizers.__version__,
    }
    folder = session.cache / "tokenizers" / files.cache_key(format=FORMAT, longest=MAX_TOKENS, **content)

    def write(temporary: Path) -> None:
        size = spec.vocabulary_size
        total = sum(len(corpus) for corpus in corpora)
        session.log(
            f"learning a vocabulary of {size:,} tokens from {min(total, spec.sample):,} of {total:,} texts"
        )
        tokenizer = _train_unigram(corpora, spec)
        if len(tokenizer) > size:
            raise UserError(
                f"student.unigram.vocabulary_size: the vocabulary needs {len(tokenizer):,} tokens, one per "
                f"character of the texts, {size:,} are allowed; raise it, or leave a script out"
            )
        if len(tokenizer) < size:
            session.log(f"learned a vocabulary of {len(tokenizer):,} tokens: these texts support no more")
        tokenizer.save_pretrained(temporary)

    return AutoTokenizer.from_pretrained(cached_folder(folder, write, session.log), trust_remote_code=False)


def _train_unigram(corpora: list[Corpus], spec: recipe.Unigram) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.Unigram())
    steps = [
        normalizers.NFKC(),
        *([normalizers.Lowercase()] if spec.lowercase else []),
        normalizers.Replace(Regex(" {2,}"), " "),
    ]
    raw.normalizer = normalizers.Sequence(steps)
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    first = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=spec.vocabulary_size - 1, special_tokens=first, unk_token="<unk>", show_progress=False
    )
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = (
        "false"  # threads sum in any order, and rounding would then choose the tokens
    )
    try:
        raw.train_from_iterator(_sampled(corpora, spec.sample), trainer)
    finally:
        os.environ.pop("TOKENIZERS_PARALLELISM") if before is None else os.environ.update(
            TOKENIZERS_PARALLELISM=before
        )
    # The trainer sums over a hash map whose order differs between processes, and so do the last digits of the
    # scores.
    data = json.loads(raw.to_str())
    data["model"]["vocab"] = [[token, round(score, 9)] for token, score in data["model"]["vocab"]]
    raw = Tokenizer.from_str(json.dumps(data))
    ends = [("<s>", raw.token_to_id("<s>")), ("</s>", raw.token_to_id("</s>"))]
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends
    )
    raw.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    names |= {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, model_max_length=MAX_TOKENS, model_input_names=inputs, **names
    )


def _sampled(corpora: list[Corpus], limit: int) -> Iterator[list[str]]:
    """At most `limit` of the training texts, drawn evenly from all corpora."""
    total = sum(corpus.training_count for corpus in corpora)
    row = 0
    for corpus in corpora:
        left = corpus.training_count
        for texts in corpus.chunks(CHUNK):
            here = texts[:left]
            left -= len(here)
            yield [
                text
                for at, text in enumerate(here, row)
                if at * limit // total != (at - 1) * limit // total or total <= limit
            ]
            row += len(here)
