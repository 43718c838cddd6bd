/**
 * Open an edgedistill bundle and embed texts, on onnxruntime-node and a tokenizer alone.
 *
 *     import { load } from "edgedistill";
 *     const bundle = await load("bundles/nano");
 *     const [first, second] = await bundle.encode(["A text.", "Another one."]); // Float32Array, of unit length
 *
 * Errors read *place: fact; way out*. A UserError can be fixed by the caller; a CheckFailed means that a file or an embedding
 * is not the one that was exported. What this runner shares with the browser is in core/.
 */

import "./telemetry.js"; // before onnxruntime-node

import { lstat, readFile, realpath } from "node:fs/promises";
import { availableParallelism } from "node:os";
import path from "node:path";

import * as tokenizers from "@huggingface/tokenizers";
import { InferenceSession, Tensor } from "onnxruntime-node";

import { Bundle, open } from "./core/bundle.js";
import { similarity } from "./core/compact.js";
import { CheckFailed, UserError } from "./core/errors.js";
import { tooLarge } from "./core/manifest.js";

export { Bundle, CheckFailed, similarity, UserError };

/**
 * Open a bundle after checking the sha256 of every file that it reads.
 *
 * precision: by default the fastest of the bundle's, by the manifest's rank. threads: of onnxruntime, by default all.
 * Throws UserError for a folder that is no encoder's bundle or not safe to open, CheckFailed for a missing or changed file.
 * @param {string} folder
 * @param {{precision?: string, threads?: number}} [options]
 */
export async function load(folder, { precision, threads = availableParallelism() } = {}) {
  const bundle = await open(new Folder(folder), tokenizers, precision);
  const options = {
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    logSeverityLevel: 3,
    extra: { session: { intra_op: { allow_spinning: "0" }, set_denormal_as_zero: "1" } }, // threads sleep between two calls
  };
  for (const encoder of bundle.encoders) {
    const session = await InferenceSession.create(await encoder.graph(), options).catch((error) => {
      const place = path.join(encoder.folder, encoder.manifest.precisions[encoder.precision].file);
      throw new UserError(`${place}: onnxruntime-node cannot open it (${error.message}); try a newer onnxruntime-node`);
    });
    encoder.use(session, Tensor);
  }
  return bundle;
}

/** The files of a bundle's folder, without those that a symbolic link leads to. */
class Folder {
  constructor(folder) {
    this.place = folder;
  }

  async read(name, most) {
    const place = path.join(this.place, name);
    const [root, real] = await Promise.all([this.place, place].map((each) => realpath(each).catch(() => null)));
    const found = real === null ? null : await lstat(real);
    if (!found?.isFile()) return null;
    if (real !== path.join(root, name)) throw new UserError(`${place}: a link, which may leave the bundle; copy it without links (cp -RL)`);
    if (found.size > most) throw tooLarge(place, most);
    return readFile(real);
  }
}
