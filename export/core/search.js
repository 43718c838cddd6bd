/** Full-text search beside embeddings: BM25 in Lucene's variant, joined with cosines as edgedistill/data/bm25.py does. */

import { stem } from "./stem.js";

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
const SYMBOLS = /[()=;]/g; // a text with more of them than of so many characters is source code, as in edgedistill's Python
const LEAST_SYMBOLS = 0.02;
const CODE = 0.125; // what words count where most texts are source code

const [K1, B] = [0.9, 0.4]; // Anserini's defaults, used for BEIR (Thakur et al. 2021)
export const WEIGHT = 2; // of the shares of words beside the cosines
const [LONE_SHARE, LONE] = [0.35, 0.1]; // a text with one word of several, less than so much of the query's idf, counts a tenth
export const CLOSE = { words: 0.35, cosine: 0.25 }; // score below which no text answers, with shares and by cosine alone
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

/** BM25 over texts; of English texts by the stems of words, without stop words; of others by words as they are. */
export class BM25 {
  #found = new Map(); // word -> Map of text -> how often
  #lengths;
  #mean; // of the lengths
  #isEnglish;

  constructor(texts) {
    const wordsOf = texts.map(words);
    const count = (kept) => wordsOf.reduce((sum, all) => sum + all.filter(kept).length, 0);
    this.#isEnglish = count((word) => STOP_WORDS.has(word)) >= MIN_STOP_WORDS * Math.max(1, count(() => true));
    const code = texts.filter((text) => (text.match(SYMBOLS) ?? []).length > LEAST_SYMBOLS * [...text].length);
    this.weight = 2 * code.length > texts.length ? CODE : 1; // to multiply WEIGHT by
    this.#lengths = wordsOf.map((found, at) => {
      const all = this.#terms(found);
      for (const word of all) {
        if (!this.#found.has(word)) this.#found.set(word, new Map());
        const counts = this.#found.get(word);
        counts.set(at, (counts.get(at) ?? 0) + 1);
      }
      return all.length;
    });
    this.#mean = this.#lengths.reduce((sum, length) => sum + length, 0) / texts.length; // 0 only where no text has a word
  }

  /** What words are compared by. */
  #terms(found) {
    return this.#isEnglish ? found.filter((word) => !STOP_WORDS.has(word)).map(stem) : found;
  }

  /** Whether a word is one of a query that some text has too, in any of its forms. */
  known(query) {
    const terms = new Set(this.#terms(words(query)).filter((term) => this.#found.has(term)));
    return (word) => this.#terms([word]).some((term) => terms.has(term));
  }

  /** How much of a query each text has, 0 to 1: its BM25 divided by the idf of all words of the query, of unknown ones too. */
  shares(query) {
    const [scores, known, wordsOf] = [0, 0, 0].map(() => new Float64Array(this.#lengths.length));
    let whole = 1e-9;
    for (const word of new Set(this.#terms(words(query)))) {
      const counts = this.#found.get(word) ?? new Map();
      const idf = Math.log(1 + (scores.length - counts.size + 0.5) / (counts.size + 0.5));
      whole += idf;
      for (const [at, count] of counts) {
        scores[at] += (idf * count) / (count + K1 * (1 - B + (B * this.#lengths[at]) / this.#mean));
        known[at] += idf;
        wordsOf[at] += 1;
      }
    }
    return scores.map((x, at) => ((wordsOf[at] === 1 && known[at] < LONE_SHARE * whole ? LONE : 1) * x) / whole);
  }
}

/** The scores that rank n texts: how far each cosine is on the way from their mean to 1, plus `weight` times the share of words. */
export function joined(cosines, shares, weight = WEIGHT, all = cosines) {
  const mean = all.reduce((sum, x) => sum + x, 0) / all.length;
  return cosines.map((x, at) => (x - mean) / Math.max(1 - mean, 1e-6) + weight * shares[at]);
}
