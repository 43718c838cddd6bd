// Where a bundle's files come from, and which are trusted: names stay inside its folder, bytes have the manifest's sha256.

export const SCHEMA = 1;
const REQUIRED = ["name", "kind", "dims", "max_tokens", "prompt", "precisions", "files", "output"];
const MB = 1e6;
const MOST_BYTES = { "manifest.json": 4 * MB, "tokenizer.json": 64 * MB, "parity.json": 64 * MB, graph: 2000 * MB };

/** An error to show as it is, *place: fact; way out*. kind: "user" (a way out is named) or "check" (the bundle is not what it claims). */
export class BundleError extends Error {
  constructor(message, kind = "user") {
    super(message);
    this.kind = kind;
  }
}

/** A bundle's files, below a URL or among Files by their path; `read` and `trusted` give bytes. */
export class Files {
  /** from: {url} or {files: Map of path -> File, folder: its name}. */
  constructor({ url, files, folder }) {
    this.url = url && new URL(url.endsWith("/") ? url : `${url}/`);
    this.files = files;
    this.place = url ? this.url.href.replace(/\/$/, "") : folder;
  }

  /** The bytes of a file of at most `most` bytes. progress(bytes so far). Raises BundleError where it is missing or larger. */
  async read(name, most, progress = () => {}) {
    const parts = [];
    let size = 0;
    const reader = (await this.#open(name)).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      size += part.value.length;
      if (size > most) {
        await reader.cancel();
        throw new BundleError(`${this.place}/${name}: more than ${most.toLocaleString("en")} bytes; copy the bundle again`, "check");
      }
      parts.push(part.value);
      progress(size);
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
  }

  /** The bytes of a file whose sha256 is the manifest's. Raises BundleError for others. */
  async trusted(name, manifest, most = MOST_BYTES[name], progress) {
    const bytes = await this.read(name, most, progress);
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    const sha256 = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
    if (sha256 !== manifest.files[name]) {
      const fact = "changed since export (its sha256 differs from manifest.json)";
      throw new BundleError(`${this.place}/${name}: ${fact}; copy the bundle again`, "check");
    }
    return bytes;
  }

  /** The parsed JSON of a trusted file. */
  async json(name, manifest) {
    return parse(await this.trusted(name, manifest), `${this.place}/${name}`);
  }

  async #open(name) {
    if (this.files) {
      const file = this.files.get(name);
      if (!file) throw new BundleError(`${this.place}/${name}: missing; choose the bundle's whole folder`, "check");
      return file.stream();
    }
    const url = new URL(name, this.url);
    const response = await fetch(url, { cache: "no-cache" }).catch(() => null);
    if (!response) throw new BundleError(`${url}: no answer; check the address, and that its server allows other pages to read it (CORS)`);
    if (!response.ok) throw new BundleError(`${url}: not there (HTTP ${response.status}); give the address of a bundle's folder`);
    return response.body;
  }
}

/** The manifest of a bundle of an encoder. Raises BundleError for what is not one, for a newer schema, and for names outside the folder. */
export async function readManifest(files) {
  const place = `${files.place}/manifest.json`;
  const manifest = parse(await files.read("manifest.json", MOST_BYTES["manifest.json"]), place);
  const damaged = (fact) => new BundleError(`${place}: ${fact}; copy the bundle again`, "check");
  if (!Number.isInteger(manifest?.schema)) throw damaged("no schema number, so it is not a bundle's manifest");
  if (manifest.schema > SCHEMA) {
    throw new BundleError(`${place}: schema ${manifest.schema}, this page reads up to ${SCHEMA}; use a newer export/web`);
  }
  const missing = REQUIRED.filter((key) => !(key in manifest));
  if (missing.length) throw damaged(`${missing.join(", ")} missing, truncated or edited`);
  if (manifest.labels?.length || manifest.output !== "sentence_embedding") {
    throw new BundleError(`${manifest.name}: a classifier, which has no embeddings; choose the bundle of an encoder`);
  }
  const problem = wrongValue(manifest);
  if (problem) throw damaged(problem);
  const names = [...Object.keys(manifest.files), ...Object.values(manifest.precisions).map((entry) => entry.file)];
  const outside = names.find((name) => !isInside(name));
  if (outside !== undefined) {
    const fact = `names ${JSON.stringify(outside)}, which is not a file inside the bundle`;
    throw new BundleError(`${place}: ${fact}; do not use this bundle`, "check");
  }
  return manifest;
}

/** The precision asked for, by default the fastest; one without a rank comes last, in the manifest's order.
 *  Raises BundleError where the bundle lacks it. */
export function choosePrecision(manifest, asked) {
  const available = Object.keys(manifest.precisions);
  const rank = (precision) => manifest.precisions[precision].rank?.int8_cpu ?? Number.MAX_VALUE; // WASM multiplies 8-bit integers
  if (!asked) return [...available].sort((a, b) => rank(a) - rank(b))[0];
  if (available.includes(asked)) return asked;
  throw new BundleError(`${manifest.name}: no precision '${asked}'; choose ${available.join(" or ")}`);
}

/** Whether a name is a relative path below the folder: no "..", nothing absolute, no backslash, scheme, query or escape. */
export function isInside(name) {
  return typeof name === "string" && name.length < 256 && name.split("/").every((part) => /^(?!\.{1,2}$)[^\\:%?#\p{C}]+$/u.test(part));
}

function wrongValue({ name, dims, max_tokens, prompt, pad_id = 0, precisions, files }) {
  const whole = (value, least, most) => Number.isInteger(value) && value >= least && value <= most;
  const hash = (value) => /^[0-9a-f]{64}$/.test(value);
  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  if (typeof name !== "string" || typeof prompt !== "string") return "name or prompt is not a string";
  if (!Array.isArray(dims) || !dims.length || !dims.every((dim) => whole(dim, 1, 65536) && dim <= dims[0])) return "dims are no dimensions";
  if (!whole(max_tokens, 1, 65536) || !whole(pad_id, 0, 2 ** 31)) return "max_tokens or pad_id is out of range";
  if (!isObject(files) || !Object.values(files).every(hash)) return "files has no sha256 for every file";
  const entries = isObject(precisions) ? Object.entries(precisions) : [];
  if (!entries.length) return "no precisions";
  const agrees = (entry) => isObject(entry) && entry.sha256 === files[entry.file] && whole(entry.size_bytes, 1, MOST_BYTES.graph);
  const wrong = entries.find(([, entry]) => !agrees(entry));
  return wrong && `precisions.${wrong[0]} does not agree with files`;
}

function parse(bytes, place) {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch {
    throw new BundleError(`${place}: not valid JSON, truncated or edited; copy the bundle again`, "check");
  }
}
