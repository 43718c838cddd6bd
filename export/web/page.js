// The page: open a student, embed the visitor's lines, search them while they type. Strangers' text becomes text nodes, never HTML. All arithmetic is behind encoder.js.

import { BM25, CLOSE, joined, WEIGHT, words } from "./core/search.js";
import { StudentError, load, missingFeature, similarity } from "./encoder.js";
import { QUERY, exampleOf } from "./example.js";
import { tableLines } from "./tables.js";

const $ = (id) => document.getElementById(id);
const MOST_LINES = 20_000;
const MOST_BYTES = 5e6; // of a text file
const MOST_MARKED = 5_000; // characters of a line in which words are marked
const NEAREST = 8; // lines shown at first
const MORE = 20; // lines that one press adds
const PORTION = 128; // lines embedded between two looks at Stop
const PAUSE_MS = 600; // of typing, after which the lines are embedded
const LONG_PASTE = 10_000; // characters, from which the page pastes in the browser's place
const FEW = 64; // lines that are embedded before anybody could press Stop
const TYPES = [".txt", ".md", ".csv", ".tsv", ".log"]; // of text files, beside all that the browser calls text/
const WORK = ["student", "lines", "search", "more-about"]; // the sections while a student is open
const START = ["lines", "open"]; // and before
const STUDENT = /\.bin$/iu; // its file
const BUNDLED = /(^manifest\.json|\.onnx)$/u; // what a bundle has
const WORDS = { nano: "start with this", micro: "smallest and fastest", small: "finds best", multi: "across languages" }; // of those that ship
const SAYS = /[\p{L}\p{N}\p{So}]/u; // a line that can be searched, as no rule or bracket can
const WIDE = 1024; // pixels from which style.css puts lines and search side by side

let encoder = null; // the opened student
let source = null; // what it was loaded from
let rowOf = new Map(); // line -> its embedding
let embedded = { lines: [], of: [] }; // what is searched, all that was to be, and noun, numbers, index (BM25) once there are some
let example = exampleOf([]); // in the languages of the open student
let unrelated = []; // the example's embeddings: what a query's cosine is with lines that it was not made for
let own = ""; // the visitor's lines, while the example is shown
let cleared = ""; // the lines that Clear took, until others are there
let halted = ""; // why lines wait for a press of the button: "stopped" or "failed"
let pause; // a timer, while lines are typed
let limit = NEAREST; // results shown
let stop = new AbortController();
let opening = new AbortController(); // of the newest student, which alone is shown

// ---- opening

function show(...sections) {
  for (const id of ["error", "open", "loading", ...WORK]) $(id).hidden = !sections.includes(id);
  document.body.classList.toggle("at-work", sections.includes("student"));
  if (encoder && $("student").nextElementSibling === $("lines")) $("student").after($("open"), $("loading")); // no longer the next step
  showKept();
  const isChoosing = sections.includes("open");
  $("another").ariaExpanded = String(isChoosing);
  $("another").textContent = isChoosing ? "Close" : "Change encoder";
  nameStudents();
}

/** What becomes of lines that are there before an encoder. */
function showKept() {
  const kept = encoder ? 0 : lines().length;
  $("kept").textContent = kept ? `Pick an encoder to search your ${counted(kept, "line")}` : "";
  $("without").hidden = kept > 0;
}

/** A button for each student that is offered, but for the open one. */
function nameStudents() {
  for (const [at, { children }] of [...$("students").children].entries()) {
    const [button, openNow] = children;
    button.hidden = Boolean(encoder) && source === button.value;
    openNow.hidden = !button.hidden;
    button.className = at || encoder ? "" : "primary";
  }
}

/** Open a student in place of the one that is open, which stays where the new one is refused. */
async function open(from, isTyped = false) {
  opening.abort();
  $("url").ariaInvalid = null;
  const { signal } = (opening = new AbortController());
  show("loading", ...(encoder ? WORK : ["lines"]));
  $("stage").focus(); // the button that opens it may be gone
  $("stage").textContent = "Opening…";
  $("bytes").removeAttribute("value");
  try {
    const loaded = await load(from, { signal, progress: showProgress });
    const examples = exampleOf(loaded.languages);
    const rows = signal.aborted ? [] : await loaded.encodeDocument(examples);
    if (signal.aborted) return loaded.close();
    const toFill = isExample() || (isListed(from) && !lines().length);
    closeStudent();
    source = from;
    encoder = globalThis.encoder = loaded; // also for the console
    [example, unrelated] = [examples, rows];
    rowOf = new Map(example.map((line, at) => [line, rows[at]]));
    if (toFill) fillExample($("query").value || QUERY);
    showStudent();
    show(...WORK);
    keepInAddress();
    $("student-name").focus();
    if (lines().length) await embedLines();
    if (encoder === loaded) await check(); // after what the visitor waits for
  } catch (error) {
    if (!signal.aborted) showError(error, isTyped);
  }
}

/** Open what a visitor typed, or what stands in the page's address. */
function openTyped(typed) {
  if (!typed) return show(...(encoder ? WORK : START));
  const isTyped = $("url").value.trim() === typed;
  try {
    open(addressOf(typed), isTyped);
  } catch (error) {
    showError(error, isTyped);
  }
}

/** The open student in the page's address, so that a reload opens it again; a visitor's file cannot be. */
function keepInAddress() {
  const address = new URL(location.pathname, location.origin);
  if (typeof source === "string") address.searchParams.set("student", nameOf(source) ?? source);
  history.replaceState(null, "", address);
}

function showProgress({ bytes, size }) {
  $("stage").textContent = bytes < size ? `Loading ${megabytes(bytes)} of ${megabytes(size)}` : "Opening…";
  $("bytes").value = bytes / size;
}

/** An error of ours reads *place: fact; way out*, and is shown as these three, below what was refused. `isTyped`: the address, which stays to be corrected. */
function showError(error, isTyped = false) {
  if (!(error instanceof StudentError)) console.error(error);
  const [, place, fact, wayOut] = /^(.*?): (.*?)(?:[;:] ([^;:]*))?$/su.exec(error.message) ?? [];
  $("place").textContent = place ?? "";
  $("fact").textContent = sentence(fact ?? error.message);
  $("way-out").textContent = sentence(wayOut ?? "");
  const cannot = Boolean(missingFeature());
  const refused = encoder ? `Not opened; ${encoder.name} stays open` : "The encoder was not opened";
  $("refusal").textContent = cannot ? "The encoder cannot run here" : refused;
  const rest = [...(encoder ? WORK : START), ...(isTyped ? ["open"] : [])];
  $("url").ariaInvalid = isTyped ? "true" : null;
  $("dismiss").hidden = cannot;
  show("error", ...(cannot ? [] : rest));
  $("refusal").focus();
}

function showStudent() {
  const { name, dims, maxTokens, precision, isPair } = encoder;
  $("student-name").textContent = name;
  const kind = isPair ? ", queries by one encoder and lines by another" : "";
  $("shape").textContent = `${dims[0]} dimensions, of up to ${maxTokens} tokens a text; weights in ${precision}${kind}`;
  $("speed").textContent = "not measured yet";
  $("golden").textContent = "";
  showFacts("");
  showEmbedded();
}

function showFacts(checked) {
  const { languages, size_bytes } = encoder;
  $("facts").textContent = [few(languagesNamed(languages)), megabytes(size_bytes), checked].filter(Boolean).join(" · ");
}

function showGolden({ worst, least }) {
  const ok = worst >= least;
  showFacts(ok ? "checked ✓" : "golden texts differ ✗");
  const digits = least < 0.999 ? 4 : 6;
  const bound = `worst cosine ${worst.toFixed(digits)}, at least ${least.toFixed(digits)}`;
  const texts = `${encoder.golden} texts whose embeddings come with the encoder; ${bound}`;
  $("golden").replaceChildren(ok ? "✓ same results as in Python" : "✗ other results than in Python", note(texts));
  $("golden").className = ok ? "good" : "bad";
}

function closeStudent() {
  stop.abort("closed");
  encoder?.close();
  encoder = null;
  rowOf = new Map();
  embedded = { lines: [], of: [] };
  showNearest();
}

// ---- check and time

async function busy(button, place, doing, call) {
  const asked = encoder;
  button.disabled = true;
  place.textContent = doing;
  place.className = "";
  try {
    await call();
  } catch (error) {
    if (encoder === asked) [place.textContent, place.className] = [error.message, "bad"];
  }
  button.disabled = false;
}

const check = () => busy($("check"), $("golden"), "checking…", async () => showGolden(await encoder.check()));

const time = () =>
  busy($("time"), $("speed"), "measuring for a few seconds…", async () => {
    const { p50_ms, rate_texts_s, tokens_mean } = await encoder.time();
    const line = `a query ${p50_ms.toFixed(p50_ms < 10 ? 1 : 0)} ms (p50) · ${whole(rate_texts_s)} texts/s`; // what a browser's clock resolves
    $("speed").replaceChildren(line, note(`texts of ${tokens_mean.toFixed(0)} tokens, tokenization included`));
  });

// ---- lines

/** The visitor's lines and their numbers, as many as the page takes, which it says below them. */
function numbered() {
  const typed = $("texts").value.split(/\r?\n/u);
  const all = typed.map((line, at) => ({ line: line.trim(), number: at + 1 })).filter(({ line }) => SAYS.test(line));
  const cut = `${whole(MOST_LINES)} of ${counted(all.length, "line")}; the page takes no more`;
  $("too-many").textContent = all.length > MOST_LINES ? cut : "";
  return all.slice(0, MOST_LINES);
}

const lines = () => numbered().map(({ line }) => line);
const isExample = () => same(lines(), example);

/** What the page says of the lines that are there, and the button for those that nothing else will embed. */
function countLines() {
  const texts = lines();
  const named = counted(texts.length, "line");
  const isTheirs = isExample();
  $("heading").textContent = isTheirs ? "Example lines" : "Your lines";
  document.body.classList.toggle("example", isTheirs);
  showKept();
  $("count").textContent = texts.length ? named : "";
  $("embed").hidden = !halted || !texts.length || same(texts, embedded.lines);
  $("embed").textContent = `Make ${named} searchable`;
  $("example").textContent = isTheirs ? "Back to your lines" : "Use an example";
  $("example").hidden = !encoder || (isTheirs && !own);
  if (texts.length) cleared = "";
  else $("taken").textContent = "";
  $("clear").hidden = isTheirs ? Boolean(own) : !texts.length && !cleared;
  const clear = isTheirs ? "Clear and use my own" : "Clear";
  $("clear").textContent = cleared ? "Undo Clear" : clear;
  $("clear").className = isTheirs ? "small" : "quiet";
  showStale(halted && !same(texts, embedded.of) ? "These results are of your lines before you changed them." : "");
}

/** Why the results are of other lines than those on the page; empty where they are not. */
function showStale(why) {
  $("stale").textContent = embedded.lines.length ? why : "";
}

function fillExample(query = QUERY) {
  $("texts").value = example.join("\n");
  $("query").value = query;
}

/** Nothing any more of the files that were taken or refused. */
function forgetFiles() {
  $("refused").hidden = true;
  $("taken").textContent = "";
}

/** No lines, or again those that the last press took. */
function clearLines() {
  forgetFiles();
  const [before, after] = [isExample() ? "" : $("texts").value, cleared];
  if (isExample()) $("query").value = "";
  $("texts").value = after;
  cleared = after ? "" : before;
  $("texts").focus();
  embedLines({ stay: true });
}

/** The example and its query in place of the visitor's lines, or these again. */
function switchExample() {
  forgetFiles();
  if (isExample()) {
    $("texts").value = own;
    $("query").value = "";
  } else {
    own = $("texts").value.trim();
    fillExample();
  }
  embedLines();
}

/** Select a result's line among all; nothing where it is no longer there. */
function showInLines(line, number) {
  const all = $("texts").value.split("\n");
  const at = all[number - 1]?.trim() === line ? number - 1 : all.findIndex((each) => each.trim() === line);
  if (at < 0) return;
  const start = all.slice(0, at).join("\n").length + (at && 1);
  $("texts").setSelectionRange(start, start + all[at].length);
  $("texts").blur();
  $("texts").focus(); // the browser scrolls to what is selected
}

/** Open a student's file, and else take the lines of all. Raises StudentError for what is neither. */
async function takeFiles(files) {
  const students = files.filter(({ name }) => STUDENT.test(name));
  if (students.length === 1) return open(students[0]);
  const names = files.map(({ name }) => name).sort();
  if (students.length) throw new StudentError(`${names[0]}: several students (${few(names)}); choose one of the files`);
  const bundled = names.find((name) => BUNDLED.test(name));
  if (bundled) throw new StudentError(`${bundled}: of a bundle, which is no student's file; edgedistill export BUNDLE --core DIR writes its student.bin`);
  await takeLines(files);
}

/** The lines of text files, below those that are there; embedded where a student is open, and else when one has opened. */
async function takeLines(files) {
  const taken = [];
  for (const file of files) taken.push(linesOf(file.name, await readText(file)));
  if (isExample()) [$("texts").value, $("query").value] = [own, ""];
  $("texts").value = [$("texts").value, ...taken.map(({ text }) => text)].filter(Boolean).join("\n");
  $("taken").textContent = taken.map(({ said }) => said).filter(Boolean).join(" ");
  await embedLines();
}

/** {text, said}: what of a file's text goes below the lines, and what the page says of it. */
function linesOf(name, text) {
  const [, type] = /\.(csv|tsv)$/iu.exec(name) ?? [];
  if (!type) return { text, said: "" };
  const [top] = text.split("\n", 1);
  const comma = top.split(";").length > top.split(",").length ? ";" : ",";
  const { lines, header, left } = tableLines(text, type.toLowerCase() === "tsv" ? "\t" : comma);
  const columns = header.length ? ` Columns: ${few(header)}.` : "";
  const why = same(header, ["text"]) ? "beside the column text" : "as without words";
  const without = left.length ? ` Left out, ${why}: ${few(left)}.` : "";
  return { text: lines.join("\n"), said: `Each row of ${name} is a line now.${columns}${without}` };
}

/** The text of a file. Raises StudentError for one that is of another type, too large, empty or no text. */
async function readText(file) {
  const { name, type, size } = file;
  const isText = type.startsWith("text/") || TYPES.some((ending) => name.toLowerCase().endsWith(ending));
  if (!isText) throw new StudentError(`${name}: not a text file; give ${TYPES.join(", ")}, with one text a line`);
  if (size > MOST_BYTES) throw new StudentError(`${name}: ${megabytes(size)}, and the page takes at most ${megabytes(MOST_BYTES)}; give a part of it`);
  const text = decoded(name, await file.arrayBuffer());
  if (!SAYS.test(text)) throw new StudentError(`${name}: no lines in it; give a text file with one text a line`);
  return text;
}

/** Do what takes files, and show above the lines why nothing was taken. */
async function taking(call) {
  forgetFiles();
  try {
    await call();
  } catch (error) {
    if (!(error instanceof StudentError)) console.error(error);
    $("refused-why").textContent = error.message;
    $("refused").hidden = false;
    $("refused").scrollIntoView({ block: "nearest" });
  }
}

/** The text of a file's bytes, in UTF-8 or else in windows-1252, whose bytes are all letters. Raises StudentError for what is no text. */
function decoded(name, bytes) {
  if (new Uint8Array(bytes).includes(0)) throw new StudentError(`${name}: not a text file (it has NUL bytes); save it as text in UTF-8`);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

/** Embed the lines that have no embedding yet; what is embedded when the visitor stops is searched. `stay`: leave the focus where it is. */
async function embedLines({ stay = false } = {}) {
  if (!encoder) return countLines();
  clearTimeout(pause);
  halted = "";
  $("error").hidden = true;
  const all = numbered();
  const texts = lines();
  countLines();
  stop.abort("begun again");
  const { signal } = (stop = new AbortController());
  const [rows, started] = [rowOf, performance.now()];
  let portion = [];
  const waiting = [...new Set(texts)].filter((text) => !rows.has(text));
  const isLong = waiting.length > FEW;
  busyEmbedding(isLong);
  if (isLong) showStale("Making your lines searchable…");
  if (!embedded.lines.length) showNearest();
  try {
    for (let at = 0; at < waiting.length && !signal.aborted; at += PORTION) {
      $("done").value = at / waiting.length;
      if (isLong) $("count").textContent = `Made searchable: ${whole(at)} of ${counted(waiting.length, "line")}`;
      portion = waiting.slice(at, at + PORTION);
      const found = await encoder.encodeDocument(portion);
      portion.forEach((text, each) => rows.set(text, found[each]));
    }
    if (signal.aborted && signal.reason !== "stopped") return;
    const ready = all.filter(({ line }) => rows.has(line));
    const [kept, numbers] = [ready.map(({ line }) => line), ready.map(({ number }) => number)];
    rowOf = new Map(kept.map((text) => [text, rows.get(text)]));
    const noun = same(kept, example) ? "example line" : "line";
    embedded = { lines: kept, noun, numbers, of: texts, index: new BM25(kept) };
    if (signal.aborted) halted = "stopped";
    showEmbedded(stay);
    const searchable = `${counted(kept.length, noun)} searchable`;
    const took = noun === "line" ? `, in ${seconds(performance.now() - started)}` : ""; // the example's were embedded at opening
    const done = texts.length ? searchable + took : "";
    $("count").textContent = signal.aborted ? `Stopped: ${searchable}` : done;
  } catch (error) {
    if (stop.signal !== signal || rows !== rowOf) return;
    halted = "failed";
    countLines();
    const named = (_, at) => `line ${all[texts.indexOf(portion[at])].number}`;
    $("count").textContent = error.message.replace(/^texts\[(\d+)\]/u, named);
    if (!stay) $("texts").focus();
    busyEmbedding(false);
    if (!embedded.lines.length) showNearest();
  }
}

/** Stop and a bar while many lines are embedded; Stop hands on its focus when it goes. */
function busyEmbedding(is) {
  const hadFocus = document.activeElement === $("stop");
  $("stop").hidden = $("done").hidden = !is;
  if (!is && hadFocus) ($("embed").hidden ? $("query") : $("embed")).focus();
}

/** The search over what is embedded, ready to be typed into; without any lines, closed. */
function showEmbedded(stay) {
  const ready = embedded.lines.length > 0;
  countLines();
  $("query").disabled = !ready;
  busyEmbedding(false);
  limit = NEAREST;
  search();
  if (!ready || stay) return;
  if (innerWidth < WIDE && embedded.noun !== "line") return; // the example is read from the top
  if (innerWidth < WIDE) $("search").scrollIntoView();
  $("query").focus({ preventScroll: innerWidth < WIDE });
}

// ---- search: one query at a time, and after it the newest one

let searching = false;
let again = false;

async function search() {
  again = true;
  if (searching) return;
  searching = true;
  while (again && encoder) {
    again = false;
    const query = $("query").value.trim();
    if (!query || !embedded.lines.length) {
      showNearest();
      continue;
    }
    const started = performance.now();
    try {
      const row = await encoder.encodeQuery(query);
      showNearest(nearest(query, row), performance.now() - started);
    } catch (error) {
      if (encoder) $("found").textContent = $("announced").textContent = error.message;
    }
  }
  searching = false;
}

/** The lines nearest to a query and its embedding, by cosine or by cosine and words; the median cosine of all with the example's; which words lines have. */
function nearest(query, row) {
  const { lines, numbers, index } = embedded;
  const cosines = lines.map((line) => similarity(row, rowOf.get(line)));
  const byWords = $("by-words").checked;
  const bm25 = byWords ? index.shares(query) : new Float64Array(lines.length);
  const all = [...cosines, ...unrelated.map((each) => similarity(row, each))];
  const scores = joined(cosines, bm25, byWords ? WEIGHT * index.weight : 0, all);
  const order = [...scores.keys()].sort((a, b) => scores[b] - scores[a]);
  const found = order.slice(0, limit).map((at) => ({ cosine: cosines[at], hasWords: bm25[at] > 0, line: lines[at], number: numbers[at] }));
  const isFar = joined(cosines, bm25, WEIGHT, all).every((score) => score < (byWords ? CLOSE.words : CLOSE.cosine));
  const sorted = all.sort((a, b) => a - b);
  return { found, isFar, median: sorted[(sorted.length - 1) >> 1], known: index.known(query) };
}

/** The nearest lines in their order, each with a bar for its cosine, from the median to 1, that of the query itself; without bars where none is close. */
function showNearest({ found, isFar, median, known } = { found: [], isFar: false }, ms = 0) {
  const { length } = embedded.lines;
  $("results").className = isFar ? "far" : "";
  const share = (cosine) => (median < 1 ? Math.max(0, (cosine - median) / (1 - median)) : 1);
  $("results").replaceChildren(...found.map((each) => resultOf(each, share(each.cosine), known)));
  const left = length - found.length;
  $("more").hidden = !found.length || !left;
  $("more").textContent = `Show ${whole(Math.min(MORE, left))} more`;
  $("meaning").hidden = !found.length;
  const verdict = isFar ? "Nothing close." : "";
  const those = `${whole(found.length)}${isFar ? "" : " nearest"} of ${counted(length, embedded.noun)}`;
  const nearest = isFar ? `The nearest anyway: ${those}` : those;
  const toCome = $("done").hidden ? "Add some lines, then search them here." : "Making your lines searchable…";
  const waiting = length ? "" : toCome;
  $("found").replaceChildren(element("strong", "", verdict), found.length ? `${nearest}, in ${ms.toFixed(0)} ms` : waiting);
  clearTimeout(announcing);
  announcing = setTimeout(() => ($("announced").textContent = found.length ? [verdict, nearest].filter(Boolean).join(" ") : ""), 500); // not at each key
}

let announcing;

/** A result: the line with its bar and number, which opens to all of it, its cosine and a button that copies it. */
function resultOf({ line, number, cosine, hasWords }, share, known) {
  const bar = element("i");
  bar.style.setProperty("--share", share.toFixed(3));
  const text = element("span", "line", ...marked(line, known));
  text.dir = "auto";
  const value = element("data", "", cosine.toFixed(2));
  value.value = cosine.toFixed(2);
  const copy = element("button", "quiet", "Copy");
  const copied = (word) => () => (copy.textContent = word);
  copy.addEventListener("click", () => navigator.clipboard.writeText(line).then(copied("Copied"), copied("Not copied: the browser forbids it")));
  const show = element("button", "quiet", `Show in ${embedded.noun === "line" ? "your" : "the example"} lines`);
  show.addEventListener("click", () => showInLines(line, number));
  const why = element("span", "", "cosine ", value, hasWords ? " · lifted by words of the query" : "");
  const more = element("p", "opened", why, copy, show);
  const summary = element("summary", "", text, note(`line ${whole(number)}`), bar);
  return element("li", "", element("details", "", summary, more));
}

/** A line in parts, those in <mark> that are words of the query. */
function marked(line, known) {
  const parts = line.slice(0, MOST_MARKED).split(/([\p{L}\p{M}\p{N}\p{Cf}]+)/u);
  const isKnown = (part) => {
    const found = words(part);
    return found.length > 0 && found.every(known);
  };
  return [...parts.map((part) => (isKnown(part) ? element("mark", "", part) : part)), line.slice(MOST_MARKED)];
}

// ---- words

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const nameOf = (from) => [...listed].find(([, file]) => file === from)?.[0]; // of a student that this page offers
const isListed = (from) => nameOf(from) !== undefined;
const seconds = (ms) => (ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`);
const whole = (number) => number.toLocaleString("en", { maximumFractionDigits: 0 });
const sentence = (text) => text && text[0].toUpperCase() + text.slice(1) + (/[.!?]$/u.test(text) ? "" : ".");
const same = (a, b) => a.length === b.length && a.every((each, at) => each === b[at]);
const few = (names) => [...names.slice(0, 5), ...(names.length > 5 ? [`${names.length - 5} more`] : [])].join(", ");
const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
const LANGUAGES = new Intl.DisplayNames("en", { type: "language" });
/** The names of languages; of a single one "English only". */
const languagesNamed = (codes) => {
  const names = [...new Set(codes.map((code) => LANGUAGES.of(code.split("-")[0])))];
  return names.length === 1 ? [`${names[0]} only`] : names;
};
/** An element with a class and children, which are elements or text. */
function element(name, className = "", ...children) {
  const made = document.createElement(name);
  made.className = className;
  made.append(...children);
  return made;
}

const note = (text) => element("span", "why", text);

// ---- events

for (const id of ["file", "student-file"]) {
  $(id).addEventListener("change", async ({ target }) => {
    await taking(() => takeFiles([...target.files]));
    target.value = ""; // the same file can be chosen again
  });
}
$("url").addEventListener("input", ({ target }) => (target.ariaInvalid = null));
$("address").addEventListener("submit", (event) => {
  event.preventDefault();
  openTyped($("url").value.trim());
});
const choose = () => {
  opening.abort();
  show("open", ...(encoder ? WORK : START));
  if (!encoder) ($("students").querySelector("button") ?? $("student-file")).focus();
};
const goBack = () => {
  opening.abort();
  show(...WORK);
  $("another").focus();
};
$("another").addEventListener("click", () => ($("open").hidden ? choose() : goBack()));
$("cancel").addEventListener("click", () => (encoder ? goBack() : choose()));
$("dismiss").addEventListener("click", () => {
  $("error").hidden = true;
  const rest = encoder ? "student-name" : "texts";
  $($("url").ariaInvalid ? "url" : rest).focus();
});
$("refused-dismiss").addEventListener("click", () => {
  $("refused").hidden = true;
  $("texts").focus();
});
$("check").addEventListener("click", check);
$("time").addEventListener("click", time);
$("texts").addEventListener("input", ({ inputType }) => {
  forgetFiles();
  countLines();
  clearTimeout(pause);
  const isPaste = inputType === "insertFromPaste";
  if (isPaste || halted !== "stopped") pause = setTimeout(() => embedLines({ stay: true }), isPaste ? 0 : PAUSE_MS);
});
$("texts").addEventListener("paste", (event) => {
  const text = event.clipboardData.getData("text/plain");
  if (text.length < LONG_PASTE) return;
  event.preventDefault(); // Chromium would take twenty seconds for 3,000 lines
  forgetFiles();
  const { target } = event;
  target.setRangeText(text, target.selectionStart, target.selectionEnd, "end");
  embedLines({ stay: true });
});
$("texts").addEventListener("keydown", (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && embedLines());
$("example").addEventListener("click", switchExample);
$("clear").addEventListener("click", clearLines);
$("edit").addEventListener("click", () => {
  $("student").scrollIntoView();
  $("texts").focus({ preventScroll: true });
});
$("embed").addEventListener("click", () => {
  embedLines();
  $("stop").focus(); // where there is one, in the place of this button
});
$("stop").addEventListener("click", () => stop.abort("stopped"));
$("query").addEventListener("input", () => {
  $("error").hidden = true; // of a student that was not opened
  limit = NEAREST;
  search();
});
$("more").addEventListener("click", async () => {
  const shown = limit;
  limit += MORE;
  await search();
  $("results").children[shown]?.querySelector("summary").focus(); // the first new one
});
$("by-words").addEventListener("change", search);

addEventListener("dragover", (event) => {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  document.body.classList.add("dragging");
});
addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("dragging"));
addEventListener("drop", async (event) => {
  if (!event.dataTransfer.types.includes("Files")) return; // text, for the field below it
  event.preventDefault();
  document.body.classList.remove("dragging");
  if (missingFeature()) return;
  const files = [...event.dataTransfer.files];
  await taking(() => takeFiles(files));
});

// ---- start

const listed = new Map(); // the files of the students that this page offers, by their names

/** What a visitor typed: the address of a student that is offered by its name, or an address. Raises StudentError for another name. */
function addressOf(typed) {
  if (!listed.has(typed) && listed.size && /^[\w-]+$/u.test(typed)) {
    throw new StudentError(`${typed}: no such encoder; here are ${[...listed.keys()].join(", ")}`);
  }
  return listed.get(typed) ?? typed;
}

/** A button for each student in students.json, which `edgedistill export NAME --web` writes. */
async function offerStudents() {
  const found = await fetch("students.json").catch(() => null);
  if (!found?.ok) return;
  const buttons = (await found.json()).map(({ name, file, size_bytes, languages }) => {
    listed.set(name, file);
    const button = element("button");
    [button.name, button.value] = [name, file];
    button.textContent = `Try ${name}`;
    button.addEventListener("click", () => open(file));
    const facts = [WORDS[name], few(languagesNamed(languages)), megabytes(size_bytes)];
    return element("li", "", button, element("strong", "", `${name}, open now`), note(facts.filter(Boolean).join(" · ")));
  });
  $("students").replaceChildren(...buttons);
  nameStudents();
  $("shipped").hidden = !buttons.length;
  if (buttons.length) $("own").open = false;
}

$("unserved").remove();
const orDrop = matchMedia("(pointer: coarse)").matches ? "" : ", or drop a text file"; // nothing is dropped by a finger
$("texts").placeholder = `Type or paste, one text a line${orDrop}`;
keepLines();
countLines();
const missing = missingFeature();
if (missing) showError(new StudentError(missing));
else {
  const asked = new URLSearchParams(location.search).get("student")?.trim();
  const offered = offerStudents();
  if (asked) await offered;
  openTyped(asked);
}

/** Keep the visitor's lines and query over a reload, in what the browser stores for this tab alone, where it stores anything. */
function keepLines() {
  const kept = ["texts", "query"];
  try {
    for (const id of kept) $(id).value = sessionStorage.getItem(id) ?? "";
  } catch {
    return; // no storage
  }
  addEventListener("pagehide", () => {
    const values = isExample() ? [own, ""] : kept.map((id) => $(id).value);
    try {
      kept.forEach((id, at) => sessionStorage.setItem(id, values[at]));
    } catch {
      sessionStorage.clear(); // too many
    }
  });
}
