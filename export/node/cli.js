#!/usr/bin/env node
/** The command: embed the lines of stdin, compare golden texts, time this machine. */

import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { availableParallelism } from "node:os";
import { performance } from "node:perf_hooks";
import { parseArgs } from "node:util";

const HELP = `Usage: edgedistill BUNDLE [OPTIONS] < texts.txt

  Embed texts with a bundle: one text per line in, one embedding (a JSON array) per line out.

Options:
  --precision P  One of the bundle's. Default: the fastest, by the manifest's rank.
  --as ROLE      What the texts are: text, query or document, each with the bundle's prompt for it. Default: text.
                 A pair of encoders has one for queries and one for documents; --time times that of queries.
  --dim N        Dimensions to return, of a Matryoshka student. Default: all.
  --embeddings P float32 (default), int8 (a byte per dimension) or binary (a bit).
  --threads N    Default: the processors this process may use.
  --check        Compare the golden texts with the embeddings stored at export.
  --time         Time a short query, and texts in batches, on this machine.
  --bench        Answer a request of \`edgedistill bench --runner node\` on stdin; it names the bundle.
  --json         Print the result of --check and --time, or an error, as one JSON object.
  --help, --version

  Exit codes: 0 success, 1 a check failed, 2 an error that you can fix, described on stderr.`;

const OPTIONS = {
  ...{ precision: { type: "string" }, dim: { type: "string" }, embeddings: { type: "string" }, threads: { type: "string" } },
  ...{ as: { type: "string", default: "text" } },
  ...{ check: { type: "boolean" }, time: { type: "boolean" }, json: { type: "boolean" }, bench: { type: "boolean" } },
  ...{ help: { type: "boolean" }, version: { type: "boolean" } },
};
const SAMPLE = "the old bridge over that river was closed for repairs so every train from here to a northern city now takes longer";
const WORDS = SAMPLE.split(" ");
const LINES = 1024; // embedded at a time, which bounds memory
const LONGEST = 1e6; // bytes of a line; the last of a file may be longer by what one read brings

class UsageError extends Error {
  name = "UsageError";
}

async function main({ values, positionals }) {
  if (values.help) return print(HELP);
  if (values.version) return print(JSON.parse(readFileSync(new URL("package.json", import.meta.url), "utf8")).version);
  if (values.bench) return print(JSON.stringify(await answer(JSON.parse(readFileSync(0, "utf8")))));
  if (positionals.length !== 1) throw new UsageError(`BUNDLE: ${positionals.length} given; give one folder (edgedistill --help)`);
  const [dim, threads = availableParallelism()] = ["dim", "threads"].map((name) => count(name, values[name]));
  const { load } = await import("./index.js").catch(explainMissing);
  const bundle = await load(positionals[0], { precision: values.precision, threads });
  if (!values.check && !values.time) return embedLines(bundle, { dim, role: values.as, precision: values.embeddings });
  const found = { bundle: positionals[0], precision: bundle.precision };
  const report = (result, line) => {
    Object.assign(found, result);
    return values.json ? undefined : print(`${found.bundle}:${found.precision}: ${line(found)}`);
  };
  if (values.check) await report(await bundle.check(), checkLine);
  if (values.time) await report({ threads, ...(await time(bundle.encoders[0], dim)) }, timeLine);
  if (values.json) await print(JSON.stringify(found));
}

/** Answer a request of edgedistill's bench, see bench/README.md. */
async function answer(request) {
  if (request.what !== "time") throw new UsageError(`--bench ${request.what}: this runner answers time alone`);
  if (request.device !== "cpu") throw new UsageError(`--bench: device ${request.device}; this runner has cpu alone`);
  const threads = request.threads ?? availableParallelism();
  const { load } = await import("./index.js").catch(explainMissing);
  const { measure } = await import("./core/measure.js");
  const start = performance.now();
  const bundle = await load(request.bundle, { precision: request.precision, threads });
  const load_ms = performance.now() - start;
  const { version } = createRequire(import.meta.url)("onnxruntime-node/package.json");
  const found = await measure(bundle.encoders[0], request);
  const peak_rss_bytes = 1024 * process.resourceUsage().maxRSS;
  return { ...found, load_ms, peak_rss_bytes, threads, device: "cpu", version: `onnxruntime-node ${version}, Node ${process.versions.node}` };
}

const checkLine = (found) =>
  `OK, ${found.texts} golden texts match (worst cosine ${found.cosine_min.toFixed(5)}, at least ${found.threshold})`;
const timeLine = (found) =>
  `${found.threads} ${found.threads === 1 ? "thread" : "threads"}; ` +
  `a query of ${found.query_tokens} tokens ${found.p50_ms.toFixed(2)} ms (p50), ${found.p90_ms.toFixed(2)} ms (p90); ` +
  `in batches ${found.rate_texts_s.toFixed(0)} texts/s (${found.batch_texts} texts of ${found.batch_tokens_mean.toFixed(0)} tokens)`;

/** Time an open bundle, tokenization included, after a warm-up: a query again and again, then 128 texts of 4 to 34 words. */
async function time(bundle, dim) {
  const query = "How do I reset my password?";
  const texts = Array.from({ length: 128 }, (_, at) =>
    Array.from({ length: 4 + (at % 31) }, (_, i) => WORDS[(at + i * (1 + (at % 5))) % WORDS.length]).join(" "),
  );
  const queries = await durations(() => bundle.encode(query, { dim }), { warmup: 10, most: 300, seconds: 3 });
  const batches = await durations(() => bundle.encode(texts, { dim }), { warmup: 1, most: 5, seconds: 5 });
  const tokens = texts.map((text) => bundle.tokenize(text).length).reduce((sum, length) => sum + length);
  return {
    ...{ query_tokens: bundle.tokenize(query).length, p50_ms: quantile(queries, 0.5), p90_ms: quantile(queries, 0.9) },
    ...{ batch_texts: texts.length, batch_tokens_mean: tokens / texts.length },
    rate_texts_s: (1000 * texts.length) / quantile(batches, 0.5),
  };
}

/** Milliseconds of each call, sorted: at least one call, at most `most`, and none begun after `seconds`. */
async function durations(call, { warmup, most, seconds }) {
  for (let i = 0; i < warmup; i++) await call();
  const found = [];
  const end = performance.now() + 1000 * seconds;
  do {
    const start = performance.now();
    await call();
    found.push(performance.now() - start);
  } while (found.length < most && performance.now() < end);
  return found.sort((a, b) => a - b);
}

const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];

async function embedLines(bundle, options) {
  await bundle.encode([], options); // a wrong --dim, --as or --embeddings is reported before anything is read
  if (process.stdin.isTTY) process.stderr.write("reading texts from the terminal, one per line; end with Ctrl-D\n");
  let texts = [];
  const flush = async () => {
    const rows = await bundle.encode(texts, options);
    texts = [];
    for (const row of rows) await print(JSON.stringify(Array.from(row, (x) => Math.round(x * 1e7) / 1e7)));
  };
  for await (const text of lines(process.stdin)) {
    if (texts.push(text) === LINES) await flush();
  }
  await flush();
}

/** The lines of a UTF-8 stream, which end in \n or \r\n and in nothing else (node:readline also splits at U+2028). */
async function* lines(stream) {
  let rest = Buffer.alloc(0);
  let number = 0;
  for await (const chunk of stream) {
    rest = Buffer.concat([rest, chunk]);
    for (let end; (end = rest.indexOf("\n")) >= 0; rest = rest.subarray(end + 1)) yield decode(rest.subarray(0, end), ++number);
    if (rest.length > LONGEST) throw new UsageError(`stdin: line ${number + 1}: longer than ${LONGEST / 1e6} MB; give one text per line`);
  }
  if (rest.length > 0) yield decode(rest, ++number);
}

function decode(line, number) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: number > 1 }).decode(line).replace(/\r$/, "");
  } catch {
    throw new UsageError(`stdin: line ${number}: not UTF-8; convert the file first`);
  }
}

async function print(line) {
  if (!process.stdout.write(`${line}\n`)) await once(process.stdout, "drain");
}

function count(name, value) {
  if (value === undefined || /^[1-9]\d{0,8}$/.test(value)) return value === undefined ? undefined : Number(value);
  throw new UsageError(`--${name} ${value}: not a whole number above 0; give one`);
}

function explainMissing(error) {
  const name = /Cannot find package '([^']+)'/.exec(error.message)?.[1];
  throw name ? new UsageError(`edgedistill needs ${name}, which is not installed; npm install ${name}`) : error;
}

/** Exit 2 for what the user can fix, 1 for a failed check. Anything else is a bug, and keeps its stack. */
async function fail(error) {
  const code = error.name === "CheckFailed" ? 1 : 2;
  const usage = /^ERR_PARSE_ARGS/.test(error.code);
  const known = usage || error.syscall || ["UsageError", "UserError", "CheckFailed"].includes(error.name);
  if (!known) throw error;
  const message = usage ? `${error.message.split(". ")[0]}; see edgedistill --help` : error.message;
  process.stderr.write(`${message}\n`);
  if (process.argv.includes("--json")) await print(JSON.stringify({ error: message, ...error.details }));
  process.exitCode = code;
}

process.stdout.on("error", (error) => process.exit(error.code === "EPIPE" ? 141 : 2)); // the reader is gone, as with `| head`
try {
  await main(parseArgs({ options: OPTIONS, allowPositionals: true }));
} catch (error) {
  await fail(error);
}
