"""A static student as model2vec and sentence-transformers (StaticEmbedding) open it: its table, and a
tokenizer that stands for theirs.

Both tokenize without special tokens, while a student's mean holds the rows of [CLS] and [SEP]. So the
tokenizer written here puts one token of its own in front of every text, whose row is the sum of theirs; at
unit length a sum equals the mean. Three sorts of text still
differ: without any token (both give zeros), with a special token spelt out, and, in model2vec, with unknown
    tokens, which it leaves out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from edgedistill import files
from edgedistill.run import Run
from edgedistill.students.model_folder import ModelFolder
from edgedistill.students.static import StaticStudent

FOLDER = "0_StaticEmbedding"  # where both libraries look
# the pictures of "start of text" and "end of text": normalizers keep them, texts do not have them
MARK = "\u2402\u2403"


def applies(student: Any, precisions: list[str]) -> bool:
    """Whether the layout is written: a mean of rows behind a linear head at most, and as exact as an fp32
    graph beside it."""
    return isinstance(student, StaticStudent) and not student.tanh and "fp32" in precisions


def write(folder: Path, run: Run, student: StaticStudent) -> None:
    """Write modules.json, the table (V, d) float32 with the head applied to each row, and the tokenizer."""
    tokenizer: Any = run.tokenizer()
    raw = files.read_json(run.tokenizer_folder / "tokenizer.json")
    table = _rows(student)[: len(tokenizer)]  # as many rows as tokens, or model2vec refuses
    added = list(tokenizer("", truncation=True, max_length=run.max_tokens)["input_ids"])
    limit = run.max_tokens - len(added)
    if added:
        table, limit = torch.cat([table, table[added].sum(0, keepdim=True)]), limit + 1
        raw = _with_mark(raw, len(table) - 1)
    (folder / FOLDER).mkdir()
    save_file({"embedding.weight": table.contiguous()}, folder / FOLDER / "model.safetensors")
    files.write_json(
        folder / FOLDER / "tokenizer.json",
        {**raw, "truncation": truncation(limit), "padding": None},
        compact=True,
    )
    (folder / "1_Normalize").mkdir()
    files.write_json(folder / "1_Normalize" / "config.json", {})
    modules = [(FOLDER, "StaticEmbedding"), ("1_Normalize", "Normalize")]
    files.write_json(
        folder / "modules.json",
        [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{name}"}
            for at, (path, name) in enumerate(modules)
        ],
    )
    settings = {"normalize": True, "max_length": limit}  # what model2vec reads
    files.write_json(folder / "config_sentence_transformers.json", {**sentence_settings(run), **settings})


def sentence_settings(run: Run, source: ModelFolder | None = None) -> dict[str, Any]:
    """config_sentence_transformers.json: the prompts, which of them comes before every text, and how
    embeddings are compared.

    source: the model that the student is, whose named prompts stay usable, and whose way to compare
        embeddings where it gives the
    same order for embeddings of unit length.
    """
    prompts = source.prompts if source else {}
    if run.prompt and run.prompt not in prompts.values():
        prompts = {**prompts, "default": run.prompt}
    default = (
        next((name for name, text in prompts.items() if text == run.prompt), None) if run.prompt else None
    )
    similarity = source.similarity if source and source.is_unit else "cosine"
    return {"prompts": prompts, "default_prompt_name": default, "similarity_fn_name": similarity}


def truncation(max_tokens: int, side: str = "right") -> dict[str, Any]:
    """The entry `truncation` of a tokenizer.json. side: of a long text that is cut off, right or left."""
    return {"direction": side.capitalize(), "max_length": max_tokens, "strategy": "LongestFirst", "stride": 0}


def _rows(student: StaticStudent) -> torch.Tensor:
    """The embedding table with token weights and head applied to each row: (V, d) float32, whose mean over a
    text is its embedding."""
    ids = torch.arange(student.embedding.num_embeddings)
    with torch.inference_mode():
        rows = student.embedding(ids) * student.weights.unsqueeze(-1)
        return rows if student.head is None else student.head(rows)


def _with_mark(raw: dict[str, Any], number: int) -> dict[str, Any]:
    """A tokenizer.json that puts MARK, the token of that id, in front of every text."""
    token = {
        "id": number,
        "content": MARK,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": True,
        "special": False,
    }
    # the token's own text goes through the normalizers too, hence "unless it is there"
    front = {"type": "Replace", "pattern": {"Regex": rf"\A(?!{MARK})"}, "content": MARK}
    normalizers = [raw["normalizer"], front] if raw.get("normalizer") else [front]
    added = [*(raw.get("added_tokens") or []), token]
    return {**raw, "added_tokens": added, "normalizer": {"type": "Sequence", "normalizers": normalizers}}
