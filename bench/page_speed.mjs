// A page that edgedistill export NAME --web FOLDER wrote, in headless Chromium, as JSON: the bytes that a visitor loads; medians of the milliseconds from
// navigation to a first embedding by core/edgedistill.js alone, and to the first results of the page, with its worker and its example.
// node bench/page_speed.mjs FOLDER NAME [ROUNDS]; needs `make runners` and Chromium. Each round has a profile of its own, so that nothing is cached.
import { launch, serve } from "../export/web/chromium.mjs";

const [folder, name, rounds = "11"] = process.argv.slice(2);
const { server, origin } = await serve({}, folder);
const browser = await launch();
const found = { alone_ms: [], results_ms: [] };
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
    (await Student.open(`/${file}`)).embed("How do I reset it?");
    return performance.now() - start;
  }, `students/${name}.bin`);
  if (round >= 0) found.alone_ms.push(first), found.results_ms.push(results);
  await context.close();
}
await browser.close();
server.close();
const median = (values) => Number(values.sort((a, b) => a - b)[values.length >> 1].toFixed(1));
console.log(JSON.stringify({ bytes, ...Object.fromEntries(Object.entries(found).map(([key, values]) => [key, median(values)])) }));
