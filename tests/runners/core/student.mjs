// student.mjs STUDENT < texts.json > {ids, rows, int8, bits, tight, check, dims, errors}.json
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { Student } from "../../../export/core/edgedistill.js";

const student = await Student.open(pathToFileURL(process.argv[2]));
const texts = JSON.parse(readFileSync(0, "utf8"));
const all = (call, some = texts) => some.map((text) => Array.from(call(text)));
const failure = (call) => {
  try {
    return String(call());
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
};
const damaged = readFileSync(process.argv[2]);
damaged[9000] ^= 1;

/** edgedistill.wasm, whose memory may grow to so many pages. */
function bounded(pages) {
  const wasm = readFileSync(new URL("../../../export/core/edgedistill.wasm", import.meta.url));
  const at = wasm.indexOf(Buffer.from([5, 3, 1, 0])); // the section of memories: one, without a maximum
  const section = [5, 5, 1, 1, wasm[at + 4], (pages & 127) | 128, pages >> 7];
  return Buffer.concat([wasm.subarray(0, at), Buffer.from(section), wasm.subarray(at + 5)]);
}

const file = readFileSync(process.argv[2]);
const tight = await Student.open(file, bounded((file.length >> 16) * 3 + 60));
const errors = [
  failure(() => student.embed("a\ud800")),
  failure(() => student.embed("a", { role: "title" })),
  failure(() => student.embed("a", { dims: 7 })),
  failure(() => student.embed("a", { precision: "int4" })),
  await Student.open(damaged).catch((error) => `${error.name}: ${error.message}`),
  await Student.open("missing.bin").catch((error) => `${error.name}: ${error.message}`),
  failure(() => tight.embed("long text ".repeat(4e6))),
];
const found = {
  ids: all((text) => student.tokenize(text)),
  rows: all((text) => student.embed(text)),
  int8: all((text) => student.embed(text, { precision: "int8" }), texts.slice(0, 20)),
  bits: all((text) => student.embed(text, { precision: "binary" }), texts.slice(0, 20)),
  long: student.embed("long text ".repeat(4e5)).length,
  tight: Array.from(tight.embed(texts[0])), // after that
  check: student.check(),
  dims: student.dims,
  errors,
};
console.log(JSON.stringify(found));
