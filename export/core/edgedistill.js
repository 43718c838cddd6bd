/**
 * A student in WebAssembly, for browsers, workers, Node, Deno, Bun and edge functions; nothing to install.
 *
 *     import { Student, similarity } from "./edgedistill.js";
 *     const student = await Student.open("student.bin");
 *     similarity(student.embed("How do I reset my password?"), student.embed("Choose Account in the settings."));
 *
 * `edgedistill export NAME --core DIR` writes student.bin beside this file and edgedistill.wasm. All of it is C: see
 * edgedistill.h; this hands texts over, and rows back.
 */

const ROLES = ["text", "query", "document"];
const PRECISIONS = { float32: Float32Array, int8: Int8Array, binary: Uint8Array };
const [LENGTH_AT, ALIGNED] = [16, 64]; // where a file says how long it is; a pair's second file stands at a multiple

/** What is wrong with a file, a text or an option, and the way out. */
export class StudentError extends Error {
  name = "StudentError";
}

/** The cosine of two embeddings, each in any precision of `embed`; a bit counts as ±1. */
export function similarity(a, b) {
  const [x, y] = [a, b].map((row) => (row instanceof Uint8Array ? signs(row) : row));
  return a instanceof Float32Array && b instanceof Float32Array ? dot(a, b) : dot(x, y) / Math.sqrt(dot(x, x) * dot(y, y));
}

function dot(a, b) {
  let sum = 0;
  for (let at = 0; at < a.length; at++) sum += a[at] * b[at];
  return sum;
}

const signs = (bits) => Float32Array.from({ length: 8 * bits.length }, (_, at) => (bits[at >> 3] & (128 >> (at & 7)) ? 1 : -1));

/** The bytes at an address; of a file in Node, Deno and Bun. */
async function bytesAt(address) {
  const url = new URL(address, typeof location === "undefined" ? import.meta.url : location.href);
  if (url.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    return readFile(url).catch(({ code }) => {
      throw new StudentError(`${url.pathname}: cannot be read (${code}); check the path, which counts from edgedistill.js`);
    });
  }
  const response = await fetch(url);
  if (!response.ok) throw new StudentError(`${url}: ${response.status}; check the address`);
  return new Uint8Array(await response.arrayBuffer());
}

const asBytes = (data) =>
  ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data);
const areBytes = (value) => ArrayBuffer.isView(value) || value instanceof ArrayBuffer;

// (module (func (result v128) … i32x4.relaxed_dot_i8x16_i7x16_add_s)): valid where WebAssembly has relaxed SIMD
const RELAXED = [1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 19, 1, 17, 0, 65, 0, 253, 15, 65, 0, 253, 15, 65, 0, 253, 15, 253, 147, 2, 11];

/** The program beside this file that runs faster here. */
function ownWasm() {
  const isRelaxed = WebAssembly.validate(Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, ...RELAXED));
  return isRelaxed ? new URL("edgedistill-relaxed.wasm", import.meta.url) : new URL("edgedistill.wasm", import.meta.url);
}

const compiled = new Map();

async function compile(wasm) {
  if (wasm instanceof WebAssembly.Module) return wasm;
  return WebAssembly.compile(areBytes(wasm) ? wasm : await bytesAt(wasm)).catch((error) => {
    const way = "allow 'wasm-unsafe-eval' in the page's Content-Security-Policy, or hand over a WebAssembly.Module";
    throw new StudentError(`edgedistill.wasm: not compiled (${error.message}); ${way}`);
  });
}

export class Student {
  #core; // what edgedistill.h declares
  #out; // a place for what calls return through pointers
  #student;
  #documents; // of a pair: the encoder of documents
  #about;
  #decoder = new TextDecoder();
  #encoder = new TextEncoder();

  /**
   * Open a student: its bytes, or where they are, by default student.bin beside this file. `wasm` is edgedistill.wasm or,
   * where the engine has relaxed SIMD, edgedistill-relaxed.wasm: where it is, its bytes, or a WebAssembly.Module, as bundlers and
   * edge functions import it.
   */
  static async open(student = new URL("student.bin", import.meta.url), wasm = ownWasm()) {
    const key = wasm instanceof URL ? wasm.href : wasm;
    if (!compiled.has(key)) compiled.set(key, compile(wasm));
    const bytes = asBytes(areBytes(student) ? student : await bytesAt(student));
    const module = await compiled.get(key).finally(() => typeof key === "string" || compiled.delete(key));
    const length = bytes.length >= LENGTH_AT + 4 ? new DataView(bytes.buffer, bytes.byteOffset).getUint32(LENGTH_AT, true) : 0;
    const isPair = length > 0 && length < bytes.length;
    const opened = new Student(await WebAssembly.instantiate(module), isPair ? bytes.subarray(0, length) : bytes);
    if (!isPair) return opened;
    const others = bytes.subarray(Math.ceil(length / ALIGNED) * ALIGNED);
    opened.#documents = new Student(await WebAssembly.instantiate(module), others);
    return opened;
  }

  /** `instance` is one of edgedistill.wasm, which becomes this student's own; see `open`. */
  constructor(instance, bytes) {
    this.#core = instance.exports;
    const data = asBytes(bytes);
    const place = this.#room(data.length);
    this.#out = this.#room(16);
    new Uint8Array(this.#core.memory.buffer).set(data, place);
    this.#student = this.#core.ed_open(place, data.length, this.#out);
    if (!this.#student) this.#refuse(this.#count());
    this.#about = JSON.parse(this.#text(this.#core.ed_about(this.#student, this.#out)));
  }

  /** What the file says of its student: {name, precision, languages, golden: how many texts, space}. */
  get about() {
    return { ...this.#about, golden: this.#about.golden + (this.#documents?.about.golden ?? 0) };
  }

  /** The dimensions that an embedding may have, the largest first; of a classifier none. */
  get dims() {
    const own = this.#list((at) => this.#core.ed_dims(this.#student, at));
    return this.#documents ? own.filter((dims) => this.#documents.dims.includes(dims)) : own;
  }

  /** The labels of a classifier, in the order of its logits; of an encoder none. */
  get labels() {
    return this.#list((at) => this.#text(this.#core.ed_label(this.#student, at, this.#out)));
  }

  get maxTokens() {
    return this.#core.ed_max_tokens(this.#student);
  }

  /** Whether queries have an encoder of their own, and documents another: then a text needs one of these roles. */
  get isPair() {
    return Boolean(this.#documents);
  }

  /** The embedding of a text; of a classifier, its logits. Options: role, dims (one of `dims`), precision. */
  embed(text, { role = "text", dims, precision = "float32" } = {}) {
    const size = this.#core.ed_size(this.#student);
    const wanted = dims ?? size;
    if (!(precision in PRECISIONS)) throw new StudentError(`precision: ${precision}, not one of ${Object.keys(PRECISIONS)}`);
    if (wanted !== size && !this.dims.includes(wanted)) throw new StudentError(`dims: ${wanted}, not one of ${this.dims}`);
    if (precision === "binary" && wanted % 8) throw new StudentError(`precision: binary needs dimensions in whole bytes, not ${wanted}; choose int8`);
    const encoder = this.#of(role);
    const isMean = encoder !== this && this.#about.documents === "mean";
    const row = isMean ? mean(encoder.#row(text, role, wanted), this.#row(text, role, wanted)) : encoder.#row(text, role, wanted);
    return precision === "float32" ? row : encoder.#compact(row, precision);
  }

  /** The probability of each label of a classifier, the most probable first: [{label, probability}]. */
  classify(text, { role = "text" } = {}) {
    const { labels } = this;
    if (!labels.length) throw new StudentError(`${this.#about.name}: an encoder, which has no labels; call embed`);
    const logits = this.embed(text, { role });
    const most = Math.max(...logits);
    const powers = Array.from(logits, (each) => Math.exp(each - most));
    const sum = powers.reduce((a, b) => a + b);
    return labels.map((label, at) => ({ label, probability: powers[at] / sum })).sort((a, b) => b.probability - a.probability);
  }

  /** The token ids of a text, with its role's prompt and special tokens. */
  tokenize(text, { role = "text" } = {}) {
    const student = this.#of(role);
    return student.#with(text, role, 4 * student.maxTokens, (place, length, number, out) => {
      student.#refuse(student.#core.ed_tokenize(student.#student, place, length, number, out, student.#out));
      return Array.from(new Uint32Array(student.#core.memory.buffer, out, student.#count()));
    });
  }

  /** Embed the golden texts of the file: {worst, least}, the lowest cosine to what was exported, and what is asked. */
  check() {
    this.#refuse(this.#core.ed_check(this.#student, this.#out, this.#out + 8));
    const [worst, least] = new Float64Array(this.#core.memory.buffer, this.#out, 2);
    const found = { worst, least };
    const other = this.#documents?.check() ?? found;
    return other.worst - other.least < found.worst - found.least ? other : found;
  }

  /** What embeds texts of a role. */
  #of(role) {
    if (!ROLES.includes(role)) throw new StudentError(`role: ${role}, not one of ${ROLES}`);
    if (!this.#documents || role === "query") return this;
    if (role === "document") return this.#documents;
    throw new StudentError(`${this.#about.name}: a pair of encoders; give role: "query" or role: "document"`);
  }

  #row(text, role, dims) {
    const core = this.#core;
    const size = core.ed_size(this.#student);
    return this.#with(text, role, 4 * size, (place, length, number, out) => {
      this.#refuse(core.ed_embed(this.#student, place, length, number, out));
      if (dims !== size) core.ed_cut(out, dims);
      return new Float32Array(core.memory.buffer, out, dims).slice();
    });
  }

  #compact(row, precision) {
    const core = this.#core;
    const place = this.#room(5 * row.length);
    new Float32Array(core.memory.buffer, place, row.length).set(row);
    const [out, count] = [place + 4 * row.length, precision === "binary" ? row.length / 8 : row.length];
    core[precision === "binary" ? "ed_bits" : "ed_int8"](this.#student, place, row.length, out);
    const found = new PRECISIONS[precision](core.memory.buffer, out, count).slice();
    core.free(place);
    return found;
  }

  #room(size) {
    const place = this.#core.malloc(size);
    if (!place) throw new StudentError(`not enough memory for ${size} bytes`);
    return place;
  }

  #with(text, role, size, call) {
    if (typeof text !== "string") throw new StudentError(`text: ${text === null ? "null" : typeof text}, not a string; give a string`);
    if (text.isWellFormed?.() === false) throw new StudentError("text: contains half a surrogate pair, which is not text; decode it again");
    const bytes = this.#encoder.encode(text);
    const place = this.#room(size + bytes.length);
    try {
      new Uint8Array(this.#core.memory.buffer).set(bytes, place + size);
      return call(place + size, bytes.length, ROLES.indexOf(role), place);
    } finally {
      this.#core.free(place);
    }
  }

  #list(item) {
    const found = [];
    for (let each; (each = item(found.length));) found.push(each);
    return found;
  }

  /** The number that a call wrote. */
  #count() {
    return new Uint32Array(this.#core.memory.buffer, this.#out, 1)[0];
  }

  /** The text at a place; empty at none. */
  #text(place, size = place && this.#count()) {
    return this.#decoder.decode(new Uint8Array(this.#core.memory.buffer, place, size).slice());
  }

  /** Throw what a call says is wrong, if anything. */
  #refuse(place) {
    if (place) throw new StudentError(this.#text(place, new Uint8Array(this.#core.memory.buffer, place).indexOf(0)));
  }
}

/** The mean of two embeddings, of unit length. */
function mean(a, b) {
  const sum = a.map((x, at) => x + b[at]);
  const length = Math.max(Math.sqrt(dot(sum, sum)), 1e-12);
  return sum.map((x) => x / length);
}
