// What the page and the runner must do, and refuse, in a browser.

import assert from "node:assert/strict";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import {
  broken,
  browser,
  bundle,
  dot,
  edit,
  errorOf,
  few,
  golden,
  inBrowser,
  least,
  manifest,
  opened,
  origin,
  page,
  port,
  refused,
  shown,
  text,
} from "./harness.mjs";

export const cases = {
  async url() {
    const on = await page("/?bundle=/bundle/");
    await opened(on);
    assert.equal(await text(on, "bundle-name"), manifest.name);
    assert.match(await text(on, "golden"), /^✓ worst cosine 0\.9\d+32 texts, at least 0\.9/);
    assert.match(await text(on, "backend"), /^(WASM, \d+ threads?, SIMD|WebGPU)/);
    // the page's own encoder, all golden texts in batches, against the stored embeddings
    const rows = await on.evaluate(async (texts) => (await encoder.encode(texts)).map((row) => [...row]), golden.texts);
    assert.equal(rows.length, golden.texts.length);
    rows.forEach((row, at) => assert.ok(dot(row, golden.vectors[at]) >= least, `text ${at}: ${dot(row, golden.vectors[at])}`));
    rows.forEach((row) => assert.ok(Math.abs(dot(row, row) - 1) < 1e-4));
    const precision = ["int8", "w8", "fp32"].find((each) => each in manifest.precisions);
    assert.match(await text(on, "facts"), new RegExp(`^${precision} · `));
    assert.deepEqual(
      [...new Set(on.asked.map((address) => new URL(address).origin))].filter((each) => each !== origin && each !== "null"),
      [],
    );
    assert.deepEqual(on.bugs, []);
  },

  async search_check_time() {
    const on = await page("/?bundle=/few/");
    await opened(on);
    assert.equal(await on.isDisabled("#embed"), true);
    await on.click("#example");
    await on.click("#embed");
    await shown(on, "search");
    await on.keyboard.type("my package has not come yet", { delay: 5 }); // the field has the focus
    await on.waitForFunction(() => document.querySelector("#results li p")?.textContent.startsWith("My parcel"));
    const cosines = await on.$$eval("#results data", (all) => all.map((each) => Number(each.textContent)));
    assert.equal(cosines.length, 8);
    assert.ok(cosines.every((cosine, at) => at === 0 || cosine <= cosines[at - 1]) && cosines[0] > cosines[7]);
    await on.click("#check");
    await on.waitForFunction(() => document.getElementById("golden").textContent.startsWith("✓ worst cosine"));
    await on.click("#time");
    await on.waitForFunction(() => / ms \(p50\) · [\d,]+ texts\/s/.test(document.getElementById("speed").textContent));
    await on.click("#close");
    await shown(on, "open");
    assert.equal(await on.isVisible("#bundle"), false);
    assert.deepEqual(on.bugs, []);
  },

  async folder_chosen() {
    const on = await page("/");
    await on.setInputFiles("#folder", few);
    await opened(on);
    assert.equal(await text(on, "bundle-name"), manifest.name);
    assert.match(await text(on, "golden"), /^✓/);
  },

  async folder_dropped() {
    const on = await page("/");
    await shown(on, "open");
    const session = await on.context().newCDPSession(on);
    const data = { items: [], files: [few], dragOperationsMask: 1 };
    const box = await (await on.$("#drop")).boundingBox();
    const point = { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    for (const type of ["dragEnter", "dragOver", "drop"]) await session.send("Input.dispatchDragEvent", { type, ...point, data });
    await opened(on);
    assert.equal(await text(on, "bundle-name"), manifest.name);
  },

  async text_dropped() {
    const on = await page("/?bundle=/few/");
    await opened(on);
    await on.fill("#texts", "first");
    const drop = async (name, content) => {
      const file = join(few, "..", name);
      writeFileSync(file, content);
      const session = await on.context().newCDPSession(on);
      const data = { items: [], files: [file], dragOperationsMask: 1 };
      for (const type of ["dragEnter", "dragOver", "drop"]) await session.send("Input.dispatchDragEvent", { type, x: 9, y: 9, data });
    };
    await drop("lines.txt", "\ufeffsecond\nthird");
    await on.waitForFunction(() => document.getElementById("texts").value === "first\nsecond\nthird");
    await drop("table.csv", "a,b");
    await on.waitForFunction(() => document.getElementById("count").textContent.startsWith("table.csv: neither a bundle"));
    assert.equal(await on.isVisible("#bundle"), true);
    assert.equal(await on.evaluate("encoder !== null"), true);
    assert.deepEqual(on.bugs, []);
  },

  async graph_refused() {
    const appended = (folder) =>
      edit("manifest.json", (value) => {
        for (const entry of Object.values(value.precisions)) {
          writeFileSync(join(folder, entry.file), Buffer.concat([readFileSync(join(folder, entry.file)), Buffer.from([0xca, 1, 0])]));
          entry.size_bytes += 3;
        }
      })(folder);
    await refused("appended", appended, /Is not one that a bundle needs \(field 25 of a model at byte \d+\)\. Get the bundle again/);
  },

  async no_bundle_in_folder() {
    const on = await page("/");
    await on.setInputFiles("#folder", fileURLToPath(new URL(".", import.meta.url)));
    assert.match(await errorOf(on), /^test: Not a bundle \(no manifest\.json\)\. Choose the folder that edgedistill export wrote\.$/);
    await on.setInputFiles(
      "#folder",
      broken("incomplete", (folder) => rmSync(join(folder, "tokenizer.json")), false),
    );
    await on.waitForFunction(() => document.getElementById("place").textContent === "incomplete/tokenizer.json");
    assert.equal(await text(on, "fact"), "Missing.");
  },

  async damaged_file() {
    const { file } = Object.values(manifest.precisions)[0];
    const flip = (folder) => {
      const bytes = readFileSync(join(folder, file));
      bytes[bytes.length >> 1] ^= 1;
      writeFileSync(join(folder, file), bytes);
    };
    const copyAgain = /Changed since export \(its sha256 differs from manifest\.json\)\. Copy the bundle again\.$/;
    await refused("flipped", flip, copyAgain, { rehash: false, query: `&precision=${Object.keys(manifest.precisions)[0]}` });
    await refused(
      "prompted",
      edit("tokenizer.json", (value) => (value.model.unk_token = "[PAD]")),
      copyAgain,
      { rehash: false },
    );
    const longer = (folder) => writeFileSync(join(folder, file), Buffer.concat([readFileSync(join(folder, file)), Buffer.alloc(9)]));
    await refused("longer", longer, /More than [\d,]+ bytes\. Copy the bundle again\.$/, {
      query: `&precision=${Object.keys(manifest.precisions)[0]}`,
    });
  },

  async names_outside() {
    const names = ["../x", "/etc/passwd", "onnx/../../x", "C:\\x", "https://example.org/x", "onnx/%2e%2e/x", "onnx//x", "x?y", ""];
    for (const [at, name] of names.entries()) {
      const outside = edit("manifest.json", (value) => {
        value.files[name] = "0".repeat(64);
        const entry = Object.values(value.precisions)[0];
        Object.assign(entry, { file: name, sha256: "0".repeat(64) });
      });
      broken(`outside${at}`, outside, false);
    }
    const on = await page("/");
    await shown(on, "open");
    for (const [at, name] of names.entries()) {
      const { error, kind } = await inBrowser(on, `/outside${at}/`, {}, "() => 'opened'");
      assert.equal(
        error,
        `${origin}/outside${at}/manifest.json: names ${JSON.stringify(name)}, which is not a file inside the bundle; ` +
          "do not use this bundle",
      );
      assert.equal(kind, "check");
    }
    const strangers = on.asked.filter((address) => !address.startsWith(`${origin}/`) || /passwd|\/x$/.test(address));
    assert.deepEqual(strangers, []);
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
    await refused(
      "newer",
      edit("manifest.json", (value) => (value.schema = 2)),
      /Schema 2, this page reads up to 1\. Use a newer export\/web\.$/,
    );
    const classifier = edit("manifest.json", (value) => Object.assign(value, { labels: ["no", "yes"], output: "logits" }));
    await refused("classifier", classifier, /A classifier, which has no embeddings\. Choose the bundle of an encoder\.$/);
    const cutShort = (folder) => writeFileSync(join(folder, "manifest.json"), '{"schema": 1,');
    await refused("short", cutShort, /Not valid JSON, truncated or edited\. Copy the bundle again\.$/, { rehash: false });
    await refused(
      "keyless",
      edit("manifest.json", (value) => delete value.dims),
      /Dims missing, truncated or edited\. Copy the bundle again\.$/,
    );
    await refused("precise", () => {}, /No precision 'w3'\. Choose /, { query: "&precision=w3" });
  },

  async golden_texts_decide() {
    const turned = edit("parity.json", (value) => (value.vectors[7] = value.vectors[7].map((each) => -each)));
    await refused(
      "turned",
      turned,
      /Text 8 of 12 \("[^"]*"\) has cosine -0\.99\d\d here, \w+ must reach 0\.\d+.*so the loss is in the arithmetic/,
    );
    const renumbered = edit("parity.json", (value) => (value.ids[7][1] += 1));
    await refused("renumbered", renumbered, /Text 8 of 12 \("[^"]*"\): token ids differ/i);
    const unchecked = (folder) => {
      edit("parity.json", (value) => (value.cosine_at_least = {}))(folder);
      edit("manifest.json", (value) => Object.values(value.precisions).forEach((entry) => delete entry.parity))(folder);
    };
    await refused("unchecked", unchecked, /No golden texts with ids, embeddings and a least cosine\. Copy the bundle again\.$/);
  },

  async dimensions() {
    broken(
      "cut",
      edit("manifest.json", (value) => (value.dims = [manifest.dims[0], 64])),
    );
    const on = await page("/");
    const use = `async (encoder, texts) => ({
      dim: encoder.dim, short: (await encoder.encode(texts)).map((row) => [...row]),
      long: (await encoder.encode(texts, { dim: ${manifest.dims[0]} })).map((row) => [...row]),
      one: (await encoder.encode(texts[0])).length,
    })`;
    const { dim, short, long, one } = await inBrowser(on, "/cut/", { dim: 64 }, use, golden.texts.slice(0, 9));
    assert.deepEqual([dim, one, short[0].length, long[0].length], [64, 64, 64, manifest.dims[0]]);
    short.forEach((row, at) => {
      const head = long[at].slice(0, 64);
      const norm = Math.sqrt(dot(head, head));
      head.forEach((value, component) => assert.ok(Math.abs(value / norm - row[component]) < 1e-5));
    });
    const { error } = await inBrowser(on, "/cut/", { dim: 65 }, "() => 'opened'");
    assert.equal(error, `dim=65: ${manifest.name} was trained for ${manifest.dims[0]}, 64 dimensions; choose one of these`);
  },

  async batches_and_texts() {
    const texts = Array.from({ length: 300 }, (_, at) => golden.texts[(at * 7) % 25]);
    const on = await page("/");
    const use = `async (encoder, texts) => {
      const steps = [];
      const many = await encoder.encode(texts, { progress: (done) => steps.push(done) });
      const alone = [];
      for (const text of texts.slice(0, 25)) alone.push(await encoder.encode(text));
      const errors = [];
      for (const wrong of [["a", 7], ["half \\ud83d"]]) await encoder.encode(wrong).catch((error) => errors.push(error.message));
      const stopped = await encoder.encode(texts, { signal: AbortSignal.abort() }).catch((error) => error.name);
      const plain = (rows) => rows.map((row) => [...row]);
      const { threads } = encoder;
      return { steps, errors, stopped, empty: await encoder.encode([]), threads, many: plain(many), alone: plain(alone) };
    }`;
    const found = await inBrowser(on, "/few/", { threads: 2, backend: "wasm" }, use, texts);
    assert.deepEqual(found.steps, [256, 300]);
    assert.deepEqual(found.errors, [
      "texts[1]: number, not a string; give strings",
      "texts[0]: contains half a surrogate pair, which is not text; decode it again",
    ]);
    assert.deepEqual(
      [found.stopped, found.empty, found.threads],
      ["AbortError", [], Math.min(2, await on.evaluate("navigator.hardwareConcurrency"))],
    );
    found.alone.forEach((row, at) => assert.ok(dot(row, found.many[at]) > 0.995, `text ${at}`)); // int8 of old drifted with its batch
    found.many.forEach((row, at) => assert.ok(dot(row, golden.vectors[(at * 7) % 25]) >= least));
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
    const on = await page("/?bundle=/few/", { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true });
    await opened(on);
    await on.fill("#texts", `${"long".repeat(60)}\nمرحبا بالعالم\nshort`);
    await on.click("#embed");
    await shown(on, "search");
    await on.fill("#query", "hello world");
    await on.waitForSelector("#results li");
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
      "/test",
      "/nothing",
      "/%ff",
      "//",
    ])
      assert.equal(await status(path), 404, path);
  },
};
