"""Student -> ONNX graph -> student: written, compared with torch, and read back.

`input_ids`, `attention_mask` go in, `sentence_embedding` comes out; pooling, head and unit length are inside.
Encoders of BERT's layers (DistilBERT and RoBERTa too), BiLSTMs and static students are written straight
from their weights, node by node, so what a device runs can be read here: about thirty nodes per BERT layer
and twenty around them, or around a table. Any other encoder (a teacher may be anything) and any other
kind of student is traced with torch's TorchScript exporter.

All operators are ONNX's own. onnxruntime is as fast on attention's parts as on its MultiHeadAttention.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
import torch
from numpy import ndarray
from onnx import ModelProto, TensorProto, helper
from onnxruntime import InferenceSession
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state
from onnxruntime.quantization.onnx_model import ONNXModel
from torch import Tensor, nn

from edgedistill.errors import CheckFailed, UserError, first_line
from edgedistill.files import Json
from edgedistill.runtime.manifest import INPUTS
from edgedistill.runtime.onnx_session import open_in_memory
from edgedistill.runtime.similarity import COSINE, unit_rows
from edgedistill.runtime.trust import GET_AGAIN
from edgedistill.students import bert_layers, kinds
from edgedistill.students.bert_layers import FOLDED
from edgedistill.students.graph_writer import OPSET, head_on_tokens, is_encoder, pools_to_embedding
from edgedistill.students.model_folder import TEACH, opening

LARGEST_BYTES = 1_800_000_000  # protobuf ends at 2 GiB; a graph stays one file below this
MIN_COSINE = 0.9999  # to torch, on random ids; float32 differs in the seventh digit
SHAPES = ((1, 1), (1, 0), (3, 7), (17, 33))  # (batch, tokens) that every graph is run at; 0: max_tokens
ORT_ERRORS = (
    ort_state.Fail,
    ort_state.RuntimeException,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.NotImplemented,
)
# Tracing runs the model's own code, which may raise nearly anything.
NOT_TRACED = (
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    UserError,
    CheckFailed,
    onnx.checker.ValidationError,
    *ORT_ERRORS,
)


def _written(student: Any) -> ModelProto:
    if hasattr(student, "write"):
        return student.write()
    layers = bert_layers.layers_of(student)
    return traced(student) if layers is None else bert_layers.write(student, layers)


class _Traced(nn.Module):
    """The student with both outputs: unit-length embeddings, and its last layer's token embeddings, behind a
    linear head if it has one."""

    def __init__(self, student: Any) -> None:
        super().__init__()
        self.student = student
        self.token_embeddings: list[Tensor] = []
        if is_encoder(student):
            student.model.register_forward_hook(
                lambda module, inputs, output: self.token_embeddings.append(output[0])
            )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        pooled = self.student(input_ids, attention_mask)
        if not self.token_embeddings:
            return (torch.nn.functional.normalize(pooled, dim=-1),)
        tokens = self.token_embeddings.pop()
        for layer in self.student.layers_after_pooling if head_on_tokens(self.student) else []:
            tokens = layer(tokens)
        return torch.nn.functional.normalize(pooled, dim=-1), tokens


def traced(student: Any) -> ModelProto:
    """Trace with torch's TorchScript exporter; an encoder on eager attention. onnxruntime fuses what it can
    when it opens the graph.

    The newer exporter is not used: the quantizer does not find the LSTM weights of its graphs.
    """
    copied = copy.deepcopy(student)
    encoder = is_encoder(student)
    if encoder:
        copied.model.set_attn_implementation("eager")
    outputs = ["sentence_embedding", "last_hidden_state"][: 1 + encoder]
    dynamic = {name: {0: "batch", 1: "sequence"} for name in (*INPUTS[:2], *outputs)}
    dynamic["sentence_embedding"] = {0: "batch"}
    example: Tensor = torch.ones((2, 5), dtype=torch.long)
    file: Any = io.BytesIO()  # the exporter takes a file object, though its type hints do not allow one
    options: Json = {"opset_version": OPSET, "dynamo": False, "dynamic_axes": dynamic}
    options |= {"input_names": list(INPUTS[:2]), "output_names": outputs}
    name = type(getattr(student, "model", student)).__name__
    refused = opening(name, "an architecture that cannot be written as a graph", TEACH)
    with refused, warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # about the old exporter, and one for each shape it traces
        torch.onnx.export(_Traced(copied).eval(), (example, example), file, **options)
    model = onnx.load_from_string(file.getvalue())
    ONNXModel(model).replace_gemm_with_matmul()  # the quantizers look for MatMul
    from onnxscript import ir  # known architectures do not need it

    shared = ir.from_proto(model)
    # equal constants once, such as a head's, which is applied to every token and to their mean
    ir.passes.common.DeduplicateHashedInitializersPass()(shared)
    model = ir.to_proto(shared)
    model.producer_name = "edgedistill"
    return model


def build(student: nn.Module) -> ModelProto:
    """Write a student as a graph: (B, T) int64 twice -> `sentence_embedding` (B, d) float32, unit rows (zero
    stays zero).

    Graphs of encoders also give `last_hidden_state` (B, T, H), the token embeddings before pooling, which
    transformers.js and optimum look for. Raises UserError for layers that ONNX cannot express, and above 1.8
    GB.
    """
    model = _written(student)
    size = model.ByteSize()
    if size > LARGEST_BYTES:
        raise UserError(
            f"the graph would be {size / 1e9:.1f} GB: one file holds at most {LARGEST_BYTES / 1e9:.1f} GB; "
            "give the student fewer layers, a smaller vocabulary, or `pq_bytes` for its embedding table"
        )
    onnx.checker.check_model(model)
    return model


def before_unit(model: ModelProto) -> str:
    """Add the embedding before its scaling to unit length as an output, in place; returns the output's name.

    Every graph written here ends in a division by the length. For a graph that does not, `sentence_embedding`
    is returned.
    """
    last = next(node for node in model.graph.node if "sentence_embedding" in node.output)
    if last.op_type != "Div":
        return "sentence_embedding"
    model.graph.output.append(helper.make_tensor_value_info(last.input[0], TensorProto.FLOAT, None))
    return str(last.input[0])


def build_checked(encoder: nn.Module, max_tokens: int, vocabulary_size: int) -> ModelProto:
    """`build`, with a graph that gives the same as torch for batches and lengths other than it was traced
    with.

    Raises CheckFailed, with the reason, for an encoder that has no such graph.
    """
    try:
        model = build(encoder)
        worst = compare(encoder, model, max_tokens, vocabulary_size)
    except NOT_TRACED as error:
        reason = first_line(str(error).strip() or type(error).__name__)
        raise CheckFailed(f"it cannot be written as a graph ({reason})") from error
    if not worst > MIN_COSINE:  # NaN is above nothing
        raise CheckFailed(f"its graph gives other embeddings than torch (cosine {worst:.4f} on random ids)")
    return model


def compare(module: nn.Module, model: ModelProto, max_tokens: int, vocabulary_size: int) -> float:
    """The smallest cosine of a graph's embeddings to a student's in torch, over all shapes and padded rows.

    Where the mean of `last_hidden_state` is to be the embedding, it is compared too: other libraries read it.
    Raises CheckFailed where the graph does not run, as with a fixed dimension, or gives another shape than
    torch.
    """
    session = open_in_memory(model.SerializeToString())
    random = np.random.default_rng(0)
    worst = np.ones(1)
    for batch, length in SHAPES:
        tokens = min(length or max_tokens, max_tokens)
        ids = random.integers(0, vocabulary_size, (batch, tokens))
        lengths = random.integers(1, tokens + 1, (batch, 1))  # right-padded rows
        mask = (np.arange(tokens) < lengths).astype(np.int64)
        with torch.inference_mode():
            embeddings = module(torch.from_numpy(ids), torch.from_numpy(mask))
            expected = torch.nn.functional.normalize(embeddings, dim=-1).numpy()
        inputs = dict(zip(INPUTS, (ids, mask), strict=False))
        outputs = [_run(session, "sentence_embedding", inputs)]
        if pools_to_embedding(module):
            outputs.append(_pooled(_run(session, "last_hidden_state", inputs), mask))
        for rows in outputs:
            if rows.shape != expected.shape:
                raise CheckFailed(
                    f"the graph gives {rows.shape} at {_shape(inputs)}; torch gives {expected.shape}"
                )
            worst = np.append(worst, COSINE.between(rows, expected))
    return float(worst.min())  # NaN is the worst of all


def _pooled(tokens: ndarray, mask: ndarray) -> ndarray:
    """The mean of each text's token embeddings (B, T, d), at unit length: (B, d)."""
    return unit_rows((tokens * mask[:, :, None]).sum(1))


def _run(session: InferenceSession, output: str, inputs: dict[str, ndarray]) -> ndarray:
    try:
        rows = session.run([output], inputs)[0]
    except ORT_ERRORS as error:
        raise CheckFailed(f"the graph does not run at {_shape(inputs)}: {error}") from None
    return rows


def _shape(inputs: dict[str, ndarray]) -> str:
    batch, tokens = inputs["input_ids"].shape
    return f"batch {batch}, {tokens} tokens"


def read_back(constants: Mapping[str, ndarray], shape: Json, place: str) -> dict[str, Tensor]:
    """The state dict of the student that `shape` (student.json) describes, from the constants of its graph,
    which carry its own names of parameters: {name: float32}.

    An ending of a name says how the parameter is kept: `.T` transposed; a kind's own endings are undone by
    its `restore`. A graph may hold less than its student did, where parameters are folded into others: then
    the weights compute the same embeddings, though they are others than went in.
    Nothing larger than the constants is allocated before their sizes are found to be the student's. `place`
    is the bundle, which opens the errors. Raises UserError for a graph that does not name them all,
    CheckFailed for constants of other sizes.
    """
    kind = kinds.KINDS[shape["kind"]]
    with torch.device("meta"):
        wanted = kind.build(shape).state_dict()
    try:
        weights = {
            name.removesuffix(".T"): array.T if name.endswith(".T") else array
            for name, array in constants.items()
        }
        kind.restore(weights)
    except (ValueError, IndexError, KeyError):
        raise CheckFailed(f"{place}: its constants do not fit together; {GET_AGAIN}") from None
    state = {}
    for name, parameter in wanted.items():
        sizes = tuple(parameter.shape)
        array = weights.get(name)
        if array is FOLDED:
            array = np.zeros(sizes, np.float32)
        if array is None:
            raise UserError(
                f"{place}: its graph has no {name}, so its weights cannot be read back; give the run it was "
                "exported from"
            )
        if array.size != prod(sizes):
            raise CheckFailed(
                f"{place}: {name} has the shape {array.shape}, its student's has {sizes}; {GET_AGAIN}"
            )
        state[name] = torch.from_numpy(np.array(array, order="C")).reshape(sizes).to(parameter.dtype)
    return state
