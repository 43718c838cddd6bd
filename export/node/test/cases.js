/**
 * The cases of both runners, run by core.test.js in Node and by export/web/test in a browser: what is refused, in which words, and what an
 * opened bundle gives. Nothing here knows which of the two opens a bundle.
 */

import assert from "node:assert/strict";
import { appendFileSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";

import { DIMS, dot, edit, GOLDEN, GRAPH, MANIFEST, PRECISION, rehash } from "./bundles.js";

const COPY_AGAIN = "copy the bundle again";
const GET_AGAIN = "get the bundle again, or export it again from its run";
const CHANGED = `changed since export (its sha256 differs from manifest.json); ${COPY_AGAIN}`;
const { threshold } = MANIFEST.precisions[PRECISION].parity;

// ---- refusals

const manifestHas = (changes, fact) => ({
  change: edit("manifest.json", (value) => Object.assign(value, changes)),
  error: `UserError: X/manifest.json: ${fact}`,
});
const wrong = (keys) => `${keys} missing or of the wrong type, truncated or edited; ${COPY_AGAIN}`;

/** A file is replaced by bytes, or by bytes made of its own, and its hash updated. */
const holds = (name, bytes, error) => ({
  change: (folder) => {
    const place = path.join(folder, name);
    writeFileSync(place, typeof bytes === "function" ? bytes(readFileSync(place)) : bytes);
    if (name !== "manifest.json") rehash(folder);
  },
  error,
});
const graphHolds = (bytes, fact) => holds(GRAPH, bytes, new RegExp(`^UserError: X/${GRAPH}: ${fact}.*; ${GET_AGAIN}$`));
const appended = (...bytes) => (before) => Buffer.concat([before, Buffer.from(bytes)]);
const goldenHas = (changes, error) => ({
  change: (folder) => {
    edit("parity.json", changes)(folder);
    rehash(folder);
  },
  error,
});
const text = (at) => `text ${at + 1} of \\d+ \\("${GOLDEN.texts[at].slice(0, 8)}.*"\\)`;
const noGolden = `UserError: X/parity.json: not golden texts with their token ids, embeddings of unit length, and a least cosine in the manifest; ${GET_AGAIN}`;

const OUTSIDE = ["../secret.onnx", "/etc/passwd", "onnx/../../x", "..", "", ".", "C:\\x", "onnx\\..\\..\\x", "onnx//x", "onnx/", "a\0b"];
OUTSIDE.push("https://example.org/x", "onnx/%2e%2e/x", "x?y", "x#y", "x".repeat(201));

/** {name: {change(folder), error}}: what is done to a bundle, and the error of opening and checking it, X for its place. */
export const REFUSED = {
  "a newer schema": manifestHas({ schema: 2 }, "schema 2, this runner reads up to 1; get a newer edgedistill"),
  "no schema": manifestHas({ schema: "1" }, `no schema number, so it is not a bundle's manifest; ${COPY_AGAIN}`),
  "a padding id that is none": manifestHas({ pad_id: 0.5 }, wrong("pad_id")),
  "missing keys": manifestHas({ dims: undefined, prompt: undefined }, wrong("prompt, dims")),
  "wrong types": manifestHas({ dims: [], max_tokens: "9", files: [] }, wrong("dims, max_tokens, files")),
  "dims that grow": manifestHas({ dims: [8, DIMS] }, wrong("dims")),
  "no precision": manifestHas({ precisions: {} }, wrong("precisions")),
  "another output": manifestHas({ output: "nothing" }, wrong("output")),
  "a prompt of a megabyte": manifestHas({ prompt: "a ".repeat(500_000) }, wrong("prompt")),
  "a hash that is none": manifestHas({ files: { ...MANIFEST.files, "README.md": "0" } }, wrong("files")),
  "a classifier": manifestHas(
    { labels: ["yes", "no"], output: "logits" },
    "a classifier, which has no embeddings; classify with edgedistill in Python",
  ),
  "a graph with another hash": manifestHas(
    { precisions: { [PRECISION]: { ...MANIFEST.precisions[PRECISION], sha256: "0".repeat(64) } } },
    `precisions.${PRECISION} does not agree with files; ${COPY_AGAIN}`,
  ),
  ...Object.fromEntries(
    OUTSIDE.flatMap((name) => {
      const fact = `names ${JSON.stringify(name)}, which is not a file inside the bundle; do not use this bundle`;
      const entry = { ...MANIFEST.precisions[PRECISION], file: name };
      return [
        [`a graph named ${JSON.stringify(name)}`, manifestHas({ precisions: { [PRECISION]: entry } }, fact)],
        [`a file named ${JSON.stringify(name)}`, manifestHas({ files: { ...MANIFEST.files, [name]: "0".repeat(64) } }, fact)],
      ];
    }),
  ),
  "a manifest that is cut off": holds(
    "manifest.json",
    (bytes) => bytes.subarray(0, 100),
    `UserError: X/manifest.json: not valid JSON, truncated or edited; ${COPY_AGAIN}`,
  ),
  ...Object.fromEntries(
    ["null", "[]", "7"].map((json) => [`a manifest of ${json}`, holds("manifest.json", json, /X\/manifest\.json: no schema number/)]),
  ),
  "a tokenizer that is not UTF-8": holds(
    "tokenizer.json",
    Buffer.from('{"a": "\xff"}', "latin1"),
    `UserError: X/tokenizer.json: not valid JSON, truncated or edited; ${COPY_AGAIN}`,
  ),
  ...Object.fromEntries(
    ["null", '{"model": {"type": "Magic"}}'].map((json) => [
      `a tokenizer of ${json}`,
      holds("tokenizer.json", json, new RegExp(`^UserError: X/tokenizer.json: cannot be read here \\(.+\\); ${GET_AGAIN}$`, "s")),
    ]),
  ),
  ...Object.fromEntries(
    ["tokenizer.json", GRAPH, "parity.json"].map((name) => [
      `a changed ${name}`,
      {
        change: (folder) => {
          const bytes = readFileSync(path.join(folder, name));
          bytes[bytes.length >> 1] ^= 1;
          writeFileSync(path.join(folder, name), bytes);
        },
        error: `CheckFailed: X/${name}: ${CHANGED}`,
      },
    ]),
  ),
  "a graph of more bytes than the manifest has": {
    change: (folder) => appendFileSync(path.join(folder, GRAPH), " "),
    error: new RegExp(`^CheckFailed: X/${GRAPH}: more than [\\d,]+ bytes; ${COPY_AGAIN}$`),
  },
  "bytes that are no graph": graphHolds("not a graph", "is not an ONNX graph \\(wire type 6 at byte 1\\)"),
  "a graph that is cut off": graphHolds((bytes) => bytes.subarray(0, 5000), "is cut off \\("),
  "a second graph": graphHolds(appended(0x3a, 0), "is not an ONNX graph"),
  "a function": graphHolds(appended(0xca, 1, 0), "is not one that a bundle needs \\(field 25 of a model at byte \\d+\\)"),
  "golden texts without texts": goldenHas((value) => (value.texts = []), noGolden),
  "golden texts without an embedding": goldenHas((value) => value.vectors.pop(), noGolden),
  "golden texts of other dimensions": goldenHas((value) => (value.vectors = value.vectors.map((row) => row.slice(1))), noGolden),
  "golden texts of a hundred times the length": goldenHas(
    (value) => (value.vectors = value.vectors.map((row) => row.map((x) => 100 * x))),
    noGolden,
  ),
  "golden texts that are null": holds("parity.json", "null", noGolden),
  "no least cosine": {
    change: edit("manifest.json", ({ precisions }) => Object.values(precisions).forEach((entry) => delete entry.parity)),
    error: noGolden,
  },
  "dims of another width": manifestHas({ dims: [7] }, ""),
  "an embedding that is turned round": goldenHas(
    (value) => (value.vectors[5] = value.vectors[5].map((x) => -x)),
    new RegExp(`^CheckFailed: X: ${text(5)} has cosine -0\\.\\d{6} here, ${PRECISION} must reach 0\\.\\d+; `),
  ),
  "other token ids": goldenHas(
    (value) => (value.ids[6][1] += 1),
    new RegExp(`^CheckFailed: X: ${text(6)}: token ids differ, as tokenizer.json is read here in another way; run this bundle in Python`),
  ),
  "a text that would colour a terminal": goldenHas(
    (value) => (value.texts[4] = "\u001b[31mred\u202e"),
    /^CheckFailed: X: text 5 of \d+ \("\\u\{1b\}\[31mred\\u\{202e\}"\): token ids differ/,
  ),
};
REFUSED["dims of another width"].error = noGolden;

// ---- what an opened bundle gives

const TEXTS = ["a much longer text, with more than a few tokens in it", "short", "", "a text of middle length", "short"];

/**
 * {name: {use(encoder, value), value, verify(result), change(folder)}}: `use` runs beside the encoder, maybe in a browser, and reaches nothing
 * but its arguments; `verify` takes its result. change: what is done to the bundle before, if anything.
 */
export const GIVES = {
  "the golden texts have their embeddings, in their order": {
    value: GOLDEN.texts,
    use: async (encoder, texts) => (await encoder.encode(texts)).map((row) => [...row]),
    verify(rows) {
      assert.equal(rows.length, GOLDEN.texts.length);
      for (const [at, row] of rows.entries()) {
        assert.ok(dot(row, GOLDEN.vectors[at]) >= threshold, `text ${at}: ${dot(row, GOLDEN.vectors[at])}`);
        assert.ok(row.length === DIMS && Math.abs(dot(row, row) - 1) < 1e-4);
      }
    },
  },
  "an embedding does not depend on its batch": {
    value: TEXTS,
    async use(encoder, texts) {
      const alone = [];
      for (const text of texts) alone.push([...(await encoder.encode(text))]);
      return { alone, batched: (await encoder.encode(texts)).map((row) => [...row]), none: await encoder.encode([]) };
    },
    verify({ alone, batched, none }) {
      const drift = MANIFEST.precisions[PRECISION].drift.min; // single vs. batched, measured at export
      assert.deepEqual(none, []);
      alone.forEach((row, at) => assert.ok(dot(row, batched[at]) >= Math.min(0.9999, drift - 0.01), `text ${at}`));
      assert.deepEqual(batched[1], batched[4]);
      assert.ok(dot(batched[0], batched[1]) < 0.999);
    },
  },
  "embeddings are cut and normalized again, to the trained dimensions alone": {
    change: edit("manifest.json", (value) => (value.dims = [DIMS, 8])),
    value: { texts: TEXTS, dims: [DIMS, 8] },
    async use(encoder, { texts, dims: [whole, short] }) {
      const rows = (dim) => encoder.encode(texts, { dim }).then((found) => found.map((row) => [...row]));
      const wrong = await encoder.encode("a text", { dim: short + 1 }).catch((error) => error.message);
      return { whole: await rows(whole), short: await rows(short), all: (await encoder.encode("a")).length, wrong };
    },
    verify({ whole, short, all, wrong }) {
      assert.equal(all, DIMS);
      assert.equal(wrong, `dim=9: ${MANIFEST.name} was trained for ${DIMS}, 8 dimensions; choose one of these`);
      short.forEach((row, at) => {
        const head = whole[at].slice(0, 8);
        const norm = Math.sqrt(dot(head, head));
        assert.equal(row.length, 8);
        row.forEach((x, component) => assert.ok(Math.abs(x - head[component] / norm) < 1e-5));
      });
    },
  },
  "embeddings in fewer bytes": {
    value: TEXTS,
    async use(encoder, texts) {
      const rows = async (precision) => (await encoder.encode(texts, { precision })).map((row) => [row.constructor.name, ...row]);
      const wrong = await encoder.encode("a text", { precision: "int4" }).catch((error) => error.message);
      return { float32: await rows("float32"), int8: await rows("int8"), binary: await rows("binary"), wrong };
    },
    verify({ float32, int8, binary, wrong }) {
      assert.equal(wrong, "precision: no precision of embeddings 'int4'; choose float32, int8, binary");
      for (const [at, [kind, ...row]] of float32.entries()) {
        assert.equal(kind, "Float32Array");
        const rounded = row.map((x) => Math.round((x * 127 * Math.sqrt(DIMS)) / 8));
        assert.deepEqual(int8[at], ["Int8Array", ...rounded.map((x) => Math.max(-127, Math.min(127, x)) + 0)]);
        assert.deepEqual([binary[at][0], binary[at].length], ["Uint8Array", 1 + DIMS / 8]); // bits by hand: search.test.js
      }
    },
  },
  "what is not text is refused, with its index": {
    async use(encoder) {
      const errors = [];
      for (const wrong of [["fine", 3], [null], ["fine", undefined], "half \ud83d"]) {
        await encoder.encode(wrong).catch((error) => errors.push(error.message));
      }
      return errors;
    },
    verify(errors) {
      assert.deepEqual(errors, [
        "texts[1]: number, not a string; give strings",
        "texts[0]: null, not a string; give strings",
        "texts[1]: undefined, not a string; give strings",
        "texts[0]: contains half a surrogate pair, which is not text; decode it again",
      ]);
    },
  },
};
