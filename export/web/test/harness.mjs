// A server of bundles, sound and broken, a browser, and what the cases ask of them.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import { chromium } from "playwright-core";

import { serve } from "../server.mjs";

const NANO = fileURLToPath(new URL("../../../edgedistill/shipped/bundles/nano", import.meta.url));
export const bundle = resolve(process.argv[2] ?? NANO);
const json = (path) => JSON.parse(readFileSync(path, "utf8"));
export const golden = json(join(bundle, "parity.json"));
export const manifest = json(join(bundle, "manifest.json"));

const scratch = mkdtempSync(join(tmpdir(), "edgedistill-web-"));
export let few; // the bundle with fewer golden texts, below
const mounts = { "/bundle/": bundle };
const server = serve(mounts);
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
export const { port } = server.address();
export const origin = `http://localhost:${port}`;
export const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run"],
});

/** A copy of a bundle, changed by `change(folder)`, its hashes updated where `rehash`; returns its folder, served below /NAME/. */
export function broken(name, change, rehash = true, from = few ?? bundle) {
  const folder = join(scratch, name);
  cpSync(from, folder, { recursive: true });
  change(folder);
  if (rehash) {
    const changed = json(join(folder, "manifest.json"));
    for (const file of Object.keys(changed.files)) changed.files[file] = sha256(readFileSync(join(folder, file)));
    for (const entry of Object.values(changed.precisions)) entry.sha256 = changed.files[entry.file];
    writeFileSync(join(folder, "manifest.json"), JSON.stringify(changed));
  }
  mounts[`/${name}/`] = folder;
  return folder;
}
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
export const edit = (name, changes) => (folder) => {
  const path = join(folder, name);
  const value = json(path);
  changes(value);
  writeFileSync(path, JSON.stringify(value));
};

/** A fresh page that fails the case on any error of its own, and notes which addresses it asked for. */
export async function page(path, { prepare = async () => {}, ...options } = {}) {
  const context = await browser.newContext(options);
  const fresh = await context.newPage();
  fresh.setDefaultTimeout(90_000);
  fresh.asked = [];
  fresh.bugs = [];
  fresh.on("pageerror", (error) => fresh.bugs.push(error.message));
  context.on("request", (sent) => fresh.asked.push(sent.url()));
  await prepare(fresh);
  if (path !== undefined) await fresh.goto(origin + path);
  return fresh;
}
export const shown = (on, id) => on.waitForSelector(`#${id}:not([hidden])`);
export const opened = (on) =>
  Promise.race([shown(on, "bundle"), shown(on, "error").then(async () => assert.fail(await on.innerText("#error")))]);
export const text = (on, id) => on.textContent(`#${id}`);

/** What the error card says, as one line: place: fact way out. */
export async function errorOf(on) {
  await Promise.race([shown(on, "error"), shown(on, "bundle").then(() => assert.fail("the bundle was opened"))]);
  return `${await text(on, "place")}: ${await text(on, "fact")} ${await text(on, "way-out")}`;
}
export async function refused(name, change, expected, { rehash = true, query = "" } = {}) {
  broken(name, change, rehash);
  const on = await page(`/?bundle=/${name}/${query}`);
  assert.match(await errorOf(on), expected);
  assert.deepEqual(on.bugs, []);
  await on.context().close();
}
/** `load(from, options)` and then `use(encoder, value)`, both in the browser, or the message of the error. */
export async function inBrowser(on, from, options, use, value) {
  const source = `async ([from, options, value]) => {
    const { load } = await import("/encoder.js");
    try { const encoder = await load(from, options); const found = await (${use})(encoder, value); encoder.close(); return found; }
    catch (error) { return { error: error.message, kind: error.kind }; }
  }`;
  return on.evaluate(`(${source})(${JSON.stringify([from, options, value])})`);
}
export const dot = (a, b) => a.reduce((sum, value, at) => sum + value * b[at], 0);
export const least = Math.min(...Object.values(golden.cosine_at_least));

// The same bundle with fewer golden texts, which opens faster.
export const FEW = 12;
few = broken(
  "few",
  edit("parity.json", (value) => ["texts", "ids", "vectors"].forEach((key) => value[key].splice(FEW))),
);

/** End the browser and the server, and remove the copies. */
export async function close() {
  await browser.close();
  server.close();
  rmSync(scratch, { recursive: true });
}
