// npm test [-- BUNDLE [CASE...]]: the page and the runner in real headless Chromium, on real bundles and on broken ones.
// Prints one JSON object a case, {case, ok, ms, problem}; exit 1 where one fails. CHROMIUM names the browser.

if (process.argv[2]) process.env.EDGEDISTILL_BUNDLE = process.argv[2]; // for the modules below
const { browser, close } = await import("./harness.mjs");
const { cases } = await import("./cases.mjs");

let failed = 0;
const wanted = process.argv.slice(3);
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
