/**
 * What is checked in a tokenizer.json before its parts are made, so that a text's tokens take a time that the text's length bounds.
 *
 * Lengths of strings, how much longer a text becomes, and patterns: the limits of edgedistill/runtime/trust/tokenizer_check.py, which
 * says why each is there. tests/runners/test_hostile.py holds them to that file.
 */

export const LIMITS = { pattern: 500, token: 1_000, unigram: 256, affix: 100, string: 1_000, table: 4_000_000, word: 256 };
Object.assign(LIMITS, { steps: 64, growth: 1_000, lengthening: 2, special: 64 });
const GROWS = { NFC: 3, NFD: 4, NFKC: 18, NFKD: 18 }; // characters that one becomes
const PARTS = { normalizer: "normalizers", pre_tokenizer: "pretokenizers", post_processor: "processors", decoder: "decoders" };
const TABLE = "precompiled_charsmap";

// Alternatives of characters and classes, where nothing that can fail follows what repeats without end, and three of published tokenizers.
const CHARACTER = String.raw`(?:[^\\\[\](){}*+?.^$|]|\\[sSdDwWrnt]|\\[!-/:-@\[-^\x60{-~]|\\[pP]\{[A-Za-z_]+\})`;
const ATOM = String.raw`(?:${CHARACTER}|\[\^?(?:${CHARACTER}|[(){}*+?.$|])+\])`;
const GROUP = String.raw`\(\?i?:${ATOM}{1,8}(?:\|${ATOM}{1,8}){0,20}\)`;
const REPEATED = String.raw`${ATOM}(?:\+|\{[1-9],\}|\{1,[1-9]\})?(?:${ATOM}\*)?(?:${GROUP}\?)?`;
const [UPPER, LOWER] = [String.raw`[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, String.raw`[\p{Ll}\p{Lm}\p{Lo}\p{M}]`];
const OTHER = String.raw`[^\r\n\p{L}\p{N}]?`;
const KNOWN = ["(?i:'s|'t|'re|'ve|'m|'ll|'d)?", ""].map((end) => `${OTHER}${UPPER}*${LOWER}+${end}|${OTHER}${UPPER}+${LOWER}*${end}`);
KNOWN.push(String.raw` ?[^(\s|[.,!?…。，、।۔،])]+`);
const known = KNOWN.map((text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")).join("|");
const ALTERNATIVE = String.raw`(?:${known}|(?:${ATOM}(?:\?|\{[1-9]\})?){0,8}(?:${REPEATED}|${GROUP}))`;
const SPACES = String.raw`(?:\|\\s\*\[\\r\\n\]\+)?(?:\|\\s\+\(\?!\\S\))?\|\\s\+`;
const PATTERN = new RegExp(String.raw`^(?![^]*(?:&&|--|~~))${ALTERNATIVE}(?:\|${ALTERNATIVE}){0,20}(?:${SPACES})?$`);

/** Throws an Error for a tokenizer.json, parsed, that is not bounded; the Error names the part. */
export function checkBounds(json) {
  const steps = Object.fromEntries(Object.entries(PARTS).map(([part, key]) => [part, flat(json[part], key)]));
  checkModel(json.model);
  for (const [part, each] of Object.entries(steps)) {
    most(each.length, LIMITS.steps, `${part}: steps`);
    for (const step of each) checkStep(step, `${part}: ${step.type}`);
  }
  most(growth(steps.normalizer), LIMITS.growth, "normalizer: times as long a text");
  const lengthening = [...steps.normalizer, ...steps.pre_tokenizer].filter(({ type }) => type === "ByteLevel" || type === "Metaspace");
  most(lengthening.length, LIMITS.lengthening, "normalizer, pre_tokenizer: steps that lengthen a text");
  most(steps.post_processor.reduce((sum, step) => sum + addedTokens(step), 0), LIMITS.special, "post_processor: special tokens");
  for (const { content, lstrip, rstrip } of json.added_tokens ?? []) {
    if ((lstrip || rstrip) && content !== content.trim()) throw new Error("added_tokens: one that takes the white space that it is found in");
  }
}

function most(number, limit, what) {
  if (!(number <= limit)) throw new Error(`${what}: ${number}, above ${limit}`);
}

/** The steps of a part in order, those of sequences in their place. */
function flat(step, key) {
  if (step === null || step === undefined) return [];
  return step.type === "Sequence" ? step[key].flatMap((each) => flat(each, key)) : [step];
}

function checkModel(model) {
  const tokens = Array.isArray(model.vocab) ? model.vocab.map(([token]) => token) : Object.keys(model.vocab);
  const limit = model.type === "Unigram" ? LIMITS.unigram : LIMITS.token;
  for (const token of tokens) most([...token].length, limit, "model.vocab: characters of a token");
  checkStrings(model, LIMITS.affix, "model");
  const word = model.max_input_chars_per_word ?? 100;
  if (!Number.isInteger(word) || word < 1) throw new Error(`model.max_input_chars_per_word: ${word}`);
  most(word, LIMITS.word, "model.max_input_chars_per_word");
  if (model.dropout) throw new Error("model.dropout: the same text would have other tokens every time");
}

function checkStrings(values, longest, place) {
  for (const [key, value] of Object.entries(values)) {
    if (typeof value === "string") most([...value].length, key === TABLE ? LIMITS.table : longest, `${place}: characters of ${key}`);
  }
}

function checkStep(step, place) {
  checkStrings(step, LIMITS.string, place);
  if (step.pattern?.String === "") throw new Error(`${place}: an empty pattern`);
  const pattern = step.pattern?.Regex;
  if (pattern !== undefined && !(pattern.length <= LIMITS.pattern && PATTERN.test(pattern))) {
    throw new Error(`${place}: ${JSON.stringify(pattern).slice(0, 100)} is no pattern of a published tokenizer, and not as simple as those`);
  }
}

/** By how much a normalizer can multiply a text's length. */
function growth(steps) {
  return steps.reduce((found, { type, content, [TABLE]: table }) => {
    if (type === "Precompiled") return found * Math.max(1, longestReplacement(table));
    if (type === "Replace") return found * Math.max(1, content.length);
    return found > 1 ? found * (GROWS[type] ?? 1) : found;
  }, 1);
}

/** Bytes of the longest text that a table of characters puts in: its trie's size, the trie, and texts that end in zero. */
function longestReplacement(table) {
  const data = atob(table);
  const trie = [3, 2, 1, 0].reduce((size, at) => size * 256 + data.charCodeAt(at), 0);
  if (!(4 + trie <= data.length)) throw new Error(`normalizer: ${TABLE} is not as long as it says`);
  return data
    .slice(4 + trie)
    .split("\0")
    .reduce((longest, text) => Math.max(longest, text.length), 0);
}

/** How many special tokens a step adds to a text. Throws an Error where it repeats the text. */
function addedTokens({ single, special_tokens: special }) {
  if (!Array.isArray(single)) return 4;
  if (single.filter((item) => item.Sequence).length > 1) throw new Error("post_processor: repeats the text");
  return single.length * Math.max(1, ...Object.values(special ?? {}).map(({ ids }) => ids.length));
}
