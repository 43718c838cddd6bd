/**
 * A student in WebAssembly, for browsers, workers, Node, Deno, Bun and edge functions; nothing to install.
 *
 *     import { Student } from "./edgedistill.js";
 *     const student = await Student.open("student.bin");
 *     const embedding = student.embed("How do I reset my password?"); // Float32Array of unit length
 *
 * `edgedistill export NAME --core DIR` writes student.bin beside this file and edgedistill.wasm. All of it is C: see
 * edgedistill.h; this hands texts over, and rows back.
 */

const ROLES = ["text", "query", "document"];
const PRECISIONS = { float32: Float32Array, int8: Int8Array, binary: Uint8Array };

/** What is wrong with a file, a text or an option, and the way out. */
export class StudentError extends Error {
  name = "StudentError";
}

/** The bytes at an address; of a file in Node, Deno and Bun. */
async function bytesAt(address) {
  const url = new URL(address, typeof location === "undefined" ? import.meta.url : location.href);
  if (url.protocol === "file:") return (await import("node:fs/promises")).readFile(url);
  const response = await fetch(url);
  if (!response.ok) throw new StudentError(`${url}: ${response.status}; check the address`);
  return new Uint8Array(await response.arrayBuffer());
}

const compiled = new Map();

async function compile(wasm) {
  if (wasm instanceof WebAssembly.Module) return wasm;
  const bytes = ArrayBuffer.isView(wasm) || wasm instanceof ArrayBuffer ? wasm : await bytesAt(wasm);
  return WebAssembly.compile(bytes).catch((error) => {
    const way = "allow 'wasm-unsafe-eval' in the page's Content-Security-Policy, or hand over a WebAssembly.Module";
    throw new StudentError(`edgedistill.wasm: not compiled (${error.message}); ${way}`);
  });
}

export class Student {
  #core;
  #student;
  #decoder = new TextDecoder();
  #encoder = new TextEncoder();

  /**
   * Open a student: its bytes, or where they are. `wasm` is edgedistill.wasm: where it is, its bytes, or a WebAssembly.Module,
   * as bundlers and edge functions import it.
   */
  static async open(student, wasm = new URL("edgedistill.wasm", import.meta.url)) {
    const key = wasm instanceof URL ? wasm.href : wasm;
    if (!compiled.has(key)) compiled.set(key, compile(wasm));
    const bytes = ArrayBuffer.isView(student) || student instanceof ArrayBuffer ? student : await bytesAt(student);
    const module = await compiled.get(key).finally(() => typeof key === "string" || compiled.delete(key));
    return new Student(await WebAssembly.instantiate(module), bytes);
  }

  /** `instance` is one of edgedistill.wasm, which becomes this student's own; see `open`. */
  constructor(instance, bytes) {
    this.#core = instance.exports;
    const data = ArrayBuffer.isView(bytes) ? new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength) : new Uint8Array(bytes);
    const place = this.#room(data.length);
    new Uint8Array(this.#core.memory.buffer).set(data, place);
    this.#student = this.#core.open(place, data.length);
    if (!this.#student) throw this.#error();
  }

  /** The dimensions that an embedding may have, the largest first; of a classifier none. */
  get dims() {
    return this.#list((at) => this.#core.dims(this.#student, at));
  }

  /** The labels of a classifier, in the order of its logits; of an encoder none. */
  get labels() {
    return this.#list((at) => {
      const place = this.#core.label(this.#student, at);
      return place && this.#text(place, this.#core.count());
    });
  }

  get maxTokens() {
    return this.#core.max_tokens(this.#student);
  }

  /** The embedding of a text; of a classifier, its logits. Options: role, dims (one of `dims`), precision. */
  embed(text, { role = "text", dims, precision = "float32" } = {}) {
    const core = this.#core;
    const size = core.size(this.#student);
    const wanted = dims ?? size;
    if (!(precision in PRECISIONS)) throw new StudentError(`precision: ${precision}, not one of ${Object.keys(PRECISIONS)}`);
    if (wanted !== size && !this.dims.includes(wanted)) throw new StudentError(`dims: ${wanted}, not one of ${this.dims}`);
    return this.#with(text, role, 8 * size, (place, length, number, out) => {
      if (!core.embed(this.#student, place, length, number, out)) throw this.#error();
      if (wanted !== size) core.cut(out, wanted);
      const compact = out + 4 * size;
      if (precision === "int8") core.int8(out, wanted, compact);
      if (precision === "binary") core.bits(out, wanted, compact);
      const count = precision === "binary" ? wanted >> 3 : wanted;
      return new PRECISIONS[precision](core.memory.buffer, precision === "float32" ? out : compact, count).slice();
    });
  }

  /** The token ids of a text, with its role's prompt and special tokens. */
  tokenize(text, { role = "text" } = {}) {
    return this.#with(text, role, 4 * this.maxTokens, (place, length, number, out) => {
      if (!this.#core.tokenize(this.#student, place, length, number, out)) throw this.#error();
      return Array.from(new Uint32Array(this.#core.memory.buffer, out, this.#core.count()));
    });
  }

  /** Embed the golden texts of the file: {worst, least}, the lowest cosine to what was exported, and what is asked. */
  check() {
    if (!this.#core.check(this.#student)) throw this.#error();
    return { worst: this.#core.worst(), least: this.#core.least() };
  }

  #room(size) {
    const place = this.#core.malloc(size);
    if (!place) throw new StudentError(`not enough memory for ${size} bytes`);
    return place;
  }

  #with(text, role, size, call) {
    const number = ROLES.indexOf(role);
    if (typeof text !== "string" || text.isWellFormed?.() === false) throw new StudentError("text: not a string, or half a surrogate pair in it");
    if (number < 0) throw new StudentError(`role: ${role}, not one of ${ROLES}`);
    const bytes = this.#encoder.encode(text);
    const place = this.#room(size + bytes.length);
    try {
      new Uint8Array(this.#core.memory.buffer).set(bytes, place + size);
      return call(place + size, bytes.length, number, place);
    } finally {
      this.#core.free(place);
    }
  }

  #list(item) {
    const found = [];
    for (let each; (each = item(found.length));) found.push(each);
    return found;
  }

  #text(place, size) {
    return this.#decoder.decode(new Uint8Array(this.#core.memory.buffer, place, size).slice());
  }

  #error() {
    const place = this.#core.error();
    const bytes = new Uint8Array(this.#core.memory.buffer, place);
    return new StudentError(this.#text(place, bytes.indexOf(0)));
  }
}
