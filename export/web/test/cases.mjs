// What the page and the runner must do, and refuse, in a browser.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { BM25, joined } from "../../node/core/bm25.js";
import { DIMS, dot, edit, GOLDEN, MANIFEST, PRECISION } from "../../node/test/bundles.js";
import { GIVES, REFUSED } from "../../node/test/cases.js";
import { QUERY, exampleOf } from "../example.js";
import { FEW, broken, browser, drop, dropText, errorOf, errorText, few, inBrowser, openAddress, opened, origin, page, port, refused, shown, text } from "./harness.mjs";

const EXAMPLE = exampleOf(["en"]);

/** {lines, header, left} of tables: without a header, with a column of numbers, with a quote that never ends, of numbers alone. */
const TABLES = `import("/tables.js").then(({ tableLines }) =>
  ["hello\\nbye\\n", "1,foo bar\\n2,baz", 'x,"open,y', "1,2\\n3,4"].map((text) => Object.values(tableLines(text, ","))))`;

const MARKDOWN =
  "# A title\n\nA wrapped\nparagraph **of\ntwo** lines.\n\n---\n\n| first | second |\n|---|:--|\n\n```sh\n# code\n```\n- an item,\n  wrapped\n";
const JSON_ROWS = '{"id": 1, "text": "Hello\\nyou", "meta": {"to": "de"}}\nnot JSON {\n\n{"id": 2, "text": "Bye", "done": true}\n';

export const cases = {
  async url() {
    const on = await page("/?bundle=/bundle/");
    await opened(on);
    assert.equal(await text(on, "bundle-name"), MANIFEST.name);
    assert.match(await text(on, "golden"), /^✓ same results as in Python32 texts whose embeddings come with the bundle; worst cosine 0\.9\d+, at least 0\.9/);
    assert.match(await text(on, "backend"), /^(WASM, \d+ threads?, SIMDon \d+ of this machine’s \d+ processors?, so that the page stays quick|WebGPU)/);
    // the page's own encoder, all golden texts in batches, against the stored embeddings
    const rows = await on.evaluate(async (texts) => (await encoder.encode(texts)).map((row) => [...row]), GOLDEN.texts);
    const { threshold } = MANIFEST.precisions[PRECISION].parity;
    rows.forEach((row, at) => assert.ok(dot(row, GOLDEN.vectors[at]) >= threshold, `text ${at}: ${dot(row, GOLDEN.vectors[at])}`));
    assert.match(await text(on, "facts"), /^English · \d+\.\d MB · checked ✓$/);
    assert.deepEqual(
      [...new Set(on.asked.map((address) => new URL(address).origin))].filter((each) => each !== origin && each !== "null"),
      [],
    );
    assert.deepEqual(on.bugs, []);
  },

  async search_check_time() {
    const on = await page("/?bundle=/few/");
    await opened(on);
    assert.equal(await on.isVisible("#embed"), false); // nothing to embed
    await on.click("#example");
    await on.waitForSelector("#results li");
    await on.keyboard.press("Control+A"); // the field has the focus
    await on.evaluate(() => {
      globalThis.announced = 0;
      new MutationObserver(() => globalThis.announced++).observe(document.getElementById("announced"), { childList: true });
    });
    await on.keyboard.type("my package has not come yet", { delay: 5 });
    await on.waitForFunction(() => document.querySelector("#results .line")?.textContent.startsWith("My parcel"));
    await on.waitForFunction(() => document.getElementById("announced").textContent === "8 nearest of 20 example lines");
    assert.ok((await on.evaluate("announced")) < 20); // not at each key
    await on.uncheck("#by-words");
    await on.waitForFunction(() => {
      const cosines = [...document.querySelectorAll("#results data")].map((each) => Number(each.value));
      return cosines.length === 8 && cosines.every((cosine, at) => at === 0 || cosine <= cosines[at - 1]) && cosines[0] > cosines[7];
    });
    await on.click("#about summary");
    await on.click("#check");
    await on.waitForFunction(() => document.getElementById("golden").textContent.startsWith("✓ same results"));
    await on.click("#time");
    await on.waitForFunction(() => / ms \(p50\) · [\d,]+ texts\/s/.test(document.getElementById("speed").textContent));
    await on.click("#another");
    await shown(on, "open");
    assert.equal(await on.isVisible("#query"), true); // the work stays
    assert.deepEqual(on.bugs, []);
  },

  async search_by_words_too() {
    const on = await page("/?bundle=/few/");
    await opened(on);
    await on.click("#example");
    await on.waitForSelector("#query:enabled");
    const lines = (await on.inputValue("#texts")).split("\n");
    const query = "my blue account";
    await on.fill("#query", query);
    await on.waitForSelector("#results li");
    const rows = await on.evaluate(async (texts) => (await encoder.encode(texts)).map((row) => [...row]), [query, ...lines]);
    const cosines = rows.slice(1).map((row) => dot(row, rows[0]));
    const scores = joined(cosines, new BM25(lines).shares(query));
    const best = (values) => lines.toSorted((a, b) => values[lines.indexOf(b)] - values[lines.indexOf(a)]).slice(0, 8);
    assert.notDeepEqual(best(scores), best(cosines));
    assert.deepEqual(await on.$$eval("#results .line", (all) => all.map((each) => each.textContent)), best(scores));
    assert.match(await text(on, "found"), /^8 nearest of 20 example lines, in \d+ ms$/);
    await on.waitForFunction(() => document.getElementById("announced").textContent === "8 nearest of 20 example lines");
    // each row's bar is its cosine, it opens to that, and those with a word of the query have it marked and say so
    const bm25 = new BM25(lines).shares(query);
    const [median, most] = [cosines.toSorted((a, b) => a - b)[9], Math.max(...cosines)];
    const expected = best(scores).map((line) => [cosines[lines.indexOf(line)], bm25[lines.indexOf(line)] > 0, lines.indexOf(line) + 1]);
    const rowsShown = await on.$$eval("#results li", (all) =>
      all.map((each) => [
        each.querySelector("data").value,
        each.querySelector("i").style.getPropertyValue("--share"),
        each.textContent,
        [...each.querySelectorAll("mark")].map((mark) => mark.textContent),
      ]),
    );
    rowsShown.forEach(([number, share, all, marks], at) => {
      assert.equal(number, expected[at][0].toFixed(2));
      assert.ok(Math.abs(share - Math.max(0, (expected[at][0] - median) / (most - median))) < 0.001, share);
      assert.equal(all.includes("lifted by words of the query"), expected[at][1]);
      assert.ok(all.includes(`line ${expected[at][2]}`));
      assert.equal(marks.length > 0, expected[at][1]);
      assert.ok(marks.every((mark) => ["blue", "account"].includes(mark)), marks); // not my, a stop word
    });
    await on.uncheck("#by-words");
    await on.waitForFunction(
      (expected) => [...document.querySelectorAll("#results .line")].map((each) => each.textContent).join() === expected,
      best(cosines).join(),
    );
    // a stop word, which three lines have, lifts none
    await on.check("#by-words");
    await on.fill("#query", "my package has not come yet");
    await on.waitForFunction(() => document.querySelector("#results .line")?.textContent.startsWith("My parcel"));
    assert.equal((await text(on, "results")).includes("words"), false);
    assert.deepEqual([await on.getAttribute("#results", "class"), (await text(on, "found")).startsWith("8 nearest")], ["", true]);
    await on.fill("#query", "chocolate cake recipe");
    await on.waitForFunction(() => document.getElementById("found").textContent.startsWith("Nothing close.The nearest anyway: 8 of 20"));
    assert.ok((await text(on, "found")).endsWith(`${MANIFEST.name} knows English only.`));
    assert.equal(await on.$eval("#results .line", (first) => getComputedStyle(first).fontWeight), "400");
    assert.equal(await on.isVisible("#results i"), false);
    assert.deepEqual(on.bugs, []);
  },

  /** One line is far or close by itself, and of three the second has a bar; a row of a table is a line, a folder's texts are taken. */
  async few_lines_tables_and_folders() {
    const on = await page("/?bundle=");
    await shown(on, "open");
    assert.equal(await on.isVisible("#error"), false);
    await on.fill("#texts", "My parcel is late");
    await on.waitForFunction(() => document.getElementById("offer").textContent === "Pick an encoder to search your 1 line");
    assert.deepEqual([await text(on, "kept"), await on.isVisible("#without")], ["", false]);
    await openAddress(on, "few/");
    await on.waitForSelector("#query:enabled");
    const asked = async (query, found) => {
      await on.fill("#query", query);
      await on.waitForFunction((start) => document.getElementById("found").textContent.startsWith(start), found);
    };
    await asked("zebra quantum", "Nothing close.The nearest anyway: 1 of 1 line");
    await asked("my package has not come", "1 nearest of 1 line");
    const three = ["hello world", "good morning everybody", "buy milk"];
    await on.fill("#texts", three.join("\n"));
    await on.waitForFunction(() => document.querySelectorAll("#results li").length === 3);
    await asked("greeting", "3 nearest of 3 lines");
    await on.waitForFunction((first) => document.querySelector("#results .line").textContent === first, three[0]);
    const [first, second, third] = await on.$$eval("#results i", (all) => all.map((bar) => Number(bar.style.getPropertyValue("--share"))));
    assert.ok(first === 1 && second > 0.5 && second < 1 && third < 0.2, [first, second, third]);
    const lines = [...Array(300).keys()].map((at) => `line ${at}`);
    await on.fill("#texts", ["", ...lines].join("\n"));
    await on.waitForFunction(() => document.getElementById("count").textContent.startsWith("300 lines searchable"));
    await on.fill("#query", "line 250");
    await on.waitForFunction(() => document.querySelector("#results .line")?.textContent === "line 250");
    await on.click("#results summary");
    await on.click("text=Show in your lines");
    const selected = ({ value, selectionStart, selectionEnd, scrollTop }) => [value.slice(selectionStart, selectionEnd), scrollTop > 1000];
    assert.deepEqual(await on.$eval("#texts", selected), ["line 250", true]);
    await on.click("#clear");
    assert.deepEqual([await on.inputValue("#texts"), await text(on, "clear")], ["", "Undo Clear"]);
    await on.click("#clear");
    assert.equal(await on.inputValue("#texts"), ["", ...lines].join("\n"));
    await on.click("#clear");
    const folder = join(few, "..", "mixed");
    mkdirSync(folder);
    writeFileSync(join(folder, "picture.png"), "a");
    await on.setInputFiles("#folder", folder);
    await shown(on, "refused");
    assert.match(await text(on, "refused-why"), /^mixed: not a bundle \(no manifest\.json\), and no text files in it; choose/);
    await on.click("#refused-dismiss");
    assert.equal(await on.isVisible("#refused"), false);
    const table = 'id,question,answer\r\n1,"How do I, now, log in?","Use the\r\n""blue"" button"\r\n2,Where is Oslo,Norway\r\n';
    writeFileSync(join(folder, "table.csv"), table);
    await on.setInputFiles("#folder", folder);
    await on.waitForFunction(() => document.getElementById("count").textContent.startsWith("2 lines searchable"));
    assert.equal(await on.inputValue("#texts"), 'How do I, now, log in? · Use the "blue" button\nWhere is Oslo · Norway');
    const said = "Each row of mixed/table.csv is a line now. Columns: question, answer. Left out, as without words: id.";
    assert.equal(await text(on, "taken"), `${said} Left out, as no text: picture.png.`);
    assert.deepEqual(await on.evaluate(TABLES), [
      [["hello", "bye"], [], []],
      [["foo bar", "baz"], [], ["column 1"]],
      [['x · "open · y'], [], []],
      [["1 · 2", "3 · 4"], [], []],
    ]);
    assert.deepEqual(on.bugs, []);
  },

  /** One click fills in, embeds and searches the example; typed lines are embedded after a pause. */
  async example_and_changed_lines() {
    const on = await page("/?bundle=/few/");
    await opened(on);
    const first = (line) => on.waitForFunction((expected) => document.querySelector("#results .line")?.textContent === expected, line);
    await on.fill("#texts", "mine\nmine too");
    await on.click("#example");
    await first("The screen arrived with a crack in the corner.");
    assert.deepEqual([await on.inputValue("#texts"), await on.inputValue("#query")], [EXAMPLE.join("\n"), QUERY]);
    assert.deepEqual([await text(on, "stale"), await on.isVisible("#embed")], ["", false]);
    assert.equal(await text(on, "example"), "Back to your lines");
    await on.click("#example");
    await on.waitForFunction(() => document.getElementById("count").textContent.startsWith("2 lines searchable"));
    assert.equal(await on.inputValue("#texts"), "mine\nmine too");
    await on.fill("#query", "mine");
    await on.waitForSelector("#results li");
    await on.fill("#texts", "others"); // and a pause
    await first("others");
    await on.click("#another"); // the next bundle embeds them and answers the same query
    await on.setInputFiles("#folder", few);
    await shown(on, "loading");
    await on.waitForSelector("#loading", { state: "hidden" });
    await first("others");
    await on.fill("#texts", "");
    await on.waitForSelector("#query:disabled");
    assert.equal(await on.isVisible("#results li"), false);
    assert.deepEqual(on.bugs, []);
  },

  /** A result opens to its whole line, its cosine and a button that copies it; more come at a press, all by the keyboard. */
  async results_by_keyboard() {
    const on = await page("/?bundle=/few/", { permissions: ["clipboard-read", "clipboard-write"] });
    await opened(on);
    const html = "<img src=x onerror=alert(1)> the word";
    await on.fill("#texts", [...EXAMPLE, "", html, "the word ".repeat(400)].join("\n"));
    await on.waitForSelector("#query:enabled");
    await on.fill("#query", "img word");
    await on.waitForFunction(() => document.querySelector("#results mark"));
    assert.equal(await on.$("#results img"), null);
    const at = (await on.$$eval("#results .line", (all) => all.map((each) => each.textContent))).indexOf(html);
    assert.match(await on.innerText(`#results li:nth-child(${at + 1})`), /line 22/); // of those in the field, empty ones too
    await on.focus(`#results li:nth-child(${at + 1}) summary`);
    await on.keyboard.press("Enter");
    await on.keyboard.press("Tab");
    await on.keyboard.press("Enter");
    await on.waitForFunction(() => document.activeElement.textContent === "Copied");
    assert.equal(await on.evaluate(() => navigator.clipboard.readText()), html);
    const long = on.locator("#results summary", { hasText: "the word the word" });
    const heightOf = async () => (await long.boundingBox()).height;
    const closed = await heightOf();
    await long.press("Enter");
    assert.ok((await heightOf()) > 3 * closed);
    assert.equal(await text(on, "more"), "Show 14 more");
    await on.press("#more", "Enter");
    await on.waitForFunction(() => document.activeElement === document.querySelectorAll("#results summary")[8]);
    assert.deepEqual([await on.isVisible("#more"), (await on.$$("#results li")).length], [false, 22]);
    assert.deepEqual(on.bugs, []);
  },

  /** A reload keeps the lines, the query and the encoder; the lines are nowhere but in the tab. */
  async kept_over_a_reload() {
    const on = await page("/");
    await on.click("text=Try micro");
    await on.waitForSelector("#results li"); // the example, at once
    assert.equal(await on.evaluate("document.activeElement.id"), "query");
    assert.equal(await text(on, "heading"), "Example lines");
    await on.click("#clear"); // and use my own
    assert.deepEqual([await on.inputValue("#texts"), await on.evaluate("document.activeElement.id")], ["", "texts"]);
    await on.fill("#texts", "a cat\na dog");
    await on.waitForSelector("#query:enabled");
    await on.fill("#query", "kitten");
    await on.waitForSelector("#results li");
    await on.reload();
    await on.waitForFunction(() => document.querySelector("#results .line")?.textContent === "a cat");
    assert.equal(await on.isVisible("#clear"), true);
    assert.deepEqual([await text(on, "bundle-name"), await on.inputValue("#query")], ["micro", "kitten"]);
    assert.equal(new URL(on.url()).search, "?bundle=micro");
    await on.click("#example");
    await on.waitForFunction(() => document.querySelector("#results .line")?.textContent.startsWith("The screen"));
    await on.click("#in-your-page summary");
    const [readme] = await Promise.all([on.context().waitForEvent("page"), on.click("footer a")]); // beside this page
    assert.match(await readme.textContent("body"), /^# Run a bundle in a browser/);
    await on.goto(`${origin}/README.md`);
    await on.goBack();
    await on.waitForFunction(() => document.getElementById("count").textContent.startsWith("2 lines searchable"));
    assert.deepEqual([await on.inputValue("#texts"), await on.inputValue("#query")], ["a cat\na dog", ""]);
    const elsewhere = await on.context().newPage();
    await elsewhere.goto(origin);
    await shown(elsewhere, "open");
    assert.equal(await elsewhere.inputValue("#texts"), "");
    assert.deepEqual(on.bugs, []);
  },

  async folder_chosen() {
    const on = await page("/");
    await on.setInputFiles("#folder", few);
    await opened(on);
    assert.equal(await text(on, "bundle-name"), MANIFEST.name);
    assert.match(await text(on, "golden"), /^✓/);
  },

  async folder_dropped() {
    const on = await page("/");
    await shown(on, "open");
    mkdirSync(join(few, "..", "empty"));
    await drop(on, join(few, "..", "empty"));
    await shown(on, "refused");
    assert.equal(await text(on, "refused-why"), "empty: the folder is empty; drop a bundle's folder or a text file");
    for (const name of ["one", "two"]) cpSync(few, join(few, "..", "several", name), { recursive: true });
    await drop(on, join(few, "..", "several"));
    await on.waitForFunction(() => document.getElementById("place").textContent === "several");
    assert.equal(await errorOf(on), "several: Several bundles (one, two). Choose the folder of one.");
    await drop(on, few);
    await shown(on, "bundle");
    assert.equal(await text(on, "bundle-name"), MANIFEST.name);
  },

  /** What cannot be opened leaves the encoder that is open, with its lines and its settings. */
  async refused_beside_an_open_one() {
    const on = await page("/?bundle=/few/");
    await opened(on);
    await on.fill("#texts", "first\nsecond");
    await on.waitForSelector("#query:enabled");
    await on.fill("#query", "first");
    await on.waitForSelector("#results li");
    await on.click("#another");
    await openAddress(on, "/nothing/");
    await shown(on, "error");
    assert.equal(await text(on, "refusal"), `Not opened; ${MANIFEST.name} stays open`);
    assert.deepEqual([await on.isVisible("#url"), await on.getAttribute("#url", "aria-invalid")], [true, "true"]);
    assert.equal(await on.evaluate("document.activeElement.id"), "refusal");
    assert.equal(await on.isVisible("#bundle"), true);
    await on.fill("#query", "second");
    await on.waitForFunction(() => document.querySelector("#results .line")?.textContent === "second");
    assert.equal(await on.isVisible("#error"), false);
    assert.deepEqual([await text(on, "another"), await on.isVisible("#results li")], ["Close", true]);
    await openAddress(on, "foo");
    assert.equal(await errorText(on), "foo: No such encoder. Here are nano, micro, multi.");
    await on.click("#dismiss");
    assert.equal(await on.isVisible("#error"), false);
    assert.equal(await on.evaluate("document.activeElement.id"), "url"); // in sight, to be corrected
    await on.fill("#url", "fo");
    assert.equal(await on.getAttribute("#url", "aria-invalid"), null);
    await on.click("#another");
    assert.equal(await on.isVisible("#open"), false);
    assert.deepEqual(on.bugs, []);
  },

  async text_dropped() {
    const on = await page("/");
    await shown(on, "open");
    const refusal = async (name, content, expected) => {
      await dropText(on, name, content);
      await on.waitForFunction((why) => document.getElementById("refused-why").textContent === why, `${name}: ${expected}`);
      assert.equal(await on.isVisible("#refused"), true);
    };
    const searchable = (expected) =>
      on.waitForFunction((start) => document.getElementById("count").textContent.startsWith(start), `${expected} searchable`);
    const noLines = "no lines in it; give a text file with one text a line";
    await refusal("empty.txt", " \n", noLines);
    await dropText(on, "early.md", "before an encoder");
    await on.waitForFunction(() => document.getElementById("offer").textContent === "Pick an encoder to search your 1 line");
    assert.equal(await on.isVisible("#refused"), false);
    await openAddress(on, "few/");
    await opened(on);
    await searchable("1 line");
    assert.equal(await on.inputValue("#texts"), "before an encoder");
    await on.fill("#texts", "first");
    await searchable("1 line");
    await dropText(on, "lines.txt", "\ufeffsecond\nthird");
    await searchable("3 lines");
    assert.equal(await on.inputValue("#texts"), "first\nsecond\nthird");
    await refusal("binary.txt", "a\0b", "not a text file (it has NUL bytes); save it as text in UTF-8");
    await refusal("none.txt", "", noLines);
    await refusal("rules.md", "---\n```\n", noLines);
    await refusal("picture.png", "a", "not a text file; give .txt, .md, .csv, .tsv, .log, .jsonl, with one text a line");
    await refusal("large.txt", "a\n".repeat(3e6), "6.0 MB, and the page takes at most 5.0 MB; give a part of it");
    assert.equal(await on.isVisible("#bundle"), true);
    await dropText(on, "old.txt", Buffer.from("caf\xe9", "latin1"));
    await searchable("4 lines");
    assert.deepEqual([await on.inputValue("#texts"), await on.isVisible("#refused")], ["first\nsecond\nthird\ncafé", false]);
    await on.setInputFiles("#file", { name: "table.csv", mimeType: "text/csv", buffer: Buffer.from("a,b") });
    await searchable("5 lines");
    assert.equal(await text(on, "taken"), "Each row of table.csv is a line now.");
    await refusal("picture.png", "a", "not a text file; give .txt, .md, .csv, .tsv, .log, .jsonl, with one text a line");
    assert.equal(await text(on, "taken"), ""); // of the file before
    await on.fill("#texts", "---\none\n|---|\n```\n🎉");
    assert.equal(await on.isVisible("#refused"), false); // of a file, when lines are typed
    await searchable("2 lines"); // those that say something
    await on.fill("#texts", "");
    await dropText(on, "notes.md", MARKDOWN);
    await searchable("5 lines");
    assert.equal(await on.inputValue("#texts"), "A title\nA wrapped paragraph of two lines.\nfirst · second\n# code\nan item, wrapped");
    await on.fill("#texts", "");
    await dropText(on, "rows.jsonl", JSON_ROWS);
    await searchable("3 lines");
    assert.equal(await on.inputValue("#texts"), "Hello you\nnot JSON {\nBye");
    assert.equal(await text(on, "taken"), "Each row of rows.jsonl is a line now. Columns: text. Left out, beside the column text: id, meta.to.");
    await on.fill("#texts", "");
    await dropText(on, "long.txt", "one\ntwo\n".repeat(12_500));
    await searchable("20,000 lines");
    assert.equal(await text(on, "too-many"), "20,000 of 25,000 lines; the page takes no more");
    await on.evaluate(() => {
      const texts = document.getElementById("texts"); // to edit so many lines takes the browser half a minute
      texts.value = "first\nsecond\nthird";
      texts.dispatchEvent(new Event("input"));
    });
    assert.equal(await text(on, "too-many"), "");
    await searchable("3 lines");
    await on.fill("#query", "first");
    await on.waitForFunction(() => document.querySelectorAll("#results li").length === 3);
    assert.deepEqual(on.bugs, []);
  },

  async shipped() {
    const on = await page("/");
    await on.waitForSelector("#students button");
    const { x, y } = await on.locator("#texts").boundingBox();
    const open = await on.locator("#open").boundingBox();
    assert.ok(open.x > x + 300 && open.y < y); // the lines first, and the students beside them
    const width = "document.querySelector('main').clientWidth";
    const wide = await on.evaluate(width);
    assert.deepEqual(await on.$$eval("#students button", (all) => all.map((each) => each.textContent)), ["Try nano", "Try micro", "Try multi"]);
    assert.match(await text(on, "students"), /finds best in English · .*fastest, in English · .*across languages · English, German, Spanish, French, Dutch · \d+\.\d MB$/);
    await on.focus("#texts");
    await on.keyboard.press("Tab");
    await on.keyboard.press("Enter");
    await shown(on, "loading");
    assert.equal(await on.evaluate("document.activeElement.id"), "stage");
    await on.keyboard.press("Tab");
    await on.keyboard.press("Enter"); // back, with the focus on the first
    await shown(on, "open");
    assert.equal(await on.isVisible("#error"), false);
    await on.keyboard.press("Tab");
    await on.keyboard.press("Enter"); // the second, by the keyboard alone
    await opened(on);
    assert.equal(await text(on, "bundle-name"), "micro");
    assert.equal(await on.evaluate(width), wide);
    await on.waitForSelector("#results li"); // of the example
    assert.match(await text(on, "facts"), /^English · 1\.5 MB · checked ✓$/);
    for (const [typed, name] of Object.entries({ nano: "nano", [`localhost:${port}/shipped/micro`]: "micro" })) {
      await on.click("#another");
      await openAddress(on, typed);
      await on.waitForFunction((expected) => document.getElementById("bundle-name").textContent === expected, name);
      await shown(on, "bundle");
    }
    await on.click("#another");
    assert.match(await on.innerText("#students"), /Try nano[^]*Try micro[^]*Try multi/); // micro is open from another address
    await on.click("text=Try multi");
    await on.waitForFunction(() => document.getElementById("bundle-name").textContent === "multi");
    await on.waitForFunction((line) => document.querySelector("#results .line")?.textContent === line, exampleOf(["de"])[11]);
    await on.click("#another");
    assert.match(await on.innerText("#students"), /Try micro[^]*\nmulti, open now/);
    await on.click("text=Close");
    assert.equal(await on.isVisible("#open"), false);
    await on.click("#about summary");
    assert.equal(await on.isVisible("#precision"), false); // there is one, as plain text
    assert.equal(await on.isVisible("#backend-choice"), true);
    assert.match(await on.innerText(".settings"), /^Precision\s*int8\s*Dimensions\s*384\s*Backend/);
    assert.deepEqual(on.bugs, []);
  },

  /** Pasted lines are embedded; those embedded before Stop are searched, and the others come with the next Embed. */
  async paste_and_stop() {
    const on = await page("/?bundle=/few/", { permissions: ["clipboard-read", "clipboard-write"] });
    await opened(on);
    const all = 1500; // more than the browser pastes itself
    await on.evaluate((count) => navigator.clipboard.writeText(Array.from({ length: count }, (_, at) => `line ${at}`).join("\n")), all);
    await on.focus("#texts");
    await on.keyboard.press("Control+V");
    await shown(on, "stop");
    await on.press("#stop", "Enter");
    await on.waitForFunction(() => document.getElementById("count").textContent.startsWith("Stopped: "));
    assert.equal(await on.evaluate("document.activeElement.id"), "embed"); // in its place
    const embedded = Number(/^Stopped: ([\d,]+) lines searchable$/.exec(await text(on, "count"))[1].replace(",", ""));
    assert.ok(embedded % 128 === 0 && 0 < embedded && embedded < all, embedded);
    await on.fill("#query", "line 7");
    await on.waitForFunction(() => document.querySelector("#results .line")?.textContent === "line 7");
    assert.equal(await text(on, "stale"), ""); // the lines are those of the visitor's, if not all
    await on.press("#texts", "x"); // what was stopped does not begin by itself
    assert.equal(await text(on, "stale"), "These results are of your lines before you changed them.");
    assert.equal(await on.isVisible("#found"), false);
    await on.press("#texts", "Backspace");
    assert.equal(await text(on, "embed"), "Make 1,500 lines searchable");
    await on.press("#embed", "Enter");
    assert.equal(await on.evaluate("document.activeElement.id"), "stop");
    await on.waitForFunction(() => document.getElementById("count").textContent.startsWith("1,500 lines searchable, in "));
    assert.deepEqual([await on.isVisible("#embed"), await on.evaluate("document.activeElement.id")], [false, "query"]);
    await on.evaluate(() => {
      const texts = document.getElementById("texts");
      texts.value = "line 7\n\nhalf \ud83d\nline 8"; // half a surrogate pair
      texts.dispatchEvent(new Event("input"));
    });
    await on.waitForFunction(() => document.getElementById("count").textContent.startsWith("line 3: contains half a surrogate pair"));
    await on.press("#embed", "Enter");
    await on.waitForFunction(() => document.activeElement.id === "texts");
    assert.deepEqual(on.bugs, []);
  },

  async no_bundle_in_folder() {
    const on = await page("/");
    await on.setInputFiles("#folder", fileURLToPath(new URL(".", import.meta.url)));
    await shown(on, "refused");
    assert.match(await text(on, "refused-why"), /^test: not a bundle \(no manifest\.json\), and no text files in it; choose the folder/);
    await on.setInputFiles(
      "#folder",
      broken("incomplete", (folder) => rmSync(join(folder, "tokenizer.json"))),
    );
    await on.waitForFunction(() => document.getElementById("place").textContent === "incomplete/tokenizer.json");
    assert.equal(await text(on, "fact"), "Missing.");
  },

  /** What Node refuses, and in the same words: no file outside the bundle's folder is asked for. */
  async refused_as_in_node() {
    const on = await page("/");
    await shown(on, "open");
    for (const [at, [name, { change, error }]] of Object.entries(REFUSED).entries()) {
      broken(`refused${at}`, change);
      const { error: message = "opened", kind } = await inBrowser(on, `/refused${at}/`, {}, "() => ({})");
      const found = `${kind === "check" ? "CheckFailed" : "UserError"}: ${message}`.replaceAll(`${origin}/refused${at}`, "X");
      if (typeof error === "string") assert.equal(found, error, name);
      else assert.match(found, error, name);
    }
    const strangers = on.asked.filter((address) => !address.startsWith(`${origin}/`) || /passwd|\/x$/.test(address));
    assert.deepEqual(strangers, []);
  },

  async gives_as_in_node() {
    const on = await page("/");
    for (const [at, [, { change = () => {}, use, value, verify }]] of Object.entries(GIVES).entries()) {
      broken(`gives${at}`, change);
      verify(await inBrowser(on, `/gives${at}/`, { backend: "wasm" }, String(use).replace(/^async use\(/, "async function ("), value));
    }
  },

  async no_simd() {
    const prepare = (value) => (fresh) => fresh.addInitScript(value);
    const lacking = await page("/?bundle=/bundle/", { prepare: prepare("WebAssembly.validate = () => false") });
    assert.match(
      await errorOf(lacking),
      /^this browser: WebAssembly without SIMD, which the encoder's arithmetic needs\. Use a current Chrome/,
    );
    assert.equal(await lacking.isVisible("#open"), false);
    assert.deepEqual(
      lacking.asked.filter((address) => /vendor|worker/.test(address)),
      [],
    ); // nothing was loaded for nothing
    const none = await page("/", { prepare: prepare("delete globalThis.WebAssembly") });
    assert.match(await errorOf(none), /^this browser: No WebAssembly, which runs the encoder\. Use a current Chrome/);
  },

  async refused_bundles() {
    const on = await page("/?bundle=/nothing/");
    assert.match(await errorOf(on), /\/nothing\/manifest\.json: Not there \(HTTP 404\)\. Give the address of a bundle's folder\.$/);
    await refused("newer", edit("manifest.json", (value) => (value.schema = 2)), /Schema 2, this runner reads up to 1\. Get a newer edgedistill\.$/);
    await refused("backend", () => {}, /^backend=tpu: No such backend\. Give auto, webgpu, wasm, or leave it out\.$/, "&backend=tpu");
    await refused("dim", () => {}, /^dim=abc: Not a whole number\. Give one of the bundle's dimensions/, "&dim=abc");
    await refused("width", () => {}, new RegExp(`^dim=7: ${MANIFEST.name} (has|was trained)`), "&dim=7");
    await refused("precise", () => {}, /No precision 'w3'\. Choose /, "&precision=w3");
    await refused("cut", edit("manifest.json", (value) => (value.dims = [DIMS, 64])), /dim=65: .* choose one of these/i, "&dim=65");
  },

  async many_texts() {
    const texts = Array.from({ length: 300 }, (_, at) => GOLDEN.texts[(at * 7) % 25]);
    const on = await page("/");
    const use = `async (encoder, texts) => {
      const steps = [];
      const many = await encoder.encode(texts, { progress: (done) => steps.push(done) });
      const stopped = await encoder.encode(texts, { signal: AbortSignal.abort() }).catch((error) => error.name);
      return { steps, stopped, threads: encoder.threads, last: [...many[299]], dim: encoder.dim };
    }`;
    const found = await inBrowser(on, "/few/", { threads: 2, backend: "wasm" }, use, texts);
    const threads = Math.min(2, await on.evaluate("navigator.hardwareConcurrency"));
    assert.deepEqual([found.steps, found.stopped, found.threads, found.dim], [[256, 300], "AbortError", threads, DIMS]);
    assert.ok(dot(found.last, GOLDEN.vectors[(299 * 7) % 25]) >= MANIFEST.precisions[PRECISION].parity.threshold);
    broken(
      "cut64",
      edit("manifest.json", (value) => (value.dims = [DIMS, 64])),
    );
    const odd = { corpus: { pairs: [null, "x", { columns: ["fr", "<b>", 7] }, { columns: ["source", "target"], languages: ["en", "pt-BR"] }] } };
    broken(
      "odd",
      edit("manifest.json", (value) => (value.recipe = odd)),
    );
    assert.deepEqual(await inBrowser(on, "/odd/", {}, "(encoder) => encoder.languages"), ["fr", "en", "pt-BR"]);
    const { error, length } = await inBrowser(on, "/cut64/", { dim: 64 }, "async (encoder) => ({ length: (await encoder.encode('a')).length })");
    assert.deepEqual([error, length], [undefined, 64]);
  },

  async pair_by_roles() {
    broken("pair", (folder) => {
      const files = {};
      for (const role of ["query", "document"]) {
        cpSync(few, join(folder, role), { recursive: true });
        edit("manifest.json", (value) => (value[`${role}_prompt`] = `${role} `))(join(folder, role));
        const bytes = readFileSync(join(folder, role, "manifest.json"));
        files[`${role}/manifest.json`] = createHash("sha256").update(bytes).digest("hex");
      }
      writeFileSync(join(folder, "manifest.json"), JSON.stringify({ schema: 1, name: "pair", kind: "pair", files }));
    });
    const on = await page("/");
    const use = `async (encoder) => ({
      rows: [await encoder.encodeQuery("a cat"), (await encoder.encodeDocument(["a cat"]))[0]].map((row) => [...row]),
      refused: await encoder.encode("a cat").catch((error) => error.message),
      checked: await encoder.check(),
      size: encoder.size_bytes,
    })`;
    const options = { backend: "wasm", precision: PRECISION };
    const found = await inBrowser(on, "/pair/", options, use);
    assert.equal(found.error, undefined);
    const plain = "async (encoder) => (await encoder.encode(['query a cat', 'document a cat'])).map((row) => [...row])";
    const expected = await inBrowser(on, "/few/", options, plain);
    found.rows.forEach((row, at) => assert.ok(dot(row, expected[at]) > 0.9999));
    assert.ok(dot(...expected) < 0.99);
    assert.match(found.refused, /^pair: a pair of encoders, for queries and documents; call encodeQuery or encodeDocument/);
    assert.deepEqual([found.checked.ok, found.checked.texts], [true, 2 * FEW]);
    assert.equal(found.size, 2 * MANIFEST.precisions[PRECISION].size_bytes);
    rmSync(join(few, "..", "pair", "document", "manifest.json"));
    assert.match((await inBrowser(on, "/pair/", options, use)).error, /document\/manifest\.json: not there/);
  },

  async webgpu() {
    // A stand-in for WebGPU's build that runs WASM: right, wrong in batches, or failing.
    const build = (output) => `
      import * as ort from "./ort.wasm.min.mjs";
      export const { env, Tensor } = ort;
      export const InferenceSession = { async create(graph) {
        const session = await ort.InferenceSession.create(graph);
        const run = async (feeds, names) => { const found = await session.run(feeds, names); ${output}; return found; };
        return { run, release: () => session.release() };
      } };`;
    const gpu = (found) => `Object.defineProperty(navigator, "gpu", { value: { requestAdapter: async () => (${found}) } });`;
    const withGPU = async (adapter, output, options) => {
      const on = await page("/");
      const worker = readFileSync(new URL("../worker.js", import.meta.url), "utf8");
      await on.route("**/worker.js", (route) =>
        route.fulfill({ contentType: "text/javascript", headers: isolated, body: gpu(adapter) + worker }),
      );
      await on.route("**/ort.webgpu.min.mjs", (route) =>
        route.fulfill({ contentType: "text/javascript", headers: isolated, body: build(output) }),
      );
      const found = await inBrowser(
        on,
        "/few/",
        options,
        "(encoder) => ({ backend: encoder.backend, reason: encoder.reason, ok: encoder.golden.ok })",
      );
      await on.context().close();
      return found;
    };
    const isolated = { "Cross-Origin-Embedder-Policy": "require-corp" };
    const forced = { backend: "webgpu" };
    assert.deepEqual(await withGPU("{ info: {} }", "", forced), { backend: "webgpu", reason: "", ok: true });
    const inBatches = "if (feeds.input_ids.dims[0] > 1) found[names[0]].data.fill(0.01)";
    const wrong = await withGPU("{ info: {} }", inBatches, forced);
    assert.deepEqual([wrong.backend, wrong.ok], ["wasm", true]);
    assert.match(
      wrong.reason,
      /^its golden texts are wrong on WebGPU: text \d+ of 12 \(".*"\) has cosine -?0\.\d+ here, \w+ must reach 0\.\d+$/,
    );
    const nan = await withGPU("{ info: {} }", "found[names[0]].data.fill(NaN)", forced);
    assert.match(nan.reason, /has cosine NaN here/);
    const failing = await withGPU("{ info: {} }", "throw new Error('no kernel')", forced);
    assert.deepEqual(failing, { backend: "wasm", reason: "WebGPU failed: no kernel", ok: true });
  },

  async phone_width() {
    const on = await page("/", { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true });
    await on.waitForSelector("#students button");
    assert.deepEqual([await on.isVisible(".invite"), await on.isVisible("#drop .button")], [false, false]);
    await on.click("#own summary");
    assert.equal(await on.isVisible("#drop .button"), true);
    await on.setInputFiles("#folder", few);
    await opened(on);
    assert.ok((await on.getAttribute("#texts", "placeholder")).startsWith("Type or paste,")); // nothing is dropped by a finger
    await on.fill("#texts", `${"long".repeat(600)}\nمرحبا بالعالم\nshort`);
    await on.press("#texts", "Control+Enter");
    await on.waitForSelector("#query:enabled");
    await on.fill("#query", "hello world");
    await on.waitForSelector("#results li");
    await on.waitForFunction(() => {
      const { top } = document.getElementById("search").getBoundingClientRect();
      return top >= 0 && top < 40;
    }); // the box above the results, in sight
    assert.ok((await on.$$eval("#results .line", (all) => Math.max(...all.map((each) => each.offsetHeight)))) < 120); // four lines
    await on.evaluate("document.getElementById('about').open = true");
    await on.click("#another");
    assert.equal(await on.evaluate("document.documentElement.scrollWidth"), 360);
    const unlabelled =
      "[...document.querySelectorAll('input, textarea, select')].filter((each) => !each.labels.length).map((each) => each.id)";
    assert.deepEqual(await on.evaluate(unlabelled), []);
  },

  async server_stays_in_its_folder() {
    const status = (path) =>
      new Promise((done, fail) =>
        request({ port, host: "127.0.0.1", path }, (answer) => done(answer.resume().statusCode))
          .on("error", fail)
          .end(),
      );
    assert.equal(await status("/encoder.js"), 200);
    for (const path of [
      "/../README.md",
      "/..%2fREADME.md",
      "/bundle/..%2f..%2f__init__.py",
      "/bundle/%2e%2e/x",
      "/shipped/..%2f..%2f__init__.py",
      "/test",
      "/nothing",
      "/%ff",
      "/%00",
      "/style.css/manifest.json",
      "//",
    ])
      assert.equal(await status(path), 404, path);
  },
};
