/** Texts in, embeddings out: those of the export, in any batch and in the order of the texts. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { load, similarity, UserError } from "../index.js";
import { BUNDLE, copyBundle, DIMS, dot, GOLDEN, MANIFEST, readJson, rewrite } from "./bundles.js";

const TEXTS = ["a much longer text, with more than a few tokens in it", "short", "", "a text of middle length", "short"];

for (const precision of Object.keys(MANIFEST.precisions)) {
  test(`the golden texts have their token ids and embeddings in ${precision}`, async () => {
    const bundle = await load(BUNDLE, { precision });
    assert.deepEqual(
      GOLDEN.texts.map((text) => bundle.tokenize(text)),
      GOLDEN.ids,
    );
    const { threshold } = MANIFEST.precisions[precision].parity;
    for (const [at, text] of GOLDEN.texts.entries()) assert.ok(dot(await bundle.encode(text), GOLDEN.vectors[at]) >= threshold, text);
    const found = await bundle.check();
    assert.equal(found.texts, GOLDEN.texts.length);
    assert.equal(found.threshold, threshold);
    assert.ok(found.cosine_min >= threshold && found.cosine_min <= 1.000001, String(found.cosine_min));
    await bundle.close();
  });
}

test("embeddings come in the order of the texts, and do not depend on their batch", async () => {
  const bundle = await load(BUNDLE, { threads: 1 });
  const drift = MANIFEST.precisions[bundle.precision].drift.min; // single vs. batched, measured at export
  const alone = [];
  for (const text of TEXTS) alone.push(await bundle.encode(text));
  for (const batchTokens of [undefined, 1, 30, 100_000]) {
    const rows = await bundle.encode(TEXTS, { batchTokens });
    assert.equal(rows.length, TEXTS.length);
    for (const [at, row] of rows.entries()) {
      assert.ok(row instanceof Float32Array && row.length === DIMS);
      assert.ok(Math.abs(Math.hypot(...row) - 1) < 1e-5);
      assert.ok(dot(row, alone[at]) >= (drift >= 0.9999 ? 0.9999 : drift - 0.01), `text ${at} at ${batchTokens}`);
    }
    assert.ok(dot(rows[0], rows[1]) < 0.999);
  }
  assert.deepEqual(await bundle.encode([]), []);
  assert.deepEqual((await bundle.encode(new Set(["short"])))[0], alone[1]);
});

test("the precision is the one asked for, else the first by rank", async (t) => {
  const available = Object.keys(MANIFEST.precisions);
  const preferred = ["int8", "w8", "fp32"].find((precision) => available.includes(precision)); // as edgedistill/precisions.py ranks them
  assert.equal((await load(BUNDLE)).precision, preferred);
  const folder = copyBundle(t);
  const entry = MANIFEST.precisions[available[0]];
  const ranked = (place) => ({ ...entry, rank: { int8_cpu: place } });
  rewrite(folder, "manifest.json", { precisions: { w4: { ...entry, rank: undefined }, fp32: ranked(3), w8: ranked(2), int8: ranked(1) } });
  assert.equal((await load(folder)).precision, "int8");
  assert.equal((await load(folder, { precision: "w4" })).precision, "w4");
  rewrite(folder, "manifest.json", { precisions: { w4: entry } });
  assert.equal((await load(folder)).precision, "w4");
  await assert.rejects(load(folder, { precision: "w8" }), { name: "UserError", message: `${folder}: no precision 'w8'; choose w4` });
  await assert.rejects(load(folder, { precision: "toString" }), /no precision 'toString'; choose w4/);
});

test("Matryoshka embeddings are cut and normalized again, to the trained sizes alone", async (t) => {
  const folder = copyBundle(t);
  rewrite(folder, "manifest.json", { dims: [DIMS, 8] });
  const bundle = await load(folder);
  const [whole, short] = [await bundle.encode("a text"), await bundle.encode("a text", { dim: 8 })];
  assert.equal(short.length, 8);
  const norm = Math.hypot(...whole.slice(0, 8));
  short.forEach((x, at) => assert.ok(Math.abs(x - whole[at] / norm) < 1e-6));
  assert.equal((await bundle.encode(["a text"], { dim: DIMS }))[0].length, DIMS);
  await assert.rejects(bundle.encode("a text", { dim: 9 }), {
    name: "UserError",
    message: `dim=9: ${MANIFEST.name} was trained for ${DIMS}, 8 dimensions; choose one of these`,
  });
});

test("the prompt is prepended, and long texts keep their closing special tokens", async (t) => {
  const folder = copyBundle(t);
  const plain = await load(folder);
  rewrite(folder, "manifest.json", { prompt: "the cat " });
  const prompted = await load(folder);
  assert.deepEqual(await prompted.encode("is here"), await plain.encode("the cat is here"));
  rewrite(folder, "manifest.json", { max_tokens: 6 });
  const bundle = await load(folder);
  const whole = plain.tokenize("the cat and the dog, and the cat again");
  assert.ok(whole.length > 8);
  assert.deepEqual(bundle.tokenize(""), plain.tokenize("the cat "));
  assert.deepEqual(bundle.tokenize("and the dog, and the cat again"), [...whole.slice(0, 5), whole.at(-1)]);
});

test("normalization agrees with the library that exported, where JavaScript's differs", async (t) => {
  const folder = copyBundle(t);
  const json = readJson(folder, "tokenizer.json");
  assert.equal(json.model.type, "WordPiece");
  const [first, second, third] = [40, 41, 42].map((id) => Object.entries(json.model.vocab).find(([, each]) => each === id)[0]);
  for (const token of [first, second, third]) delete json.model.vocab[token];
  Object.assign(json.model.vocab, { οδοσ: 40, οδος: 41, "𠮷": 42 });
  rewrite(folder, "tokenizer.json", { model: json.model });
  const bundle = await load(folder);
  assert.deepEqual(bundle.tokenize("ΟΔΟΣ").slice(1, -1), [40]); // not 41, with the final sigma
  assert.deepEqual(bundle.tokenize("𠮷𠮷").slice(1, -1), [42, 42]);
});

test("what is not text is refused, with its index", async () => {
  const bundle = await load(BUNDLE);
  await assert.rejects(bundle.encode(["fine", 3]), { name: "UserError", message: "texts[1]: number, not a string; give strings" });
  await assert.rejects(bundle.encode(["fine", , "fine"]), { message: "texts[1]: undefined, not a string; give strings" });
  await assert.rejects(bundle.encode([null]), { message: "texts[0]: null, not a string; give strings" });
  await assert.rejects(bundle.encode("half \ud83d"), /texts\[0\]: contains half a surrogate pair, which is not text; decode it again/);
  for (const [texts, kind] of [[5, "number"], [undefined, "undefined"], [null, "null"], [{}, "object"], [true, "boolean"]]) {
    const message = `texts: ${kind}, not strings; give a string, or an array of strings`;
    await assert.rejects(bundle.encode(texts), { name: "UserError", message });
  }
  assert.ok(new UserError("x") instanceof Error);
});

test("similarity is the cosine", async () => {
  const bundle = await load(BUNDLE);
  const [a, b] = await bundle.encode(["a cat", "the dog"]);
  assert.ok(Math.abs(similarity(a, a) - 1) < 1e-5);
  assert.equal(similarity(a, b), dot(a, b));
});
