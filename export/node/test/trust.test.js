/** What only a folder can do: links, missing files. The other refusals are in cases.js. */

import assert from "node:assert/strict";
import { mkdirSync, renameSync, rmSync, symlinkSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";

import { load } from "../index.js";
import { copyBundle, GRAPH, PRECISION, rewrite } from "./bundles.js";

const NO_BUNDLE =
  "not a bundle (no manifest.json); give the folder of one (of a shipped bundle, edgedistill verify NAME in Python prints it)";

/** The error of opening a folder: "Name: message", with the folder's own path taken out. */
async function refusal(folder, action = (bundle) => bundle) {
  const error = await load(folder)
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
  test(`a missing ${name}`, async (t) => {
    const folder = copyBundle(t);
    rmSync(path.join(folder, name));
    assert.equal(await refusal(folder, (bundle) => bundle.check()), `CheckFailed: X/${name}: missing; copy the bundle again`);
  });
}

test("a manifest of other dimensions than the graph's", async (t) => {
  const folder = copyBundle(t);
  rewrite(folder, "manifest.json", { dims: [7] });
  assert.equal(
    await refusal(folder, (bundle) => bundle.encode("a text")),
    "UserError: X: manifest.json does not describe its graph; copy the bundle again",
  );
});
