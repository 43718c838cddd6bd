// student.mjs STUDENT < texts.json > {ids, rows, int8, bits, check, dims, errors}.json
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { Student } from "../../../export/core/edgedistill.js";

const student = await Student.open(pathToFileURL(process.argv[2]));
const texts = JSON.parse(readFileSync(0, "utf8"));
const all = (call) => texts.map((text) => Array.from(call(text)));
const failure = (call) => {
  try {
    return String(call());
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
};
const damaged = readFileSync(process.argv[2]);
damaged[9000] ^= 1;
const errors = [
  failure(() => student.embed("a\ud800")),
  failure(() => student.embed("a", { role: "title" })),
  failure(() => student.embed("a", { dims: 7 })),
  failure(() => student.embed("a", { precision: "int4" })),
  await Student.open(damaged).catch((error) => `${error.name}: ${error.message}`),
];
const found = {
  ids: all((text) => student.tokenize(text)),
  rows: all((text) => student.embed(text)),
  int8: all((text) => student.embed(text, { precision: "int8" })),
  bits: all((text) => student.embed(text, { precision: "binary" })),
  long: student.embed("long text ".repeat(1e5)).length,
  check: student.check(),
  dims: student.dims,
  errors,
};
console.log(JSON.stringify(found));
