/** What `edgedistill bench --runner` asks of a runner: single texts one by one, then texts per second in batches. */

const BATCHES = [1, 8, 32];
const CHECKED = 8; // texts whose embeddings are returned, to be compared with those of edgedistill's own runner

/**
 * Answer a request, as bench/README.md describes both; times are in ms, tokenization included.
 * @param {{encode: Function, tokenize: Function}} bundle
 * @param {{texts: string[], queries: number[], warmups: number, query_seconds: number, seconds: number}} request
 */
export async function measure(bundle, { texts, queries, warmups, query_seconds, seconds }) {
  const singles = queries.map((at) => texts[at]);
  const embeddings = (await bundle.encode(texts.slice(0, CHECKED))).map((row) => [...row]);
  for (let at = 0; at < warmups; at++) await bundle.encode([singles[at % singles.length]]);
  const single_ms = [];
  const end = performance.now() + 1000 * query_seconds;
  for (let at = 0; at < singles.length || performance.now() < end; at++) {
    const start = performance.now();
    await bundle.encode([singles[at % singles.length]]);
    single_ms.push(round(performance.now() - start));
  }
  const texts_s = {};
  for (const size of BATCHES) texts_s[size] = await rate(bundle, texts, size, seconds);
  texts_s.budget = await rate(bundle, texts, texts.length, seconds);
  return { single_ms, texts_s, embeddings };
}

/** Texts per second in batches of `size`, over at least `seconds` and one call; the first call is not counted. */
async function rate(bundle, texts, size, seconds) {
  await bundle.encode(texts.slice(0, size));
  const start = performance.now();
  let done = 0;
  for (let at = 0; done === 0 || performance.now() - start < 1000 * seconds; at = at + size < texts.length ? at + size : 0) {
    const batch = texts.slice(at, at + size);
    await bundle.encode(batch);
    done += batch.length;
  }
  return done / (Math.max(performance.now() - start, 0.001) / 1000);
}

const round = (ms) => Math.max(0.0001, Math.round(ms * 1e4) / 1e4); // a browser's clock may stand still for 0.1 ms
