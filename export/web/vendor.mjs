// npm run vendor: copy what the page needs of node_modules into vendor/, so that the page is static files.

import { copyFileSync, cpSync, mkdirSync, rmSync, statSync } from "node:fs";
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

rmSync(here("vendor"), { recursive: true, force: true });
mkdirSync(here("vendor"));
cpSync(here("../node/core"), here("vendor/core"), { recursive: true }); // what Node's runner and this one share
for (const [folder, names] of Object.entries(FILES)) {
  for (const name of names) {
    copyFileSync(here(`node_modules/${folder}/${name}`), here(`vendor/${name}`));
    console.log(`vendor/${name}  ${(statSync(here(`vendor/${name}`)).size / 1e6).toFixed(1)} MB`);
  }
}
