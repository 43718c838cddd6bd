/** Embeddings in fewer bytes, as edgedistill/runtime/compact.py has them, and the cosine of two in any precision. */

import { UserError } from "./errors.js";

export const PRECISIONS = ["float32", "int8", "binary"];

/** The numbers in a row of `dim` dimensions. Throws UserError for an unknown precision, and for bits that do not fill whole bytes. */
export function rowWidth(precision, dim) {
  if (!PRECISIONS.includes(precision)) {
    throw new UserError(`precision: no precision of embeddings '${precision}'; choose ${PRECISIONS.join(", ")}`);
  }
  if (precision !== "binary") return dim;
  if (dim % 8) throw new UserError(`precision: binary needs dimensions in whole bytes, not ${dim}; choose int8`);
  return dim / 8;
}

/**
 * Unit rows of `dim` dimensions, one after the other, in a precision: Float32Array; Int8Array, x · 127√d / range, rounded and clipped
 * to ±127; Uint8Array, the bits x > mean, the highest first (numpy.packbits). Range and mean are those of the manifest's calibration.
 */
export function compact(rows, precision, dim, { mean, int8_range = 8 } = {}) {
  const width = rowWidth(precision, dim);
  if (precision === "float32") return rows;
  const scale = (127 * Math.sqrt(dim)) / int8_range;
  if (precision === "int8") return Int8Array.from(rows, (x) => Math.max(-127, Math.min(127, Math.round(x * scale))));
  const bits = new Uint8Array((rows.length / dim) * width);
  const least = mean?.slice(0, dim).map((x, _, cut) => Math.fround(x * Math.sqrt(dot(mean, mean) / dot(cut, cut))));
  rows.forEach((x, at) => x > (least?.[at % dim] ?? 0) && (bits[at >> 3] |= 128 >> (at & 7)));
  return bits;
}

/** The cosine of two embeddings, each in any precision of `encode`; a bit counts as ±1. Float32Arrays are of unit length. */
export function similarity(a, b) {
  if (a instanceof Float32Array && b instanceof Float32Array) return dot(a, b);
  const [x, y] = [expanded(a), expanded(b)];
  return dot(x, y) / Math.sqrt(dot(x, x) * dot(y, y));
}

export function dot(a, b) {
  let sum = 0;
  for (let at = 0; at < a.length; at++) sum += a[at] * b[at];
  return sum;
}

function expanded(row) {
  if (!(row instanceof Uint8Array)) return row;
  return Float32Array.from({ length: 8 * row.length }, (_, at) => (row[at >> 3] & (128 >> (at & 7)) ? 1 : -1));
}
