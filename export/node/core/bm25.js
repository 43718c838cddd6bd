/** Full-text search beside embeddings: BM25 in Lucene's variant, and its z-scores joined with those of cosines. */

// English stop words, NLTK's without those that an apostrophe divides: what BM25 in edgedistill's Python leaves out too.
const STOP_WORDS = new Set(
  `a about above after again against ain all am an and any are aren as at be because been before being below between both but by can
  couldn d did didn do does doesn doing don down during each few for from further had hadn has hasn have haven having he her here hers
  herself him himself his how i if in into is isn it its itself just ll m ma me mightn more most mustn my myself needn no nor not now o of
  off on once only or other our ours ourselves out over own re s same shan she should shouldn so some such t than that the their theirs
  them themselves then there these they this those through to too under until up ve very was wasn we were weren what when where which
  while who whom why will with won wouldn y you your yours yourself yourselves`.split(/\s+/),
);
const MIN_STOP_WORDS = 0.15; // share of the words of texts above which they are English, as in edgedistill's Python

const [K1, B] = [0.9, 0.4]; // Anserini's defaults, used for BEIR (Thakur et al. 2021)
const WEIGHT = 0.35; // of BM25; the best of 0.25, 0.35, 0.5, 0.75 and 1 on SciFact's training queries, beside nano
const WORD = /[\p{L}\p{M}\p{N}]+/gu;
const UNSPACED = // scripts without spaces between words, and Hangul, whose particles are written with the word
  /([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\u{20000}-\u{3ffff}]+)/u;

// Accents of Latin, Greek and Cyrillic, vowel signs of Hebrew and Arabic; and what is invisible, such as the soft hyphen.
const UNTYPED = /[\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\p{Cf}]/gu;

/** The words of a text in lower case, NFKC, without accents; of scripts without spaces each two letters in a row. */
export function words(text) {
  const found = text.normalize("NFKD").toLowerCase().replace(UNTYPED, "").normalize("NFC").match(WORD) ?? [];
  return found.flatMap((word) => word.split(UNSPACED)).flatMap((run) => {
    const letters = [...run];
    return letters.length > 2 && UNSPACED.test(run) ? letters.slice(1).map((letter, at) => letters[at] + letter) : run || [];
  });
}

/** BM25 over texts, of words as they are, without stemming; English texts without their stop words. */
export class BM25 {
  #found = new Map(); // word -> Map of text -> how often
  #lengths;
  #mean; // of the lengths

  constructor(texts) {
    const wordsOf = texts.map(words);
    const count = (kept) => wordsOf.reduce((sum, all) => sum + all.filter(kept).length, 0);
    const isEnglish = count((word) => STOP_WORDS.has(word)) >= MIN_STOP_WORDS * Math.max(1, count(() => true));
    this.#lengths = wordsOf.map((found, at) => {
      const all = isEnglish ? found.filter((word) => !STOP_WORDS.has(word)) : found;
      for (const word of all) {
        if (!this.#found.has(word)) this.#found.set(word, new Map());
        const counts = this.#found.get(word);
        counts.set(at, (counts.get(at) ?? 0) + 1);
      }
      return all.length;
    });
    this.#mean = this.#lengths.reduce((sum, length) => sum + length, 0) / texts.length; // 0 only where no text has a word
  }

  /** The words of a query that some text has. */
  known(query) {
    return new Set(words(query).filter((word) => this.#found.has(word)));
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
