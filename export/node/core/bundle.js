/** A bundle of an encoder, opened: its texts' token ids, their embeddings, and its golden texts. The same in Node and in a browser. */

import { checkBounds } from "./bounds.js";
import { compact, dot, rowWidth } from "./compact.js";
import { CheckFailed, GET_AGAIN, UserError } from "./errors.js";
import { graphProblem } from "./graph.js";
import { MEAN, PAIR, ROLES, choosePrecision, promptOf, readManifest, readTrusted, readTrustedJson, within } from "./manifest.js";
import { tokenizer } from "./tokens.js";

const UNIT_LENGTH = 0.01; // how far an embedding's length may be from 1
const BATCH_TOKENS = 512; // with padding; the activations of a layer then fit a core's cache
const LEAST_COSINE = 0.5; // of a threshold: below it, golden texts would accept anything

/**
 * Open a bundle up to the graphs of its `encoders`, which `graph` reads and `use` takes.
 *
 * source: see manifest.js. library: the module @huggingface/tokenizers. precision: by default the fastest of the bundle's;
 * of a pair that of the encoder of queries, and of the one of documents where it has it.
 */
export async function open(source, library, precision) {
  const manifest = await readManifest(source);
  if (manifest.kind === PAIR) return openPair(source, manifest, library, precision);
  const chosen = choosePrecision(source, manifest, precision);
  const json = await readTrustedJson(source, manifest, "tokenizer.json");
  try {
    checkBounds(json);
    const tokenize = tokenizer(library, json, manifest);
    tokenize("a"); // parts that do not fit together fail here
    return new Bundle(source, manifest, chosen, tokenize);
  } catch (error) {
    throw new UserError(`${source.place}/tokenizer.json: cannot be read here (${error.message}); ${GET_AGAIN}`);
  }
}

async function openPair(source, manifest, library, precision) {
  const sides = [];
  for (const role of [ROLES[1], ROLES[2]]) {
    const { precisions = {}, kind } = await readTrustedJson(source, manifest, `${role}/manifest.json`);
    if (kind === PAIR) throw new UserError(`${source.place}/${role}: a pair itself, not an encoder; ${GET_AGAIN}`);
    const has = role === "query" || precision in precisions;
    sides.push(await open(within(source, role), library, has ? precision : undefined));
  }
  return new Pair(source, manifest, ...sides);
}

export class Bundle {
  #source;
  #tokenize;
  #session; // of onnxruntime
  #Tensor;
  #golden;

  constructor(source, manifest, precision, tokenize) {
    this.#source = source;
    this.#tokenize = tokenize;
    this.folder = source.place;
    this.manifest = manifest;
    this.precision = precision;
    this.dims = manifest.dims;
    this.maxTokens = manifest.max_tokens;
  }

  /** The bundle itself; of a pair its two encoders. */
  get encoders() {
    return [this];
  }

  /** What embeds texts in a role: the bundle itself; of a pair one of its encoders. */
  of(role) {
    promptOf(this.manifest, role); // throws UserError for an unknown role
    return this;
  }

  /** The bytes of the graph: onnxruntime is to get the very ones that were hashed and checked here. progress(bytes so far). */
  async graph(progress) {
    const { file, size_bytes: size } = this.manifest.precisions[this.precision];
    const bytes = await readTrusted(this.#source, this.manifest, file, size, progress);
    const problem = graphProblem(bytes);
    if (problem) throw new UserError(`${this.folder}/${file}: ${problem}; ${GET_AGAIN}`);
    return bytes;
  }

  /** Embed with a session of the graph. Tensor: the class of onnxruntime. */
  use(session, Tensor) {
    this.#session = session;
    this.#Tensor = Tensor;
  }

  /** The dimensions asked for, by default the largest. Throws UserError for others than the manifest's. */
  chosenDim(dim = this.dims[0]) {
    const { name } = this.manifest;
    if (this.dims.includes(dim)) return dim;
    if (this.dims.length === 1) throw new UserError(`dim=${dim}: ${name} has ${this.dims[0]} dimensions and cannot be cut; leave it out`);
    throw new UserError(`dim=${dim}: ${name} was trained for ${this.dims.join(", ")} dimensions; choose one of these`);
  }

  /**
   * Embed texts: one Float32Array of unit length for each, in their order. A single string gives a single embedding.
   *
   * dim: one of `dims`, by default the largest; an embedding is cut and normalized again. batchTokens: with padding.
   * role: what the texts are, "text", "query" or "document": which prompt is put before them.
   * precision: of the embeddings, "float32", "int8" (an Int8Array) or "binary" (a Uint8Array of d/8); not that of the graph.
   * Throws UserError for an item that is not a string, an unknown role or precision, and for a `dim` that is none of `dims`.
   */
  async encode(texts, { dim, batchTokens, role = "text", precision = "float32" } = {}) {
    if (typeof texts === "string") return (await this.encode([texts], { dim, batchTokens, role, precision }))[0];
    if (typeof texts?.[Symbol.iterator] !== "function") {
      throw new UserError(`texts: ${texts === null ? "null" : typeof texts}, not strings; give a string, or an array of strings`);
    }
    const width = this.chosenDim(dim);
    const stored = rowWidth(precision, width);
    promptOf(this.manifest, role); // a wrong role is reported for no texts too
    const ids = Array.from(texts, (text, at) => this.tokenize(text, `texts[${at}]`, role));
    const rows = compact(await this.embed(ids, width, batchTokens), precision, width, this.manifest.calibration);
    return ids.map((_, at) => rows.slice(at * stored, (at + 1) * stored));
  }

  /** Embed queries: `encode` with the bundle's prompt for them; the same as `encode` where it has none. */
  encodeQuery(texts, options) {
    return this.encode(texts, { ...options, role: "query" });
  }

  /** Embed documents: `encode` with the bundle's prompt for them; the same as `encode` where it has none. */
  encodeDocument(texts, options) {
    return this.encode(texts, { ...options, role: "document" });
  }

  /** The token ids of a text: with its role's prompt and special tokens, truncated to `maxTokens`. `place` names it in errors. */
  tokenize(text, place = "text", role = "text") {
    const prompt = promptOf(this.manifest, role);
    if (typeof text !== "string") throw new UserError(`${place}: ${text === null ? "null" : typeof text}, not a string; give strings`);
    if (text.isWellFormed?.() === false) {
      throw new UserError(`${place}: contains half a surrogate pair, which is not text; decode it again`);
    }
    try {
      return this.#tokenize(prompt + text);
    } catch (error) {
      throw new UserError(`${place}: ${this.folder}/tokenizer.json cannot tokenize it (${error.message}); ${GET_AGAIN}`);
    }
  }

  /** (n · dim) float32 rows of unit length of texts given as token ids, in their order. Throws CheckFailed for any other row. */
  async embed(ids, dim, batchTokens) {
    const rows = new Float32Array(ids.length * dim);
    for await (const [at, row] of this.#rows(ids, batchTokens)) {
      const length = Math.sqrt(dot(row, row));
      if (!(Math.abs(length - 1) <= UNIT_LENGTH)) {
        throw new CheckFailed(`${this.folder}: an embedding of length ${length}, not 1; ${GET_AGAIN}`);
      }
      rows.set(cut(row, dim), at * dim);
    }
    return rows;
  }

  /** Compare the golden texts with what the export stored: {texts, cosine_min, threshold}. Throws CheckFailed, which names the worst. */
  async check() {
    const golden = await this.golden();
    const idProblem = this.#idProblem(golden);
    const { texts, problem, cosine_min, batched_min, cosine_at_least: threshold } = await this.compare();
    const problems = [idProblem, problem && `${this.folder}: ${problem}; try another precision`].filter(Boolean);
    const found = { texts, cosine_min: Math.min(cosine_min, batched_min), threshold };
    if (problems.length > 0) throw Object.assign(new CheckFailed(problems.join("\n")), { details: found });
    return found;
  }

  /** Throws CheckFailed where a golden text's token ids are not the stored ones. */
  async checkIds() {
    const problem = this.#idProblem(await this.golden());
    if (problem) throw new CheckFailed(problem);
  }

  /** Cosines of the golden texts to the stored embeddings, each alone and, if asked, all in batches: {ok, problem, texts, cosine_min, …}. */
  async compare(inBatches = true) {
    const golden = await this.golden();
    const cosines = async (batchTokens) => {
      const found = [];
      for await (const [at, row] of this.#rows(golden.ids, batchTokens)) found[at] = dot(row, golden.vectors[at]);
      return found;
    };
    const alone = await cosines(1);
    const batched = inBatches ? await cosines() : alone;
    const lower = alone.map((cosine, at) => Math.min(cosine, batched[at])); // NaN where one is, and NaN must not pass
    const worst = lower.reduce((least, cosine, at) => (lower[least] <= cosine || Number.isNaN(lower[least]) ? least : at), 0);
    const ok = lower[worst] >= golden.least;
    const fact = `has cosine ${lower[worst].toFixed(6)} here, ${this.precision} must reach ${golden.least}`;
    return {
      ok,
      problem: ok ? "" : `${named(golden.texts, worst)} ${fact}`,
      texts: golden.texts.length,
      cosine_min: Math.min(...alone),
      batched_min: inBatches ? Math.min(...batched) : undefined,
      cosine_at_least: golden.least,
    };
  }

  /** {texts, ids, vectors, roles, least}: what the bundle stored at export, and the cosine that its precision must reach. */
  async golden() {
    this.#golden ??= await this.#readGolden();
    return this.#golden;
  }

  /** Free the graph's memory; the bundle cannot embed afterwards. */
  async close() {
    await this.#session?.release();
  }

  async #readGolden() {
    const found = await readTrustedJson(this.#source, this.manifest, "parity.json");
    const { texts, ids, vectors } = found ?? {};
    const roles = found?.roles ?? texts?.map?.(() => "text");
    const least = this.manifest.precisions[this.precision].parity?.threshold;
    const areLists = [texts, ids, vectors, roles].every((list) => Array.isArray(list) && list.length === texts.length && list.length > 0);
    const areIds = (row) => Array.isArray(row) && row.length > 0 && row.length <= this.maxTokens && row.every(Number.isInteger);
    const areNumbers = (row) => Array.isArray(row) && row.length === this.dims[0] && row.every(Number.isFinite);
    const isUnit = (row) => areNumbers(row) && Math.abs(dot(row, row) - 1) <= UNIT_LENGTH;
    const whole = areLists && texts.every((text) => typeof text === "string") && ids.every(areIds) && vectors.every(isUnit);
    const areRoles = whole && roles.every((role) => ROLES.includes(role));
    if (areRoles && least >= LEAST_COSINE && least <= 1) return { texts, ids, vectors, roles, least };
    const fact = "not golden texts with their token ids, embeddings of unit length, and a least cosine in the manifest";
    throw new UserError(`${this.folder}/parity.json: ${fact}; ${GET_AGAIN}`);
  }

  #idProblem({ texts, ids, roles }) {
    const at = texts.findIndex((text, index) => String(this.tokenize(text, "text", roles[index])) !== String(ids[index]));
    if (at < 0) return "";
    const fact = "token ids differ, as tokenizer.json is read here in another way";
    return `${this.folder}: ${named(texts, at)}: ${fact}; run this bundle in Python`;
  }

  /** [index, embedding] of each row of token ids, as the graph gives it, by batches of rows of similar length. */
  async *#rows(ids, batchTokens) {
    for (const batch of longestFirst(ids, batchTokens)) {
      const rows = batch.map((at) => ids[at]);
      const data = await this.#run(rows);
      const width = this.dims[0];
      for (const [row, at] of batch.entries()) yield [at, data.subarray(row * width, (row + 1) * width)];
    }
  }

  /** The graph's embeddings of one batch, padded on the right: (n · d) float32. */
  async #run(rows) {
    const width = Math.max(...rows.map((row) => row.length));
    const ids = new BigInt64Array(rows.length * width).fill(BigInt(this.manifest.pad_id ?? 0));
    const mask = new BigInt64Array(ids.length);
    rows.forEach((row, at) => {
      ids.set(row.map(BigInt), at * width);
      mask.fill(1n, at * width, at * width + row.length);
    });
    const [input_ids, attention_mask] = [ids, mask].map((data) => new this.#Tensor("int64", data, [rows.length, width]));
    const { output } = this.manifest;
    const results = await this.#session.run({ input_ids, attention_mask }, [output]).catch((cause) => {
      throw new UserError(`${this.folder}: its graph cannot run (${cause.message}); ${GET_AGAIN}`, { cause });
    });
    const { data, dims, type } = results[output];
    if (type !== "float32" || String(dims) !== String([rows.length, this.dims[0]])) {
      throw new UserError(`${this.folder}: manifest.json does not describe its graph; copy the bundle again`);
    }
    return data;
  }
}

/** Two encoders of one space: queries are embedded by one, documents by the other, and texts without a role not at all. */
export class Pair extends Bundle {
  #query;
  #document;

  constructor(source, manifest, query, document) {
    super(source, { ...manifest, dims: query.dims.filter((dim) => document.dims.includes(dim)), max_tokens: query.maxTokens }, query.precision);
    this.#query = query;
    this.#document = document;
    if (query.dims[0] === document.dims[0]) return;
    const fact = `${query.dims[0]} dimensions for queries, ${document.dims[0]} for documents`;
    throw new UserError(`${source.place}: ${fact}, so they are not of one space; ${GET_AGAIN}`);
  }

  get encoders() {
    return [this.#query, this.#document];
  }

  of(role) {
    super.of(role);
    if (role !== "text") return role === "query" ? this.#query : this.#document;
    const wayOut = `call encodeQuery or encodeDocument, or open one of ${this.folder}/query and /document`;
    throw new UserError(`${this.manifest.name}: a pair of encoders, for queries and documents; ${wayOut}`);
  }

  async encode(texts, { dim, role = "text", ...options } = {}) {
    const encoder = this.of(role);
    const asked = { ...options, role, dim: this.chosenDim(dim) };
    if (role !== "document" || this.manifest.documents !== MEAN) return encoder.encode(texts, asked);
    if (typeof texts === "string") return (await this.encode([texts], { ...options, role, dim }))[0];
    rowWidth(options.precision ?? "float32", asked.dim); // a wrong one is reported before texts are embedded
    const given = typeof texts?.[Symbol.iterator] === "function" ? [...texts] : texts;
    const rows = await encoder.encode(given, { ...asked, precision: "float32" });
    const others = await this.#query.encode(given, { ...asked, precision: "float32" });
    const means = rows.map((row, at) => unit(row.map((x, i) => x + others[at][i])));
    return means.map((row) => compact(row, options.precision ?? "float32", asked.dim, encoder.manifest.calibration));
  }

  tokenize(text, place = "text", role = "text") {
    return this.of(role).tokenize(text, place, role);
  }

  async check() {
    const [query, document] = [await this.#query.check(), await this.#document.check()];
    const worst = query.cosine_min - query.threshold < document.cosine_min - document.threshold ? query : document;
    return { ...worst, texts: query.texts + document.texts };
  }

  async checkIds() {
    for (const encoder of this.encoders) await encoder.checkIds();
  }

  async compare(inBatches = true) {
    const [query, document] = [await this.#query.compare(inBatches), await this.#document.compare(inBatches)];
    const worse = query.cosine_min - query.cosine_at_least < document.cosine_min - document.cosine_at_least ? query : document;
    const failed = [query, document].find((each) => !each.ok) ?? worse;
    return { ...failed, texts: query.texts + document.texts };
  }

  async close() {
    for (const encoder of this.encoders) await encoder.close();
  }
}

/** The indices of each batch: longest rows first, at most `batchTokens` tokens with padding, at least one row. */
function* longestFirst(rows, batchTokens = BATCH_TOKENS) {
  const order = [...rows.keys()].sort((a, b) => rows[b].length - rows[a].length);
  for (let start = 0; start < order.length;) {
    const count = Math.max(1, Math.floor(batchTokens / Math.max(1, rows[order[start]].length)));
    yield order.slice(start, start + count);
    start += count;
  }
}

/** The first `dim` components, of unit length again. */
function cut(row, dim) {
  return dim === row.length ? row : unit(row.subarray(0, dim));
}

function unit(row) {
  const norm = Math.max(Math.sqrt(dot(row, row)), 1e-12);
  return row.map((value) => value / norm);
}

/** "text 17 of 32 (…)": shortened to fit a line, with invisible characters escaped. */
function named(texts, at) {
  const shown = (letter) => (/[\p{C}\p{Zl}\p{Zp}]/u.test(letter) ? `\\u{${letter.codePointAt(0).toString(16)}}` : letter);
  const letters = [...texts[at]];
  return `text ${at + 1} of ${texts.length} ("${letters.slice(0, 40).map(shown).join("")}${letters.length > 40 ? "…" : ""}")`;
}
