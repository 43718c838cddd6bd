/** The cases that Node and the browser share. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "../index.js";
import { copyBundle } from "./bundles.js";
import { GIVES, REFUSED } from "./cases.js";

for (const [name, { change, error }] of Object.entries(REFUSED)) {
  test(`refused: ${name}`, async (t) => {
    const folder = copyBundle(t);
    change(folder);
    const found = await load(folder)
      .then((bundle) => bundle.check())
      .then(
        () => assert.fail("nothing was refused"),
        (refusal) => `${refusal.name}: ${refusal.message}`.replaceAll(folder, "X"),
      );
    if (typeof error === "string") assert.equal(found, error);
    else assert.match(found, error);
  });
}

for (const [name, { change = () => {}, use, value, verify }] of Object.entries(GIVES)) {
  test(name, async (t) => {
    const folder = copyBundle(t);
    change(folder);
    const bundle = await load(folder, { threads: 1 });
    verify(await use(bundle, value));
    await bundle.close();
  });
}
