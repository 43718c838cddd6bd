// The golden texts of parity.json: their token ids and embeddings here, against those stored at export.

import { BundleError } from "./bundle.js";
import { dot, embed, run } from "./embedding.js";

/** {texts, ids, vectors, least}: what the bundle stored at export, and the cosine that a precision must reach. */
export function readGolden(files, manifest, parity, precision) {
  const { texts, ids, vectors, cosine_at_least } = parity;
  const least = cosine_at_least?.[precision] ?? manifest.precisions[precision].parity?.threshold;
  const lists = [texts, ids, vectors].every((list) => Array.isArray(list) && list.length === texts.length && list.length > 0);
  const isIds = (row) => Array.isArray(row) && row.length <= manifest.max_tokens && row.every(Number.isInteger);
  const isEmbedding = (row) => Array.isArray(row) && row.length === manifest.dims[0] && row.every(Number.isFinite);
  const whole = lists && texts.every((text) => typeof text === "string") && ids.every(isIds) && vectors.every(isEmbedding);
  if (!whole || !(least > 0 && least <= 1)) {
    const fact = "no golden texts with ids, embeddings and a least cosine";
    throw new BundleError(`${files.place}/parity.json: ${fact}; copy the bundle again`, "check");
  }
  return { texts, ids, vectors, least };
}

/** Raises BundleError where a golden text's token ids are not the stored ones. */
export function checkIds({ manifest, golden, tokenize }) {
  golden.texts.forEach((text, at) => {
    const ids = tokenize(text);
    if (ids.length === golden.ids[at].length && ids.every((id, token) => id === golden.ids[at][token])) return;
    const fact = "token ids differ, as tokenizer.json is read here in another way";
    throw new BundleError(`${manifest.name}: ${named(golden, at)}: ${fact}; run this bundle outside the browser`, "check");
  });
}

/** Cosines of the golden texts, each alone and, if asked, all in batches, with the stored embeddings: {ok, texts, cosine_min, …}. */
export async function compare(bundle, inBatches) {
  const { golden, manifest, precision } = bundle;
  const started = performance.now();
  const alone = [];
  for (const [at, row] of golden.ids.entries()) alone.push(dot(await run(bundle, [row]), golden.vectors[at]));
  const [dim] = manifest.dims;
  const rows = inBatches && (await embed(bundle, golden.ids, dim, () => {}));
  const batched = inBatches ? golden.vectors.map((vector, at) => dot(rows.subarray(at * dim, (at + 1) * dim), vector)) : alone;
  const lower = alone.map((cosine, at) => (batched[at] < cosine ? batched[at] : cosine)); // NaN of `alone` stays
  const worst = lower.reduce((least, cosine, at) => (lower[least] <= cosine ? least : at), 0);
  const ok = lower[worst] >= golden.least;
  const fact = `has cosine ${lower[worst].toFixed(4)} here, ${precision} must reach ${golden.least.toFixed(4)}`;
  return {
    ok,
    problem: ok ? "" : `${named(golden, worst)} ${fact}`,
    texts: golden.texts.length,
    cosine_min: Math.min(...alone),
    batched_min: inBatches ? Math.min(...batched) : undefined,
    cosine_mean: alone.reduce((sum, cosine) => sum + cosine, 0) / alone.length,
    cosine_at_least: golden.least,
    worst: worst + 1,
    ms: performance.now() - started,
  };
}

/** "text 17 of 32 (…)": shortened, with invisible characters escaped. */
function named({ texts }, at) {
  const shown = (letter) => (/[\p{C}\p{Zl}\p{Zp}]/u.test(letter) ? `\\u{${letter.codePointAt(0).toString(16)}}` : letter);
  const letters = [...texts[at]];
  return `text ${at + 1} of ${texts.length} ("${letters.slice(0, 40).map(shown).join("")}${letters.length > 40 ? "…" : ""}")`;
}
