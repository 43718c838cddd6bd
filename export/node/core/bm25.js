/** Full-text search beside embeddings: BM25 in Lucene's variant, and its z-scores joined with those of cosines. */

const [K1, B] = [0.9, 0.4]; // Anserini's defaults, used for BEIR (Thakur et al. 2021)
const WEIGHT = 0.35; // of BM25; the best of 0.25, 0.35, 0.5, 0.75 and 1 on SciFact's training queries, beside nano
const WORD = /[\p{L}\p{M}\p{N}]+/gu;
const UNSPACED = // scripts without spaces between words, and Hangul, whose particles are written with the word
  /([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\u{20000}-\u{3ffff}]+)/u;

/** The words of a text in lower case, NFKC; of scripts without spaces each two letters in a row. */
export function words(text) {
  const found = text.normalize("NFKC").toLowerCase().match(WORD) ?? [];
  return found.flatMap((word) => word.split(UNSPACED)).flatMap((run) => {
    const letters = [...run];
    return letters.length > 2 && UNSPACED.test(run) ? letters.slice(1).map((letter, at) => letters[at] + letter) : run || [];
  });
}

/** BM25 over texts, of words as they are: without stop words and stemming, which depend on the language. */
export class BM25 {
  #found = new Map(); // word -> Map of text -> how often
  #lengths;
  #mean; // of the lengths

  constructor(texts) {
    this.#lengths = texts.map((text, at) => {
      const all = words(text);
      for (const word of all) {
        if (!this.#found.has(word)) this.#found.set(word, new Map());
        const counts = this.#found.get(word);
        counts.set(at, (counts.get(at) ?? 0) + 1);
      }
      return all.length;
    });
    this.#mean = this.#lengths.reduce((sum, length) => sum + length, 0) / texts.length;
  }

  /** The score of each text, 0 where it has no word of the query. A word that the query has twice counts twice. */
  scores(query) {
    const scores = new Float64Array(this.#lengths.length);
    for (const word of words(query)) {
      const counts = this.#found.get(word) ?? new Map();
      const idf = Math.log(1 + (scores.length - counts.size + 0.5) / (counts.size + 0.5));
      for (const [at, count] of counts) scores[at] += (idf * count) / (count + K1 * (1 - B + (B * this.#lengths[at]) / this.#mean));
    }
    return scores;
  }
}

/** z-scores of the cosines of a query with n texts plus `weight` times those of its BM25. */
export function joined(cosines, bm25, weight = WEIGHT) {
  const [first, second] = [zScores(cosines), zScores(bm25)];
  return first.map((z, at) => z + weight * second[at]);
}

/** Scores with mean 0 and standard deviation 1; zeros where all are equal. */
function zScores(scores) {
  const mean = scores.reduce((sum, x) => sum + x, 0) / scores.length;
  const deviation = Math.sqrt(scores.reduce((sum, x) => sum + (x - mean) ** 2, 0) / scores.length);
  return Float64Array.from(scores, (x) => (deviation > 1e-9 ? (x - mean) / deviation : 0));
}
