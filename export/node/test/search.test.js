/** Embeddings in fewer bytes, and full-text search beside them. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { BM25, joined, words } from "../core/bm25.js";
import { compact } from "../core/compact.js";
import { load, similarity } from "../index.js";
import { BUNDLE, copyBundle, DIMS, rewrite } from "./bundles.js";

const close = (found, expected, by = 1e-9) => assert.ok(Math.abs(found - expected) <= by, `${found}, not ${expected}`);

test("int8 and bits by hand, as in Python", () => {
  const rows = Float32Array.of(1, 0, -0.1, 0.5, -0.6, 0.8, 0, 0);
  assert.deepEqual([...compact(rows, "int8", 4)].map((x) => x + 0), [32, 0, -3, 16, -19, 25, 0, 0]);
  const wide = new Float32Array(256);
  wide.set([0.51, 0.5, -1]); // the range is 8 / 16, and what is beyond it clips
  assert.deepEqual([...compact(wide, "int8", 256).slice(0, 3)], [127, 127, -127]);
  const bits = compact(Float32Array.of(1, -1, 0, 1, 1, -1, -1, 1, -1, -1, 1, 1, 1, -1, 1, 1), "binary", 8);
  assert.deepEqual([...bits], [0b10011001, 0b00111011]);
  const [some, mean] = [Float32Array.of(0.5, 0.1, 0.1, 0.3, 0.5, 0.1, 0.3, 0.5), [0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]];
  assert.deepEqual([...compact(some, "binary", 8, { mean })], [0b10011011]);
  close(similarity(bits.subarray(0, 1), bits.subarray(1)), 1 - (2 * 3) / 8); // three bits differ
  close(similarity(Float32Array.of(0.5, 0, 0, 0, 0, 0, -0.5, 0), bits.subarray(0, 1)), 1 / 2, 1e-6);
});

test("a bundle encodes in every precision", async (t) => {
  const bundle = await load(BUNDLE, { threads: 1 });
  const [a, b] = await bundle.encode(["a cat", "the dog"]);
  for (const [precision, kind, width, by] of [["float32", Float32Array, DIMS, 0], ["int8", Int8Array, DIMS, 0.02], ["binary", Uint8Array, DIMS / 8]]) {
    const [first, second] = await bundle.encode(["a cat", "the dog"], { precision });
    assert.ok(second instanceof kind && second.length === width, precision);
    assert.deepEqual([first, second], [a, b].map((row) => compact(row, precision, DIMS, bundle.manifest.calibration)));
    assert.deepEqual(await bundle.encode("a cat", { precision }), first);
    if (precision === "binary") continue; // of bits less a mean
    close(similarity(first, second), similarity(a, b), by);
    close(similarity(a, second), similarity(a, b), by);
  }
  const message = "precision: no precision of embeddings 'w8'; choose float32, int8, binary";
  await assert.rejects(bundle.encode("a", { precision: "w8" }), { name: "UserError", message });
  const folder = copyBundle(t);
  rewrite(folder, "manifest.json", { dims: [DIMS, 12] });
  const cut = (await load(folder)).encode("a", { dim: 12, precision: "binary" });
  await assert.rejects(cut, { message: "precision: binary needs dimensions in whole bytes, not 12; choose int8" });
});

test("shares of a query by hand: BM25 with k1 0.9 and b 0.4 by the query's idf, without the stop words of English", () => {
  const index = new BM25(["the red cat", "a red, RED door", "", "the blue house of the cat"]); // 2, 3, 0 and 3 words, 2 on average
  const part = (count, length) => count / (count + 0.9 * (0.6 + (0.4 * length) / 2)); // each word below is in two of four texts
  const expected = [part(1, 2), part(2, 3) / 2, 0, part(1, 3) / 2];
  for (const query of ["red cat?", "where is the red cat?", "red red cat"]) index.shares(query).forEach((share, at) => close(share, expected[at]));
  for (const query of ["green", "the", ""]) assert.deepEqual([...index.shares(query)], [0, 0, 0, 0]);
  const [known, unknown] = [Math.log(1 + 2.5 / 2.5), Math.log(1 + 4.5 / 0.5)]; // of one word of two, a tenth counts
  close(index.shares("red zebra")[1], (0.1 * part(2, 3) * known) / (known + unknown), 1e-6);
  assert.equal(new BM25([]).shares("red").length, 0);
});

test("texts of another language keep all words", () => {
  const index = new BM25(["ich war in der Stadt", "sie war zu Hause", "er kommt morgen wieder"]); // "in" alone is an English stop word
  assert.deepEqual([...index.shares("in")].map((score) => score > 0), [true, false, false]);
});

test("words of any script", () => {
  assert.deepEqual(words("Don't panic: ﬁve Éclairs, 3.5 kg_net"), ["don", "t", "panic", "five", "eclairs", "3", "5", "kg", "net"]);
  assert.deepEqual(words("हिन्दी में"), ["हिन्दी", "में"]); // marks belong to the word
  assert.deepEqual(words("東京都は a晴れ 猫"), ["東京", "京都", "都は", "a", "晴れ", "猫"]);
  assert.deepEqual(words("data\u200bbase in\u00addex שָׁלוֹם"), ["database", "index", "שלום"]); // what is invisible goes
  assert.deepEqual(words(" …!"), []);
});

test("joined scores are cosines on the way from their mean to 1, plus twice the shares", () => {
  const [cosines, shares] = [[0.1, 0.2, 0.3], [0.5, 0, 0.25]];
  joined(cosines, shares).forEach((score, at) => close(score, [1 - 0.125, 0, 0.5 + 0.125][at]));
  joined(cosines, shares, 0).forEach((score, at) => close(score, [-0.125, 0, 0.125][at]));
});
