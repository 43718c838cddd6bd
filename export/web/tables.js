// Lines from a table: .csv and .tsv as RFC 4180 quotes them, a row a line.

const NUMBER = /^[-+.,\d\s%€$]*$/u; // or nothing
const MOST_NAME = 30; // characters of a column's name

/** {lines, header: the names of their columns, or none where the first row is one like the others, left: the columns without a word, left out}. */
export function tableLines(text, separator) {
  const [first = [], ...rest] = rowsOf(text, separator);
  const isText = [];
  for (const row of rest.length ? rest : [first]) row.forEach((cell, at) => (isText[at] ||= !NUMBER.test(cell)));
  const isKept = isText.includes(true) ? (_, at) => isText[at] : () => true;
  const areNames = new Set(first).size === first.length && first.every((cell) => cell.length <= MOST_NAME && !NUMBER.test(cell) && !/[.?!]$/u.test(cell));
  const size = (row) => row.filter(isKept).join("").length;
  const mean = rest.reduce((sum, row) => sum + size(row), 0) / rest.length;
  const isHeader = areNames && (!first.every(isKept) || mean >= 2 * size(first)); // above numbers, or above longer texts
  const lines = (isHeader ? rest : [first, ...rest]).map((row) => row.filter(isKept).filter(Boolean).join(" · "));
  const left = [...first.keys()].filter((at) => !isKept(first[at], at)).map((at) => (isHeader ? first[at] : `column ${at + 1}`));
  return { lines, header: isHeader ? first.filter(isKept) : [], left };
}

/** The cells of each row that has any; a line break in one is a space, and a quote that nothing ends is a quote. */
function rowsOf(text, separator) {
  const cell = new RegExp(`(?:"([^"]*(?:""[^"]*)*)"(?=${separator}|\\r?\\n|$)|([^${separator}\\n]*))(${separator}|\\r?\\n|$)`, "gy");
  const rows = [[]];
  for (let match = cell.exec(text); match; match = cell.lastIndex < text.length ? cell.exec(text) : null) {
    rows.at(-1).push((match[1]?.replaceAll('""', '"') ?? match[2]).replace(/\s+/gu, " ").trim());
    if (match[3].endsWith("\n")) rows.push([]);
  }
  return rows.filter((row) => row.some(Boolean));
}
