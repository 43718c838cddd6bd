/**
 * A bundle's manifest, and which of its files are trusted: names stay inside its folder, bytes have the manifest's sha256.
 *
 * A source is where a bundle's files come from: {place, read(name, most, progress)}. `place` names it in errors; `read` gives the bytes of
 * a file, null where there is none, and throws `tooLarge` for one of more than `most` bytes.
 */

import { CheckFailed, UserError } from "./errors.js";

const SCHEMA = 1; // of the newest manifest that is read here
const MB = 1e6;
const LARGEST_BYTES = { "manifest.json": 4 * MB, "tokenizer.json": 64 * MB, "parity.json": 64 * MB };
const LARGEST_GRAPH = 2 ** 31 - 1;
const LONGEST_NAME = 200; // characters of a file's name
const LONGEST_PROMPT = 10_000;
export const ROLES = ["text", "query", "document"]; // what a text may be
export const PAIR = "pair"; // the kind of a bundle of two encoders, each in the folder of its role
export const MEAN = "mean"; // `documents` of a pair whose documents are embedded by both

const isText = (value) => typeof value === "string";
const isWhole = (value, least, most) => Number.isSafeInteger(value) && value >= least && value <= most;
const isPrompt = (value) => isText(value) && value.length <= LONGEST_PROMPT;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isSha256 = (value) => isText(value) && /^[0-9a-f]{64}$/.test(value);
const areSizes = (value) => Array.isArray(value) && value.length > 0 && value.every((each) => isWhole(each, 1, 65_536) && each <= value[0]);

/** The keys that a manifest must have, and what they hold. */
const KEYS = {
  name: isText,
  kind: isText,
  output: (value) => value === "sentence_embedding",
  prompt: isPrompt,
  query_prompt: (value) => value === undefined || isPrompt(value),
  document_prompt: (value) => value === undefined || isPrompt(value),
  dims: areSizes,
  max_tokens: (value) => isWhole(value, 1, 131_072),
  pad_id: (value) => value === undefined || isWhole(value, 0, 2 ** 31 - 1),
  precisions: (value) => isObject(value) && Object.keys(value).length > 0 && Object.values(value).every(isObject),
  files: (value) => isObject(value) && Object.values(value).every(isSha256),
  calibration: (value = {}) => isObject(value) && [value.int8_range ?? 8].concat(value.mean ?? []).every(Number.isFinite),
  documents: (value) => value === undefined || value === MEAN,
};

/** The manifest of an encoder's bundle, or of a pair's. Throws UserError for what is none, for a newer schema, and for names outside the folder. */
export async function readManifest(source) {
  const bytes = await source.read("manifest.json", LARGEST_BYTES["manifest.json"]);
  if (bytes === null) {
    const wayOut = "give the folder of one (of a shipped bundle, edgedistill verify NAME in Python prints it)";
    throw new UserError(`${source.place}: not a bundle (no manifest.json); ${wayOut}`);
  }
  const place = `${source.place}/manifest.json`;
  const manifest = parsed(bytes, place);
  const problem = manifestProblem(manifest);
  if (problem) throw new UserError(`${place}: ${problem}`);
  return manifest;
}

function manifestProblem(manifest) {
  if (!isWhole(manifest?.schema, 1, Infinity)) return "no schema number, so it is not a bundle's manifest; copy the bundle again";
  if (manifest.schema > SCHEMA) return `schema ${manifest.schema}, this runner reads up to ${SCHEMA}; get a newer edgedistill`;
  if (manifest.labels?.length > 0) return "a classifier, which has no embeddings; classify with edgedistill in Python";
  const needed = manifest.kind === PAIR ? ["name", "kind", "files", "documents"] : Object.keys(KEYS);
  const wrong = needed.filter((key) => !KEYS[key](manifest[key]));
  if (wrong.length > 0) return `${wrong.join(", ")} missing or of the wrong type, truncated or edited; copy the bundle again`;
  const entries = Object.entries(manifest.kind === PAIR ? {} : manifest.precisions);
  const outside = [...Object.keys(manifest.files), ...entries.map(([, entry]) => entry.file)].find((name) => !isInside(name));
  if (outside !== undefined) return `names ${JSON.stringify(outside)}, which is not a file inside the bundle; do not use this bundle`;
  const agrees = ({ file, sha256, size_bytes }) => sha256 === manifest.files[file] && isWhole(size_bytes, 1, LARGEST_GRAPH);
  const other = entries.find(([, entry]) => !agrees(entry));
  return other ? `precisions.${other[0]} does not agree with files; copy the bundle again` : null;
}

/** Whether a name is a relative path below the folder: no "..", nothing absolute, no backslash, drive, scheme, query or escape. */
export function isInside(name) {
  return isText(name) && name.length <= LONGEST_NAME && name.split("/").every((part) => /^(?!\.{1,2}$)[^\\:%?#\p{C}]+$/u.test(part));
}

/** The codes of the languages that a student learned from; none where its manifest does not name them. */
export function languagesOf({ recipe }) {
  const { pairs, column } = recipe?.corpus ?? {};
  const named = Array.isArray(pairs) ? pairs.flatMap((pair) => pair?.languages ?? pair?.columns) : [column];
  return [...new Set(named)].filter((code) => isText(code) && /^[a-z]{2,3}(-\w{2,8})?$/i.test(code));
}

/** What is put before a text by its role. Throws UserError for an unknown role. */
export function promptOf(manifest, role) {
  if (!ROLES.includes(role)) throw new UserError(`role: no role '${role}'; choose ${ROLES.join(", ")}`);
  return manifest[`${role}_prompt`] ?? manifest.prompt;
}

/** The precision asked for, by default the fastest; one without a rank comes last, in the manifest's order. */
export function choosePrecision({ place }, { precisions }, asked) {
  const available = Object.keys(precisions);
  const rank = (precision) => precisions[precision].rank?.int8_cpu ?? Number.MAX_VALUE; // WASM multiplies 8-bit integers too
  const chosen = asked ?? [...available].sort((a, b) => rank(a) - rank(b))[0];
  if (available.includes(chosen)) return chosen;
  throw new UserError(`${place}: no precision '${asked}'; choose ${available.join(" or ")}`);
}

/** The bytes of a file whose sha256 is the manifest's. Throws CheckFailed for others. */
export async function readTrusted(source, manifest, name, most = LARGEST_BYTES[name], progress = undefined) {
  const bytes = await source.read(name, most, progress);
  const place = `${source.place}/${name}`;
  if (bytes === null) throw new CheckFailed(`${place}: missing; copy the bundle again`);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const sha256 = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (sha256 === manifest.files[name]) return bytes;
  throw new CheckFailed(`${place}: changed since export (its sha256 differs from manifest.json); copy the bundle again`);
}

/** A folder of a bundle as the source of the bundle in it. */
export function within(source, folder) {
  const read = (name, most, progress) => source.read(`${folder}/${name}`, most, progress);
  return { place: `${source.place}/${folder}`, read };
}

/** The value of a trusted JSON file. */
export async function readTrustedJson(source, manifest, name) {
  return parsed(await readTrusted(source, manifest, name), `${source.place}/${name}`);
}

/** The error for a file of more bytes than it may have. */
export function tooLarge(place, most) {
  return new CheckFailed(`${place}: more than ${most.toLocaleString("en")} bytes; copy the bundle again`);
}

function parsed(bytes, place) {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch {
    throw new UserError(`${place}: not valid JSON, truncated or edited; copy the bundle again`);
  }
}
