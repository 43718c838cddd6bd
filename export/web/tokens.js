// Texts become token ids: tokenizer.json through @huggingface/tokenizers, with the truncation that package leaves out.

// The package looks for Chinese characters one UTF-16 unit at a time and so misses these, which tokenizer.json separates too.
const SUPPLEMENTARY_CHINESE = /[\u{20000}-\u{2A6DF}\u{2A700}-\u{2B81F}\u{2B920}-\u{2CEAF}\u{2F800}-\u{2FA1F}]/gu;

/** A function from a text to its token ids, as `tokenizers` gives them: prompt, special tokens, at most max_tokens. */
export function tokenizer(Tokenizer, json, { prompt, max_tokens: most }) {
  const inner = new Tokenizer(json, {});
  const separates = steps(json.normalizer).some((step) => step.type === "BertNormalizer" && step.handle_chinese_chars !== false);
  const [before, after] = specialTokens(inner);
  const room = Math.max(0, most - before.length - after.length);
  return (text) => {
    const spaced = separates ? (prompt + text).replace(SUPPLEMENTARY_CHINESE, " $& ") : prompt + text;
    const ids = inner.encode(spaced, { add_special_tokens: false }).ids;
    return [...before, ...ids.slice(0, room), ...after];
  };
}

/** The ids that the post-processor puts before and after a text's own. */
function specialTokens(inner) {
  const own = inner.encode("a", { add_special_tokens: false }).ids;
  const all = inner.encode("a").ids;
  for (let start = 0; start + own.length <= all.length; start++) {
    if (own.every((id, at) => id === all[start + at])) return [all.slice(0, start), all.slice(start + own.length)];
  }
  throw new Error("tokenizer.json: its post-processor changes a text's own tokens");
}

function steps(normalizer) {
  return normalizer?.type === "Sequence" ? normalizer.normalizers.flatMap(steps) : normalizer ? [normalizer] : [];
}
