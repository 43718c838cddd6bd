/** How fast a student is here; and what `edgedistill bench --runner` asks: single texts one by one, then texts per second in batches. */

const BATCHES = [1, 8, 32];
const CHECKED = 8; // texts whose embeddings are returned, to be compared with those of edgedistill's own runner

/**
 * Answer a request, as bench/README.md describes both; times are in ms, tokenization included. `encode` gives the embeddings of
 * texts, or a promise of them.
 */
export async function measure(encode, { texts, queries, warmups, query_seconds, seconds }) {
  const embeddings = (await encode(texts.slice(0, CHECKED))).map((row) => [...row]);
  const query = (at) => encode([texts[queries[at % queries.length]]]);
  const single_ms = (await durations(query, { warmups, least: queries.length, seconds: query_seconds })).map(round);
  const texts_s = {};
  for (const size of BATCHES) texts_s[size] = await rate(encode, texts, size, seconds);
  texts_s.budget = await rate(encode, texts, texts.length, seconds);
  return { single_ms, texts_s, embeddings };
}

/** Texts per second in batches of `size`, over at least `seconds` and one call. */
async function rate(encode, texts, size, seconds) {
  const batches = Array.from({ length: Math.ceil(texts.length / size) }, (_, at) => texts.slice(at * size, (at + 1) * size));
  const found = await durations((at) => encode(batches[at % batches.length]), { warmups: 1, least: 1, seconds });
  const done = found.reduce((sum, _, at) => sum + batches[at % batches.length].length, 0);
  return (1000 * done) / Math.max(found.reduce((sum, ms) => sum + ms), 0.001);
}

/** Milliseconds of each call(at): at least `least` calls, and none begun after `seconds`. */
async function durations(call, { warmups, least, seconds }) {
  for (let at = 0; at < warmups; at++) await call(at);
  const found = [];
  const end = performance.now() + 1000 * seconds;
  while (found.length < least || performance.now() < end) {
    const start = performance.now();
    await call(found.length);
    found.push(performance.now() - start);
  }
  return found;
}

const round = (ms) => Math.max(0.0001, Math.round(ms * 1e4) / 1e4); // a browser's clock may stand still for 0.1 ms

const SAMPLE = "the old bridge over that river was closed for repairs so every train from here to a northern city now takes longer";
const WORDS = SAMPLE.split(" ");

/** Time a student, tokenization included: a query again and again, then 128 texts of 4 to 34 words. */
export async function time(student, dims) {
  const options = { dims, role: "query" };
  const query = "How do I reset my password?";
  const texts = Array.from({ length: 128 }, (_, at) =>
    Array.from({ length: 4 + (at % 31) }, (_, i) => WORDS[(at + i * (1 + (at % 5))) % WORDS.length]).join(" "),
  );
  const queries = (await durations(() => student.embed(query, options), { warmups: 20, least: 1, seconds: 1 })).sort((a, b) => a - b);
  const tokens = texts.map((text) => student.tokenize(text, options).length).reduce((sum, length) => sum + length);
  const rate_texts_s = await rate((batch) => batch.forEach((text) => student.embed(text, options)), texts, texts.length, 2);
  return {
    ...{ query_tokens: student.tokenize(query, options).length, p50_ms: quantile(queries, 0.5), p90_ms: quantile(queries, 0.9) },
    ...{ texts: texts.length, tokens_mean: tokens / texts.length, rate_texts_s },
  };
}

const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
