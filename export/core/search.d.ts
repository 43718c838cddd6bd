/** BM25 over texts; of English texts by the stems of words, without stop words. */
export class BM25 {
  constructor(texts: string[]);
  /** What to multiply the weight of words by: less than 1 where most texts are source code. */
  readonly weight: number;
  /** Whether a word is one of a query that some text has too, in any of its forms. */
  known(query: string): (word: string) => boolean;
  /** How much of a query each text has, 0 to 1. */
  shares(query: string): Float64Array;
}
/** The scores that rank texts, of their cosines to a query and of its shares of words. */
export function joined<T extends number[] | Float64Array>(cosines: T, shares: ArrayLike<number>, weight?: number, all?: ArrayLike<number>): T;
/** The words of a text in lower case, without accents; of scripts without spaces each two letters in a row. */
export function words(text: string): string[];
/** Of the shares of words, beside the cosines. */
export const WEIGHT: number;
/** Score below which no text answers, with shares of words and by cosine alone. */
export const CLOSE: { words: number; cosine: number };
