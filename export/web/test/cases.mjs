// What the page and its worker must do, and refuse, in a browser.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { Student } from "../../core/edgedistill.js";
import { BM25, joined } from "../../core/search.js";
import { QUERY, exampleOf } from "../example.js";
import { GOLDEN, browser, dot, drop, dropText, errorOf, errorText, inBrowser, mount, openAddress, opened, origin, page, scratch, shown, student, studentFile, text } from "./harness.mjs";

const EXAMPLE = exampleOf(["en"]);

/** {lines, header, left} of tables: without a header, with a column of numbers, with a quote that never ends, of numbers alone. */
const TABLES = `import("/tables.js").then(({ tableLines }) =>
  ["hello\\nbye\\n", "1,foo bar\\n2,baz", 'x,"open,y', "1,2\\n3,4"].map((text) => Object.values(tableLines(text, ","))))`;

export const cases = {
  async url() {
    const on = await page("/?student=nano");
    await opened(on);
    assert.equal(await text(on, "student-name"), "nano");
    await on.waitForFunction(() => /^English only · 4\.7 MB · checked ✓$/.test(document.getElementById("facts").textContent));
    assert.match(await text(on, "golden"), /^✓ same results as in Python32 texts whose embeddings come with the encoder; worst cosine 0\.9\d+, at least 0\.9/);
    // what the page has of a text is what Node has
    const nano = await Student.open(student("nano"));
    const rows = await on.evaluate(async (texts) => (await encoder.encode(texts)).map((row) => [...row]), GOLDEN.texts);
    rows.forEach((row, at) => assert.deepEqual(row, [...nano.embed(GOLDEN.texts[at])], `text ${at}`)); // relaxed SIMD or not
    assert.ok(on.asked.includes(`${origin}/core/edgedistill-relaxed.wasm`));
    assert.deepEqual(
      [...new Set(on.asked.map((address) => new URL(address).origin))].filter((each) => each !== origin && each !== "null"),
      [],
    );
    assert.deepEqual(on.bugs, []);
  },

  async search_check_time() {
    const on = await page("/?student=/few.bin");
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
    const on = await page("/?student=/few.bin");
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
    const median = cosines.toSorted((a, b) => a - b)[9];
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
      assert.ok(Math.abs(share - Math.max(0, (expected[at][0] - median) / (1 - median))) < 0.001, share);
      assert.equal(all.includes("lifted by words of the query"), expected[at][1]);
      assert.ok(all.includes(`line ${expected[at][2]}`));
      assert.equal(marks.length > 0, expected[at][1]);
      assert.ok(marks.every((mark) => ["blue", "account", "accounting"].includes(mark)), marks); // not my, a stop word
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
    assert.equal(await on.$eval("#results .line", (first) => getComputedStyle(first).fontWeight), "400");
    assert.equal(await on.isVisible("#results i"), false);
    assert.deepEqual(on.bugs, []);
  },

  /** One line is far or close by itself, and of three the second has a bar; a row of a table is a line. */
  async few_lines_and_tables() {
    const on = await page("/?student=");
    await shown(on, "open");
    assert.equal(await on.isVisible("#error"), false);
    await on.fill("#texts", "My parcel is late");
    await on.waitForFunction(() => document.getElementById("kept").textContent === "Pick an encoder to search your 1 line");
    assert.equal(await on.isVisible("#without"), false);
    await openAddress(on, "/few.bin");
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
    assert.ok(first < 1 && first > second && second > third && third < 0.2, [first, second, third]);
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
    const table = 'id,question,answer\r\n1,"How do I, now, log in?","Use the\r\n""blue"" button"\r\n2,Where is Oslo,Norway\r\n';
    await dropText(on, "table.csv", table);
    await on.waitForFunction(() => document.getElementById("count").textContent.startsWith("2 lines searchable"));
    assert.equal(await on.inputValue("#texts"), 'How do I, now, log in? · Use the "blue" button\nWhere is Oslo · Norway');
    const said = "Each row of table.csv is a line now. Columns: question, answer. Left out, as without words: id.";
    assert.equal(await text(on, "taken"), said);
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
    const on = await page("/?student=/few.bin");
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
    await on.click("#another"); // the next encoder embeds them and answers the same query
    await on.setInputFiles("#student-file", studentFile("micro"));
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
    const on = await page("/?student=/few.bin", { permissions: ["clipboard-read", "clipboard-write"] });
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
    assert.deepEqual([await text(on, "student-name"), await on.inputValue("#query")], ["micro", "kitten"]);
    assert.equal(new URL(on.url()).search, "?student=micro");
    await on.click("#example");
    await on.waitForFunction(() => document.querySelector("#results .line")?.textContent.startsWith("The screen"));
    await on.goto(`${origin}/students.json`);
    await on.goBack();
    await on.waitForFunction(() => document.getElementById("count").textContent.startsWith("2 lines searchable"));
    assert.deepEqual([await on.inputValue("#texts"), await on.inputValue("#query")], ["a cat\na dog", ""]);
    const elsewhere = await on.context().newPage();
    await elsewhere.goto(origin);
    await shown(elsewhere, "open");
    assert.equal(await elsewhere.inputValue("#texts"), "");
    assert.deepEqual(on.bugs, []);
  },

  /** A student's file chosen or dropped; a folder is none, and a bundle's graph says how to make one of it. */
  async file_chosen_or_dropped() {
    const on = await page("/");
    await shown(on, "open");
    const refusal = async (place, expected) => {
      await drop(on, place);
      await on.waitForFunction((why) => document.getElementById("refused-why").textContent === why, expected);
    };
    mkdirSync(join(scratch, "folder"));
    await refusal(join(scratch, "folder"), "folder: not a text file; give .txt, .md, .csv, .tsv, .log, with one text a line");
    const graph = fileURLToPath(new URL("../../../edgedistill/shipped/bundles/micro/onnx/model_quantized.onnx", import.meta.url));
    await refusal(graph, "model_quantized.onnx: of a bundle, which is no student's file; edgedistill export BUNDLE --core DIR writes its student.bin");
    await on.setInputFiles("#file", [studentFile("micro"), studentFile("nano")]);
    await on.waitForFunction(() => document.getElementById("refused-why").textContent === "micro.bin: several students (micro.bin, nano.bin); choose one of the files");
    await on.setInputFiles("#student-file", studentFile("micro"));
    await opened(on);
    assert.equal(await text(on, "student-name"), "micro");
    await drop(on, studentFile("nano"));
    await on.waitForFunction(() => document.getElementById("student-name").textContent === "nano");
    assert.equal(new URL(on.url()).search, "");
    assert.deepEqual(on.bugs, []);
  },

  /** What cannot be opened leaves the encoder that is open, with its lines and its settings. */
  async refused_beside_an_open_one() {
    const on = await page("/?student=/few.bin");
    await opened(on);
    await on.fill("#texts", "first\nsecond");
    await on.waitForSelector("#query:enabled");
    await on.fill("#query", "first");
    await on.waitForSelector("#results li");
    await on.click("#another");
    await openAddress(on, "/nothing/");
    await shown(on, "error");
    assert.equal(await text(on, "refusal"), `Not opened; nano stays open`);
    assert.deepEqual([await on.isVisible("#url"), await on.getAttribute("#url", "aria-invalid")], [true, "true"]);
    assert.equal(await on.evaluate("document.activeElement.id"), "refusal");
    assert.equal(await on.isVisible("#student"), true);
    await on.fill("#query", "second");
    await on.waitForFunction(() => document.querySelector("#results .line")?.textContent === "second");
    assert.equal(await on.isVisible("#error"), false);
    assert.deepEqual([await text(on, "another"), await on.isVisible("#results li")], ["Close", true]);
    await openAddress(on, "foo");
    assert.equal(await errorText(on), "foo: No such encoder. Here are nano, micro, multi, small.");
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
    await on.waitForFunction(() => document.getElementById("kept").textContent === "Pick an encoder to search your 1 line");
    assert.equal(await on.isVisible("#refused"), false);
    await openAddress(on, "/few.bin");
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
    await refusal("picture.png", "a", "not a text file; give .txt, .md, .csv, .tsv, .log, with one text a line");
    await refusal("large.txt", "a\n".repeat(3e6), "6.0 MB, and the page takes at most 5.0 MB; give a part of it");
    assert.equal(await on.isVisible("#student"), true);
    await dropText(on, "old.txt", Buffer.from("caf\xe9", "latin1"));
    await searchable("4 lines");
    assert.deepEqual([await on.inputValue("#texts"), await on.isVisible("#refused")], ["first\nsecond\nthird\ncafé", false]);
    await on.setInputFiles("#file", { name: "table.csv", mimeType: "text/csv", buffer: Buffer.from("a,b") });
    await searchable("5 lines");
    assert.equal(await text(on, "taken"), "Each row of table.csv is a line now.");
    await refusal("picture.png", "a", "not a text file; give .txt, .md, .csv, .tsv, .log, with one text a line");
    assert.equal(await text(on, "taken"), ""); // of the file before
    await on.fill("#texts", "---\none\n|---|\n```\n🎉");
    assert.equal(await on.isVisible("#refused"), false); // of a file, when lines are typed
    await searchable("2 lines"); // those that say something
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
    assert.deepEqual(await on.$$eval("#students button", (all) => all.map((each) => each.textContent)), ["Try nano", "Try micro", "Try multi", "Try small"]);
    assert.match(await text(on, "students"), /start with this · English only · .*fastest · English only · .*across languages · English, German, Spanish, French, Dutch, 9 more · .*finds best · English only · \d+\.\d MB$/);
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
    assert.equal(await text(on, "student-name"), "micro");
    assert.equal(await on.evaluate(width), wide);
    await on.waitForSelector("#results li"); // of the example
    assert.match(await text(on, "facts"), /^English only · 1\.8 MB/);
    for (const [typed, name] of Object.entries({ nano: "nano", [`${origin}/students/micro.bin`]: "micro" })) {
      await on.click("#another");
      await openAddress(on, typed);
      await on.waitForFunction((expected) => document.getElementById("student-name").textContent === expected, name);
      await shown(on, "student");
    }
    await on.click("#another");
    assert.match(await on.innerText("#students"), /Try nano[^]*Try micro[^]*Try multi/); // micro is open from another address
    await on.click("text=Try multi");
    await on.waitForFunction(() => document.getElementById("student-name").textContent === "multi");
    await on.waitForFunction((line) => document.querySelector("#results .line")?.textContent === line, exampleOf(["de"])[11]);
    await on.click("#another");
    assert.match(await on.innerText("#students"), /Try micro[^]*\nmulti, open now/);
    await on.click("text=Close");
    assert.equal(await on.isVisible("#open"), false);
    await on.click("#about summary");
    assert.match(await text(on, "shape"), /^384 dimensions, of up to 256 tokens a text; weights in w4$/);
    assert.deepEqual(on.bugs, []);
  },

  /** Pasted lines are embedded; those embedded before Stop are searched, and the others come with the next Embed. */
  async paste_and_stop() {
    const on = await page("/?student=/few.bin", { permissions: ["clipboard-read", "clipboard-write"] });
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

  /** Files that are no student's, in the words of the core, and addresses that are none. */
  async refused_files() {
    const good = student("micro");
    const changed = (change) => {
      const bytes = Buffer.from(good);
      change(bytes);
      return bytes;
    };
    mount("text", "hello");
    mount("version", changed((bytes) => bytes.writeUInt32LE(4, 8)));
    mount("cut", good.subarray(0, 100_000));
    mount("flipped", changed((bytes) => (bytes[70_000] ^= 1)));
    const on = await page("/");
    await shown(on, "open");
    for (const [name, fact] of Object.entries({
      text: "not a student's file; get the file again, or export it again",
      version: "an older version of the format than 5; export it again",
      cut: "damaged: cut off; get the file again, or export it again",
      flipped: "damaged: its checksum is wrong; get the file again, or export it again",
    })) {
      assert.deepEqual(await inBrowser(on, `/${name}.bin`, {}, "() => 0"), { error: `${origin}/${name}.bin: ${fact}`, name: "StudentError" });
    }
    assert.match((await inBrowser(on, "/none.bin", {}, "() => 0")).error, /none\.bin: not there \(HTTP 404\); give the address of a student's file$/);
    assert.match((await inBrowser(on, "file:///etc/passwd", {}, "() => 0")).error, /^file:.*: no answer; check the address/);
    const refused = async (query, expected) => assert.match(await errorOf(await page(`/?student=${query}`)), expected);
    await refused("/flipped.bin", /flipped\.bin: Damaged: its checksum is wrong\. Get the file again, or export it again\.$/);
  },

  async no_simd() {
    const prepare = (value) => (fresh) => fresh.addInitScript(value);
    const lacking = await page("/?student=nano", { prepare: prepare("WebAssembly.validate = () => false") });
    assert.match(
      await errorOf(lacking),
      /^this browser: WebAssembly without SIMD, which the encoder's arithmetic needs\. Use a current Chrome/,
    );
    assert.equal(await lacking.isVisible("#open"), false);
    assert.deepEqual(
      lacking.asked.filter((address) => /wasm|worker/.test(address)),
      [],
    ); // nothing was loaded for nothing
    const none = await page("/", { prepare: prepare("delete globalThis.WebAssembly") });
    assert.match(await errorOf(none), /^this browser: No WebAssembly, which runs the encoder\. Use a current Chrome/);
  },

  /** Texts of all kinds from the worker: in windows, in fewer bytes, refused by their places. */
  async many_texts() {
    const texts = Array.from({ length: 300 }, (_, at) => GOLDEN.texts[(at * 7) % 25]);
    const on = await page("/");
    const use = `async (encoder, texts) => {
      const steps = [];
      const many = await encoder.encode(texts, { progress: (done) => steps.push(done) });
      const stopped = await encoder.encode(texts, { signal: AbortSignal.abort() }).catch((error) => error.name);
      const errors = [];
      for (const wrong of [["fine", 3], [null], "half \ud83d"]) await encoder.encode(wrong).catch((error) => errors.push(error.message));
      for (const wrong of [{ precision: "int4" }, { dims: 7 }]) await encoder.encode("a", wrong).catch((error) => errors.push(error.message));
      const [int8, binary] = [await encoder.encode("a cat", { precision: "int8" }), await encoder.encode("a cat", { precision: "binary" })];
      return { steps, stopped, errors, last: [...many[299]], none: await encoder.encode([]), int8: [...int8], binary: [...binary], time: await encoder.time() };
    }`;
    const multi = await Student.open(student("multi"));
    const found = await inBrowser(on, "/students/multi.bin", {}, use, texts);
    assert.deepEqual([found.error, found.steps, found.stopped, found.none], [undefined, [256, 300], "AbortError", []]);
    assert.deepEqual(found.errors, [
      "texts[1]: number, not a string; give a string",
      "texts[0]: null, not a string; give a string",
      "texts[0]: contains half a surrogate pair, which is not text; decode it again",
      "precision: int4, not one of float32,int8,binary",
      "dims: 7, not one of 384",
    ]);
    assert.deepEqual(found.last, [...multi.embed(texts[299])]);
    for (const precision of ["int8", "binary"]) assert.deepEqual(found[precision], [...multi.embed("a cat", { precision })]);
    assert.ok(found.time.p50_ms >= 0 && found.time.rate_texts_s > 0);
  },

  /** All students that ship have their golden texts' ids and embeddings in the page, too. */
  async golden_texts() {
    const on = await page("/");
    for (const name of ["nano", "micro", "multi"]) {
      const { worst, least } = await inBrowser(on, `/students/${name}.bin`, {}, "(encoder) => encoder.check()");
      assert.ok(worst >= least, `${name}: ${worst}`);
    }
  },

  /** A pair's queries and documents have an encoder each; a text without a role has none. */
  async pair_by_roles() {
    const first = student("micro");
    mount("pair", Buffer.concat([first, Buffer.alloc((64 - (first.length % 64)) % 64), student("nano")]));
    const on = await page("/?student=/pair.bin");
    await opened(on);
    assert.match(await on.evaluate("document.getElementById('shape').textContent"), /queries by one encoder and lines by another/);
    const use = `async (encoder) => ({
      rows: [await encoder.encodeQuery("a cat"), (await encoder.encodeDocument(["a cat"]))[0]].map((row) => [...row]),
      refused: await encoder.encode("a cat").catch((error) => error.message),
      golden: encoder.golden,
    })`;
    const found = await inBrowser(on, "/pair.bin", {}, use);
    for (const [at, name] of ["micro", "nano"].entries()) assert.deepEqual(found.rows[at], [...(await Student.open(student(name))).embed("a cat")]);
    assert.match(found.refused, /^micro: a pair of encoders; give role/);
    assert.equal(found.golden, 64);
    assert.deepEqual(on.bugs, []);
  },

  /** Two students in one page, a worker that ends at work, and policies of a page and of its worker that forbid WebAssembly. */
  async two_students_an_end_and_a_policy() {
    const use = `async (nano) => {
      const { load } = await import("/encoder.js");
      const micro = await load("/students/micro.bin");
      const rows = await Promise.all([nano.encode("a cat"), micro.encode("a cat")]);
      const work = nano.encode(Array(500).fill("a cat")).catch((error) => error.message);
      nano.close();
      return { rows: rows.map((row) => [...row]), ended: await work, other: [...(await micro.encode("a cat"))] };
    }`;
    const found = await inBrowser(await page("/"), "/students/nano.bin", {}, use);
    const [nano, micro] = await Promise.all(["nano", "micro"].map(async (name) => [...(await Student.open(student(name))).embed("a cat")]));
    assert.deepEqual(found, { rows: [nano, micro], ended: "encoder: closed; load it again", other: micro });
    const headers = { "Content-Security-Policy": "script-src 'self'" };
    const strict = (file) => async (fresh) =>
      fresh.route(`**/${file}`, async (route) => route.fulfill({ response: await route.fetch(), headers: { ...(await route.fetch()).headers(), ...headers } }));
    const named = /edgedistill\.wasm: not compiled .*allow 'wasm-unsafe-eval'/;
    const alone = await page("/students.json", { prepare: strict("students.json") });
    const open = 'import("/core/edgedistill.js").then(({ Student }) => Student.open("/students/micro.bin")).catch((error) => error.message)';
    assert.match(await alone.evaluate(open), named);
    const { error } = await inBrowser(await page("/", { prepare: strict("worker.js") }), "/students/micro.bin", {}, "() => 0");
    assert.match(error, named);
  },

  async phone_width() {
    const on = await page("/", { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true });
    await on.waitForSelector("#students button");
    assert.deepEqual([await on.isVisible(".invite"), await on.isVisible("#drop .button")], [false, false]);
    await on.click("#own summary");
    assert.equal(await on.isVisible("#drop .button"), true);
    await on.setInputFiles("#student-file", studentFile("nano"));
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
};
