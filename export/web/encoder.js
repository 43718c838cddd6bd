// Embed texts in a browser: open a student in a Web Worker, then encode, check, time. The page's thread stays free.
//
//   const encoder = await load("students/nano.bin");
//   const [a, b] = await encoder.encode(["A man plays the guitar.", "Someone makes music."]);
//   similarity(a, b);

import { StudentError } from "./core/edgedistill.js";

export { StudentError, similarity } from "./core/edgedistill.js";

const WINDOW = 256; // texts a message, so that a query gets its turn while many lines are embedded

/**
 * Open a student's file, which `edgedistill export NAME --core` or `--web` writes, and return its encoder.
 *
 * from: its address, or a File. progress({bytes, size}). signal: to give up while it opens. Raises StudentError, whose message is
 * for the user to read: *place: fact; way out*.
 */
export async function load(from, { progress, signal } = {}) {
  const missing = missingFeature();
  if (missing) throw new StudentError(missing);
  const source = from instanceof Blob ? { file: from } : { url: URL.canParse(from, location.href) ? new URL(from, location.href).href : from };
  const worker = new WorkerCalls();
  const giveUp = () => worker.close();
  signal?.addEventListener("abort", giveUp);
  try {
    return new Encoder(worker, await worker.call("load", { from: source }, progress));
  } catch (error) {
    worker.close();
    throw error;
  } finally {
    signal?.removeEventListener("abort", giveUp);
  }
}

/** What this browser lacks to run a student, as *place: fact; way out*; empty where it has everything. */
export function missingFeature() {
  const update = "use a current Chrome, Edge, Firefox or Safari";
  if (typeof WebAssembly !== "object") return `this browser: no WebAssembly, which runs the encoder; ${update}, or allow it there`;
  return WebAssembly.validate(SIMD) ? "" : `this browser: WebAssembly without SIMD, which the encoder's arithmetic needs; ${update}`;
}

// (module (func (result v128) i32.const 0 i8x16.splat)): valid where WebAssembly has 128-bit SIMD
const SIMD = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 0, 253, 15, 11);

/** An opened student. Its facts: name, languages, dims, maxTokens, precision (of its weights), golden (texts), isPair, size_bytes. */
class Encoder {
  #worker;

  constructor(worker, facts) {
    this.#worker = worker;
    Object.assign(this, facts);
  }

  /**
   * A unit Float32Array for each text, or one for one string. dims: one of `dims`, by default the largest. progress(texts done). signal: to stop.
   * role: what the texts are, "text", "query" or "document": which prompt is put before them.
   * precision: of the embeddings, "float32", "int8" (Int8Array) or "binary" (Uint8Array of bits).
   */
  async encode(texts, { progress = () => {}, signal, ...options } = {}) {
    if (typeof texts === "string") return (await this.encode([texts], { signal, ...options }))[0];
    const embeddings = [];
    while (embeddings.length < texts.length) {
      signal?.throwIfAborted();
      const first = embeddings.length;
      const found = await this.#worker.call("encode", { texts: texts.slice(first, first + WINDOW), first, options });
      for (let at = 0; at < found.rows.length; at += found.width) embeddings.push(found.rows.subarray(at, at + found.width));
      progress(embeddings.length);
    }
    return embeddings;
  }

  /** Embed queries, which are to find documents: `encode` with the student's prompt for them; the same where it has none. */
  encodeQuery(texts, options) {
    return this.encode(texts, { ...options, role: "query" });
  }

  /** Embed documents: `encode` with the student's prompt for them; the same where it has none. */
  encodeDocument(texts, options) {
    return this.encode(texts, { ...options, role: "document" });
  }

  /** Embed the golden texts: {worst, least}, the lowest cosine to what was exported, and what is asked. */
  check() {
    return this.#worker.call("check");
  }

  /** Measure for a few seconds: {p50_ms, p90_ms, query_tokens, rate_texts_s, tokens_mean, texts}. */
  time() {
    return this.#worker.call("time");
  }

  /** End the worker and free its memory. */
  close() {
    this.#worker.close();
  }
}

/** Calls to worker.js, each a promise. */
class WorkerCalls {
  #worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  #waiting = new Map();
  #last = 0;

  constructor() {
    this.#worker.onmessage = ({ data }) => this.#answer(data);
    this.#worker.onerror = (event) => {
      event.preventDefault();
      const fact = `cannot be loaded, or stopped (${event.message ?? "no reason given"})`;
      this.#fail(new StudentError(`worker.js: ${fact}; serve all of the folder that export --web wrote, and reload the page`));
    };
  }

  call(op, values = {}, progress) {
    if (!this.#worker) return Promise.reject(new StudentError("encoder: closed; load it again"));
    return new Promise((resolve, reject) => {
      this.#waiting.set(++this.#last, { resolve, reject, progress });
      this.#worker.postMessage({ id: this.#last, op, ...values });
    });
  }

  close() {
    this.#worker?.terminate();
    this.#worker = null;
    this.#fail(new StudentError("encoder: closed; load it again"));
  }

  #answer({ id, result, error, progress }) {
    const call = this.#waiting.get(id);
    if (!call) return;
    if (progress) return call.progress?.(progress);
    this.#waiting.delete(id);
    if (error) call.reject(error.isOurs ? new StudentError(error.message) : Object.assign(new Error(error.message), { stack: error.stack }));
    else call.resolve(result);
  }

  #fail(error) {
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }
}
