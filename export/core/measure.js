/** How fast a student is here; and what `edgedistill bench --runner` asks: single texts one by one, then texts per second in batches. */

const BATCHES = [1, 8, 32];
const CHECKED = 8; // texts whose embeddings are returned, to be compared with those of edgedistill's own runner

/**
 * Answer a request, as bench/README.md describes both; times are in ms, tokenization included. `encode` gives the embeddings of
 * texts, or a promise of them.
 */
export async function measure(encode, { texts, queries, warmups, query_seconds, seconds }) {
  const singles = queries.map((at) => texts[at]);
  const embeddings = (await encode(texts.slice(0, CHECKED))).map((row) => [...row]);
  for (let at = 0; at < warmups; at++) await encode([singles[at % singles.length]]);
  const single_ms = [];
  const end = performance.now() + 1000 * query_seconds;
  for (let at = 0; at < singles.length || performance.now() < end; at++) {
    const start = performance.now();
    await encode([singles[at % singles.length]]);
    single_ms.push(round(performance.now() - start));
  }
  const texts_s = {};
  for (const size of BATCHES) texts_s[size] = await rate(encode, texts, size, seconds);
  texts_s.budget = await rate(encode, texts, texts.length, seconds);
  return { single_ms, texts_s, embeddings };
}

/** Texts per second in batches of `size`, over at least `seconds` and one call; the first call is not counted. */
async function rate(encode, texts, size, seconds) {
  await encode(texts.slice(0, size));
  const start = performance.now();
  let done = 0;
  for (let at = 0; done === 0 || performance.now() - start < 1000 * seconds; at = at + size < texts.length ? at + size : 0) {
    const batch = texts.slice(at, at + size);
    await encode(batch);
    done += batch.length;
  }
  return done / (Math.max(performance.now() - start, 0.001) / 1000);
}

const round = (ms) => Math.max(0.0001, Math.round(ms * 1e4) / 1e4); // a browser's clock may stand still for 0.1 ms

const SAMPLE = "the old bridge over that river was closed for repairs so every train from here to a northern city now takes longer";
const WORDS = SAMPLE.split(" ");

/** Time a student, tokenization included, after a warm-up: a query again and again, then 128 of 4 to 34 words. */
export function time(student, dims) {
  const options = { dims, role: "query" };
  const query = "How do I reset my password?";
  const texts = Array.from({ length: 128 }, (_, at) =>
    Array.from({ length: 4 + (at % 31) }, (_, i) => WORDS[(at + i * (1 + (at % 5))) % WORDS.length]).join(" "),
  );
  const queries = durations(() => student.embed(query, options), { warmup: 20, most: 1000, seconds: 2 });
  const all = durations(() => texts.forEach((text) => student.embed(text, options)), { warmup: 1, most: 5, seconds: 3 });
  const tokens = texts.map((text) => student.tokenize(text, options).length).reduce((sum, length) => sum + length);
  return {
    ...{ query_tokens: student.tokenize(query, options).length, p50_ms: quantile(queries, 0.5), p90_ms: quantile(queries, 0.9) },
    ...{ texts: texts.length, tokens_mean: tokens / texts.length, rate_texts_s: (1000 * texts.length) / quantile(all, 0.5) },
  };
}

/** Milliseconds of each call, sorted: at least one call, at most `most`, and none begun after `seconds`. */
function durations(call, { warmup, most, seconds }) {
  for (let i = 0; i < warmup; i++) call();
  const found = [];
  const end = performance.now() + 1000 * seconds;
  do {
    const start = performance.now();
    call();
    found.push(performance.now() - start);
  } while (found.length < most && performance.now() < end);
  return found.sort((a, b) => a - b);
}

const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
