"""The files that other libraries look for next to the graphs: config.json, tokenizer files,
sentence-transformers' modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from edgedistill.files import Json, read_json, write_json
from edgedistill.run import Run
from edgedistill.runtime.prompts import ROLES
from edgedistill.students import graph_writer, model_folder
from edgedistill.students.model_folder import ModelFolder

# of config.json: they describe another copy of the model
DROPPED_KEYS = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")


def libraries(student: Any) -> list[str]:
    """The other libraries that open the bundle, by the names that the card explains.

    Any kind opens in fastembed, and in transformers.js as a model whose `sentence_embedding` is read. Its
    pipelines pool `last_hidden_state`, which must pool to the embedding; sentence-transformers and optimum
    need a transformer that they know.
    """
    names = ["fastembed", "transformers.js model"]
    if graph_writer.is_encoder(student):
        names += ["sentence-transformers", "optimum"]
        if graph_writer.pools_to_embedding(student):
            names += ["transformers.js pipeline", "text-embeddings-inference"]
    return names


def vocabulary_size(student: Any) -> int:
    """Rows of the embedding table: token ids must be below."""
    encoder = graph_writer.is_encoder(student)
    return int(student.model.config.vocab_size if encoder else student.embedding.num_embeddings)


def write(folder: Path, run: Run, student: Any, precisions: list[str]) -> None:
    """Write all files of a bundle but graphs, parity.json, card and manifest.

    Weights beside the graphs are as exact as the best of `precisions`.
    """
    write_tokenizer(folder, run)
    if graph_writer.is_encoder(student):
        config = student.model.config.to_diff_dict() | {"architectures": [type(student.model).__name__]}
        config = {key: value for key, value in config.items() if key not in DROPPED_KEYS}
        _modules(folder, run, student, half="fp32" not in precisions)
    else:
        pad = run.shape.get("pad") or 0  # fastembed pads with it
        config = {"model_type": f"edgedistill-{run.kind}", **run.shape, "pad_token_id": pad}
    write_json(folder / "config.json", config)


def write_tokenizer(folder: Path, run: Run) -> None:
    """Write the three files that every library reads; each of them truncates to the student's max_tokens, by
    itself or where asked to."""
    tokenizer = run.tokenizer()
    content = tokenizer_json(run.tokenizer_folder, run.max_tokens, tokenizer.truncation_side)
    write_json(folder / "tokenizer.json", content, compact=True)
    config = read_json(run.tokenizer_folder / "tokenizer_config.json")
    if config.get("tokenizer_class") == "TokenizersBackend":  # a name that only transformers 5 knows
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    for key in ("is_local", "local_files_only", "name_or_path", "max_length"):
        config.pop(key, None)
    if "padding_side" in config:  # as graphs read it; what it was in the model changes no text by itself
        config["padding_side"] = "right"
    write_json(folder / "tokenizer_config.json", {**config, "model_max_length": run.max_tokens})
    write_json(folder / "special_tokens_map.json", tokenizer.special_tokens_map)


def tokenizer_json(folder: Path, max_tokens: int, side: str = "right") -> Json:
    """The content of a bundle's tokenizer.json, from a tokenizer's folder; `side` is the end of a long text
    that is cut off."""
    raw = read_json(folder / "tokenizer.json")
    truncation = {"direction": side.capitalize(), "max_length": max_tokens}
    return {**raw, "truncation": {**truncation, "strategy": "LongestFirst", "stride": 0}, "padding": None}


def _modules(folder: Path, run: Run, student: Any, half: bool) -> None:
    """Write sentence-transformers' chain: Transformer (the graph's `last_hidden_state`), Pooling, a Dense per
    layer (a Normalize where a layer scales to unit length), Normalize. Each has its config.json in a folder;
    a Transformer, which has none of its own, lies beside them.

    A head that the graph applies to every token has no Dense.
    """
    poolings = student.poolings
    source = run.source
    layers = student.layers_after_pooling
    width = int(student.model.config.hidden_size)
    if graph_writer.pools_to_embedding(student):
        width = int(student.dims)
        layers = []
    if poolings == ["cls_pooler"]:  # the pooler is a dense layer on the first token
        poolings = ["cls"]
        layers = [student.model.pooler.dense, nn.Tanh(), *layers]
    settings = {"max_seq_length": run.max_tokens, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", settings)
    write_json(folder / "config_sentence_transformers.json", _sentence_settings(run, source))
    prompted = source is None or source.pools_prompt
    pooling = {"word_embedding_dimension": width, **_pooling(poolings), "include_prompt": prompted}
    chain = [("Transformer", {}), ("Pooling", pooling)]
    kind = torch.float16 if half else torch.float32
    for layer, activation in zip(layers, [*layers, nn.Identity()][1:], strict=True):
        if isinstance(layer, nn.Linear):
            named = f"{type(activation).__module__}.{type(activation).__name__}"
            sizes = {"in_features": layer.in_features, "out_features": layer.out_features}
            weights = layer.state_dict(prefix="linear.").items()
            file = folder / f"{len(chain)}_Dense" / "model.safetensors"
            file.parent.mkdir()
            save_file({name: value.to(kind).contiguous() for name, value in weights}, file)
            config = {**sizes, "bias": layer.bias is not None, "activation_function": named}
            chain.append(("Dense", config))
        elif isinstance(layer, graph_writer.UnitLength):
            chain.append(("Normalize", {}))
    modules = []
    for at, (name, config) in enumerate([*chain, ("Normalize", {})]):
        path = f"{at}_{name}" if at else ""
        named = f"sentence_transformers.models.{name}"
        modules.append({"idx": at, "name": str(at), "path": path, "type": named})
        if at:
            write_json(folder / path / "config.json", config)
    write_json(folder / "modules.json", modules)


def _sentence_settings(run: Run, source: ModelFolder | None) -> Json:
    """config_sentence_transformers.json: the prompts, which of them comes before every text, and how
    embeddings are compared.

    Where the student is a `source` model itself, its named prompts stay usable, and so does its way to
    compare embeddings where that gives the same order for embeddings of unit length. The prompts named
    `query` and `document`, which the library takes for empty where they are missing, are the run's.
    """
    prompts = source.prompts if source else {}
    if run.prompt and run.prompt not in prompts.values():
        prompts = {**prompts, "default": run.prompt}
    names = [name for name, text in prompts.items() if run.prompt and text == run.prompt]
    for role in ROLES[1:]:
        if prompts.get(role, "") != run.prompts.of(role):
            prompts = {**prompts, role: run.prompts.of(role)}
    return {
        "prompts": prompts,
        "default_prompt_name": names[0] if names else None,
        "similarity_fn_name": source.similarity if source and source.is_unit else "cosine",
    }


def _pooling(poolings: list[str]) -> Json:
    """Flags, which any version of sentence-transformers reads; joined in another order than the flags',
    poolings need its newer list."""
    names = {ours: name for name, ours in model_folder.POOLINGS.values()}
    if poolings == [ours for ours in names if ours in poolings]:
        return {flag: ours in poolings for flag, (_, ours) in model_folder.POOLINGS.items()}
    return {"pooling_mode": [names[ours] for ours in poolings]}
