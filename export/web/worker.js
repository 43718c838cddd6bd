// The runner, off the page's thread: opens a bundle, embeds texts, compares the golden texts, measures speed.
// Messages in: {id, op, ...}; out: {id, result}, {id, error} or {id, progress}. encoder.js is the other end.

import { open } from "./vendor/core/bundle.js";
import { compact, rowWidth } from "./vendor/core/compact.js";
import { CheckFailed, UserError } from "./vendor/core/errors.js";
import { languagesOf } from "./vendor/core/manifest.js";
import { Files } from "./files.js";
import { measure } from "./speed.js";

const VENDOR = new URL("./vendor/", import.meta.url).href;
// Without a kernel in WebGPU's build of onnxruntime-web 1.30; of MultiHeadAttention only the one with a padding mask, which bundles have.
const NOT_ON_GPU = /^(.*\.)?(MatMulIntegerToFloat|MatMulInteger|DynamicQuantize\w+|QLinearMatMul|MultiHeadAttention)$/;

let bundle; // the opened one; of a pair, its encoder of queries is timed
let chosenDim;

const operations = {
  /** Open a bundle, verified: hashes, the golden texts' ids, and their embeddings on the backend that it will use. */
  async load({ from, precision, dim, backend, threads }, progress) {
    bundle = await open(new Files(from), await vendored("tokenizers.min.mjs"), precision);
    chosenDim = bundle.chosenDim(dim);
    await bundle.checkIds();
    const { dims, precision: used, maxTokens: max_tokens } = bundle;
    const { name } = bundle.manifest;
    const precisions = Object.keys(bundle.encoders[0].manifest.precisions);
    const sizes = bundle.encoders.map(({ manifest, precision }) => manifest.precisions[precision].size_bytes);
    const size = sizes.reduce((sum, each) => sum + each);
    const opened = [];
    for (const [at, encoder] of bundle.encoders.entries()) {
      const before = sizes.slice(0, at).reduce((sum, each) => sum + each, 0);
      const graph = await encoder.graph((bytes) => progress({ bytes: before + bytes, size }));
      opened.push(await openSession(encoder, graph, backend, threads));
    }
    const languages = languagesOf(bundle.encoders[0].manifest);
    const facts = { name, languages, dims, dim: chosenDim, max_tokens, precision: used, precisions, size_bytes: size };
    return { ...facts, ...opened[0] };
  },

  /** The embeddings of n texts, one after the other: {rows, width: of each}. `first`: the index of texts[0], for errors. */
  async encode({ texts, dim = chosenDim, role = "text", precision, first }) {
    const [encoder, chosen] = [bundle.of(role), bundle.chosenDim(dim)];
    const width = rowWidth(precision, chosen);
    const ids = texts.map((text, at) => encoder.tokenize(text, `texts[${first + at}]`, role));
    return { rows: compact(await encoder.embed(ids, chosen), precision, chosen, encoder.manifest.calibration), width };
  },

  /** Embed the golden texts, alone and in batches, and compare with the stored embeddings. */
  async check() {
    await bundle.checkIds();
    return bundle.compare();
  },

  time: () => measure(bundle.encoders[0], chosenDim),
};

let queue = Promise.resolve(); // one operation at a time
self.onmessage = ({ data: { id, op, ...rest } }) => {
  queue = queue.then(async () => {
    try {
      const result = await operations[op](rest, (progress) => self.postMessage({ id, progress }));
      self.postMessage({ id, result }, result.rows ? [result.rows.buffer] : []);
    } catch (error) {
      self.postMessage({ id, error: { message: error.message, kind: kindOf(error), stack: error.stack } });
    }
  });
};

function kindOf(error) {
  if (error instanceof CheckFailed) return "check";
  return error instanceof UserError ? "user" : "bug";
}

// ---- sessions

/** Open a session on the backend to use, WebGPU where it is there and its golden texts are right, else WASM: {backend, reason, threads, golden}. */
async function openSession(encoder, graph, backend, threads) {
  let reason = backend === "wasm" ? "" : await whyNotWebGPU(encoder, backend);
  if (backend !== "wasm" && !reason) {
    try {
      const golden = await start(encoder, graph, "webgpu", 1);
      if (golden.ok) return { backend: "webgpu", reason, threads: 1, golden };
      reason = `its golden texts are wrong on WebGPU: ${golden.problem}`;
      await encoder.close();
    } catch (error) {
      if (kindOf(error) !== "bug" && !error.cause) throw error;
      reason = `WebGPU failed: ${(error.cause ?? error).message}`;
    }
  }
  const { folder, manifest, precision } = encoder;
  const golden = await start(encoder, graph, "wasm", threads).catch((error) => {
    if (kindOf(error) !== "bug") throw error;
    throw new UserError(`${folder}: onnxruntime cannot open ${precision} (${error.message}); choose another precision`);
  });
  if (!golden.ok) {
    const others = Object.keys(manifest.precisions).filter((each) => each !== precision);
    const wayOut = others.length ? `choose precision ${others.join(" or ")}` : "export it from its run with another precision";
    throw new CheckFailed(`${folder}: ${golden.problem}; token ids agree, so the loss is in the arithmetic: ${wayOut}`);
  }
  return { backend: "wasm", reason, threads, golden };
}

/** Why the graph should not or cannot run on WebGPU; empty where it can. */
async function whyNotWebGPU(encoder, backend) {
  const { operators } = encoder.manifest.precisions[encoder.precision];
  const missing = operators ? operators.find((name) => NOT_ON_GPU.test(name)) : encoder.precision === "int8" && "its int8 products";
  if (missing && backend === "auto") return `WebGPU has no kernel for ${missing}`;
  const adapter = await self.navigator.gpu?.requestAdapter().catch(() => null);
  if (!adapter) return "this browser offers no WebGPU";
  const isSoftware = adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter;
  return isSoftware && backend === "auto" ? "its WebGPU is emulated in software" : "";
}

/** Give an encoder a session on one backend; returns what its golden texts gave there. */
async function start(encoder, graph, backend, threads) {
  const ort = await vendored(backend === "webgpu" ? "ort.webgpu.min.mjs" : "ort.wasm.min.mjs");
  ort.env.wasm.wasmPaths = VENDOR;
  ort.env.wasm.numThreads = threads;
  ort.env.logLevel = "error";
  encoder.use(await ort.InferenceSession.create(graph, { executionProviders: [backend], logSeverityLevel: 3 }), ort.Tensor);
  return encoder.compare(backend === "webgpu");
}

async function vendored(name) {
  try {
    return await import(VENDOR + name);
  } catch (error) {
    const wayOut = "run npm run vendor in export/web, and serve all of the folder";
    throw new UserError(`${VENDOR}${name}: cannot be loaded (${error.message}); ${wayOut}`);
  }
}
