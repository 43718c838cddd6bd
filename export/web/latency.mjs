// Time graphs in onnxruntime's WASM, on one thread of Node: node latency.mjs < {"graphs": [path, …], "lengths": [tokens, …], "rounds": n}
// Prints a JSON array, for each graph its p50 in milliseconds: the least of the rounds' medians, or {"error": …}. Needs `npm install`.

import { readFileSync } from "node:fs";
import { performance } from "node:perf_hooks";

const { graphs, lengths, rounds } = JSON.parse(readFileSync(0, "utf8"));
const ort = await import("onnxruntime-web/wasm");
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

const found = [];
for (const graph of graphs) {
  try {
    found.push(await p50(graph));
  } catch (error) {
    found.push({ error: error.message });
  }
}
console.log(JSON.stringify(found));

/** Milliseconds of one text in the graph, over texts of these lengths. */
async function p50(path) {
  const session = await ort.InferenceSession.create(readFileSync(path), { executionProviders: ["wasm"] });
  const inputs = lengths.map(feeds);
  for (const each of inputs.slice(0, 8)) await session.run(each, ["sentence_embedding"]);
  const medians = [];
  for (let round = 0; round < rounds; round++) {
    const spent = [];
    for (const each of inputs) {
      const start = performance.now();
      await session.run(each, ["sentence_embedding"]);
      spent.push(performance.now() - start);
    }
    medians.push(spent.sort((a, b) => a - b)[Math.floor(spent.length / 2)]);
  }
  await session.release();
  return Math.min(...medians);
}

function feeds(length) {
  const ids = BigInt64Array.from({ length }, (_, at) => BigInt(at % 90));
  const tensor = (data) => new ort.Tensor("int64", data, [1, length]);
  return { input_ids: tensor(ids), attention_mask: tensor(new BigInt64Array(length).fill(1n)) };
}
