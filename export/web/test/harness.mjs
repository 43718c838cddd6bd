// A server of an exported page and of other students, a browser, and what the cases ask of them.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { launch, serve } from "../chromium.mjs";

const PAGE = process.env.EDGEDISTILL_PAGE; // the folder that edgedistill export nano --web wrote, with micro and multi
export const scratch = mkdtempSync(join(tmpdir(), "edgedistill-web-"));
export const studentFile = (name) => join(PAGE, "students", `${name}.bin`);
export const student = (name) => readFileSync(studentFile(name));
const bundle = new URL("../../../edgedistill/shipped/bundles/nano/", import.meta.url);
export const GOLDEN = JSON.parse(readFileSync(new URL("parity.json", bundle), "utf8"));
export const dot = (a, b) => a.reduce((sum, x, at) => sum + x * b[at], 0);

const mounts = { "/few.bin": studentFile("nano") };
const { server, origin: served } = await serve(mounts, PAGE);
export const origin = served;
export const browser = await launch();

/** Serve bytes below /NAME.bin. */
export function mount(name, bytes) {
  const path = (mounts[`/${name}.bin`] = join(scratch, `${name}.bin`));
  writeFileSync(path, bytes);
  return path;
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
  Promise.race([shown(on, "student"), shown(on, "error").then(async () => assert.fail(await on.innerText("#error")))]);
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
  await Promise.race([shown(on, "error"), shown(on, "student").then(() => assert.fail("it was opened"))]);
  return errorText(on);
}
export const errorText = async (on) => `${await text(on, "place")}: ${await text(on, "fact")} ${await text(on, "way-out")}`;

/** `load(from, options)` and then `use(encoder, value)`, both in the browser, or the message of the error. */
export async function inBrowser(on, from, options, use, value) {
  const source = `async ([from, options, value]) => {
    const { load } = await import("/encoder.js");
    try { const encoder = await load(from, options); const found = await (${use})(encoder, value); encoder.close(); return found; }
    catch (error) { return { error: error.message, name: error.name }; }
  }`;
  return on.evaluate(`(${source})(${JSON.stringify([from, options, value])})`);
}

/** End the browser and the server, and remove what was written. */
export async function close() {
  await browser.close();
  server.close();
  rmSync(scratch, { recursive: true });
}
