// Lines from tables: .csv as RFC 4180 quotes it, and .tsv.

const NUMBER = /^(?:[-+.,\d\s%€$]*(?:\de[-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)|true|false)$/iu; // or nothing; as in Python
const MOST_NAME = 30; // characters of a column's name

/** {lines, header: the names of their columns, or none where the first row is one like the others, left: the columns that are left out, without a word or beside one named text}. */
export function tableLines(text, separator) {
  const [first = [], ...rest] = rowsOf(text, separator);
  const named = first.indexOf("text");
  const keeps = named < 0 ? choiceOf(rest.length ? rest : [first]) : (at) => at === named;
  const isKept = (_, at) => keeps(at);
  const areNames = new Set(first).size === first.length && first.every((cell) => cell.length <= MOST_NAME && !NUMBER.test(cell) && !/[.?!]$/u.test(cell));
  const size = (row) => row.filter(isKept).join("").length;
  const mean = rest.reduce((sum, row) => sum + size(row), 0) / rest.length;
  const isHeader = named >= 0 || (areNames && (!first.every(isKept) || mean >= 2 * size(first))); // above numbers, or above longer texts
  const lines = (isHeader ? rest : [first, ...rest]).map((row) => row.filter((cell, at) => cell && keeps(at)).join(" · "));
  const left = [...first.keys()].filter((at) => !isKept(first[at], at)).map((at) => (isHeader ? first[at] : `column ${at + 1}`));
  return { lines, header: isHeader ? first.filter(isKept) : [], left };
}

/** Whether a column is kept: one with a word in any of these rows; all where none has one. */
function choiceOf(rows) {
  const worded = new Set(rows.flatMap((row) => [...row.keys()].filter((at) => !NUMBER.test(row[at]))));
  return (column) => !worded.size || worded.has(column);
}

const flat = (text) => text.replace(/\s+/gu, " ").trim();

/** The cells of each row that has any; a line break in one is a space, and a quote that nothing ends is a quote. A cell of .tsv ends with its line, as in Python. */
function rowsOf(text, separator) {
  const inside = separator === "\t" ? '[^"\\n]' : '[^"]';
  const cell = new RegExp(`(?:"(${inside}*(?:""${inside}*)*)"(?=${separator}|\\r?\\n|$)|([^${separator}\\n]*))(${separator}|\\r?\\n|$)`, "gy");
  const rows = [[]];
  for (let match = cell.exec(text); match; match = cell.lastIndex < text.length ? cell.exec(text) : null) {
    rows.at(-1).push(flat(match[1]?.replaceAll('""', '"') ?? match[2]));
    if (match[3].endsWith("\n")) rows.push([]);
  }
  return rows.filter((row) => row.some(Boolean));
}
