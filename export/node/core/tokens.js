/**
 * Texts become token ids, as the library `tokenizers` gives them (the Rust one, by which a bundle's golden ids were made).
 *
 * Added tokens, normalizers, pre-tokenizers, Unigram and the special tokens around a text are computed here, each as that library
 * computes it; WordPiece and BPE, and the translation of regular expressions, are those of @huggingface/tokenizers.
 */

const SPACE = "\\p{White_Space}"; // not JavaScript's \s, which has U+FEFF and lacks U+0085
const WORD = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u200C\\u200D]";
const PUNCTUATION = "[!-/:-@\\[-`{-~\\p{P}]";
const RUNS_OF_BYTES = `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|${SPACE}+(?!\\P{White_Space})|${SPACE}+`;
const IDEOGRAPHS =
  "[\\u4E00-\\u9FFF\\u3400-\\u4DBF\\u{20000}-\\u{2A6DF}\\u{2A700}-\\u{2B73F}\\u{2B740}-\\u{2B81F}\\u{2B920}-\\u{2CEAF}" +
  "\\uF900-\\uFAFF\\u{2F800}-\\u{2FA1F}]";
const UNKNOWN_PENALTY = 10; // of Unigram, below its least score

/**
 * A function from a text, its prompt before it, to its token ids: with special tokens, and at most `max_tokens`.
 *
 * library: the module @huggingface/tokenizers. json: the parsed tokenizer.json. Throws an Error that names the part it does not know.
 */
export function tokenizer(library, json, { max_tokens: most }) {
  const normalize = chain(json.normalizer, "normalizers", (step) => normalizer(library, step));
  const split = chain(json.pre_tokenizer, "pretokenizers", (step) => preTokenizer(library, step));
  const model = modelIds(library, json.model);
  const added = addedTokens(json, normalize);
  const [before, after] = specialTokens(json.post_processor);
  const ids = [...before, ...after, ...[...added.raw.byText.values(), ...added.normalized.byText.values()].map((token) => token.id)];
  const wrong = [...ids, ...Object.values(json.model.vocab).filter((id) => !Array.isArray(id))].find((id) => !isId(id));
  if (wrong !== undefined) throw new Error(`${wrong} is not a token id`);
  const room = Math.max(0, most - before.length - after.length);
  const kept = json.truncation?.direction === "Left" ? (all) => all.slice(Math.max(0, all.length - room)) : (all) => all.slice(0, room);
  return (text) => {
    const ids = [];
    for (const raw of cutAt(text, added.raw)) {
      if (raw.id !== undefined) ids.push(raw.id);
      else {
        // As there, a text whose first letter the normalizer drops has no beginning, which Metaspace asks for.
        const begins = raw.first && normalize(String.fromCodePoint(raw.text.codePointAt(0))) !== "";
        for (const each of cutAt(normalize(raw.text), added.normalized)) {
          if (each.id !== undefined) ids.push(each.id);
          else ids.push(...model(split([{ text: each.text, first: begins && each.first }])));
        }
      }
    }
    return [...before, ...kept(ids), ...after];
  };
}

const isId = (id) => Number.isInteger(id) && id >= 0 && id < 2 ** 31;

/** The steps of a part of tokenizer.json as one function; without steps, its argument comes back. */
function chain(part, key, make) {
  if (!part) return (value) => value;
  if (part.type !== "Sequence") return make(part);
  const steps = part[key].map((each) => chain(each, key, make));
  return (value) => steps.reduce((done, step) => step(done), value);
}

// ---- added tokens

/** {raw, normalized}: tokens that are searched in the text as it is, and those that are searched in the normalized text. */
function addedTokens(json, normalize) {
  const tokens = (json.added_tokens ?? []).filter((token) => token.content);
  const ordered = [...tokens.filter((token) => token.special), ...tokens.filter((token) => !token.special)]; // of two alike the first
  const searched = (some, spelling) => {
    const byLength = some.map((token) => ({ ...token, found: spelling(token.content) })).filter((token) => token.found);
    byLength.sort((a, b) => b.found.length - a.found.length); // the longest wins; sorting is stable
    const byText = new Map(byLength.toReversed().map((token) => [token.found, token]));
    const pattern = byLength.map((token) => escaped(token.found)).join("|");
    return { byText, pattern: pattern && new RegExp(pattern, "gu") };
  };
  return {
    raw: searched(
      ordered.filter((token) => !token.normalized),
      (content) => content,
    ),
    normalized: searched(
      ordered.filter((token) => token.normalized),
      normalize,
    ),
  };
}

const STARTS_WITH_WORD = new RegExp(`^${WORD}`, "u");
const ENDS_WITH_WORD = new RegExp(`${WORD}$`, "u");
const SPACE_AT_START = new RegExp(`^${SPACE}*`, "u");

/** The parts of a text in order: {id} of an added token, or {text, first}, first where it begins the text. */
function cutAt(text, { byText, pattern }) {
  if (!text) return [];
  const parts = [];
  let from = 0;
  for (const match of pattern ? text.matchAll(pattern) : []) {
    const token = byText.get(match[0]);
    let [start, stop] = [match.index, match.index + match[0].length];
    const inWord = STARTS_WITH_WORD.test(text.slice(stop, stop + 2)) || ENDS_WITH_WORD.test(text.slice(Math.max(0, start - 2), start));
    if (token.single_word && inWord) continue;
    if (token.lstrip) start = Math.max(from, trimmedEnd(text.slice(0, start)).length);
    if (token.rstrip) stop += SPACE_AT_START.exec(text.slice(stop))[0].length;
    if (from < start) parts.push({ text: text.slice(from, start), first: from === 0 });
    parts.push({ id: token.id });
    from = stop;
  }
  if (from < text.length) parts.push({ text: text.slice(from), first: from === 0 });
  return parts;
}

// ---- normalizers: text -> text

function normalizer(library, step) {
  switch (step.type) {
    case "BertNormalizer":
      return bertNormalizer(step);
    case "Lowercase":
      return lowercase;
    case "NFC":
    case "NFD":
    case "NFKC":
    case "NFKD":
      return (text) => text.normalize(step.type);
    case "StripAccents":
      return (text) => text.replace(/\p{M}/gu, "");
    case "Strip":
      return (text) => {
        const left = step.strip_left ? text.slice(SPACE_AT_START.exec(text)[0].length) : text;
        return step.strip_right ? trimmedEnd(left) : left;
      };
    case "Replace": {
      const pattern = expression(library, step.pattern);
      return (text) => text.replace(pattern, () => step.content);
    }
    case "Prepend":
      return (text) => text && step.prepend + text;
    case "ByteLevel":
      return bytesAsLetters;
    case "Nmt":
      return (text) =>
        text.replace(/[\x01-\x08\x0B\x0E-\x1F\x7F\x8F\x9F]/g, "").replace(/[\t\n\f\r\u1680\u200B-\u200F\u2028\u2029\u2581\uFEFF\uFFFD]/g, " ");
    case "Precompiled":
      return precompiled(step.precompiled_charsmap);
    default:
      throw new Error(`normalizer: ${step.type} is not known`);
  }
}

/** Letter by letter: JavaScript's toLowerCase of a whole text writes ς at the end of a word. */
const lowercase = (text) => text.replace(/\P{Lowercase}/gu, (letter) => letter.toLowerCase());

function bertNormalizer({ clean_text, handle_chinese_chars, strip_accents, lowercase: lower }) {
  const ideographs = new RegExp(IDEOGRAPHS, "gu");
  const spaces = new RegExp(SPACE, "gu");
  return (text) => {
    if (clean_text) text = text.replace(/[\0\uFFFD]|(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}]/gu, "").replace(spaces, " ");
    if (handle_chinese_chars) text = text.replace(ideographs, " $& ");
    if (strip_accents ?? lower) text = text.normalize("NFD").replace(/\p{Mn}/gu, "");
    return lower ? lowercase(text) : text;
  };
}

/** SentencePiece's table of characters: a double array over UTF-8, and the texts that its values point to. */
function precompiled(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const size = view.getUint32(0, true);
  const units = Uint32Array.from({ length: size >> 2 }, (_, at) => view.getUint32(4 + 4 * at, true));
  const texts = bytes.subarray(4 + size);
  const [encoder, decoder] = [new TextEncoder(), new TextDecoder()];
  const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
  /** What the shortest prefix in the table stands for, undefined where there is none. */
  const replacement = (text) => {
    let at = offset(units[0]);
    for (const byte of encoder.encode(text)) {
      if (byte === 0) return undefined;
      at ^= byte;
      const unit = units[at];
      if (unit === undefined || (unit & 0x800000ff) >>> 0 !== byte) return undefined;
      at ^= offset(unit);
      if ((unit >>> 8) & 1) {
        const start = units[at] & 0x7fffffff;
        return decoder.decode(texts.subarray(start, texts.indexOf(0, start)));
      }
    }
    return undefined;
  };
  const graphemes = new Intl.Segmenter("en", { granularity: "grapheme" });
  return (text) => {
    const found = [];
    for (const { segment } of graphemes.segment(text)) {
      const whole = encoder.encode(segment).length < 6 ? replacement(segment) : undefined;
      if (whole !== undefined) found.push(whole);
      else for (const letter of segment) found.push(replacement(letter) ?? letter);
    }
    return found.join("");
  };
}

/** Each byte of UTF-8 as one visible character: GPT-2's table. */
const BYTE_LETTERS = (() => {
  const isVisible = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isVisible(byte) ? byte : 256 + others++));
})();
const bytesAsLetters = (text) => Array.from(new TextEncoder().encode(text), (byte) => BYTE_LETTERS[byte]).join("");

// ---- pre-tokenizers: [{text, first}] -> [{text, first}]

function preTokenizer(library, step) {
  const by = (source, behavior, invert) => splitter(new RegExp(source, "gu"), behavior, invert);
  const change = (alter) => (pieces) => pieces.map((piece) => ({ ...piece, text: alter(piece) }));
  switch (step.type) {
    case "BertPreTokenizer": {
      const [words, marks] = [by(SPACE, "Removed"), by(PUNCTUATION, "Isolated")];
      return (pieces) => marks(words(pieces));
    }
    case "ByteLevel": {
      const spaced = change(({ text }) => (step.add_prefix_space && !text.startsWith(" ") ? ` ${text}` : text));
      const runs = step.use_regex === false ? (pieces) => pieces : by(RUNS_OF_BYTES, "Isolated");
      return (pieces) => change(({ text }) => bytesAsLetters(text))(runs(spaced(pieces)));
    }
    case "Whitespace":
      return by(`${WORD}+|[^${WORD.slice(1, -1)}${SPACE}]+`, "Removed", true);
    case "WhitespaceSplit":
      return by(SPACE, "Removed");
    case "CharDelimiterSplit":
      return by(escaped(step.delimiter), "Removed");
    case "Digits":
      return by("\\p{N}", step.individual_digits ? "Isolated" : "Contiguous");
    case "Punctuation":
      return by(PUNCTUATION, step.behavior ?? "Isolated");
    case "Split":
      return splitter(expression(library, step.pattern), step.behavior, step.invert);
    case "FixedLength":
      return by(`[^]{1,${Math.max(1, Math.trunc(step.length))}}`, "Isolated"); // a number, whatever stands there
    case "Metaspace":
      return metaspace(step);
    default:
      throw new Error(`pre_tokenizer: ${step.type} is not known`);
  }
}

function metaspace({ replacement, prepend_scheme: scheme = "always", split = true }) {
  const words = split ? splitter(new RegExp(escaped(replacement), "gu"), "MergedWithNext") : (pieces) => pieces;
  const marked = ({ text, first }) => {
    const replaced = text.replaceAll(" ", replacement);
    const prepends = scheme === "always" || (scheme === "first" && first);
    return prepends && !replaced.startsWith(replacement) ? replacement + replaced : replaced;
  };
  return (pieces) => words(pieces.map((piece) => ({ ...piece, text: marked(piece) })));
}

/** Splits pieces where a pattern matches (or, inverted, where it does not); `behavior` says what becomes of the matches. */
function splitter(pattern, behavior, invert = false) {
  return (pieces) =>
    pieces.flatMap(({ text, first }) => {
      const found = [];
      let from = 0;
      const add = (to, matches) => {
        if (from < to) found.push({ text: text.slice(from, to), first: first && from === 0, matches: matches !== invert });
        from = to;
      };
      for (const match of text.matchAll(pattern)) {
        add(match.index, false);
        add(match.index + match[0].length, true);
      }
      add(text.length, false);
      return merged(found, behavior);
    });
}

function merged(parts, behavior) {
  if (behavior === "Removed") return parts.filter(({ matches }) => !matches);
  const joins = {
    Isolated: () => false,
    Contiguous: (left, right) => left.matches === right.matches,
    MergedWithPrevious: (left, right) => right.matches && !left.matches,
    MergedWithNext: (left, right) => left.matches && !right.matches,
  }[behavior];
  if (!joins) throw new Error(`pre_tokenizer: behavior ${behavior} is not known`);
  const found = [];
  let last;
  for (const part of parts) {
    if (last && joins(last, part)) found.at(-1).text += part.text;
    else found.push({ ...part });
    last = part;
  }
  return found;
}

// ---- models: [{text}] -> ids

function modelIds(library, json) {
  if (json.type === "Unigram") return unigram(json);
  if (json.type === "WordLevel") {
    const vocabulary = new Map(Object.entries(json.vocab));
    return (pieces) => pieces.flatMap(({ text }) => vocabulary.get(text) ?? vocabulary.get(json.unk_token) ?? []);
  }
  const unsupported = json.type === "BPE" ? ["dropout", "continuing_subword_prefix"].filter((key) => json[key]) : [];
  if (!["BPE", "WordPiece"].includes(json.type)) throw new Error(`model: ${json.type} is not known`);
  if (unsupported.length) throw new Error(`model: ${json.type} with ${unsupported.join(" and ")} is not known`);
  const model = new library[json.type](json);
  const vocabulary = model.tokens_to_ids;
  const unknown = vocabulary.get(json.unk_token);
  return (pieces) =>
    pieces.flatMap(({ text }) =>
      model([text]).map((token) => {
        const id = vocabulary.get(token) ?? unknown;
        if (id === undefined) throw new Error(`model: its unknown token ${json.unk_token} is not in its vocabulary`);
        return id;
      }),
    );
}

/** The most probable segmentation of each piece; unknown characters in a row are one token, or bytes where `byte_fallback`. */
function unigram({ vocab, unk_id: unknown, byte_fallback: fallback }) {
  const ids = new Map(vocab.map(([token], id) => [token, id]));
  const longest = vocab.reduce((most, [token]) => Math.max(most, token.length), 1);
  const least = vocab.reduce((lowest, [, score]) => Math.min(lowest, score), Infinity) - UNKNOWN_PENALTY;
  const prefixes = new Set(vocab.flatMap(([token]) => Array.from(token, (_, at) => [...token].slice(0, at + 1).join(""))));
  const asIds = (token) => {
    const id = ids.get(token);
    if (id !== undefined) return [id];
    const bytes = fallback ? Array.from(new TextEncoder().encode(token), byteToken).map((each) => ids.get(each)) : [undefined];
    if (!bytes.includes(undefined)) return bytes;
    if (unknown === null || unknown === undefined) throw new Error("model: its vocabulary has no unknown token");
    return [unknown];
  };
  return (pieces) => pieces.flatMap(({ text }) => segmented(text, { ids, vocab, prefixes, longest, least, unknown }).flatMap(asIds));
}

const byteToken = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

function segmented(text, { ids, vocab, prefixes, longest, least, unknown }) {
  const best = new Array(text.length + 1); // of each end: {score, start, id}
  best[0] = { score: 0 };
  for (let start = 0; start < text.length;) {
    const { score } = best[start];
    const width = text.codePointAt(start) > 0xffff ? 2 : 1;
    const reach = (end, id, gain) => {
      if (!best[end] || score + gain > best[end].score) best[end] = { score: score + gain, start, id };
    };
    let single = false;
    for (let end = start + width; end <= Math.min(text.length, start + longest);) {
      const token = text.slice(start, end);
      if (!prefixes.has(token)) break;
      const id = ids.get(token);
      if (id !== undefined) reach(end, id, vocab[id][1]);
      single ||= id !== undefined && end === start + width;
      end += text.codePointAt(end) > 0xffff ? 2 : 1;
    }
    if (!single) reach(start + width, unknown, least);
    start += width;
  }
  const tokens = [];
  let run = ""; // of unknown characters
  for (let end = text.length; end > 0; end = best[end].start) {
    const token = text.slice(best[end].start, end);
    if (best[end].id === unknown) run = token + run;
    else {
      if (run) tokens.push(run);
      tokens.push(token);
      run = "";
    }
  }
  if (run) tokens.push(run);
  return tokens.reverse();
}

// ---- post-processors

/** The ids of the special tokens before and behind a text. */
function specialTokens(processor) {
  switch (processor?.type) {
    case undefined:
    case "ByteLevel":
      return [[], []];
    case "BertProcessing":
    case "RobertaProcessing":
      return [[processor.cls[1]], [processor.sep[1]]];
    case "Sequence":
      return processor.processors.map(specialTokens).reduce(([before, after], [outer, behind]) => [
        [...outer, ...before],
        [...after, ...behind],
      ]);
    case "TemplateProcessing": {
      const { single, special_tokens: special } = processor;
      const at = single.findIndex((item) => item.Sequence);
      const ids = (items) => items.flatMap((item) => special[item.SpecialToken.id].ids);
      return [ids(single.slice(0, at)), ids(single.slice(at + 1))];
    }
    default:
      throw new Error(`post_processor: ${processor.type} is not known`);
  }
}

// ---- expressions

/** A pattern of tokenizer.json as JavaScript's. */
function expression(library, pattern) {
  if (pattern.String !== undefined) return new RegExp(escaped(pattern.String), "gu");
  return new library.SplitPreTokenizer({ type: "Split", pattern, invert: false }).pattern;
}

const escaped = (text) => text.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&").replaceAll("\\-", "\\x2D");

function trimmedEnd(text) {
  let end = text.length;
  while (end > 0 && /\p{White_Space}/u.test(text[end - 1])) end--;
  return text.slice(0, end);
}
