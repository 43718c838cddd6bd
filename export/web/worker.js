// A student, off the page's thread: opens its file, embeds texts, compares the golden texts, measures speed.
// Messages in: {id, op, ...}; out: {id, result}, {id, error} or {id, progress}. encoder.js is the other end.

import { Student, StudentError } from "./core/edgedistill.js";
import { time } from "./core/measure.js";

const MOST_BYTES = 1e9; // of a student's file

let student;

const operations = {
  async load({ from }, progress) {
    const place = from.url ?? from.file.name ?? "the file";
    const bytes = await read(from, place, progress);
    student = await Student.open(bytes).catch((error) => {
      throw error instanceof StudentError ? new StudentError(`${place}: ${error.message}`) : error;
    });
    const { about, dims, labels, maxTokens, isPair } = student;
    if (labels.length) throw new StudentError(`${about.name}: a classifier, which has no embeddings to search; call classify of core/edgedistill.js`);
    return { ...about, dims, maxTokens, isPair, size_bytes: bytes.length };
  },

  /** The embeddings of n texts, one after the other: {rows, width: of each}. `first`: the index of texts[0], for errors. */
  encode({ texts, first, options }) {
    const found = texts.map((text, at) => named(`texts[${first + at}]`, () => student.embed(text, options)));
    const width = found[0].length;
    const rows = new found[0].constructor(found.length * width);
    found.forEach((row, at) => rows.set(row, at * width));
    return { rows, width };
  },

  check: () => student.check(),
  time: () => time(student),
};

let queue = Promise.resolve(); // one operation at a time
self.onmessage = ({ data: { id, op, ...rest } }) => {
  queue = queue.then(async () => {
    try {
      const result = await operations[op](rest, (progress) => self.postMessage({ id, progress }));
      self.postMessage({ id, result }, result.rows ? [result.rows.buffer] : []);
    } catch (error) {
      self.postMessage({ id, error: { message: error.message, isOurs: error instanceof StudentError, stack: error.stack } });
    }
  });
};

/** The bytes of a file among those that a visitor chose, or at an address. */
async function read({ url, file }, place, progress) {
  const response = file ? new Response(file) : await fetch(url, { cache: "no-cache" }).catch(() => null);
  if (!response) throw new StudentError(`${place}: no answer; check the address, and that its server allows other pages to read it (CORS)`);
  if (!response.ok) throw new StudentError(`${place}: not there (HTTP ${response.status}); give the address of a student's file`);
  const size = file ? file.size : Number(response.headers.get("Content-Length"));
  const [parts, reader] = [[], response.body.getReader()];
  let bytes = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    bytes += part.value.length;
    if (bytes > MOST_BYTES) {
      await reader.cancel();
      throw new StudentError(`${place}: more than ${MOST_BYTES / 1e6} MB, so not a student's file; check the address`);
    }
    parts.push(part.value);
    progress({ bytes, size: Math.max(size, bytes) });
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** What a call gives; its error names the text by its place. */
function named(place, call) {
  try {
    return call();
  } catch (error) {
    throw error instanceof StudentError ? new StudentError(error.message.replace(/^text(?=:)/u, place)) : error;
  }
}
