// A bundle in export/web's own runner, on WASM in headless Chromium: node web_runner.mjs BUNDLE < request.json. See bench/ecosystems.py.
import { readFileSync } from "node:fs";

const web = new URL("../../export/web/", import.meta.url);
const { chromium } = await import(new URL("node_modules/playwright-core/index.mjs", web));
const { serve } = await import(new URL("server.mjs", web));
const { version } = JSON.parse(readFileSync(new URL("node_modules/onnxruntime-web/package.json", web), "utf8"));
const [folder, request] = [process.argv[2], JSON.parse(readFileSync(0, "utf8"))];
const server = serve({ "/bundle/": folder });
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage();
await page.goto(`http://localhost:${server.address().port}/index.html`);
const vectors = {};
try {
  for (const precision of Object.keys(request.files))
    vectors[precision] = await page.evaluate(
      async ([name, texts]) => {
        const { load } = await import("/encoder.js");
        const encoder = await load("/bundle/", { precision: name, backend: "wasm", threads: 1 });
        const found = (await encoder.encode(texts)).map((vector) => [...vector]);
        encoder.close?.();
        return found;
      },
      [precision, request.texts],
    );
} finally {
  await browser.close();
  server.close();
}
console.log(JSON.stringify({ version: `onnxruntime-web ${version}`, vectors }));
