// The runner, off the page's thread: opens a bundle, embeds texts, compares the golden texts, measures speed.
// Messages in: {id, op, ...}; out: {id, result}, {id, error} or {id, progress}. encoder.js is the other end.

import { BundleError, Files, choosePrecision, readManifest } from "./bundle.js";
import { checkedText, chosenDim, embed } from "./embedding.js";
import { checkIds, compare, readGolden } from "./golden.js";
import { measure } from "./speed.js";

const VENDOR = new URL("./vendor/", import.meta.url).href;
// Without a kernel in WebGPU's build of onnxruntime-web 1.30; of MultiHeadAttention only the one with a padding mask, which bundles have.
const NOT_ON_GPU = /^(.*\.)?(MatMulIntegerToFloat|MatMulInteger|DynamicQuantize\w+|QLinearMatMul|MultiHeadAttention)$/;

let opened; // {files, manifest, precision, dim, tokenize, golden, ort, session, backend, threads, reason, checked}

const operations = {
  /** Open a bundle, verified: hashes, the golden texts' ids, and their embeddings on the backend that it will use. */
  async load({ from, precision, dim, backend, threads }, progress) {
    const files = new Files(from);
    const manifest = await readManifest(files);
    const chosen = choosePrecision(manifest, precision);
    const { file, size_bytes: size } = manifest.precisions[chosen];
    const [tokenizerJson, parity] = await Promise.all([files.json("tokenizer.json", manifest), files.json("parity.json", manifest)]);
    const tokenize = await openTokenizer(files, manifest, tokenizerJson);
    const golden = readGolden(files, manifest, parity, chosen);
    const bundle = { files, manifest, precision: chosen, dim: chosenDim(manifest, dim), tokenize, golden };
    checkIds(bundle);
    const graph = await files.trusted(file, manifest, size, (bytes) => progress({ bytes, size }));
    const { graphProblem } = await vendored("graph.js");
    const problem = graphProblem(graph);
    if (problem) throw new BundleError(`${files.place}/${file}: ${problem}`, "check");
    opened = await openSession(bundle, graph, backend, threads);
    const { name, dims, max_tokens, precisions } = manifest;
    const { dim: chosenDims, backend: used, reason, threads: usedThreads, checked } = opened;
    const facts = { name, dims, dim: chosenDims, max_tokens, precision: chosen, precisions: Object.keys(precisions), size_bytes: size };
    return { ...facts, backend: used, reason, threads: usedThreads, golden: checked };
  },

  /** The embeddings of n texts: {rows: n · dim float32, dim}. `first`: the index of texts[0], for errors. */
  async encode({ texts, dim, first }) {
    const ids = texts.map((text, at) => opened.tokenize(checkedText(text, first + at)));
    return { rows: await embed(opened, ids, chosenDim(opened.manifest, dim ?? opened.dim)), dim: dim ?? opened.dim };
  },

  /** Embed the golden texts, alone and in batches, and compare with the stored embeddings. */
  async check() {
    checkIds(opened);
    return compare(opened, true);
  },

  time: () => measure(opened),
};

let queue = Promise.resolve(); // one operation at a time
self.onmessage = ({ data: { id, op, ...rest } }) => {
  queue = queue.then(async () => {
    try {
      const result = await operations[op](rest, (progress) => self.postMessage({ id, progress }));
      self.postMessage({ id, result }, result.rows ? [result.rows.buffer] : []);
    } catch (error) {
      const kind = error instanceof BundleError ? error.kind : "bug";
      self.postMessage({ id, error: { message: error.message, kind, stack: error.stack } });
    }
  });
};

/** A function from a text to its token ids. Raises BundleError for a tokenizer that cannot be read, or fails for a text. */
async function openTokenizer(files, manifest, json) {
  const [library, { tokenizer }] = await Promise.all([vendored("tokenizers.min.mjs"), vendored("tokens.js")]);
  const explained = (call) => {
    try {
      return call();
    } catch (error) {
      throw new BundleError(`${files.place}/tokenizer.json: cannot be read here (${error.message}); copy the bundle again`, "check");
    }
  };
  const tokenize = explained(() => tokenizer(library, json, manifest));
  return (text) => explained(() => tokenize(text));
}

// ---- sessions

/** The bundle with a session on the backend to use: WebGPU where it is there and its golden texts are right, else WASM. */
async function openSession(bundle, graph, backend, threads) {
  let reason = "";
  if (backend !== "wasm") {
    reason = await whyNotWebGPU(bundle, backend);
    if (!reason) {
      try {
        const found = await start(bundle, graph, "webgpu", 1);
        if (found.checked.ok) return found;
        reason = `its golden texts are wrong on WebGPU: ${found.checked.problem}`;
        await found.session.release();
      } catch (error) {
        if (error instanceof BundleError) throw error;
        reason = `WebGPU failed: ${error.message}`;
      }
    }
  }
  const found = await start(bundle, graph, "wasm", threads).catch((error) => {
    if (error instanceof BundleError) throw error;
    const { place } = bundle.files;
    throw new BundleError(`${place}: onnxruntime cannot open ${bundle.precision} (${error.message}); choose another precision`);
  });
  if (!found.checked.ok) {
    const others = Object.keys(bundle.manifest.precisions).filter((each) => each !== bundle.precision);
    const wayOut = others.length ? `choose precision ${others.join(" or ")}` : "export it from its run with another precision";
    const fact = `${found.checked.problem}; token ids agree, so the loss is in the arithmetic`;
    throw new BundleError(`${bundle.manifest.name}: ${fact}: ${wayOut}`, "check");
  }
  return { ...found, reason };
}

/** Why the graph should not or cannot run on WebGPU; empty where it can. */
async function whyNotWebGPU({ manifest, precision }, backend) {
  const { operators } = manifest.precisions[precision];
  const missing = operators ? operators.find((name) => NOT_ON_GPU.test(name)) : precision === "int8" && "its int8 products";
  if (missing && backend === "auto") return `WebGPU has no kernel for ${missing}`;
  const adapter = await self.navigator.gpu?.requestAdapter().catch(() => null);
  if (!adapter) return "this browser offers no WebGPU";
  const isSoftware = adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter;
  return isSoftware && backend === "auto" ? "its WebGPU is emulated in software" : "";
}

/** The bundle with an open session on one backend, and what its golden texts gave there. */
async function start(bundle, graph, backend, threads) {
  const ort = await vendored(backend === "webgpu" ? "ort.webgpu.min.mjs" : "ort.wasm.min.mjs");
  ort.env.wasm.wasmPaths = VENDOR;
  ort.env.wasm.numThreads = threads;
  ort.env.logLevel = "error";
  const session = await ort.InferenceSession.create(graph, { executionProviders: [backend], logSeverityLevel: 3 });
  const found = { ...bundle, ort, session, backend, threads, reason: "" };
  return { ...found, checked: await compare(found, backend === "webgpu") };
}

async function vendored(name) {
  try {
    return await import(VENDOR + name);
  } catch (error) {
    const wayOut = "run npm run vendor in export/web, and serve all of the folder";
    throw new BundleError(`${VENDOR}${name}: cannot be loaded (${error.message}); ${wayOut}`);
  }
}
