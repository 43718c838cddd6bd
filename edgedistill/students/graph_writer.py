"""Writing ONNX nodes: constants, linear layers, attention, pooling, and what every student's graph ends
with."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from edgedistill.errors import UserError, unknown_name

OPSET = 17  # the first with LayerNormalization; later ones add nothing we use, and older runtimes reject them
IR_VERSION = 8  # released with opset 17
MICROSOFT = "com.microsoft"
MASKED = -1e4  # finite: −inf − (−inf) is NaN on rows that are all padding, and −1e4 survives float16
ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "Tanh", nn.ReLU: "Relu", nn.Sigmoid: "Sigmoid"}


class GraphWriter:
    """The nodes and constants of a graph being written.

    Parameters keep the names that they have in `student` (an encoder's in `model`, where the student's own
    has been converted); other names are numbered from `first`.
    """

    def __init__(
        self, student: nn.Module | None = None, model: nn.Module | None = None, first: int = 0
    ) -> None:
        self._named: dict[int, str] = {}
        for prefix, module in (("model.", model), ("", student)):
            tensors = [] if module is None else [*module.named_parameters(), *module.named_buffers()]
            self._named.update({id(tensor): prefix + name for name, tensor in tensors})
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self._numbers = itertools.count(first)

    def constant(self, value: Tensor | np.ndarray | np.generic | list[int], name: str) -> str:
        """Write a constant, floats as float32, integers as they are (lists as int64); returns its name."""
        return self._write(value, f"{name}_{next(self._numbers)}")

    def parameter(self, parameter: Tensor, value: Tensor | np.ndarray | None = None, ending: str = "") -> str:
        """Write a parameter of the student under its own name; returns it.

        `value` is written in its place where the graph folds something else into it. `ending` says how it is
            kept, for whom reads it back
        (see weights_in_graph): `.T` transposed, `[0]` the first of several parts.
        """
        name = self._named.get(id(parameter)) or f"parameter_{next(self._numbers)}"
        return self._write(parameter if value is None else value, name + ending)

    def _write(self, value: Any, name: str) -> str:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def add(
        self, op: str, *inputs: str, outputs: list[str] | None = None, domain: str = "", **attributes: Any
    ) -> str:
        """Write a node; returns the name of its first output."""
        names = outputs or [f"{op.lower()}_{next(self._numbers)}"]
        self.nodes.append(
            helper.make_node(op, list(inputs), names, name=names[0], domain=domain, **attributes)
        )
        return names[0]

    def linear(self, x: str, layer: nn.Linear) -> str:
        """x·Wᵀ + b as MatMul and Add (never Gemm), so that the quantizers find it."""
        return self.linear_each([x], layer)[0]

    def linear_each(self, inputs: list[str], layer: nn.Linear) -> list[str]:
        """`linear` of several inputs, which share its constants."""
        weight = self.parameter(layer.weight, layer.weight.T, ".T")
        bias = None if layer.bias is None else self.parameter(layer.bias)
        products = [self.add("MatMul", x, weight) for x in inputs]
        return products if bias is None else [self.add("Add", product, bias) for product in products]


def finish(
    writer: GraphWriter,
    pooled: str,
    layers: list[nn.Module],
    dims: int,
    hidden: int | None,
    tokens: str | None = None,
) -> onnx.ModelProto:
    """Write the layers after pooling and the unit length, and make the model: its inputs, outputs, opsets.

    dims: of the pooled embedding; hidden: the width of `last_hidden_state`, None where the graph has none.
        tokens: token embeddings
    (B, T, H) that become `last_hidden_state` behind the same layers, see `head_on_tokens`; None where it is
    written already.
    """
    rows = [pooled] if tokens is None else [pooled, tokens]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            rows, dims = writer.linear_each(rows, layer), layer.out_features
        elif not isinstance(layer, nn.Identity):
            rows = [writer.add(ACTIVATIONS[type(layer)], each) for each in rows]
    unit_length(writer, rows[0], outputs=["sentence_embedding"])
    if tokens is not None:
        last, hidden = next(node for node in writer.nodes if node.output[0] == rows[1]), dims
        last.name = last.output[0] = "last_hidden_state"
    both = ["batch", "sequence"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, both)
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", dims])]
    if hidden is not None:
        outputs.append(helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*both, hidden]))
    graph = helper.make_graph(writer.nodes, "student", inputs, outputs, writer.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgedistill")


def after_pooling(student: Any) -> list[nn.Module]:
    """The layers between pooling and unit length, in order."""
    if hasattr(student, "dense"):  # a pretrained encoder's chain
        return [layer for block in student.dense for layer in block]
    head = [student.head] if getattr(student, "head", None) is not None else []
    return [*head, nn.Tanh()] if getattr(student, "tanh", False) else head


def is_encoder(student: Any) -> bool:
    """Whether the student is a transformer: its graph gives `last_hidden_state` too."""
    return hasattr(student, "model")


def pools_to_embedding(student: Any) -> bool:
    """Whether the mean of `last_hidden_state` is the embedding, up to its length: the student pools by mean,
    and its head is linear."""
    poolings = list(getattr(student, "poolings", None) or [getattr(student, "pooling", None)])
    return (
        is_encoder(student)
        and poolings == ["mean"]
        and all(isinstance(layer, nn.Linear | nn.Identity) for layer in after_pooling(student))
    )


def head_on_tokens(student: Any) -> bool:
    """Whether `last_hidden_state` is what the head gives for every token.

    A linear map commutes with the mean: applied before pooling, it lets every library that pools by mean
        return the student's embedding.
    """
    return pools_to_embedding(student) and any(
        isinstance(layer, nn.Linear) for layer in after_pooling(student)
    )


def unit_length(writer: GraphWriter, vectors: str, outputs: list[str] | None = None) -> str:
    """Scale rows to unit length; zero stays zero."""
    length = writer.add("ReduceL2", vectors, axes=[-1], keepdims=1)
    length = writer.add("Clip", length, writer.constant(np.float32(1e-12), "tiny"))
    return writer.add("Div", vectors, length, outputs=outputs)


class Shared(NamedTuple):
    """What all layers read. Token embeddings are rows (B·T, H) for products and norms, and (B, T, H) for
    attention."""

    heads: int
    mask: str
    to_rows: str
    to_sequences: str


def shared(writer: GraphWriter, heads: int, width: int, mask: str, tokens: str) -> Shared:
    """Write the shapes of tokens (B, T, width), which are known when the graph runs. mask: `attention_mask`
    in int32."""
    batch_and_length = writer.add("Shape", tokens, start=0, end=2)
    to_sequences = writer.add("Concat", batch_and_length, writer.constant([width], "width"), axis=0)
    return Shared(heads, mask, writer.constant([-1, width], "rows"), to_sequences)


def attend(writer: GraphWriter, shared: Shared, parts: list[str], scores: str = "") -> str:
    """Write the attention of queries, keys and values, each (B, T, H), to rows (B·T, H). scores: added to
    those of all tokens, or empty.

    scores (1, heads, T, T), or (1, 1, T, T) for all heads alike.
    """
    read = [*parts, "", shared.mask, *([scores] if scores else [])]
    context = writer.add(
        "MultiHeadAttention", *read, domain=MICROSOFT, num_heads=shared.heads, mask_filter_value=MASKED
    )
    return writer.add("Reshape", context, shared.to_rows)


def positions(writer: GraphWriter) -> str:
    """0, 1, 2, … (T,) int64."""
    length = writer.add("Squeeze", writer.add("Shape", "input_ids", start=1, end=2))
    return writer.add(
        "Range", writer.constant(np.int64(0), "zero"), length, writer.constant(np.int64(1), "one")
    )


def integer_mask(writer: GraphWriter) -> str:
    """`attention_mask` in int32, as attention reads it."""
    return writer.add("Cast", "attention_mask", to=TensorProto.INT32)


def distances(writer: GraphWriter, at: str) -> str:
    """Key − query (T, T), queries by keys."""
    keys, queries = (writer.add("Unsqueeze", at, writer.constant([axis], "axis")) for axis in (0, 1))
    return writer.add("Sub", keys, queries)


def last_tokens(student: Any) -> str:
    """What a transformer's last token embeddings are called in its graph: they are an output, unless a head
    is applied to them."""
    return "encoded" if head_on_tokens(student) else "last_hidden_state"


def pool_and_finish(writer: GraphWriter, student: Any, model: Any, tokens: str) -> onnx.ModelProto:
    """Write what follows the last layer of a transformer: its poolings, joined, the head and the unit length;
    and make the model.

    model: the encoder inside, with its config and perhaps a pooler. tokens: `last_tokens`, (B, T, H).
    """
    poolings = list(getattr(student, "poolings", None) or [student.pooling])
    if poolings == ["cls_pooler"]:
        pooled = writer.add("Tanh", writer.linear(pool_nodes(writer, tokens, "cls"), model.pooler.dense))
    else:
        parts = [pool_nodes(writer, tokens, pooling) for pooling in poolings]
        pooled = writer.add("Concat", *parts, axis=-1) if len(parts) > 1 else parts[0]
    width, on_tokens = model.config.hidden_size, tokens if tokens != "last_hidden_state" else None
    return finish(writer, pooled, after_pooling(student), len(poolings) * width, width, on_tokens)


def pool_nodes(writer: GraphWriter, tokens: str, pooling: str) -> str:
    """Write the pooling of token embeddings (B, T, H); returns the name of its output (B, H). Raises
    UserError for an unknown pooling."""
    if pooling in ("mean", "mean_sqrt_len", "weighted_mean"):
        return mean_nodes(writer, tokens, pooling)
    if pooling == "max":
        mask = writer.add(
            "Unsqueeze",
            writer.add("Cast", "attention_mask", to=TensorProto.BOOL),
            writer.constant([2], "axis"),
        )
        masked = writer.add("Where", mask, tokens, writer.constant(np.float32(MASKED), "masked"))
        return writer.add("ReduceMax", masked, axes=[1], keepdims=0)
    if pooling == "cls":
        return writer.add("Gather", tokens, writer.constant(np.int64(0), "first"), axis=1)
    if pooling == "last":
        return _last(writer, tokens)
    raise UserError(
        unknown_name(
            "pooling", pooling, ("mean", "max", "cls", "cls_pooler", "last", "mean_sqrt_len", "weighted_mean")
        )
    )


def mean_nodes(writer: GraphWriter, tokens: str, pooling: str) -> str:
    """Mean pooling: weights w / Σw (B, 1, T) times tokens, one small product instead of a product and a sum
    over (B, T, H).

    w is the mask; for `weighted_mean` the mask times 1, 2, 3 …; `mean_sqrt_len` divides by √Σw.
    """
    weights, axis = writer.add("Cast", "attention_mask", to=TensorProto.FLOAT), writer.constant([1], "axis")
    if pooling == "weighted_mean":
        weights = writer.add(
            "Mul", weights, writer.add("CumSum", weights, writer.constant(np.int64(1), "axis"))
        )
    total = writer.add("ReduceSum", weights, axis, keepdims=1)
    total = writer.add("Clip", total, writer.constant(np.float32(1), "one"))
    total = writer.add("Sqrt", total) if pooling == "mean_sqrt_len" else total
    weights = writer.add("Unsqueeze", writer.add("Div", weights, total), axis)
    return writer.add("Squeeze", writer.add("MatMul", weights, tokens), axis)


def _last(writer: GraphWriter, tokens: str) -> str:
    """The last token that is not padding, whether texts are padded left or right."""
    length = writer.add("Squeeze", writer.add("Shape", "attention_mask", start=1, end=2))
    zero, one = writer.constant(np.int64(0), "zero"), writer.constant(np.int64(1), "one")
    positions = writer.add("Mul", "attention_mask", writer.add("Range", zero, length, one))
    return writer.add(
        "GatherND", tokens, writer.add("ReduceMax", positions, axes=[1], keepdims=1), batch_dims=1
    )
