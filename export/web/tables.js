// Lines from files that have not one text a line: .csv as RFC 4180 quotes it, .tsv, .jsonl, .md.

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
  const lines = (isHeader ? rest : [first, ...rest]).map((row) => lineOf(row, keeps));
  const left = [...first.keys()].filter((at) => !isKept(first[at], at)).map((at) => (isHeader ? first[at] : `column ${at + 1}`));
  return { lines, header: isHeader ? first.filter(isKept) : [], left };
}

/** The same of a JSON value a row, whose columns are the paths of its texts and numbers; a row that is no JSON is a line as it is. */
export function jsonLines(text) {
  const rows = text.split(/\r?\n/u).map((row) => cellsOf(row) ?? row.trim());
  const cells = rows.filter((row) => typeof row !== "string");
  const keeps = cells.some((row) => row.has("text")) ? (column) => column === "text" : choiceOf(cells);
  const lines = rows.map((row) => (typeof row === "string" ? row : lineOf(row, keeps))).filter(Boolean);
  const names = [...new Set(cells.flatMap((row) => [...row.keys()]))];
  const named = names.filter((name) => /\D/u.test(name)); // a list's have numbers alone
  return { lines, header: named.filter(keeps), left: named.filter((name) => !keeps(name)) };
}

/** The texts and numbers of a row of JSON, by their paths; null where it is none. */
function cellsOf(row) {
  const cells = new Map();
  const add = (value, path) => {
    if (["string", "number", "boolean"].includes(typeof value)) cells.set(path.join("."), flat(String(value)));
    else for (const [key, each] of Object.entries(value ?? {})) add(each, [...path, key]);
  };
  try {
    add(JSON.parse(row, (_, value, context) => (typeof value === "number" ? (context?.source ?? value) : value)), []); // as it is written, where the browser knows
  } catch {
    return null;
  }
  return cells;
}

/** Whether a column is kept: one with a word in any of these rows, each a list or map of cells; all where none has one. */
function choiceOf(rows) {
  const worded = new Set();
  for (const row of rows) for (const [column, cell] of row.entries()) if (!NUMBER.test(cell)) worded.add(column);
  return (column) => !worded.size || worded.has(column);
}

function lineOf(row, keeps) {
  const kept = [...row.entries()].filter(([column, cell]) => cell && keeps(column));
  return kept.map(([, cell]) => cell).join(" · ");
}

const flat = (text) => text.replace(/\s+/gu, " ").trim();

const RULE = /^[\s|:*_=-]*$/u; // or nothing
const MARK = /^(#{1,6}\s+|[-*+]\s+|(?=\d+[.)]\s)|(?=\|))/u; // of what begins a line: a heading, an item, a table's row

/** The lines of a Markdown text: a paragraph, heading, item or row of a table each, without its marks; a fence's as they are. */
export function markdownLines(text) {
  const lines = [];
  let [goesOn, fence, depth] = [false, "", 0]; // whether the next line may belong to the last; what ends the fence; quotes around the last
  for (const typed of text.split(/\r?\n/u)) {
    const [mark = ""] = /^\s*(?:```+|~~~+)/u.exec(typed) ?? [];
    if (mark && (!fence || mark.trim().startsWith(fence))) [fence, goesOn] = [fence ? "" : mark.trim(), false];
    else if (fence) lines.push(typed);
    else {
      const [quote] = /^[\s>]*/u.exec(typed);
      const deep = quote.replace(/\s/gu, "").length;
      const rest = typed.slice(quote.length);
      const begins = MARK.test(rest);
      const isRow = rest.startsWith("|");
      const line = isRow ? rest.split("|").map(flat).filter(Boolean).join(" · ") : rest.replace(MARK, "").trim();
      const isRule = RULE.test(rest);
      if (!isRule && goesOn && !begins && deep === depth) lines.push(`${lines.pop()} ${line}`);
      else if (!isRule) lines.push(line);
      goesOn = !isRule && !isRow && !rest.startsWith("#") && !/(\s{2}|\\)$/u.test(rest); // these two end a line in a paragraph
      depth = deep;
    }
  }
  return lines.map((line) => line.replace(/\*\*(?=\S)(.+?)(?<=\S)\*\*/gu, "$1"));
}

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
