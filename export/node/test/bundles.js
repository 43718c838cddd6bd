/** The bundle that the tests run on, and copies of it to break. */

import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

// In the repository, and where the Python package is installed.
const SHIPPED = ["../../../edgedistill/shipped/bundles/nano", "../../../bundles/nano"].map((place) =>
  path.join(import.meta.dirname, place),
);

export const BUNDLE = process.env.EDGEDISTILL_BUNDLE ?? SHIPPED.find(existsSync);
if (!BUNDLE) throw new Error("the shipped nano is not where it was; set EDGEDISTILL_BUNDLE to the folder of a bundle");

export const readJson = (folder, name) => JSON.parse(readFileSync(path.join(folder, name), "utf8"));
export const MANIFEST = readJson(BUNDLE, "manifest.json");
export const GOLDEN = readJson(BUNDLE, "parity.json");
export const DIMS = MANIFEST.dims[0];

/** A copy of the bundle, removed after the test. */
export function copyBundle(t) {
  const root = mkdtempSync(path.join(tmpdir(), "edgedistill-"));
  t.after(() => rmSync(root, { recursive: true }));
  const folder = path.join(root, "copy");
  cpSync(BUNDLE, folder, { recursive: true });
  return folder;
}

/** Change keys of a JSON file of a bundle, and its hash in the manifest. */
export function rewrite(folder, name, changes) {
  const bytes = JSON.stringify({ ...readJson(folder, name), ...changes });
  writeFileSync(path.join(folder, name), bytes);
  if (name !== "manifest.json") rehash(folder, name);
}

/** Write a file's present hash into the manifest. */
export function rehash(folder, name) {
  const digest = createHash("sha256")
    .update(readFileSync(path.join(folder, name)))
    .digest("hex");
  rewrite(folder, "manifest.json", { files: { ...readJson(folder, "manifest.json").files, [name]: digest } });
}

export const dot = (a, b) => a.reduce((sum, x, at) => sum + x * b[at], 0);
