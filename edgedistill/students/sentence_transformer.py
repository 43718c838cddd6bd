"""Pretrained sentence encoders as modules: sentence-transformers chains of Transformer, Pooling, Dense,
Normalize, or a plain AutoModel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from safetensors.numpy import load_file as load_numpy
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding
from transformers.utils import logging

from edgedistill import files
from edgedistill.errors import UserError
from edgedistill.students import finite_weights, head, model_folder
from edgedistill.students.graph_writer import UnitLength
from edgedistill.students.model_folder import ACTIVATIONS, DOWNLOAD, WEIGHTS, ModelFolder, opening
from edgedistill.students.pooling import pool

MAP_FILE = "targets.safetensors"
WITH_POOLER = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "ernie", "data2vec-text")


class Affine(NamedTuple):
    """x -> x W + b: weight (e, d), bias (d,)."""

    weight: ndarray
    bias: ndarray

    def __call__(self, vectors: ndarray) -> ndarray:
        return vectors @ self.weight + self.bias

    def write(self, folder: Path) -> None:
        """Write the map to a new folder, atomically, in float32, as it is used."""
        tensors = {name: np.ascontiguousarray(part, np.float32) for name, part in self._asdict().items()}
        with files.new_folder(folder) as temporary:
            save_numpy(tensors, temporary / MAP_FILE)

    @staticmethod
    def read(folder: Path) -> Affine:
        """The map in a folder."""
        return Affine(**load_numpy(folder / MAP_FILE))


class PretrainedEncoder(nn.Module):
    """`forward(input_ids, attention_mask) -> (B, d)`: a transformer, its poolings concatenated, its dense
    layers.

    As with every student, the caller scales to unit length. That is equivalent to a Normalize in the chain,
    which no Dense may follow.
    """

    def __init__(self, model: nn.Module, poolings: list[str], dense: list[nn.Sequential]) -> None:
        super().__init__()
        self.model = model
        self.poolings = poolings
        self.dense = nn.ModuleList(dense)
        config: Any = model.config
        last: Any = dense[-1][0] if dense else None
        self.dims = int(last.out_features if dense else config.hidden_size * len(poolings))

    def followed_by(self, affine: Affine) -> PretrainedEncoder:
        """The encoder with a map behind its embeddings at unit length: a teacher that gives the targets."""
        linear = nn.Linear(*affine.weight.shape)
        linear.weight.data = torch.from_numpy(affine.weight.T).float().contiguous()
        linear.bias.data = torch.from_numpy(affine.bias).float()
        blocks = self.dense
        layers = [nn.Sequential(layer, nn.Identity()) for layer in (UnitLength(), linear)]
        return PretrainedEncoder(self.model, self.poolings, [*blocks, *layers]).eval()

    @property
    def layers_after_pooling(self) -> list[nn.Module]:
        blocks: Any = self.dense
        return [layer for block in blocks for layer in block]

    def tokens(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Token embeddings (B, T, H) of the last layer, before pooling."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]

    def embedded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, H): mean-pooled output of the embedding layer (tokens, positions, segments, LayerNorm), before
        any other layer."""
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

    def counts(self) -> dict[str, int]:
        """Parameters: all embedding tables; the dense layers as the head; the rest is the encoder."""
        model: Any = self.model
        name = type(model).__name__
        fact = "an architecture without one embedding table"
        with opening(name, fact, model_folder.ELSEWHERE):
            embeddings = getattr(model, "embeddings", None) or model.get_input_embeddings()
        return head.counts(self, head.count(embeddings), self.dense)


def read(opened: ModelFolder, pooling: str | None, trust_remote_code: bool = False) -> PretrainedEncoder:
    """Open the weights of a model folder. `pooling` is for plain AutoModels and must be None for
    sentence-transformers models.

    Raises UserError where there are no weights, and for a pooling that is missing or given twice.
    """
    folder = opened.folder
    if not any((opened.transformer / name).exists() for name in WEIGHTS):
        raise UserError(f"{folder}: a model without weights (none of {', '.join(WEIGHTS)}); {DOWNLOAD}")
    if opened.config.get("is_encoder_decoder") and not opened.is_encoder:
        raise UserError(
            f"{folder}: an encoder with a decoder, which does not embed by itself; {model_folder.ELSEWHERE}"
        )
    model_folder.check_pooling(opened, pooling, str(folder), "teacher.pooling")
    poolings = opened.poolings if pooling is None else [pooling]
    model = load_model(opened, "cls_pooler" in poolings, trust_remote_code)
    dense = []
    width = int(model.config.hidden_size) * len(poolings)
    for module in opened.chain:
        if module.kind == "Dense":
            dense.append(_dense(module, width))
            width = int(module.config["out_features"])
    if opened.kept_dims is not None and opened.kept_dims < width:
        dense = _truncated(dense, width, opened.kept_dims)
    return PretrainedEncoder(model, poolings, dense).eval()


def load_model(opened: ModelFolder, pooler: bool, trust_remote_code: bool = False) -> Any:
    """Load the AutoModel of a folder in float32, with or without BERT's `pooler`. Raises UserError where its
    weights are incomplete: transformers would draw the rest at random."""
    model_folder.check_architecture(opened, trust_remote_code)
    trusted = {"trust_remote_code": trust_remote_code, "local_files_only": not trust_remote_code}
    options = {"dtype": torch.float32, **trusted}
    if not pooler and opened.config.get("model_type") in WITH_POOLER:
        options["add_pooling_layer"] = False
    attention = {opened.config.get(key) for key in ("attn_implementation", "_attn_implementation")}
    with opening(opened.folder, "its weights do not open"), quiet():
        if not attention <= {None, "sdpa", "eager"}:
            # such as flash attention: the same attention for another machine
            options["config"] = config = AutoConfig.from_pretrained(opened.transformer, **trusted)
            config.attn_implementation = config._attn_implementation = "eager"
        auto: Any = AutoModelForTextEncoding if opened.is_encoder else AutoModel
        model, info = auto.from_pretrained(opened.transformer, output_loading_info=True, **options)
    missing = sorted(name for name in info["missing_keys"] if not name.startswith("pooler."))
    if missing:
        some = ", ".join(missing[:3]) + (", …" if missing[3:] else "")
        raise UserError(
            f"{opened.folder}: {len(missing)} of the tensors that config.json asks for are not in its "
            f"weights ({some}); {DOWNLOAD}, or correct config.json"
        )
    return finite_weights.checked(model, opened.folder)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and reports, such as the one about a pooler that is left out on
    purpose."""
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _dense(module: model_folder.Module, width: int) -> nn.Sequential:
    """A Dense module for embeddings of `width` dimensions."""
    config = module.config
    folder = module.folder
    # sentence-transformers' own default
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in ACTIVATIONS:
        raise UserError(
            f"{folder / 'config.json'}: activation_function: {activation!r} is not supported here; "
            f"{model_folder.ELSEWHERE}"
        )
    with opening(folder, "its weights do not open"):
        linear = nn.Linear(width, config["out_features"], bias=config.get("bias", True))
        safe = folder / "model.safetensors"
        if safe.exists():
            weights = load_file(safe)
        else:
            weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
        linear.load_state_dict({name.removeprefix("linear."): value for name, value in weights.items()})
    return nn.Sequential(finite_weights.checked(linear, folder), getattr(nn, ACTIVATIONS[activation])())


def _truncated(dense: list[nn.Sequential], dims: int, kept: int) -> list[nn.Sequential]:
    """The dense layers of an encoder that keeps the first `kept` of its `dims` dimensions.

    The last layer's other rows are left out; without a layer, one that selects the dimensions is added:
    graphs and bundles have it then.
    """
    linear: Any = nn.Linear(dims, dims, bias=False)
    nn.init.eye_(linear.weight)
    *others, last = dense or [nn.Sequential(linear, nn.Identity())]
    linear = last[0]
    for name, parameter in list(linear.named_parameters()):
        setattr(linear, name, nn.Parameter(parameter.detach()[:kept].clone()))
    linear.out_features = kept
    return [*others, last]
