"""The files that other libraries look for next to the graphs: config.json, tokenizer files,
sentence-transformers' modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from edgedistill import files
from edgedistill.export import static_layout
from edgedistill.run import Run
from edgedistill.students import graph, model_folder
from edgedistill.students.output import own

DROPPED_KEYS = (
    "_name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
)  # of config.json: they describe another copy of the model


def is_encoder(student: Any) -> bool:
    """Whether the student is a transformer without an `Output`, which other libraries can open."""
    return hasattr(getattr(student, "model", None), "config")


def libraries(student: Any, precisions: list[str]) -> list[str]:
    """The other libraries that open the bundle, by the names that the card explains.

    Any kind opens in fastembed, and in transformers.js as a model whose `sentence_embedding` is read. Its
    pipelines pool
    `last_hidden_state`, which must pool to the embedding; sentence-transformers and optimum need a
        transformer that they know.
    """
    found = ["fastembed", "transformers.js model"]
    if is_encoder(student):
        found += ["sentence-transformers", "optimum"]
        found += (
            ["transformers.js pipeline", "text-embeddings-inference"]
            if graph.pools_to_embedding(student)
            else []
        )
    elif static_layout.applies(student, precisions):
        found += ["model2vec"]
    return found


def vocabulary_size(student: Any) -> int:
    """Rows of the embedding table: token ids must be below."""
    student = own(student)
    return int(student.model.config.vocab_size if is_encoder(student) else student.embedding.num_embeddings)


def write(folder: Path, run: Run, student: Any, precisions: list[str]) -> None:
    """Write all files of a bundle but graphs, parity.json, card and manifest.

    Weights beside the graphs are as exact as the best of `precisions`.
    """
    write_tokenizer(folder, run)
    if not is_encoder(student):
        pad = {"pad_token_id": run.shape.get("pad") or 0}  # fastembed pads with it
        files.write_json(
            folder / "config.json", {"model_type": f"edgedistill-{run.kind}", **run.shape, **pad}
        )
        if static_layout.applies(student, precisions):
            static_layout.write(folder, run, student)
        return
    config = {
        key: value for key, value in student.model.config.to_diff_dict().items() if key not in DROPPED_KEYS
    }
    files.write_json(folder / "config.json", {**config, "architectures": [type(student.model).__name__]})
    _modules(folder, run, student, half="fp32" not in precisions)


def write_tokenizer(folder: Path, run: Run) -> None:
    """Write the three files that every library reads; each of them truncates to the student's max_tokens, by
    itself or where asked to."""
    tokenizer: Any = run.tokenizer()
    files.write_json(
        folder / "tokenizer.json",
        tokenizer_json(run.tokenizer_folder, run.max_tokens, tokenizer.truncation_side),
        compact=True,
    )
    config = files.read_json(run.tokenizer_folder / "tokenizer_config.json")
    if config.get("tokenizer_class") == "TokenizersBackend":  # a name that only transformers 5 knows
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config = {
        key: value
        for key, value in config.items()
        if key not in ("is_local", "local_files_only", "name_or_path", "max_length")
    }
    if "padding_side" in config:
        config["padding_side"] = (
            "right"  # as graphs read it; what it was in the model changes no text by itself
        )
    files.write_json(folder / "tokenizer_config.json", {**config, "model_max_length": run.max_tokens})
    files.write_json(folder / "special_tokens_map.json", tokenizer.special_tokens_map)


def tokenizer_json(folder: Path, max_tokens: int, side: str = "right") -> dict[str, Any]:
    """The content of a bundle's tokenizer.json, from a tokenizer's folder. side: of a long text that is cut
    off."""
    raw = files.read_json(folder / "tokenizer.json")
    return {**raw, "truncation": static_layout.truncation(max_tokens, side), "padding": None}


def _modules(folder: Path, run: Run, student: Any, half: bool) -> None:
    """Write sentence-transformers' chain: Transformer (the graph's `last_hidden_state`), Pooling, a Dense per
    layer, Normalize.

    A head that the graph applies to every token has no Dense.
    """
    poolings, width = (
        list(getattr(student, "poolings", None) or [student.pooling]),
        int(student.model.config.hidden_size),
    )
    dense = _dense(student)
    if graph.pools_to_embedding(student):
        width, dense = int(student.dims), []
    if poolings == ["cls_pooler"]:  # the pooler is a dense layer on the first token
        poolings, dense = ["cls"], [(student.model.pooler.dense, nn.Tanh()), *dense]
    names = [
        "",
        "1_Pooling",
        *(f"{at}_Dense" for at in range(2, 2 + len(dense))),
        f"{2 + len(dense)}_Normalize",
    ]
    modules = [
        {
            "idx": at,
            "name": str(at),
            "path": name,
            "type": f"sentence_transformers.models.{name.partition('_')[2] or 'Transformer'}",
        }
        for at, name in enumerate(names)
    ]
    files.write_json(folder / "modules.json", modules)
    files.write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": run.max_tokens, "do_lower_case": False}
    )
    source = model_folder.read(run.model_folder) if run.model_folder.is_dir() else None
    files.write_json(
        folder / "config_sentence_transformers.json", static_layout.sentence_settings(run, source)
    )
    pools_prompt = source.pools_prompt if source else True
    pooling = {"word_embedding_dimension": width, **_pooling(poolings), "include_prompt": pools_prompt}
    files.write_json(folder / "1_Pooling" / "config.json", pooling)
    for at, (linear, activation) in enumerate(dense, start=2):
        dense_folder = folder / f"{at}_Dense"
        files.write_json(
            dense_folder / "config.json",
            {
                "in_features": linear.in_features,
                "out_features": linear.out_features,
                "bias": linear.bias is not None,
                "activation_function": f"{type(activation).__module__}.{type(activation).__name__}",
            },
        )
        kind = torch.float16 if half else torch.float32
        weights = {
            f"linear.{name}": value.detach().to(kind).contiguous()
            for name, value in linear.named_parameters()
        }
        save_file(weights, dense_folder / "model.safetensors")
    (folder / names[-1]).mkdir()
    files.write_json(folder / names[-1] / "config.json", {})


def _pooling(poolings: list[str]) -> dict[str, Any]:
    """Flags, which any version of sentence-transformers reads; joined in another order than the flags',
    poolings need its newer list."""
    flags = {flag: ours in poolings for flag, (_, ours) in model_folder.POOLINGS.items()}
    if poolings == [ours for _, ours in model_folder.POOLINGS.values() if ours in poolings]:
        return flags
    names = {ours: name for name, ours in model_folder.POOLINGS.values()}
    return {"pooling_mode": [names[ours] for ours in poolings]}


def _dense(student: Any) -> list[tuple[nn.Linear, nn.Module]]:
    """(linear, activation) of each layer after pooling."""
    if hasattr(student, "dense"):
        return [(block[0], block[1]) for block in student.dense]
    activation = nn.Tanh() if student.tanh else nn.Identity()
    return [(student.head, activation)] if student.head is not None else []
