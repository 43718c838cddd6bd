/** Embeddings in fewer bytes, and full-text search beside them. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { similarity } from "../../../export/core/edgedistill.js";
import { BM25, joined, words } from "../../../export/core/search.js";

const close = (found, expected, by = 1e-9) => assert.ok(Math.abs(found - expected) <= by, `${found}, not ${expected}`);

test("similarity in any precision, by hand", () => {
  const [a, b] = [Uint8Array.of(0b10011001), Uint8Array.of(0b00111011)];
  close(similarity(a, b), 1 - (2 * 3) / 8); // three bits differ
  close(similarity(Float32Array.of(0.5, 0, 0, 0, 0, 0, -0.5, 0), a), 1 / 2, 1e-6);
  close(similarity(Int8Array.of(30, 40), Float32Array.of(0.6, 0.8)), 1, 1e-6);
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
