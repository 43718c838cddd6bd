"""The operators that a bundle's graph may use.

All of them compute outputs from inputs, each in one pass, and do nothing else: none runs another graph (If,
Loop, Scan: a loop need not end), reads a file (com.microsoft.EPContext) or calls code outside onnxruntime
(other domains, functions in the model file). Here are those that edgedistill writes for any student and
precision, those of traced teachers, and their near relatives. What is missing is added here, after reading in
the operator's definition that it is of this kind.
"""

STANDARD = {
    "look up and select": "Compress Gather GatherElements GatherND NonZero ScatterElements ScatterND Slice "
    "Split Where",
    "shape": "Concat ConstantOfShape Expand Flatten Identity Pad Range Reshape Shape Size Squeeze Tile "
    "Transpose Trilu Unsqueeze",
    "arithmetic": "Abs Add Ceil Clip CumSum Div Erf Exp Floor Log Max Mean Min Mod Mul Neg Pow Reciprocal "
    "Round Sign Sqrt Sub Sum Sin Cos",
    "logic": "And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor",
    "bits": "BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor",
    "reduction": "ArgMax ArgMin ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare",
    "activation": "Elu Gelu HardSigmoid HardSwish LeakyRelu Mish Relu Sigmoid Softmax LogSoftmax Softplus "
    "Tanh",
    "product, norm, recurrence": "Conv Einsum Gemm MatMul LayerNormalization LpNormalization GRU LSTM",
    "types and quantization": "Cast CastLike Constant DequantizeLinear DynamicQuantizeLinear MatMulInteger "
    "QLinearMatMul QuantizeLinear",
}
MICROSOFT = {  # onnxruntime's own, in every build of it
    "activation": "BiasGelu FastGelu Gelu QuickGelu",
    "attention, norm": "Attention EmbedLayerNormalization MultiHeadAttention RotaryEmbedding "
    "SkipLayerNormalization",
    "quantization": "DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul GatherBlockQuantized "
    "MatMulIntegerToFloat MatMulNBits "
    "QuantizeLinear",
}

ALLOWED = frozenset(
    [
        *[("", name) for names in STANDARD.values() for name in names.split()],
        *[("com.microsoft", name) for names in MICROSOFT.values() for name in names.split()],
    ]
)


def full_name(domain: str, name: str) -> str:
    """MatMul, com.microsoft.MatMulNBits: as manifests name an operator."""
    return f"{domain}.{name}" if domain else name
