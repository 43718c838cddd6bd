// npm run vendor: copy what the page needs of node_modules into vendor/, so that the page is static files.

import { copyFileSync, mkdirSync, rmSync, statSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = (name) => fileURLToPath(new URL(name, import.meta.url));

const FILES = {
  "onnxruntime-web/dist": [
    "ort.wasm.min.mjs", // WASM alone: half the size of the build with WebGPU
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
    "ort.webgpu.min.mjs",
    "ort-wasm-simd-threaded.asyncify.mjs",
    "ort-wasm-simd-threaded.asyncify.wasm",
  ],
  "@huggingface/tokenizers/dist": ["tokenizers.min.mjs"],
};
const SHARED = ["tokens.js", "graph.js"]; // with export/node, where they are edited

rmSync(here("vendor"), { recursive: true, force: true });
mkdirSync(here("vendor"));
const all = Object.entries(FILES).map(([folder, names]) => [`node_modules/${folder}`, names]);
for (const [folder, names] of [["../node", SHARED], ...all]) {
  for (const name of names) {
    copyFileSync(here(`${folder}/${name}`), here(`vendor/${name}`));
    console.log(`vendor/${name}  ${(statSync(here(`vendor/${name}`)).size / 1e6).toFixed(1)} MB`);
  }
}
