/** A bundle that is damaged, edited or hostile is refused, in words that say what to do. */

import assert from "node:assert/strict";
import { appendFileSync, mkdirSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";

import { load } from "../index.js";
import { copyBundle, GOLDEN, MANIFEST, readJson, rehash, rewrite } from "./bundles.js";

const RANKS = Object.entries(MANIFEST.precisions).map(([name, entry]) => [entry.rank.int8_cpu, name]);
const PRECISION = RANKS.sort()[0][1]; // what load() opens
const GET_AGAIN = "get the bundle again, or export it again from its run";
const NO_BUNDLE =
  "not a bundle (no manifest.json); give the folder of one (of a shipped bundle, edgedistill verify NAME in Python prints it)";
const GRAPH = MANIFEST.precisions[PRECISION].file;

/** The error of opening a folder: "Name: message", with the folder's own path taken out. */
async function refusal(folder, action = (bundle) => bundle) {
  const error = await load(folder, { precision: PRECISION })
    .then(action)
    .then(
      () => assert.fail("nothing was refused"),
      (found) => found,
    );
  return `${error.name}: ${error.message}`.replaceAll(folder, "X").replaceAll("\\", "/");
}

test("a folder that is no bundle", async (t) => {
  const folder = copyBundle(t);
  assert.equal(await refusal(path.join(folder, "onnx")), `UserError: X: ${NO_BUNDLE}`);
  assert.match(await refusal(path.join(folder, "none")), /not a bundle/);
  rmSync(path.join(folder, "manifest.json"));
  mkdirSync(path.join(folder, "manifest.json"));
  assert.match(await refusal(folder), /not a bundle/);
});

for (const [what, changes, message] of [
  ["a newer schema", { schema: 2 }, "schema 2, this runner reads up to 1; install a newer edgedistill"],
  ["a padding id that is none", { pad_id: 0.5 }, "pad_id missing or of the wrong type, truncated or edited; copy the bundle again"],
  ["no schema", { schema: "1" }, "no schema number, so it is not a bundle's manifest; copy the bundle again"],
  [
    "missing keys",
    { dims: undefined, prompt: undefined },
    "prompt, dims missing or of the wrong type, truncated or edited; copy the bundle again",
  ],
  [
    "wrong types",
    { dims: [], max_tokens: "9", files: [] },
    "dims, max_tokens, files missing or of the wrong type, truncated or edited; copy the bundle again",
  ],
  [
    "a classifier",
    { labels: ["yes", "no"], output: "logits" },
    "a classifier, which has no embeddings; classify with edgedistill in Python",
  ],
]) {
  test(`a manifest with ${what}`, async (t) => {
    const folder = copyBundle(t);
    rewrite(folder, "manifest.json", changes);
    assert.equal(await refusal(folder), `UserError: X/manifest.json: ${message}`);
  });
}

for (const name of [
  "../secret.onnx",
  "/etc/passwd",
  "onnx/../../x",
  "..",
  "",
  ".",
  "C:\\x",
  "onnx\\..\\..\\x",
  "onnx//x",
  "onnx/",
  "a\0b",
  7,
]) {
  test(`the file name ${JSON.stringify(name)}, which leaves the folder`, async (t) => {
    const folder = copyBundle(t);
    const message =
      `UserError: X/manifest.json: the file name ${JSON.stringify(name)} leaves the bundle; do not use this bundle`.replaceAll("\\", "/");
    rewrite(folder, "manifest.json", {
      precisions: { ...MANIFEST.precisions, [PRECISION]: { ...MANIFEST.precisions[PRECISION], file: name } },
    });
    assert.equal(await refusal(folder), message);
    if (typeof name !== "string") return;
    rewrite(folder, "manifest.json", { precisions: MANIFEST.precisions, files: { ...MANIFEST.files, [name]: "0" } });
    assert.equal(await refusal(folder), message);
  });
}

test("symbolic links, of a file and of a folder", async (t) => {
  const folder = copyBundle(t);
  const outside = path.join(path.dirname(folder), "outside");
  renameSync(path.join(folder, "onnx"), outside);
  symlinkSync(outside, path.join(folder, "onnx"));
  const message = (name) => `UserError: X/${name}: a link, which may leave the bundle; copy it without links (cp -RL)`;
  assert.equal(await refusal(folder), message(GRAPH));
  rmSync(path.join(folder, "onnx"));
  renameSync(outside, path.join(folder, "onnx"));
  await load(folder);
  renameSync(path.join(folder, "manifest.json"), path.join(folder, "m.json"));
  symlinkSync("m.json", path.join(folder, "manifest.json"));
  assert.equal(await refusal(folder), message("manifest.json"));
});

test("the folder itself may be a link", async (t) => {
  const folder = copyBundle(t);
  symlinkSync(folder, `${folder}-link`);
  assert.equal((await load(`${folder}-link`)).precision, PRECISION);
});

for (const name of ["tokenizer.json", GRAPH, "parity.json"]) {
  test(`a changed and a missing ${name}`, async (t) => {
    const folder = copyBundle(t);
    appendFileSync(path.join(folder, name), " ");
    const message = `CheckFailed: X/${name}: changed since export (its sha256 differs from manifest.json); copy the bundle again`;
    assert.equal(await refusal(folder, (bundle) => bundle.check()), message);
    rmSync(path.join(folder, name));
    assert.equal(await refusal(folder, (bundle) => bundle.check()), `CheckFailed: X/${name}: missing; copy the bundle again`);
  });
}

test("JSON that is cut off or not UTF-8", async (t) => {
  const folder = copyBundle(t);
  writeFileSync(path.join(folder, "tokenizer.json"), Buffer.from('{"a": "\xff"}', "latin1"));
  rehash(folder, "tokenizer.json");
  assert.equal(await refusal(folder), "UserError: X/tokenizer.json: not valid JSON, truncated or edited; copy the bundle again");
  writeFileSync(path.join(folder, "manifest.json"), readFileSync(path.join(folder, "manifest.json")).subarray(0, 100));
  assert.equal(await refusal(folder), "UserError: X/manifest.json: not valid JSON, truncated or edited; copy the bundle again");
  for (const json of ["null", "[]", "7"]) {
    writeFileSync(path.join(folder, "manifest.json"), json);
    assert.match(await refusal(folder), /no schema number/);
  }
});

test("a graph that onnxruntime does not know, and one with weights in another file", async (t) => {
  const folder = copyBundle(t);
  const refused = async (bytes, fact) => {
    writeFileSync(path.join(folder, GRAPH), bytes);
    rehash(folder, GRAPH);
    const found = await refusal(folder);
    assert.ok(found.startsWith(`UserError: X/${GRAPH}: ${fact}`) && found.endsWith(`; ${GET_AGAIN}`), found);
  };
  const bytes = readFileSync(path.join(folder, GRAPH));
  await refused(Buffer.from("not a graph"), "is not an ONNX graph (wire type 6 at byte 1)");
  await refused(bytes.subarray(0, 5000), "is cut off (");
  await refused(Buffer.concat([bytes, Buffer.from([0x3a, 0])]), "is not an ONNX graph;");
  await refused(Buffer.concat([bytes, Buffer.from([0xca, 0x01, 0])]), `is not one that a bundle needs (field 25 of a model at byte ${bytes.length})`);
});

test("a tokenizer and golden texts of another shape, and a graph without the output", async (t) => {
  const folder = copyBundle(t);
  for (const golden of ["null", "{}", '{"texts": [], "ids": [], "vectors": []}', '{"texts": ["a"], "ids": [[1]], "vectors": []}']) {
    writeFileSync(path.join(folder, "parity.json"), golden);
    rehash(folder, "parity.json");
    const message = `UserError: X/parity.json: not texts with their ids and vectors; ${GET_AGAIN}`;
    assert.equal(await refusal(folder, (bundle) => bundle.check()), message);
  }
  rewrite(folder, "manifest.json", { output: "nothing" });
  assert.match(
    await refusal(folder, (bundle) => bundle.encode("a text")),
    /^UserError: X: its graph cannot run \(.+\); get the bundle again, or export it again from its run$/s,
  );
  for (const tokenizer of ["null", '{"model": {"type": "Magic"}}']) {
    writeFileSync(path.join(folder, "tokenizer.json"), tokenizer);
    rehash(folder, "tokenizer.json");
    const message = /^UserError: X\/tokenizer.json: cannot be read here \(.+\); get the bundle again, or export it again from its run$/s;
    assert.match(await refusal(folder), message);
  }
});

test("a manifest of other dimensions than the graph's", async (t) => {
  const folder = copyBundle(t);
  rewrite(folder, "manifest.json", { dims: [7] });
  assert.equal(
    await refusal(folder, (bundle) => bundle.encode("a text")),
    "UserError: X: manifest.json does not describe its graph; copy the bundle again",
  );
});

test("golden texts with other embeddings or ids: the check names the worst", async (t) => {
  const folder = copyBundle(t);
  const { vectors, ids, texts } = readJson(folder, "parity.json");
  vectors[5] = vectors[5].map((x) => -x);
  rewrite(folder, "parity.json", { vectors });
  const place = (at) => `X: text ${at + 1} of ${GOLDEN.texts.length} \\("${GOLDEN.texts[at].slice(0, 12)}.*"\\)`;
  const cosine = new RegExp(
    `^CheckFailed: ${place(5)} has cosine -0\\.\\d{6} on this machine, ${PRECISION} must reach 0\\.\\d+; try another precision$`,
  );
  assert.match(await refusal(folder, (bundle) => bundle.check()), cosine);
  ids[6][1] += 1;
  rewrite(folder, "parity.json", { ids, vectors: GOLDEN.vectors });
  const tokens = new RegExp(`^CheckFailed: ${place(6)}: token ids differ; run this bundle in Python$`);
  assert.match(await refusal(folder, (bundle) => bundle.check()), tokens);
  rewrite(folder, "parity.json", { ids: GOLDEN.ids, vectors: GOLDEN.vectors.map((row) => row.slice(1)) });
  assert.match(await refusal(folder, (bundle) => bundle.check()), /has cosine NaN on this machine/);
  texts[20] = "\u001b[31mred\u202e";
  rewrite(folder, "parity.json", { texts, vectors: GOLDEN.vectors });
  assert.match(await refusal(folder, (bundle) => bundle.check()), /text 21 of \d+ \("\/u001b\[31mred\/u\{202e\}"\): token ids differ/);
});
