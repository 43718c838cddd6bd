"""Views that a model makes: words refilled by a masked language model, texts translated there and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgedistill.errors import UserError
from edgedistill.runtime import batching
from edgedistill.teacher import encoder
from edgedistill.training.inputs.random_keys import draws, rounded_fraction, row_keys

TOKENS_PER_BATCH = 1_024  # on a CPU, padding included


def _pretrained(kind: str, folder: Path, device: str, place: str) -> tuple[Any, Any]:
    """(tokenizer, model in eval mode) of a folder. Raises UserError where it is no model of this kind;
    `place`: the recipe key."""
    import transformers

    from edgedistill.students import model_folder
    from edgedistill.students.sentence_transformer import quiet

    model_folder.read(folder)
    options = {"trust_remote_code": False, "local_files_only": True}
    way_out = "choose such a model; some tokenizers need pip install 'edgedistill[views]'"
    with model_folder.opening(f"{place}: {folder}", f"does not open as {kind}", way_out, way_out), quiet():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
        return tokenizer, getattr(transformers, kind).from_pretrained(folder, **options).eval().to(device)


def _batches(
    order: list[int], ids: list[np.ndarray], pad_id: int, device: str
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """(rows, their padded inputs on the device), texts of like length together. order: the rows to read."""
    import torch

    budget = TOKENS_PER_BATCH if device == "cpu" else 32 * TOKENS_PER_BATCH
    for rows in encoder.budget_batches(sorted(order, key=lambda row: len(ids[row])), ids, budget):
        padded = [
            torch.from_numpy(part).to(device) for part in batching.pad([ids[row] for row in rows], pad_id)
        ]
        yield rows, {"input_ids": padded[0], "attention_mask": padded[1]}


class MaskedRefill:
    """Texts -> the same texts with some words masked and replaced by the model's most likely token there.

    Only words that are one token are masked, and only tokens that are whole words replace them; the rest of
    the text is unchanged.
    """

    def __init__(self, folder: Path, fraction: float, seed: int, device: str, place: str) -> None:
        """Raises UserError where the folder holds no masked language model with a fast tokenizer; `place`:
        the recipe key."""
        import torch

        self.tokenizer, self.model = _pretrained("AutoModelForMaskedLM", folder, device, place)
        if not self.tokenizer.is_fast or self.tokenizer.mask_token_id is None:
            raise UserError(
                f"{place}: {folder} has no fast tokenizer with a mask token; choose a masked language model"
            )
        self.fraction, self.seed, self.device = fraction, seed, device
        self.max_tokens = min(
            int(self.tokenizer.model_max_length), self.model.config.max_position_embeddings - 2
        )
        tokens = self.tokenizer.convert_ids_to_tokens(list(range(self.model.config.vocab_size)))
        special = set(self.tokenizer.all_special_ids)
        barred = [at in special or token is None or token.startswith("##") for at, token in enumerate(tokens)]
        self.barred = torch.tensor(barred, device=device)

    def __call__(self, texts: list[str], first: int) -> list[str]:
        """first: the row of the first text in the corpus, which with the seed decides what is masked."""
        self.tokenizer.backend_tokenizer.no_padding()
        self.tokenizer.backend_tokenizer.enable_truncation(self.max_tokens)
        encodings = self.tokenizer.backend_tokenizer.encode_batch(texts)
        keys = row_keys(self.seed, np.arange(first, first + len(texts)), np.zeros(len(texts), np.int64))
        counts = rounded_fraction(
            self.fraction, np.array([len(e.ids) - sum(e.special_tokens_mask) for e in encodings]), keys
        )
        chosen = [_chosen(e, int(count), key) for e, count, key in zip(encodings, counts, keys, strict=True)]
        filled = self._filled([np.array(encoding.ids) for encoding in encodings], chosen)
        out = []
        for text, encoding, positions, tokens in zip(texts, encodings, chosen, filled, strict=True):
            for position, token in sorted(
                zip(positions, tokens, strict=True), reverse=True
            ):  # from the end, so that offsets hold
                start, end = encoding.offsets[position]
                text = text[:start] + (self.tokenizer.decode([token]).strip() or text[start:end]) + text[end:]
            out.append(text)
        return out

    def _filled(self, ids: list[np.ndarray], chosen: list[list[int]]) -> list[list[int]]:
        """The most likely token at every chosen position."""
        import torch

        for row, positions in zip(ids, chosen, strict=True):
            row[positions] = self.tokenizer.mask_token_id
        filled: list[list[int]] = [[] for _ in ids]
        masked = [row for row in range(len(ids)) if chosen[row]]
        for rows, inputs in _batches(masked, ids, self.tokenizer.pad_token_id, self.device):
            with torch.inference_mode():
                scores = self.model(**inputs).logits.masked_fill(self.barred, -torch.inf)
            best = scores.argmax(-1).tolist()
            for number, tokens in zip(rows, best, strict=True):
                filled[number] = [tokens[position] for position in chosen[number]]
        return filled


def _chosen(encoding: Any, count: int, key: np.uint64) -> list[int]:
    """Random positions of words that are one token: `count` of them, at least one where there are any."""
    tokens_of = Counter(encoding.word_ids)
    possible = [at for at, word in enumerate(encoding.word_ids) if word is not None and tokens_of[word] == 1]
    return [possible[rank] for rank in np.argsort(draws(key, len(possible)), kind="stable")[: max(1, count)]]


class TranslationModel:
    """Texts -> their most likely translations, by greedy or beam search."""

    def __init__(self, folder: Path, beams: int, device: str, place: str) -> None:
        """Raises UserError where the folder holds no sequence-to-sequence model; `place`: the recipe key."""
        self.tokenizer, self.model = _pretrained("AutoModelForSeq2SeqLM", folder, device, place)
        self.beams, self.device = beams, device
        self.max_tokens = min(
            int(self.tokenizer.model_max_length), self.model.config.max_position_embeddings - 2
        )

    def __call__(self, texts: list[str]) -> list[str]:
        import torch

        ids = [
            np.array(row)
            for row in self.tokenizer(texts, truncation=True, max_length=self.max_tokens)["input_ids"]
        ]
        out = [""] * len(texts)
        for rows, inputs in _batches(list(range(len(ids))), ids, self.tokenizer.pad_token_id, self.device):
            limits = [
                min(2 * len(ids[row]) + 8, self.max_tokens) for row in rows
            ]  # for output that does not end, by the text's own length
            with torch.inference_mode():
                generated = self.model.generate(
                    **inputs, num_beams=self.beams, do_sample=False, max_new_tokens=max(limits)
                )
            for row, tokens, limit in zip(rows, generated, limits, strict=True):
                out[row] = self.tokenizer.decode(
                    tokens[:limit], skip_special_tokens=True
                )  # the last possible one is a forced end
        return out
