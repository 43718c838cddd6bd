/** The bundle that the tests of both runners run on, and ways to break a copy of it. */

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
const RANKS = Object.entries(MANIFEST.precisions).map(([name, entry]) => [entry.rank.int8_cpu, name]);
export const PRECISION = RANKS.sort()[0][1]; // the one that is opened where none is named
export const GRAPH = MANIFEST.precisions[PRECISION].file;

/** A copy of the bundle, removed after the test. */
export function copyBundle(t) {
  const root = mkdtempSync(path.join(tmpdir(), "edgedistill-"));
  t.after(() => rmSync(root, { recursive: true }));
  const folder = path.join(root, "copy");
  cpSync(BUNDLE, folder, { recursive: true });
  return folder;
}

/** Change a JSON file of a bundle by `changes(value)`. Hashes are left as they are. */
export const edit = (name, changes) => (folder) => {
  const value = readJson(folder, name);
  changes(value);
  writeFileSync(path.join(folder, name), JSON.stringify(value));
};

/** Replace keys of a JSON file of a bundle, and update the hashes in its manifest. */
export function rewrite(folder, name, changes) {
  edit(name, (value) => Object.assign(value, changes))(folder);
  if (name !== "manifest.json") rehash(folder);
}

/** Write the present hashes of a bundle's files into its manifest, and the size of each graph. */
export function rehash(folder) {
  edit("manifest.json", ({ files, precisions }) => {
    for (const name of Object.keys(files)) files[name] = sha256(readFileSync(path.join(folder, name)));
    for (const entry of Object.values(precisions)) {
      entry.sha256 = files[entry.file];
      entry.size_bytes = readFileSync(path.join(folder, entry.file)).length;
    }
  })(folder);
}

const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
export const dot = (a, b) => a.reduce((sum, x, at) => sum + x * b[at], 0);
