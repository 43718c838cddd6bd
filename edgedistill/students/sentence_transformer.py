"""Pretrained sentence encoders as modules: sentence-transformers chains of Transformer, Pooling, Dense, Normalize, or a plain AutoModel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel
from transformers.utils import logging

from edgedistill import files
from edgedistill.errors import UserError, unknown_name
from edgedistill.students import finite_weights
from edgedistill.students.pooling import pool

# sentence-transformers' pooling names, old flags and new `pooling_mode` values -> ours
POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": nn.Tanh,
    "torch.nn.modules.linear.Identity": nn.Identity,
    "torch.nn.modules.activation.ReLU": nn.ReLU,
    "torch.nn.modules.activation.GELU": nn.GELU,
    "torch.nn.modules.activation.Sigmoid": nn.Sigmoid,
}
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


class PretrainedEncoder(nn.Module):
    """`forward(input_ids, attention_mask) -> (B, d)`: a transformer, its poolings concatenated, its dense layers.

    As with every student, the caller scales to unit length. That is equivalent to a Normalize in the chain, which no Dense may follow.
    """

    def __init__(self, model: nn.Module, poolings: list[str], dense: list[nn.Sequential]) -> None:
        super().__init__()
        self.model = model
        self.poolings = poolings
        self.dense = nn.ModuleList(dense)
        config: Any = model.config
        last: Any = dense[-1][0] if dense else None
        self._dims = int(last.out_features if dense else config.hidden_size * len(poolings))

    @property
    def dims(self) -> int:
        return self._dims

    def tokens(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Token embeddings (B, T, H) of the last layer, before pooling."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]

    def embedded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, H): mean-pooled output of the embedding layer (tokens, positions, segments, LayerNorm), before any other layer."""
        model: Any = self.model
        return pool(model.embeddings(input_ids=input_ids), attention_mask, "mean")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids, attention_mask (B, T) int64, right-padded. Returns (B, d)."""
        if "cls_pooler" in self.poolings:
            return self.model(input_ids=input_ids, attention_mask=attention_mask)[1]
        tokens = self.tokens(input_ids, attention_mask)
        embeddings = torch.cat([pool(tokens, attention_mask, mode) for mode in self.poolings], -1)
        for layer in self.dense:
            embeddings = layer(embeddings)
        return embeddings


def read(folder: Path, pooling: str | None, trust_remote_code: bool = False) -> PretrainedEncoder:
    """Open a model folder. `pooling` is for plain AutoModels and must be None for sentence-transformers models.

    Raises UserError: no config, no weights, a module that is not supported, a pooling that is missing or given twice.
    """
    transformer, chain = layout(folder)
    if not any((transformer / name).exists() for name in WEIGHTS):
        raise UserError(f"{folder}: a model without weights (none of {', '.join(WEIGHTS)}); download all of it")
    poolings, dense = _modules(folder, chain, pooling)
    options = {} if "cls_pooler" in poolings else without_pooler(transformer)
    model = load_model(transformer, trust_remote_code=trust_remote_code, dtype=torch.float32, **options)
    if chain and (kept := kept_dims(folder)) is not None:
        dense = _truncated(dense, int(model.config.hidden_size) * len(poolings), kept)
    return PretrainedEncoder(model, poolings, dense).eval()


def load_model(folder: Path, **options: Any) -> Any:
    """Load the AutoModel of a folder. Raises UserError where its weights are incomplete: transformers would draw the rest at random."""
    try:
        with quiet():
            model, found = AutoModel.from_pretrained(folder, output_loading_info=True, **{"trust_remote_code": False, **options})
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder}: its weights do not open: {str(error).strip().splitlines()[0]}; download all of it") from error
    missing = sorted(name for name in found["missing_keys"] if not name.startswith("pooler."))
    if missing:
        some = ", ".join(missing[:3]) + (", …" if missing[3:] else "")
        raise UserError(
            f"{folder}: {len(missing)} of the tensors that config.json asks for are not in its weights ({some}); download all of it"
        )
    return finite_weights.checked(model, folder)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and reports, such as the one about a pooler that is left out on purpose."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def layout(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """(the transformer's folder, the modules after it); without modules.json it is a plain AutoModel, with no modules after it.

    Raises UserError for a folder that does not exist or holds no config.json.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such model folder; give a folder, packaged:NAME, or a hub id with a revision")
    modules = folder / "modules.json"
    chain = files.read_json(modules) if modules.exists() else []
    transformer = folder / chain[0]["path"] if chain else folder
    if not (transformer / "config.json").exists():
        raise UserError(f"{folder}: no config.json, so not a model folder; give the folder that holds it")
    return transformer, chain[1:]


def _modules(folder: Path, chain: list[dict[str, Any]], pooling: str | None) -> tuple[list[str], list[nn.Sequential]]:
    if not chain:
        if pooling is None:
            raise UserError(f"{folder}: a plain model does not define its pooling; set teacher.pooling (mean, cls, cls_pooler, max, last)")
        return [pooling], []
    if pooling is not None:
        raise UserError(f"{folder}: a sentence-transformers model brings its own pooling; leave teacher.pooling out")
    poolings, dense, unit = [], [], False
    for module in chain:
        kind = module["type"].rsplit(".", 1)[-1]
        if kind not in ("Pooling", "Dense", "Normalize", "Dropout") or (unit and kind == "Dense"):
            raise UserError(f"{folder}: {unknown_name('module', kind, ['Transformer', 'Pooling', 'Dense', 'Normalize'])} in modules.json")
        config = folder / module["path"] / "config.json"
        if kind == "Pooling":
            poolings = _poolings(files.read_json(config), folder)
        elif kind == "Dense":
            dense.append(_dense(files.read_json(config), config.parent))
        unit |= kind == "Normalize"
    return poolings, dense


def _poolings(config: dict[str, Any], folder: Path) -> list[str]:
    names = config.get("pooling_mode") or [name for name, on in config.items() if name.startswith("pooling_mode_") and on]
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in POOLINGS:
            raise UserError(f"{folder}: {unknown_name('pooling', name, POOLINGS)}")
    return [POOLINGS[name] for name in names]


def _dense(config: dict[str, Any], folder: Path) -> nn.Sequential:
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")  # sentence-transformers' own default
    if config.get("use_residual") or config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        fact = "a Dense layer of another form (use_residual, or in front of the pooling), which is not supported here"
        raise UserError(f"{folder}: {fact}; embed with sentence-transformers, and give the file as teacher.embeddings")
    if activation not in ACTIVATIONS:
        raise UserError(f"{folder}: {unknown_name('activation', activation, ACTIVATIONS)}")
    linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    if (folder / "model.safetensors").exists():
        weights = load_file(folder / "model.safetensors")
    else:
        weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    linear.load_state_dict({name.removeprefix("linear."): value.float() for name, value in weights.items()})
    return nn.Sequential(finite_weights.checked(linear, folder), ACTIVATIONS[activation]())


def kept_dims(folder: Path) -> int | None:
    """How many of its dimensions a Matryoshka model keeps, by its own settings; None for all."""
    settings = folder / "config_sentence_transformers.json"
    kept = files.read_json(settings).get("truncate_dim") if settings.exists() else None
    return kept if isinstance(kept, int) and kept > 0 else None


def _truncated(dense: list[nn.Sequential], dims: int, kept: int) -> list[nn.Sequential]:
    """The dense layers of an encoder that keeps the first `kept` of its dimensions; `dims`: after pooling.

    The last layer's other rows are left out; without a layer, one that selects the dimensions is added: graphs and bundles have it then.
    """
    last: Any = dense[-1][0] if dense else nn.Linear(dims, dims, bias=False)
    if kept >= last.out_features:
        return dense
    linear = nn.Linear(last.in_features, kept, bias=last.bias is not None)
    with torch.no_grad():
        linear.weight.copy_(last.weight[:kept] if dense else torch.eye(kept, dims))
        if last.bias is not None:
            linear.bias.copy_(last.bias[:kept])
    return [*dense[:-1], nn.Sequential(linear, dense[-1][1] if dense else nn.Identity())]


def prompt_is_pooled(folder: Path) -> bool:
    """Whether a prompt's tokens are part of the pooling, as they are unless the model's own settings leave them out."""
    paths = [folder / module["path"] / "config.json" for module in layout(folder)[1] if module["type"].endswith("Pooling")]
    return all(files.read_json(path).get("include_prompt", True) for path in paths)


def without_pooler(transformer: Path) -> dict[str, bool]:
    """The option of `load_model` that leaves BERT's pooler out, where the pooling does not read it; other models do not know it."""
    with_pooler = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "ernie", "data2vec-text")
    return {"add_pooling_layer": False} if files.read_json(transformer / "config.json").get("model_type") in with_pooler else {}


def parameters(encoder: PretrainedEncoder) -> dict[str, int]:
    """All embedding tables; the dense layers as the head; the rest is the encoder."""
    model: Any = encoder.model
    embeddings = getattr(model, "embeddings", None) or model.get_input_embeddings()
    embedding = sum(p.numel() for p in embeddings.parameters())
    head = sum(p.numel() for p in encoder.dense.parameters())
    total = sum(p.numel() for p in encoder.parameters())
    return {"embedding": embedding, "encoder": total - embedding - head, "head": head, "total": total}
