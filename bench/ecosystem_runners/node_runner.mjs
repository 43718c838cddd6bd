// A bundle in export/node's own runner: node node_runner.mjs BUNDLE < request.json. See bench/ecosystems.py.
import { readFileSync } from "node:fs";

const { load } = await import(new URL("../../export/node/index.js", import.meta.url));
const { version } = JSON.parse(readFileSync(new URL("../../export/node/node_modules/onnxruntime-node/package.json", import.meta.url), "utf8"));
const [folder, request] = [process.argv[2], JSON.parse(readFileSync(0, "utf8"))];
const vectors = {};
for (const precision of Object.keys(request.files)) {
  const bundle = await load(folder, { precision, threads: 1 });
  vectors[precision] = (await bundle.encode(request.texts)).map((vector) => [...vector]);
}
console.log(JSON.stringify({ version: `onnxruntime-node ${version}`, vectors }));
