// Embed texts in a browser: load a bundle in a Web Worker, then encode, check, time. The page's thread stays free.
//
//   const encoder = await load("/bundles/nano/");
//   const [a, b] = await encoder.encode(["A man plays the guitar.", "Someone makes music."]);
//   similarity(a, b);

/** An error to show as it is, *place: fact; way out*. kind: "user" (a way out is named) or "check" (the bundle is not what it claims). */
export class BundleError extends Error {
  constructor(message, kind = "user") {
    super(message);
    this.kind = kind;
  }
}

const WINDOW = 256; // texts a message, so that a query gets its turn while many lines are embedded

/**
 * Open a bundle after checking its sha256, token ids and golden texts, and return its encoder.
 *
 * from: the address of a bundle's folder, or its files: a FileList, an array of Files, or a Map of path -> File.
 * precision: by default the fastest of the bundle's, by the manifest's rank. dim: one of its dims, by default the largest.
 * backend: "auto" (WebGPU where it is there and right, else WASM), "webgpu" (falls back, with the reason) or "wasm".
 * threads: of WASM; by default half the processors, at most 4; 1 where the page is not cross-origin isolated. progress({bytes, size}).
 * signal: to give up while it opens.
 *
 * Raises BundleError, whose message is for the user to read.
 */
export async function load(from, { precision, dim, backend = "auto", threads, progress, signal } = {}) {
  const missing = missingFeature();
  if (missing) throw new BundleError(missing);
  const source = bundleSource(from);
  const worker = new WorkerCalls();
  const giveUp = () => worker.close();
  signal?.addEventListener("abort", giveUp);
  const most = self.crossOriginIsolated ? (navigator.hardwareConcurrency ?? 1) : 1;
  try {
    const options = { precision, dim, backend, threads: Math.min(threads ?? Math.min(4, Math.ceil(most / 2)), most) };
    const facts = await worker.call("load", { from: source, ...options }, progress);
    return new Encoder(worker, facts);
  } catch (error) {
    worker.close();
    throw error;
  } finally {
    signal?.removeEventListener("abort", giveUp);
  }
}

/** The cosine of two embeddings in float32. */
export function similarity(a, b) {
  if (!(a instanceof Float32Array && b instanceof Float32Array)) {
    throw new BundleError("similarity: compares float32; import that of vendor/core/compact.js for int8 and binary");
  }
  let sum = 0;
  for (let at = 0; at < a.length; at++) sum += a[at] * b[at];
  return sum;
}

/** What this browser lacks to run a bundle, as *place: fact; way out*; empty where it has everything. */
export function missingFeature() {
  const update = "use a current Chrome, Edge, Firefox or Safari";
  if (typeof WebAssembly !== "object") return `this browser: no WebAssembly, which runs the encoder; ${update}, or allow it there`;
  if (!WebAssembly.validate(SIMD)) return `this browser: WebAssembly without SIMD, which the encoder's arithmetic needs; ${update}`;
  const insecure = "this page: not a secure context, so no file's sha256 can be checked; open it over https or from localhost";
  return globalThis.crypto?.subtle ? "" : insecure;
}

// (module (func (result v128) i32.const 0 i8x16.splat)): valid where WebAssembly has 128-bit SIMD
const SIMD = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 0, 253, 15, 11);

/** An opened bundle. Its facts: name, languages, dims, dim, max_tokens, precision, precisions, size_bytes, backend, reason, threads, golden. */
class Encoder {
  #worker;

  constructor(worker, facts) {
    this.#worker = worker;
    Object.assign(this, facts);
  }

  /**
   * A unit Float32Array for each text, or one for one string. dim: as for `load`. progress(texts done). signal: to stop.
   * role: what the texts are, "text", "query" or "document": which prompt is put before them.
   * precision: of the embeddings, "float32", "int8" or "binary", as vendor/core/compact.js returns and compares them.
   */
  async encode(texts, { dim, role, precision = "float32", progress = () => {}, signal } = {}) {
    if (typeof texts === "string") return (await this.encode([texts], { dim, role, precision, signal }))[0];
    const embeddings = [];
    while (embeddings.length < texts.length) {
      signal?.throwIfAborted();
      const first = embeddings.length;
      const found = await this.#worker.call("encode", { texts: texts.slice(first, first + WINDOW), dim, role, precision, first });
      for (let at = 0; at < found.rows.length; at += found.width) embeddings.push(found.rows.subarray(at, at + found.width));
      progress(embeddings.length);
    }
    return embeddings;
  }

  /** Embed queries, which are to find documents: `encode` with the bundle's prompt for them; the same where it has none. */
  encodeQuery(texts, options) {
    return this.encode(texts, { ...options, role: "query" });
  }

  /** Embed documents: `encode` with the bundle's prompt for them; the same where it has none. */
  encodeDocument(texts, options) {
    return this.encode(texts, { ...options, role: "document" });
  }

  /** Embed the golden texts again: {ok, problem, texts, cosine_min, batched_min, cosine_at_least}. */
  check() {
    return this.#worker.call("check");
  }

  /** Measure for about 3 seconds: {query_p50_ms, query_p90_ms, queries, texts_s, tokens_s, tokens_mean}. */
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
      this.#fail(new BundleError(`worker.js: ${fact}; run npm run vendor in export/web, serve all of the folder, and reload the page`));
    };
  }

  call(op, values = {}, progress) {
    if (!this.#worker) return Promise.reject(new BundleError("encoder: closed; load the bundle again"));
    return new Promise((resolve, reject) => {
      this.#waiting.set(++this.#last, { resolve, reject, progress });
      this.#worker.postMessage({ id: this.#last, op, ...values });
    });
  }

  close() {
    this.#worker?.terminate();
    this.#worker = null;
    this.#fail(new BundleError("encoder: closed; load the bundle again"));
  }

  #answer({ id, result, error, progress }) {
    const call = this.#waiting.get(id);
    if (!call) return;
    if (progress) return call.progress?.(progress);
    this.#waiting.delete(id);
    if (error?.kind === "bug") call.reject(Object.assign(new Error(error.message), { stack: error.stack }));
    else if (error) call.reject(new BundleError(error.message, error.kind));
    else call.resolve(result);
  }

  #fail(error) {
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }
}

/** What `from` names, for the worker: {url} or {files, folder}, with paths from the folder of the topmost manifest.json. */
function bundleSource(from) {
  if (typeof from === "string" || from instanceof URL) {
    const url = URL.canParse(from, location.href) && new URL(from, location.href);
    const isWeb = url && /^https?:$/.test(url.protocol);
    if (!isWeb) throw new BundleError(`${from}: not a web address; give the https address of a bundle's folder`);
    return { url: url.href.replace(/\/manifest\.json$/, "/") };
  }
  const paths = from instanceof Map ? [...from] : Array.from(from, (file) => [file.webkitRelativePath || file.name, file]);
  const manifests = paths.map(([path]) => path).filter((path) => /(^|\/)manifest\.json$/.test(path));
  const [top] = manifests.sort((a, b) => a.split("/").length - b.split("/").length);
  if (top === undefined) {
    const place = paths[0]?.[0].split("/")[0] ?? "nothing";
    throw new BundleError(`${place}: not a bundle (no manifest.json); choose the folder that edgedistill export wrote`);
  }
  const root = top.slice(0, -"manifest.json".length);
  const others = manifests.filter((path) => !path.startsWith(root));
  if (others.length) {
    const names = [top, ...others].map((path) => path.split("/").at(-2)).join(", ");
    throw new BundleError(`${top.split("/")[0]}: several bundles (${names}); choose the folder of one`);
  }
  const inside = paths.filter(([path]) => path.startsWith(root)).map(([path, file]) => [path.slice(root.length), file]);
  return { files: new Map(inside), folder: root.split("/").at(-2) ?? "bundle" };
}
