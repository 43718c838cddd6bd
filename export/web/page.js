// The page: open a bundle, embed the visitor's lines, search them while they type. All arithmetic is behind encoder.js.

import { BundleError, load, missingFeature, similarity } from "./encoder.js";
import { droppedFiles } from "./dropped.js";
import { EXAMPLE, QUERY } from "./example.js";

const $ = (id) => document.getElementById(id);
const MOST_LINES = 20_000;
const MOST_BYTES = 5e6; // of a dropped text file
const NEAREST = 8;
const CLOSE = 0.2; // of the way from the median line's cosine to 1, which the best goes at least; on the example, by three students
const HERE = /^(localhost|127(\.\d+){3}|\[::1\])(:\d+)?(\/|$)/iu; // an address without its http://
const HOST = /^([\w-]+(\.[\w-]+)+(:\d+)?|[\w-]+:\d+)(\/|$)/u; // one without its https://
const BACKENDS = ["auto", "webgpu", "wasm"];
const PORTION = 128; // lines embedded between two looks at Stop
const WORK = ["bundle", "lines", "search"]; // the sections while a bundle is open
const WIDE = 1024; // pixels from which style.css puts lines and search side by side

let encoder = null; // the opened bundle
let source = null; // {from, options}: what it was loaded from, for other settings
let rowOf = new Map(); // line -> its embedding
let embedded = { lines: [], of: [] }; // what is searched, and all that was to be; once there are some, index and joined: BM25 of their words
let own = ""; // the visitor's lines, while the example is shown
let stop = new AbortController();
let opening = new AbortController(); // of the newest bundle, which alone is shown

// ---- opening

function show(...sections) {
  for (const id of ["error", "open", "loading", "bundle", "lines", "search"]) $(id).hidden = !sections.includes(id);
  document.body.classList.toggle("at-work", sections.includes("bundle"));
  const kept = lines().length;
  $("kept").textContent = kept && !encoder ? `${counted(kept, "line")} kept; pick an encoder to search them` : "";
  $("back").hidden = !encoder;
  $("back").textContent = `Back to ${encoder?.name}`;
}

/** Open a bundle in place of the one that is open, which stays where the new one is refused. */
async function open(from, options = {}) {
  opening.abort();
  const { signal } = (opening = new AbortController());
  show("loading");
  $("stage").textContent = "Opening…";
  $("bytes").removeAttribute("value");
  try {
    const loaded = await load(from, { ...options, signal, progress: showProgress });
    if (signal.aborted) return;
    closeBundle();
    source = { from, options };
    encoder = globalThis.encoder = loaded; // also for the console
    showBundle();
    show(...WORK);
    $("bundle-name").focus();
    embedLines({ stay: true }); // those of the bundle before
  } catch (error) {
    if (!signal.aborted) showError(error);
  }
}

function showProgress({ bytes, size }) {
  const done = bytes >= size;
  $("stage").textContent = done ? "Checking the golden texts…" : `Loading ${megabytes(bytes)} of ${megabytes(size)}`;
  if (done) $("bytes").removeAttribute("value");
  else $("bytes").value = bytes / size;
}

/** An error of ours reads *place: fact; way out*, and is shown as these three, below what was refused. */
function showError(error, refused = encoder ? `Not opened; ${encoder.name} stays open` : "The bundle was not opened") {
  if (!(error instanceof BundleError)) console.error(error);
  const [, place, fact, wayOut] = /^(.*?): (.*?)(?:[;:] ([^;:]*))?$/su.exec(error.message) ?? [];
  $("place").textContent = place ?? "";
  const isNamed = place?.match(/^dim=\d/u); // the fact begins with the bundle's name
  $("fact").textContent = isNamed ? `${fact}.` : sentence(fact ?? error.message);
  $("way-out").textContent = sentence(wayOut ?? "");
  const cannot = Boolean(missingFeature());
  $("refusal").textContent = cannot ? "The encoder cannot run here" : refused;
  if (encoder) showSettings(); // as they were
  const rest = encoder ? WORK : ["open"];
  show("error", ...(cannot ? [] : rest));
  $("refusal").focus();
}

function showBundle() {
  const { name, dim, max_tokens } = encoder;
  $("bundle-name").textContent = name;
  $("shape").textContent = `${dim} dimensions, of up to ${max_tokens} tokens a text`;
  $("backend").replaceChildren(backendName(encoder), note(whyThreads(encoder)), note(encoder.reason));
  $("speed").textContent = "not measured yet";
  showGolden(encoder.golden);
  showSettings();
  showEmbedded();
}

function showSettings() {
  fill($("precision"), encoder.precisions, encoder.precision);
  fill($("dim"), encoder.dims, encoder.dim);
  $("backend-choice").value = source.options.backend ?? "auto";
}

function showGolden({ ok, problem, texts, cosine_min, batched_min = cosine_min, cosine_at_least }) {
  const { precision, size_bytes } = encoder;
  $("facts").textContent = `${precision} · ${megabytes(size_bytes)} · ${ok ? "✓ checked" : "✗ golden texts differ"}`;
  const digits = cosine_at_least < 0.999 ? 4 : 6;
  const worst = Math.min(cosine_min, batched_min).toFixed(digits);
  const bound = `${texts} texts, worst cosine ${worst}, at least ${cosine_at_least.toFixed(digits)}`;
  $("golden").replaceChildren(ok ? "✓ same results as in Python" : problem, note(ok ? bound : ""));
  $("golden").className = ok ? "good" : "bad";
}

function closeBundle() {
  stop.abort("closed");
  encoder?.close();
  encoder = null;
  rowOf = new Map();
  embedded = { lines: [], of: [] };
  showNearest([]);
}

// ---- check and time

async function busy(button, place, doing, call) {
  button.disabled = true;
  place.textContent = doing;
  place.className = "";
  try {
    await call();
  } catch (error) {
    if (encoder) place.textContent = error.message;
  }
  button.disabled = false;
}

const check = () => busy($("check"), $("golden"), "checking…", async () => showGolden(await encoder.check()));

const time = () =>
  busy($("time"), $("speed"), "measuring for three seconds…", async () => {
    const { query_p50_ms, texts_s, tokens_mean } = await encoder.time();
    const line = `a query ${query_p50_ms.toPrecision(3)} ms (p50) · ${whole(texts_s)} texts/s`;
    $("speed").replaceChildren(line, note(`texts of ${tokens_mean.toFixed(0)} tokens, tokenization included`));
  });

// ---- lines

/** The visitor's lines, as many as the page takes, which it says below them. */
function lines() {
  const typed = $("texts").value.split(/\r?\n/u);
  const all = typed.map((line) => line.trim()).filter(Boolean);
  const cut = `${whole(MOST_LINES)} of ${counted(all.length, "line")}; the page takes no more`;
  $("too-many").textContent = all.length > MOST_LINES ? cut : "";
  return all.slice(0, MOST_LINES);
}

function countLines() {
  const texts = lines();
  const count = texts.length;
  const named = counted(count, "line");
  $("count").textContent = count ? named : "";
  const ready = count > 0 && same(texts, embedded.lines);
  const toDo = count ? `Embed ${named}` : "Embed";
  $("embed").textContent = ready ? "Embedded" : toDo;
  $("embed").disabled = !count || ready;
  $("example").textContent = own && same(texts, EXAMPLE) ? "Back to your lines" : "Use an example";
  const changed = count ? "Your lines have changed; embed again." : "Your lines are gone; these results are of the last ones.";
  showStale(same(texts, embedded.of) ? "" : changed);
}

/** Why the results are of other lines than those on the page; empty where they are not. */
function showStale(why) {
  $("stale").textContent = embedded.lines.length ? why : "";
}

/** The example and its query in place of the visitor's lines, or these again. */
function switchExample() {
  const isExample = same(lines(), EXAMPLE);
  const back = isExample && own;
  if (!isExample) own = $("texts").value.trim();
  $("texts").value = back ? own : EXAMPLE.join("\n");
  $("query").value = back ? "" : QUERY;
  return embedLines();
}

/** The lines of dropped text files, below those that are there; embedded where a bundle is open, and else when one has opened. */
async function takeLines(files) {
  const wrong = [...files].find(([path, file]) => !isText(path) || file.size > MOST_BYTES);
  if (wrong) {
    const fact = `neither a bundle (no manifest.json) nor a .txt file of at most ${megabytes(MOST_BYTES)}`;
    throw new BundleError(`${wrong[0]}: ${fact}; drop one of these`);
  }
  const dropped = await Promise.all(Array.from(files, async ([path, file]) => decoded(path, await file.arrayBuffer())));
  $("texts").value = [$("texts").value, ...dropped].filter(Boolean).join("\n");
  if (!encoder) return $("loading").hidden && show("open");
  if ($("lines").hidden) goBack();
  await embedLines();
}

/** The text of a file's bytes, in UTF-8 or else in windows-1252, whose bytes are all letters. Raises BundleError for what is no text. */
function decoded(path, bytes) {
  if (new Uint8Array(bytes).includes(0)) throw new BundleError(`${path}: not a text file (it has NUL bytes); save it as text in UTF-8`);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

/** Embed the lines that have no embedding yet; what is embedded when the visitor stops is searched. `stay`: leave the focus where it is. */
async function embedLines({ stay = false } = {}) {
  $("error").hidden = true;
  const texts = lines();
  if (!texts.length) return;
  countLines();
  stop.abort("begun again");
  const { signal } = (stop = new AbortController());
  const [rows, started] = [rowOf, performance.now()];
  let portion = [];
  const waiting = [...new Set(texts)].filter((text) => !rows.has(text));
  busyEmbedding(true);
  if ($("stale").textContent) showStale("Embedding your lines…");
  try {
    for (let at = 0; at < waiting.length && !signal.aborted; at += PORTION) {
      $("done").value = at / waiting.length;
      $("count").textContent = `Embedding: ${whole(at)} of ${counted(waiting.length, "line")}`;
      portion = waiting.slice(at, at + PORTION);
      const found = await encoder.encodeDocument(portion);
      portion.forEach((text, each) => rows.set(text, found[each]));
    }
    if (signal.aborted && signal.reason !== "stopped") return;
    const ready = texts.filter((text) => rows.has(text));
    const { BM25, joined } = await import("./vendor/core/bm25.js"); // not before a bundle has opened
    if (stop.signal !== signal || rows !== rowOf) return;
    rowOf = new Map(ready.map((text) => [text, rows.get(text)]));
    embedded = { lines: ready, of: texts, index: new BM25(ready), joined };
    showEmbedded(stay);
    const all = `${counted(ready.length, "line")} embedded`;
    $("count").textContent = signal.aborted ? `Stopped: ${all}` : `${all} in ${seconds(performance.now() - started)}`;
  } catch (error) {
    if (stop.signal !== signal || rows !== rowOf) return;
    countLines();
    const named = (_, at) => `line ${texts.indexOf(portion[at]) + 1}`;
    $("count").textContent = error.message.replace(/^texts\[(\d+)\]/u, named);
    if (!stay) $("texts").focus();
  }
  busyEmbedding(false);
}

function busyEmbedding(is) {
  $("stop").hidden = $("done").hidden = !is;
  $("embed").hidden = is;
}

/** The search over what is embedded, ready to be typed into; without any lines, closed. */
function showEmbedded(stay) {
  const ready = embedded.lines.length > 0;
  busyEmbedding(false);
  countLines();
  $("query").disabled = !ready;
  search();
  if (!ready || stay) return;
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
      showNearest([]);
      continue;
    }
    const started = performance.now();
    try {
      const row = await encoder.encodeQuery(query);
      const { found, scale } = nearest(query, row);
      showNearest(found, scale, performance.now() - started);
    } catch (error) {
      if (encoder) $("found").textContent = error.message;
    }
  }
  searching = false;
}

/** The lines nearest to a query and its embedding, by cosine or by cosine and words, and the median and best cosine of all. */
function nearest(query, row) {
  const { lines, index, joined } = embedded;
  const cosines = lines.map((line) => similarity(row, rowOf.get(line)));
  const bm25 = $("by-words").checked ? index.scores(query) : new Float64Array(lines.length);
  const scores = joined(cosines, bm25);
  const order = [...scores.keys()].sort((a, b) => scores[b] - scores[a]);
  const found = order.slice(0, NEAREST).map((at) => ({ cosine: cosines[at], hasWords: bm25[at] > 0, line: lines[at] }));
  const sorted = cosines.toSorted((a, b) => a - b);
  return { found, scale: { median: sorted[(sorted.length - 1) >> 1], best: sorted.at(-1) } };
}

/** The nearest lines in their order, each with its cosine as a number and as a bar from the median to the best, and whether it has words of the query. */
function showNearest(found, { median, best } = {}, ms = 0) {
  const isFar = embedded.lines.length > NEAREST && best - median < CLOSE * (1 - median) && !found[0].hasWords;
  $("results").className = isFar ? "far" : "";
  $("results").replaceChildren(
    ...found.map(({ cosine, hasWords, line }) => {
      const item = document.createElement("li");
      const [text, number, bar] = ["p", "data", "i"].map((name) => item.appendChild(document.createElement(name)));
      text.textContent = line;
      text.dir = "auto";
      number.textContent = number.value = cosine.toFixed(2);
      if (hasWords) number.append(note("+ words"));
      const share = best > median ? (cosine - median) / (best - median) : 1;
      bar.style.setProperty("--share", Math.max(0, share).toFixed(3));
      return item;
    }),
  );
  const lines = counted(embedded.lines.length, "line");
  const order = $("by-words").checked ? "Number" : "Number and order";
  const lifted = found.some(({ hasWords }) => hasWords) ? " “+ words”: lifted in the order by words of the query." : "";
  const bars = "Bar: from the lines’ median to the best.";
  const caption = `${order}: cosine with the query; compare it only within one encoder. ${bars}${lifted}`;
  const far = isFar ? "Nothing close. " : "";
  const waiting = embedded.lines.length ? "" : "Embed some lines, then search them here.";
  $("found").textContent = found.length ? `${far}${found.length} nearest of ${lines}, in ${ms.toFixed(0)} ms. ${caption}` : waiting;
}

// ---- words

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const isText = (path) => /\.txt$/i.test(path);
const seconds = (ms) => (ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`);
const whole = (number) => number.toLocaleString("en", { maximumFractionDigits: 0 });
const sentence = (text) => text && text[0].toUpperCase() + text.slice(1) + (/[.!?]$/u.test(text) ? "" : ".");
const same = (a, b) => a.length === b.length && a.every((each, at) => each === b[at]);
const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
const backendName = ({ backend, threads }) => (backend === "webgpu" ? "WebGPU" : `WASM, ${counted(threads, "thread")}, SIMD`);

function whyThreads({ backend }) {
  if (backend === "webgpu") return "";
  if (!crossOriginIsolated) return "more need two headers, which this page came without";
  return `half of ${counted(navigator.hardwareConcurrency ?? 1, "processor")}, at most four: the rest stays free for the page`;
}

function note(text) {
  const element = document.createElement("span");
  element.className = "why";
  element.textContent = text;
  return element;
}

function fill(select, values, chosen) {
  select.replaceChildren(...values.map((value) => new Option(value, value, false, value === chosen)));
  select.hidden = values.length === 1; // then its value is plain text
  select.previousElementSibling.textContent = select.hidden ? chosen : "";
}

// ---- events

$("folder").addEventListener("change", ({ target }) => target.files.length && open([...target.files]));
$("address").addEventListener("submit", (event) => {
  event.preventDefault();
  open(addressOf($("url").value.trim()));
});
const choose = () => {
  opening.abort();
  $("folder").value = "";
  show("open");
  ($("students").querySelector("button") ?? $("folder")).focus();
};
const goBack = () => {
  opening.abort();
  showSettings();
  show(...WORK);
  $("bundle-name").focus();
};
$("another").addEventListener("click", choose);
$("back").addEventListener("click", goBack);
$("cancel").addEventListener("click", () => (encoder ? goBack() : choose()));
$("check").addEventListener("click", check);
$("time").addEventListener("click", time);
$("texts").addEventListener("input", ({ inputType }) => (inputType === "insertFromPaste" ? embedLines({ stay: true }) : countLines()));
$("texts").addEventListener("keydown", (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && embedLines());
$("example").addEventListener("click", switchExample);
$("embed").addEventListener("click", embedLines);
$("stop").addEventListener("click", () => {
  stop.abort("stopped");
  $("texts").focus(); // the button goes
});
$("query").addEventListener("input", () => {
  $("error").hidden = true; // of a bundle that was not opened
  search();
});
$("by-words").addEventListener("change", search);
for (const id of ["precision", "dim", "backend-choice"]) {
  $(id).addEventListener("change", () =>
    open(source.from, { precision: $("precision").value, dim: Number($("dim").value), backend: $("backend-choice").value }),
  );
}

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
  try {
    const files = await droppedFiles(event.dataTransfer);
    const isBundle = [...files.keys()].some((path) => /(^|\/)manifest\.json$/.test(path));
    if (isBundle || !(encoder || [...files.keys()].every(isText))) await open(files);
    else await takeLines(files);
  } catch (error) {
    if (encoder && !$("lines").hidden) $("count").textContent = error.message;
    else showError(error, "Nothing was taken");
  }
});

// ---- start

const shipped = new Set(); // the names of the bundles that the page's server has

/** What a visitor typed, as the address that was meant: of a bundle that ships by its name, or without its scheme. */
function addressOf(typed) {
  if (shipped.has(typed)) return `shipped/${typed}/`;
  if (HERE.test(typed)) return `http://${typed}`;
  return HOST.test(typed) ? `https://${typed}` : typed;
}

/** A button for each bundle that the page's server has (server.mjs); others have none. */
async function offerShipped() {
  const found = await fetch("shipped/index.json").catch(() => null);
  if (!found?.ok) return;
  const named = new Intl.DisplayNames("en", { type: "language" });
  const buttons = (await found.json()).map(({ name, word, size_bytes, languages }, at) => {
    shipped.add(name);
    const item = document.createElement("li");
    const button = item.appendChild(document.createElement("button"));
    button.className = at ? "" : "primary";
    button.textContent = `Try ${name}`;
    button.addEventListener("click", () => open(`shipped/${name}/`));
    const facts = [word, megabytes(size_bytes), languages.map((code) => named.of(code)).join(", ")];
    item.append(note(facts.filter(Boolean).join(" · ")));
    return item;
  });
  $("students").replaceChildren(...buttons);
  $("shipped").hidden = !buttons.length;
}

$("unserved").remove();
const address = new URLSearchParams(location.search);
const missing = missingFeature();
if (missing) showError(new BundleError(missing));
else {
  const offered = offerShipped();
  try {
    if (address.has("bundle")) {
      const options = optionsOf(address);
      await offered;
      open(addressOf(address.get("bundle")), options);
    } else show("open");
  } catch (error) {
    showError(error);
  }
}

/** precision, dim and backend of the page's address. Raises BundleError for what can be neither. */
function optionsOf(address) {
  const [precision, dim, backend = "auto"] = ["precision", "dim", "backend"].map((key) => address.get(key) ?? undefined);
  if (dim !== undefined && !/^\d+$/u.test(dim)) throw new BundleError(`dim=${dim}: not a whole number; give one of the bundle's dimensions, or leave it out`);
  if (!BACKENDS.includes(backend)) throw new BundleError(`backend=${backend}: no such backend; give ${BACKENDS.join(", ")}, or leave it out`);
  return { precision, dim: dim && Number(dim), backend };
}
