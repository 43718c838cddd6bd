/**
 * What is checked in an ONNX file before onnxruntime opens it: all its data is in its own bytes, and its operators are known ones.
 *
 * A strict reader of protobuf: a field that is not listed here, an operator that is not, or a length that does not fit is refused, so
 * that nothing is read here in one way and by onnxruntime in another. Not listed are external data, subgraphs, functions, training
 * steps, sparse tensors and strings.
 * tests/runners/test_hostile.py holds the lists to edgedistill/runtime/trust.
 */

const MOST_FIELDS = 200_000;
const MOST_NODES = 20_000;
const DATA_LOCATION = 14; // of a tensor; 0: in this file
/** Of each message: its fields that are skipped, and those that hold another message or a text that is read. */
export const FIELDS = {
  model: { skipped: [1, 2, 3, 4, 5, 6, 8, 14, 26], read: { 7: "graph" } },
  graph: { skipped: [2, 10, 11, 12, 13, 14, 16], read: { 1: "node", 5: "tensor" } },
  node: { skipped: [1, 2, 3, 6, 8, 9, 10], read: { 4: "operator", 5: "attribute", 7: "domain" } },
  attribute: { skipped: [1, 2, 3, 4, 7, 8, 9, 13, 20], read: { 5: "tensor", 10: "tensor" } },
  tensor: { skipped: [1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 16], read: {} },
};
const listed = (...lines) => lines.join(" ").split(" ");
export const OPERATORS = {
  "": listed(
    "Compress Gather GatherElements GatherND NonZero ScatterElements ScatterND Slice Split Where",
    "Concat ConstantOfShape Expand Flatten Identity Pad Range Reshape Shape Size Squeeze Tile Transpose Trilu Unsqueeze",
    "Abs Add Ceil Clip CumSum Div Erf Exp Floor Log Max Mean Min Mod Mul Neg Pow Reciprocal Round Sign Sqrt Sub Sum Sin Cos",
    "And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor",
    "BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor",
    "ArgMax ArgMin ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare",
    "Elu Gelu HardSigmoid HardSwish LeakyRelu Mish Relu Sigmoid Softmax LogSoftmax Softplus Tanh",
    "Conv Einsum Gemm MatMul LayerNormalization LpNormalization GRU LSTM",
    "Cast CastLike Constant DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearMatMul QuantizeLinear",
  ),
  "com.microsoft": listed(
    "BiasGelu FastGelu Gelu QuickGelu",
    "Attention EmbedLayerNormalization MultiHeadAttention RotaryEmbedding SkipLayerNormalization",
    "DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul GatherBlockQuantized MatMulIntegerToFloat MatMulNBits",
    "QuantizeLinear",
  ),
};
const ALLOWED = new Set(Object.entries(OPERATORS).flatMap(([domain, names]) => names.map((name) => `${domain}.${name}`)));

/** Why a graph is refused; null where nothing is wrong. bytes: Uint8Array. */
export function graphProblem(bytes) {
  try {
    if (String.fromCharCode(...bytes.subarray(4, 8)) === "ORTM") throw new Refusal("is in ORT format, not ONNX");
    new Reader(bytes).model();
    return null;
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return error.message;
  }
}

class Refusal extends Error {}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.left = MOST_FIELDS;
    this.nodes = 0;
  }

  model() {
    const found = this.message("model", 0, this.bytes.length);
    if (found.graph !== 1) throw new Refusal("is not an ONNX graph");
  }

  /** Read a message from `at` to `end`. Returns how often each field occurs that is read, and a node's texts. */
  message(what, at, end) {
    const { skipped, read } = FIELDS[what];
    const found = {};
    while (at < end) {
      if (--this.left < 0) throw new Refusal(`has more than ${MOST_FIELDS} fields`);
      const [key, start] = this.number(at, end);
      const [field, wireType] = [Math.floor(key / 8), key % 8];
      const name = read[field];
      const [value, stop] = this.span(wireType, start, end);
      if (what === "tensor" && field === DATA_LOCATION && wireType === 0 && value === 0) {
        at = stop;
        continue;
      }
      if (!name && !skipped.includes(field)) {
        const fact = what === "tensor" && field >= 13 ? "has weights in another file, which no hash covers" : "is not one that a bundle needs";
        throw new Refusal(`${fact} (field ${field} of a ${what} at byte ${at})`);
      }
      if (name) this.part(found, name, wireType, value, stop);
      at = stop;
    }
    if (what === "node") this.operator(found);
    return found;
  }

  part(found, name, wireType, start, stop) {
    if (wireType !== 2) throw new Refusal(`is not an ONNX graph (${name} of another type at byte ${start})`);
    if (name !== "operator" && name !== "domain") {
      found[name] = (found[name] ?? 0) + 1;
      this.message(name, start, stop);
    } else if (name in found) throw new Refusal(`is not an ONNX graph (a node with ${name} twice at byte ${start})`);
    else found[name] = String.fromCharCode(...this.bytes.subarray(start, Math.min(stop, start + 200)));
  }

  operator({ operator = "", domain = "" }) {
    if (++this.nodes > MOST_NODES) throw new Refusal(`has more than ${MOST_NODES} nodes`);
    const name = `${domain === "ai.onnx" ? "" : domain}.${operator}`;
    if (!ALLOWED.has(name)) throw new Refusal(`has an operator that a bundle may not use (${JSON.stringify(name.replace(/^\./, ""))})`);
  }

  /** [value or where it starts, where it stops] of a field. */
  span(wireType, at, end) {
    if (wireType === 0) return this.number(at, end);
    const fixed = { 1: 8, 5: 4 }[wireType];
    if (fixed === undefined && wireType !== 2) throw new Refusal(`is not an ONNX graph (wire type ${wireType} at byte ${at})`);
    const [length, start] = fixed ? [fixed, at] : this.number(at, end);
    if (!(length <= end - start)) throw new Refusal(`is cut off (${length} bytes where ${end - start} are left)`);
    return [start, start + length];
  }

  /** [an integer of 1 to 10 bytes, where it stops]; above 2^53 it is not exact, which no key or length is. */
  number(at, end) {
    let number = 0;
    for (let place = 0; place < 10 && at + place < end; place++) {
      const byte = this.bytes[at + place];
      number += (byte & 127) * 2 ** (7 * place);
      if (byte < 128) return [number, at + place + 1];
    }
    throw new Refusal(`is not an ONNX graph (a number without an end at byte ${at})`);
  }
}
