// A page that edgedistill export NAME --web FOLDER wrote, in headless Chromium: the bytes that a visitor loads; medians of the milliseconds from
// navigation to a first embedding by core/edgedistill.js alone, and to the first results of the page, with its worker and its example; a text's of 12 and 128 tokens, by the core. And what
// wasm_speed.mjs measures of the same student. `make page` runs it.
// node bench/page_speed.mjs FOLDER NAME ONNXRUNTIME_WEB REPORT [ROUNDS]; each round has a profile of its own, so that nothing is cached.
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { cpus, loadavg } from "node:os";
import { fileURLToPath } from "node:url";

import { launch, serve } from "../export/web/chromium.mjs";

const [folder, name, ort, report, rounds = "11"] = process.argv.slice(2);
const { server, origin } = await serve({}, folder);
const browser = await launch();
const chromium = browser.version();
const found = {};
let bytes = 0;
for (let round = -1; round < Number(rounds); round++) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const sizes = [];
  page.on("response", (answer) => sizes.push(Number(answer.headers()["content-length"] ?? 0)));
  await page.goto(`${origin}/?student=${name}`);
  await page.waitForFunction(() => document.querySelector("#results li"), undefined, { polling: 5 });
  const results = await page.evaluate(() => performance.now());
  bytes = await page.evaluate(() => performance.getEntriesByType("resource").reduce((sum, each) => sum + each.decodedBodySize, 0));
  bytes = Math.max(bytes, sizes.reduce((sum, size) => sum + size, 0));
  const alone = await context.newPage();
  await alone.goto(`${origin}/students.json`);
  const first = await alone.evaluate(async (file) => {
    const start = performance.now();
    const { Student } = await import("/core/edgedistill.js");
    const student = await Student.open(`/${file}`);
    student.embed("How do I reset it?");
    const times = [performance.now() - start];
    for (const text of ["the old man carries a wooden chair along the way", `${"the river is wide and calm in the ".repeat(15)}the river is wide and calm`]) {
      for (let at = 0; at < 100; at++) student.embed(text); // until the engine has optimized it
      const before = performance.now();
      for (let at = 0; at < 100; at++) student.embed(text); // the clock of a page has steps of 0.1 ms
      times.push((performance.now() - before) / 100, student.tokenize(text).length);
    }
    return times;
  }, `students/${name}.bin`);
  const [alone_ms, short_ms, short_tokens, long_ms, long_tokens] = first;
  for (const [key, value] of Object.entries({ alone_ms, results_ms: results, [`${short_tokens}_tokens_ms`]: short_ms, [`${long_tokens}_tokens_ms`]: long_ms })) {
    if (round >= 0) (found[key] ??= []).push(value);
  }
  await context.close();
}
await browser.close();
server.close();
const median = (values) => Number(values.toSorted((a, b) => a - b)[values.length >> 1].toFixed(2));
const page = { bytes, ...Object.fromEntries(Object.entries(found).map(([key, values]) => [key, median(values)])), samples: found };
const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const graph = here(`../edgedistill/shipped/bundles/${name}/onnx/model_quantized.onnx`);
const wasm = JSON.parse(execFileSync(process.execPath, [here("wasm_speed.mjs"), `${folder}/students/${name}.bin`, graph, ort], { encoding: "utf8" }));
const versions = { chromium, node: process.versions.node, "onnxruntime-web": JSON.parse(readFileSync(`${ort}/package.json`, "utf8")).version };
const machine = { cpu: cpus()[0].model, cores: cpus().length, load: loadavg()[0] };
const result = { schema: 1, bench: "page speed", student: name, page, wasm, machine, versions, made_at: new Date().toISOString() };
writeFileSync(report, `${JSON.stringify(result, null, 1)}\n`);
const { samples, ...medians } = page;
console.log(JSON.stringify({ ...medians, wasm }, null, 1));
