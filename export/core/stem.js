/** The stem of an English word: Snowball's algorithm (Porter 2), as PyStemmer has it. */

const V = "[aeiouy]"; // Y is a y that is no vowel
const SHORT = /(^[aeiouy][^aeiouy]|[^aeiouy][aeiouy][^aeiouywxY]|^past)$/;
const WHOLE = { skis: "ski", skies: "sky", idly: "idl", gently: "gentl", ugly: "ugli", early: "earli", only: "onli", singly: "singl" };
for (const word of ["sky", "news", "howe", "atlas", "cosmos", "bias", "andes"]) WHOLE[word] = word;
const KEPT = /^(inning|outing|canning|herring|earring|evening|proceed|exceed|succeed)s?$/;
const PREFIX = /^(gener|commun|arsen|past|univers|later|emerg|organ|inter)/;
const ENDINGS = [
  { tional: "tion", enci: "ence", anci: "ance", abli: "able", entli: "ent", izer: "ize", ization: "ize", ational: "ate", ation: "ate", ator: "ate", alism: "al",
    aliti: "al", alli: "al", fulness: "ful", ousli: "ous", ousness: "ous", iveness: "ive", iviti: "ive", biliti: "ble", bli: "ble", ogi: "og", ogist: "og",
    fulli: "ful", lessli: "less", li: "" },
  { tional: "tion", ational: "ate", alize: "al", icate: "ic", iciti: "ic", ical: "ic", ful: "", ness: "", ative: "" },
  Object.fromEntries("al ance ence er ic able ible ant ement ment ent ism ate iti ous ive ize ion".split(" ").map((end) => [end, ""])),
].map((table) => [new RegExp(`(${Object.keys(table).sort((a, b) => b.length - a.length).join("|")})$`), table]);

export function stem(text) {
  if (text.length < 3) return text;
  if (Object.hasOwn(WHOLE, text)) return WHOLE[text];
  let word = text.replace(/^y/, "Y").replace(/([aeiouy])y/g, "$1Y");
  const region = (from) => from + (word.slice(from).match(/[aeiouy][^aeiouy]/)?.index ?? word.length) + 2;
  const r1 = Math.min(word.length, word.match(PREFIX)?.[0].length ?? region(0));
  const r2 = Math.min(word.length, region(r1));
  const cut = (count, end = "") => (word = word.slice(0, word.length - count) + end);
  if (/sses$/.test(word)) cut(2);
  else if (/ie[ds]$/.test(word)) cut(word.length > 4 ? 2 : 1);
  else if (new RegExp(`${V}.+s$`).test(word) && !/[us]s$/.test(word)) cut(1);
  if (KEPT.test(word)) return word;
  const [past] = word.match(/(eed|ed|ing)(ly)?$/) ?? [""];
  if (past.startsWith("eed")) {
    if (word.length - past.length >= r1) cut(past.length, "ee");
  } else if (/^[^aeiouy]ying(ly)?$/.test(word)) {
    word = `${word[0]}ie`;
  } else if (past && new RegExp(V).test(word.slice(0, -past.length))) {
    cut(past.length);
    if (/(at|bl|iz)$/.test(word)) word += "e";
    else if (/^(?![aeo]..$).*(bb|dd|ff|gg|mm|nn|pp|rr|tt)$/.test(word)) cut(1);
    else if (r1 >= word.length && SHORT.test(word)) word += "e";
  }
  if (/.[^aeiouy][yY]$/.test(word)) cut(1, "i");
  ENDINGS.forEach(([pattern, table], at) => {
    const [end] = word.match(pattern) ?? [""];
    const before = word.slice(0, word.length - end.length);
    if (!end || before.length < (at < 2 && end !== "ative" ? r1 : r2)) return;
    const after = { ogi: /l$/, li: /[cdeghkmnrt]$/, ion: /[st]$/ }[end];
    if (!after || after.test(before)) word = before + table[end];
  });
  const most = word.length - 1;
  if (word.endsWith("e") && (most >= r2 || (most >= r1 && !SHORT.test(word.slice(0, -1))))) cut(1);
  else if (/ll$/.test(word) && most >= r2) cut(1);
  return word.replaceAll("Y", "y");
}
