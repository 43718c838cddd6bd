/**
 * Open an edgedistill bundle and embed texts, on onnxruntime-node and a tokenizer alone.
 *
 *     import { load } from "edgedistill";
 *     const bundle = await load("bundles/nano");
 *     const [first, second] = await bundle.encode(["A text.", "Another one."]); // Float32Array, of unit length
 *
 * Errors read *place: fact; way out*. A UserError can be fixed by the caller; a CheckFailed means that a file or an embedding
 * is not the one that was exported.
 */

import { createHash } from "node:crypto";
import { lstat, readFile, realpath } from "node:fs/promises";
import { availableParallelism } from "node:os";
import path from "node:path";

import * as tokenizers from "@huggingface/tokenizers";
import { InferenceSession, Tensor } from "onnxruntime-node";

import { graphProblem } from "./graph.js";
import { tokenizer } from "./tokens.js";

const SCHEMA = 1; // of the newest manifest that this file reads
const GET_AGAIN = "get the bundle again, or export it again from its run";
const MB = 1e6;
const LARGEST_BYTES = { "manifest.json": 4 * MB, "tokenizer.json": 64 * MB, "parity.json": 64 * MB }; // of a graph 2^31 - 1
const LONGEST_PROMPT = 10_000;
const UNIT_LENGTH = 0.01; // how far an embedding's length may be from 1
const BATCH_TOKENS = 512; // with padding; the activations of a layer then fit a core's cache

export class UserError extends Error {
  name = "UserError";
}

export class CheckFailed extends Error {
  name = "CheckFailed";
  details = {}; // the measured values
}

/**
 * Open a bundle after checking the sha256 of every file that it reads.
 *
 * precision: by default the fastest of the bundle's, by the manifest's rank. threads: of onnxruntime, by default all.
 * Throws UserError for a folder that is no encoder's bundle or not safe to open, CheckFailed for a missing or changed file.
 * @param {string} folder
 * @param {{precision?: string, threads?: number}} [options]
 */
export async function load(folder, { precision, threads = availableParallelism() } = {}) {
  const manifest = await readManifest(folder);
  const chosen = choosePrecision(folder, manifest, precision);
  const json = parseJson(folder, "tokenizer.json", await readVerified(folder, manifest, "tokenizer.json"));
  const { file } = manifest.precisions[chosen];
  const graph = await readVerified(folder, manifest, file); // onnxruntime gets the very bytes that were hashed
  const problem = graphProblem(graph);
  if (problem) throw new UserError(`${path.join(folder, file)}: ${problem}`);
  let tokenize;
  try {
    tokenize = tokenizer(tokenizers, json, manifest);
    tokenize("a"); // parts that do not fit together fail here
  } catch (error) {
    throw new UserError(`${path.join(folder, "tokenizer.json")}: cannot be read here (${error.message}); ${GET_AGAIN}`);
  }
  const options = {
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    logSeverityLevel: 3,
    extra: { session: { intra_op: { allow_spinning: "0" }, set_denormal_as_zero: "1" } }, // threads sleep between two calls
  };
  const session = await InferenceSession.create(graph, options).catch((error) => {
    throw new UserError(`${path.join(folder, file)}: onnxruntime-node cannot open it (${error.message}); try a newer onnxruntime-node`);
  });
  return new Bundle(folder, manifest, chosen, tokenize, session);
}

/** The cosine of two embeddings of unit length. */
export function similarity(a, b) {
  return a.reduce((sum, x, at) => sum + x * b[at], 0);
}

/** An encoder opened in one precision by `load`. */
export class Bundle {
  #tokenize;
  #session;

  constructor(folder, manifest, precision, tokenize, session) {
    this.folder = folder;
    this.manifest = manifest;
    this.precision = precision;
    this.dims = manifest.dims;
    this.maxTokens = manifest.max_tokens;
    this.#tokenize = tokenize;
    this.#session = session;
  }

  /**
   * Embed texts: one Float32Array of unit length for each, in their order. A single string gives a single embedding.
   *
   * dim: one of `dims`, by default the largest; an embedding is cut and normalized again. batchTokens: with padding.
   * Throws UserError for an item that is not a string, and for a `dim` that is none of `dims`.
   */
  async encode(texts, { dim = this.dims[0], batchTokens = BATCH_TOKENS } = {}) {
    if (typeof texts === "string") return (await this.encode([texts], { dim, batchTokens }))[0];
    if (!this.dims.includes(dim)) {
      throw new UserError(`dim=${dim}: ${this.manifest.name} was trained for ${this.dims.join(", ")} dimensions; choose one of these`);
    }
    if (typeof texts?.[Symbol.iterator] !== "function") {
      throw new UserError(`texts: ${texts === null ? "null" : typeof texts}, not strings; give a string, or an array of strings`);
    }
    const ids = Array.from(texts, (text, at) => this.tokenize(text, `texts[${at}]`));
    const embeddings = new Array(ids.length);
    for (const batch of longestFirst(ids, batchTokens)) {
      const rows = await this.#run(batch.map((at) => ids[at]));
      batch.forEach((at, row) => (embeddings[at] = cut(rows[row], dim)));
    }
    return embeddings;
  }

  /** The token ids of a text: with prompt and special tokens, truncated to `maxTokens`. `place` names the text in errors. */
  tokenize(text, place = "text") {
    if (typeof text !== "string") throw new UserError(`${place}: ${text === null ? "null" : typeof text}, not a string; give strings`);
    if (!text.isWellFormed()) throw new UserError(`${place}: contains half a surrogate pair, which is not text; decode it again`);
    try {
      return this.#tokenize(text);
    } catch (error) {
      throw new UserError(`${place}: ${path.join(this.folder, "tokenizer.json")} cannot tokenize it (${error.message}); ${GET_AGAIN}`);
    }
  }

  /**
   * Embed the golden texts, each alone and all in batches, and compare them with what the export stored: equal token ids, and
   * cosines of at least the precision's threshold. Returns {texts, cosine_min, threshold}; throws CheckFailed, naming the worst text.
   */
  async check() {
    const golden = parseJson(this.folder, "parity.json", await readVerified(this.folder, this.manifest, "parity.json"));
    const { texts, ids, vectors } = isObject(golden) ? golden : {};
    if (![texts, ids, vectors].every((each) => Array.isArray(each) && each.length > 0 && each.length === texts.length)) {
      throw new UserError(`${path.join(this.folder, "parity.json")}: not texts with their ids and vectors; ${GET_AGAIN}`);
    }
    const threshold = this.manifest.precisions[this.precision].parity?.threshold;
    const place = (at) => `${this.folder}: text ${at + 1} of ${texts.length} (${quote(texts[at])})`;
    const differ = texts.findIndex((text, at) => String(this.tokenize(text)) !== String(ids[at]));
    const problems = differ < 0 ? [] : [`${place(differ)}: token ids differ; run this bundle in Python`];
    const cosines = (await this.encode(texts)).map((row, at) => dot(row, vectors[at]));
    for (const [at, text] of texts.entries()) cosines[at] = Math.min(cosines[at], dot(await this.encode(text), vectors[at]));
    const least = Math.min(...cosines); // NaN where one is, and NaN must not pass
    if (!(least >= threshold)) {
      const fact = `has cosine ${least.toFixed(6)} on this machine, ${this.precision} must reach ${threshold}`;
      problems.push(`${place(cosines.findIndex((cosine) => Object.is(cosine, least)))} ${fact}; try another precision`);
    }
    const found = { texts: texts.length, cosine_min: least, threshold };
    if (problems.length > 0) throw Object.assign(new CheckFailed(problems.join("\n")), { details: found });
    return found;
  }

  /** Free the graph's memory; the bundle cannot embed afterwards. */
  async close() {
    await this.#session.release();
  }

  async #run(rows) {
    const width = Math.max(...rows.map((row) => row.length));
    const ids = new BigInt64Array(rows.length * width).fill(BigInt(this.manifest.pad_id ?? 0));
    const mask = new BigInt64Array(rows.length * width);
    rows.forEach((row, at) => {
      ids.set(row.map(BigInt), at * width);
      mask.fill(1n, at * width, at * width + row.length);
    });
    const [input_ids, attention_mask] = [ids, mask].map((data) => new Tensor("int64", data, [rows.length, width]));
    const { output } = this.manifest;
    const results = await this.#session.run({ input_ids, attention_mask }, [output]).catch((error) => {
      throw new UserError(`${this.folder}: its graph cannot run (${error.message}); ${GET_AGAIN}`);
    });
    const { data, dims, type } = results[output];
    if (type !== "float32" || String(dims) !== String([rows.length, this.dims[0]])) {
      throw new UserError(`${this.folder}: manifest.json does not describe its graph; copy the bundle again`);
    }
    const embeddings = rows.map((_, at) => data.slice(at * dims[1], (at + 1) * dims[1]));
    const wrong = embeddings.map((row) => Math.hypot(...row)).find((length) => !(Math.abs(length - 1) <= UNIT_LENGTH));
    if (wrong !== undefined) throw new CheckFailed(`${this.folder}: an embedding of length ${wrong}, not 1; ${GET_AGAIN}`);
    return embeddings;
  }
}

/** The keys that a manifest must have, and what they hold. */
const isText = (value) => typeof value === "string";
const isSize = (value, most = 65_536) => Number.isSafeInteger(value) && value > 0 && value <= most;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const areSizes = (value) => Array.isArray(value) && value.length > 0 && value.every((each) => isSize(each));
const KEYS = {
  ...{ name: isText, kind: isText, output: isText, prompt: (value) => isText(value) && value.length <= LONGEST_PROMPT },
  ...{ dims: areSizes, max_tokens: (value) => isSize(value, 131_072), precisions: isObject, files: isObject },
  pad_id: (value) => value === undefined || value === 0 || isSize(value, 2 ** 31 - 1),
};

async function readManifest(folder) {
  const bytes = await readInside(folder, "manifest.json");
  if (bytes === null) {
    const wayOut = "give the folder of one (of a shipped bundle, edgedistill verify NAME in Python prints it)";
    throw new UserError(`${folder}: not a bundle (no manifest.json); ${wayOut}`);
  }
  const manifest = parseJson(folder, "manifest.json", bytes);
  const refuse = (fact) => new UserError(`${path.join(folder, "manifest.json")}: ${fact}`);
  if (!isSize(manifest?.schema)) throw refuse("no schema number, so it is not a bundle's manifest; copy the bundle again");
  if (manifest.schema > SCHEMA) throw refuse(`schema ${manifest.schema}, this runner reads up to ${SCHEMA}; install a newer edgedistill`);
  const wrong = Object.keys(KEYS).filter((key) => !KEYS[key](manifest[key]));
  if (wrong.length > 0) throw refuse(`${wrong.join(", ")} missing or of the wrong type, truncated or edited; copy the bundle again`);
  for (const name of [...Object.keys(manifest.files), ...Object.values(manifest.precisions).map((entry) => entry?.file)]) {
    if (!staysInside(name)) throw refuse(`the file name ${JSON.stringify(name)} leaves the bundle; do not use this bundle`);
  }
  if (manifest.labels?.length > 0) throw refuse("a classifier, which has no embeddings; classify with edgedistill in Python");
  return manifest;
}

/** The precision asked for, by default the fastest; one without a rank comes last, in the manifest's order. */
function choosePrecision(folder, { precisions }, asked) {
  const available = Object.keys(precisions);
  const rank = (precision) => precisions[precision].rank?.int8_cpu ?? Number.MAX_VALUE;
  const chosen = asked ?? [...available].sort((a, b) => rank(a) - rank(b))[0];
  if (available.includes(chosen)) return chosen;
  throw new UserError(`${folder}: no precision '${asked}'; choose ${available.join(" or ")}`);
}

/** Whether a name is a plain relative path: not absolute, without "..", drive letters and backslashes. */
function staysInside(name) {
  return isText(name) && !/[\\:\0]/.test(name) && name.split("/").every((part) => !["", ".", ".."].includes(part));
}

/** The bytes of a file of the bundle, null where there is none. Throws UserError where the path goes through a symbolic link. */
async function readInside(folder, name) {
  const place = path.join(folder, name);
  const [root, real] = await Promise.all([folder, place].map((each) => realpath(each).catch(() => null)));
  const found = real === null ? null : await lstat(real);
  if (!found?.isFile()) return null;
  if (real !== path.join(root, name)) throw new UserError(`${place}: a link, which may leave the bundle; copy it without links (cp -RL)`);
  const most = LARGEST_BYTES[name] ?? 2 ** 31 - 1;
  if (found.size > most) throw new UserError(`${place}: ${found.size} bytes, at most ${most} are read; copy the bundle again`);
  return readFile(real);
}

async function readVerified(folder, { files }, name) {
  const bytes = await readInside(folder, name);
  const place = path.join(folder, name);
  if (bytes === null) throw new CheckFailed(`${place}: missing; copy the bundle again`);
  if (createHash("sha256").update(bytes).digest("hex") !== files[name]) {
    throw new CheckFailed(`${place}: changed since export (its sha256 differs from manifest.json); copy the bundle again`);
  }
  return bytes;
}

function parseJson(folder, name, bytes) {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch {
    throw new UserError(`${path.join(folder, name)}: not valid JSON, truncated or edited; copy the bundle again`);
  }
}

/** The indices of each batch: longest rows first, at most `batchTokens` tokens with padding, at least one row. */
function* longestFirst(rows, batchTokens) {
  const order = [...rows.keys()].sort((a, b) => rows[b].length - rows[a].length);
  for (let start = 0; start < order.length;) {
    const count = Math.floor(batchTokens / rows[order[start]].length) || 1;
    yield order.slice(start, start + count);
    start += count;
  }
}

/** The first `dim` components, of unit length again. */
function cut(row, dim) {
  if (dim === row.length) return row;
  const norm = Math.max(Math.hypot(...row.subarray(0, dim)), 1e-12);
  return row.subarray(0, dim).map((x) => x / norm);
}

const dot = (a, b) => a.reduce((sum, x, at) => sum + x * b?.[at], 0);

/** A text in double quotes, shortened to fit a line, with invisible characters escaped. */
function quote(text) {
  const shown = JSON.stringify(text.length > 40 ? `${text.slice(0, 40)}…` : text);
  return shown.replace(/\p{C}/gu, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}
