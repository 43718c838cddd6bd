// How fast a bundle is here: one text at a time, and many.

const WHO = ["The cat", "A child", "My neighbour", "The old teacher", "Our doctor", "A young singer"];
const DOES = ["finds", "watches", "paints", "forgets"];
const WHAT = ["the newspaper in the garden.", "a red apple after dinner, every day.", "two small boxes near the station, without a word."];
const SENTENCES = WHO.flatMap((who) => DOES.flatMap((does) => WHAT.map((what) => `${who} ${does} ${what}`)));
const ENOUGH_MS = 1500;

/** Milliseconds of a query, texts per second in batches, tokenization included: {query_p50_ms, query_p90_ms, texts_s, tokens_s, …}. */
export async function measure(bundle, dim) {
  const embedAll = (texts) => bundle.encode(texts, { dim });
  for (const sentence of SENTENCES.slice(0, 8)) await embedAll([sentence]);
  const queries = await repeat((at) => embedAll([SENTENCES[at % SENTENCES.length]]), 300);
  await embedAll(SENTENCES);
  const rounds = await repeat(() => embedAll(SENTENCES), 100);
  const tokens = SENTENCES.reduce((sum, sentence) => sum + bundle.tokenize(sentence).length, 0);
  const rate = 1000 / quantile(rounds, 0.5);
  return {
    query_p50_ms: quantile(queries, 0.5),
    query_p90_ms: quantile(queries, 0.9),
    queries: queries.length,
    texts_s: rate * SENTENCES.length,
    tokens_s: rate * tokens,
    tokens_mean: tokens / SENTENCES.length,
  };
}

/** The milliseconds of each call, at most `most` calls, for about ENOUGH_MS. */
async function repeat(call, most) {
  const spent = [];
  for (const start = performance.now(); spent.length < most && performance.now() - start < ENOUGH_MS;) {
    const before = performance.now();
    await call(spent.length);
    spent.push(performance.now() - before);
  }
  return spent;
}

function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}
