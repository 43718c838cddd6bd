// A student in this folder's worker, in headless Chromium, for `edgedistill bench --runner web`: a request on stdin, its answer on stdout.
// Needs playwright-core (npm install here), and Chromium ($CHROMIUM, else the one on the path).
import { readFileSync } from "node:fs";
import { launch, serve } from "./chromium.mjs";

async function answer(request) {
  const { server, origin } = await serve({ "/student.bin": request.student });
  const browser = await launch();
  try {
    const page = await browser.newPage();
    await page.goto(`${origin}/index.html`);
    const found = await page.evaluate(async (asked) => {
      const { load } = await import("/encoder.js");
      const { measure } = await import("/core/measure.js");
      const before = performance.now();
      const encoder = await load("/student.bin");
      const load_ms = performance.now() - before;
      return { ...(await measure((texts) => encoder.encodeQuery(texts), asked)), load_ms };
    }, request);
    return { ...found, version: `edgedistill.wasm, Chromium ${browser.version()}`, device: "cpu", threads: 1 };
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
