// Token ids become embeddings: batches, padding, the graph, cut dimensions.

import { BundleError } from "./bundle.js";

const UNIT_LENGTH = 0.01; // how far an embedding's length may be from 1
const BATCH_TOKENS = 512; // with padding; larger batches leave a core's cache

/** (n · dim) float32 rows of unit length, in the order of `ids`, by batches of rows of similar length. */
export async function embed(bundle, ids, dim, accept = (row) => unitLength(bundle.manifest, row)) {
  const rows = new Float32Array(ids.length * dim);
  for (const batch of longestFirst(ids)) {
    const embeddings = await run(
      bundle,
      batch.map((at) => ids[at]),
    );
    const width = embeddings.length / batch.length;
    batch.forEach((at, row) => rows.set(cut(embeddings.subarray(row * width, (row + 1) * width), dim, accept), at * dim));
  }
  return rows;
}

/** Indices, longest rows first, in batches of at most BATCH_TOKENS tokens with padding, and at least one row. */
function* longestFirst(ids) {
  const order = ids.map((_, at) => at).sort((a, b) => ids[b].length - ids[a].length || a - b);
  for (let start = 0; start < order.length;) {
    const count = Math.max(1, Math.floor(BATCH_TOKENS / Math.max(1, ids[order[start]].length)));
    yield order.slice(start, start + count);
    start += count;
  }
}

/** The graph's embeddings of one batch, padded on the right: (n · d) float32. */
export async function run({ ort, session, manifest }, batch) {
  const length = Math.max(...batch.map((row) => row.length));
  const ids = new BigInt64Array(batch.length * length).fill(BigInt(manifest.pad_id ?? 0));
  const mask = new BigInt64Array(ids.length);
  batch.forEach((row, at) => {
    ids.set(row.map(BigInt), at * length);
    mask.fill(1n, at * length, at * length + row.length);
  });
  const shape = [batch.length, length];
  const feeds = { input_ids: new ort.Tensor("int64", ids, shape), attention_mask: new ort.Tensor("int64", mask, shape) };
  const { [manifest.output]: output } = await session.run(feeds, [manifest.output]);
  const [dim] = manifest.dims;
  if (output.type !== "float32" || String(output.dims) !== String([batch.length, dim])) {
    throw new BundleError(`${manifest.name}: manifest.json does not describe its graph; copy the bundle again`, "check");
  }
  return output.data;
}

/** The first `dim` components of an embedding, of unit length again. */
function cut(row, dim, accept) {
  accept(row);
  if (dim === row.length) return row;
  const head = row.subarray(0, dim);
  const norm = Math.max(Math.sqrt(dot(head, head)), 1e-12);
  return head.map((value) => value / norm);
}

/** Raises BundleError for an embedding that is not finite or not of unit length. */
function unitLength({ name }, row) {
  const length = Math.sqrt(dot(row, row));
  if (!(Math.abs(length - 1) <= UNIT_LENGTH)) {
    throw new BundleError(`${name}: an embedding of length ${length}, not 1; copy the bundle again`, "check");
  }
}

/** The dimensions asked for, by default the largest. Raises BundleError for others than the manifest's. */
export function chosenDim(manifest, dim) {
  const { name, dims } = manifest;
  if (dim === undefined || dims.includes(dim)) return dim ?? dims[0];
  if (dims.length === 1) throw new BundleError(`dim=${dim}: ${name} has ${dims[0]} dimensions and cannot be cut; leave dim out`);
  throw new BundleError(`dim=${dim}: ${name} was trained for ${dims.join(", ")} dimensions; choose one of these`);
}

/** The text of index `at`. Raises BundleError where it is not one. */
export function checkedText(text, at) {
  if (typeof text !== "string") throw new BundleError(`texts[${at}]: ${text === null ? "null" : typeof text}, not a string; give strings`);
  if (text.isWellFormed?.() === false) {
    throw new BundleError(`texts[${at}]: contains half a surrogate pair, which is not text; decode it again`);
  }
  return text;
}

/** The inner product of two rows. */
export function dot(a, b) {
  let sum = 0;
  for (let at = 0; at < a.length; at++) sum += a[at] * b[at];
  return sum;
}
