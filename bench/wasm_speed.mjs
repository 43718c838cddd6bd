// The core in WebAssembly beside onnxruntime-web's, in Node, one thread, in turns: p50 in ms of a text of 12 and of 128 tokens, and their ratio.
//   npm install onnxruntime-web in a folder of its own; edgedistill export nano --core out
//   node bench/wasm_speed.mjs out/student.bin edgedistill/shipped/bundles/nano/onnx/model_quantized.onnx FOLDER/node_modules/onnxruntime-web
// The core's times have the tokenizer in them, onnxruntime's do not. Opening is timed in processes of its own: for a second after
// onnxruntime has opened its session, V8 compiles its 14 MB in the threads that would compile the core.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { Student } from "../export/core/edgedistill.js";

const START = `
  import { readFileSync } from "node:fs";
  const [core, file] = process.argv.slice(1);
  const { Student } = await import(core);
  const before = performance.now();
  const student = await Student.open(readFileSync(file));
  const open_ms = performance.now() - before;
  student.embed("a first text");
  console.log(JSON.stringify({ open_ms, first_ms: performance.now() - before }));`;
const core = new URL("../export/core/edgedistill.js", import.meta.url).href;
const [file, graph, folder, rounds = "15", wasm] = process.argv.slice(2);
const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
const starts = Array.from({ length: 11 }, () => JSON.parse(execFileSync(process.execPath, ["--input-type=module", "-e", START, core, file], { encoding: "utf8" })));
const result = Object.fromEntries(["open_ms", "first_ms"].map((key) => [key, median(starts.map((each) => each[key]))]));
const ort = await import(pathToFileURL(resolve(join(folder, "dist/ort.wasm.min.mjs"))));
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(readFileSync(graph), { executionProviders: ["wasm"] });
const student = await Student.open(readFileSync(file), wasm ? readFileSync(wasm) : undefined);
const sentence = "the old man carries a wooden chair along the river in the morning and our neighbour finds her letter ";

/** A text with so many tokens. */
function textOf(tokens) {
  const words = sentence.repeat(20).split(" ");
  for (let count = 1; ; count++) {
    const text = words.slice(0, count).join(" ");
    if (student.tokenize(text).length >= tokens) return text;
  }
}

async function timed(calls, call) {
  const found = [];
  for (let at = 0; at < calls; at++) {
    const start = performance.now();
    await call();
    found.push(performance.now() - start);
  }
  return found;
}

for (const tokens of [12, 128]) {
  const text = textOf(tokens);
  const ids = BigInt64Array.from(student.tokenize(text), BigInt);
  const tensor = (data) => new ort.Tensor("int64", data, [1, ids.length]);
  const feeds = { input_ids: tensor(ids), attention_mask: tensor(ids.map(() => 1n)) };
  const run = async () => (await session.run(feeds)).sentence_embedding.data;
  const [row, expected] = [student.embed(text), await run()];
  const cosine = row.reduce((sum, x, at) => sum + x * expected[at], 0);
  const [core, other] = [[], []];
  for (let round = 0; round < Number(rounds); round++) {
    core.push(...(await timed(20, () => student.embed(text))));
    other.push(...(await timed(20, run)));
  }
  const [core_ms, onnxruntime_ms, least, least_other] = [median(core), median(other), Math.min(...core), Math.min(...other)];
  const least_ms = { core: least, onnxruntime: least_other, ratio: least / least_other }; // of a machine with other jobs
  result[ids.length] = { core_ms, onnxruntime_ms, ratio: core_ms / onnxruntime_ms, least_ms, cosine };
}
console.log(JSON.stringify(result, null, 1));
