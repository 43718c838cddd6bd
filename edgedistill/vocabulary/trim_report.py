"""What trimming a tokenizer changes: the share of texts tokenized as before, and tokens per text and unknown
tokens of the rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

CHUNK = 8_192  # texts tokenized at a time
EXAMPLES = 16  # unchanged texts of each source that are returned, to compare embeddings on


class NamedTexts(NamedTuple):
    """A source of texts, which can be read more than once."""

    name: str
    read: Callable[[], Iterator[str]]


def chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts, CHUNK at a time."""
    rest = iter(texts)
    while chunk := list(itertools.islice(rest, CHUNK)):
        yield chunk


class _Tally:
    """Counts texts, their tokens before and after, and the unknown tokens among them."""

    def __init__(self) -> None:
        self.texts = 0
        self.tokens, self.unknown = [0, 0], [0, 0]

    def add(self, before_and_after: tuple[list[int], list[int]], unknown_ids: list[int]) -> None:
        self.texts += 1
        for at, (ids, unknown) in enumerate(zip(before_and_after, unknown_ids, strict=True)):
            self.tokens[at] += len(ids)
            self.unknown[at] += ids.count(unknown)

    def shares(self) -> dict[str, Any]:
        mean = [round(tokens / self.texts, 3) if self.texts else None for tokens in self.tokens]
        unknown = [
            round(count / tokens, 6) if tokens else None
            for count, tokens in zip(self.unknown, self.tokens, strict=True)
        ]
        return {
            "texts": self.texts,
            "tokens_mean": dict(zip(("before", "after"), mean, strict=True)),
            "unknown": dict(zip(("before", "after"), unknown, strict=True)),
        }


def compare(
    before: PreTrainedTokenizerBase,
    after: PreTrainedTokenizerBase,
    old_ids: np.ndarray,
    sources: list[NamedTexts],
) -> tuple[list[dict[str, Any]], list[str]]:
    """For each source, the share of texts tokenized as before, and token counts of those (kept) and of the
    rest (dropped).

    `old_ids` (V,): the id in `before` of each token of `after`. Also returns some unchanged texts. Raises
        RuntimeError where a text
    of kept tokens is tokenized otherwise than before: a bug in the trimming.
    """
    new_ids = [-1] * (max(before.get_vocab().values()) + 1)
    for new, old in enumerate(old_ids.tolist()):
        new_ids[old] = new
    unknown_ids = [-1 if each.unk_token_id is None else int(each.unk_token_id) for each in (before, after)]
    reports, examples = [], []
    for name, read in sources:
        kept, dropped, shown = _Tally(), _Tally(), 0
        for chunk in chunks(read()):
            encoded = [
                [encoding.ids for encoding in each.backend_tokenizer.encode_batch_fast(chunk)]
                for each in (before, after)
            ]
            for text, old, new in zip(chunk, *encoded, strict=True):
                expected = [new_ids[token] for token in old]
                if expected != new and -1 not in expected:
                    raise RuntimeError(
                        f"a text of kept tokens is tokenized otherwise than before: {text[:200]!r}"
                    )
                (kept if expected == new else dropped).add((old, new), unknown_ids)
                if expected == new and shown < EXAMPLES:
                    examples.append(text)
                    shown += 1
        total = kept.texts + dropped.texts
        share = round(kept.texts / total, 6) if total else None
        reports.append(
            {
                "name": name,
                "texts": total,
                "identical": share,
                "kept": kept.shares(),
                "dropped": dropped.shares(),
            }
        )
    return reports, examples


def summary_line(report: dict[str, Any]) -> str:
    """The report on a tokenizer in one line."""
    tokens = report["tokens"]
    shares = (
        f"{source['identical']:.1%} of {source['name']}" for source in report["sources"] if source["texts"]
    )
    return (
        f"{tokens['after']:,} of {tokens['before']:,} tokens kept; tokenized as before: {', '.join(shares)}"
    )


def summary(report: dict[str, Any]) -> str:
    """The report on a trimmed model: a line of totals, then one line per file."""
    tokens, size = report["tokens"], report["size_bytes"]
    lines = [
        f"{tokens['after']:,} of {tokens['before']:,} tokens; {size['after'] / 1e6:.1f} of "
        f"{size['before'] / 1e6:.1f} MB; "
        f"token embeddings of {report['compared']} unchanged texts differ by {report['max_difference']:.1e} "
        "at most"
    ]
    for source in report["sources"]:
        dropped = source["dropped"]
        text = (
            f"{source['name']}: {source['texts']:,} texts, {source['identical'] or 0:.2%} tokenized as before"
        )
        if dropped["texts"]:
            mean, unknown = dropped["tokens_mean"], dropped["unknown"]
            text += f"; the other {dropped['texts']:,}: {mean['before']:.1f} → {mean['after']:.1f} tokens, "
            text += f"unknown {unknown['before']:.2%} → {unknown['after']:.2%}"
        lines.append(text)
    return "\n".join(lines)
