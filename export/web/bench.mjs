// A bundle in this runner, on WASM in headless Chromium, for `edgedistill bench --runner web`: a request on stdin, its answer on stdout.
// Needs npm install and npm run vendor in this folder, and Chromium ($CHROMIUM, else the one on the path).
import { readFileSync } from "node:fs";

async function answer(request) {
  if (request.what !== "time") throw new Error(`${request.what}: this runner answers time alone`);
  if (request.device !== "cpu") throw new Error(`device ${request.device}: this runner has cpu (WASM) alone`);
  const { chromium } = await import("playwright-core");
  const { serve } = await import("./server.mjs");
  const server = serve({ "/bundle/": request.bundle });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
  try {
    const page = await browser.newPage();
    await page.goto(`http://localhost:${server.address().port}/index.html`);
    const found = await page.evaluate(async (asked) => {
      const { load } = await import("/encoder.js");
      const { measure } = await import("/vendor/core/measure.js");
      const before = performance.now();
      const encoder = await load("/bundle/", { precision: asked.precision, backend: "wasm", threads: asked.threads ?? undefined });
      const load_ms = performance.now() - before;
      return { ...(await measure(encoder, asked)), load_ms };
    }, request);
    const { version } = JSON.parse(readFileSync(new URL("node_modules/onnxruntime-web/package.json", import.meta.url), "utf8"));
    return { ...found, version: `onnxruntime-web ${version}, Chromium ${browser.version()}`, device: "cpu", threads: request.threads };
  } finally {
    await browser.close();
    server.close();
  }
}

try {
  console.log(JSON.stringify(await answer(JSON.parse(readFileSync(0, "utf8")))));
} catch (error) {
  process.stderr.write(`${error.message.split("\n")[0]}\n`);
  process.exitCode = 2;
}
