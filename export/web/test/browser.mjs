// EDGEDISTILL_PAGE=FOLDER node test/browser.mjs [CASE...]: an exported page in real headless Chromium, with real students and damaged ones.
// Prints one JSON object a case, {case, ok, ms, problem}; exit 1 where one fails. CHROMIUM names the browser.

import { cases } from "./cases.mjs";
import { browser, close } from "./harness.mjs";

let failed = 0;
const wanted = process.argv.slice(2);
for (const [name, run] of Object.entries(cases)) {
  if (wanted.length && !wanted.includes(name)) continue;
  const started = performance.now();
  const problem = await run().then(
    () => "",
    (error) => error.stack,
  );
  failed += Boolean(problem);
  console.log(JSON.stringify({ case: name, ok: !problem, ms: Math.round(performance.now() - started), problem }));
  await Promise.all(browser.contexts().map((context) => context.close()));
}
await close();
process.exit(failed ? 1 : 0);
