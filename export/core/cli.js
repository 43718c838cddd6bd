#!/usr/bin/env node
/** The command: embed the lines of stdin, compare golden texts, time this machine. */

import { once } from "node:events";
import { readFileSync, statSync } from "node:fs";
import path from "node:path";
import { performance } from "node:perf_hooks";
import { parseArgs } from "node:util";

import { Student, StudentError } from "./edgedistill.js";
import { measure, time } from "./measure.js";

const HELP = `Usage: edgedistill STUDENT [OPTIONS] < texts.txt

  Embed texts with a student: one text per line in, one embedding (a JSON array) per line out; of a classifier its labels with
  their probabilities, the most probable first. STUDENT is a student.bin, which edgedistill export NAME --core DIR writes, or its folder.

Options:
  --as ROLE      What the texts are: text, query or document, each with the student's prompt for it. Default: text.
                 A pair of encoders has one for queries and one for documents; --time times that of queries.
  --dim N        Dimensions to return, of a Matryoshka student. Default: all.
  --embeddings P float32 (default), int8 (a byte per dimension) or binary (a bit).
  --check        Embed the golden texts, and compare with the embeddings stored at export.
  --time         Time a short query, and texts of 4 to 34 words, on this machine.
  --bench        Answer a request of \`edgedistill bench --runner node\` on stdin; it names the student.
  --json         Print the result of --check and --time, or an error, as one JSON object.
  --help, --version

  Exit codes: 0 success, 1 a check failed, 2 an error that you can fix, described on stderr.`;

const OPTIONS = {
  ...{ dim: { type: "string" }, embeddings: { type: "string" }, as: { type: "string", default: "text" } },
  ...{ check: { type: "boolean" }, time: { type: "boolean" }, json: { type: "boolean" }, bench: { type: "boolean" } },
  ...{ help: { type: "boolean" }, version: { type: "boolean" } },
};
const LONGEST = 1e6; // bytes of a line; the last of a file may be longer by what one read brings

class UsageError extends Error {
  name = "UsageError";
}

async function main({ values, positionals }) {
  if (values.help) return print(HELP);
  if (values.version) return print(JSON.parse(readFileSync(new URL("package.json", import.meta.url), "utf8")).version);
  if (values.bench) return print(JSON.stringify(await answer(JSON.parse(readFileSync(0, "utf8")))));
  if (positionals.length !== 1) throw new UsageError(`STUDENT: ${positionals.length} given; give one file (edgedistill --help)`);
  if (values.dim !== undefined && !/^[1-9]\d{0,8}$/.test(values.dim)) {
    throw new UsageError(`--dim ${values.dim}: not a whole number above 0; give one`);
  }
  const student = await open(positionals[0]);
  const options = { role: values.as, dims: values.dim && Number(values.dim), precision: values.embeddings };
  if (!values.check && !values.time) return embedLines(student, options);
  const found = { student: positionals[0], ...student.about };
  if (values.check) Object.assign(found, student.check());
  if (values.time) Object.assign(found, await time(student, options.dims));
  if (values.check && !(found.worst >= found.least)) process.exitCode = 1;
  if (values.json) return print(JSON.stringify(found));
  const verdict = process.exitCode ? "not all golden texts match; export it again" : `OK, ${found.golden} golden texts match`;
  if (values.check) await print(`${found.name}: ${verdict} (worst ${found.worst.toFixed(5)}, at least ${found.least.toFixed(4)})`);
  if (values.time) await print(`${found.name}: a query of ${found.query_tokens} tokens ${found.p50_ms.toFixed(3)} ms (p50), ${found.p90_ms.toFixed(3)} ms (p90); ${found.rate_texts_s.toFixed(0)} texts/s of ${found.tokens_mean.toFixed(0)} tokens`);
}

/** Open a file, or the one in a folder. */
async function open(place) {
  const status = statSync(place, { throwIfNoEntry: false });
  const file = status?.isDirectory() ? path.join(place, "student.bin") : place;
  if (!statSync(file, { throwIfNoEntry: false })?.isFile()) {
    throw new UsageError(`${place}: no student here; edgedistill export NAME --core DIR writes one`);
  }
  return Student.open(readFileSync(file)).catch((error) => {
    throw error instanceof StudentError ? new UsageError(`${file}: ${error.message}`) : error;
  });
}

/** Answer a request of edgedistill's bench, see bench/README.md. */
async function answer(request) {
  const start = performance.now();
  const student = await open(request.student);
  const load_ms = performance.now() - start;
  const role = student.labels.length ? "text" : "query"; // a classifier has no queries
  const found = await measure((texts) => texts.map((text) => student.embed(text, { role })), request);
  const peak_rss_bytes = 1024 * process.resourceUsage().maxRSS;
  return { ...found, load_ms, peak_rss_bytes, threads: 1, device: "cpu", version: `edgedistill.wasm, Node ${process.versions.node}` };
}

async function embedLines(student, options) {
  const isClassifier = student.labels.length > 0;
  const answerTo = isClassifier ? (text) => student.classify(text, options) : (text) => Array.from(student.embed(text, options), rounded);
  answerTo(""); // a wrong option is reported before anything is read
  if (process.stdin.isTTY) process.stderr.write("reading texts from the terminal, one per line; end with Ctrl-D\n");
  for await (const text of lines(process.stdin)) await print(JSON.stringify(answerTo(text)));
}

const rounded = (x) => Math.round(x * 1e7) / 1e7;

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

/** Exit 2 for what the user can fix. Anything else is a bug, and keeps its stack. */
async function fail(error) {
  const usage = /^ERR_PARSE_ARGS/.test(error.code);
  const known = usage || error.syscall || ["UsageError", "StudentError"].includes(error.name);
  if (!known) throw error;
  const message = usage ? `${error.message.split(". ")[0]}; see edgedistill --help` : error.message;
  process.stderr.write(`${message}\n`);
  if (process.argv.includes("--json")) await print(JSON.stringify({ error: message }));
  process.exitCode = 2;
}

process.stdout.on("error", (error) => process.exit(error.code === "EPIPE" ? 141 : 2)); // the reader is gone, as with `| head`
try {
  await main(parseArgs({ options: OPTIONS, allowPositionals: true }));
} catch (error) {
  await fail(error);
}
