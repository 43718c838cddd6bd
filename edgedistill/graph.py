"""Student -> ONNX graph: `input_ids`, `attention_mask` in, `sentence_embedding` out; pooling, head and unit length inside.

BERT encoders, BiLSTMs and static tables are written straight from their weights, node by node, so what a device runs can be read
here: about eight nodes a BERT layer and ten around them; six for a static table. Any other encoder (a teacher may be anything) is
traced with torch's TorchScript exporter.

The operators `MultiHeadAttention`, `SkipLayerNormalization` and `BiasGelu` are onnxruntime's own (domain com.microsoft),
present in all its builds, the browser's too.
"""

from __future__ import annotations

import copy
import io
import itertools
import logging
import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state
from torch import Tensor, nn

from edgedistill.errors import AnswerIsNo, UserError, unknown
from edgedistill.students.output import Output
from edgedistill.students.static import StaticStudent

OPSET = 17  # the first with LayerNormalization; later ones bring nothing we use, and older runtimes refuse them
IR_VERSION = 8  # what opset 17 came with
MICROSOFT = "com.microsoft"
LARGEST_BYTES = 1_800_000_000  # protobuf ends at 2 GiB; a graph stays one file below this
SAME = 0.99999  # cosine at which a fused graph is taken to say what the plain one says
MASKED = -1e4  # finite: −inf − (−inf) is NaN on rows that are all padding, and −1e4 survives float16
SHAPES = ((1, 1), (1, 0), (3, 7), (17, 33))  # (batch, tokens) every graph is run at; 0 stands for the longest
ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "Tanh", nn.ReLU: "Relu", nn.Sigmoid: "Sigmoid"}
ORT_ERRORS = (ort_state.Fail, ort_state.RuntimeException, ort_state.InvalidArgument, ort_state.InvalidGraph, ort_state.NotImplemented)
GELUS = {"gelu": "BiasGelu", "gelu_new": "FastGelu", "gelu_pytorch_tanh": "FastGelu", "gelu_fast": "FastGelu"}


class Sheet:
    """The nodes and constants of a graph being written; `add` returns the name of a node's output."""

    def __init__(self, first: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self._numbers = itertools.count(first)

    def constant(self, value: Tensor | np.ndarray | np.generic | list[int], name: str) -> str:
        """Write a constant: floats as float32, integers as they are (lists as int64)."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        name = f"{name}_{next(self._numbers)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def add(self, op: str, *inputs: str, outputs: list[str] | None = None, domain: str = "", **attributes: Any) -> str:
        names = outputs or [f"{op.lower()}_{next(self._numbers)}"]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=names[0], domain=domain, **attributes))
        return names[0]

    def linear(self, x: str, layer: nn.Linear, name: str) -> str:
        """x·Wᵀ + b as MatMul and Add (never Gemm), so that the quantizers find it."""
        y = self.add("MatMul", x, self.constant(layer.weight.T, f"{name}_weight"))
        return y if layer.bias is None else self.add("Add", y, self.constant(layer.bias, f"{name}_bias"))


def build(student: nn.Module) -> onnx.ModelProto:
    """Write the student as a graph: (B, T) int64 twice -> `sentence_embedding` (B, d) float32, unit rows (zero stays zero).

    Encoders also give `last_hidden_state` (B, T, H), the token embeddings on the way there: transformers.js and optimum open
    those. Raises UserError for parts ONNX has no words for, and above 1.8 GB.
    """
    if isinstance(student, Output):
        model = _followed(build(student.inner), student)
    elif hasattr(student, "lstm"):
        model = _bilstm(student)
    elif isinstance(student, StaticStudent):
        model = _static(student)
    elif _is_bert(student):
        model = _bert(student)
    else:
        model = _traced(student)
    size = model.ByteSize()
    if size > LARGEST_BYTES:
        raise UserError(
            f"the graph would be {size / 1e9:.1f} GB: one file holds at most {LARGEST_BYTES / 1e9:.1f} GB; "
            "give the student fewer layers, a smaller vocabulary, or a `bottleneck` for its word table"
        )
    onnx.checker.check_model(model)
    return model


def before_unit(model: onnx.ModelProto) -> str:
    """Put out the vectors before they are scaled to unit length too; returns that output's name.

    Every graph here ends in a division by the length; a graph that does not gives unit vectors alone, and so does this.
    """
    last = next(node for node in model.graph.node if "sentence_embedding" in node.output)
    if last.op_type != "Div":
        return "sentence_embedding"
    model.graph.output.append(helper.make_tensor_value_info(last.input[0], TensorProto.FLOAT, None))
    return str(last.input[0])


def compare(student: nn.Module, model: onnx.ModelProto, longest: int, pieces: int) -> float:
    """The smallest cosine between torch and the graph over SHAPES, padded rows included.

    `longest` tokens, ids below `pieces`. Raises AnswerIsNo where the graph holds a dimension fixed or gives the wrong shape.
    """
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    random, worst = np.random.default_rng(0), 1.0
    for batch, tokens in ((batch, tokens or longest) for batch, tokens in SHAPES):
        tokens = min(tokens, longest)
        ids = random.integers(0, pieces, (batch, tokens))
        mask = (np.arange(tokens) < random.integers(1, tokens + 1, (batch, 1))).astype(np.int64)
        with torch.inference_mode():
            expected = torch.nn.functional.normalize(student(torch.from_numpy(ids), torch.from_numpy(mask)), dim=-1).numpy()
        try:
            rows = session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0]
        except ORT_ERRORS as error:
            raise AnswerIsNo(f"the graph does not run at batch {batch}, {tokens} tokens: {error}") from None
        if rows.shape != expected.shape:
            raise AnswerIsNo(f"the graph gives {rows.shape} at batch {batch}, {tokens} tokens; torch gives {expected.shape}")
        worst = float(np.minimum(worst, (rows * expected).sum(-1).min()))  # keeps NaN, where min() may drop it
    return worst


def _finish(sheet: Sheet, pooled: str, layers: list[nn.Module], dims: int, hidden: int | None) -> onnx.ModelProto:
    """The layers behind the pooling, unit length, the names of inputs and outputs, and the model around the nodes."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            pooled, dims = sheet.linear(pooled, layer, "head"), layer.out_features
        elif not isinstance(layer, nn.Identity):
            pooled = sheet.add(ACTIVATIONS[type(layer)], pooled)
    _unit(sheet, pooled, outputs=["sentence_embedding"])
    both = ["batch", "sequence"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, both) for name in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", dims])]
    if hidden is not None:
        outputs.append(helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*both, hidden]))
    graph = helper.make_graph(sheet.nodes, "student", inputs, outputs, sheet.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgedistill")


def _unit(sheet: Sheet, rows: str, outputs: list[str] | None = None) -> str:
    """Rows scaled to unit length; zero stays zero."""
    length = sheet.add("ReduceL2", rows, axes=[-1], keepdims=1)
    length = sheet.add("Clip", length, sheet.constant(np.float32(1e-12), "tiny"))
    return sheet.add("Div", rows, length, outputs=outputs)


def _followed(model: onnx.ModelProto, student: Output) -> onnx.ModelProto:
    """A student's graph with an affine map behind its unit vector, and blocks as long as the root of their weight."""
    inner, sheet = model.graph, Sheet(first=1_000_000)  # far from the inner graph's names
    last = next(node for node in inner.node if "sentence_embedding" in node.output)
    last.name = last.output[0] = "own_embedding"
    rows = "own_embedding" if student.linear is None else sheet.linear("own_embedding", student.linear, "reduce")
    if student.blocks:
        ends = list(itertools.accumulate(size for size, _ in student.blocks))
        parts = []
        for end, (size, weight) in zip(ends, student.blocks, strict=True):
            bounds = [sheet.constant(np.array([at], np.int64), "at") for at in (end - size, end, 1)]
            part = _unit(sheet, sheet.add("Slice", rows, *bounds))
            parts.append(sheet.add("Mul", part, sheet.constant(np.float32(weight**0.5), "root")))
        rows = sheet.add("Concat", *parts, axis=1)
    _unit(sheet, rows, outputs=["sentence_embedding"])
    inner.node.extend(sheet.nodes)
    inner.initializer.extend(sheet.constants)
    inner.output[0].type.tensor_type.shape.dim[1].dim_value = student.dims
    return model


# Pooling: tokens (B, T, H) and mask -> (B, H)


def _pool(sheet: Sheet, tokens: str, pooling: str) -> str:
    if pooling in ("mean", "mean_sqrt_len", "weighted_mean"):
        return _mean(sheet, tokens, pooling)
    if pooling == "max":
        mask = sheet.add("Unsqueeze", sheet.add("Cast", "attention_mask", to=TensorProto.BOOL), sheet.constant([2], "axis"))
        seen = sheet.add("Where", mask, tokens, sheet.constant(np.float32(MASKED), "masked"))
        return sheet.add("ReduceMax", seen, axes=[1], keepdims=0)
    if pooling == "cls":
        return sheet.add("Gather", tokens, sheet.constant(np.int64(0), "first"), axis=1)
    if pooling == "last":
        return _last(sheet, tokens)
    raise UserError(unknown("pooling", pooling, ("mean", "max", "cls", "cls_pooler", "last", "mean_sqrt_len", "weighted_mean")))


def _mean(sheet: Sheet, tokens: str, pooling: str) -> str:
    """Weights w / Σw (B, 1, T) times tokens: one small product instead of a product and a sum over (B, T, H).

    w is the mask; for `weighted_mean` the mask times 1, 2, 3 …; `mean_sqrt_len` divides by √Σw.
    """
    weights, axis = sheet.add("Cast", "attention_mask", to=TensorProto.FLOAT), sheet.constant([1], "axis")
    if pooling == "weighted_mean":
        weights = sheet.add("Mul", weights, sheet.add("CumSum", weights, sheet.constant(np.int64(1), "axis")))
    total = sheet.add("ReduceSum", weights, axis, keepdims=1)
    total = sheet.add("Clip", total, sheet.constant(np.float32(1), "one"))
    total = sheet.add("Sqrt", total) if pooling == "mean_sqrt_len" else total
    weights = sheet.add("Unsqueeze", sheet.add("Div", weights, total), axis)
    return sheet.add("Squeeze", sheet.add("MatMul", weights, tokens), axis)


def _last(sheet: Sheet, tokens: str) -> str:
    """The token at the last position that is not padding, on whichever side the padding is."""
    width = sheet.add("Squeeze", sheet.add("Shape", "attention_mask", start=1, end=2))
    zero, one = sheet.constant(np.int64(0), "zero"), sheet.constant(np.int64(1), "one")
    places = sheet.add("Mul", "attention_mask", sheet.add("Range", zero, width, one))
    return sheet.add("GatherND", tokens, sheet.add("ReduceMax", places, axes=[1], keepdims=1), batch_dims=1)


def _after_pooling(student: Any) -> list[nn.Module]:
    """The layers between pooling and unit length, in order."""
    if hasattr(student, "dense"):  # a teacher's chain
        return [layer for block in student.dense for layer in block]
    head = [student.head] if getattr(student, "head", None) is not None else []
    return [*head, nn.Tanh()] if getattr(student, "tanh", False) else head


# BERT


def _is_bert(student: Any) -> bool:
    """Whether the graph can be written from the weights; otherwise it is traced."""
    model: Any = getattr(student, "model", None)
    if type(model).__name__ != "BertModel" or model.config.is_decoder:
        return False
    absolute = getattr(model.config, "position_embedding_type", "absolute") == "absolute"
    known = all(isinstance(layer, nn.Linear | nn.Identity) or type(layer) in ACTIVATIONS for layer in _after_pooling(student))
    return absolute and known and model.config.hidden_act in (*GELUS, "relu")


def _bert(student: Any) -> onnx.ModelProto:
    sheet, model, config = Sheet(), student.model, student.model.config
    mask = sheet.add("Cast", "attention_mask", to=TensorProto.INT32)
    tokens = _bert_embeddings(sheet, model.embeddings, config, getattr(student, "pad", None))
    weights = [_layer_weights(sheet, layer) for layer in model.encoder.layer]
    layers = weights * getattr(model.encoder, "times", 1)  # a recurring unit's constants are written once
    for number, layer in enumerate(layers):
        output = "last_hidden_state" if number == len(layers) - 1 else f"layer_{number}"
        tokens = _bert_layer(sheet, layer, config, tokens, mask, output)
    if not layers:
        tokens = sheet.add("Identity", tokens, outputs=["last_hidden_state"])
    poolings = list(getattr(student, "poolings", None) or [student.pooling])
    if poolings == ["cls_pooler"]:
        pooled = sheet.add("Tanh", sheet.linear(_pool(sheet, tokens, "cls"), model.pooler.dense, "pooler"))
    else:
        parts = [_pool(sheet, tokens, pooling) for pooling in poolings]
        pooled = sheet.add("Concat", *parts, axis=-1) if len(parts) > 1 else parts[0]
    return _finish(sheet, pooled, _after_pooling(student), len(poolings) * config.hidden_size, config.hidden_size)


def _bert_embeddings(sheet: Sheet, embeddings: Any, config: Any, pad: int | None) -> str:
    """Word, position and segment tables -> (B, T, H). All text is segment 0: its row is added to the positions once, here.

    `pad`: the id behind which positions are counted, over the tokens that are not that id; None: they are counted from 0.
    """
    words = embeddings.word_embeddings
    if isinstance(words, nn.Embedding):
        tokens = sheet.add("Gather", sheet.constant(words.weight, "word_table"), "input_ids")
    else:
        tokens = sheet.add("Gather", sheet.constant(words.table.weight, "word_table"), "input_ids")
        tokens = sheet.linear(tokens, words.project, "word_project")
    positions = embeddings.position_embeddings.weight + embeddings.token_type_embeddings.weight[0]
    table = sheet.constant(positions, "position_table")
    if pad is None:
        length, zero = sheet.add("Shape", "input_ids", start=1, end=2), sheet.constant([0], "zero")
        places = sheet.add("Slice", table, zero, length, zero)
    else:
        places = sheet.add("Gather", table, _counted_from(sheet, pad))
    tokens = sheet.add("Add", tokens, places)
    norm = embeddings.LayerNorm
    scale, shift = sheet.constant(norm.weight, "norm_weight"), sheet.constant(norm.bias, "norm_bias")
    return sheet.add("LayerNormalization", tokens, scale, shift, axis=-1, epsilon=config.layer_norm_eps)


def _counted_from(sheet: Sheet, pad: int) -> str:
    """XLM-R's positions (B, T): pad + 1, pad + 2, … over the tokens that are not padding, pad for those that are."""
    number = sheet.constant(np.int64(pad), "pad")
    seen = sheet.add("Cast", sheet.add("Not", sheet.add("Equal", "input_ids", number)), to=TensorProto.INT64)
    counted = sheet.add("Mul", sheet.add("CumSum", seen, sheet.constant(np.int64(1), "axis")), seen)
    return sheet.add("Add", counted, number)


def _layer_weights(sheet: Sheet, layer: Any) -> dict[str, str]:
    """Write a layer's constants; their names. One product for queries, keys and values."""
    projections = [layer.attention.self.query, layer.attention.self.key, layer.attention.self.value]
    names = {
        "qkv_bias": sheet.constant(torch.cat([projection.bias for projection in projections]), "qkv_bias"),
        "qkv_weight": sheet.constant(torch.cat([projection.weight for projection in projections]).T, "qkv_weight"),
        "inner_weight": sheet.constant(layer.intermediate.dense.weight.T, "inner_weight"),
        "inner_bias": sheet.constant(layer.intermediate.dense.bias, "inner_bias"),
    }
    for part, block in (("attention", layer.attention.output), ("feed_forward", layer.output)):
        names[f"{part}_weight"] = sheet.constant(block.dense.weight.T, "out_weight")
        names[f"{part}_scale"] = sheet.constant(block.LayerNorm.weight, "norm_weight")
        names[f"{part}_shift"] = sheet.constant(block.LayerNorm.bias, "norm_bias")
        names[f"{part}_bias"] = sheet.constant(block.dense.bias, "out_bias")
    return names


def _bert_layer(sheet: Sheet, names: dict[str, str], config: Any, tokens: str, mask: str, output: str) -> str:
    """Attention and feed-forward with the constants of those names: (B, T, H) -> (B, T, H)."""
    qkv = sheet.add("MatMul", tokens, names["qkv_weight"])
    parts = [f"{qkv}_{name}" for name in ("query", "key", "value")]
    sheet.add("Split", qkv, outputs=parts, axis=-1)
    heads = {"num_heads": config.num_attention_heads, "mask_filter_value": MASKED}
    context = sheet.add("MultiHeadAttention", *parts, names["qkv_bias"], mask, domain=MICROSOFT, **heads)
    tokens = _add_and_norm(sheet, context, names, "attention", tokens, config)
    inner = sheet.add("MatMul", tokens, names["inner_weight"])
    if config.hidden_act == "relu":
        inner = sheet.add("Relu", sheet.add("Add", inner, names["inner_bias"]))
    else:
        inner = sheet.add(GELUS[config.hidden_act], inner, names["inner_bias"], domain=MICROSOFT)
    return _add_and_norm(sheet, inner, names, "feed_forward", tokens, config, output)


def _add_and_norm(sheet: Sheet, x: str, names: dict[str, str], part: str, residual: str, config: Any, output: str | None = None) -> str:
    """LayerNorm(x·Wᵀ + b + residual)."""
    y = sheet.add("MatMul", x, names[f"{part}_weight"])
    rest = [names[f"{part}_{name}"] for name in ("scale", "shift", "bias")]
    options: dict[str, Any] = {"outputs": [output] if output else None, "domain": MICROSOFT, "epsilon": config.layer_norm_eps}
    return sheet.add("SkipLayerNormalization", y, residual, *rest, **options)


# BiLSTM


def _bilstm(student: Any) -> onnx.ModelProto:
    """Time first (layout 0: DynamicQuantizeLSTM knows no other), and `sequence_lens`, so the backward pass starts at a text's end."""
    sheet = Sheet()
    lengths = sheet.add("ReduceSum", sheet.add("Cast", "attention_mask", to=TensorProto.INT32), sheet.constant([1], "axis"), keepdims=0)
    lengths = sheet.add("Max", lengths, sheet.constant(np.int32(1), "one"))
    ids = sheet.add("Transpose", "input_ids", perm=[1, 0])
    x = sheet.add("Gather", sheet.constant(student.embedding.weight, "word_table"), ids)  # (T, B, width)
    lstm, last = student.lstm, ""
    directions, shape = 2 if lstm.bidirectional else 1, sheet.constant([0, 0, -1], "shape")
    for layer in range(lstm.num_layers):
        weights = [sheet.constant(array, name) for array, name in zip(_lstm_weights(lstm, layer), ("W", "R", "B"), strict=True)]
        y, last = f"lstm_{layer}", f"lstm_{layer}_last"
        direction = "bidirectional" if directions == 2 else "forward"
        sheet.add("LSTM", x, *weights, lengths, outputs=[y, last], hidden_size=lstm.hidden_size, direction=direction)
        x = sheet.add("Reshape", sheet.add("Transpose", y, perm=[0, 2, 1, 3]), shape)  # (T, D, B, h) -> (T, B, D·h)
    if student.readout == "last":
        flat = sheet.constant([0, -1], "shape")
        pooled = sheet.add("Reshape", sheet.add("Transpose", last, perm=[1, 0, 2]), flat)  # (D, B, h) -> (B, D·h)
    else:
        pooled = _pool(sheet, sheet.add("Transpose", x, perm=[1, 0, 2]), student.readout)
    return _finish(sheet, pooled, _after_pooling(student), directions * lstm.hidden_size, None)


def _lstm_weights(lstm: nn.LSTM, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """W (D, 4h, in), R (D, 4h, h), B (D, 8h) of one layer; torch's gates i, f, g, o become ONNX's i, o, f, c."""

    def read(kind: str, suffix: str) -> Tensor:
        name = f"{kind}_l{layer}{suffix}"
        if not hasattr(lstm, name):  # bias=False
            return torch.zeros(4 * lstm.hidden_size)
        i, f, g, o = getattr(lstm, name).detach().chunk(4)
        return torch.cat([i, o, f, g])

    suffixes = ("", "_reverse") if lstm.bidirectional else ("",)
    bias = [torch.cat([read("bias_ih", s), read("bias_hh", s)]) for s in suffixes]
    return torch.stack([read("weight_ih", s) for s in suffixes]), torch.stack([read("weight_hh", s) for s in suffixes]), torch.stack(bias)


# Static


def _static(student: StaticStudent) -> onnx.ModelProto:
    """Rows and their weights are one table here. Without a head: what is masked becomes the padding piece, whose row is zero, and the
    rows are summed; unit length makes the mean of that. A head needs the mean itself.
    """
    sheet, pad, ids = Sheet(), student.embedding.padding_idx or 0, "input_ids"
    table = sheet.constant(student.table(), "word_table")
    if student.head is None and not student.tanh:
        if pad == 0:
            ids = sheet.add("Mul", ids, "attention_mask")
        else:
            seen = sheet.add("Cast", "attention_mask", to=TensorProto.BOOL)
            ids = sheet.add("Where", seen, ids, sheet.constant(np.int64(pad), "padding"))
        pooled = sheet.add("ReduceSum", sheet.add("Gather", table, ids), sheet.constant([1], "axis"), keepdims=0)
    else:
        pooled = _mean(sheet, sheet.add("Gather", table, ids), "mean")
    return _finish(sheet, pooled, _after_pooling(student), student.embedding.embedding_dim, None)


# Any other encoder


class _Traced(nn.Module):
    """The student with both outputs: unit vectors, and what its encoder said on the way."""

    def __init__(self, student: Any) -> None:
        super().__init__()
        self.student = student
        self.seen: list[Tensor] = []
        student.model.register_forward_hook(lambda module, given, output: self.seen.append(output[0]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        pooled = self.student(input_ids, attention_mask)
        return torch.nn.functional.normalize(pooled, dim=-1), self.seen.pop()


def _traced(student: Any) -> onnx.ModelProto:
    """Torch's TorchScript exporter on eager attention, then onnxruntime's fusion where its graph says the same.

    The newer exporter's graphs fuse no attention, and leave LSTM weights where the quantizer does not find them.
    """
    copied = copy.deepcopy(student)
    copied.model.set_attn_implementation("eager")
    names = ("input_ids", "attention_mask", "sentence_embedding", "last_hidden_state")
    dynamic = {name: {0: "batch", 1: "sequence"} for name in names if name != "sentence_embedding"} | {names[2]: {0: "batch"}}
    example: Tensor = torch.ones((2, 5), dtype=torch.long)
    file: Any = io.BytesIO()  # which the exporter's types do not know it takes
    options: dict[str, Any] = {"input_names": names[:2], "output_names": names[2:], "dynamic_axes": dynamic}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # that this exporter is the old one, and a line for each shape it follows
        torch.onnx.export(_Traced(copied).eval(), (example, example), file, dynamo=False, opset_version=OPSET, **options)
    plain = onnx.load_from_string(file.getvalue())
    fused = _fused(plain, student.model.config)
    longest, pieces = min(64, _longest(student.model.config)), student.model.config.vocab_size
    chosen = fused if compare(student, fused, longest, pieces) > SAME else plain
    _gemm_to_matmul(chosen.graph)
    chosen.producer_name = "edgedistill"
    return chosen


def _longest(config: Any) -> int:
    """How many tokens the position table takes; RoBERTa and its kin start counting behind the padding id."""
    return int(getattr(config, "max_position_embeddings", 512)) - (config.pad_token_id or 0) - 1


def _fused(plain: onnx.ModelProto, config: Any) -> onnx.ModelProto:
    """Constants folded; attention, norms and GELU as single nodes where onnxruntime's optimizer knows the encoder.

    Queries, keys and values keep their own weights, and the word table its Gather: there the quantizers look.
    """
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    options = FusionOptions("bert")
    options.enable_embed_layer_norm = False
    options.use_multi_head_attention = True
    heads, width = getattr(config, "num_attention_heads", 0), getattr(config, "hidden_size", 0)  # 0: to be found in the graph
    copied = onnx.load_from_string(plain.SerializeToString())
    logging.disable(logging.WARNING)
    try:
        fused = optimize_model(copied, "bert", num_heads=heads, hidden_size=width, optimization_options=options, opt_level=1).model
    finally:
        logging.disable(logging.NOTSET)
    if not any(entry.domain == MICROSOFT for entry in fused.opset_import):
        fused.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return fused


def _gemm_to_matmul(graph: onnx.GraphProto) -> None:
    """x·Wᵀ + b as MatMul and Add, so that the quantizers find dense layers."""
    weights = {constant.name: constant for constant in graph.initializer}
    nodes = []
    for node in graph.node:
        turned = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        plain = turned.get("alpha", 1.0) == 1.0 and turned.get("beta", 1.0) == 1.0 and not turned.get("transA", 0)
        if node.op_type != "Gemm" or not plain or node.input[1] not in weights:
            nodes.append(node)
            continue
        name = f"{node.output[0]}_weight"
        weight = numpy_helper.to_array(weights[node.input[1]])
        graph.initializer.append(numpy_helper.from_array(np.asarray(weight.T if turned.get("transB") else weight, order="C"), name))
        product = f"{node.output[0]}_product" if len(node.input) > 2 else node.output[0]
        nodes.append(helper.make_node("MatMul", [node.input[0], name], [product], name=f"{node.name}_matmul"))
        if len(node.input) > 2:
            nodes.append(helper.make_node("Add", [product, node.input[2]], list(node.output), name=f"{node.name}_add"))
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [constant for constant in graph.initializer if constant.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
