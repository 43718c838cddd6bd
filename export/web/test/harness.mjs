// A server of bundles, sound and broken, a browser, and what the cases ask of them.

import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { chromium } from "playwright-core";

import { BUNDLE, edit, rehash } from "../../node/test/bundles.js";
import { serve } from "../server.mjs";

const scratch = mkdtempSync(join(tmpdir(), "edgedistill-web-"));
export let few; // the bundle with fewer golden texts, below
const mounts = { "/bundle/": BUNDLE };
const server = serve(mounts);
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
export const { port } = server.address();
export const origin = `http://localhost:${port}`;
export const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run"],
});

/** A copy of the bundle with few golden texts, changed by `change(folder)`; returns its folder, which is served below /NAME/. */
export function broken(name, change, from = few) {
  const folder = join(scratch, name);
  cpSync(from, folder, { recursive: true });
  change(folder);
  mounts[`/${name}/`] = folder;
  return folder;
}

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
/** Open what is typed as an address, below what is folded away. */
export async function openAddress(on, typed) {
  await on.evaluate("document.getElementById('own').open = true");
  await on.fill("#url", typed);
  await on.press("#url", "Enter");
}
export const text = (on, id) => on.textContent(`#${id}`);

/** Drop a file or folder on the page, as a hand does. */
export async function drop(on, path) {
  const session = await on.context().newCDPSession(on);
  const data = { items: [], files: [path], dragOperationsMask: 1 };
  for (const type of ["dragEnter", "dragOver", "drop"]) await session.send("Input.dispatchDragEvent", { type, x: 9, y: 9, data });
}
export async function dropText(on, name, content) {
  writeFileSync(join(scratch, name), content);
  await drop(on, join(scratch, name));
}

/** What the error card says, as one line: place: fact way out. */
export async function errorOf(on) {
  await Promise.race([shown(on, "error"), shown(on, "bundle").then(() => assert.fail("the bundle was opened"))]);
  return errorText(on);
}
export const errorText = async (on) => `${await text(on, "place")}: ${await text(on, "fact")} ${await text(on, "way-out")}`;

export async function refused(name, change, expected, query = "") {
  broken(name, change);
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

// The same bundle with fewer golden texts, which opens faster.
export const FEW = 12;
few = broken(
  "few",
  (folder) => {
    edit("parity.json", (value) => ["texts", "ids", "vectors"].forEach((key) => value[key].splice(FEW)))(folder);
    rehash(folder);
  },
  BUNDLE,
);

/** End the browser and the server, and remove the copies. */
export async function close() {
  await browser.close();
  server.close();
  rmSync(scratch, { recursive: true });
}
