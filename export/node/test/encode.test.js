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

test("embeddings come in the order of the texts, in batches of any size and from any iterable", async () => {
  const bundle = await load(BUNDLE, { threads: 1 });
  const rows = await bundle.encode(TEXTS);
  for (const batchTokens of [1, 30, 100_000]) {
    for (const [at, row] of (await bundle.encode(TEXTS, { batchTokens })).entries()) {
      assert.ok(row instanceof Float32Array && row.length === DIMS);
      assert.ok(dot(row, rows[at]) >= 0.98, `text ${at} at ${batchTokens}`);
    }
  }
  const [only] = await bundle.encode(new Set(["short"]));
  assert.ok(dot(only, rows[1]) >= 0.98);
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

test("what is not an iterable of texts is refused", async () => {
  const bundle = await load(BUNDLE);
  await assert.rejects(bundle.encode(["fine", , "fine"]), { message: "texts[1]: undefined, not a string; give strings" });
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
