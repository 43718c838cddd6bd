// From navigation to a first embedding in a page with a student and the core alone, in headless Chromium: medians in milliseconds as JSON on stdout.
// node bench/core_page.mjs FOLDER [ROUNDS], where FOLDER is what `edgedistill export micro --core FOLDER` wrote; needs `make runners`, and
// Chromium ($CHROMIUM, else the one on the path). Each round has a profile of its own, so that nothing is cached; the first one does not count.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { chromium } from "../export/web/node_modules/playwright-core/index.mjs";

const [folder, rounds = "11"] = process.argv.slice(2);
const PAGE = `<!doctype html><link rel="icon" href="data:,"><link rel="modulepreload" href="edgedistill.js"><body><script type="module">
  const marks = { script: performance.now() };
  const { Student } = await import("./edgedistill.js");
  const student = await Student.open("student.bin");
  marks.opened = performance.now();
  document.body.textContent = student.embed("How do I reset it?")[0];
  marks.first = performance.now();
  student.embed("Hold the button.");
  marks.second = performance.now();
  window.marks = marks;
</script>`;
const TYPES = {
  "/": "text/html",
  "/edgedistill.js": "text/javascript",
  "/edgedistill.wasm": "application/wasm",
  "/student.bin": "application/octet-stream",
};

const server = createServer(({ url }, answer) => {
  if (!TYPES[url]) return answer.writeHead(404).end();
  answer.writeHead(200, { "content-type": TYPES[url] });
  answer.end(url === "/" ? PAGE : readFileSync(join(folder, url)));
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const found = [];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
for (let round = -1; round < Number(rounds); round++) {
  const context = await browser.newContext(); // a profile of its own
  const page = await context.newPage();
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  await page.waitForFunction(() => window.marks);
  if (round >= 0) found.push(await page.evaluate(() => window.marks));
  await context.close();
}
await browser.close();
server.close();
const median = (name) => found.map((marks) => marks[name]).sort((a, b) => a - b)[found.length >> 1];
console.log(JSON.stringify(Object.fromEntries(Object.keys(found[0]).map((name) => [name, Number(median(name).toFixed(1))]))));
